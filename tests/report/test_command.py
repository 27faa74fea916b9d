"""`distgrad report`, called as a user calls it."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from distgrad.cli import app
from distgrad.report import page

from .documents import document, plan, small


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(small()))
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_the_page_is_written_beside_the_trace_and_its_path_printed(trace: Path) -> None:
    made = run(trace)
    path = trace.with_suffix(".html")
    assert (made.exit_code, made.stdout) == (0, f"{path}\n")
    assert path.read_text().startswith("<!DOCTYPE html>")


def test_output_says_where_the_page_goes(trace: Path, tmp_path: Path) -> None:
    made = run(trace, "--output", tmp_path / "other.html")
    assert made.stdout == f"{tmp_path / 'other.html'}\n"
    assert (tmp_path / "other.html").exists()
    assert not trace.with_suffix(".html").exists()


def test_open_shows_the_page_in_a_browser(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    run(trace, "--open")
    assert opened == [trace.with_suffix(".html").as_uri()]


def test_json_is_a_summary_of_each_plan(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document(plan("step", 2, 2, 2), plan("never", 2, 1, 2, measured=False))))
    summary = json.loads(run(path, "--json").stdout)
    assert summary["page"] == str(tmp_path / "trace.html")
    assert [(p["name"], p["tasks"], p["runs"]) for p in summary["plans"]] == [("step", 10, 4), ("never", 5, 0)]
    assert summary["plans"][0]["measured_seconds"] > summary["plans"][0]["predicted_seconds"]
    assert summary["plans"][1]["measured_seconds"] is None


def test_another_file_is_not_overwritten_unless_told_to(trace: Path) -> None:
    path, other = trace.with_suffix(".html"), page(small(name="another"))
    path.write_text(other)
    said = one_line(run(trace))
    assert "trace.html exists and is not the report of this trace: overwrite it with --force, or choose" in said
    assert path.read_text() == other
    assert run(trace, "--force").exit_code == 0
    assert path.read_text() != other


def test_the_page_of_a_trace_can_be_made_again(trace: Path) -> None:
    assert [run(trace).exit_code for _ in range(2)] == [0, 0]


def test_a_file_that_output_names_is_overwritten(trace: Path) -> None:
    path = trace.with_suffix(".html")
    path.write_text("notes")
    assert run(trace, "--output", path).exit_code == 0


def one_line(made: Result) -> str:
    assert (made.exit_code, made.stdout) == (2, "")
    assert made.stderr.startswith("error: ")
    assert made.stderr.count("\n") == 1
    return made.stderr


def test_a_missing_trace_is_one_line(tmp_path: Path) -> None:
    said = one_line(run(tmp_path / "none.json"))
    assert said == f"error: cannot read {tmp_path / 'none.json'}: No such file or directory\n"


def test_a_corrupt_trace_is_one_line_and_makes_no_page(trace: Path) -> None:
    trace.write_text(trace.read_text()[:5000])
    assert "trace.json is not a trace: it is not JSON, or is cut off (" in one_line(run(trace))
    assert not trace.with_suffix(".html").exists()


def test_a_folder_for_a_trace_is_one_line(tmp_path: Path) -> None:
    assert one_line(run(tmp_path)) == f"error: cannot read {tmp_path}: Is a directory\n"


def test_a_page_that_cannot_be_written_is_one_line(trace: Path, tmp_path: Path) -> None:
    target = tmp_path / "no" / "page.html"
    text = f"error: cannot write {target}: No such file or directory; make the folder first, or choose another path\n"
    assert one_line(run(trace, "--output", target)) == text


def test_a_trace_is_never_overwritten_by_its_page(tmp_path: Path) -> None:
    path = tmp_path / "trace.html"
    path.write_text(json.dumps(small()))
    assert "would overwrite the trace" in one_line(run(path))
    assert json.loads(path.read_text()) == small()
