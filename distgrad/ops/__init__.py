"""The ops: builders, shape rules and gradients, one file per family; kernels mirror them in distgrad/workers/kernels."""
