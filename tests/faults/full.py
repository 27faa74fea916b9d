"""Scenes with an object store that is full, and a disk that is full too. Each has a cluster of its own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import distgrad as dg

STORE = 80 << 20
#: The part of a disk that may be in use before Ray takes it for full: any disk is.
NONE_FREE = {"local_fs_capacity_threshold": 1e-6}


class Refused(NamedTuple):
    """How a call ended, after how many seconds."""

    kind: str
    text: str
    seconds: float


class Filled(NamedTuple):
    """What came of calls that make, pass on, fetch, are given and hold more than there is room for, and whether the
    variables can be read and are as they were after each; then a call that needs little."""

    written: Refused
    passed: Refused
    fetched: Refused
    given: Refused
    held: Refused
    intact: list[bool]
    after: float


def fill(folder: str | None) -> Filled:
    """Calls on a store of 80 MiB; it spills to `folder`, or to a disk that Ray takes for full."""
    from .cluster import OwnCluster

    more = {"object_spilling_directory": folder} if folder else {}
    cluster = OwnCluster(store=STORE, head=more, **({} if folder else NONE_FREE))
    try:
        return _fill()
    finally:
        cluster.end()


def _fill() -> Filled:
    large = 1 << 20  # of eight bytes
    variables = [dg.Variable(np.zeros(large), name=f"v{i}") for i in range(24)]
    small = dg.Variable(0.0, name="small")
    intact: list[bool] = []

    @dg.function
    def write(x: dg.Tensor) -> None:
        for i, v in enumerate(variables):
            v.assign(x * (i + 1.0))
        small.assign_add(1.0)

    @dg.function
    def read() -> dg.Tensor:
        small.assign_add(1.0)
        return dg.sum(dg.stack([dg.sum(v) for v in variables]))

    def spread(x: dg.Tensor) -> dg.Tensor:
        with dg.device("worker:0"):
            made = [x * (i + 1.0) for i in range(24)]
        with dg.device("worker:1"):
            small.assign_add(dg.sum(dg.stack([dg.sum(y) for y in made])))
            return small.read()

    def refused(call: Callable[..., Any], *args: Any) -> Refused:
        begin = time.monotonic()
        try:
            call(*args)
            made = "", ""
        except Exception as e:
            made = type(e).__name__, str(e)
        seconds = time.monotonic() - begin
        intact.append(not any(v.numpy().any() for v in variables) and float(small.numpy()) == 0.0)
        return Refused(*made, seconds)

    x = np.ones(large)
    with dg.Session("ray", timeout=60, attempts=2):
        found = [
            refused(write, x),
            refused(dg.function(spread), x),
            refused(dg.function(lambda x: dg.stack([x] * 24)), x),
            refused(dg.function(lambda y: dg.sum(y)), np.ones(14 * large)),
            refused(read),
        ]
        dg.function(lambda: small.assign_add(1.0))()
        return Filled(*found, intact, float(small.numpy()))


def mounted(folder: str) -> bool:
    """Whether a small file system could be mounted there: who may not mount cannot."""
    command = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", folder]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def unmount(folder: str) -> None:
    subprocess.run(["umount", "-l", folder], check=True)
