"""The places of running tasks while Ray does not answer. Nothing here runs on a cluster."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from distgrad.workers.on_ray import hang_detector


def test_while_ray_does_not_answer_nothing_is_known_which_is_not_that_no_task_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = threading.Event()

    def silent(tasks: Any) -> list[Any]:
        over.wait()
        return []

    monkeypatch.setattr(hang_detector, "ANSWER_TIMEOUT", 0.05)
    monkeypatch.setattr(hang_detector, "_events", silent)
    assert [hang_detector.places({}) for _ in range(20)] == [None] * 20
    over.set()
    monkeypatch.setattr(hang_detector, "ANSWER_TIMEOUT", 60.0)
    assert hang_detector.places({}) == {}
