"""Checks this machine's software, hardware and settings for distgrad. `on_ray/health.py` checks Ray clusters.

Each check yields findings and changes nothing. If one fails, a finding says so, and the others still run.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from distgrad.printing import bytes_text
from distgrad.scheduler.cluster import usable_cpus, usable_memory
from distgrad.workers import native
from distgrad.workers.backends import gpu_backend
from distgrad.workers.tools import calibrate

OK, WARNING, PROBLEM = "ok", "warning", "problem"

#: Limits below which runs may fail: free bytes of memory, free fraction of the disk, open files.
LOW_MEMORY, LOW_DISK, LOW_FILES = 1 << 30, 0.05, 4096
#: Ray's default object store: a fraction of the memory, up to a maximum in bytes.
STORE_SHARE, STORE_MOST = 0.3, 200 * 10**9
#: Days after which measured rates count as outdated: virtual machines move to other hosts.
OLD_DAYS = 180
#: Seconds for an external program to answer.
COMMAND_TIMEOUT = 3.0


class Finding(NamedTuple):
    """The subject, its state (ok, warning, problem), what was found, and the remedy."""

    what: str
    state: str
    found: str
    remedy: str = ""


def findings() -> Iterator[Finding]:
    """The findings of all checks."""
    for what, check in CHECKS.items():
        try:
            yield from check()
        except Exception as e:  # the check does not work on this machine, which may be fine
            yield Finding(what, WARNING, f"could not be checked: {type(e).__name__}: {e}")


# -- software ----------------------------------------------------------------------------------------------------


def versions() -> Iterator[Finding]:
    yield Finding("python", OK, f"{platform.python_version()} ({sys.executable})")
    yield Finding("distgrad", OK, metadata.version("distgrad"))
    for line in metadata.requires("distgrad") or ():
        if "extra ==" not in line:
            yield _package(line)


def _package(requirement: str) -> Finding:
    """The installed version for a requirement such as `numpy>=2.1`."""
    name, least = _parsed(requirement)
    remedy = f"pip install '{requirement.partition(';')[0].strip()}'"
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, PROBLEM, "not installed", remedy)
    if _numbers(found) < _numbers(least):
        return Finding(name, PROBLEM, f"{found}, but distgrad needs {least}", remedy)
    return Finding(name, OK, found)


def _parsed(requirement: str) -> tuple[str, str]:
    """
    >>> _parsed("ray[default]>=2.50"), _parsed("rich")
    (('ray', '2.50'), ('rich', '0'))
    """
    name = re.match(r"[\w.-]+", requirement)
    least = re.search(r">=\s*([\w.]+)", requirement)
    return name[0] if name else requirement, least[1] if least else "0"


def _numbers(version: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", version.partition("+")[0])[:3]]


def blas() -> Iterator[Finding]:
    import numpy as np

    (np.ones((2, 2)) @ np.ones((2, 2))).sum()  # loads the library, if that is done lazily
    from threadpoolctl import ThreadpoolController

    found = [lib for lib in ThreadpoolController().lib_controllers if lib.user_api == "blas"]
    named = [f"{lib.internal_api} {lib.version or ''}, {lib.num_threads} threads" for lib in found]
    text = "; ".join(dict.fromkeys(named))
    if found:
        yield Finding("blas", OK, f"{text} (1 during runs, which split products themselves)")
    else:
        remedy = "Install NumPy from PyPI or conda-forge, which bring OpenBLAS or MKL."
        yield Finding("blas", WARNING, "no BLAS with a settable number of threads: products may be slow", remedy)


def native_code() -> Iterator[Finding]:
    why = native.turned_off()
    if why:
        slower = "fused steps run as NumPy calls, which are slower"
        yield Finding("native code", WARNING, f"off: {why}; {slower}", _NATIVE_REMEDIES[why])
        return
    from distgrad.workers.native import llvm, object_cache

    name, features = llvm.host()
    width = next((bits for flag, bits in _VECTORS.items() if f"+{flag}" in features.split(",")), 128)
    cached, problem = object_cache.state()
    found = f"{native.identity()}; CPU {name}, vectors of {width} bits; compiled code is kept in {cached}"
    remedy = "Set DISTGRAD_CACHE to a folder that only you can write to: without it, every process compiles again."
    if problem:
        yield Finding("native code", WARNING, f"{found}: {problem}", remedy)
    else:
        yield Finding("native code", OK, found)


#: LLVM's names of features, and the bits of their vectors, the widest first.
_VECTORS = {"avx512f": 512, "avx2": 256, "avx": 256}
_NATIVE_REMEDIES = {
    "llvmlite is not installed": "pip install llvmlite",
    "this CPU has no FMA instructions": "Use a machine with a newer CPU: x86 has had FMA since 2013.",
    f"{native.VARIABLE} is 0": f"unset {native.VARIABLE}",
}


# -- hardware ----------------------------------------------------------------------------------------------------


def cpus() -> Iterator[Finding]:
    usable, there = usable_cpus(), os.cpu_count() or 1
    of = f" of {there}: taskset or the container allows no more" if usable < there else ""
    yield Finding("cpus", OK, f"{usable}{of}")


def memory() -> Iterator[Finding]:
    total, free = usable_memory(), _free_memory()
    found = f"{bytes_text(total)}" + ("" if free is None else f", {bytes_text(free)} of them free")
    low = free is not None and free < LOW_MEMORY
    remedy = "Close other programs, or limit sessions with Session(memory=...)."
    yield Finding("memory", WARNING, found, remedy) if low else Finding("memory", OK, found)


def _free_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux
        return None
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
    return min(sizes["MemAvailable"], usable_memory())


def object_store(shared: str = "/dev/shm") -> Iterator[Finding]:
    """Where Ray keeps objects: in shared memory, or in files of the temporary folder if that is too small."""
    wanted = int(min(STORE_SHARE * usable_memory(), STORE_MOST))
    if not os.path.isdir(shared):
        yield Finding("object store", OK, f"in {tempfile.gettempdir()}: this system has no {shared}")
        return
    size = shutil.disk_usage(shared).total
    found = f"{shared} has {bytes_text(size)}, Ray takes {bytes_text(wanted)} by default"
    if size >= wanted:
        yield Finding("object store", OK, found)
    else:
        remedy = f"Start the container with --shm-size={wanted // 10**6 + 1}m; or Session(object_store_memory=...)."
        yield Finding("object store", WARNING, f"{found}, and falls back to slow files in /tmp", remedy)


def disk() -> Iterator[Finding]:
    folder = tempfile.gettempdir()
    use = shutil.disk_usage(folder)
    found = f"{bytes_text(use.free)} of {bytes_text(use.total)} free in {folder}"
    if use.free < LOW_DISK * use.total:
        remedy = "Free some space, or set RAY_TMPDIR: Ray does not spill objects to a disk that is 95 % full."
        yield Finding("disk", WARNING, found, remedy)
    else:
        yield Finding("disk", OK, found)


def gpus() -> Iterator[Finding]:
    program = shutil.which("nvidia-smi")
    if program is None:
        yield Finding("gpus", OK, "none (there is no nvidia-smi)")
        return
    done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=COMMAND_TIMEOUT, check=False)
    names = [line.partition(" (UUID")[0] for line in done.stdout.splitlines() if line.startswith("GPU")]
    if done.returncode or not names:
        said = " ".join((done.stdout + done.stderr).split()) or "nothing"
        yield Finding("gpus", WARNING, f"nvidia-smi finds none, and says: {said}", "Check the GPU's driver.")
    else:
        yield _library("; ".join(names))


def _library(found: str) -> Finding:
    """Whether the library that computes on GPUs sees them."""
    gpus = gpu_backend("numpy").gpus
    assert gpus is not None
    state, said, remedy = gpus.diagnosis()
    return Finding("gpus", state, f"{found}; {said}", remedy)


# -- settings ----------------------------------------------------------------------------------------------------


def calibration() -> Iterator[Finding]:
    file = calibrate.cache_file()
    remedy = "Run `distgrad calibrate`: a few seconds, then plans predict times for this machine."
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        calibrate.machine()
    if said:
        yield Finding("calibration", WARNING, str(said[0].message), remedy)
    elif not file.exists():
        yield Finding("calibration", WARNING, "none: predictions assume a typical server", remedy)
    else:
        days = (time.time() - file.stat().st_mtime) / 86400
        found = f"{file}, {days:.0f} days old" if days >= 1 else f"{file}, of today"
        again = "Run `distgrad calibrate --force`: the machine may have changed since."
        yield Finding("calibration", WARNING, found, again) if days > OLD_DAYS else Finding("calibration", OK, found)


def token() -> Iterator[Finding]:
    from distgrad.workers.on_ray.connect.tokens import check_token, token_file

    file = token_file()
    try:
        check_token()
    except PermissionError as e:
        remedy = f"Make it private (chmod 600 {file}), or remove it: the next session that starts Ray creates another."
        yield Finding("ray token", PROBLEM, f"sessions on Ray are refused: {e}", remedy)
        return
    if file is not None:
        found = f"{file}" if file.exists() else "none yet: a session that starts Ray creates one"
        yield Finding("ray token", OK, found)


def open_files() -> Iterator[Finding]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "unlimited" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    if soft != resource.RLIM_INFINITY and soft < LOW_FILES:
        remedy = f"ulimit -n 65536 (allowed here: {most}): Ray opens several connections per worker."
        yield Finding("open files", WARNING, f"{soft:,}", remedy)
    else:
        yield Finding("open files", OK, "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,}")


def terminal() -> Iterator[Finding]:
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    if not sys.stderr.isatty():
        found = "none: progress is off (DISTGRAD_PROGRESS=log writes lines)"
    else:
        found = f"{shutil.get_terminal_size().columns} columns, progress is shown (DISTGRAD_PROGRESS=off turns it off)"
    if encoding not in ("utf8", ""):
        yield Finding("terminal", WARNING, f"{found}; its encoding is {encoding}", "export PYTHONUTF8=1")
    else:
        yield Finding("terminal", OK, found)


#: The checks, in the order in which they are reported.
CHECKS: dict[str, Callable[[], Iterator[Finding]]] = {
    "versions": versions,
    "cpus": cpus,
    "blas": blas,
    "native code": native_code,
    "memory": memory,
    "object store": object_store,
    "disk": disk,
    "gpus": gpus,
    "calibration": calibration,
    "ray token": token,
    "open files": open_files,
    "terminal": terminal,
}
