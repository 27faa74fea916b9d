"""Compiled code on disk, so that the next process does not compile it again.

An entry is named by a digest of what it depends on (the code before it was compiled, the generator, LLVM, the CPU), and
begins with a digest of its content. Only the user may be able to write to the folder: an entry is run as it is. A
folder that cannot be used, or an entry that is damaged, costs time and one line of the log, nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path

from distgrad.workers.cache_folder import cache_folder
from distgrad.workers.native import GENERATOR

log = logging.getLogger("distgrad")

#: Bytes of all entries, above which the oldest are removed until half of it is left.
MAX_BYTES = 256 << 20
_DIGEST_BYTES = 32


def cached(text: str, target: tuple[str, str], compiled: Callable[[], bytes]) -> bytes:
    """The machine code of a module, given as text, for a CPU: from the folder, or compiled and kept there."""
    folder, problem = state()
    if problem:
        _say(f"{folder}: {problem}")
        return compiled()
    path = folder / _name(text, target)
    code = _read(path)
    if code is None:
        code = compiled()
        _write(path, code)
    return code


def state() -> tuple[Path, str]:
    """The folder, and why it is not used; empty if it is."""
    folder = cache_folder() / "native"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as e:
        return folder, f"it cannot be made: {e.strerror or e}"
    if not stat.S_ISDIR(found.st_mode):
        return folder, "it is no folder"
    if hasattr(os, "getuid") and found.st_uid != os.getuid():
        return folder, "it belongs to another user"
    if os.name == "posix" and found.st_mode & 0o022:
        return folder, "others can write to it (chmod 700 mends that)"
    return folder, ""


def _name(text: str, target: tuple[str, str]) -> str:
    parts = (str(GENERATOR), metadata.version("llvmlite"), *target, text)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _read(path: Path) -> bytes | None:
    """The code of an entry; None if there is none, or it is damaged."""
    try:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
            content = file.read()
    except OSError:
        return None
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return code if code and hashlib.sha256(code).digest() == digest else None


def _write(path: Path, code: bytes) -> None:
    """Whole or not at all: other processes may read and write the same entry."""
    try:
        _make_room(path.parent)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix="new-")
        try:
            with open(descriptor, "wb") as file:
                file.write(hashlib.sha256(code).digest() + code)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as e:
        _say(f"{path.parent}: {e.strerror or e}")


@cache
def _make_room(folder: Path) -> None:
    """Once per process."""
    found = sorted([(x.stat().st_mtime, x.stat().st_size, x.path) for x in os.scandir(folder) if x.is_file()])
    total = sum([size for _, size, _ in found])
    if total <= MAX_BYTES:
        return
    for _, size, path in found:
        if total <= MAX_BYTES // 2:
            break
        with contextlib.suppress(OSError):  # another process was faster
            os.unlink(path)
        total -= size


@cache
def _say(why: str) -> None:
    log.warning("distgrad: compiled code is not kept for the next process, in %s", why)
