"""Output files: checked before the work begins, and written atomically.

An error names the path, what is wrong with it, and what to do.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

from distgrad.disk import REMEDIES

#: Errno of a failed write to what the user can do about it.
_REMEDIES = REMEDIES | {
    errno.EISDIR: "name a file in it",
    errno.ENOENT: "make the folder first, or choose another path",
}

def explained(e: OSError, path: str | os.PathLike[str]) -> OSError:
    """The same error with a message that says what cannot be written, why, and what to do."""
    why = e.strerror or str(e) or type(e).__name__
    remedy = _REMEDIES.get(e.errno or 0, "choose another path")
    made: OSError = _Unwritable(e.errno or 0, f"cannot write {os.fspath(path)}: {why}; {remedy}")
    return made


class _Unwritable(OSError):
    """An OSError that prints its message without the errno."""

    def __str__(self) -> str:
        return str(self.strerror)


def check_writable(path: str | os.PathLike[str]) -> Path:
    """The path, if a file can be written there; OSError otherwise. Changes nothing."""
    file = _real(path)
    try:
        if file.exists():
            os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))
        else:
            _try_folder(file.parent)
    except OSError as e:
        raise explained(e, path) from None
    return Path(path)


def _try_folder(folder: Path) -> None:
    import tempfile  # late: most importers of this module write nothing

    with tempfile.TemporaryFile(dir=folder):
        return


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a file atomically: the old one stays until the new one is on disk. An OSError says what to do."""
    file, data = _real(path), text.encode()
    try:
        if (file.exists() and not file.is_file()) or not _replaced(file, data):  # a device cannot be replaced
            file.write_bytes(data)
    except OSError as e:
        raise explained(e, path) from None
    return Path(path)


def _real(path: str | os.PathLike[str]) -> Path:
    """The path with links resolved."""
    return Path(os.path.realpath(path))


def _replaced(file: Path, data: bytes) -> bool:
    """Write a temporary file next to this one and rename it; False if the folder is not writable."""
    new = file.with_name(f".{file.name[:100]}.{os.getpid()}-{threading.get_ident()}.new")
    try:
        out = open(new, "xb")  # noqa: SIM115 - closed below, removed on failure
    except PermissionError:
        if file.exists():
            return False
        raise
    try:
        with out:
            if file.exists():
                os.fchmod(out.fileno(), stat.S_IMODE(file.stat().st_mode))
            out.write(data)
            out.flush()
            os.fsync(out.fileno())  # a full disk may be reported only now
        os.replace(new, file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    return True
