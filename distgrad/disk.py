"""Opening files safely, for checkpoints and tensor files: errors name path and remedy, and links are not followed.

Knows the operating system and nothing of distgrad.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

_FULL = "free some space there, or choose another disk"
_DENIED = "choose a path that this user may use, or have its owner change the permissions"
#: Errno to what the user can do about it.
REMEDIES = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: "the quota of this user is used up: " + _FULL,
    errno.EFBIG: "the file system or `ulimit -f` allows no file of this size: raise the limit, or choose another disk",
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: "the file system is read-only: choose a path on another one",
    errno.ENOTDIR: "a part of this path is a file, not a folder: choose another path",
    errno.EEXIST: "there is a file of this name where a folder must be: choose another path",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.EIO: "the disk reports a fault: choose another one, and check this one",
    errno.EMFILE: "this process has too many files open: close some, or raise `ulimit -n`",
}
#: Without this flag, `check_plain` still finds links.
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
#: Opening a pipe would otherwise block until it has a writer.
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)


@contextlib.contextmanager
def explain_os_errors(what: str, path: str) -> Iterator[None]:
    """Make an OSError of the block say what failed, where, and what to do. Its class and errno stay the same."""
    try:
        yield
    except OSError as e:
        remedy = REMEDIES.get(e.errno or 0)
        if remedy is None:
            raise
        place = e.filename if isinstance(e.filename, str) else path
        if not place.startswith(path):  # a folder above it
            what = f"{what} ({path!r})"
        raise OSError(e.errno, f"{os.strerror(e.errno or 0)}: {what}; {remedy}", place) from None


class NotPlain(OSError):
    """A link, pipe or device was found instead of a plain file or folder."""


def check_plain(path: str, folder: bool = False) -> None:
    """Raise NotPlain unless the path is a regular file (or folder), not a link to one; OSError if it does not exist."""
    mode = os.lstat(path).st_mode
    if not (stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode)):
        what = "a link, which is not followed" if stat.S_ISLNK(mode) else "something else"
        raise NotPlain(f"{path!r} is {what}, where a plain {'folder' if folder else 'file'} is expected")


def open_plain(path: str, flags: int, mode: int = 0o666) -> int:
    """Open a regular file; NotPlain for a link, pipe or device."""
    try:
        fd = os.open(path, flags | _NO_FOLLOW | _NO_WAIT, mode)
    except OSError as e:
        if e.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR):
            check_plain(path)
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            check_plain(path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def as_path(what: str, path: object) -> str:
    """A path argument as a string; an invalid one is an error that names `what`."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{what}: a path is a string or a pathlib.Path, got a {type(path).__name__}")
    text = os.fsdecode(path)
    try:
        usable = bool(text) and b"\0" not in os.fsencode(text)
    except UnicodeError:
        usable = False
    if not usable:
        raise ValueError(f"{what}: {text!r} cannot be a path: it is empty, or has characters that file systems refuse")
    return text
