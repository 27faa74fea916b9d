"""Tests of faults run in a process with its own cluster: the process of the tests may be connected to another one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from . import scenes


@pytest.fixture(scope="session")
def play() -> Iterator[Callable[..., Any]]:
    """Runs one of the scenes, and gives what it gives."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), scenes.open_cluster) as process:
        yield lambda scene, *args: process.submit(scene, *args).result()
        process.submit(scenes.close_cluster).result()
