"""The user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """DISTGRAD_CACHE, or `distgrad` in the user's cache folder."""
    own = os.environ.get("DISTGRAD_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "distgrad"
