"""`--shuffle SEED`: tests in random order. What a test leaves behind in the process then meets others than usual."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Protocol, TypeVar

import pytest


class HasPath(Protocol):
    path: Path


Test = TypeVar("Test", bound=HasPath)


def add_option(parser: pytest.Parser) -> None:
    text = "run the tests in a random order, which this number decides: files are shuffled, and the tests of each"
    parser.getgroup("distgrad").addoption("--shuffle", type=int, metavar="SEED", help=text)


def shuffled(items: Sequence[Test], seed: int) -> list[Test]:
    """Files stay together: what their tests share (an installed wheel, a cluster) would be made again and again."""
    chance = random.Random(seed)
    files = [list(each) for _, each in groupby(items, lambda item: item.path)]
    chance.shuffle(files)
    for tests in files:
        chance.shuffle(tests)
    return [item for tests in files for item in tests]
