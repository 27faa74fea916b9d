"""Compiles the steps of a task into calls of NumPy kernels."""
