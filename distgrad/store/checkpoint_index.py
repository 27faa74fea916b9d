"""The index of a checkpoint: the file and the digest of each tensor. Written as JSON, and not trusted when read.

A digest detects damage, not malice: anyone who can write the file can write a matching digest. So every field is
checked when it is read: its type, its range, and that files are inside the checkpoint's folder. This module does not
access the file system.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, NamedTuple

from distgrad.tensor_files import dtype_of, known_dtype
from distgrad.types import Spec, size_of

#: Version of the index; others are refused.
FORMAT = 1
#: Largest step: steps are stored as signed 64-bit integers.
MAX_STEP = (1 << 63) - 1
#: Maximum size of an index in bytes, enough for about a million variables.
MAX_BYTES = 1 << 28
_MAX_DIMS = 64  # that of NumPy
#: A portable file name: no separators, drives, parents, hidden or special files.
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=@-]*")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Entry(NamedTuple):
    """A tensor of a checkpoint."""

    file: str
    spec: Spec
    sha256: str


class Index(NamedTuple):
    """The contents of a checkpoint."""

    step: int | None
    metadata: dict[str, Any]
    entries: dict[str, Entry]


class Refused(ValueError):
    """An invalid index. The message says why; the caller adds the file."""


def pack(index: Index) -> str:
    """The text of an index, with a digest of its content."""
    tensors = {
        name: {"file": file, "shape": list(spec.shape), "dtype": spec.dtype.name, "sha256": sha256}
        for name, (file, spec, sha256) in index.entries.items()
    }
    content = {"step": index.step, "metadata": index.metadata, "tensors": tensors}
    return json.dumps({"distgrad": FORMAT, "sha256": content_digest(content), "content": content}, indent=1)


def content_digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def unpack(text: bytes) -> Index:
    """Parse an index. Raises Refused if it is invalid."""
    try:
        made = json.loads(text, object_pairs_hook=_once)
        _need(type(made) is dict and "distgrad" in made, "it is not an index")
        version = made["distgrad"]
        _need(type(version) is int, "its format is not a number")
        if version != FORMAT:
            raise UnknownFormat(f"has format {version!r}, which this distgrad does not know")
        content = made.get("content")
        _need(made.get("sha256") == content_digest(content), "its checksum does not match")
        return _index(content)
    except Refused:
        raise
    except RecursionError:
        raise Refused("it is nested too deeply") from None
    except ValueError as e:  # not UTF-8, not JSON, or a number with thousands of digits
        raise Refused(f"it is not JSON: {e}") from None


class UnknownFormat(Refused):
    """Written by a later version of distgrad."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    _need(len(made) == len(pairs), "it has a key twice")
    return made


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise Refused(what)


def _index(content: Any) -> Index:
    _need(type(content) is dict, "its content is missing")
    for field in ("step", "metadata", "tensors"):
        _need(field in content, f"its field {field!r} is missing")
    step, metadata, tensors = content["step"], content["metadata"], content["tensors"]
    _need(step is None or (type(step) is int and 0 <= step <= MAX_STEP), "its step is not a non-negative integer")
    _need(type(metadata) is dict, "its metadata is not a mapping")
    _need(type(tensors) is dict, "its tensors are not a mapping")
    return Index(step, metadata, {name: _entry(name, entry) for name, entry in tensors.items()})


def _entry(name: str, entry: Any) -> Entry:
    _need(usable_name(name), f"it has a tensor with the invalid name {name!r}")
    _need(type(entry) is dict, f"its entry of {name!r} is not a mapping")
    for field in ("file", "shape", "dtype", "sha256"):
        _need(field in entry, f"its entry of {name!r} has no field {field!r}")
    file, sha256 = entry["file"], entry["sha256"]
    _need(inside(file), f"its entry of {name!r} names {file!r}, not a plain path inside the checkpoint's folder")
    _need(type(sha256) is str and bool(_DIGEST.fullmatch(sha256)), f"the digest of {name!r} is invalid")
    return Entry(file, _spec(name, entry["shape"], entry["dtype"]), sha256)


def _spec(name: str, shape: Any, dtype: Any) -> Spec:
    _need(known_dtype(dtype), f"the dtype of {name!r} is {dtype!r}, which is unknown")
    whole = type(shape) is list and len(shape) <= _MAX_DIMS and all(type(n) is int and n >= 0 for n in shape)
    _need(whole and size_of(shape) <= MAX_STEP, f"the shape of {name!r} is invalid")
    return Spec(tuple(shape), dtype_of(dtype))


def inside(file: Any) -> bool:
    """Whether a path in an index stays inside its folder on every system.

    >>> inside("data-1/00001.safetensors"), inside("../w"), inside("/w"), inside("a\\\\w"), inside("c:w")
    (True, False, False, False, False)
    """
    return type(file) is str and len(file) < 1024 and all(_PART.fullmatch(part) for part in file.split("/"))


def usable_name(name: str) -> bool:
    """Whether a tensor file can contain a tensor with this name."""
    try:
        name.encode()
    except UnicodeError:  # an unpaired surrogate: valid in JSON, but not in UTF-8
        return False
    return name != "__metadata__"
