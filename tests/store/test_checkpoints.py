"""Checkpoints: what was saved comes back to the bit, or there is an error that says what does not fit."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

import distgrad as dg
from distgrad.handles import LocalHandle
from distgrad.store import checkpoint_files

from ..checkpointing import bits, cut, data_files, model, saved, some, value_in

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128", ml_dtypes.bfloat16,
]  # fmt: skip


# -- round trips -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_every_dtype_comes_back_to_the_bit_in_every_shape(dtype: Any, tmp_path: Path) -> None:
    before = {str(shape): dg.Variable(some(dtype, shape)) for shape in [(3, 4), (), (0, 3), (1,)]}
    dg.save_checkpoint(tmp_path, before)
    after = {name: dg.Variable(np.zeros(v.shape, dtype)) for name, v in before.items()}
    dg.restore_checkpoint(tmp_path, after)
    assert [bits(v.numpy()) for v in after.values()] == [bits(v.numpy()) for v in before.values()]


def test_variables_of_many_dtypes_share_a_file(tmp_path: Path) -> None:
    before = {f"v/{i}": dg.Variable(some(dtype)) for i, dtype in enumerate(DTYPES)}
    dg.save_checkpoint(tmp_path, before)
    after = {name: dg.Variable(np.zeros(v.shape, v.dtype)) for name, v in before.items()}
    dg.restore_checkpoint(tmp_path, after)
    assert len(data_files(tmp_path)) == 1
    assert [bits(v.numpy()) for v in after.values()] == [bits(v.numpy()) for v in before.values()]


def test_a_transposed_value_comes_back(tmp_path: Path) -> None:
    v = dg.Variable(np.arange(6.0).reshape(2, 3).T, name="v")
    dg.save_checkpoint(tmp_path, [v])
    np.testing.assert_array_equal(dg.from_checkpoint(tmp_path, "v")(), v.numpy())


def test_step_and_metadata_come_back(tmp_path: Path) -> None:
    metadata = {"loss": np.float32(0.5), "best": {"step": np.int64(3)}, "tags": ["a", None, True]}
    dg.save_checkpoint(tmp_path, model(), step=12, metadata=metadata)
    found = dg.restore_checkpoint(tmp_path, model())
    assert found.step == 12
    assert found.metadata == {"loss": 0.5, "best": {"step": 3}, "tags": ["a", None, True]}


def test_other_programs_can_read_the_files(tmp_path: Path) -> None:
    (file,) = data_files(saved(tmp_path, 2.0))
    np.testing.assert_array_equal(load_file(file)["w"], np.full((2, 3), 2.0))


def test_a_part_of_the_variables_can_be_restored(tmp_path: Path) -> None:
    w = dg.Variable(np.zeros((2, 3)), name="w")
    dg.restore_checkpoint(saved(tmp_path), [w])
    assert w.numpy().all()


def test_no_variables_are_a_checkpoint_too(tmp_path: Path) -> None:
    dg.save_checkpoint(tmp_path, [], step=3)
    assert dg.restore_checkpoint(tmp_path, []).step == 3


def test_a_checkpoint_gives_initial_values(tmp_path: Path) -> None:
    v = dg.Variable(dg.from_checkpoint(saved(tmp_path, 4.0), "b"), name="b")
    assert bits(v.numpy()) == bits(np.full(3, 4.0, "f4"))


# -- large models ------------------------------------------------------------------------------------------------


def test_many_variables_go_into_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_files, "FILE_BYTES", 100)
    before = {str(i): dg.Variable(np.full(5 + 20 * (i == 3), float(i))) for i in range(7)}
    dg.save_checkpoint(tmp_path, before)
    after = {name: dg.Variable(np.zeros(v.shape)) for name, v in before.items()}
    dg.restore_checkpoint(tmp_path, after)
    assert [[*load_file(file)] for file in data_files(tmp_path)] == [["0", "1"], ["2"], ["3"], ["4", "5"], ["6"]]
    assert [v.numpy()[0] for v in after.values()] == [*range(7)]


class Counted(LocalHandle):
    """A handle that counts how many of the arrays it gave are alive."""

    __slots__ = ()
    alive = most = 0

    def value(self) -> Any:
        array = super().value().copy()
        Counted.count(1)
        weakref.finalize(array, Counted.count, -1)
        return array

    @classmethod
    def count(cls, by: int) -> None:
        cls.alive += by
        cls.most = max(cls.most, cls.alive)


def test_values_in_a_cluster_are_fetched_one_at_a_time(tmp_path: Path) -> None:
    variables = model(5.0)
    for v in variables.values():
        v._value = Counted(v.numpy())
    dg.save_checkpoint(tmp_path, variables)
    assert value_in(tmp_path) == 5.0
    assert Counted.most == 1


# -- what cannot be ----------------------------------------------------------------------------------------------


def test_two_variables_of_one_name_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two variables are named 'Variable'; rename one, or pass a mapping"):
        dg.save_checkpoint(tmp_path, [dg.Variable(1.0), dg.Variable(2.0)])


def test_one_variable_under_two_names_is_an_error(tmp_path: Path) -> None:
    v = dg.Variable(1.0)
    with pytest.raises(ValueError, match="is given under two names"):
        dg.save_checkpoint(tmp_path, {"a": v, "b": v})


@pytest.mark.parametrize("variables", [dg.Variable(1.0), [1.0], {"a": np.ones(2)}, {1: dg.Variable(1.0)}], ids=str)
def test_what_is_no_variable_is_a_type_error(variables: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="variables is a mapping"):
        dg.save_checkpoint(tmp_path, variables)


def test_a_dtype_that_files_cannot_have_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"variable 's' is .*, which safetensors files cannot store"):
        dg.save_checkpoint(tmp_path / "new", {"s": dg.Variable(np.array(["text"]))})
    assert not (tmp_path / "new").exists()


def test_metadata_that_json_cannot_keep_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"metadata must be JSON values.*a ndarray is not; save arrays as variables"):
        dg.save_checkpoint(tmp_path / "new", model(), metadata={"x": np.ones(2)})
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("step", [-1, 1.5, True])
def test_a_step_is_a_whole_number(step: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="step is a whole number, 0 or more"):
        dg.Checkpoints(tmp_path).save(step, model())


def test_checkpoints_are_not_written_while_a_graph_is_built(tmp_path: Path) -> None:
    with dg.Graph(), pytest.raises(RuntimeError, match="a graph is being built here: call it outside"):
        dg.save_checkpoint(tmp_path, model())


def test_another_shape_names_the_variable_the_file_and_both_types(tmp_path: Path) -> None:
    text = r"variable 'w' is f64\[3\], but '.*00001.safetensors' has f64\[2,3\] under this name"
    with pytest.raises(dg.CheckpointError, match=text):
        dg.restore_checkpoint(saved(tmp_path), {"w": dg.Variable(np.zeros(3))})


def test_another_dtype_names_both(tmp_path: Path) -> None:
    with pytest.raises(dg.CheckpointError, match=r"is i64\[3\], but .* has f32\[3\]"):
        dg.restore_checkpoint(saved(tmp_path), {"b": dg.Variable(np.zeros(3, int))})


def test_a_variable_that_the_checkpoint_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(dg.CheckpointError, match="has no variable 'v'; it has 'w', 'b'"):
        dg.restore_checkpoint(saved(tmp_path), {"v": dg.Variable(0.0)})


def test_no_checkpoint_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no complete checkpoint in"):
        dg.restore_checkpoint(tmp_path, model())


def test_the_directory_above_checkpoints_says_where_they_are(tmp_path: Path) -> None:
    dg.Checkpoints(tmp_path).save(3, model())
    with pytest.raises(FileNotFoundError, match=r"the newest one below it is '.*step-0000000003', or use Checkpoints"):
        dg.restore_checkpoint(tmp_path, model())


# -- a series ----------------------------------------------------------------------------------------------------


def test_the_newest_checkpoint_is_restored(tmp_path: Path) -> None:
    checkpoints, variables = dg.Checkpoints(tmp_path), model()
    for step in (1, 9, 10):
        checkpoints.save(step, model(step), loss=step / 2)
    found = checkpoints.restore(variables)
    assert found is not None
    assert (found.step, found.metadata, found.path) == (10, {"loss": 5.0}, dg.latest_checkpoint(tmp_path))
    assert variables["w"].numpy()[0, 0] == 10.0


def test_without_a_checkpoint_nothing_is_restored(tmp_path: Path) -> None:
    assert dg.Checkpoints(tmp_path / "none").restore(model()) is None


def test_the_last_few_are_kept(tmp_path: Path) -> None:
    checkpoints = dg.Checkpoints(tmp_path, keep=2)
    for step in range(5):
        checkpoints.save(step, model())
    assert checkpoints.steps() == [3, 4]
    assert sorted(os.listdir(tmp_path)) == ["step-0000000003", "step-0000000004"]


def test_all_are_kept_on_request(tmp_path: Path) -> None:
    checkpoints = dg.Checkpoints(tmp_path, keep=None)
    for step in range(5):
        checkpoints.save(step, model())
    assert checkpoints.steps() == [*range(5)]


def test_the_one_saved_last_is_kept_though_its_step_is_lower(tmp_path: Path) -> None:
    checkpoints = dg.Checkpoints(tmp_path, keep=1)
    for step in (8, 9, 2):
        checkpoints.save(step, model())
    assert checkpoints.steps() == [2, 9]


def test_what_a_dead_writer_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    checkpoints = dg.Checkpoints(tmp_path)
    checkpoints.save(1, model())
    (tmp_path / "step-0000000002" / "data-1").mkdir(parents=True)
    (tmp_path / "step-0000000001" / "data-2").mkdir()
    checkpoints.save(1, model(2.0))
    assert os.listdir(tmp_path) == ["step-0000000001"]
    assert len(list((tmp_path / "step-0000000001").glob("data-*"))) == 1


def test_what_a_living_writer_writes_is_left_alone(tmp_path: Path) -> None:
    checkpoints = dg.Checkpoints(tmp_path)
    with checkpoint_files.locked(checkpoints.path(2)):
        checkpoints.save(3, model())
        assert (tmp_path / "step-0000000002").exists()


def test_a_damaged_newest_checkpoint_is_an_error_that_names_the_one_before(tmp_path: Path) -> None:
    checkpoints = dg.Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, model())
    cut(data_files(tmp_path / "step-0000000002")[0])
    with pytest.raises(dg.CheckpointError, match="is damaged") as caught:
        checkpoints.restore(model())
    assert "step-0000000001" in caught.value.__notes__[0]
