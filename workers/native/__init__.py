"""Native code for fused steps: loops that LLVM compiles, called without the GIL.

    formulas.py    what a fused step computes, as a graph of small operations; ops along rows taken apart
    rules.py       how each elementwise op is computed: a line per op
    functions.py   exp, log, tanh ... with their error bounds
    values.py      what formulas are written in: vectors of elements with Python's operators
    group.py       a fused step seen as rows
    check.py       what the loops rely on, checked
    loops.py       the loops over them, as LLVM code
    llvm.py        compiles it; compiled.py: once per distinct step
    blocks.py      threads that share the rows
    small.py       steps on a few elements: tables of kernels; direct.py: the builtins that walk them

    kernels/       functions for steps that are not fused: convolutions, sums of rows by index
    regions/       tables of functions and matrix products that a thread walks without Python

This module imports none of them, nor llvmlite.
"""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib import metadata

#: Changes with every change of the generator that changes bits.
GENERATOR = 2
#: "0" turns native code off.
VARIABLE = "DISTGRAD_NATIVE"


def identity() -> str:
    """What the bits of native code depend on, for the fingerprint of a process."""
    why = unusable()
    return f"none: {why}" if why else f"generator {GENERATOR}, llvmlite {metadata.version('llvmlite')}"


def turned_off() -> str:
    """Why this process plans without native code; empty if it plans with it."""
    if os.environ.get(VARIABLE, "") == "0":
        return f"{VARIABLE} is 0"
    return unusable()


@cache
def unusable() -> str:
    """Why native code cannot run in this process; empty if it can."""
    try:
        metadata.version("llvmlite")
    except metadata.PackageNotFoundError:
        return "llvmlite is not installed"
    if platform.machine() in ("x86_64", "AMD64") and not _has_fma():
        return "this CPU has no FMA instructions"
    return ""


def _has_fma() -> bool:
    """Without the instruction, LLVM calls a function for each element, which is 35 times slower."""
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return False
    return bool(llvm.get_host_cpu_features().get("fma", False))
