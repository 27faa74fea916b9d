"""Checkpoints when things go wrong: damage is found and named, writers and readers do not hurt each other, and whatever
happens to a writer, the last complete checkpoint stays."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import distgrad as dg
from distgrad.handles import LocalHandle
from distgrad.store import checkpoint_files
from distgrad.store.checkpoint_files import INDEX

from ..checkpointing import cut, data_files, model, saved, value_in

# -- damage ------------------------------------------------------------------------------------------------------


def flip(at: int) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[at] ^= 1
        file.write_bytes(content)

    return damage


def grow(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


def swap(file: Path) -> None:
    """The same tensors under each other's names."""
    file.write_bytes(file.read_bytes().replace(b'"w"', b'"x"'))


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "a bit of the data": flip(-1),
    "a bit of the header's length": flip(0),
    "a bit of the header": flip(20),
    "cut": cut,
    "grown": grow,
    "empty": lambda file: file.write_bytes(b""),
    "text": lambda file: file.write_text("not a tensor in sight, but long enough to look at"),
    "missing": Path.unlink,
    "renamed tensor": swap,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_tensor_file_is_one_error_that_names_it_and_leaves_the_variables(damage: str, tmp_path: Path) -> None:
    (file,) = data_files(saved(tmp_path))
    DAMAGE[damage](file)
    variables = model(9.0)
    with pytest.raises(dg.CheckpointError, match=str(file)):
        dg.restore_checkpoint(tmp_path, variables)
    assert all((v.numpy() == 9.0).all() for v in variables.values())


def changed(change: Callable[[Any], Any]) -> Callable[[Path], Any]:
    return lambda file: file.write_text(json.dumps(change(json.loads(file.read_text()))))


INDEX_DAMAGE: dict[str, Callable[[Path], Any]] = {
    "cut": cut,
    "empty": lambda file: file.write_bytes(b""),
    "no text": lambda file: file.write_bytes(b"\xff\xfe\0"),
    "a list": lambda file: file.write_text("[]"),
    "another step": changed(lambda made: made | {"content": made["content"] | {"step": 2}}),
    "no content": changed(lambda made: {"distgrad": 1}),
}


@pytest.mark.parametrize("damage", INDEX_DAMAGE)
def test_a_damaged_index_is_one_error_that_names_it(damage: str, tmp_path: Path) -> None:
    file = saved(tmp_path) / INDEX
    INDEX_DAMAGE[damage](file)
    with pytest.raises(dg.CheckpointError, match=f"{file}.* is damaged, or not the index of a checkpoint"):
        dg.restore_checkpoint(tmp_path, model())


def test_an_index_of_a_later_format_says_so(tmp_path: Path) -> None:
    changed(lambda made: made | {"distgrad": 99})(saved(tmp_path) / INDEX)
    with pytest.raises(dg.CheckpointError, match="has format 99, which this distgrad does not know"):
        dg.restore_checkpoint(tmp_path, model())


def test_a_damaged_index_makes_the_next_writer_remove_nothing_but_replace_it(tmp_path: Path) -> None:
    cut(saved(tmp_path) / INDEX)
    saved(tmp_path, 2.0)
    assert value_in(tmp_path) == 2.0


# -- several at once ---------------------------------------------------------------------------------------------


