"""Kernels of distgrad/ops/matmul.py."""
