"""Ray's token file: whoever can read it can run code on the cluster, so it is private to its owner from the start.

Ray writes it under the umask of the process, which mostly lets all read it. So a session that starts Ray makes the file
first, and one that others can read or replace is refused, as ssh refuses such a key. Needs no Ray; what Ray keeps of a
token that it has looked for is the one thing that is asked of it, where it is loaded.
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

#: Whether Ray shows a token: "token" or "disabled"; where it is not set, Ray decides when it starts or joins.
MODE = "RAY_AUTH_MODE"
#: What a file of one's own grants to nobody else; and one of root's, which a group may read (a mounted secret).
OTHERS, BEYOND_GROUP = 0o077, 0o027


def token_file() -> Path | None:
    """The file that Ray takes its token from; None where the environment has the token itself, or none is shown."""
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return None
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return Path(named) if named else default_file()


def default_file() -> Path:
    return Path.home() / ".ray" / "auth_token"


def check_token() -> None:
    """PermissionError where others could read or replace the token file; nothing where there is none."""
    file = token_file()
    if file is not None:
        with suppress(FileNotFoundError, NotADirectoryError):
            check_private(file, f", and `rm {_quoted(file)}` has the next session on Ray make a new one")


def make_token() -> None:
    """Make the token file that a Ray which is started here would make, unless there is one; then check it."""
    file = token_file()
    if file is not None and file == default_file() and not file.exists():
        try:
            _make(file)
        except OSError as e:
            raise OSError(
                f"Ray's token cannot be written to {file}: {e.strerror}. Give this user a home folder (HOME) that can "
                f"be written, or set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file of your own with a token in it"
            ) from None
        _forget_absence()
    check_token()


def showing() -> Callable[[], None]:
    """What has Ray show its token as it does now, or not: a Ray that is started here, or joined on this machine, turns
    that on for the process, and the next cluster that is joined, wherever it is, would be shown the token too."""
    before = os.environ.get(MODE)

    def restore() -> None:
        if before is None and os.environ.pop(MODE, None) is not None:
            from ray._raylet import Config  # type: ignore[attr-defined]

            Config.initialize("")  # it keeps what it read

    return restore


def check_private(file: Path, instead: str = "") -> None:
    """PermissionError where others than the owner can read or replace a file; `instead` is what else may be done."""
    found, folder = os.stat(file), os.stat(Path(os.path.realpath(file)).parent)  # of the file that a link leads to
    _check_owner(file, found)
    mask = OTHERS if found.st_uid == os.getuid() else BEYOND_GROUP
    if found.st_mode & mask:
        raise PermissionError(
            f"others can {_what(found.st_mode & mask)} {file} (its mode is {stat.S_IMODE(found.st_mode):04o}), so they "
            f"may know the secret in it: `chmod 600 {_quoted(file)}` keeps it{instead}"
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
            f"replace the secret in it: make a file of your own, readable by you alone"
        )


def _what(bits: int) -> str:
    return "read" if bits & 0o044 else "write" if bits & 0o022 else "use"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _make(file: Path) -> None:
    """The file comes into being complete and private. Of processes that make it at the same time one succeeds."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.stat(file.parent).st_uid == os.getuid():
        os.chmod(file.parent, 0o700)  # one that was there before, or whose mode the umask changed
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
    """Give a file its name, unless another process was quicker."""
    try:
        os.link(new, file)
    except FileExistsError:
        return
    except OSError:  # a disk that has no links
        if not file.exists():
            os.replace(new, file)


def _forget_absence() -> None:
    """Have Ray look for the token again, should it have looked before: it would take its own in the file's place. Not
    where it is connected: the token that it has is the one of that cluster."""
    if "ray._raylet" in sys.modules and not sys.modules["ray"].is_initialized():
        with suppress(ImportError, AttributeError):
            from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

            AuthenticationTokenLoader.instance().reset_cache()
