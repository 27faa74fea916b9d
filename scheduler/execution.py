"""Execution: how a backend runs the steps of a task, as far as predictions of time and memory depend on it.

The scheduler knows no backends: the session passes these facts as values.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Execution:
    """Facts about how steps run."""

    #: A fused step is one loop, with its intermediate values in registers, that threads share. Otherwise every step of
    #: a group is one call on whole arrays.
    fuses: bool
    #: Intermediate values are placed in one arena per task. Otherwise an allocator that reuses freed memory makes them.
    has_arena: bool
    #: The library splits every large step among the threads of the task by itself.
    splits_steps: bool


#: NumPy's engine with native code.
NATIVE = Execution(fuses=True, has_arena=True, splits_steps=False)
#: NumPy's engine without native code.
PLAIN = Execution(fuses=False, has_arena=True, splits_steps=False)
#: An eager library such as torch.
EAGER = Execution(fuses=False, has_arena=False, splits_steps=True)


@dataclass(frozen=True, slots=True)
class Executions:
    """How tasks without and with a GPU run: they may have different backends."""

    on_cpus: Execution = NATIVE
    on_gpus: Execution = EAGER


DEFAULT = Executions()
