"""The only copy of a value, a variable or a body is lost with its node: it is recomputed, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .. import losses

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def between(play: Callable[..., Any]) -> Any:
    return play(losses.between_calls)


def test_the_lost_copies_were_the_only_ones(between: Any) -> None:
    assert between.only_there
    assert between.start == (0, 0, 0, 0, 0)


def test_a_value_that_a_run_is_given_is_made_again_by_the_run_that_made_it(between: Any) -> None:
    assert between.given == (1, 1, between.tasks[0], between.tasks[0], 0)


def test_a_variable_that_is_fetched_is_made_again_by_the_runs_that_made_it(between: Any) -> None:
    one, two, _ = between.tasks
    assert between.fetched[:3] == (2, 3, one + 2 * two)


def test_a_variable_that_a_run_reads_is_made_again_by_the_runs_that_made_it(between: Any) -> None:
    one, two, three = between.tasks
    assert between.read == (3, 6, one + 2 * two + 3 * three, 3 * three, 0)


def test_what_was_made_again_has_the_same_bits(between: Any) -> None:
    assert between.same


def test_what_is_lost_before_its_reader_began_is_made_again(play: Callable[..., Any], tmp_path: Path) -> None:
    found = play(losses.in_a_run, str(tmp_path), False)
    assert found.tasks == 3
    assert found.cost == (0, 0, 0, 0, 1)
    assert "lost the object of bundle" in " ".join(found.reasons)
    assert found.same


def test_what_is_lost_after_its_token_is_made_again_before_the_commit(play: Callable[..., Any], tmp_path: Path) -> None:
    found = play(losses.in_a_run, str(tmp_path), True)
    assert found.cost == (0, 0, 0, 0, 1)
    assert "lost the object of bundle" in " ".join(found.reasons)
    assert found.alive
    assert found.same


@pytest.mark.parametrize("size", [1000, 300_000])
def test_a_body_that_nobody_has_any_more_is_shipped_again(play: Callable[..., Any], size: int) -> None:
    found = play(losses.body_dies, size)
    assert found.large == (size > 1000)
    assert "its body was lost, and is shipped again" in " ".join(found.reasons)
    assert found.cost == (0, 0, 0, 0, 0)
    assert found.same
    assert found.again == []
