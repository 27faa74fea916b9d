"""Tensors from files, in graphs; the values themselves are rows of the op table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.tensor_files import TensorFile

from ..checkpointing import bits, data_files, some


def file_of(path: Path, **tensors: Any) -> Path:
    dg.save_checkpoint(path, {name: dg.Variable(x) for name, x in tensors.items()})
    return data_files(path)[0]


def test_a_tensor_is_loaded_when_the_graph_runs(tmp_path: Path) -> None:
    file = file_of(tmp_path / "a", w=np.ones(3))
    double = dg.function(lambda: dg.load_tensor(file, "w") * 2)
    first = double()
    os.replace(file_of(tmp_path / "b", w=np.full(3, 5.0)), file)
    assert (first[0], double()[0]) == (2.0, 10.0)


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "float16", "bool"])
def test_a_tensor_of_a_checkpoint_is_loaded_in_its_own_dtype(dtype: str, tmp_path: Path) -> None:
    x = some(dtype)
    file = file_of(tmp_path, x=x)
    assert bits(dg.function(lambda: dg.load_tensor(file, "x"))()) == bits(x)


def test_equal_loads_of_one_run_read_the_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, read, names = file_of(tmp_path, w=np.ones(3)), TensorFile.read, []

    def noted(self: TensorFile, name: str) -> Any:
        names.append(name)
        return read(self, name)

    monkeypatch.setattr(TensorFile, "read", noted)
    dg.function(lambda: dg.load_tensor(file, "w") + dg.exp(dg.load_tensor(file, "w")))()
    assert names == ["w"]


def test_with_shape_and_dtype_the_file_need_not_be_there_while_the_graph_is_built(tmp_path: Path) -> None:
    with dg.Graph():
        w = dg.load_tensor(tmp_path / "w" / "later.safetensors", "w", 3, "float64")
    (tmp_path / "w").mkdir()
    file_of(tmp_path / "a", w=np.arange(3.0)).rename(tmp_path / "w" / "later.safetensors")
    assert dg.Session().run(w).tolist() == [0.0, 1.0, 2.0]


def test_a_file_that_is_missing_in_a_run_names_path_node_and_op(tmp_path: Path) -> None:
    with dg.Graph():
        w = dg.load_tensor(tmp_path / "gone.safetensors", "w", (3,), "float64")
    with pytest.raises(FileNotFoundError, match=r"no file '.*gone.safetensors' on node '.+', where") as caught:
        dg.Session().run(w)
    assert "op 'LoadTensor' (type LoadTensor, at test_ops_files.py:" in "".join(caught.value.__notes__)


def test_a_file_that_has_another_type_in_a_run_names_both(tmp_path: Path) -> None:
    file = file_of(tmp_path, w=np.ones(3))
    with pytest.raises(dg.CheckpointError, match=r"'w' of .* is f64\[3\], but load_tensor was built for f32\[3\]"):
        dg.load_tensor(file, "w", dtype="float32")


def test_a_tensor_that_the_file_lacks_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    file = file_of(tmp_path, weights=np.ones(3))
    with pytest.raises(dg.CheckpointError, match="has no tensor 'weight'; did you mean 'weights'"):
        dg.load_tensor(file, "weight")


def test_a_directory_is_no_tensor_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="is a directory, not a safetensors file"):
        dg.load_tensor(tmp_path, "w")


def test_a_loaded_tensor_can_be_differentiated_by(tmp_path: Path) -> None:
    file = file_of(tmp_path, w=np.arange(3.0))
    with dg.Graph():
        w = dg.load_tensor(file, "w")
        (g,) = dg.gradients(dg.sum(w * w), [w])
    assert dg.Session().run(g).tolist() == [0.0, 2.0, 4.0]
