"""Calibration: what is measured, where it is kept, and that a file which is not ours is never believed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from distgrad.scheduler.cluster import Machine, check_machine, usable_cpus
from distgrad.workers.tools import calibrate
from distgrad.workers.tools.calibrate import cache_file, document, machine

#: A budget in which every rate is measured once or twice.
SHORT = 0.01


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DISTGRAD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def keep(found: Machine) -> Path:
    """A calibration that was made before."""
    path = cache_file()
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(document(found)))
    return path


def test_measuring_gives_rates_that_a_machine_can_have() -> None:
    said: list[str] = []
    measured = calibrate.measure(usable_cpus(), SHORT, said.append)
    check_machine(measured)
    assert measured.gemm_flops != Machine().gemm_flops
    assert "measuring memory and cache" in said


def test_threads_that_gain_nothing_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "_gained", lambda *args: 0.0)
    said: list[str] = []
    measured = calibrate.measure(2, SHORT, said.append)
    assert (measured.gemm_parallel, measured.spread_seconds) == (Machine().gemm_parallel, Machine().spread_seconds)
    assert "other programs keep the cpus busy" in said[-1]


def test_what_threads_gain_and_what_they_lose_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "_gained", lambda *args: 0.5)
    measured = calibrate.measure(2, SHORT)
    assert measured.gemm_parallel == 0.5
    assert measured.spread_seconds != Machine().spread_seconds


def test_what_was_measured_is_kept_and_not_measured_again() -> None:
    first = calibrate.calibrate(seconds=SHORT)
    said: list[str] = []
    assert (calibrate.calibrate(seconds=SHORT, progress=said.append), machine(), said) == (first, first, [])


def test_force_measures_again() -> None:
    keep(Machine(gemm_flops=1.0))
    assert calibrate.calibrate(seconds=SHORT).gemm_flops == 1.0
    made = calibrate.calibrate(force=True, seconds=SHORT)
    assert made.gemm_flops > 1e7  # no machine that runs this is slower
    assert machine() == made


def test_a_machine_that_was_never_measured_has_the_defaults(folder: Path) -> None:
    assert machine() == Machine()
    assert not folder.exists()


def test_nothing_else_is_left_in_the_folder(folder: Path) -> None:
    calibrate.calibrate(seconds=SHORT)
    assert [path.name for path in folder.iterdir()] == [cache_file().name]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Expecting property name"),
        ("[]", "from another version of distgrad, or from another machine"),
        ('{"format": 0}', "from another version of distgrad, or from another machine"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_file_that_cannot_be_read_is_ignored_with_a_warning(text: str, reason: str) -> None:
    keep(Machine()).write_text(text)
    with pytest.warns(RuntimeWarning, match=f"ignoring the calibration .*{reason}"):
        assert machine() == Machine()


@pytest.mark.parametrize("change", [{"gemm_flops": -1.0}, {"gemm_flops": "x"}, {"speed": 1.0}])
def test_rates_that_are_none_are_ignored_with_a_warning(change: dict[str, object]) -> None:
    data = document(Machine(elementwise=3.0))
    data["machine"] |= change
    keep(Machine()).write_text(json.dumps(data))
    with pytest.warns(RuntimeWarning, match="ignoring the calibration"):
        assert machine() == Machine()


def test_a_file_of_another_machine_is_ignored() -> None:
    data = document(Machine(elementwise=3.0))
    data["identity"]["processor"] = "abacus"
    keep(Machine()).write_text(json.dumps(data))
    with pytest.warns(RuntimeWarning, match="from another machine"):
        assert machine() == Machine()


def test_a_corrupt_file_is_made_again() -> None:
    keep(Machine()).write_text("{")
    with pytest.warns(RuntimeWarning, match="ignoring"):
        made = calibrate.calibrate(seconds=SHORT)
    assert machine() == made


def test_another_format_is_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(Machine(elementwise=3.0))
    monkeypatch.setattr(calibrate, "FORMAT", calibrate.FORMAT + 1)
    assert machine() == Machine()


def test_another_number_of_threads_is_another_file() -> None:
    assert cache_file(1) != cache_file(usable_cpus() + 1)


def test_rates_for_all_cpus_do_for_fewer_threads() -> None:
    keep(Machine(gemm_flops=1.0))
    assert machine(1).gemm_flops == 1.0


@pytest.mark.parametrize("threads", [0, -1, 10_000])
def test_threads_that_there_are_not_are_refused(threads: int) -> None:
    with pytest.raises(ValueError, match=f"threads is {threads}, but this process may use 1 to {usable_cpus()}"):
        calibrate.calibrate(threads)


def test_a_folder_that_cannot_be_written_is_told_before_measuring(folder: Path) -> None:
    folder.write_text("a file, not a folder")
    said: list[str] = []
    with pytest.raises(OSError, match=r"cannot be saved in .* Set DISTGRAD_CACHE to a writable folder"):
        calibrate.calibrate(progress=said.append)
    assert said == []


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"DISTGRAD_CACHE": "/a"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/distgrad"),
        ({"HOME": "/c"}, "/c/.cache/distgrad"),
        ({"DISTGRAD_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/d"}, "/d/.cache/distgrad"),
    ],
)
def test_the_folder_is_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name in ("DISTGRAD_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setitem(os.environ, name, value)
    assert calibrate.cache_folder() == Path(expected)
