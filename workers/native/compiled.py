"""Compiled groups: each distinct one is compiled once per process."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

from distgrad.scheduler.program import Step
from distgrad.types import Spec
from distgrad.workers.native.check import check_group
from distgrad.workers.native.group import Group
from distgrad.workers.native.llvm import HOST, Loaded, Target, compile_module
from distgrad.workers.native.loops import NAME, Loops
from distgrad.workers.native.rules import Unsupported

_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 4)  # releases the GIL


class CompiledGroup:
    """A group's function, with what its callers have to know of the loops."""

    def __init__(self, group: Group, target: Target = HOST):
        self.group = group
        loops = Loops(check_group(group))
        self.scratch_bytes, self.last_reads = loops.scratch_bytes, loops.last_reads
        self._loaded = Loaded(compile_module(loops.module, target))
        self.address = self._loaded.address(NAME)
        self.run: Callable[..., None] = _FUNCTION(self.address)


_known: dict[Any, CompiledGroup | None] = {}
_lock = threading.Lock()


def compiled(step: Step, types: Sequence[Spec]) -> CompiledGroup | None:
    """The compiled group of a fused step; None where native code has no rule for one of its steps."""
    key = _signature(step, types)
    with _lock:
        if key not in _known:
            try:
                _known[key] = CompiledGroup(Group(step, types))
            except Unsupported:
                _known[key] = None
        return _known[key]


def _signature(step: Step, types: Sequence[Spec]) -> Any:
    """What the code of a group depends on: equal for steps that do the same to arrays of the same types."""
    number = {
        v: i for i, v in enumerate(dict.fromkeys([v for s in (step, *step.body) for v in (*s.inputs, *s.outputs)]))
    }
    body = [
        (s.type, tuple([number[v] for v in s.inputs]), number[s.outputs[0]], repr(sorted(s.attrs.items())))
        for s in step.body
    ]
    specs = tuple([(types[v].shape, types[v].dtype.str) for v in number])
    ends = tuple([number[v] for v in step.inputs]), tuple([number[v] for v in step.outputs])
    return tuple(body), specs, ends, step.attrs["space"], step.attrs["split"]
