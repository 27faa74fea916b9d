"""Kernels of distgrad/ops/index.py."""
