"""`distgrad doctor`: what it looks at, what is a problem, and what it says to do."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from distgrad.cli import app
from distgrad.scheduler.cluster import Machine
from distgrad.workers import native
from distgrad.workers.on_ray import health
from distgrad.workers.tools import doctor
from distgrad.workers.tools.calibrate import cache_file, document
from distgrad.workers.tools.doctor import Finding

Patch = pytest.MonkeyPatch
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: Patch) -> None:
    """No cluster and no calibration but those of the test."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("DISTGRAD_CACHE", str(tmp_path))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments])


def only(found: Iterator[Finding]) -> Finding:
    (finding,) = found
    return finding


# -- the command -------------------------------------------------------------------------------------------------


def test_it_looks_at_everything_that_is_needed() -> None:
    made = run("--json")
    names = {finding["what"] for finding in json.loads(made.stdout)}
    assert names >= {"python", "distgrad", "numpy", "scipy", "cpus", "blas", "memory", "object store", "disk"}
    assert names >= {"native code", "gpus", "calibration", "open files", "terminal", "ray cluster"}


def test_json_says_of_each_what_was_found_and_what_to_do() -> None:
    for finding in json.loads(run("--json").stdout):
        assert list(finding) == ["what", "state", "found", "remedy"]
        assert finding["state"] in ("ok", "warning", "problem")
        assert finding["state"] == "ok" or finding["remedy"]


def _only(state: str, monkeypatch: Patch) -> Result:
    monkeypatch.setattr(doctor, "CHECKS", {"x": lambda: iter([Finding("x", state, "found", "Do this.")])})
    return run()


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("warning", 0), ("problem", 1)])
def test_the_exit_code_tells_of_problems_alone(state: str, code: int, monkeypatch: Patch) -> None:
    assert _only(state, monkeypatch).exit_code == code


def test_each_problem_is_told_with_its_remedy_and_counted(monkeypatch: Patch) -> None:
    text = _only("problem", monkeypatch).stdout
    assert "problem  x                found\n          → Do this.\n" in text
    assert text.endswith("\n1 problem\n")


def test_a_check_that_fails_to_look_does_not_end_the_others(monkeypatch: Patch) -> None:
    def fails() -> Iterator[Finding]:
        raise OSError("no permission")
        yield

    monkeypatch.setattr(doctor, "CHECKS", {"broken": fails, "cpus": doctor.cpus})
    first, second = doctor.findings()
    assert first[:3] == ("broken", "warning", "could not be checked: OSError: no permission")
    assert second.what == "cpus"


def test_without_a_cluster_it_takes_at_most_5_seconds_of_work() -> None:
    began = time.process_time()
    run()
    assert time.process_time() - began < 5


# -- software ----------------------------------------------------------------------------------------------------


def _required(line: str, monkeypatch: Patch) -> Finding:
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: [line, "pytest; extra == 'test'"])
    return list(doctor.versions())[-1]


def test_a_package_that_is_missing_is_a_problem(monkeypatch: Patch) -> None:
    found = _required("a-package-that-is-not-there>=2", monkeypatch)
    assert found == ("a-package-that-is-not-there", "problem", "not installed",
                     "pip install 'a-package-that-is-not-there>=2'")  # fmt: skip


def test_a_package_that_is_too_old_is_a_problem(monkeypatch: Patch) -> None:
    found = _required("numpy>=99.1", monkeypatch)
    assert (found.what, found.state, found.remedy) == ("numpy", "problem", "pip install 'numpy>=99.1'")
    assert found.found.endswith("but distgrad needs 99.1")


def test_a_package_that_is_new_enough_is_fine(monkeypatch: Patch) -> None:
    assert _required("numpy>=2.1", monkeypatch).state == "ok"


def test_the_blas_is_named_with_its_threads() -> None:
    assert only(doctor.blas()).found.split()[0] in ("openblas", "mkl", "blis", "flexiblas")


# -- hardware ----------------------------------------------------------------------------------------------------


