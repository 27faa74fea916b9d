"""`distgrad plan`: what is planned, for which cluster, and what is printed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import distgrad as dg
from distgrad.cli import app
from distgrad.cli.plan import _argument

ROOT = Path(__file__).parent.parent.parent

MODEL = '''
import numpy as np
import distgrad as dg

print("said on import")

def loss(w, x):
    return dg.mean((x @ w) ** 2)

step = dg.data_parallel(dg.value_and_grad(loss), shards=4)
traced = dg.function(loss)

def plan():
    return step, (np.zeros((1024, 256)), np.zeros((16384, 1024)))

def of_a_plan():
    return step.plan(*plan()[1])

def of_a_function():
    return dg.function(lambda: dg.exp(dg.ones((3, 3))))

class models:
    nested = staticmethod(plan)

def power(x, n):
    return x**n

def default(x, n=2):
    return x**n

@dg.op("PlannedNotRun", infer=lambda x: [(x.shape, x.dtype)])
def forbidden(x):
    raise AssertionError("a kernel ran")

def with_forbidden():
    return dg.function(lambda x: forbidden(x)), (np.ones(3),)
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a user's model in it."""
    (tmp_path / "planned.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "planned", raising=False)
    monkeypatch.setenv("DISTGRAD_CACHE", str(tmp_path))
    return tmp_path


def run(*arguments: str) -> Result:
    made = CliRunner().invoke(app, ["plan", *arguments])
    sys.modules.pop("planned", None)
    dg.registry.OPS.pop("PlannedNotRun", None)
    return made


def planned(*arguments: str) -> str:
    made = run(*arguments)
    assert made.exit_code == 0, made.stderr
    return made.stdout


def plan_of(*arguments: str) -> Any:
    """The only plan of what --json prints."""
    (found,) = json.loads(planned(*arguments, "--json"))["distgrad"]["plans"]
    return found


# -- what is planned ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["planned.py:plan", "./planned.py:plan", "planned:plan", "planned:models.nested"])
def test_a_function_of_no_arguments_says_what_to_plan(target: str) -> None:
    text = planned(target)
    assert "steps on cluster 'local'" in text.splitlines()[0]
    assert "planned.py:8" in text


def test_the_plan_is_that_of_a_session() -> None:
    w, x = np.zeros((1024, 256)), np.zeros((16384, 1024))
    step = dg.data_parallel(dg.value_and_grad(lambda w, x: dg.mean((x @ w) ** 2)), shards=4)
    assert len(plan_of("planned.py:plan")["tasks"]) == len(step.plan(w, x).tasks)


def test_it_may_return_a_plan_or_a_function() -> None:
    assert planned("planned.py:of_a_plan").splitlines()[:4] == planned("planned.py:plan").splitlines()[:4]
    assert "1 task of" in planned("planned.py:of_a_function")


@pytest.mark.parametrize("function", ["loss", "traced"])
def test_types_of_arguments_come_with_spec(function: str) -> None:
    text = planned(f"planned.py:{function}", "--spec", "float32[64,8]", "--spec", "f32[4096,64]")
    assert "f32[4096,8]" in text


def test_a_number_is_part_of_the_signature() -> None:
    assert "Square" in planned("planned.py:power", "--spec", "f64[9]", "--spec", "2")


def test_what_has_a_default_need_not_be_given() -> None:
    assert "Square" in planned("planned.py:default", "--spec", "f64[9]")


def test_an_argument_by_its_type_takes_no_memory() -> None:
    assert _argument("float64[1000000,1000000]").strides == (0, 0)


def test_no_kernel_runs() -> None:
    assert "PlannedNotRun" in planned("planned.py:with_forbidden")


def test_what_reduces_has_the_line_of_the_function_that_was_named() -> None:
    *_, last = plan_of("planned.py:plan", "--workers", "4")["tasks"]
    assert (last["kind"], last["line"]) == ("reduce", "planned.py:13")


# -- for which cluster -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted((ROOT / "cluster-configs").glob("*.toml")), ids=lambda file: file.stem)
def test_every_cluster_file_can_be_planned_for(file: Path) -> None:
    assert f"on cluster '{file.stem}'" in planned("planned.py:plan", "--cluster", str(file))


def test_a_plan_for_ray_needs_no_ray() -> None:
    code = (
        "import atexit, sys; from distgrad.cli import app; atexit.register(lambda: print('ray' in sys.modules)); "
        "app(['plan', 'planned.py:plan', '--workers', '3'])"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "(ray: 3 workers, 3 cpus)" in made.stdout
    assert made.stdout.endswith("False\n")


def test_workers_are_the_first_of_a_cluster_file() -> None:
    file = ROOT / "cluster-configs" / "64-cpu-nodes.toml"
    assert "(ray: 3 workers, 24 cpus)" in planned("planned.py:plan", "--cluster", str(file), "--workers", "3")


def test_a_task_on_ray_has_one_cpu_unless_told_otherwise() -> None:
    assert {task["cpus"] for task in plan_of("planned.py:plan", "--workers", "2")["tasks"]} == {1}
    two = plan_of("planned.py:plan", "--workers", "2", "--cpus-per-task", "2")
    assert {task["cpus"] for task in two["tasks"]} == {2}


def test_a_plan_above_its_budget_fails_with_what_would_help() -> None:
    made = run("planned.py:plan", "--memory", "10 KiB")
    assert (made.exit_code, made.stdout, made.stderr.splitlines()[0]) == (1, "", "said on import")
    assert made.stderr.splitlines()[1].startswith("error: the run would need ")
    assert "f64[" in made.stderr


# -- what is printed ---------------------------------------------------------------------------------------------


def test_json_has_predictions_and_tasks_and_nothing_else_is_printed() -> None:
    made = plan_of("planned.py:plan", "--workers", "4")
    assert made["predictions"]["seconds"] > 0
    assert made["measured"] is None
    assert len(made["tasks"]) > 1


def test_html_is_the_page_of_the_plan(folder: Path) -> None:
    made = run("planned.py:plan", "--html", "plan.html")
    assert made.exit_code == 0, made.stderr
    assert "wrote the plan to plan.html" in made.stderr
    assert (folder / "plan.html").read_text(encoding="utf-8").lower().startswith("<!doctype html>")


def test_a_plan_without_tasks_has_no_page(folder: Path) -> None:
    (folder / "planned.py").write_text("import distgrad as dg\nf = dg.function(lambda x: x)\n")
    made = run("planned.py:f", "--spec", "float32[3]", "--html", "plan.html")
    assert made.exit_code == 2
    assert made.stderr.startswith("error: --html plan.html: the plan of ")
    assert "has no tasks to show" in made.stderr


def test_a_file_with_the_name_of_a_module_does_not_take_its_place(folder: Path) -> None:
    import queue

    (folder / "queue.py").write_text(MODEL)
    assert run("queue.py:plan").exit_code == 0
    assert sys.modules["queue"] is queue
