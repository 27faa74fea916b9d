"""Decides what runs: programs, the passes over them, and plans. Knows no kernels and no array backend."""

from distgrad.scheduler.cluster import Cluster, Machine, Worker, load_cluster, local_cluster
from distgrad.scheduler.digest import constant_bytes, content_digest, is_plain
from distgrad.scheduler.fuse import fuse
from distgrad.scheduler.memory import peak
from distgrad.scheduler.partition import partition
from distgrad.scheduler.passes import merge_equal, optimize, slopes
from distgrad.scheduler.plan import Bundle, Options, Plan, Predictions, Task, check_plan
from distgrad.scheduler.program import Program, Step, check_program, lower
from distgrad.scheduler.simulate import Timeline, replay, simulate

__all__ = [
    "Bundle", "Cluster", "Machine", "Options", "Plan", "Predictions", "Program", "Step", "Task", "Timeline",
    "Worker", "check_plan", "check_program", "constant_bytes", "content_digest", "fuse", "is_plain", "load_cluster",
    "local_cluster", "lower", "merge_equal", "optimize", "partition", "peak", "replay", "simulate", "slopes",
]  # fmt: skip
