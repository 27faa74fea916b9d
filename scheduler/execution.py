"""Execution: how a backend runs the steps of a task, as far as predictions of time and memory depend on it.

The scheduler knows no backends: the session passes these facts as values.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Execution:
    """Facts about how steps run."""

    #: Fused steps run block by block, with their intermediate values in cache, and convolutions in blocks of windows.
    #: Otherwise every step of a group is one call on whole arrays.
    in_blocks: bool
    #: Intermediate values are placed in one arena per task. Otherwise an allocator that reuses freed memory makes them.
    has_arena: bool
    #: The library splits every large step among the threads of the task by itself.
    splits_steps: bool


#: NumPy's engine.
BLOCKED = Execution(in_blocks=True, has_arena=True, splits_steps=False)
#: An eager library such as torch.
STEP_BY_STEP = Execution(in_blocks=False, has_arena=False, splits_steps=True)


@dataclass(frozen=True, slots=True)
class Executions:
    """How tasks without and with a GPU run: they may have different backends."""

    on_cpus: Execution = BLOCKED
    on_gpus: Execution = STEP_BY_STEP


DEFAULT = Executions()
