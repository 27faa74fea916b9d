"""What a machine's CPU can do, whatever its environment says.

Nodes get this file as text, so that it runs where distgrad is not installed: it imports nothing of distgrad's. Where
the environment takes something away (`VARIABLES`), another process looks, without it, and writes a line of JSON.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from typing import Any

#: Variables that choose kernels: of OpenBLAS, of NumPy's loops, of the C library.
VARIABLES = ("OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES", "GLIBC_TUNABLES")
#: Seconds that the process may take.
REPORT_TIMEOUT = 30.0


def flags() -> list[str]:
    """What Linux says that the CPU can do: what all of its cores have. Nothing is known on other systems."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = [line.partition(":") for line in file]
    except OSError:
        return []
    found = [set(value.split()) for name, _, value in lines if name.strip() in ("flags", "Features")]
    return sorted(set.intersection(*found)) if found else []


def loops() -> tuple[list[str], list[str]]:
    """The CPU features that NumPy has loops for beyond its least ones, and those of them that are on."""
    from numpy._core import _multiarray_umath as umath  # type: ignore[attr-defined]

    names: list[str] = list(umath.__cpu_dispatch__)
    on: dict[str, bool] = umath.__cpu_features__
    return names, [name for name in names if on.get(name)]


def kernels() -> str:
    """The kernels that NumPy's OpenBLAS has chosen, by their name; none where it has another BLAS."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return ""
    found = [lib.get("architecture") or "" for lib in threadpool_info() if lib.get("user_api") == "blas"]
    return str(found[0]) if found else ""


def report() -> dict[str, Any]:
    try:
        names, on = loops()
    except ImportError:  # no NumPy: whoever asks next is told so
        names, on = [], []
    machine = platform.machine()
    known = names, on, "" if machine.lower() in ("x86_64", "amd64") else kernels()  # there flags tell more
    return dict(zip(("dispatch", "features", "kernels"), known, strict=True), machine=machine, flags=flags())


def asked(text: str) -> dict[str, Any]:
    """What there is to report of this machine; `text` is that of this file."""
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
