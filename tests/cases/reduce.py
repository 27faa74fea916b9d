"""Rows for distgrad/ops/reduce.py."""

from __future__ import annotations

from .case import Case

CASES: dict[str, list[Case]] = {}
