"""The examples at a size that suits tests, run as they stand in their folder."""

from __future__ import annotations

import runpy
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

EXAMPLES = Path(__file__).parents[2] / "examples"

#: What `main` of each example is given.
SMALL: dict[str, dict[str, Any]] = {
    "char_gpt": {"steps": 2, "rows": 4, "letters": 1},
    "custom_op": {"readings": 100, "steps": 2},
    "inverse_problem": {"iterations": 1, "size": 8, "sections": 1},
    "monte_carlo_greeks": {"paths": 32, "shards": 2, "bumping": False},
    "quickstart": {"steps": 5},
    "recommender": {"steps": 2, "rows": 2000, "clicks": 64},
    "wave_inversion": {"iterations": 1, "size": 12, "shots": 2, "steps": 12},
}


def run(name: str, **more: Any) -> tuple[Any, str]:
    """What an example comes to in the current session, as an array, and what it prints."""
    printed = StringIO()
    main = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    with redirect_stdout(printed):
        made = main(**{**SMALL[name], **more})
    return np.asarray(made), printed.getvalue()
