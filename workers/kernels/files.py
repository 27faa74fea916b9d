"""Kernels of distgrad/ops/files.py."""

from __future__ import annotations

import platform
from typing import Any

from distgrad.errors import CheckpointError
from distgrad.tensor_files import TensorFile
from distgrad.types import Spec
from distgrad.workers.backends import extras
from distgrad.workers.kernels.table import kernel


@kernel("LoadTensor")
def load_tensor(xp: Any, *, path: str, name: str, shape: Any, dtype: Any) -> Any:
    try:
        with TensorFile(path) as file:
            found, wanted = file.spec(name), Spec(shape, dtype)
            if found != wanted:
                raise CheckpointError(
                    f"tensor {name!r} of {path!r} on node {platform.node()!r} is {found}, but load_tensor was built "
                    f"for {wanted}: call load_tensor again, with the shape and dtype that the file has"
                )
            return extras(xp).from_numpy(file.read(name))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"there is no file {path!r} on node {platform.node()!r}, where tensor {name!r} is loaded. Every node that "
            f"may run the op needs the file under this path: keep it on shared storage, or copy it there."
        ) from None
