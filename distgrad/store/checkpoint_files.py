"""Checkpoints on disk: a directory with tensor files and an index that lists the files and the digests of tensors.

    weights/checkpoint.json                        the index, written last
    weights/data-8c1f0a9e/00001.safetensors        tensor files listed in the index
    weights/.lock                                  held by the writer

The index defines the checkpoint. It is replaced atomically once all files that it lists are on the disk, so the last
complete checkpoint is available at all times; a directory without an index is not a checkpoint. Files that the index
does not list were left by a writer that died or belong to an older index; the next writer removes them. This module
knows arrays and their names, not variables.

Everything is read back before the old index is replaced: index, names, types and digests, as in a restore. Symbolic
links inside the directory are never followed, for reading or writing; the directory itself may be a link. Hard links
can be read, and are never written through, because files are always created, not overwritten.
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
#: The new index while it is written; removed with the data if its writer died.
_NEW = DATA + INDEX
#: Maximum size of a tensor file in bytes, unless a single variable is larger.
FILE_BYTES = 1 << 30
#: Errors of file systems without locks. There the user must ensure that only one process writes at a time.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


# -- writing -----------------------------------------------------------------------------------------------------


def write(
    path: str, step: int | None, metadata: Mapping[str, Any], specs: Mapping[str, Spec], value: Callable[[str], Array]
) -> None:
    """Write the checkpoint of a directory, replacing any other. `value` returns the array of a name."""
    with explain_os_errors("the checkpoint was not saved, and the previous one is unchanged", path), locked(path):
        try:
            entries = _write_files(path, DATA + secrets.token_hex(8), specs, value)
            _write_index(path, Index(step, dict(metadata), entries))
            _sync(path)  # the data folder must be on the disk before the index that lists it
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
    """Write the new index next to the old one, and read back everything that it lists."""
    new = os.path.join(path, _NEW)
    with contextlib.suppress(FileNotFoundError):
        _remove(new)  # left by a writer that died, or a planted link
    fd = open_plain(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(pack(index))
        file.flush()
        os.fsync(file.fileno())
    _verify(path, index)


def _verify(path: str, index: Index) -> None:
    """Check that the new checkpoint can be restored; reads one tensor at a time."""
    found = read_index(path, _NEW)
    if found.entries != index.entries or found.step != index.step:
        raise CheckpointError(f"the new index in {path!r} differs from what was written: the disk may be damaged")
    for _ in _arrays(path, found.entries):
        pass


def _sync(folder: str) -> None:
    """Flush a folder's entries to the disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sweep(path: str) -> None:
    """Remove files that the index does not list; nothing if the index cannot be read. The caller holds the lock."""
    try:
        named = {entry.file.partition("/")[0] for entry in read_index(path).entries.values()}
    except FileNotFoundError:
        named = set()
    except (CheckpointError, OSError):
        return
    with contextlib.suppress(OSError):  # leftovers only take space, and the next writer tries again
        for name in os.listdir(path):
            if name.startswith(DATA) and name not in named:
                _remove(os.path.join(path, name))


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)  # removes links without following them
    else:
        os.unlink(path)


# -- one writer at a time ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(path: str, wait: bool = True) -> Iterator[bool]:
    """Lock a checkpoint's directory, which is created if necessary. Yields whether the lock is held: always true with
    `wait`. The lock of a process that dies is released."""
    fd = _open_lock(path)
    try:
        had = _hold(fd, wait)
        while had and not _is_at(fd, os.path.join(path, LOCK)):  # the previous holder removed the directory
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
        except FileExistsError:  # the same, inside makedirs; or a file is there
            if os.path.lexists(path) and not os.path.isdir(path):
                raise


def _open_plain(file: str, flags: int) -> int:
    try:
        return open_plain(file, flags)
    except NotPlain as e:
        raise CheckpointError(f"{e}. Remove it, or choose another folder.") from None


def _hold(fd: int, wait: bool) -> bool:
    import fcntl  # late: Windows does not have it, and distgrad can be imported there

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
    """Remove a complete checkpoint, or the leftovers of a writer that died; nothing if a writer holds the lock."""
    with locked(path, wait=False) as had, contextlib.suppress(OSError):
        if had and is_complete(path) == complete:
            if complete:
                os.unlink(os.path.join(path, INDEX))  # first, so that the rest is not a checkpoint
            shutil.rmtree(path)


# -- the index ---------------------------------------------------------------------------------------------------


def is_complete(path: str) -> bool:
    """Whether there is an index. It may be damaged: `read_index` checks it."""
    return os.path.lexists(os.path.join(path, INDEX))


def read_index(path: str, name: str = INDEX) -> Index:
    """The index of a checkpoint. Raises FileNotFoundError if there is none, CheckpointError if it is damaged."""
    file = os.path.join(path, name)
    with explain_os_errors("the checkpoint cannot be read", file):
        text = _content(file)
    try:
        return unpack(text)
    except UnknownFormat as e:
        raise CheckpointError(f"{file!r} {e}") from None
    except Refused as e:
        raise CheckpointError(f"{file!r} is damaged, or not the index of a checkpoint: {e}. {_REMEDY}") from None


def _content(file: str) -> bytes:
    with open(_open_plain(file, os.O_RDONLY), "rb") as opened:
        text = opened.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise CheckpointError(f"{file!r} is larger than {MAX_BYTES >> 20} MiB, so it is not the index of a checkpoint")
    return text


# -- reading -----------------------------------------------------------------------------------------------------

_REMEDY = "Restore another checkpoint, or copy this one again from its source."


def read(path: str, entries: Mapping[str, Entry]) -> dict[str, Array]:
    """The tensors of a checkpoint, each checked against its digest."""
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
            f"{file.path!r} has {found} under the name {name!r}, but the checkpoint's index says {entry.spec}: "
            f"one of them is damaged. {_REMEDY}"
        )
    x = file.read(name)
    if digest(x) != entry.sha256:
        raise CheckpointError(f"tensor {name!r} in {file.path!r} is damaged: its checksum does not match. {_REMEDY}")
    return x
