"""Small models, and what lies on the disk: shared by the tests of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import distgrad as dg


def some(dtype: Any, shape: tuple[int, ...] = (3, 4)) -> Any:
    """Values of a dtype, with bits that only an exact copy keeps."""
    dtype = np.dtype(dtype)
    raw = np.random.default_rng(1).bytes(int(np.prod(shape)) * dtype.itemsize)
    return np.frombuffer(raw, dtype).reshape(shape) if dtype.kind != "b" else np.indices(shape).sum(0) % 2 == 0


def bits(x: Any) -> tuple[Any, ...]:
    return x.shape, x.dtype, x.tobytes()


def data_files(path: Path) -> list[Path]:
    return sorted(path.glob("data-*/*.safetensors"))


def model(value: float = 1.0) -> dict[str, dg.Variable]:
    w, b = np.full((2, 3), value, "f8"), np.full(3, value, "f4")
    return {"w": dg.Variable(w, name="w"), "b": dg.Variable(b, name="b")}


def saved(path: Path, value: float = 1.0) -> Path:
    dg.save_checkpoint(path, model(value), step=int(value))
    return path


def value_in(path: Path) -> float:
    """The value that all variables of a checkpoint have."""
    found = model(0.0)
    dg.restore_checkpoint(path, found)
    (value,) = {float(x) for v in found.values() for x in v.numpy().flat}
    return value


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])
