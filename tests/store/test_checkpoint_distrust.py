"""Checkpoints that somebody else wrote, or could have: whatever lies in the folder, restoring gives what was saved or a
CheckpointError. And saving loses nothing: what was written is read back before the checkpoint of before goes."""

from __future__ import annotations

import copy
import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.store import checkpoint_files
from distgrad.store.checkpoint_files import INDEX, LOCK
from distgrad.store.checkpoint_index import content_digest, inside

from ..checkpointing import data_files, model, saved, value_in

# -- what cannot be restored is not saved ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["w\ud800", "\udfff", "__metadata__"])
def test_a_name_that_files_cannot_have_is_refused_and_the_good_checkpoint_stays(name: str, tmp_path: Path) -> None:
    checkpoints = dg.Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, model(1.0))
    with pytest.raises(ValueError, match="choose another name"):
        checkpoints.save(2, {name: dg.Variable(2.0)})
    assert checkpoints.steps() == [1]
    assert value_in(Path(checkpoints.path(1))) == 1.0


@pytest.mark.parametrize("name", ["", "\0", "ü/ß", "\U0001f600", "a\n", '"', "\\", "../w", "\uffff"])
def test_every_other_name_comes_back(name: str, tmp_path: Path) -> None:
    dg.save_checkpoint(tmp_path, {name: dg.Variable([1.0, 2.0])})
    v = dg.Variable([0.0, 0.0])
    dg.restore_checkpoint(tmp_path, {name: v})
    assert v.numpy().tolist() == [1.0, 2.0]


def damage_after_writing(monkeypatch: pytest.MonkeyPatch, damage: Callable[[str], None]) -> None:
    write = checkpoint_files.write_tensors

    def damaged(path: str, *args: Any) -> dict[str, str]:
        digests = write(path, *args)
        damage(path)
        return digests

    monkeypatch.setattr(checkpoint_files, "write_tensors", damaged)


def flip_the_last_byte(path: str) -> None:
    file = Path(path)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [flip_the_last_byte, os.unlink, lambda path: os.truncate(path, 30)])
def test_what_was_written_is_read_back_before_the_old_one_goes(
    damage: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = dg.Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, model(1.0))
    damage_after_writing(monkeypatch, damage)
    with pytest.raises(dg.CheckpointError):
        checkpoints.save(2, model(2.0))
    with pytest.raises(dg.CheckpointError):
        dg.save_checkpoint(checkpoints.path(1), model(3.0))
    assert checkpoints.steps() == [1]
    assert value_in(Path(checkpoints.path(1))) == 1.0


@pytest.mark.parametrize("step", [-1, 1 << 63, pytest.param(10**5000, id="long"), True, 1.0, float("nan"), "1", None])
def test_a_step_that_an_index_cannot_have_is_refused(step: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="step is a whole number"):
        dg.Checkpoints(tmp_path).save(step, model())


def test_metadata_that_are_nested_too_deeply_are_refused(tmp_path: Path) -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TypeError, match="metadata must be JSON values"):
        dg.save_checkpoint(tmp_path, model(), metadata={"deep": deep})


@pytest.mark.parametrize("path", [3, None, b"x", "", "a\0b", "a\ud800"])
def test_a_path_that_is_none_is_named(path: Any) -> None:
    for call in (dg.Checkpoints, dg.latest_checkpoint, lambda p: dg.from_checkpoint(p, "w")):
        with pytest.raises((TypeError, ValueError), match="path"):
            call(path)
    with pytest.raises((TypeError, ValueError), match=r"save_checkpoint: .*path"):
        dg.save_checkpoint(path, model())


# -- an index with a digest that fits ----------------------------------------------------------------------------


def forge(folder: Path, change: Callable[[Any], Any]) -> None:
    """Change the content of an index, and give it the digest that it then has."""
    made = json.loads((folder / INDEX).read_text())
    content = change(made["content"])
    (folder / INDEX).write_text(json.dumps(made | {"content": content, "sha256": content_digest(content)}))


