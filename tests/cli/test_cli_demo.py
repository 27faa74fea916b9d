"""`distgrad demo --local`: what it tells and writes; and its model. That on Ray is in tests/on_ray/test_demo.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import distgrad as dg
from distgrad.cli import demo_model
from distgrad.cli.demo import called


def demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "distgrad", "demo", "--local", "--steps", "2", *arguments]
    environment = {**os.environ, "DISTGRAD_CACHE": str(folder / "cache")}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=120)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Where a demo was run, and what it said."""
    folder = tmp_path_factory.mktemp("demo")
    made = demo(folder)
    assert made.returncode == 0, made.stderr
    assert made.stderr == "measuring this machine once, so that plans predict times for it ...\n"
    return folder, made.stdout


def test_it_tells_what_it_does_in_order(done: tuple[Path, str]) -> None:
    titles = [line for line in done[1].splitlines() if line and not line.startswith(" ")]
    assert titles == ["The model", "The plan, before anything runs", "In this process", "Training in this process",
                      "The report", "Next"]  # fmt: skip


def test_the_plan_is_told_in_a_few_lines_with_lines_of_the_model(done: tuple[Path, str]) -> None:
    plan = done[1].split("The plan, before anything runs\n")[1].split("\n\n")[0].splitlines()
    assert 4 <= len(plan) <= 8
    assert any("predicted" in line and "on one worker" in line for line in plan)
    assert any("model.py:" in line for line in plan)


def test_it_ends_with_three_commands_to_try(done: tuple[Path, str]) -> None:
    last = done[1].split("Next\n")[1].splitlines()
    called = [sys.executable, "-m", "distgrad"]  # as this one was
    assert [line.split()[:4] for line in last] == [[*called, name] for name in ("plan", "run", "doctor")]
    assert len({line.index(text) for line, text in zip(last, ("  the same", "  train", "  check"), strict=True)}) == 1


def test_it_writes_the_model_a_report_and_a_trace(done: tuple[Path, str]) -> None:
    folder = done[0] / "distgrad-demo"
    assert {file.name for file in folder.iterdir()} - {"__pycache__"} == {"model.py", "report.html", "trace.json"}
    assert (folder / "report.html").read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    (plan,) = json.loads((folder / "trace.json").read_text(encoding="utf-8"))["distgrad"]["plans"]
    assert plan["runs"]["count"] == 5  # three that are timed, two of training
    assert {task["line"].split(":")[0] for task in plan["tasks"]} == {"model.py"}


def test_the_folder_of_an_earlier_demo_is_written_again(done: tuple[Path, str], tmp_path: Path) -> None:
    made = demo(shutil.copytree(done[0], tmp_path / "copy"), "--steps", "1")
    assert made.returncode == 0, made.stderr


def test_a_model_that_was_changed_is_not_overwritten(done: tuple[Path, str], tmp_path: Path) -> None:
    changed = (done[0] / "distgrad-demo" / "model.py").read_text(encoding="utf-8") + "# mine\n"
    (tmp_path / "model.py").write_text(changed, encoding="utf-8")
    made = demo(tmp_path, "--output", str(tmp_path))
    assert (made.returncode, made.stdout) == (2, "")
    assert (tmp_path / "model.py").read_text(encoding="utf-8") == changed


def test_the_first_command_to_try_works(done: tuple[Path, str]) -> None:
    command = done[1].split("Next\n")[1].split("   ")[0].split()
    made = subprocess.run(command, capture_output=True, text=True, cwd=done[0], check=True, timeout=120)
    assert "(ray: 8 workers, 8 cpus)" in made.stdout


def test_commands_to_try_are_told_as_this_one_was_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "bin" / "distgrad"
    script.parent.mkdir()
    script.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(script), "demo"])
    monkeypatch.setenv("PATH", "")
    assert called() == str(script)
    monkeypatch.setenv("PATH", str(script.parent))
    assert called() == "distgrad"
    monkeypatch.setattr(sys, "argv", ["/where/distgrad/__main__.py", "demo"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "distgrad", "demo"])
    assert called() == "python -m distgrad"


# -- the model ---------------------------------------------------------------------------------------------------


def test_the_model_learns() -> None:
    rng = np.random.default_rng(0)
    _, losses = demo_model.train(demo_model.weights(rng), range(12), rng)
    assert losses[-1] < losses[0] - 1


def test_the_model_sees_no_byte_that_it_shall_predict() -> None:
    rng = np.random.default_rng(0)
    params, (tokens, _) = demo_model.weights(rng), demo_model.batch(rng)
    changed = tokens.copy()
    changed[:, -1] += 1
    before, after = (dg.function(demo_model.logits)(params, x) for x in (tokens, changed))
    np.testing.assert_array_equal(before[:, :-1], after[:, :-1])
    assert not np.array_equal(before[:, -1], after[:, -1])


def test_its_gradients_are_those_of_the_whole_batch() -> None:
    function, arguments = demo_model.plan()
    value, grads = function(*arguments)
    whole, all_grads = dg.value_and_grad(demo_model.loss)(*arguments)
    np.testing.assert_allclose(value, whole, rtol=1e-5)
    for name, g in grads.items():
        np.testing.assert_allclose(g, all_grads[name], atol=1e-5, rtol=1e-3)
