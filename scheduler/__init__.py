"""Decides what runs: programs and the passes over them. Knows no kernels and no array backend."""
