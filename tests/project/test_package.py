"""What a user gets from the package itself: a light import, one API, examples that run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgrad as dg

ROOT = Path(__file__).parents[2]

#: The public names that the documentation promises.
API = [
    "AggregationMethod", "BudgetError", "CheckpointError", "Checkpoints", "ClusterLost", "Defun", "DeviceError",
    "FingerprintError", "Graph", "Handle", "IndexedSlices", "NoGradient", "NotDifferentiable", "NumericsError",
    "Operation", "Plan", "RegisterGradient", "Session", "StoreFull", "TaskFailed", "Tensor",
    "UnconnectedGradients", "Variable", "add_n", "cast", "check_graph", "constant", "control_dependencies",
    "custom_gradient", "data_parallel", "device",
    "explain_gradient", "function", "grad", "grad_pass_through", "gradients", "group", "hessian", "hessians", "hvp",
    "identity", "jacobian", "jvp", "linalg", "name_scope", "nn", "no_gradient", "no_op", "ones", "ones_like", "op",
    "placeholder", "prevent_gradient", "random", "rank", "raw_ops", "recompute_grad", "shape", "size", "stop_gradient",
    "testing", "tuple", "value_and_grad", "vjp", "zeros", "zeros_like",
]  # fmt: skip


def python(code: str, cwd: Path) -> str:
    """Run code in a fresh interpreter, outside the checkout unless told otherwise."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def modules() -> list[str]:
    return ["distgrad", *(m.name for m in pkgutil.walk_packages(dg.__path__[:1], "distgrad."))] + [
        f"distgrad.{folder}.{m.name}"
        for folder in ("scheduler", "workers", "workers.kernels")
        for m in pkgutil.iter_modules(importlib.import_module(f"distgrad.{folder}").__path__)
        if not m.ispkg
    ]


def test_import_loads_numpy_and_nothing_else_from_outside(tmp_path: Path) -> None:
    code = (
        "import sys, numpy; before = set(sys.modules); import distgrad; "
        "tops = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(tops - {*sys.stdlib_module_names, 'numpy'}))"
    )
    found = python(code, tmp_path).strip()
    assert re.fullmatch(r"\['(__editable___distgrad_\w+', ')?distgrad'\]", found), found


def test_what_plans_and_runs_is_imported_when_something_first_runs(tmp_path: Path) -> None:
    code = (
        "import sys, numpy, distgrad as dg; f = dg.function(lambda x: dg.exp(x)); f.body(numpy.zeros(1)); "
        "loaded = lambda: [m for m in sys.modules if m.startswith(('distgrad.scheduler', 'distgrad.workers'))]; "
        "print(loaded()); f(numpy.zeros(1)); print(len(loaded()) > 20)"
    )
    assert python(code, tmp_path).split() == ["[]", "True"]


@pytest.mark.parametrize("code", ["dg.scheduler.lower", "dg.Plan", "dg.Plan is dg.scheduler.Plan"])
def test_what_is_imported_late_is_there_when_it_is_asked_for(code: str, tmp_path: Path) -> None:
    assert python(f"import distgrad as dg; print({code})", tmp_path).strip() != "False"


def test_import_takes_at_most_0_3_seconds_over_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second time on: Python keeps the compiled modules, here also where the environment forbids it."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))
    code = "import time, numpy; t = time.process_time(); import distgrad; print(time.process_time() - t)"
    assert any(float(python(code, tmp_path)) < 0.3 for _ in range(10))  # others may have the machine for a while


@pytest.mark.parametrize("place", ["checkout", "elsewhere"])
def test_the_three_folders_are_one_package_wherever_python_starts(place: str, tmp_path: Path) -> None:
    code = "import distgrad.scheduler.program, distgrad.workers.kernels.math; print(distgrad.exp(0.0))"
    assert python(code, ROOT if place == "checkout" else tmp_path).strip() == "1.0"


def test_a_checkout_has_no_second_copy_of_the_package() -> None:
    code = "import distgrad\nfor name in ('distgrad', 'tests', 'docs'):\n try: __import__('distgrad.' + name)\n"
    assert python(code + " except ModuleNotFoundError as e: print(e.name)", ROOT).split() == [
        "distgrad.distgrad", "distgrad.tests", "distgrad.docs",
    ]  # fmt: skip


