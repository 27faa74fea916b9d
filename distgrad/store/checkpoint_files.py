"""A checkpoint on a disk: a directory whose index says which tensor files belong to it, with digests of the tensors.

    weights/checkpoint.json                        the index, written last
    weights/data-8c1f0a9e/00001.safetensors        what the index names
    weights/.lock                                  held by who writes

A checkpoint is what its index says, and the index is replaced in one go when everything it names is on the disk. So at
every moment there is the last complete checkpoint, and a directory without an index is none. What the index does not
name was left by a writer that died, or belonged to the index before, and the next writer removes it. Knows arrays and
their names, nothing of variables.

What was written is read again before the index before it is replaced: index, names, types and digests, as restoring
does. Links in the directory are not followed, neither to read nor to write; the directory itself may be reached by one.
A hard link is the file itself: it is read, and never written to, because files are made anew.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from distgrad.disk import NotPlain, check_plain, explain_os_errors, open_plain
from distgrad.errors import CheckpointError
from distgrad.store.checkpoint_index import MAX_BYTES, Entry, Index, Refused, UnknownFormat, pack, unpack
from distgrad.tensor_files import Array, TensorFile, digest, write_tensors
from distgrad.types import Spec, size_of

INDEX, LOCK, DATA = "checkpoint.json", ".lock", "data-"
#: Swept like data when its writer died.
_NEW = DATA + INDEX
#: A file has as many variables as fit into this, and at least one.
FILE_BYTES = 1 << 30
#: What file systems say that have no locks. There it is the user's affair that one process at a time writes.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


# -- writing -----------------------------------------------------------------------------------------------------


def write(
    path: str, step: int | None, metadata: Mapping[str, Any], specs: Mapping[str, Spec], value: Callable[[str], Array]
) -> None:
    """Make this the checkpoint of a directory, in place of any that is there. `value` gives one array at a time."""
    with explain_os_errors("the checkpoint was not saved, what was there before is kept", path), locked(path):
        try:
            entries = _write_files(path, DATA + secrets.token_hex(8), specs, value)
            _write_index(path, Index(step, dict(metadata), entries))
            _sync(path)  # the folder of the data is in the directory, before the index that names it
            os.replace(os.path.join(path, _NEW), os.path.join(path, INDEX))
            _sync(path)
            _sync(os.path.dirname(os.path.abspath(path)))
        finally:
            _sweep(path)


def _write_files(path: str, folder: str, specs: Mapping[str, Spec], value: Callable[[str], Array]) -> dict[str, Entry]:
    os.mkdir(os.path.join(path, folder))
    entries: dict[str, Entry] = {}
    for number, names in enumerate(_portions(specs), 1):
        file, portion = f"{folder}/{number:05}.safetensors", {name: specs[name] for name in names}
        digests = write_tensors(os.path.join(path, file), portion, value)
        entries |= {name: Entry(file, specs[name], digests[name]) for name in names}
    _sync(os.path.join(path, folder))
    return entries


def _portions(specs: Mapping[str, Spec]) -> Iterator[list[str]]:
    """The names of each file."""
    names: list[str] = []
    total = 0
    for name, (shape, dtype) in specs.items():
        nbytes = size_of(shape) * dtype.itemsize
        if names and total + nbytes > FILE_BYTES:
            yield names
            names, total = [], 0
        names.append(name)
        total += nbytes
    if names:
        yield names


def _write_index(path: str, index: Index) -> None:
    """Write the new index beside the old one, and read back all that it stands for."""
    new = os.path.join(path, _NEW)
    with contextlib.suppress(FileNotFoundError):
        _remove(new)  # of a writer that died, or a link that somebody planted
    fd = open_plain(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(pack(index))
        file.flush()
        os.fsync(file.fileno())
    _verify(path, index)


def _verify(path: str, index: Index) -> None:
    """That what was just written can be restored; one tensor at a time, as it was written."""
    found = read_index(path, _NEW)
    if found.entries != index.entries or found.step != index.step:
        raise CheckpointError(f"the new index in {path!r} is not what was written: the disk may be damaged")
    for _ in _arrays(path, found.entries):
        pass


def _sync(folder: str) -> None:
    """Wait until the names in a folder are on the disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sweep(path: str) -> None:
    """Remove what the index does not name; of a checkpoint that cannot be read, nothing. The caller has the lock."""
    try:
        named = {entry.file.partition("/")[0] for entry in read_index(path).entries.values()}
    except FileNotFoundError:
        named = set()
    except (CheckpointError, OSError):
        return
    with contextlib.suppress(OSError):  # what stays takes room, and the next writer tries again
        for name in os.listdir(path):
            if name.startswith(DATA) and name not in named:
                _remove(os.path.join(path, name))


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)  # which removes links, and follows none
    else:
        os.unlink(path)


