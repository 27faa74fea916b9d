"""Ray's token file: whoever can read it can run code on the cluster, so it is private to its owner from the start.

Ray creates it with the umask of the process, which usually makes it readable by everyone. So a session that starts Ray
creates the file first, and refuses one that others can read or replace, as ssh does with keys. Works without Ray; if
Ray is loaded, its cached token is reset.
"""

from __future__ import annotations

import os
import secrets
import shlex
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

#: The variable that says whether Ray presents a token: "token" or "disabled". If unset, Ray decides when it starts or
#: joins.
MODE = "RAY_AUTH_MODE"
#: Mode bits that must be clear: of the user's own file; of a file of root, which a group may read (a mounted secret).
OTHERS, BEYOND_GROUP = 0o077, 0o027


def token_file() -> Path | None:
    """The file that Ray reads its token from; None if the environment has the token itself, or tokens are disabled."""
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return None
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return Path(named) if named else default_file()


def default_file() -> Path:
    return Path.home() / ".ray" / "auth_token"


def check_token() -> None:
    """Raise PermissionError if others can read or replace the token file. A missing file is fine."""
    file = token_file()
    if file is not None:
        with suppress(FileNotFoundError, NotADirectoryError):
            check_private(file, f", or `rm {_quoted(file)}` makes the next session on Ray create a new one")


def make_token() -> None:
    """Create the token file that Ray would create when it starts here, unless it exists; then check it."""
    file = token_file()
    if file is not None and file == default_file() and not file.exists():
        try:
            _make(file)
        except OSError as e:
            raise OSError(
                f"Ray's token cannot be written to {file}: {e.strerror}. Give this user a writable home folder (HOME), "
                f"or set RAY_AUTH_TOKEN, or set RAY_AUTH_TOKEN_PATH to your own file with a token"
            ) from None
        _forget_absence()
    check_token()


def showing() -> Callable[[], None]:
    """A function that restores whether Ray presents its token. A Ray that is started or joined on this machine turns
    that on for the process, so the next cluster that is joined, wherever it is, would get the token too."""
    before = os.environ.get(MODE)

    def restore() -> None:
        if before is None and os.environ.pop(MODE, None) is not None:
            from ray._raylet import Config  # type: ignore[attr-defined]

            Config.initialize("")  # it caches the variable

    return restore


def check_private(file: Path, instead: str = "") -> None:
    """Raise PermissionError if anyone but the owner can read or replace a file; `instead` is another remedy."""
    found, folder = os.stat(file), os.stat(Path(os.path.realpath(file)).parent)  # of the target if it is a link
    _check_owner(file, found)
    mask = OTHERS if found.st_uid == os.getuid() else BEYOND_GROUP
    if found.st_mode & mask:
        raise PermissionError(
            f"others can {_what(found.st_mode & mask)} {file} (its mode is {stat.S_IMODE(found.st_mode):04o}), so they "
            f"may know the secret in it: `chmod 600 {_quoted(file)}` makes it private{instead}"
        )
    _check_owner(file.parent, folder)
    if folder.st_mode & 0o022 and not folder.st_mode & stat.S_ISVTX:
        raise PermissionError(
            f"others can replace {file}: the mode of its folder is {stat.S_IMODE(folder.st_mode):04o}. "
            f"Run `chmod go-w {_quoted(file.parent)}`"
        )


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (0, os.getuid()):
        raise PermissionError(
            f"{path} belongs to another user (id {found.st_uid}; this process runs as {os.getuid()}), who may know or "
            f"replace the secret in it: create your own file, readable only by you"
        )


def _what(bits: int) -> str:
    return "read" if bits & 0o044 else "write" if bits & 0o022 else "use"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _make(file: Path) -> None:
    """Create the file atomically, complete and private. If several processes do so at the same time, one succeeds."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.stat(file.parent).st_uid == os.getuid():
        os.chmod(file.parent, 0o700)  # it may have existed, or the umask may have changed its mode
    new = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            os.fchmod(out.fileno(), 0o600)
            out.write(secrets.token_hex(32))  # as long as Ray's
            out.flush()
            os.fsync(out.fileno())
        _put(new, file)
    finally:
        new.unlink(missing_ok=True)


def _put(new: Path, file: Path) -> None:
    """Move a file to its final name, unless another process was faster."""
    try:
        os.link(new, file)
    except FileExistsError:
        return
    except OSError:  # a file system without links
        if not file.exists():
            os.replace(new, file)


def _forget_absence() -> None:
    """Make Ray read the token again, in case it has cached that there is none. Not while it is connected, as its token
    is then that of the cluster."""
    if "ray._raylet" in sys.modules and not sys.modules["ray"].is_initialized():
        with suppress(ImportError, AttributeError):
            from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

            AuthenticationTokenLoader.instance().reset_cache()
