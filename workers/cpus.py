"""Which kernels all CPUs of a cluster can run: chosen from what they have, and set by environment variables.

Pure: what the CPUs have comes from `node_report`. Kernels are those of OpenBLAS, of NumPy's own loops, and of the C
library's mathematical functions. Each of the three looks at the CPU, so that unequal CPUs give unequal bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

_HASWELL = frozenset({"avx", "avx2", "fma"})
#: OpenBLAS's kernels for x86, the fastest first, and the flags (as Linux names them) of CPUs that can run them.
X86: dict[str, frozenset[str]] = {
    "SkylakeX": _HASWELL | {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"},
    "Haswell": _HASWELL,
    "Nehalem": frozenset({"ssse3", "sse4_1", "sse4_2", "popcnt"}),
}
#: The kernels that every 64-bit ARM can run.
ARM = "ARMV8"
#: One architecture may have several names.
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
#: The C library has functions for CPUs with these, whose last bits are others. It has had two names for each.
_LIBM = ("AVX2", "FMA", "FMA4")
_MASK = "glibc.cpu.hwcaps=" + ",".join([f"-{name}{end}" for end in ("", "_Usable") for name in _LIBM])


class Cpu(NamedTuple):
    """What a node's CPU has: see `node_report`."""

    machine: str
    flags: frozenset[str]
    #: The features that NumPy there has loops for, and those of them that the CPU has.
    dispatch: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    #: The kernels that OpenBLAS takes by itself.
    kernels: str = ""
    #: What the node's environment tells the C library.
    tunables: str = ""

    @property
    def architecture(self) -> str:
        name = self.machine.lower()
        return _ARCHITECTURES.get(name, name)


def cpu(found: Mapping[str, Any]) -> Cpu:
    """From what `node_report` says."""
    dispatch, features = tuple(found["dispatch"]), tuple(found["features"])
    return Cpu(
        found["machine"], frozenset(found["flags"]), dispatch, features, found["kernels"], found.get("tunables", "")
    )


@dataclass(frozen=True, slots=True)
class Kernels:
    """What workers are told to run. `coretype` is OpenBLAS's name for its kernels, none where it is left to choose;
    `disabled` are the features that NumPy's loops do without; `tunables` is for the C library, None to let it be."""

    coretype: str = ""
    disabled: tuple[str, ...] = ()
    tunables: str | None = None

    def env(self) -> dict[str, str]:
        """The variables that say so. All are set, also to nothing: what a node's environment says is not to count."""
        env = {"OPENBLAS_CORETYPE": self.coretype, "NPY_DISABLE_CPU_FEATURES": " ".join(self.disabled)}
        env["NPY_ENABLE_CPU_FEATURES"] = ""  # NumPy takes one of the two
        return env if self.tunables is None else env | {"GLIBC_TUNABLES": self.tunables}


def chosen(cpus: Sequence[Cpu]) -> Kernels:
    """The best kernels that all of these can run; ValueError where they are of several architectures.

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
    """Whether a CPU with these flags can run these kernels of x86, as far as that is known here."""
    return X86.get(coretype, frozenset()) <= flags


def _disabled(cpus: Sequence[Cpu]) -> tuple[str, ...]:
    """The features that some have and some lack. NumPys that name others are of another version, and get no task."""
    alike = [set(cpu.features) for cpu in cpus if cpu.dispatch == cpus[0].dispatch]
    some, all_of_them = set.union(*alike), set.intersection(*alike)
    return tuple([name for name in cpus[0].dispatch if name in some - all_of_them])


def _tunables(architecture: str, cpus: Sequence[Cpu]) -> str | None:
    """Where some CPUs have what the C library's functions look for and some lack it, all do without."""
    if architecture == "x86_64" and len({_libm(cpu.flags) for cpu in cpus}) > 1:
        return _MASK
    return "" if any("glibc.cpu" in cpu.tunables for cpu in cpus) else None


def _libm(flags: frozenset[str]) -> tuple[bool, bool]:
    return {"avx2", "fma"} <= flags, "fma4" in flags
