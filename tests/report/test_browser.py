"""The page in a real browser: it draws, and answers to the pointer, to keys and its controls. One browser for all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.report import page, read
from distgrad.scheduler import trace
from distgrad.scheduler.partition.partition import partition

from ..step_graphs import ray_cluster, towers
from .documents import document, large, plan, small
from .test_page import EVIL, evil_document

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="no Chromium: install the packages chromium and chromium-driver"
)
FLAGS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1280,1000")
#: Seconds until a page must be usable; far above what it takes, for a machine that does other things too.
ANSWER_SECONDS = 30


class Browser:
    """A page in Chromium, and how tests ask it."""

    def __init__(self, folder: Path):
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in FLAGS:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = webdriver.chrome.service.Service(DRIVER)
        self.driver = webdriver.Chrome(options=options, service=service)
        self.folder = folder
        self.opened = ""

    def open(self, name: str, data: dict[str, Any]) -> Browser:
        """Show the page of a trace, anew, and wait until all is drawn."""
        path = self.folder / f"{name}.html"
        if not path.exists():
            path.write_text(page(data), encoding="utf-8")
        self.errors()
        self.requests()
        self.opened = path.as_uri()
        self.driver.get(self.opened)
        self.wait("document.documentElement.dataset.ready === 'true'")
        return self

    def ask(self, expression: str, *arguments: Any) -> Any:
        return self.driver.execute_script(f"return {expression}", *arguments)

    def wait(self, expression: str) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, ANSWER_SECONDS, 0.05).until(lambda _: self.ask(expression), expression)

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def requests(self) -> list[str]:
        """What was asked of a network or a disk since the last time."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if url != self.opened and not url.startswith(("blob:", "data:"))]

    def point(self, chart: str, x: float, y: float, wheel: int = 0, click: bool = False) -> None:
        """Move the pointer to a pixel of a chart; there, click, or turn the wheel with Ctrl."""
        box = self.driver.find_element("id", chart)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", box)
        at = round(x - box.size["width"] / 2), round(y - box.size["height"] / 2)
        chain = webdriver.ActionChains(self.driver, duration=50)
        if wheel:
            origin = webdriver.common.actions.wheel_input.ScrollOrigin.from_element(box, *at)
            chain.key_down("\ue009").scroll_from_origin(origin, 0, wheel).key_up("\ue009")
        else:
            chain.move_to_element_with_offset(box, *at)
        if click:
            chain.click()
        chain.perform()

    def approach(self, chart: str, k: int) -> tuple[float, float]:
        """Zoom in until a task can be told from others, where there are many; gives its pixel."""
        if self.ask("page.model.tasks.length > 100"):
            self.ask(f"page.{chart}.show({{x: [0, 4], y: [0, 4]}})")
        self.ask(f"page.{chart}.select(arguments[0])", k)
        self.ask(f"page.{chart}.select(null)")
        return self.task(chart, k)

    def task(self, chart: str, k: int) -> tuple[float, float]:
        """The pixel where a chart shows a task."""
        at = {
            "graph": "page.graph.layout.at[k]",
            "timeline": "[(page.timeline.times.start[k] + page.timeline.times.end[k]) / 2, page.timeline.row[k]]",
        }[chart]
        x, y = self.ask(f"(k => page.{chart}.pixel({at}))(arguments[0])", k)
        return x, y

    def tip(self, chart: str) -> str:
        """The text of the tooltip that is shown."""
        shown = f"[...document.querySelectorAll('#{chart} .tip')].filter(t => getComputedStyle(t).opacity > 0.9)"
        self.wait(f"{shown}.length > 0")
        text: str = self.ask(f"{shown}[0].innerText")
        return text

    def inked(self, chart: str) -> float:
        """The share of a chart's pixels that have any colour."""
        share: float = self.ask(
            """(id => {
                let inked = 0, all = 0;
                for (const c of document.querySelectorAll(`#${id} canvas`)) {
                    const data = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
                    for (let i = 3; i < data.length; i += 4) inked += data[i] > 0;
                    all = Math.max(all, data.length / 4);
                }
                return inked / all;
            })(arguments[0])""",
            chart,
        )
        return share


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("pages"))
    yield made
    made.driver.quit()


SIZES: dict[str, Callable[[], dict[str, Any]]] = {"small": small, "large": large}


@pytest.fixture(scope="module", params=SIZES)
def shown(request: pytest.FixtureRequest, browser: Browser) -> Browser:
    """Ten tasks, then five thousand."""
    return browser.open(request.param, SIZES[request.param]())


