"""The page as text: it carries all that it needs, loads nothing, and nothing in a trace can get out of its place."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.report import page
from distgrad.scheduler import trace
from distgrad.scheduler.partition.partition import partition

from ..step_graphs import ray_cluster, towers
from .documents import document, plan, small

EVIL = "</script><script>alert(1)</script><!-- {{trace}} \u2028 &amp; \"'"


class Elements(HTMLParser):
    """The elements of a page, and the text of those with an id."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        name = self.found[-1][1].get("id") if self.found else None
        if name:
            self.text[name] = self.text.get(name, "") + data


@pytest.fixture(scope="module")
def made() -> str:
    return page(small())


def test_a_page_of_ten_tasks_has_less_than_two_and_a_half_megabytes(made: str) -> None:
    assert len(made.encode()) < 2_500_000


def test_no_element_loads_anything(made: str) -> None:
    names = [name for _, attrs in Elements(made).found for name in attrs]
    assert {"src", "href", "srcset", "data", "action"}.isdisjoint(names)
    style = made[made.index("<style>") : made.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_the_page_forbids_the_browser_to_load_anything(made: str) -> None:
    policy = next(attrs["content"] for tag, attrs in Elements(made).found if attrs.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


def test_all_slots_are_filled(made: str) -> None:
    assert not re.search(r"\{\{\w+\}\}", made)


def test_licences_of_the_libraries_are_in_the_page(made: str) -> None:
    for words in ("Licensed to the Apache Software Foundation", "Erik Brinkman", "Mike Bostock", "quadprog"):
        assert words in made


def test_the_trace_in_the_page_is_the_trace(made: str) -> None:
    assert json.loads(Elements(made).text["trace"]) == small()["distgrad"]


def evil_document() -> dict[str, Any]:
    made = plan(EVIL, 2, 2, 2)
    made["tasks"][0] |= {"ops": EVIL, "line": EVIL}
    made["ops"][0] |= {"op": EVIL, "line": EVIL}
    return document(made)


def test_text_of_a_trace_ends_no_script_and_fills_no_slot() -> None:
    data = evil_document()
    found = Elements(page(data))
    assert json.loads(found.text["trace"]) == data["distgrad"]
    assert len(found.found) == len(Elements(page(small())).found)


def test_the_title_names_the_plan() -> None:
    assert "<title>a &lt; b - distgrad report</title>" in page(document(plan("a < b", 2, 1, 2)))


def test_what_is_no_trace_makes_no_page() -> None:
    with pytest.raises(ValueError, match="this is not a trace of distgrad: it has no key 'distgrad'"):
        page({})


def shown(text: str) -> dict[str, Any]:
    """The first plan of a page."""
    plans: list[dict[str, Any]] = json.loads(Elements(text).text["trace"])["plans"]
    return plans[0]


def test_plans_that_never_ran_make_pages() -> None:
    entry = trace.Entry(partition(towers(8, 4), ray_cluster(4)), "towers")
    assert shown(page(trace.document([entry], "0.1.0")))["name"] == "towers"


def test_a_session_writes_the_page_of_its_runs(tmp_path: Path) -> None:
    double = dg.function(lambda x: x + x)
    with dg.Session(trace=tmp_path / "report.html"):
        double(np.ones(3))
    assert shown((tmp_path / "report.html").read_text())["runs"]["count"] == 1
