"""The README and the pages of docs/: their examples run as they read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import distgrad as dg

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.ray


def run_blocks(path: Path) -> tuple[dict[str, Any], int]:
    """Run the Python of a page from top to bottom; gives its names and how many blocks there were."""
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(), re.S)
    space: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, path.name, "exec"), space)
    return space, len(blocks)


def test_the_readme_examples_run_as_they_read(ray_session: dg.Session, capsys: pytest.CaptureFixture[str]) -> None:
    space, count = run_blocks(ROOT / "README.md")
    assert count == 4
    assert list(space["grads"]) == list(space["params"])
    assert capsys.readouterr().out.startswith("[[array(3.), array(1.)], [array(1.), array(1.)]]\n1 task of ")
    assert space["error"] < (space["y"] ** 2).mean()
    assert (space["first"] == space["again"]).all()
    assert (space["first"] != space["other"]).any()


def test_the_page_about_ray_runs_as_it_reads(ray_session: dg.Session, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_blocks(ROOT / "docs" / "ray.md")[1] == 2
    assert capsys.readouterr().out == "[1. 2. 3.]\n"
