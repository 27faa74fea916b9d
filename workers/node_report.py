"""Reports what a machine's CPU supports, regardless of its environment variables.

Nodes get this file as text, so that it also runs if distgrad is not installed: it imports nothing from distgrad. If the
environment disables features (`VARIABLES`), a subprocess without these variables writes the report as a line of JSON.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from typing import Any

#: Environment variables that select kernels of OpenBLAS, NumPy and the C library.
VARIABLES = ("OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES", "GLIBC_TUNABLES")
#: Seconds for the subprocess to report.
REPORT_TIMEOUT = 30.0


def flags() -> list[str]:
    """The CPU flags that all cores have, according to Linux; empty on other systems."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = [line.partition(":") for line in file]
    except OSError:
        return []
    found = [set(value.split()) for name, _, value in lines if name.strip() in ("flags", "Features")]
    return sorted(set.intersection(*found)) if found else []


def loops() -> tuple[list[str], list[str]]:
    """The CPU features beyond its baseline that NumPy has loops for, and those of them that are enabled."""
    from numpy._core import _multiarray_umath as umath  # type: ignore[attr-defined]

    names: list[str] = list(umath.__cpu_dispatch__)
    on: dict[str, bool] = umath.__cpu_features__
    return names, [name for name in names if on.get(name)]


def kernels() -> str:
    """The name of the kernels that NumPy's OpenBLAS has selected; "" with another BLAS."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return ""
    found = [lib.get("architecture") or "" for lib in threadpool_info() if lib.get("user_api") == "blas"]
    return str(found[0]) if found else ""


def report() -> dict[str, Any]:
    try:
        names, on = loops()
    except ImportError:  # without NumPy: the fingerprint will say so
        names, on = [], []
    machine = platform.machine()
    known = names, on, "" if machine.lower() in ("x86_64", "amd64") else kernels()  # on x86 the flags say more
    return dict(zip(("dispatch", "features", "kernels"), known, strict=True), machine=machine, flags=flags())


def asked(text: str) -> dict[str, Any]:
    """The report of this machine; `text` is the text of this file."""
    if not any(os.environ.get(name) for name in VARIABLES):
        return report()
    env = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=REPORT_TIMEOUT, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | {"tunables": os.environ.get("GLIBC_TUNABLES", "")}


if __name__ == "__main__":
    print(json.dumps(report()))
