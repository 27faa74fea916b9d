"""Ten tests that are told apart by their numbers, and one that is skipped for torch."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("number", range(10))
def test_number(number: int) -> None:
    pass


def test_with_what_is_missing() -> None:
    pytest.importorskip("torch.that_there_is_not", reason="torch is not installed", exc_type=ImportError)
