"""What is uploaded with a job: distgrad itself, for clusters without it or with another version, and the size of the
working folder. Does not import Ray."""

from __future__ import annotations

import os
import re
import shutil
from importlib import metadata
from pathlib import Path

from distgrad import errors, scheduler, workers
from distgrad.workers.on_ray.connect.private_files import FILES


def assemble(folder: Path) -> Path:
    """Copy this distgrad into one package folder. A checkout has three folders, which only the install combines."""
    made = folder / "distgrad"
    for module, to in ((errors, made), (scheduler, made / "scheduler"), (workers, made / "workers")):
        source = Path(str(module.__file__)).parent
        shutil.copytree(source, to, ignore=shutil.ignore_patterns("__pycache__", *FILES), dirs_exist_ok=True)
    return made


#: Folders that Ray does not upload; files that list what else it does not upload.
_SKIPPED, _IGNORES = {".git", ".venv", "venv", "__pycache__"}, {".gitignore", ".rayignore"}


def certain_bytes(folder: Path, most: int) -> int:
    """Bytes of a folder that Ray would certainly upload, counted until they exceed `most`. Folders with an ignore file
    do not count, as Ray may leave them out."""
    count = 0
    for where, folders, files in os.walk(folder):
        if not _IGNORES.isdisjoint(files):
            folders.clear()
            continue
        folders[:] = [name for name in folders if name not in _SKIPPED]
        count += sum(os.lstat(os.path.join(where, name)).st_size for name in files)
        if count > most:
            break
    return count


def requirements() -> list[str]:
    """The dependencies of distgrad except Ray, which every cluster has. Empty if distgrad's metadata is missing."""
    try:
        found = metadata.requires("distgrad") or []
    except metadata.PackageNotFoundError:
        return []
    return [x for x in found if "extra ==" not in x and not re.match(r"ray\b", x)]


def explain_missing(log: str) -> str:
    """The remedy if the end of a failed job's log says that Python or a module is missing."""
    last = "\n".join(log.strip().splitlines()[-3:])
    if re.search(r"python\S*: (command )?not found", last):
        return ": the cluster has no such command; specify its Python with --python"
    found = re.search(r"No module named '?(\w+)(?![\w.])", last)  # not a.b: the package a exists
    if found is None:
        return ""
    name = found[1]
    if name == "distgrad":
        return ": the cluster has no distgrad; submit without --no-ship"
    if name in [re.split(r"[^\w-]", x)[0].replace("-", "_") for x in requirements()]:
        return f": the cluster's Python lacks {name!r}, which distgrad needs; submit with --install, or choose --python"
    return f": the cluster has no module {name!r}; add it to the working folder, or install it with --pip"
