"""Chooses kernels that all CPUs of a cluster can run, and the environment variables that select them.

Pure functions: `node_report` reads the features of CPUs. Kernels are those of OpenBLAS, of NumPy's own loops, and of
the C library's mathematical functions. Each of the three dispatches on the CPU, so different CPUs give different bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

_HASWELL = frozenset({"avx", "avx2", "fma"})
#: OpenBLAS's kernels for x86, fastest first, and the CPU flags (Linux names) that they need.
X86: dict[str, frozenset[str]] = {
    "SkylakeX": _HASWELL | {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"},
    "Haswell": _HASWELL,
    "Nehalem": frozenset({"ssse3", "sse4_1", "sse4_2", "popcnt"}),
}
#: The kernels that every 64-bit ARM CPU can run.
ARM = "ARMV8"
#: Alternative names of architectures.
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
#: The C library has variants of functions for CPUs with these features, with different last bits. Each feature has
#: two names, of old and new versions.
_LIBM = ("AVX2", "FMA", "FMA4")
_MASK = "glibc.cpu.hwcaps=" + ",".join([f"-{name}{end}" for end in ("", "_Usable") for name in _LIBM])


class Cpu(NamedTuple):
    """The CPU of a node, as `node_report` reads it."""

    machine: str
    flags: frozenset[str]
    #: The features that the node's NumPy has loops for, and those of them that the CPU has.
    dispatch: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    #: The kernels that OpenBLAS chooses by itself.
    kernels: str = ""
    #: GLIBC_TUNABLES of the node's environment.
    tunables: str = ""

    @property
    def architecture(self) -> str:
        name = self.machine.lower()
        return _ARCHITECTURES.get(name, name)


def cpu(found: Mapping[str, Any]) -> Cpu:
    """From the report of `node_report`."""
    dispatch, features = tuple(found["dispatch"]), tuple(found["features"])
    return Cpu(
        found["machine"], frozenset(found["flags"]), dispatch, features, found["kernels"], found.get("tunables", "")
    )


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of all workers. `coretype` is OpenBLAS's name of its kernels, or empty to let it choose; `disabled`
    are the features that NumPy's loops must not use; `tunables` are those of the C library, or None."""

    coretype: str = ""
    disabled: tuple[str, ...] = ()
    tunables: str | None = None

    def env(self) -> dict[str, str]:
        """The environment variables. All are set, even to nothing, to override a node's own environment."""
        env = {"OPENBLAS_CORETYPE": self.coretype, "NPY_DISABLE_CPU_FEATURES": " ".join(self.disabled)}
        env["NPY_ENABLE_CPU_FEATURES"] = ""  # NumPy allows only one of the two
        return env if self.tunables is None else env | {"GLIBC_TUNABLES": self.tunables}


def chosen(cpus: Sequence[Cpu]) -> Kernels:
    """The fastest kernels that all of these can run; ValueError if their architectures differ.

    >>> old, new = Cpu("x86_64", X86["Haswell"]), Cpu("x86_64", X86["SkylakeX"] | {"amx_tile"})
    >>> chosen([new, new]).coretype, chosen([new, old]).coretype
    ('SkylakeX', 'Haswell')
    """
    kinds = sorted({cpu.architecture for cpu in cpus})
    if len(kinds) > 1:
        raise ValueError(f"its nodes have CPUs of {len(kinds)} architectures, {' and '.join(kinds)}")
    return Kernels(_coretype(kinds[0], cpus), _disabled(cpus), _tunables(kinds[0], cpus))


def _coretype(architecture: str, cpus: Sequence[Cpu]) -> str:
    if architecture == "x86_64":
        return next((name for name in X86 if all(can_run(name, cpu.flags) for cpu in cpus)), "")
    if architecture == "aarch64":
        names = {cpu.kernels for cpu in cpus}
        return names.pop() if len(names) == 1 else ARM
    return ""


def can_run(coretype: str, flags: frozenset[str]) -> bool:
    """Whether a CPU with these flags can run these x86 kernels; True for unknown kernels."""
    return X86.get(coretype, frozenset()) <= flags


def _disabled(cpus: Sequence[Cpu]) -> tuple[str, ...]:
    """Features that only some CPUs have. A NumPy that lists other features has another version, and gets no task."""
    alike = [set(cpu.features) for cpu in cpus if cpu.dispatch == cpus[0].dispatch]
    some, all_of_them = set.union(*alike), set.intersection(*alike)
    return tuple([name for name in cpus[0].dispatch if name in some - all_of_them])


def _tunables(architecture: str, cpus: Sequence[Cpu]) -> str | None:
    """Switch off the features that the C library dispatches on, if only some CPUs have them."""
    if architecture == "x86_64" and len({_libm(cpu.flags) for cpu in cpus}) > 1:
        return _MASK
    return "" if any("glibc.cpu" in cpu.tunables for cpu in cpus) else None


def _libm(flags: frozenset[str]) -> tuple[bool, bool]:
    return {"avx2", "fma"} <= flags, "fma4" in flags