# -- at ten and at five thousand tasks ---------------------------------------------------------------------------


def test_all_charts_are_drawn(shown: Browser) -> None:
    for chart in ("graph", "timeline", "memory"):
        assert shown.inked(chart) > 0.01, chart
    assert shown.ask("document.getElementById('layout-note').textContent") == ""


def test_every_task_has_a_place_of_its_own(shown: Browser) -> None:
    count, places = shown.ask("[page.model.tasks.length, new Set(page.graph.layout.at.map(String)).size]")
    assert count == places


def test_readers_come_after_what_they_read(shown: Browser) -> None:
    along = "page.graph.layout.at[k][page.graph.layout.right ? 0 : 1]"
    assert shown.ask(f"(at => page.model.edges.every(e => at(e.from) < at(e.to)))(k => {along})")


@pytest.mark.parametrize("chart", ["graph", "timeline"])
def test_hover_tells_ops_line_times_and_bytes_of_a_task(shown: Browser, chart: str) -> None:
    shown.point(chart, *shown.approach(chart, 3))
    text = shown.tip(chart)
    shown.ask(f"page.{chart}.fit()")
    ops, line = shown.ask("[page.model.tasks[3].ops, page.model.tasks[3].line]")
    for part in (f"Task 3: {ops}", line, "measured", "predicted", "reads", "returns"):
        assert part in text


@pytest.mark.parametrize("chart", ["graph", "timeline"])
def test_the_wheel_zooms_where_the_pointer_is(shown: Browser, chart: str) -> None:
    before = shown.task(chart, 3)
    shown.point(chart, *before, wheel=-240)
    shown.wait(f"page.{chart}.view.x[1] - page.{chart}.view.x[0] < 99")
    assert shown.task(chart, 3) == pytest.approx(before, abs=3)
    shown.ask(f"page.{chart}.fit()")
    shown.wait(f"page.{chart}.view.x[1] === 100")


@pytest.mark.parametrize(("chart", "other"), [("graph", "timeline"), ("timeline", "graph")])
def test_a_click_on_a_task_chooses_it_in_both_charts(shown: Browser, chart: str, other: str) -> None:
    shown.point(chart, *shown.approach(chart, 2), click=True)
    shown.wait("page.selected === 2")
    assert (shown.ask(f"page.{chart}.chosen"), shown.ask(f"page.{other}.chosen")) == (2, 2)
    assert "Task 2: " in shown.ask("document.getElementById('details').innerText")
    lines = shown.ask("page.model.into[2].length + page.model.from[2].length")
    assert shown.ask(f"page.{other}.layer.children().length") == lines
    shown.ask(f"(page.select(null), page.{chart}.fit())")
    assert shown.ask("document.getElementById('details').hidden")


def test_a_task_that_is_chosen_comes_into_view(shown: Browser) -> None:
    shown.ask("page.graph.show({x: [0, 5], y: [0, 5]})")
    last = shown.ask("page.model.tasks.length - 1")
    shown.ask("page.select(arguments[0])", last)
    x, y = shown.task("graph", last)
    size = shown.driver.find_element("id", "graph").size
    assert 0 <= x <= size["width"]
    assert 0 <= y <= size["height"]
    shown.ask("(page.select(null), page.graph.fit())")


def test_predicted_times_can_be_shown_instead(shown: Browser) -> None:
    assert "node 0, process 4000" in shown.ask("document.getElementById('legend').innerText")
    shown.driver.find_element("css selector", "#mode input[value=predicted] + span").click()
    assert shown.ask("page.timeline.times === page.model.plain.predicted")
    assert "worker 0" in shown.ask("document.getElementById('legend').innerText")
    shown.driver.find_element("css selector", "#mode input[value=measured] + span").click()
    assert shown.ask("page.timeline.times === page.model.plain.measured")


def test_find_chooses_one_match_after_the_other(shown: Browser) -> None:
    field = shown.driver.find_element("id", "find")
    field.send_keys("AddN ×2")
    reduces = shown.ask("page.model.tasks.filter(t => t.ops === 'AddN ×2').length")
    shown.wait(f"document.getElementById('found').textContent.startsWith('{reduces} task')")
    field.send_keys("\n")
    assert shown.ask("page.model.tasks[page.selected].ops") == "AddN ×2"
    field.clear()
    field.send_keys(" ")
    shown.wait("document.getElementById('found').textContent === ''")
    shown.ask("page.select(null)")


