"""Where Ray's objects are, as the driver knows it: without a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from distgrad.workers.on_ray import objects

HOME, OTHER, LARGE = "home", "other", 1 << 20


class Ref:
    def hex(self) -> str:
        return "ab"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """What `missing` says of one object that `made_on` made, where Ray answers one thing after the other."""

    def ask(made_on: str, *answers: dict[str, Any]) -> tuple[list[int], list[int]]:
        rest, ref = iter(answers), Ref()
        last: list[dict[str, Any]] = []

        def locations(_: Any) -> dict[Any, Any]:
            last[:] = [next(rest, last[0] if last else {})]
            return {ref: last[0]}

        monkeypatch.setattr(objects, "get_local_object_locations", locations)
        lost, doubtful = objects.missing({7: ref}, {7: made_on}, HOME)
        return list(lost), doubtful

    return ask


def at(*nodes: str, size: int = LARGE) -> dict[str, Any]:
    return {"node_ids": list(nodes), "object_size": size}


@pytest.mark.parametrize("made_on", [HOME, OTHER])
def test_an_object_that_its_node_has_is_there(asked: Callable[..., Any], made_on: str) -> None:
    assert asked(made_on, at(made_on)) == ([], [])


@pytest.mark.parametrize("made_on", [HOME, OTHER])
def test_a_location_may_come_a_moment_after_the_reply(asked: Callable[..., Any], made_on: str) -> None:
    """It was fetched, or recomputed, for nothing."""
    assert asked(made_on, {}, at(), at(), at(made_on)) == ([], [])


def test_an_object_of_another_node_that_no_node_has_is_lost(asked: Callable[..., Any]) -> None:
    assert asked(OTHER, at()) == ([7], [])


@pytest.mark.parametrize(
    ("made_on", "answer"),
    [(OTHER, at(size=10)), (OTHER, at(HOME)), (HOME, at()), (HOME, {})],
    ids=["small", "on another node", "nowhere", "unknown"],
)
def test_doubtful_objects_are_to_be_fetched(asked: Callable[..., Any], made_on: str, answer: dict[str, Any]) -> None:
    assert asked(made_on, answer) == ([], [7])


def test_a_small_object_of_the_drivers_node_is_there(asked: Callable[..., Any]) -> None:
    assert asked(HOME, at(size=10)) == ([], [])
