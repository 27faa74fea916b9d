"""Lines that record very many ops are logged, once per line and trace."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import distgrad as dg


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "distgrad"]


def test_a_line_that_records_more_than_a_thousand_ops_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def long(x: Any) -> Any:
        for _ in range(501):
            x = (x + 1.0) * 0.5
        return x

    line = long.__code__.co_firstlineno + 2
    with caplog.at_level(logging.WARNING, "distgrad"):
        step = dg.function(long)
        for _ in range(2):
            step(np.float64(1.0))
    (text,) = messages(caplog)
    assert text.startswith(f"test_long_lines.py:{line} recorded ")
    assert "in one trace of long." in text


def test_other_lines_are_not(caplog: pytest.LogCaptureFixture) -> None:
    @dg.grad
    def short(x: Any) -> Any:
        for _ in range(300):
            x = dg.sin(x)
        for _ in range(300):
            x = dg.cos(x)
        return x

    with caplog.at_level(logging.WARNING, "distgrad"):
        short(np.float64(1.0))
    assert messages(caplog) == []