def test_nothing_is_wrong_in_the_console_and_nothing_was_loaded(shown: Browser) -> None:
    assert shown.errors() == []
    assert shown.requests() == []


# -- at ten tasks ------------------------------------------------------------------------------------------------


def test_figures_compare_predicted_and_measured(browser: Browser) -> None:
    browser.open("small", small())
    text = browser.ask("document.getElementById('figures').innerText")
    for part in ("Time", "Peak memory on one worker", "Moved between tasks", "Measured is 1.2", "4 runs: fastest"):
        assert part in text


def test_reduce_tasks_and_barriers_look_different(browser: Browser) -> None:
    browser.open("small", small())
    kinds = browser.ask(
        "page.model.tasks.map((t, k) => [t.kind, page.graph.shape(k, 50, 50, 100, 30).type]).map(String)"
    )
    assert set(kinds) == {"work,rect", "reduce,polygon"}
    dashes = browser.ask(
        "page.model.edges.map(e => [e.barrier, page.graph.edgeStyle(e).lineDash !== null]).map(String)"
    )
    assert set(dashes) == {"true,true", "false,false"}


def test_lines_of_reduce_trees_and_barriers_can_be_switched_off(browser: Browser) -> None:
    browser.open("small", small())
    ids = "page.timeline.chart.getOption().series.map(s => s.id).join()"
    assert browser.ask(ids) == "bars,links-reduce,links-barrier"
    browser.driver.find_element("id", "show-reduces").click()
    browser.driver.find_element("id", "show-barriers").click()
    assert browser.ask(ids) == "bars"


def test_hover_over_a_line_tells_the_bytes(browser: Browser) -> None:
    browser.open("small", small())
    middle = "(w => [0, 1].map(i => (w[0][i] + w[1][i]) / 2))(page.graph.way(1))"
    browser.point("graph", *browser.ask(f"page.graph.pixel({middle})"))
    assert browser.tip("graph") == browser.ask("edgeTip(page.model, page.model.edges[1]).innerText")


def test_memory_is_drawn_against_the_budget(browser: Browser) -> None:
    browser.open("small", small())
    ids = browser.ask("page.memory.chart.getOption().series.map(s => s.id)")
    assert ids == ["held-0", "resident-0", "held-1", "resident-1", "budget"]
    assert browser.ask("page.memory.chart.getOption().series[4].data[0][1]") == 64 << 20


def test_a_budget_far_above_is_drawn_when_asked_for(browser: Browser) -> None:
    browser.open("far", small(budget=64 << 30))
    ids = "page.memory.chart.getOption().series.map(s => s.id).includes('budget')"
    assert not browser.ask(ids)
    browser.driver.find_element("id", "show-budget").click()
    assert browser.ask(ids)


def test_timeline_and_memory_show_the_same_time(browser: Browser) -> None:
    browser.open("small", small())
    browser.ask("page.timeline.show({x: [20, 40]})")
    browser.wait("page.memory.view.x[0] === 20 && page.memory.view.x[1] === 40")


def test_keys_zoom_and_move_a_chart(browser: Browser) -> None:
    browser.open("small", small())
    box = browser.driver.find_element("id", "graph")
    box.send_keys("++")
    start, end = browser.ask("page.graph.view.x")
    assert end - start == pytest.approx(100 / 1.6**2)
    box.send_keys("\ue014")  # the right arrow
    assert browser.ask("page.graph.view.x[0]") > start
    box.send_keys("0")
    assert browser.ask("page.graph.view.x") == [0, 100]


def test_buttons_zoom_a_chart(browser: Browser) -> None:
    browser.open("small", small())
    browser.driver.find_element("css selector", "[data-chart=timeline] [title='Zoom in']").click()
    assert browser.ask("page.timeline.view.x[0]") > 0
    browser.driver.find_element("css selector", "[data-chart=timeline] [title='Show all']").click()
    assert browser.ask("page.timeline.view.x") == [0, 100]


def test_the_table_of_ops_is_sorted_by_a_click(browser: Browser) -> None:
    browser.open("small", small())
    first = "document.querySelector('#ops tbody tr').innerText"
    assert browser.ask(first).startswith("MatMul")
    browser.driver.find_element("xpath", "//table[@id='ops']//th[1]/button").click()
    assert browser.ask(first).startswith("AddN")
    browser.driver.find_element("xpath", "//table[@id='ops']//th[1]/button").click()
    assert browser.ask(first).startswith("Transpose")
    assert browser.ask("document.querySelector('#ops th').getAttribute('aria-sort')") == "descending"


