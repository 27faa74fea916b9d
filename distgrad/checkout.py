"""Imports from a checkout, where `scheduler/` and `workers/` are next to this folder; installed, they are inside it.

If the current directory is the checkout, its `distgrad/` shadows the installed package. The finder here makes the two
folders subpackages of `distgrad`, and nothing else of the checkout importable.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_FOLDERS = {f"distgrad.{name}": os.path.join(_ROOT, name) for name in ("scheduler", "workers")}


class _SiblingFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        folder = _FOLDERS.get(fullname)
        if folder is None:
            return None
        init = os.path.join(folder, "__init__.py")
        return spec_from_file_location(fullname, init, submodule_search_locations=[folder])


def install() -> None:
    """Install the finder first: that of an editable install could find the folders of another checkout."""
    if os.path.exists(os.path.join(_ROOT, "pyproject.toml")):
        sys.meta_path.insert(0, _SiblingFinder())
