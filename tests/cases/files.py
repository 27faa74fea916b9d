"""Rows for distgrad/ops/files.py; see test_checkpoints.py for the rest."""

from __future__ import annotations

import os
import tempfile
from functools import cache

import numpy as np
from safetensors.numpy import save_file

import distgrad as dg

from .case import Case, arr

TENSORS = {"w": arr(2, 3), "half": arr(4).astype(np.float32), "count": np.array(7), "none": np.zeros((0, 3))}


@cache
def folder() -> tempfile.TemporaryDirectory[str]:
    """Removed when the tests end."""
    made = tempfile.TemporaryDirectory()
    save_file(TENSORS, os.path.join(made.name, "weights.safetensors"))
    return made


def row(name: str) -> Case:
    def build() -> dg.Tensor:
        return dg.load_tensor(os.path.join(folder().name, "weights.safetensors"), name)

    return Case(build, (), lambda: TENSORS[name], order=0)


CASES = {"LoadTensor": [row(name) for name in TENSORS]}