# -- one writer at a time ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(path: str, wait: bool = True) -> Iterator[bool]:
    """Have a checkpoint's directory, which is made if need be, to oneself; without waiting, whether one has. A process
    that dies lets go of it."""
    fd = _open_lock(path)
    try:
        had = _hold(fd, wait)
        while had and not _is_at(fd, os.path.join(path, LOCK)):  # its holder of before removed the directory
            os.close(fd)
            fd = _open_lock(path)
            had = _hold(fd, wait)
        yield had
    finally:
        os.close(fd)


def _open_lock(path: str) -> int:
    while True:
        try:
            os.makedirs(path, exist_ok=True)
            return _open_plain(os.path.join(path, LOCK), os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:  # the directory was removed in between
            continue
        except FileExistsError:  # the same, between two looks of makedirs; or something else is there
            if os.path.lexists(path) and not os.path.isdir(path):
                raise


def _open_plain(file: str, flags: int) -> int:
    try:
        return open_plain(file, flags)
    except NotPlain as e:
        raise CheckpointError(f"{e}. Remove it, or choose another folder.") from None


def _hold(fd: int, wait: bool) -> bool:
    import fcntl  # late: Windows has none, and needs none to import distgrad

    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as e:
        if e.errno not in _NO_LOCKS:
            raise
    return True


def _is_at(fd: int, file: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(file))
    except FileNotFoundError:
        return False


def remove(path: str, complete: bool) -> None:
    """Remove a complete checkpoint, or what a writer that died left of one; nothing while somebody writes it."""
    with locked(path, wait=False) as had, contextlib.suppress(OSError):
        if had and is_complete(path) == complete:
            if complete:
                os.unlink(os.path.join(path, INDEX))  # first, so that what is left is no checkpoint
            shutil.rmtree(path)


# -- the index ---------------------------------------------------------------------------------------------------


def is_complete(path: str) -> bool:
    """Whether there is an index; whether it is a good one, reading it tells."""
    return os.path.lexists(os.path.join(path, INDEX))


def read_index(path: str, name: str = INDEX) -> Index:
    """The index of a checkpoint. FileNotFoundError when there is none, CheckpointError when it is damaged."""
    file = os.path.join(path, name)
    with explain_os_errors("the checkpoint cannot be read", file):
        text = _content(file)
    try:
        return unpack(text)
    except UnknownFormat as e:
        raise CheckpointError(f"{file!r} {e}") from None
    except Refused as e:
        raise CheckpointError(f"{file!r} is damaged, or no index of a checkpoint: {e}. {_REMEDY}") from None


def _content(file: str) -> bytes:
    with open(_open_plain(file, os.O_RDONLY), "rb") as opened:
        text = opened.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise CheckpointError(f"{file!r} has more than {MAX_BYTES >> 20} MiB, which no index of a checkpoint has")
    return text


# -- reading -----------------------------------------------------------------------------------------------------

_REMEDY = "Restore another checkpoint, or copy this one again from where it came from."


def read(path: str, entries: Mapping[str, Entry]) -> dict[str, Array]:
    """The tensors of a checkpoint, each compared with its digest."""
    with explain_os_errors("the checkpoint cannot be read", path):
        return dict(_arrays(path, entries))


def _arrays(path: str, entries: Mapping[str, Entry]) -> Iterator[tuple[str, Array]]:
    files: dict[str, list[str]] = {}
    for name, entry in entries.items():
        files.setdefault(entry.file, []).append(name)
    for relative, names in files.items():
        with _opened(path, relative) as file:
            for name in names:
                yield name, _checked(file, name, entries[name])


def _opened(path: str, relative: str) -> TensorFile:
    file = path
    *folders, last = relative.split("/")
    try:
        for folder in folders:
            file = os.path.join(file, folder)
            check_plain(file, folder=True)
        file = os.path.join(file, last)
        check_plain(file)
        return TensorFile(file)
    except NotPlain as e:
        raise CheckpointError(f"{e}, because the checkpoint's index names it. {_REMEDY}") from None
    except FileNotFoundError:
        file = os.path.join(path, relative)
        raise CheckpointError(f"{file!r} is missing, but the checkpoint's index names it. {_REMEDY}") from None


def _checked(file: TensorFile, name: str, entry: Entry) -> Array:
    found = file.spec(name)
    if found != entry.spec:
        raise CheckpointError(
            f"{file.path!r} has {found} under the name {name!r}, where the checkpoint's index says {entry.spec}: "
            f"one of them is damaged. {_REMEDY}"
        )
    x = file.read(name)
    if digest(x) != entry.sha256:
        raise CheckpointError(f"tensor {name!r} in {file.path!r} is damaged: its checksum does not match. {_REMEDY}")
    return x
