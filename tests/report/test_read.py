"""Reading traces: what is refused, and in which words."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distgrad.report import read
from distgrad.report.read import check

from .documents import small

WRITTEN = "Traces are written by Session(trace='trace.json') and Session.write_trace."


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "trace.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_trace_is_read_as_it_is(tmp_path: Path) -> None:
    assert read(written(tmp_path, json.dumps(small()))) == small()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is not JSON, or is cut off (Expecting value, at line 1, column 1)"),
        (json.dumps(small())[:1000], "it is not JSON, or is cut off ("),
        ("<!DOCTYPE html>", "it is not JSON, or is cut off (Expecting value, at line 1, column 1)"),
        (b"\x93NUMPY\x01\x00", "it is not a text file"),
        ("[" * 100_000, "it is nested too deeply"),
        ('{"distgrad": NaN}', "it has NaN, which is not a JSON number"),
    ],
)
def test_what_is_no_json_is_no_trace(tmp_path: Path, text: str | bytes, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match="is not a trace") as e:
        read(path)
    assert str(e.value).startswith(f"{path} is not a trace: {said}")
    assert str(e.value).endswith(WRITTEN)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("other", [[], 3, {"traceEvents": []}, {"distgrad": "0.1.0"}])
def test_json_without_our_key_is_no_trace_of_distgrad(tmp_path: Path, other: Any) -> None:
    path = written(tmp_path, json.dumps(other))
    with pytest.raises(ValueError, match=r"not a trace of distgrad: it has no key 'distgrad'\. Traces are written"):
        read(path)


def test_another_format_names_both_and_the_version_that_wrote_it() -> None:
    document = small()
    document["distgrad"] |= {"format": 7, "version": "3.0"}
    said = r"the trace has format 7, but this distgrad reads 1: read it with the version that wrote it \(3.0\)"
    with pytest.raises(ValueError, match=said):
        check(document)


Spoil = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda t: t.pop("cluster"), "distgrad.cluster is missing"),
        (lambda t: t.update(plans=[]), "the trace has no plans: nothing ran while it was recorded"),
        (lambda t: t["plans"][0].pop("tasks"), "distgrad.plans[0].tasks is missing"),
        (lambda t: t["plans"][0].update(tasks=[]), "distgrad.plans[0] has no tasks"),
        (lambda t: t["plans"][0].update(tasks={}), "distgrad.plans[0].tasks is not a list"),
        (lambda t: t["plans"][0]["tasks"].insert(0, 5), "distgrad.plans[0].tasks[0] is not an object"),
        (lambda t: t["plans"][0]["tasks"][3].pop("line"), "distgrad.plans[0].tasks[3].line is missing"),
        (lambda t: t["plans"][0]["tasks"][3].update(all=5), "distgrad.plans[0].tasks[3].all is 5, which is invalid"),
        (lambda t: t["plans"][0].update(decides=[]), "distgrad.plans[0].decides is [], which is invalid"),
        (lambda t: t["plans"][0].update(steps="many"), "distgrad.plans[0].steps is 'many', which is invalid"),
        (lambda t: t["plans"][0].update(steps=True), "distgrad.plans[0].steps is True, which is invalid"),
        (
            lambda t: t["plans"][0]["tasks"][2].update(reads=[9]),
            "distgrad.plans[0].tasks[2].reads has 9, which is not an earlier task",
        ),
        (
            lambda t: t["plans"][0]["bundles"][0].update(readers=[77]),
            "distgrad.plans[0].bundles[0] has 77, which is not a task",
        ),
        (
            lambda t: t["plans"][0]["predicted"]["end"].pop(),
            "distgrad.plans[0].predicted.end has 9 entries for 10 tasks",
        ),
        (
            lambda t: t["plans"][0]["measured"].update(worker=[2] * 10),
            "distgrad.plans[0].measured.worker has 2, which is not a place",
        ),
        (lambda t: t["plans"][0]["measured"].pop("again"), "distgrad.plans[0].measured.again is missing"),
        (
            lambda t: t["plans"][0]["predictions"].update(seconds=float("inf")),
            "distgrad.plans[0].predictions.seconds is inf, which is not a JSON number",
        ),
    ],
)
def test_what_the_page_cannot_draw_is_named(spoil: Spoil, said: str) -> None:
    document = copy.deepcopy(small())
    spoil(document["distgrad"])
    with pytest.raises(ValueError, match=r"distgrad|the trace") as e:
        check(document)
    assert str(e.value) == said
