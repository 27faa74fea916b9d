"""The README and the pages of docs/: their code runs as it reads, from top to bottom, and prints what they say.

A block of Python runs, or is saved if it has a title; a `text` block after it is what it printed. In `console` blocks
lines after a `$` are typed, and those below are what comes: commands of distgrad must exist with their options, and
those that need no cluster run. Where output varies, a page has `...`.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

import distgrad as dg
from distgrad.cli import app
from distgrad.cli.loading import load_file
from distgrad.scheduler.cluster import Cluster, Machine, Worker, on_ray

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "cluster-configs/README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
#: Commands that are run, if all of their arguments are here: the others need a cluster, or a minute.
HARMLESS = {"run", "plan", "report"}
pytestmark = pytest.mark.ray


class Block(NamedTuple):
    language: str
    title: str
    text: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    text = (ROOT / page).read_text()
    for found in re.finditer(r'^```(\w+)(?: title="(.*?)")?\n(.*?)^```$', text, re.S | re.M):
        yield Block(found[1], found[2] or "", found[3], text[: found.start(3)].count("\n"))


def same(expected: str, got: str) -> bool:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(expected, got, flags)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in which the files are that pages speak of."""
    (tmp_path / "cluster-configs").symlink_to(ROOT / "cluster-configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISTGRAD_PROGRESS", "off")
    monkeypatch.setenv("DISTGRAD_CACHE", str(tmp_path / "cache"))  # the plans that pages show are of the default rates
    return tmp_path


# -- Python ------------------------------------------------------------------------------------------------------


def run_page(page: str, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """Run the Python of a page, and compare what it prints where the page says that; gives its names and all output."""
    space: dict[str, Any] = {"__name__": "page"}
    said = printed = ""
    for block in blocks(page):
        if block.language == "python" and not block.title:
            code = "\n" * block.line + block.text  # so that lines in errors are those of the page
            exec(compile(code, Path(page).name, "exec"), space)
            printed = capsys.readouterr().out
            said += printed
        elif block.language == "text":
            assert same(block.text, printed), f"{page}:{block.line}: printed was\n{printed}"
    return space, said


@pytest.mark.parametrize("page", [page for page in PAGES[1:] if any(b.language == "python" for b in blocks(page))])
def test_the_code_of_a_page_runs_as_it_reads(
    page: str, folder: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    if 'Session("ray"' in (ROOT / page).read_text():
        request.getfixturevalue("ray_session")
    run_page(page, capsys)


def test_the_readme_computes_what_it_says(
    ray_session: dg.Session, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space, said = run_page("README.md", capsys)
    assert said.startswith("[[array(3.), array(1.)], [array(1.), array(1.)]]\n1 task of ")
    assert list(space["grads"]) == list(space["params"])
    assert space["error"] < (space["y"] ** 2).mean()
    assert (space["first"] == space["again"]).all()
    assert (space["first"] != space["other"]).any()


# -- commands ----------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A command of distgrad on a page, and the output that the page shows."""

    words: list[str]
    output: str


def typed(page: str) -> Iterator[Line]:
    for block in blocks(page):
        if block.language in ("console", "bash", "sh"):
            for entry in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
                command, _, output = entry.partition("\n")
                found = re.match(r"(?:[A-Z_]+=\S+ )*(?:python -m )?distgrad\b(.*)", command)
                if found:
                    yield Line(shlex.split(found[1], comments=True), output)


TYPED = [(page, line) for page in PAGES for line in typed(page)]


@pytest.mark.parametrize(("page", "line"), TYPED, ids=[f"{page}: {' '.join(line.words)}" for page, line in TYPED])
def test_a_command_on_a_page_exists_with_its_options(page: str, line: Line) -> None:
    command: Any = typer.main.get_command(app)
    words = list(line.words)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    if "--version" not in words:  # which would end here
        command.make_context("distgrad", words)


def saved(page: str, folder: Path) -> None:
    """Save the files that a page has, and the script of the tutorial, which others speak of."""
    for name in ("docs/tutorial.md", page):
        for block in blocks(name):
            if block.language == "python" and block.title:
                (folder / block.title).write_text(block.text)


def needs_nothing(line: Line) -> bool:
    """`plan` needs no Ray for its `--workers`."""
    needs = {"--address"} if line.words[:1] == ["plan"] else {"--workers", "--address"}
    return bool(line.words) and line.words[0] in HARMLESS and not needs & {*line.words}


@pytest.mark.parametrize("page", sorted({page for page, line in TYPED if needs_nothing(line)}))
def test_the_commands_of_a_page_do_what_it_says(page: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(page, folder)
    run_page(page, capsys)
    for line in typed(page):
        if needs_nothing(line):
            command = [sys.executable, "-m", "distgrad", *line.words]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ})
            assert done.returncode == 0, done.stderr
            assert not line.output.strip() or same(line.output, done.stdout), done.stdout


def test_the_script_of_the_tutorial_has_shards_that_two_workers_share(folder: Path) -> None:
    saved("docs/tutorial.md", folder)
    step, arguments = load_file(folder / "train.py").plan()
    seconds, tasks = [], []
    for workers in (1, 2):
        cluster = Cluster((Worker(1),) * workers, on_ray(Machine()), engine="ray")  # rates that do not vary
        with dg.Session(cluster=cluster, cpus_per_task=1):
            plan = step.plan(*arguments)
        seconds.append(plan.predictions.seconds)
        tasks.append(len(plan.tasks))
    assert tasks == [1, 5]
    assert seconds[1] < 0.6 * seconds[0]
