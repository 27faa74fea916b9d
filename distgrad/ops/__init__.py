"""The ops: builders, shape rules and gradients, one file per family; `distgrad.workers.kernels` mirrors them."""
