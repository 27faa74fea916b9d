"""Decides what runs: programs, the passes over them, and plans. Knows no kernels and no array backend."""

from distgrad.scheduler.bodies import Body, bodies
from distgrad.scheduler.cluster import Cluster, Machine, Worker, load_cluster, local_cluster
from distgrad.scheduler.digest import constant_bytes, content_digest, is_plain
from distgrad.scheduler.fuse import fuse
from distgrad.scheduler.memory import peak
from distgrad.scheduler.partition import partition
from distgrad.scheduler.passes import merge_equal, optimize, slopes
from distgrad.scheduler.plan import Bundle, Options, Plan, Predictions, Task, check_plan
from distgrad.scheduler.program import Program, Step, check_program, lower
from distgrad.scheduler.run_state import Cancel, Command, Drop, GivenUp, RunState, Submit
from distgrad.scheduler.simulate import Timeline, replay, simulate

__all__ = [
    "Body", "Bundle", "Cancel", "Cluster", "Command", "Drop", "GivenUp", "Machine", "Options", "Plan", "Predictions",
    "Program", "RunState", "Step", "Submit", "Task", "Timeline", "Worker", "bodies", "check_plan", "check_program",
    "constant_bytes", "content_digest", "fuse", "is_plain", "load_cluster", "local_cluster", "lower", "merge_equal",
    "optimize", "partition", "peak", "replay", "simulate", "slopes",
]  # fmt: skip
