"""docs/differences.md names no difference that no test asserts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs" / "differences.md"
NUMBER = re.compile(r"(\d+)\.(\d+)")
NAME = re.compile(r"`(test_\w+)`")


def rows() -> list[list[str]]:
    """The cells of every row of every table, without headings."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "what" and set(row[0]) != {"-"}]


def names_of_tests() -> set[str]:
    texts = [file.read_text() for file in TESTS.rglob("test_*.py")]
    return {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.M)}


def prefixes(cell: str) -> list[str]:
    """How the tests begin that a last column stands for."""
    return [f"test_{section}_{int(n):02}_" for section, n in NUMBER.findall(NAME.sub("", cell))] + NAME.findall(cell)


@pytest.mark.parametrize("row", rows(), ids=lambda row: re.sub(r"\W+", " ", row[0]).strip())
def test_every_difference_is_tested(row: list[str]) -> None:
    wanted = prefixes(row[-1])
    assert wanted, "the last column names no test"
    known = names_of_tests()
    assert [p for p in wanted if not any(name == p or (p[-1] == "_" and name.startswith(p)) for name in known)] == []


def test_the_page_is_read_as_tables() -> None:
    assert len(rows()) > 30
    assert {len(row) for row in rows()} == {5, 4}


def test_a_number_stands_for_the_tests_that_bear_it() -> None:
    assert prefixes("1.4, 2.12, `test_something_1_2`") == ["test_1_04_", "test_2_12_", "test_something_1_2"]
