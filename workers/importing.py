"""Explains a failed import of Ray: what failed, why, and what to do. Imports nothing itself."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def explain_import(e: BaseException) -> str:
    """Why `import ray` (or an import that comes with it) failed, and the remedy."""
    told = f"{type(e).__name__}: {_one_line(e)}"
    missing = (e.name or "") if isinstance(e, ModuleNotFoundError) else ""
    if missing == "ray":
        return "Ray is not installed: pip install 'ray[default]'"
    if shadow := _shadow():
        return f"Ray cannot be imported ({told}), because {shadow} shadows it: rename that file or folder"
    if missing.startswith("ray."):
        return f"Ray is installed, but lacks {missing!r} ({told}): pip install --upgrade 'ray[default]'"
    if missing:
        name = missing.partition(".")[0]
        return f"Ray is installed, but cannot be imported without {name!r} ({told}): pip install {name!r}"
    return f"Ray is installed, but importing it failed ({told}): `{sys.executable} -c 'import ray'` shows where"


def _one_line(e: BaseException) -> str:
    return " ".join(str(e).split()) or "no reason is given"


def _shadow() -> str | None:
    """The path of a user's ray.py or ray/ that hides the library."""
    try:
        spec = importlib.util.find_spec("ray")
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    path = Path(places[0]) if places else None
    if path is None or "site-packages" in path.parts or (path.parent / "_raylet.so").exists():
        return None
    return None if (path.parent / "_private" / "worker.py").exists() else str(path)