def test_tasks_run_again_are_listed_with_the_reasons(browser: Browser) -> None:
    data = small()
    data["distgrad"]["plans"][0]["measured"] |= {"again": {"3": 2}, "reasons": ["node 1 was lost"]}
    browser.open("again", data)
    text = browser.ask("document.getElementById('again').innerText")
    assert "1 task run again" in text
    assert "task 3: 2 times" in text
    assert "node 1 was lost" in text


# -- other traces ------------------------------------------------------------------------------------------------


def test_the_plan_that_took_most_time_is_shown_first_and_others_can_be_chosen(browser: Browser) -> None:
    browser.open("several", document(plan("short", 2, 1, 2), plan("long", 4, 3, 2), plan("never", 9, 9, 2, False)))
    assert browser.ask("document.getElementById('title').textContent") == "long"
    browser.ask("(s => { s.value = 2; s.dispatchEvent(new Event('change')) })(document.getElementById('plan'))")
    browser.wait("document.documentElement.dataset.ready === 'true'")
    assert browser.ask("document.getElementById('title').textContent") == "never"
    assert browser.ask("document.getElementById('ops-title').textContent") == "Slowest ops, predicted"
    assert browser.ask("document.querySelector('#mode input[value=measured]').disabled")
    assert browser.errors() == []


def test_a_real_plan_is_drawn(browser: Browser) -> None:
    made = partition(towers(16, 4), ray_cluster(4, nodes=2))
    browser.open("real", trace.document([trace.Entry(made, "towers")], "0.1.0"))
    assert browser.inked("graph") > 0.01
    assert "planned, never run" in browser.ask("document.getElementById('subtitle').textContent")
    assert browser.errors() == []


def test_every_op_and_line_of_the_table_finds_its_tasks(browser: Browser) -> None:
    made = partition(towers(16, 4), ray_cluster(4, nodes=2))
    browser.open("found", trace.document([trace.Entry(made, "towers")], "0.1.0"))
    found = browser.ask("page.model.plain.ops.map(row => [row.op, row.line].map(x => page.model.find(x).length))")
    assert found
    assert all(min(row) > 0 for row in found)
    assert browser.ask("page.model.find('NoSuchOp')") == []


def test_what_decides_is_told_and_no_reduce_tasks_are_not(browser: Browser) -> None:
    browser.open("one", document(plan("one", 1, 1, 1) | {"decides": "the work itself"}))
    assert "What decides: the work itself." in browser.ask("document.getElementById('figures').innerText")
    assert "2 tasks of" in browser.ask("document.getElementById('subtitle').textContent")


def test_a_real_run_is_drawn(browser: Browser, tmp_path: Path) -> None:
    with dg.Session(trace=tmp_path / "trace.json"):
        dg.function(lambda x: dg.tanh(x) @ x)(np.ones((64, 64)))
    browser.open("run", read(tmp_path / "trace.json"))
    assert "1 run, the last at" in browser.ask("document.getElementById('subtitle').textContent")
    assert browser.ask("document.getElementById('ops-title').textContent") == "Slowest ops, measured"
    assert "test_browser.py:" in browser.ask("document.getElementById('ops').innerText")
    assert browser.errors() == []


def test_one_task_is_drawn(browser: Browser) -> None:
    browser.open("one", document(plan("one", 1, 1, 1) | {"budget": None}))
    assert browser.inked("graph") > 0
    assert browser.errors() == []


def test_text_of_a_trace_stays_text(browser: Browser) -> None:
    browser.open("evil", evil_document())
    browser.ask("page.select(0)")
    assert EVIL in browser.ask("document.getElementById('details').textContent")
    assert EVIL in browser.ask("document.querySelector('#ops td').textContent")
    browser.point("graph", *browser.task("graph", 0))
    assert "alert(1)" in browser.tip("graph")
    assert browser.errors() == []


def test_the_page_fits_a_narrow_window_and_a_dark_scheme(browser: Browser) -> None:
    command = browser.driver.execute_cdp_cmd
    command("Emulation.setDeviceMetricsOverride", {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True})
    command("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
    try:
        browser.open("small", small())
        assert browser.ask("document.documentElement.scrollWidth") <= 400
        assert browser.ask("page.graph.colours.card") == "#1c2024"
        assert browser.inked("graph") > 0.01
        assert browser.errors() == []
    finally:
        command("Emulation.clearDeviceMetricsOverride", {})
        command("Emulation.setEmulatedMedia", {"features": []})
