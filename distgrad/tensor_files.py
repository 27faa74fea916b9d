"""Tensor files: named arrays in safetensors files. Knows types and errors, not graphs, variables or checkpoints.

The safetensors library reads, because files must not be trusted. It can only write arrays that are all in memory; here
a file is written one array at a time, so a model in a cluster need not fit into the memory of this process.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import stat
import struct
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import numpy as np

from distgrad.disk import explain_os_errors
from distgrad.errors import CheckpointError
from distgrad.types import DType, Shape, Spec, real_dtype, size_of

Array = np.ndarray[Any, np.dtype[Any]]

_CODES = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint8": "U8", "uint16": "U16",
    "uint32": "U32", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip
#: C64 is read but not written: the format has no complex128, and safetensors before 0.7 cannot open files with C64.
_NAMES = {code: name for name, code in _CODES.items()} | {"C64": "complex64"}
#: Metadata key: names of tensors with complex numbers, stored as pairs of real numbers.
_PAIRS = "distgrad.complex"


def writable(spec: Spec) -> bool:
    """Whether values of this type can be stored in a file.

    >>> writable(Spec((2,), np.dtype("complex128"))), writable(Spec((2,), np.dtype("S3")))
    (True, False)
    """
    return real_dtype(spec.dtype).name in _CODES


def known_dtype(name: Any) -> bool:
    """Whether this is the name of a dtype that files can contain."""
    return isinstance(name, str) and (name in _CODES or name in ("complex64", "complex128"))


def digest(x: Array) -> str:
    """The SHA-256 of the bytes of an array."""
    return hashlib.sha256(_row_by_row(x)).hexdigest()


def write_tensors(path: str, specs: Mapping[str, Spec], value: Callable[[str], Array]) -> dict[str, str]:
    """Write a new file, synced to disk, and return the digests. `value` is called for one array at a time."""
    order = sorted(specs, key=lambda name: -real_dtype(specs[name].dtype).itemsize)  # keeps each array aligned
    with open(path, "xb") as file:
        file.write(_header({name: specs[name] for name in order}))
        digests = {name: _append(file, name, specs[name], value(name)) for name in order}
        file.flush()
        os.fsync(file.fileno())
    return digests


def _append(file: BinaryIO, name: str, spec: Spec, x: Array) -> str:
    if (x.shape, x.dtype) != spec:
        raise TypeError(f"{name!r} is {Spec(x.shape, x.dtype)}, but was declared as {spec}")
    raw = _row_by_row(x)
    file.write(raw)
    return hashlib.sha256(raw).hexdigest()


def _header(specs: Mapping[str, Spec]) -> bytes:
    pairs = [name for name, spec in specs.items() if spec.dtype.kind == "c"]
    entries: dict[str, Any] = {"__metadata__": {_PAIRS: json.dumps(pairs)}} if pairs else {}
    start = 0
    for name, (shape, dtype) in specs.items():
        end = start + size_of(shape) * dtype.itemsize
        kept = (*shape, 2) if dtype.kind == "c" else shape
        entries[name] = {"dtype": _CODES[real_dtype(dtype).name], "shape": kept, "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _row_by_row(x: Array) -> memoryview:
    """The bytes of an array, in C order."""
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8).data


class TensorFile:
    """An open tensor file. An invalid file raises a CheckpointError that names it; a missing or unreadable one raises
    an OSError."""

    def __init__(self, path: str):
        self.path = path
        with explain_os_errors("the tensors cannot be read", path):
            _check_readable(path)
        from safetensors import safe_open

        self._file: Any = self._tried(safe_open, path, framework="numpy")
        self._pairs = self._noted()

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.__exit__(None, None, None)

    def spec(self, name: str) -> Spec:
        """The type of a tensor, without reading it."""
        try:
            entry = self._file.get_slice(name)
        except Exception:
            raise CheckpointError(f"{self.path!r} has no tensor {name!r}{self._nearest(name)}") from None
        shape, dtype = tuple(entry.get_shape()), self._dtype(name, entry.get_dtype())
        return Spec(shape[:-1], _complex(dtype)) if self._is_pair(name, shape, dtype) else Spec(shape, dtype)

    def read(self, name: str) -> Array:
        """The values of a tensor, as a new array."""
        shape, dtype = self.spec(name)
        kept: Array = self._tried(self._file.get_tensor, name)
        return kept.view(dtype).reshape(shape) if kept.dtype != dtype else kept

    def _noted(self) -> set[str]:
        text = (self._file.metadata() or {}).get(_PAIRS, "[]")
        try:
            return {str(name) for name in json.loads(text)}
        except (ValueError, TypeError, RecursionError):
            raise CheckpointError(f"{self.path!r} is damaged: its note {_PAIRS!r} is {text!r}") from None

    def _is_pair(self, name: str, shape: Shape, dtype: DType) -> bool:
        return name in self._pairs and dtype.name in ("float32", "float64") and shape[-1:] == (2,)

    def _dtype(self, name: str, code: str) -> DType:
        if code not in _NAMES:
            raise CheckpointError(f"tensor {name!r} of {self.path!r} is of type {code}, for which NumPy has no dtype")
        return dtype_of(_NAMES[code])

    def _nearest(self, name: str) -> str:
        close = difflib.get_close_matches(name, self._file.keys(), 1)
        return f"; did you mean {close[0]!r}?" if close else ""

    def _tried(self, f: Callable[..., Any], *args: Any, **options: Any) -> Any:
        from safetensors import SafetensorError

        try:
            return f(*args, **options)
        except SafetensorError as e:
            raise CheckpointError(
                f"{self.path!r} is damaged, or not a safetensors file: {e}. Copy it again from its source."
            ) from None


def _check_readable(path: str) -> None:
    """Check for problems that safetensors would report poorly, or block on."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{path!r} is a directory, not a safetensors file")
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"{path!r} is a pipe or a device, not a safetensors file")
    with open(path, "rb"):
        pass


def dtype_of(name: str) -> DType:
    """The dtype of this name; bfloat16 comes from ml_dtypes.

    >>> dtype_of("float32")
    dtype('float32')
    """
    if name == "bfloat16":
        import ml_dtypes

        dtype: DType = np.dtype(ml_dtypes.bfloat16)
        return dtype
    return np.dtype(name)


def _complex(dtype: DType) -> DType:
    return np.dtype("complex64" if dtype.itemsize == 4 else "complex128")


def tensor_type(path: str, name: str) -> Spec:
    """The type of one tensor of a file."""
    with TensorFile(path) as file:
        return file.spec(name)
