"""Kernels of distgrad/ops/nn.py."""
