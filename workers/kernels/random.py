"""Kernels of distgrad/ops/random.py."""