def test_cpus_that_a_container_hides_are_told(monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor, "usable_cpus", lambda: 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert only(doctor.cpus()).found == "2 of 64: taskset or the container allows no more"


def test_shared_memory_that_is_too_small_is_a_warning_with_the_size_to_ask_for(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(doctor, "usable_memory", lambda: 10 * 10**9)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: Usage(64 << 20, 0, 64 << 20))
    found = only(doctor.object_store(str(tmp_path)))
    assert found.state == "warning"
    assert "--shm-size=3001m" in found.remedy


def test_a_disk_that_is_full_is_a_warning(monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: Usage(100, 96, 4))
    assert only(doctor.disk()).state == "warning"


def test_memory_that_is_nearly_used_up_is_a_warning(monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor, "_free_memory", lambda: 1 << 20)
    assert only(doctor.memory()).state == "warning"


def _with_gpus(tmp_path: Path, monkeypatch: Patch, script: str, torch: Any = None) -> Finding:
    """What is found where nvidia-smi is this script, and torch this object."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setitem(sys.modules, "torch", torch)
    return only(doctor.gpus())


LISTED = "echo 'GPU 0: Some GPU (UUID: GPU-1234)'"


def _torch(sees: bool) -> Any:
    return SimpleNamespace(__version__="2.9", cuda=SimpleNamespace(is_available=lambda: sees))


@pytest.mark.parametrize(
    ("script", "torch", "state", "text"),
    [
        (LISTED, None, "warning", "GPU 0: Some GPU; torch is not installed"),
        (LISTED, _torch(True), "ok", "GPU 0: Some GPU; torch 2.9"),
        (LISTED, _torch(False), "problem", "GPU 0: Some GPU; torch 2.9 cannot use them"),
        ("echo 'no driver'; exit 9", None, "warning", "nvidia-smi finds none, and says: no driver"),
    ],
    ids=["no torch", "torch", "a torch without CUDA", "no driver"],
)
def test_gpus_need_a_driver_and_a_torch_that_sees_them(
    script: str, torch: Any, state: str, text: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    assert _with_gpus(tmp_path, monkeypatch, script, torch)[1:3] == (state, text)


# -- settings ----------------------------------------------------------------------------------------------------


def test_a_machine_that_was_not_calibrated_is_a_warning() -> None:
    found = only(doctor.calibration())
    assert (found.state, "distgrad calibrate" in found.remedy) == ("warning", True)


@pytest.mark.parametrize(
    ("days", "state", "text"), [(0, "ok", "of today"), (9, "ok", "9 days old"), (400, "warning", "400 days old")]
)
def test_a_calibration_is_told_with_its_age(days: int, state: str, text: str) -> None:
    cache_file().write_text(json.dumps(document(Machine())))
    os.utime(cache_file(), (0, time.time() - days * 86400 - 60))
    found = only(doctor.calibration())
    assert found.state == state
    assert text in found.found


def test_a_calibration_that_cannot_be_read_is_a_warning() -> None:
    cache_file().write_text("{")
    found = only(doctor.calibration())
    assert found.state == "warning"
    assert "ignoring the calibration" in found.found


# -- Ray ---------------------------------------------------------------------------------------------------------


def test_no_cluster_is_no_problem() -> None:
    assert only(health.findings(None))[1:3] == ("ok", "none is running: a session on Ray starts one")


def test_a_cluster_that_was_started_here_once_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    found = only(health.findings(None))
    assert found[1:3] == ("ok", "none is running at 127.0.0.1:1 any more: a session on Ray starts one")


def test_a_wrong_ray_address_in_the_environment_is_a_problem(monkeypatch: Patch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    found = only(health.findings(None))
    assert (found.state, found.remedy) == ("problem", "Correct or unset RAY_ADDRESS.")


HERE = {"python": "3.12.1", "distgrad": "0.1.0", "numpy": "2.4.0"}


def _node(**other: str | None) -> dict[str, Any]:
    return {"address": "10.0.0.7", "cpus": 4, "gpus": 0, "memory": 1 << 30, "versions": HERE | other}


def _nodes(*nodes: dict[str, Any]) -> Callable[[str], dict[str, Any]]:
    return lambda _: {"nodes": list(nodes), "store": 1 << 30, "here": HERE}


@pytest.mark.parametrize(
    ("other", "state"), [({"distgrad": None}, "problem"), ({"distgrad": "9"}, "problem"), ({"numpy": "2.1"}, "warning")]
)
def test_a_node_with_other_versions_is_named(other: dict[str, Any], state: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(health, "_asked", _nodes(_node(), _node(**other)))
    first, second = health.findings("10.0.0.1:6379")
    assert first.found == "at 10.0.0.1:6379: 2 nodes, 8 cpus, 0 GPUs, 2.0 GiB for tasks, 1.0 GiB for objects"
    assert second.state == state
    assert second.found.startswith("10.0.0.7 has ")


def test_a_node_that_does_not_answer_is_a_warning(monkeypatch: Patch) -> None:
    silent = _node()
    del silent["versions"]
    monkeypatch.setattr(health, "_asked", _nodes(silent))
    assert [finding.state for finding in health.findings("10.0.0.1:6379")] == ["ok", "warning"]


def test_a_token_that_others_can_read_is_a_problem(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    file = tmp_path / "token"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(file))
    assert [x.state for x in doctor.token()] == ["ok"]
    file.write_text("a" * 64)
    file.chmod(0o644)
    [found] = doctor.token()
    assert (found.state, f"`chmod 600 {file}`" in found.found) == ("problem", True)
    file.chmod(0o600)
    assert [x.state for x in doctor.token()] == ["ok"]


# -- native code -------------------------------------------------------------------------------------------------


def test_it_names_the_cpu_the_width_of_vectors_and_the_folder_of_compiled_code(tmp_path: Path) -> None:
    if native.turned_off():
        pytest.skip(native.turned_off())
    finding = only(doctor.native_code())
    assert finding.state == "ok"
    assert "llvmlite" in finding.found
    assert "bits; compiled code is kept in" in finding.found
    assert str(tmp_path / "native") in finding.found


def test_a_folder_that_others_can_write_to_is_named_with_the_remedy(tmp_path: Path) -> None:
    if native.turned_off():
        pytest.skip(native.turned_off())
    (tmp_path / "native").mkdir()
    (tmp_path / "native").chmod(0o777)
    finding = only(doctor.native_code())
    assert finding.state == "warning"
    assert "others can write to it" in finding.found
    assert "DISTGRAD_CACHE" in finding.remedy


@pytest.mark.parametrize("why", doctor._NATIVE_REMEDIES)
def test_native_code_that_is_off_is_a_warning_with_a_remedy(why: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(native, "turned_off", lambda: why)
    finding = only(doctor.native_code())
    assert finding.state == "warning"
    assert why in finding.found
    assert finding.remedy
