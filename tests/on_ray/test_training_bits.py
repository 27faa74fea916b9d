"""Training, and every row of the op table, has the same bits on any number of workers and nodes as in this process."""

from __future__ import annotations

from typing import Any

import pytest

import distgrad as dg

from .programs.training import digests

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    with dg.Session(threads=1):
        return digests()


def test_shards_change_bits_so_the_other_tests_can_tell(expected: dict[str, str]) -> None:
    assert len(set(expected.values())) == len(expected)


@pytest.mark.parametrize("options", [{"workers": 1}, {"workers": 2}, {"workers": 2, "granularity": 1e-9}], ids=str)
def test_the_numbers_of_workers_and_tasks_change_no_bit(
    ray_session: dg.Session, expected: dict[str, str], options: dict[str, Any]
) -> None:
    """Of trainings and examples; test_bits.py has the op table on this cluster."""
    with dg.Session("ray", timeout=120, **options):
        found = digests(tables=False)
    assert found == {name: expected[name] for name in found}


def test_four_workers_on_three_nodes_give_the_same_bits(three_nodes: dict[str, Any], expected: dict[str, str]) -> None:
    assert (three_nodes["nodes"], three_nodes["workers"]) == (3, 4)
    assert three_nodes["used"] > 1
    assert three_nodes["digests"] == expected
