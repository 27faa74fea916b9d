"""Rows for distgrad/ops/array.py."""

from __future__ import annotations

from .case import Case

CASES: dict[str, list[Case]] = {}
