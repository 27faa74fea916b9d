"""Planner: from a lowered program to a checked plan, by way of the passes; equal programs are planned once.

The one place that hands kernels to the scheduler, which knows none: constants are folded with the kernels that the local engine runs.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distgrad.registry import OPS
from distgrad.scheduler import (
    Cluster,
    Options,
    Plan,
    Program,
    Step,
    content_digest,
    fuse,
    load_cluster,
    local_cluster,
    optimize,
    partition,
)
from distgrad.types import Spec
from distgrad.workers import calibrate
from distgrad.workers.tape import compute

#: Plans that are kept for programs that come again: a function that is traced anew, say.
KEPT = 256

_LOCK = threading.Lock()
_plans: OrderedDict[str, Plan] = OrderedDict()


@dataclass(frozen=True)
class Planner:
    """What plans are made for."""

    cluster: Cluster
    options: Options
    threads: int

    @classmethod
    def of(
        cls,
        engine: str,
        threads: int | None,
        cpus_per_task: int | None,
        memory: int | str | None,
        granularity: float | None,
        cluster: Cluster | str | os.PathLike[str] | None,
    ) -> Planner:
        if engine != "local":
            raise ValueError(f"Session: unknown engine {engine!r}; there is 'local'")
        count = _count("threads", threads) or available_threads()
        cpus = _count("cpus_per_task", cpus_per_task)
        if cpus is not None and cpus > count:
            raise ValueError(f"Session: cpus_per_task is {cpus}, more than the {count} threads of the session")
        if cluster is None:
            cluster = local_cluster(count, None, calibrate.machine(count))
        elif not isinstance(cluster, Cluster):
            cluster = load_cluster(cluster)
        return cls(cluster, Options(granularity, cpus, memory_bytes(memory)), count)

    def plan(self, program: Program) -> Plan:
        program = fuse(optimize(program, _evaluate, self.options.fan_in))
        key = content_digest(program, self.cluster, self.options)
        with _LOCK:
            if key in _plans:
                _plans.move_to_end(key)
                return _plans[key]
        plan = partition(program, self.cluster, self.options)
        with _LOCK:
            _plans[key] = plan
            if len(_plans) > KEPT:
                _plans.popitem(last=False)
        return plan


def _evaluate(step: Step, arrays: Sequence[Any], specs: Sequence[Spec]) -> list[Any]:
    return compute(OPS[step.type], arrays, step.attrs, specs)


def available_threads() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_UNITS = {"": 1, "b": 1, **{f"{p}b": 1000**i for i, p in enumerate("kmgt", 1)}}
_UNITS |= {f"{p}ib": 1024**i for i, p in enumerate("kmgt", 1)}


def memory_bytes(memory: int | str | None) -> int | None:
    """A budget in bytes.

    >>> memory_bytes("1.5 GiB"), memory_bytes(10**9), memory_bytes(None)
    (1610612736, 1000000000, None)
    """
    if isinstance(memory, str):
        found = re.fullmatch(r"\s*([0-9.]+)\s*([a-zA-Z]*)\s*", memory)
        if found and found[2].lower() in _UNITS and found[1].count(".") <= 1 and found[1] != ".":
            return int(float(found[1]) * _UNITS[found[2].lower()])
    elif memory is None or (isinstance(memory, int) and not isinstance(memory, bool) and memory > 0):
        return memory
    raise ValueError(f"Session: memory is a number of bytes or text such as '4 GiB', got {memory!r}")


def _count(what: str, value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"Session: {what} is a positive whole number, got {value!r}")
    return value
