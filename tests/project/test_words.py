"""The tree speaks the field's language: words that only its authors would understand are kept out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: A private word, and what to say instead.
BANNED = {
    r"so many": "the number, or its unit",
    r"crews?": "thread pool",
    r"leas(e|es|ed)": "result buffer",
    r"parcels?": "payload, shipped body, job package",
    r"patience": "timeout",
    r"anew": "again, or the verb with re-",
    r"shall": "must, should or will",
    r"let go": "release",
    r"let be": "leave alone",
    r"is let": "is left, is released",
    r"dealt out": "distributed",
    r"dear": "expensive, transcendental",
    r"made again": "recomputed, recreated",
    r"(in|out)side of": "inside, outside",
    r"one's own": "your own",
    r"is_stamped|stamps|stamped": "outlined calls",
    r"for its own sake": "for its side effects",
    r"comes? home": "is fetched",
    r"gives? way": "is replaced",
    r"(takes?|gets?) hold( of)?": "fetches",
    r"has to be had": "is needed",
}
FOLDERS = ("distgrad", "scheduler", "workers", "docs", "examples", "benchmarks", "cluster-configs")
PAGES = ("README.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml")
KINDS = {".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".js", ".css", ".html"}


def texts() -> Iterator[Path]:
    yield from (ROOT / name for name in PAGES)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in KINDS and "/vendor/" not in name:
                yield path


def found(pattern: str, text: str) -> list[int]:
    """The numbers of the lines that have the word; one that is broken over two lines has that of the first."""
    spaced = pattern.replace(" ", r"(?:\s|#:?)+")
    words = re.compile(rf"(?<!\w)(?:{spaced})(?!\w)", re.IGNORECASE)
    return [text.count("\n", 0, match.start()) + 1 for match in words.finditer(text)]


@pytest.mark.parametrize("pattern", BANNED)
def test_a_private_word_is_nowhere(pattern: str) -> None:
    places = [f"{path.relative_to(ROOT)}:{line}" for path in texts() for line in found(pattern, path.read_text())]
    assert places == [], f"say instead: {BANNED[pattern]}"


def test_a_private_word_is_found_also_over_the_end_of_a_line() -> None:
    assert found(r"so many", "x\n#: There are so\n#: many of them.\n") == [2]
    assert found(r"shall", "marshalled, shallow; Shall we?") == [1]
    assert found(r"dear", "a linear_dear function") == []


def test_every_folder_has_text() -> None:
    names = {path.relative_to(ROOT).parts[0] for path in texts()}
    assert names == {*FOLDERS, *PAGES}
