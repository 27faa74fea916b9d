"""What an op is stands in its definition: no list of op names beside it in the scheduler and the workers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import distgrad
from distgrad.registry import OPS, Kind

ROOT = Path(__file__).parents[2]


def collections_of_names(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Sets, tuples and lists with two or more op types; a dict that says what to do for each is none."""
    for node in ast.walk(ast.parse(file.read_text())):
        found: list[str] = []
        if isinstance(node, ast.Set | ast.Tuple | ast.List):
            found = [each.value for each in node.elts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "split":
            text = node.func.value
            found = text.value.split() if isinstance(text, ast.Constant) and isinstance(text.value, str) else []
        names = [name for name in found if name in OPS]
        if len(names) > 1:
            yield node.lineno, names


def test_no_op_names_are_listed_beside_the_registry() -> None:
    found: dict[str, list[tuple[int, list[str]]]] = {}
    for folder in ("scheduler", "workers"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            if lists := list(collections_of_names(file)):
                found[str(file.relative_to(ROOT))] = lists
    assert found == {}


def test_a_list_of_names_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text('A = {"Exp", "Log"}\nB = "Exp Log Sin".split()\nC = {"Exp": 1, "Log": 2}\nD = ("Exp", "no op")\n')
    assert [line for line, _ in collections_of_names(file)] == [1, 2]


def test_every_op_of_distgrad_says_of_which_kind_it_is() -> None:
    assert distgrad
    own = [op for op in OPS.values() if op.kernel is None and not op.type.startswith(("Doc", "Test"))]
    assert [op.type for op in own if op.kind is None] == []
    assert [op.type for op in own if op.combine is not None and op.kind is not Kind.REDUCTION] == []
    assert [op.combine for op in own if op.combine is not None and op.combine not in OPS] == []
