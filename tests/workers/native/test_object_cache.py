"""Compiled code on disk: found again by the next process, never run when it is damaged or somebody else's."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from distgrad.workers import native

if native.unusable():
    pytest.skip(f"native code: {native.unusable()}", allow_module_level=True)

from distgrad.workers.native import llvm, object_cache
from distgrad.workers.native.compiled import CompiledGroup
from distgrad.workers.native.loops import NAME
from distgrad.workers.native.object_cache import cached, state

from .test_check import sound

TARGET = ("cpu", "+fma")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DISTGRAD_CACHE", str(tmp_path))
    object_cache._say.cache_clear()
    object_cache._make_room.cache_clear()
    return tmp_path / "native"


def compiler(code: bytes, calls: list[bytes]) -> bytes:
    calls.append(code)
    return code


def ask(text: str, calls: list[bytes], target: tuple[str, str] = TARGET) -> bytes:
    return cached(text, target, lambda: compiler(text.encode() * 10, calls))


def test_code_is_compiled_once(folder: Path) -> None:
    calls: list[bytes] = []
    assert ask("a", calls) == ask("a", calls) == b"a" * 10
    assert len(calls) == 1
    assert folder.stat().st_mode & 0o777 == 0o700


def test_other_code_another_cpu_and_another_generator_are_other_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bytes] = []
    ask("a", calls)
    ask("b", calls)
    ask("a", calls, ("other", "+fma"))
    ask("a", calls, ("cpu", "-fma"))
    monkeypatch.setattr(object_cache, "GENERATOR", -1)
    ask("a", calls)
    assert len(calls) == 5


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 60])
def test_a_damaged_entry_is_compiled_again_and_replaced(damage: bytes, folder: Path) -> None:
    calls: list[bytes] = []
    ask("a", calls)
    (entry,) = folder.iterdir()
    entry.write_bytes(damage)
    assert ask("a", calls) == ask("a", calls) == b"a" * 10
    assert len(calls) == 2


def test_a_flipped_bit_is_found(folder: Path) -> None:
    calls: list[bytes] = []
    ask("a", calls)
    (entry,) = folder.iterdir()
    content = bytearray(entry.read_bytes())
    content[-1] ^= 1
    entry.write_bytes(content)
    assert ask("a", calls) == b"a" * 10
    assert len(calls) == 2


def test_a_link_in_the_folder_is_not_followed(folder: Path, tmp_path: Path) -> None:
    calls: list[bytes] = []
    ask("a", calls)
    (entry,) = folder.iterdir()
    entry.rename(tmp_path / "elsewhere")
    entry.symlink_to(tmp_path / "elsewhere")
    ask("a", calls)
    assert len(calls) == 2


def refused(folder: Path, caplog: pytest.LogCaptureFixture, why: str) -> None:
    """Code is compiled as if there were no folder, and the log has one line on it."""
    calls: list[bytes] = []
    with caplog.at_level(logging.WARNING):
        assert ask("a", calls) == ask("a", calls) == b"a" * 10
    assert len(calls) == 2
    (said,) = caplog.messages
    assert "compiled code is not kept" in said
    assert str(folder) in said
    assert why in said


def test_a_folder_that_others_can_write_to_is_not_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.mkdir()
    folder.chmod(0o770)
    refused(folder, caplog, "others can write to it")


def test_a_folder_of_another_user_is_not_used(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    refused(folder, caplog, "it belongs to another user")


def test_a_link_in_place_of_the_folder_is_not_used(
    folder: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    refused(folder, caplog, "it is no folder")


def test_a_folder_that_cannot_be_made_is_done_without(
    folder: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DISTGRAD_CACHE", str(tmp_path / "file"))
    refused(tmp_path / "file" / "native", caplog, "it cannot be made")


def test_a_full_disk_costs_one_line(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(object_cache.tempfile, "mkstemp", full)
    refused(folder, caplog, "No space left on device")
    assert not list(folder.iterdir())


def test_the_oldest_entries_go_when_there_are_too_many(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bytes] = []
    for i in range(10):
        ask(f"{i:050}", calls)
    for i, path in enumerate(sorted(folder.iterdir())):
        os.utime(path, (i, i))
    young = sorted(folder.iterdir())[-1]
    monkeypatch.setattr(object_cache, "MAX_BYTES", 3000)
    object_cache._make_room.cache_clear()
    ask("one more", calls)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 3000
    assert young.exists()


def test_threads_that_compile_the_same_all_get_it(folder: Path) -> None:
    calls: list[bytes] = []
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: ask("a" * 1000, calls), range(50))) == {b"a" * 10_000}
    assert len(list(folder.iterdir())) == 1


PROGRAM = """
import numpy as np, distgrad as dg
from distgrad.workers.native import llvm
compiled = []
inner = llvm._compile
llvm._compile = lambda *args: compiled.append(1) or inner(*args)
made = dg.function(lambda x: np.tanh(x * 2 + 1))(np.linspace(0, 1, 10_000, dtype=np.float32))
print(len(compiled), made.tobytes()[:400].hex())
"""


def run_program() -> tuple[int, str]:
    made = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    count, bits = made.stdout.split()
    return int(count), bits


def test_the_next_process_compiles_nothing_and_has_the_same_bits() -> None:
    first, bits = run_program()
    assert first > 0
    assert run_program() == (0, bits)


def test_the_state_of_a_good_folder_is_empty(folder: Path) -> None:
    assert state() == (folder, "")


# -- code in memory ------------------------------------------------------------------------------------------------


def test_threads_that_ask_for_the_same_code_at_the_same_time_get_one_object() -> None:
    made: list[object] = []
    start = threading.Barrier(8)

    @llvm.once
    def make() -> object:
        made.append(object())
        time.sleep(0.01)  # so that the others ask meanwhile
        return made[-1]

    def ask_together(_: int) -> object:
        start.wait()
        return make()

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask_together, range(8))) == {made[0]}
    assert len(made) == 1


def test_machine_code_is_never_freed() -> None:
    """Functions are addresses: nothing in them keeps their code."""
    before = len(llvm._engines)
    address = CompiledGroup(sound()).address
    gc.collect()
    assert [engine.get_function_address(NAME) for engine in llvm._engines[before:]] == [address]
