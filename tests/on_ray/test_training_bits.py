"""Training, and every row of the op table, has the same bits on any number of workers and nodes as in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import distgrad as dg

from .helpers import program
from .programs.training import digests

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    with dg.Session(threads=1):
        return digests()


def test_shards_change_bits_so_the_other_tests_can_tell(expected: dict[str, str]) -> None:
    assert len(set(expected.values())) == len(expected)


@pytest.mark.parametrize("options", [{"workers": 1}, {"workers": 2}], ids=str)
def test_the_number_of_workers_changes_no_bit(
    ray_session: dg.Session, expected: dict[str, str], options: dict[str, Any]
) -> None:
    with dg.Session("ray", timeout=120, **options):
        assert digests() == expected


def test_the_number_of_tasks_changes_no_bit(ray_session: dg.Session, expected: dict[str, str]) -> None:
    with dg.Session("ray", timeout=120, workers=2, granularity=1e-9):
        found = digests(tables=False)
    assert found == {name: expected[name] for name in found}


def test_four_workers_give_the_same_bits(ray_session: dg.Session, expected: dict[str, str]) -> None:
    options = {"engine": "ray", "workers": 4, "granularity": 1e-4, "object_store_memory": "100 MB", "timeout": 120}
    out, _ = program("training", json.dumps(options))
    assert json.loads(out) == expected


def test_three_nodes_give_the_same_bits(ray_session: dg.Session, expected: dict[str, str], tmp_path: Path) -> None:
    """Planned with the default rates, of which so many tasks come that one node would be late with them."""
    options = {"engine": "ray", "nodes": 3, "granularity": 1e-5, "timeout": 120}
    out, _ = program("training", json.dumps(options), DISTGRAD_CACHE=str(tmp_path))
    found = json.loads(out)
    assert found.pop("nodes") == 3
    assert found.pop("used") > 1
    assert found == expected