@pytest.mark.parametrize("name", API)
def test_the_api_has(name: str) -> None:
    assert hasattr(dg, name)


def test_everything_public_has_a_docstring() -> None:
    public = [name for name in vars(dg) if not name.startswith("_")]
    assert [name for name in public if callable(getattr(dg, name)) and not getattr(dg, name).__doc__] == []


@pytest.mark.parametrize("module", modules())
def test_docstring_examples_run(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def public_callables() -> dict[str, Any]:
    spaces = {"": dg, "nn.": dg.nn, "linalg.": dg.linalg, "random.": dg.random}
    named = {prefix + name: getattr(space, name) for prefix, space in spaces.items() for name in space.__all__}
    return {name: f for name, f in named.items() if callable(f)}


def made_by_builders() -> dict[str, Any]:
    """The public functions that doctest.testmod does not see: their module is that of the function that made them."""
    return {
        name: f
        for name, f in public_callables().items()
        if getattr(sys.modules[f.__module__], f.__name__, None) is not f
    }


def test_everything_public_has_an_example() -> None:
    parser = doctest.DocTestParser()
    without = {name for name, f in public_callables().items() if not parser.get_examples(f.__doc__ or "")}
    assert without == set()


@pytest.mark.parametrize("name", sorted(made_by_builders()))
def test_the_example_of_a_made_function_runs(name: str) -> None:
    f = made_by_builders()[name]
    names = {f.__name__: f, "np": np, "dg": dg}
    example = doctest.DocTestParser().get_doctest(f.__doc__, names, name, None, None)
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append)
    assert result.attempted > 0
    assert result.failed == 0, "".join(said)


def test_the_quickstart_learns(capsys: pytest.CaptureFixture[str]) -> None:
    space: dict[str, object] = {"__name__": "quickstart"}
    path = ROOT / "examples" / "quickstart.py"
    exec(compile(path.read_text(), str(path), "exec"), space)
    assert space["main"](steps=120) < 0.5  # type: ignore[operator]
    printed = capsys.readouterr().out
    assert "= MatMul(" in printed
    assert "# quickstart.py:" in printed


def test_the_readme_has_no_gaps_left_to_fill() -> None:
    assert not re.search(r"\b(TODO|TBD|FIXME|XXX|[A-Z]+_[A-Z_]+)\b", (ROOT / "README.md").read_text())


def test_the_top_level_is_the_documented_layout() -> None:
    names = {"README.md", "pyproject.toml", "distgrad", "scheduler", "workers", "tests", "cluster-configs", "examples"}
    names |= {"Makefile", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "mkdocs.yml", "benchmarks", "docs"}
    names |= {".ci", ".git", ".gitignore"}
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line and line[0] != "#"]
    left = {path.name for path in ROOT.iterdir() if not any(path.match(pattern) for pattern in ignored)}
    assert left | {".git"} == names  # a source archive has no .git


@pytest.mark.parametrize("folder", ["distgrad", "scheduler", "workers"])
def test_a_folder_has_no_more_files_than_a_reader_takes_in(folder: str) -> None:
    folders = [path for path in (ROOT / folder, *(ROOT / folder).rglob("*")) if path.is_dir()]
    counts = {str(path.relative_to(ROOT)): len(list(path.glob("*.py"))) for path in folders}
    assert {path: count for path, count in counts.items() if count > 22} == {}


def test_types_are_shipped() -> None:
    assert (Path(dg.__file__).parent / "py.typed").exists()


def test_nothing_unpickles_but_what_the_driver_sent() -> None:
    sources = [p for folder in ("distgrad", "scheduler", "workers") for p in (ROOT / folder).rglob("*.py")]
    found = [p for p in sources if re.search(r"(pickle\.loads?|allow_pickle=True)\b", p.read_text())]
    assert {str(p.parent.relative_to(ROOT)) for p in found} == {"workers/on_ray"}  # bytes that came through Ray
    assert [str(p) for p in found if re.search(r"(pickle\.load|allow_pickle=True)\b", p.read_text())] == []  # no file
    assert len(sources) > 20
