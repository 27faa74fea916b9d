"""Rows for distgrad/ops/math.py."""

from __future__ import annotations

import distgrad as dg

from .case import Case, arr

CASES: dict[str, list[Case]] = {"Exp": [Case(dg.exp, (arr(2, 3),), __import__("numpy").exp, complex=True)]}
