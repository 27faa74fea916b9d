"""Wrong use of `distgrad plan`, `demo` and `doctor`: one clear line each, the right exit code, no traceback; and what
all commands have in common: help, and no colours where none are wanted."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from distgrad.cli import app

FILES = {
    "good.py": '''
import distgrad as dg
def step(w, x): return dg.mean(x @ w)
def nothing(): return 3
def wrong_pair(): return step, [1, 2]
def raises(): raise RuntimeError("no data here")
def broken_step(): return dg.function(lambda: dg.ones(3) @ dg.ones(4))
rate = 0.1
def missing(): return step, (dg.ones,)
def surplus(): return step, (1, 2, 3)
def no_arguments(): return step
''',
    "no_such_import.py": "import a_module_that_is_not_there\n",
    "syntax.py": "def step(:\n",
    "raising.py": "def load():\n    raise OSError('the data is gone')\nload()\n",
    "exits.py": "import sys\nsys.exit(3)\n",
    "field.toml": "[[nodes]]\ncpus = 1\nmemry = '1 GiB'\n",
    "value.toml": "[[nodes]]\ncpus = 0\n",
    "text.toml": "cpus: 3\n",
}

#: What is called, and what the one line says. All of it is wrong use, so the exit code is 2.
WRONG: list[tuple[str, str]] = [
    ("good.py", "'good.py' is not MODULE:FUNCTION, such as 'train.py:step' or 'package.train:step'"),
    ("good.py:", "'good.py:' is not MODULE:FUNCTION"),
    (":step", "':step' is not MODULE:FUNCTION"),
    ("absent.py:step", "there is no file 'absent.py'"),
    ("absent:step", "there is no module 'absent', here or installed"),
    ("absent.inner:step", "there is no module 'absent.inner', here or installed"),
    ("good.py:stpe", "'good.py' has no 'stpe'. Did you mean 'step'?"),
    ("good.py:other", "'good.py' has no 'other'. Its functions are step, nothing, wrong_pair"),
    ("good.py:step.inner", "'good.py' has no 'step.inner'"),
    ("good.py:rate", "good.py:rate is 0.1, which is not a function. Name a function without arguments that returns"),
    ("good.py:step", "good.py:step is called as step(w, x), but none are given. Name a function without arguments"),
    ("good.py:step --spec f32[3]", "good.py:step is called as step(w, x), but 1 argument is given."),
    ("good.py:nothing", "good.py:nothing returns 3, which cannot be planned. Name a function"),
    ("good.py:missing", "good.py:missing returns step with 1 argument: x is missing. Name a function"),
    ("good.py:no_arguments", "good.py:no_arguments returns step with no arguments: w and x are missing. Name"),
    ("good.py:surplus", "good.py:surplus returns step with 3 arguments: it is called as step(w, x). Name a function"),
    ("good.py:wrong_pair", "returns a function and [1, 2], but arguments are a tuple: (x,) for one"),
    ("no_such_import.py:step", "cannot be imported: ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
    ("no_such_import:step", "cannot be imported: ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
    ("syntax.py:step", "'syntax.py' cannot be imported: SyntaxError: invalid syntax (syntax.py, line 1)"),
    ("raising.py:step", "'raising.py' cannot be imported: OSError: the data is gone (at raising.py:2)"),
    ("exits.py:step", "'exits.py' cannot be imported: it ended the program. Put the script's actions under `if"),
    ("good.py:step --spec f32[", "--spec 'f32[' is neither a type, as in 'float32[256,784]' or 'int64[]', nor"),
    ("good.py:step --spec float32", "--spec 'float32' has no shape: 'float32[]' is a single number, 'float32["),
    ("good.py:step --spec frog", "--spec 'frog' is neither a type"),
    ("good.py:step --spec frog[3]", "--spec 'frog[3]' is neither a type"),
    ("good.py:step --spec f32[-1]", "--spec 'f32[-1]' is neither a type"),
    ("good.py:step --spec f32[1,,2]", "--spec 'f32[1,,2]' is neither a type"),
    ("good.py:step --spec f32[9999999999,9999999999]", "the array is too large for any machine"),
    ("good.py:nothing --cluster absent.toml", "absent.toml: cannot be read: No such file or directory"),
    ("good.py:nothing --cluster .", ".: cannot be read: Is a directory"),
    ("good.py:nothing --cluster field.toml", "[[nodes]] 1: there is no field 'memry'; did you mean 'memory'?"),
    ("good.py:nothing --cluster value.toml", "value.toml: [[nodes]] 1: cpus is 0, but must be an integer >= 1"),
    ("good.py:nothing --cluster text.toml", "text.toml: is not TOML"),
    ("good.py:nothing --memory much", "memory is a positive number of bytes or text such as '4 GiB', got 'much'"),
    ("good.py:nothing --cpus-per-task 9999", "cpus_per_task is 9999, but the session has "),
    ("good.py:nothing --html page.pdf", "--html page.pdf: the file name must end in .html"),
    ("good.py:nothing --html absent/page.html", "there is no folder 'absent'"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in FILES:
        monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)
    return tmp_path


def run(*arguments: str) -> Result:
    made = CliRunner().invoke(app, arguments)
    for name in FILES:
        sys.modules.pop(Path(name).stem, None)
    return made


def assert_one_line(made: Result, code: int, text: str) -> None:
    assert text in made.stderr
    assert made.stderr.startswith("error: ")
    assert (made.exit_code, made.stdout, made.stderr.count("\n")) == (code, "", 1)


# -- plan --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "text"), WRONG, ids=[arguments for arguments, _ in WRONG])
def test_wrong_use_of_plan_is_told_in_one_line(arguments: str, text: str) -> None:
    assert_one_line(run("plan", *arguments.split()), 2, text)


def test_what_a_users_function_raises_is_a_failure_with_its_line() -> None:
    made = run("plan", "good.py:raises")
    assert_one_line(made, 1, "good.py:raises failed: RuntimeError: no data here (at good.py:6)")


def test_what_cannot_be_recorded_is_a_failure_with_its_line() -> None:
    made = run("plan", "good.py:broken_step")
    assert_one_line(made, 1, "good.py:broken_step cannot be planned: ")
    assert "good.py:7" in made.stderr


def test_more_workers_than_a_cluster_file_has_are_a_wrong_use(folder: Path) -> None:
    (folder / "one.toml").write_text("[[nodes]]\ncpus = 1\n")
    made = run("plan", "good.py:nothing", "--cluster", "one.toml", "--workers", "2")
    assert_one_line(made, 2, "--workers is 2, but one.toml has 1")


# -- demo and doctor ---------------------------------------------------------------------------------------------


def test_the_demo_overwrites_nothing_that_is_not_its_own(folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "model.py").write_text("mine = 1\n")
    assert_one_line(run("demo", "--local", "--output", "mine"), 2, "'mine' has files that are not of an earlier demo")
    assert (folder / "mine" / "model.py").read_text() == "mine = 1\n"


@pytest.mark.parametrize("output", ["good.py", "good.py/inner"])
def test_the_demo_cannot_write_where_a_file_is(output: str) -> None:
    assert_one_line(run("demo", "--local", "--output", output), 2, f"cannot write to '{output}': Not a directory")


def test_an_address_where_nobody_listens_is_a_problem_that_is_found_soon() -> None:
    began = time.monotonic()
    made = run("doctor", "--address", "127.0.0.1:1")
    assert made.exit_code == 1
    assert "cannot join the Ray cluster at '127.0.0.1:1': nothing listens there" in made.stdout
    assert "Traceback" not in made.output
    assert time.monotonic() - began < 20  # a few, where nothing else runs


# -- all commands ------------------------------------------------------------------------------------------------

#: Wrong use that the parser of arguments tells, in words that differ from version to version; and what it names.
UNPARSED = [
    ("pln", "No such command 'pln'"),
    ("plan", "Missing argument"),
    ("plan good.py:nothing --workers 0", "'--workers'"),
    ("plan good.py:nothing --workers two", "'--workers'"),
    ("plan good.py:nothing --wrong", "No such option"),
    ("demo --steps 0", "'--steps'"),
    ("demo --lokal", "No such option"),
    ("doctor --jsn", "No such option"),
    ("doctor extra", "unexpected extra argument"),
]


@pytest.mark.parametrize(("arguments", "text"), UNPARSED, ids=[arguments for arguments, _ in UNPARSED])
def test_arguments_that_cannot_be_parsed_are_a_wrong_use(arguments: str, text: str) -> None:
    made = run(*arguments.split())
    assert (made.exit_code, made.stdout) == (2, "")
    assert text in made.stderr
    assert "Traceback" not in made.stderr


def commands() -> list[str]:
    group: Any = typer.main.get_command(app)
    return sorted(group.commands)


@pytest.mark.parametrize("command", commands())
def test_every_command_has_help_that_begins_with_one_sentence(command: str) -> None:
    made = run(command, "--help")
    assert made.exit_code == 0
    usage, summary, *_ = made.stdout.split("\n\n")
    assert usage.startswith("Usage: ")
    assert re.fullmatch(r"  [A-Z][^.]+\.", summary)


@pytest.mark.parametrize("arguments", ["--help", "plan --help", "plan good.py:stpe", "doctor"])
def test_in_a_pipe_there_are_no_colours(arguments: str) -> None:
    made = subprocess.run([sys.executable, "-m", "distgrad", *arguments.split()], capture_output=True, check=False)
    assert b"\x1b" not in made.stdout + made.stderr


@pytest.mark.parametrize(("wanted", "env"), [(True, {}), (False, {"NO_COLOR": "1"})], ids=["colours", "NO_COLOR"])
def test_a_terminal_has_colours_unless_they_are_not_wanted(wanted: bool, env: dict[str, str]) -> None:
    controller, terminal = pty.openpty()
    clean = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    subprocess.run(
        [sys.executable, "-m", "distgrad", "doctor"],
        stdout=terminal, stderr=terminal, stdin=terminal, env={**clean, "TERM": "xterm", **env}, check=False,
    )  # fmt: skip
    os.close(terminal)
    text = b""
    try:
        while part := os.read(controller, 1 << 16):
            text += part
    except OSError:  # the end, on Linux
        pass
    os.close(controller)
    assert b"numpy" in text
    assert (b"\x1b[" in text) is wanted
