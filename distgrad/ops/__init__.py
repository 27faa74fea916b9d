"""Ops: builders, shape rules and gradients, one module per family. `distgrad.workers.kernels` has the same modules."""
