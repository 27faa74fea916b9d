"""Spare workers, without a cluster: when Ray is asked for them. That they take over is in tests/faults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import ray

from distgrad.workers.on_ray import spares
from distgrad.workers.on_ray.agreement import NONE


class Closable:
    """A link that is open, or closed."""

    bits = NONE

    def __init__(self) -> None:
        self.open, self.users = True, 0

    @contextmanager
    def used(self) -> Iterator[None]:
        self.users += 1
        yield
        self.users -= 1

    def check_open(self) -> None:
        if not self.open:
            raise RuntimeError("closed")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of Ray, and of whom."""
    found: list[str] = []
    nodes = [{"NodeID": "a", "Alive": True}, {"NodeID": "b", "Alive": False}]
    monkeypatch.setattr(spares, "DEATH_DELAY", 0.0)
    monkeypatch.setattr(spares, "_serialized", lambda env: found.append("environment") or "{}")
    monkeypatch.setattr(ray, "nodes", lambda: found.append("nodes") or nodes)
    monkeypatch.setattr(spares, "_ask", lambda node, env: found.append(node["NodeID"]))
    return found


def replaced(link: Closable) -> None:
    made: Any = spares.Spares(link)  # type: ignore[arg-type]
    made._replace()


def test_every_living_node_is_asked_for_a_spare(asked: list[str]) -> None:
    replaced(Closable())
    assert asked == ["environment", "nodes", "a"]


def test_ray_is_asked_nothing_once_the_session_is_closed(asked: list[str]) -> None:
    """A call of Ray would connect the process again, and end it where the cluster is gone."""
    link = Closable()
    link.open = False
    replaced(link)
    assert asked == []


def test_the_session_is_in_use_while_ray_is_asked(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """So that closing it waits."""
    link, users = Closable(), []
    monkeypatch.setattr(ray, "nodes", lambda: users.append(link.users) or [])
    replaced(link)
    assert (users, link.users) == ([1], 0)
