"""Workers that are killed while a training runs: the weights are what they would have been."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .. import scenes

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def outcome(play: Callable[..., Any]) -> Any:
    return play(scenes.workers_die, 15, 0.5)


def test_the_weights_are_those_of_an_undisturbed_training(outcome: Any) -> None:
    assert outcome.kills == 15
    assert outcome.same


def test_each_killed_worker_costs_the_one_task_that_it_ran(outcome: Any) -> None:
    assert 1 <= outcome.faults.recomputed <= outcome.kills
    assert outcome.faults.replayed == 0


def test_what_ran_again_is_reported_with_its_reason(outcome: Any) -> None:
    assert len(outcome.faults.reasons) >= outcome.faults.recomputed
    assert "The worker died unexpectedly" in outcome.faults.reasons[0]
