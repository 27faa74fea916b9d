"""Rows for distgrad/ops/nn.py."""

from __future__ import annotations

from .case import Case

CASES: dict[str, list[Case]] = {}
