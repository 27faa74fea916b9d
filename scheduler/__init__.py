"""Decides what runs: programs and the passes over them. Knows no kernels and no array backend."""

from distgrad.scheduler.passes import merge_equal
from distgrad.scheduler.program import Program, Step, check_program, lower

__all__ = ["Program", "Step", "check_program", "lower", "merge_equal"]