def test_writers_of_one_directory_leave_one_whole_checkpoint(tmp_path: Path) -> None:
    threads = [threading.Thread(target=saved, args=(tmp_path, value)) for value in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value_in(tmp_path) in range(1, 9)
    assert len(data_files(tmp_path)) == 1


def test_a_reader_beside_writers_sees_whole_checkpoints(tmp_path: Path) -> None:
    saved(tmp_path)
    thread = threading.Thread(target=lambda: [saved(tmp_path, value) for value in range(2, 20)])
    thread.start()
    seen = []
    while thread.is_alive():
        seen.append(value_in(tmp_path))
    thread.join()
    assert seen == sorted(seen)


def test_writers_of_one_series_do_not_remove_each_others_checkpoints(tmp_path: Path) -> None:
    def train(first: int) -> None:
        for step in range(first, 40, 4):
            dg.Checkpoints(tmp_path, keep=50).save(step, model(step))

    threads = [threading.Thread(target=train, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dg.Checkpoints(tmp_path).steps() == [*range(40)]


def test_removing_and_writing_the_same_checkpoint_leaves_it_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "step-0000000001"
    thread = threading.Thread(target=lambda: [saved(path, value) for value in range(1, 40)])
    thread.start()
    while thread.is_alive():
        checkpoint_files.remove(str(path), complete=True)
    thread.join()
    saved(path, 40.0)
    assert value_in(path) == 40.0


def test_a_restore_is_seen_whole_by_other_threads(tmp_path: Path) -> None:
    variables, sums = model(0.0), set()
    saved(tmp_path / "one", 1.0)
    saved(tmp_path / "two", 2.0)
    done = threading.Event()

    def switch() -> None:
        for k in range(100):
            dg.restore_checkpoint(tmp_path / ("one", "two")[k % 2], variables)
        done.set()

    thread = threading.Thread(target=switch)
    thread.start()
    while not done.is_set():
        dg.save_checkpoint(tmp_path / "seen", variables)
        sums.add(value_in(tmp_path / "seen"))  # an error if they differ
    thread.join()
    assert sums <= {0.0, 1.0, 2.0}


# -- crashes -----------------------------------------------------------------------------------------------------


class Dead(BaseException):
    """Instead of a call to the operating system, in a process that is no more."""


def run_until(call: int, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> bool:
    """Do work in a process that dies before its n-th call that changes the disk; whether it came to its end."""
    calls = 0

    def dying(f: Any) -> Any:
        def run(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > call:
                raise Dead
            return f(*args, **options)

        return run

    with monkeypatch.context() as patch:
        for name in ("mkdir", "replace", "fsync", "unlink", "rmdir"):
            patch.setattr(os, name, dying(getattr(os, name)))
        patch.setattr(shutil, "rmtree", dying(shutil.rmtree))
        try:
            work()
        except Dead:
            return False
    return True


def test_a_writer_that_dies_at_any_call_leaves_the_checkpoint_of_before_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = []
    for call in range(30):
        path = saved(tmp_path / str(call), 1.0)
        if run_until(call, monkeypatch, lambda path=path: saved(path, 2.0)):  # type: ignore[misc]
            break
        ends.append(value_in(path))
        saved(path, 3.0)
        assert value_in(path) == 3.0
        assert len(list(path.glob("data-*"))) == 1
    assert ends == sorted(ends)
    assert {*ends} == {1.0, 2.0}


def test_a_first_writer_that_dies_leaves_no_checkpoint_or_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for call in range(30):
        path = tmp_path / str(call)
        if run_until(call, monkeypatch, lambda path=path: saved(path, 2.0)):  # type: ignore[misc]
            break
        found.append(checkpoint_files.is_complete(str(path)) and value_in(path))
    assert {*found} == {False, 2.0}


def test_all_is_on_the_disk_before_the_index_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def note_sync(fd: int) -> None:
        done.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        sync(fd)

    def note_replace(a: str, b: str) -> None:
        done.append("replace")
        replace(a, b)

    if not Path("/proc/self/fd").exists():
        pytest.skip("asks the system for the names of open files")
    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    path = saved(tmp_path / "weights")
    (folder,) = path.glob("data-*")
    before = ["00001.safetensors", folder.name, "data-checkpoint.json", "weights"]
    assert done == [*before, "replace", "weights", tmp_path.name]


def test_an_error_while_a_value_is_fetched_leaves_the_checkpoint_of_before(tmp_path: Path) -> None:
    class Lost(LocalHandle):
        __slots__ = ()

        def value(self) -> Any:
            raise RuntimeError("the node is gone")

    saved(tmp_path, 1.0)
    variables = model(2.0)
    variables["b"]._value = Lost(variables["b"].numpy())
    with pytest.raises(RuntimeError, match="the node is gone"):
        dg.save_checkpoint(tmp_path, variables)
    assert value_in(tmp_path) == 1.0
    assert len(list(tmp_path.glob("data-*"))) == 1


PRELUDE = """
import os, random, signal, sys, time
import numpy as np
import distgrad as dg

path = sys.argv[1]

def model(value):
    return {str(i): dg.Variable(np.full(20_000, float(value))) for i in range(4)}

def value_in(path):
    found = model(0)
    step = dg.restore_checkpoint(path, found).step
    (value,) = {float(x) for v in found.values() for x in np.unique(v.numpy())}
    assert step == value, (step, value)
    return step
"""

KILLED = """
rng, last, series = random.Random(0), 1, 1
dg.save_checkpoint(path, model(1), step=1)
checkpoints = dg.Checkpoints(path + "-series", keep=2)
checkpoints.save(1, model(1))
for _ in range(20):
    child = os.fork()
    if child == 0:
        step = last
        while True:
            step += 1
            dg.save_checkpoint(path, model(step), step=step)
            checkpoints.save(step, model(step))
    time.sleep(rng.uniform(0.0, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert value_in(path) >= last
    last, before = value_in(path), series
    series = checkpoints.restore(model(0)).step
    assert last >= series == value_in(dg.latest_checkpoint(path + "-series")) >= before
dg.save_checkpoint(path, model(last), step=last)
print(last, len([name for name in os.listdir(path) if name.startswith("data-")]))
"""

FULL = """
import resource
dg.save_checkpoint(path, model(1), step=1)
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
try:
    dg.save_checkpoint(path, model(2), step=2)
except OSError as e:
    assert path in str(e) and "raise the limit, or choose another disk" in str(e), e
    print(e.strerror.partition(":")[0])
print(value_in(path), len([name for name in os.listdir(path) if name.startswith("data-")]))
"""


def in_process(code: str, tmp_path: Path) -> list[str]:
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # the process forks
    command = [sys.executable, "-c", PRELUDE + code, str(tmp_path / "weights")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_writer_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    last, folders = in_process(KILLED, tmp_path)
    assert int(last) > 1
    assert folders == "1"


def test_a_full_disk_is_an_error_and_leaves_the_checkpoint_of_before(tmp_path: Path) -> None:
    assert in_process(FULL, tmp_path) == ["File", "too", "large", "1", "1"]
