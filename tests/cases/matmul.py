"""Rows for distgrad/ops/matmul.py."""

from __future__ import annotations

from .case import Case

CASES: dict[str, list[Case]] = {}
