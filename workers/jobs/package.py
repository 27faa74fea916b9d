"""What a job takes along: distgrad itself, for a cluster that does not have it or not this one; and how large the
working folder is. Knows no Ray."""

from __future__ import annotations

import os
import re
import shutil
from importlib import metadata
from pathlib import Path

from distgrad import errors, scheduler, workers
from distgrad.workers.on_ray.connect.private_files import FILES


def assemble(folder: Path) -> Path:
    """A copy of this distgrad as one package folder. In a checkout it lies in three, which only its install joins."""
    made = folder / "distgrad"
    for module, to in ((errors, made), (scheduler, made / "scheduler"), (workers, made / "workers")):
        source = Path(str(module.__file__)).parent
        shutil.copytree(source, to, ignore=shutil.ignore_patterns("__pycache__", *FILES), dirs_exist_ok=True)
    return made


#: What Ray leaves out of a folder by itself; files that name what else it leaves out.
_SKIPPED, _IGNORES = {".git", ".venv", "venv", "__pycache__"}, {".gitignore", ".rayignore"}


def certain_bytes(folder: Path, most: int) -> int:
    """Bytes of a folder that Ray would upload for sure, counted until they are more than `most`. What lies beside or
    below a file of names to ignore may be left out, and does not count."""
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
    """What distgrad needs beside Ray, which every cluster has. Nothing where distgrad lies without its metadata."""
    try:
        found = metadata.requires("distgrad") or []
    except metadata.PackageNotFoundError:
        return []
    return [x for x in found if "extra ==" not in x and not re.match(r"ray\b", x)]


def explain_missing(log: str) -> str:
    """What to do where the end of a failed job's log says that Python or a module is missing."""
    last = "\n".join(log.strip().splitlines()[-3:])
    if re.search(r"python\S*: (command )?not found", last):
        return ": the cluster has no such command; name its Python with --python"
    found = re.search(r"No module named '?(\w+)(?![\w.])", last)  # of a.b it would have an a
    if found is None:
        return ""
    name = found[1]
    if name == "distgrad":
        return ": the cluster has no distgrad; submit without --no-ship"
    if name in [re.split(r"[^\w-]", x)[0].replace("-", "_") for x in requirements()]:
        return f": the cluster's Python lacks {name!r}, which distgrad needs; submit with --install, or choose --python"
    return f": there is no module {name!r} there; is it missing in the working folder, or a package for --pip?"
