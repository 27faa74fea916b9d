"""Progress: what long operations report, where it is shown, and that nothing else is disturbed."""

from __future__ import annotations

import gc
import os
import pty
import re
import subprocess
import sys
import threading
import weakref
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad import progress
from distgrad.progress import NOT_SHOWN, ProgressItem
from distgrad.progress_display import Lines, Live, line
from distgrad.workers.local.run_monitor import RunMonitor
from distgrad.workers.task_monitor import TaskMonitor

from ..step_graphs import this_process


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test leaves a mode or an active item behind."""
    monkeypatch.setattr(progress, "_chosen", None)
    monkeypatch.setattr(progress, "_active", [])
    monkeypatch.setattr(progress, "_displays", {"live": None, "log": None})
    monkeypatch.setenv("TERM", "xterm")


# -- how it is chosen -------------------------------------------------------------------------------------------------


def test_nothing_is_shown_if_stderr_is_not_a_terminal() -> None:
    assert progress.mode() == "off"
    assert progress.begin("running", "step") is NOT_SHOWN


@pytest.mark.parametrize("mode", ["live", "log", "off"])
def test_the_environment_chooses_how_progress_is_shown(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTGRAD_PROGRESS", mode.upper())
    assert progress.mode() == mode


@pytest.mark.parametrize(("option", "mode"), [(True, "live"), (False, "off"), ("log", "log"), ("auto", "off")])
def test_a_session_chooses_how_its_progress_is_shown(option: Any, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTGRAD_PROGRESS", "live" if mode == "log" else "log")
    session = dg.Session(progress=option)
    assert session.progress == mode
    assert progress.mode() != mode


def test_sessions_that_are_open_at_the_same_time_keep_their_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = {"live": "live", "log": "log", "off": "off", None: "log"}
    all_open, found = threading.Barrier(len(modes)), {}
    begin, here = progress.begin, threading.local()

    def note(*args: Any, **kwargs: Any) -> ProgressItem:
        here.works.append(begin(*args, **kwargs))
        return here.works[-1]  # type: ignore[no-any-return]

    def work(mode: Any) -> None:
        here.works = []
        with dg.Session(progress=mode):
            all_open.wait(60)
            dg.function(lambda x: dg.exp(x))(np.ones(3))
            list(progress.track(range(2), "loop"))
        found[mode] = [each.mode for each in here.works]

    monkeypatch.setenv("DISTGRAD_PROGRESS", "log")
    monkeypatch.setattr(progress, "begin", note)
    threads = [threading.Thread(target=work, args=[mode]) for mode in modes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = {mode: [as_told] * (4 if mode == "off" else 5) for mode, as_told in modes.items()}
    assert found == told  # tracing, planning, compiling, running, the loop; no run is monitored while progress is off


def test_a_run_is_shown_as_its_session_says_while_another_session_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    with dg.Graph():
        x = dg.placeholder((3,))
        y = dg.exp(x)
    with dg.Session(progress="live"):
        found = seen_during(monkeypatch, lambda: dg.Session().run(y, {x: np.ones(3)}))
    stages = ["planning", "running", "compiling"]
    assert [(work.stage, work.mode) for work in found] == [(stage, "log") for stage in stages]


def test_a_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Session: progress is one of 'auto', 'live', 'log', 'off', True or False"):
        dg.Session(progress="loud")


# -- what is reported ------------------------------------------------------------------------------------------------


@pytest.fixture
def in_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTGRAD_PROGRESS", "log")


def seen_during(monkeypatch: pytest.MonkeyPatch, run: Any) -> list[ProgressItem]:
    """All items that begin while `run` runs."""
    monkeypatch.setenv("DISTGRAD_PROGRESS", "log")
    found: list[ProgressItem] = []
    begin = progress.begin

    def note(*args: Any, **kwargs: Any) -> ProgressItem:
        found.append(begin(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(progress, "begin", note)
    run()
    return found


def test_tracing_planning_compiling_and_running_report_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    f = dg.function(lambda x: dg.exp(x), name="curve")
    found = seen_during(monkeypatch, lambda: f(np.ones(3)))
    assert [(work.stage, work.what) for work in found] == [
        ("tracing", "curve"), ("planning", "curve"), ("running", "curve"), ("compiling", "curve"),
    ]  # fmt: skip
    assert progress._active == []


def test_a_run_reports_its_tasks_bytes_and_share(monkeypatch: pytest.MonkeyPatch) -> None:
    step = dg.data_parallel(lambda x: dg.sum(dg.tanh(x @ x.T), axis=0), shards=4, reduction="sum")
    with dg.Session(threads=2, cpus_per_task=1, granularity=1e-4, cluster=this_process()):
        found = seen_during(monkeypatch, lambda: step(np.ones((400, 100))))
    run = next(work for work in found if work.stage == "running")
    assert run.done == run.total
    assert run.done > 4
    assert run.nbytes > 0
    assert run.share == pytest.approx(1.0)


@pytest.mark.usefixtures("in_log")
def test_a_run_that_was_shown_is_freed_without_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Any] = []
    make = RunMonitor.__init__

    def note(look: RunMonitor, *args: Any) -> None:
        looks.append(weakref.ref(look))
        make(look, *args)

    monkeypatch.setattr(RunMonitor, "__init__", note)
    gc.disable()
    try:
        dg.function(lambda x: dg.exp(x))(np.ones(3))
        assert [look() for look in looks] == [None]
    finally:
        gc.enable()


@pytest.mark.usefixtures("in_log")
def test_an_error_removes_the_item(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(x: Any) -> Any:
        raise ArithmeticError("no")

    with pytest.raises(ArithmeticError, match="no"):
        dg.function(fails)(1.0)
    assert progress._active == []


@pytest.mark.usefixtures("in_log")
def test_a_user_op_reports_its_step_and_line() -> None:
    begun, go, said = threading.Event(), threading.Event(), []

    @dg.op("Waits", infer=lambda x: (x.shape, x.dtype))
    def waits(x: Any) -> Any:
        begun.set()
        assert go.wait(30)
        return x

    def look() -> None:
        assert begun.wait(30)
        said.append(progress._active[-1].detail())  # type: ignore[misc]
        go.set()

    thread = threading.Thread(target=look)
    thread.start()
    dg.function(lambda x: waits(x) + 1)(np.ones(3))
    thread.join()
    assert re.fullmatch(r"Waits at test_progress\.py:\d+ \(step 1 of 3\)", said[0])


@pytest.mark.usefixtures("in_log")
def test_a_user_loop_is_tracked() -> None:
    loop = progress.track(range(4), "training", note=lambda: "loss 2.5")
    next(loop), next(loop)
    [work] = progress._active
    assert line(work, work.began + 10) == "training: 1 of 4, 10 s so far, about 30 s left, loss 2.5"
    loop.close()  # type: ignore[attr-defined]
    assert progress._active == []


# -- how it is shown ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_log")
def test_what_takes_less_than_a_second_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    work = progress.begin("running", "step")
    assert progress.visible("log") == []
    monkeypatch.setattr(progress, "SHOW_AFTER", 0.0)
    assert progress.visible("log") == [work]


def test_lines_in_a_log_come_at_growing_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    out, now = StringIO(), [0.0]
    monkeypatch.setattr("distgrad.progress_display.time.monotonic", lambda: now[0])
    lines, work = Lines(out), ProgressItem("running", "step", 100, "tasks")
    work.began = 0.0
    at = []
    for second in range(600):
        now[0], work.done = float(second), second / 6
        lines.show([work])
        at += [second] if out.getvalue().count("\n") > len(at) else []
    gaps = np.diff(at)
    assert at[0] == 2
    assert (np.diff(gaps) >= -1).all()
    assert gaps.max() <= 61
    assert out.getvalue().startswith("distgrad: running step: 0 of 100 tasks, 2 s so far, about 10 min left\n")
    assert "\x1b" not in out.getvalue()


def test_a_bar_shows_how_much_is_done_and_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    out = StringIO()
    console = Console(file=out, force_terminal=True, width=160)
    monkeypatch.setattr("rich.console.Console", lambda **_: console)
    live, work = Live(), ProgressItem("running", "step", 40, "tasks", lambda: "[MatMul] at model.py:12")
    work.done, work.nbytes = 10, 31_000_000
    live.show([work])
    live.show([work])
    live.show([])
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    assert "running step" in text
    assert "10 of 40 tasks · 31 MB" in text
    assert "[MatMul] at model.py:12" in text
    assert live._progress is None


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_each_mode_has_a_separate_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHOW_AFTER", 0.0)
    live, lines = Live(), Lines(StringIO())
    monkeypatch.setattr(progress, "_displays", {"live": live, "log": lines})
    drawn = progress.begin("running", "step", session_mode="live")
    written = progress.begin("running", "other", session_mode="log")
    with redirect_stderr(Terminal()):
        progress._show("live")
        progress._show("log")
        assert (list(live._bars), list(lines._next)) == ([drawn], [written])
        progress.end(drawn)
        assert live._progress is None
        progress._show("log")
        assert list(lines._next) == [written]


def test_code_that_catches_the_error_output_gets_no_bars() -> None:
    live, work, caught = Live(), ProgressItem("running", "step"), StringIO()
    with redirect_stderr(Terminal()) as terminal:
        live.show([work])
        with redirect_stderr(caught):
            live.show([work])
        live.show([])
    assert caught.getvalue() == ""
    assert "running step" in terminal.getvalue()


def test_bars_of_the_user_are_not_overwritten() -> None:
    from rich.console import Console
    from rich.progress import Progress

    live, work = Live(), ProgressItem("running", "step")
    with redirect_stderr(Terminal()) as terminal, Progress(console=Console(stderr=True), auto_refresh=False):
        live.show([work])
    assert live._progress is None
    assert "running step" not in terminal.getvalue()


def test_output_of_a_forked_process_bypasses_the_bars() -> None:
    live = Live()
    with redirect_stderr(Terminal()) as terminal:
        live.show([ProgressItem("running", "step")])
        assert sys.stderr is not terminal
        live.detach()
        assert sys.stderr is terminal
        live._progress.stop()


@pytest.mark.usefixtures("in_log")
def test_calls_of_a_body_count_with_the_steps_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(w: Any, x: Any) -> Any:
        for _ in range(30):
            x = np.tanh(x @ w)
        return np.mean(x)

    said: list[str] = []
    before = TaskMonitor.before

    def note(monitor: TaskMonitor, step: Any) -> None:
        before(monitor, step)
        said.append(progress._active[-1].detail())  # type: ignore[misc]

    monkeypatch.setattr(TaskMonitor, "before", note)
    monkeypatch.setattr("distgrad.workers.local.engine.LONG", 0.0)
    with dg.Session(threads=1):
        dg.data_parallel(dg.grad(loss), shards=16)(np.ones((4, 4)), np.ones((32, 4)))
    calls = f"{len(said):,}"
    assert len(said) > 16 * 30
    assert f"(step 1 of {calls})" in said[0]
    assert f"(step {calls} of {calls})" in said[-1]


SCRIPT = """
import time
import numpy as np
import distgrad as dg

