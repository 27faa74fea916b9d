"""A checkpoint on a disk: a directory whose index says which tensor files belong to it, with digests of the tensors.

    weights/checkpoint.json                        the index, written last
    weights/data-8c1f0a9e/00001.safetensors        what the index names
    weights/.lock                                  held by who writes

A checkpoint is what its index says, and the index is replaced in one go when everything it names is on the disk. So at
every moment there is the last complete checkpoint, and a directory without an index is none. What the index does not
name was left by a writer that died, or belonged to the index before, and the next writer removes it. Knows arrays and
their names, nothing of variables.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from distgrad.errors import CheckpointError
from distgrad.tensor_files import Array, TensorFile, digest, dtype_of, write_tensors
from distgrad.types import Spec, size_of

INDEX, LOCK, DATA = "checkpoint.json", ".lock", "data-"
#: Swept like data when its writer died.
_NEW = DATA + INDEX
FORMAT = 1
#: A file has as many variables as fit into this, and at least one.
FILE_BYTES = 1 << 30
#: What file systems say that have no locks. There it is the user's affair that one process at a time writes.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


class Entry(NamedTuple):
    """A tensor of a checkpoint."""

    file: str
    spec: Spec
    sha256: str


class Index(NamedTuple):
    """What a checkpoint consists of."""

    step: int | None
    metadata: dict[str, Any]
    entries: dict[str, Entry]


# -- writing -----------------------------------------------------------------------------------------------------


def write(
    path: str, step: int | None, metadata: Mapping[str, Any], specs: Mapping[str, Spec], value: Callable[[str], Array]
) -> None:
    """Make this the checkpoint of a directory, in place of any that is there. `value` gives one array at a time."""
    with locked(path):
        try:
            entries = _write_files(path, DATA + secrets.token_hex(8), specs, value)
            _replace_index(path, _packed(Index(step, dict(metadata), entries)))
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


def _replace_index(path: str, text: str) -> None:
    new = os.path.join(path, _NEW)
    with open(new, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    _sync(path)  # the folder of the data is in the directory, before the index that names it
    os.replace(new, os.path.join(path, INDEX))
    _sync(path)
    _sync(os.path.dirname(os.path.abspath(path)))


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
    except CheckpointError:
        return
    with contextlib.suppress(OSError):  # what stays takes room, and the next writer tries again
        for name in os.listdir(path):
            if name.startswith(DATA) and name not in named:
                _remove(os.path.join(path, name))


def _remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path)
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
        os.makedirs(path, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # the directory was removed in between
            return os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


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
    return os.path.exists(os.path.join(path, INDEX))


def _packed(index: Index) -> str:
    """The text of an index: the digest is that of the content as it is written here."""
    tensors = {
        name: {"file": file, "shape": list(spec.shape), "dtype": spec.dtype.name, "sha256": sha256}
        for name, (file, spec, sha256) in index.entries.items()
    }
    content = {"step": index.step, "metadata": index.metadata, "tensors": tensors}
    return json.dumps({"distgrad": FORMAT, "sha256": _content_digest(content), "content": content}, indent=1)


def _content_digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_index(path: str) -> Index:
    """The index of a checkpoint. FileNotFoundError when there is none, CheckpointError when it is damaged."""
    file = os.path.join(path, INDEX)
    with open(file, "rb") as opened:
        text = opened.read()
    try:
        made = json.loads(text)
        if made["distgrad"] != FORMAT:
            raise CheckpointError(f"{file!r} has format {made['distgrad']!r}, which this distgrad does not know")
        whole = made["sha256"] == _content_digest(made["content"])
    except (ValueError, KeyError, TypeError) as e:
        if isinstance(e, CheckpointError):
            raise
        whole = False
    if not whole:
        raise CheckpointError(f"{file!r} is damaged, or no index of a checkpoint. {_REMEDY}")
    content = made["content"]
    return Index(content["step"], content["metadata"], {n: _entry(e) for n, e in content["tensors"].items()})


def _entry(entry: Mapping[str, Any]) -> Entry:
    return Entry(entry["file"], Spec(tuple(entry["shape"]), dtype_of(entry["dtype"])), entry["sha256"])


# -- reading -----------------------------------------------------------------------------------------------------

_REMEDY = "Restore another checkpoint, or copy this one again from where it came from."


def read(path: str, entries: Mapping[str, Entry]) -> dict[str, Array]:
    """The tensors of a checkpoint, each compared with its digest."""
    arrays = {}
    files: dict[str, list[str]] = {}
    for name, entry in entries.items():
        files.setdefault(entry.file, []).append(name)
    for relative, names in files.items():
        with _opened(os.path.join(path, relative)) as file:
            for name in names:
                arrays[name] = _checked(file, name, entries[name])
    return arrays


def _opened(file: str) -> TensorFile:
    try:
        return TensorFile(file)
    except FileNotFoundError:
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
        raise CheckpointError(f"tensor {name!r} in {file.path!r} is damaged: its digest is another one. {_REMEDY}")
    return x
