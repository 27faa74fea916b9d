"""The fingerprint of a process: everything, besides the plan, that the bits of its results depend on. Knows no Ray.

It has the versions of packages, the kernels that libraries report, and for libraries that report none, digests of
results: of the C library's functions, of NumPy's loops and of products (see `probes`). NaN payloads are not covered.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata

import numpy as np

from distgrad.workers import blas, cpus, native, node_report, probes
from distgrad.workers.backends import package_versions

#: Fields that depend on what is installed. The others depend on the machine and on how the process was started.
VERSIONS = ("distgrad", "python", "numpy", "scipy", "numpy blas", "scipy blas", "native-code", "ml_dtypes")
#: The field of plans that are for native code. Names of such fields have no spaces.
NATIVE_CODE = "native-code"
#: The version of a missing package.
ABSENT = "not installed"

#: The smallest normal number: half of it is denormal, or zero if denormals are flushed. A variable, to avoid folding.
_LEAST = 2.0**-1022


@dataclass(frozen=True)
class Fingerprint:
    """Names and values, plain data. Processes with equal fingerprints compute equal bits from equal plans.

    >>> a = Fingerprint((("numpy", "2.4.6"), ("kernels", "Haswell")))
    >>> a.differences(Fingerprint((("numpy", "2.4.6"), ("kernels", "SkylakeX"))))
    "kernels 'Haswell', not 'SkylakeX'"
    """

    fields: tuple[tuple[str, str], ...]

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(repr(self.fields).encode()).hexdigest()

    def differences(self, other: Fingerprint) -> str:
        """The fields that differ, as text; empty if there are none."""
        mine, theirs = dict(self.fields), dict(other.fields)
        names = [name for name in {**theirs, **mine} if mine.get(name) != theirs.get(name)]
        return ", ".join([f"{name} {mine.get(name)!r}, not {theirs.get(name)!r}" for name in names])

    @property
    def versions(self) -> tuple[tuple[str, str], ...]:
        installed = {*VERSIONS, *package_versions()}
        return tuple([(name, value) for name, value in self.fields if name in installed])

    def without(self, name: str) -> Fingerprint:
        return Fingerprint(tuple([field for field in self.fields if field[0] != name]))

    def with_extras(self, extras: tuple[str, ...]) -> Fingerprint:
        """This fingerprint with the versions of more packages in this process."""
        return Fingerprint((*self.fields, *[(name, _extra_version(name)) for name in extras]))


@cache
def fingerprint(extras: tuple[str, ...] = ()) -> Fingerprint:
    """The fingerprint of this process at the first call, with the versions of the packages `extras`."""
    if extras:
        return fingerprint().with_extras(extras)
    with blas.threads(1), np.errstate(all="ignore"):
        return Fingerprint((*_versions(), *_kernels()))


def _versions() -> list[tuple[str, str]]:
    return [
        ("distgrad", str(sys.modules["distgrad"].__dict__["__version__"])),  # a layer above
        ("python", ".".join(platform.python_version_tuple()[:2])),
        ("numpy", np.__version__),
        ("scipy", _version("scipy")),
        ("numpy blas", _library("numpy", "version")),
        ("scipy blas", _library("scipy", "version")),
    ]


def _kernels() -> list[tuple[str, str]]:
    machine = [("machine", platform.machine()), ("libc", " ".join(platform.libc_ver()).strip() or platform.platform())]
    told = os.environ.get("OPENBLAS_CORETYPE", "")
    if not cpus.can_run(told, frozenset(node_report.flags())):  # trying would crash this process
        return [*machine, ("blas kernels", f"{told}, which this CPU cannot run")]
    return [
        *machine,
        ("blas kernels", _library("numpy", "architecture")),
        ("scipy blas kernels", _library("scipy", "architecture")),
        ("blas threads", _library("numpy", "num_threads")),
        ("scipy blas threads", _library("scipy", "num_threads")),
        ("numpy loops", " ".join(node_report.loops()[1]) or "baseline"),
        ("denormals", "flushed to zero" if flushes() else "kept"),
        *[(f"probe of {name}", probe()) for name, probe in probes.PROBES.items()],
    ]


def _library(package: str, what: str) -> str:
    """A property of the BLAS that a package bundles, or of the one that it shares."""
    libraries = blas.libraries()
    own = [lib for lib in libraries if f"{package}.libs" in lib.filepath or f"{package}/.dylibs" in lib.filepath]
    told = [getattr(lib, what, None) for lib in own or libraries]
    name = [lib.internal_api for lib in own or libraries] if what == "version" else [""] * len(told)
    return ", ".join([f"{a} {b}".strip() for a, b in zip(name, told, strict=True)]) or "unknown"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ABSENT


def _extra_version(package: str) -> str:
    version = native.identity if package == NATIVE_CODE else package_versions().get(package)
    return _version(package) if version is None else version()


def is_extra(name: str) -> bool:
    """Whether this field is a version of something that only some plans use."""
    return name in ("ml_dtypes", NATIVE_CODE) or name in package_versions()


def flushes() -> bool:
    """Whether denormal numbers are flushed to zero in this thread. A library that was loaded after the fingerprint was
    taken may have switched that on."""
    return _LEAST * 0.5 == 0.0
