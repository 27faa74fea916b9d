"""A test that keeps rates where others read them, and one that comes after it."""

from __future__ import annotations

from distgrad.scheduler.cluster import Machine
from distgrad.workers.tools import calibrate


def test_that_calibrates_for_all() -> None:
    calibrate.calibrate(seconds=0.01)


def test_that_comes_after_it() -> None:
    assert calibrate.machine() == Machine()