def of_w(**fields: Any) -> Callable[[Any], Any]:
    def change(content: Any) -> Any:
        content["tensors"]["w"] |= fields
        return content

    return change


def without(field: str, part: Callable[[Any], Any] = lambda content: content) -> Callable[[Any], Any]:
    def change(content: Any) -> Any:
        del part(content)[field]
        return content

    return change


PATHS = [
    "/etc/hostname", "../outside.safetensors", "data-1/../../outside.safetensors", "./w", "a//b", "", ".", "..", "a/",
    "C:\\w", "c:w", "a\\..\\w", "\\\\host\\share", "a\0b", "~/w", "a\ud800", "file:///w", "a" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("file", PATHS)
def test_a_path_that_leads_outside_the_folder_is_refused(file: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "weights")
    (tmp_path / "outside.safetensors").write_bytes(data_files(folder)[0].read_bytes())
    forge(folder, of_w(file=file))
    assert not inside(file)
    with pytest.raises(dg.CheckpointError, match="not a plain path inside the checkpoint's folder"):
        dg.restore_checkpoint(folder, model())


def test_an_absolute_path_to_a_good_file_is_refused_too(tmp_path: Path) -> None:
    (file,) = data_files(saved(tmp_path))
    forge(tmp_path, of_w(file=str(file)))
    with pytest.raises(dg.CheckpointError, match="not a plain path inside"):
        dg.restore_checkpoint(tmp_path, model())


FORGED: dict[str, Callable[[Any], Any]] = {
    **{f"no {field}": without(field) for field in ("step", "metadata", "tensors")},
    **{f"no {key} of w": without(key, lambda c: c["tensors"]["w"]) for key in ("file", "shape", "dtype", "sha256")},
    **{f"step {step!r}": lambda c, step=step: c | {"step": step} for step in (-1, 1 << 70, True, 1.5, "1", [], {})},
    "a step that is no number": lambda c: c | {"step": float("nan")},
    "metadata that are a list": lambda c: c | {"metadata": []},
    "tensors that are a list": lambda c: c | {"tensors": [*c["tensors"]]},
    "an entry that is a string": lambda c: c | {"tensors": {"w": "w"}},
    "a file that is a number": of_w(file=3),
    "a shape that is a number": of_w(shape=3),
    "a negative shape": of_w(shape=[-2, -3]),
    "a shape of booleans": of_w(shape=[True, 6]),
    "a huge shape": of_w(shape=[1 << 40, 1 << 40]),
    "many dimensions": of_w(shape=[1] * 1000),
    "a structured dtype": of_w(dtype="f4,f4"),
    "a dtype of objects": of_w(dtype="object"),
    "a dtype that is a list": of_w(dtype=["f4"]),
    "a digest that is none": of_w(sha256="0"),
    "a digest that is a number": of_w(sha256=0),
    "no content": lambda c: None,
    "a list as content": lambda c: [c],
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_index_is_a_checkpoint_error_that_names_it(what: str, tmp_path: Path) -> None:
    forge(saved(tmp_path), FORGED[what])
    with pytest.raises(dg.CheckpointError, match=f"{tmp_path / INDEX}.* is damaged"):
        dg.restore_checkpoint(tmp_path, model())
    with pytest.raises(dg.CheckpointError):
        dg.Variable(dg.from_checkpoint(tmp_path, "w"))


TEXTS: dict[str, bytes] = {
    "deep lists": b'{"distgrad": 1, "sha256": "", "content": ' + b"[" * 200_000,
    "deep and closed": b'{"distgrad": 1, "sha256": "", "content": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep mappings": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a long number": b'{"distgrad": ' + b"9" * 10_000 + b"}",
    "a key twice": b'{"distgrad": 1, "distgrad": 1, "sha256": "", "content": {}}',
    "a format that is true": b'{"distgrad": true, "sha256": "", "content": {}}',
    "Latin-1": b'{"distgrad": 1, "\xe9": 2}',
    "UTF-16": '{"distgrad": 1}'.encode("utf-16"),
    "NaN": b"NaN",
    "null": b"null",
    "a string": b'"distgrad"',
    "bytes of zero": bytes(4096),
}


@pytest.mark.parametrize("what", TEXTS)
def test_a_text_that_is_no_index_is_a_checkpoint_error(what: str, tmp_path: Path) -> None:
    (saved(tmp_path) / INDEX).write_bytes(TEXTS[what])
    with pytest.raises(dg.CheckpointError, match=str(tmp_path / INDEX)):
        dg.restore_checkpoint(tmp_path, model())


def test_an_index_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    os.truncate(saved(tmp_path) / INDEX, 1 << 40)  # a file with a hole: it takes no room
    with pytest.raises(dg.CheckpointError, match="not the index of a checkpoint"):
        dg.restore_checkpoint(tmp_path, model())


# -- mutations ---------------------------------------------------------------------------------------------------

JUNK: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 1 << 31, 1 << 63, 1 << 64, 1.5, 1e308, float("nan"), float("inf"), "", "w", "b",
    "F64", "F8_E4M3", "C64", "float64", "f8", "\ud800", "\0", "../x", "/", [], [0], [2, 3], [3, 2], [-1], [[]], {},
    {"a": 1}, "0" * 64,
]  # fmt: skip


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in nested lists and mappings."""
    yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def mutated(rng: random.Random, tree: Any) -> Any:
    """A copy with one thing in it removed, replaced, renamed, or exchanged with another."""
    tree = {"": copy.deepcopy(tree)}
    *before, last = rng.choice([*places(tree)][1:])
    holder = tree
    for key in before:
        holder = holder[key]
    kind = rng.randrange(4)
    if kind == 0 and holder is not tree:
        del holder[last]
    elif kind == 1 and isinstance(holder, dict) and holder is not tree:
        holder[rng.choice(["", "x", "w", "b", "__metadata__", "\ud800"])] = holder.pop(last)
    elif kind == 2 and isinstance(holder, dict):
        other = rng.choice([*holder])
        holder[last], holder[other] = holder[other], holder[last]
    else:
        holder[last] = rng.choice(JUNK)
    return tree[""]


def outcome(folder: Path) -> str:
    """What restoring gives: the values that were saved, or a CheckpointError; anything else is raised."""
    variables = model(9.0)
    try:
        dg.restore_checkpoint(folder, variables)
    except dg.CheckpointError as e:
        text, value = str(e), 9.0
    else:
        text, value = "", 1.0
    assert all((v.numpy() == value).all() for v in variables.values())
    assert not text or str(folder) in text
    return "refused" if text else "right"


def test_mutations_of_an_index_are_refused_or_harmless(tmp_path: Path) -> None:
    rng = random.Random(1)
    index = saved(tmp_path) / INDEX
    good = index.read_text()
    outcomes = []
    for _ in range(400):
        index.write_text(good)
        forge(tmp_path, lambda content: mutated(rng, content))
        outcomes.append(outcome(tmp_path))
    assert outcomes.count("refused") > 200
    assert "right" in outcomes  # another step, or metadata


def with_header(content: bytes, change: Callable[[Any], Any]) -> bytes:
    (length,) = struct.unpack("<Q", content[:8])
    text = json.dumps(change(json.loads(content[8 : 8 + length]))).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def test_mutations_of_a_tensor_file_are_refused_or_harmless(tmp_path: Path) -> None:
    rng = random.Random(2)
    (file,) = data_files(saved(tmp_path))
    good = file.read_bytes()
    outcomes = []
    for _ in range(400):
        content = bytearray(with_header(good, lambda header: mutated(rng, header)) if rng.random() < 0.6 else good)
        if rng.random() < 0.5:
            content[rng.randrange(len(content))] = rng.randrange(256)
        if rng.random() < 0.2:
            content = content[: rng.randrange(len(content))]
        file.write_bytes(content)
        outcomes.append(outcome(tmp_path))
    assert outcomes.count("refused") > 200


HEADERS: dict[str, bytes] = {
    "a header without end": struct.pack("<Q", 1 << 63) + b"{}",
    "a huge header": struct.pack("<Q", 100_000_001) + b"{}",
    "a header beyond the file": struct.pack("<Q", 1000) + b"{}",
    "a deep header": struct.pack("<Q", 200_000) + b"[" * 200_000,
    "a deep note": with_header(
        struct.pack("<Q", 2) + b"{}", lambda _: {"__metadata__": {"distgrad.complex": "[" * 100_000}}
    ),
    "a note that is no list": with_header(
        struct.pack("<Q", 2) + b"{}", lambda _: {"__metadata__": {"distgrad.complex": "7"}}
    ),
}


@pytest.mark.parametrize("what", HEADERS)
def test_a_tensor_file_whose_header_lies_is_a_checkpoint_error(what: str, tmp_path: Path) -> None:
    (file,) = data_files(saved(tmp_path))
    file.write_bytes(HEADERS[what])
    assert outcome(tmp_path) == "refused"
    with pytest.raises(dg.CheckpointError):
        dg.load_tensor(file, "w")


# -- links and other things that are no plain files --------------------------------------------------------------


def moved(path: Path) -> Path:
    """Put something elsewhere, and a link to it in its place."""
    away = path.parent.parent / f"away-{path.name}"
    path.rename(away)
    path.symlink_to(away, target_is_directory=away.is_dir())
    return away


@pytest.mark.parametrize("what", ["index", "folder", "file"])
def test_a_link_in_the_folder_is_not_followed_to_read(what: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "weights")
    (file,) = data_files(folder)
    moved({"index": folder / INDEX, "folder": file.parent, "file": file}[what])
    with pytest.raises(dg.CheckpointError, match="a link, which is not followed"):
        dg.restore_checkpoint(folder, model())


@pytest.mark.parametrize("name", [INDEX, LOCK, "data-checkpoint.json", "data-0"])
def test_a_link_in_the_folder_is_not_followed_to_write(name: str, tmp_path: Path) -> None:
    folder, victim = tmp_path / "weights", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("mine")
    (folder / name).symlink_to(victim)
    if name == LOCK:
        with pytest.raises(dg.CheckpointError, match="a link, which is not followed"):
            saved(folder)
    else:
        assert value_in(saved(folder)) == 1.0
    assert victim.read_text() == "mine"


def test_a_link_to_a_folder_is_removed_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    folder, victim = tmp_path / "weights", tmp_path / "victim"
    folder.mkdir()
    victim.mkdir()
    (victim / "mine").write_text("mine")
    (folder / "data-0").symlink_to(victim)
    saved(folder)
    assert not (folder / "data-0").is_symlink()
    assert (victim / "mine").read_text() == "mine"


def test_a_step_that_is_a_link_is_no_checkpoint_of_the_series(tmp_path: Path) -> None:
    elsewhere, checkpoints = saved(tmp_path / "elsewhere", 7.0), dg.Checkpoints(tmp_path / "series", keep=1)
    checkpoints.save(1, model(1.0))
    Path(checkpoints.path(2)).symlink_to(elsewhere)
    assert checkpoints.steps() == [1]
    found = checkpoints.restore(model())
    assert found is not None
    assert found.step == 1
    with pytest.raises(dg.CheckpointError, match="is a link, which is not followed"):
        checkpoints.save(2, model(2.0))
    checkpoints.save(3, model(3.0))
    assert value_in(elsewhere) == 7.0


def test_the_folder_itself_may_be_reached_by_a_link(tmp_path: Path) -> None:
    folder = saved(tmp_path / "weights")
    (tmp_path / "latest").symlink_to(folder)
    assert value_in(tmp_path / "latest") == 1.0


def test_a_hard_link_is_the_file_itself_and_is_not_written_to(tmp_path: Path) -> None:
    folder = saved(tmp_path / "weights")
    kept = tmp_path / "kept"
    (kept / data_files(folder)[0].parent.name).mkdir(parents=True)
    for file in (folder / INDEX, *data_files(folder)):
        os.link(file, kept / file.relative_to(folder))
    saved(folder, 2.0)
    assert (value_in(folder), value_in(kept)) == (2.0, 1.0)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("what", ["index", "file"])
def test_a_pipe_is_refused_not_waited_for(what: str, tmp_path: Path) -> None:
    (file,) = data_files(saved(tmp_path))
    target = tmp_path / INDEX if what == "index" else file
    target.unlink()
    os.mkfifo(target)
    with pytest.raises(dg.CheckpointError, match="a plain file is expected"):
        dg.restore_checkpoint(tmp_path, model())
    with pytest.raises(dg.CheckpointError, match="pipe or a device"):
        dg.load_tensor(target, "w")


@pytest.mark.parametrize("name", ["step-0000000009", "step-00000000007", "step-٠٠٠٠٠٠٠٠٠٩", "step-" + "9" * 30])
def test_other_things_in_the_folder_of_a_series_do_not_matter(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("a file")
    checkpoints = dg.Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, model(1.0))
    assert checkpoints.steps() == [1]
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    checkpoints.save(2, model(2.0))
    assert checkpoints.steps() == [2]


# -- full disks, and what may not be written ---------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root may mount a small file system here")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="tmpfs")
def test_a_full_disk_names_path_and_remedy_and_the_checkpoint_of_before_is_restored(small_disk: Path) -> None:
    checkpoints = dg.Checkpoints(small_disk / "series", keep=1)
    checkpoints.save(1, model(1.0))
    large = {"w": dg.Variable(np.zeros(50_000))}
    with pytest.raises(OSError, match=f"No space left.*not saved.*free some space.*{small_disk}"):
        checkpoints.save(2, large)
    assert value_in(Path(checkpoints.path(1))) == 1.0
    (small_disk / "fill").write_bytes(bytes(sum(1 for _ in range(180_000))))
    checkpoints.save(3, model(3.0))  # what the failed one had written is gone
    assert checkpoints.steps() == [3]


NOBODY = """
import os, sys, distgrad as dg
from distgrad.errors import CheckpointError
w = dg.Variable([1.0], name="w")
dg.save_checkpoint(sys.argv[1], [w])
if os.geteuid() == 0:
    import fcntl, json, safetensors  # what is imported late must be here before rights are given up
    dg.restore_checkpoint(sys.argv[1], [w])
    dg.load_tensor(sys.argv[2], "w")
    os.seteuid(65534)
for call in (
    lambda: dg.save_checkpoint(sys.argv[1], [w]),
    lambda: dg.Checkpoints(os.path.dirname(sys.argv[1]) + "/new").save(1, [w]),
    lambda: dg.load_tensor(sys.argv[2], "w"),
):
    try:
        call()
        print("no error")
    except PermissionError as e:
        print(e)
"""


def test_without_permission_the_error_names_path_and_remedy(tmp_path: Path) -> None:
    folder, other = tmp_path / "weights", saved(tmp_path / "other")
    (file,) = data_files(other)
    folder.mkdir()
    tmp_path.chmod(0o755)
    code = NOBODY.replace("if os.geteuid", f"os.chmod({str(file)!r}, 0o600)\nif os.geteuid")
    if os.geteuid():
        code = code.replace("for call", f"os.chmod({str(file)!r}, 0); os.chmod(sys.argv[1], 0o500)\nfor call")
    command = [sys.executable, "-c", code, str(folder), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done
    assert all("choose a path that this user may use" in line for line in lines), lines
    assert [str(path) in line for path, line in zip((folder, tmp_path, file), lines, strict=True)] == [True] * 3, lines


def test_a_path_below_a_file_names_path_and_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "weights"):
        with pytest.raises(OSError, match=f"choose another path: '{tmp_path}"):
            dg.save_checkpoint(path, model())
