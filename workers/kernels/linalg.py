"""Kernels of distgrad/ops/linalg.py."""