@dg.op("Sleeps", infer=lambda x: (x.shape, x.dtype))
def sleeps(x):
    time.sleep(2.5)
    return x

print(dg.function(lambda x: sleeps(x) + 1, name="slow")(np.ones(2)).sum())
"""


def run_script(tmp_path: Path, mode: str, terminal: bool) -> str:
    """The stderr of a script, with a terminal or a pipe."""
    script = tmp_path / "slow.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "DISTGRAD_PROGRESS": mode, "TERM": "xterm"}
    ours, theirs = pty.openpty() if terminal else os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, stderr=theirs, text=True
        )
        os.close(theirs)
        said = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # a terminal whose other end is closed
                break
            if not part:
                break
            said += part
        assert process.communicate(timeout=60)[0] == "4.0\n"
    finally:
        os.close(ours)
    return said.decode()


def test_in_a_terminal_a_long_run_has_a_bar_which_goes_away(tmp_path: Path) -> None:
    said = run_script(tmp_path, "auto", terminal=True)
    assert "running slow" in said
    assert said.count("\x1b[?25l") == said.count("\x1b[?25h") == 1  # the cursor is hidden, and seen again
    assert said.rstrip().endswith("\x1b[2K\x1b[?25h")  # the line is cleared


def test_in_a_pipe_a_long_run_is_quiet(tmp_path: Path) -> None:
    assert run_script(tmp_path, "auto", terminal=False) == ""


def test_in_the_log_of_a_job_a_long_run_says_a_line(tmp_path: Path) -> None:
    said = run_script(tmp_path, "log", terminal=False)
    expected = r"distgrad: running slow: 0 of 1 tasks, [23] s so far, Sleeps at slow\.py:\d+ \(step 1 of 3\)\n"
    assert re.fullmatch(expected, said)
