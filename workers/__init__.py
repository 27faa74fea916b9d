"""Runs programs: kernels, the reference executor; the only layer that knows array backends."""
