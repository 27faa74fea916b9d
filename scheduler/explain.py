from __future__ import annotations
from typing import Any
def explain(plan: Any, top: int) -> str:
    return ""
