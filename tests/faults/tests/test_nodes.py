"""Lost nodes, with and without the only copy of variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .. import scenes

pytestmark = pytest.mark.ray


def test_variables_that_were_lost_are_made_again_by_the_runs_that_made_them(play: Callable[..., Any]) -> None:
    outcome = play(scenes.node_dies, 3, 2, False)
    assert outcome.same
    assert outcome.faults.lost >= 1
    assert outcome.faults.replayed_runs == 3
    assert outcome.replayed == 3 * outcome.tasks


def test_nothing_is_made_again_where_another_node_has_a_copy(play: Callable[..., Any]) -> None:
    outcome = play(scenes.node_dies, 3, 2, True)
    assert outcome.same
    assert outcome.faults.replayed_runs == 0


def test_a_long_training_is_not_run_again_from_its_start(play: Callable[..., Any]) -> None:
    outcome = play(scenes.node_dies_late, 12, 4)
    assert outcome.same
    assert outcome.faults.replayed_runs == 2  # of twelve, ten are behind the second cut


def test_a_node_may_go_in_the_middle_of_a_step(play: Callable[..., Any]) -> None:
    assert play(scenes.node_dies_in_a_step, 5, 0.3).same
