"""Tensors from files, loaded where the op runs, so large weights need not pass through one process."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from distgrad.disk import as_path
from distgrad.graph import Tensor
from distgrad.ops.builder import make
from distgrad.ops.guard import guard_all
from distgrad.registry import Kind, define, no_gradient
from distgrad.tensor_files import tensor_type
from distgrad.types import DType, Shape, brief, checked_shape


def _load_infer(*, path: str, name: str, shape: Shape, dtype: DType) -> tuple[Shape, DType]:
    return shape, dtype


_load = define("LoadTensor", _load_infer, at_run=True, kind=Kind.SOURCE)
no_gradient("LoadTensor")


def load_tensor(path: str | os.PathLike[str], name: str, shape: Any = None, dtype: Any = None) -> Tensor:
    """A tensor of a safetensors file, read in every run by the task that needs it.

    On a cluster every node that may run the task needs the file under this path: keep it on shared storage.

    Args:
        path: path of the file.
        name: name of the tensor in the file.
        shape, dtype: type of the tensor. If either is not given, the file is inspected now; if both are, it need not
            exist here. A mismatch when the op runs is a CheckpointError.

    >>> import os, tempfile, numpy as np
    >>> from safetensors.numpy import save_file
    >>> path = os.path.join(tempfile.mkdtemp(), "weights.safetensors")
    >>> save_file({"w": np.ones((2, 3), np.float32)}, path)
    >>> load_tensor(path, "w").sum()
    np.float32(6.0)
    """
    if not isinstance(name, str):
        raise TypeError(f"load_tensor: name must be a string, the name of a tensor in the file; got {brief(name)}")
    path = os.path.abspath(as_path("load_tensor", path))  # a worker may have another working directory
    if shape is None or dtype is None:
        found = tensor_type(path, name)
        shape, dtype = found.shape if shape is None else shape, found.dtype if dtype is None else dtype
    attrs = {"path": path, "name": name, "shape": checked_shape(shape), "dtype": np.dtype(dtype)}
    return make(_load, (), attrs)


__all__ = ["load_tensor"]
guard_all(globals(), __all__)
