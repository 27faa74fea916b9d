"""Traces: what is recorded of runs, and the trace document."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

import distgrad as dg
from distgrad.scheduler import trace

from ..step_graphs import this_process

rng = np.random.default_rng(0)
W, X, Y = rng.normal(size=(40, 200)), rng.normal(size=(800, 40)), rng.normal(size=(800, 200))


def loss(w: Any, x: Any, y: Any) -> Any:
    return np.mean((np.tanh(x @ w) - y) ** 2)


def recorded(shards: int = 4, runs: int = 2, **options: Any) -> dict[str, Any]:
    """The trace of a step over shards, in as many tasks and their sum."""
    step = dg.data_parallel(dg.value_and_grad(loss), shards=shards)
    options |= {"cluster": this_process(), "trace": True}
    with dg.Session(threads=2, cpus_per_task=1, granularity=1e-4, **options) as session:
        for _ in range(runs):
            step(W, X, Y)
        recording = session._planner.recording
        assert recording is not None
        return recording.document()


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return recorded()


@pytest.fixture(scope="module")
def plan(made: dict[str, Any]) -> Any:
    return made["distgrad"]["plans"][0]


# -- Chrome's format ---------------------------------------------------------------------------------------------

#: The trace event format: what each phase that is used here must have.
PHASES: dict[str, dict[str, Any]] = {
    "M": {"required": ["args"], "properties": {"name": {"enum": ["process_name", "thread_name"]}}},
    "X": {"required": ["ts", "dur", "cat", "args"], "properties": {"dur": {"type": "number", "minimum": 0}}},
    "s": {"required": ["ts", "id", "cat"]},
    "f": {"required": ["ts", "id", "cat", "bp"], "properties": {"bp": {"const": "e"}}},
    "C": {
        "required": ["ts", "args"],
        "properties": {"args": {"type": "object", "additionalProperties": {"type": "number"}}},
    },
}
SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["ph", "pid", "tid", "name"],
                "properties": {
                    "ph": {"enum": sorted(PHASES)},
                    "pid": {"type": "integer"},
                    "tid": {"type": "integer"},
                    "name": {"type": "string"},
                    "ts": {"type": "number", "minimum": 0},
                    "args": {"type": "object"},
                },
                "allOf": [
                    {"if": {"properties": {"ph": {"const": ph}}}, "then": rules} for ph, rules in PHASES.items()
                ],
            },
        },
    },
}


def test_a_trace_is_of_chromes_format(made: dict[str, Any]) -> None:
    Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(made)))


def test_the_schema_refuses_a_slice_without_duration(made: dict[str, Any]) -> None:
    event = {key: value for key, value in _slices(made)[0].items() if key != "dur"}
    assert not Draft202012Validator(SCHEMA).is_valid({"traceEvents": [event]})


def _slices(made: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in made["traceEvents"] if event["ph"] == "X"]


def test_every_task_is_a_slice(made: dict[str, Any], plan: Any) -> None:
    assert sorted(event["args"]["task"] for event in _slices(made)) == list(range(len(plan["tasks"])))


def test_slices_of_one_thread_do_not_overlap(made: dict[str, Any]) -> None:
    ends: dict[tuple[int, int], float] = {}
    for event in sorted(_slices(made), key=lambda event: event["ts"]):
        thread = event["pid"], event["tid"]
        assert event["ts"] >= ends.get(thread, 0.0) - 1
        ends[thread] = event["ts"] + event["dur"]


def test_arrows_begin_in_a_slice_and_end_at_the_beginning_of_one(made: dict[str, Any]) -> None:
    starts = {event["id"]: event for event in made["traceEvents"] if event["ph"] == "s"}
    ends = {event["id"]: event for event in made["traceEvents"] if event["ph"] == "f"}
    assert starts.keys() == ends.keys() != set()
    slices = _slices(made)
    for key, start in starts.items():
        at = [s for s in slices if s["tid"] == start["tid"] and s["ts"] <= start["ts"] <= s["ts"] + s["dur"]]
        assert at
        assert any(s["ts"] == ends[key]["ts"] and s["tid"] == ends[key]["tid"] for s in slices)


# -- what it says of a plan --------------------------------------------------------------------------------------


def test_the_last_run_is_told_in_full_and_all_are_counted(plan: Any) -> None:
    assert plan["runs"]["count"] == 2
    assert len(plan["runs"]["seconds"]) == 2
    assert plan["measured"]["seconds"] == plan["runs"]["seconds"][-1]


def test_tasks_are_told_with_their_ops_lines_and_where_they_read(plan: Any) -> None:
    towers = [task for task in plan["tasks"] if task["kind"] == "work"]
    assert "MatMul" in towers[0]["ops"]
    assert towers[0]["line"].startswith("test_trace.py:")
    assert next(task["reads"] for task in plan["tasks"] if task["kind"] == "reduce")


def test_sums_over_shards_are_told_apart(plan: Any) -> None:
    assert {task["kind"] for task in plan["tasks"]} == {"work", "reduce"}


def test_a_task_begins_after_those_that_it_reads_from(plan: Any) -> None:
    ran = plan["measured"]
    for k, task in enumerate(plan["tasks"]):
        for j in (*task["reads"], *task["waits"]):
            assert ran["start"][k] >= ran["end"][j] - 1e-4


def test_ops_are_timed_by_line_and_beside_them_stands_what_was_predicted(plan: Any) -> None:
    assert plan["ops_measured"]
    product = next(row for row in plan["ops"] if row["op"] == "MatMul")
    assert product["seconds"] > 0
    assert product["predicted"] > 0
    assert product["calls"] >= 4
    assert product["line"].startswith("test_trace.py:")


def test_the_ops_of_a_run_take_no_longer_than_its_tasks(plan: Any) -> None:
    ran = plan["measured"]
    tasks = sum(end - start for start, end in zip(ran["start"], ran["end"], strict=True))
    assert 0 < sum(row["seconds"] for row in plan["ops"]) <= tasks * 1.01


def test_memory_ends_with_what_is_wanted_and_stays_below_the_sum(plan: Any) -> None:
    wanted = sum(bundle["nbytes"] for bundle in plan["bundles"] if bundle["wanted"])
    assert sum(line[-1][1] for line in plan["measured"]["memory"] if line) == wanted
    assert all(nbytes >= 0 for line in plan["measured"]["memory"] for _, nbytes in line)


def test_the_resident_bytes_of_the_process_are_noted(plan: Any) -> None:
    assert all(nbytes > 1 << 20 for line in plan["measured"]["resident"] for _, nbytes in line)
    assert any(plan["measured"]["resident"])


def test_a_plan_that_never_ran_is_told_as_predicted() -> None:
    step = dg.data_parallel(dg.value_and_grad(loss), shards=2)
    with dg.Session(cpus_per_task=1):
        document = trace.document([trace.Entry(step.plan(W, X, Y), "step")], "1")
    Draft202012Validator(SCHEMA).validate(document)
    plan = document["distgrad"]["plans"][0]
    assert plan["measured"] is None
    assert not plan["ops_measured"]
    assert plan["runs"] == {"count": 0, "seconds": [], "began": None}
    assert plan["ops"][0]["predicted"] == plan["ops"][0]["seconds"] > 0


def test_of_a_body_that_is_called_often_the_ops_inside_are_told() -> None:
    def deep(w: Any, x: Any) -> Any:
        for _ in range(30):
            x = np.tanh(x @ w)
        return np.mean(x)

    step = dg.data_parallel(dg.grad(deep), shards=16)
    with dg.Session(trace=True) as session:
        step(np.ones((4, 4)), np.ones((32, 4)))
        [plan] = session._planner.recording.document()["distgrad"]["plans"]  # type: ignore[union-attr]
    assert any(each.type == "Call" for each in step.plan(np.ones((4, 4)), np.ones((32, 4))).program.steps)
    assert "MatMul ×" in plan["tasks"][0]["ops"]
    assert all(row["predicted"] is not None for row in plan["ops"])
    assert sum(row["calls"] for row in plan["ops"] if row["op"] == "MatMul") == 16 * (30 + 30 + 29)


def test_a_clock_that_goes_wrong_is_set_right_by_the_length_of_the_run() -> None:
    step = dg.data_parallel(dg.value_and_grad(loss), shards=4)
    with dg.Session(threads=2, cpus_per_task=1, granularity=1e-4, cluster=this_process(), trace=True) as session:
        step(W, X, Y)
        plan, report = step.plan(W, X, Y), session.last_run
    assert report is not None
    for k, token in report.tokens.items():  # a node an hour ahead, and one an hour behind
        hour = 3600 if k % 2 else -3600
        report.tokens[k] = token._replace(node=f"{k % 2}", start=token.start + hour, end=token.end + hour)
    document = trace.document([trace.Entry(plan, "step", report)], "1")
    Draft202012Validator(SCHEMA).validate(document)
    measured = document["distgrad"]["plans"][0]["measured"]
    assert min(measured["start"]) >= 0
    assert max(measured["end"]) <= report.seconds + 1e-6


# -- sessions ----------------------------------------------------------------------------------------------------


def test_recording_changes_no_bit() -> None:
    step = dg.data_parallel(dg.value_and_grad(loss), shards=3)
    with dg.Session(cpus_per_task=1):
        value, grad = step(W, X, Y)
    with dg.Session(cpus_per_task=1, trace=True):
        again, grad_again = step(W, X, Y)
    assert value == again
    assert (grad == grad_again).all()


def test_a_trace_is_written_when_the_session_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with dg.Session(trace=path):
        dg.grad(loss)(W, X, Y)
        assert not path.exists()
    assert json.loads(path.read_text())["distgrad"]["plans"][0]["name"] == "grad_loss"


def test_a_trace_is_written_where_it_was_asked_for_from_any_folder(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with dg.Session(trace="trace.json"):
        dg.grad(loss)(W, X, Y)
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
    assert (tmp_path / "trace.json").exists()


def test_what_is_recorded_goes_with_its_session() -> None:
    f = dg.function(loss)
    with dg.Session(trace=True) as session:
        f(W, X, Y)
    recording = weakref.ref(session._planner.recording)
    del session
    gc.collect()
    assert recording() is None


def test_a_run_without_tasks_leaves_nothing_to_show(tmp_path: Path) -> None:
    with dg.Session(trace=tmp_path / "trace.html") as session:
        assert dg.function(lambda x: x)(X).shape == X.shape
        assert session.last_run is None
    assert not (tmp_path / "trace.html").exists()


def test_nothing_is_written_where_nothing_ran(tmp_path: Path) -> None:
    with dg.Session(trace=tmp_path / "trace.json"):
        pass
    assert not (tmp_path / "trace.json").exists()


def test_the_plans_of_a_session_stand_beside_each_other(tmp_path: Path) -> None:
    with dg.Session(trace=True) as session:
        dg.grad(loss)(W, X, Y)
        dg.function(loss)(W, X, Y)
        session.write_trace(tmp_path / "trace.json")
    made = json.loads((tmp_path / "trace.json").read_text())
    assert [plan["name"] for plan in made["distgrad"]["plans"]] == ["grad_loss", "loss"]


def test_the_last_run_of_a_local_session_that_records_can_be_asked_for() -> None:
    with dg.Session(trace=True) as session:
        assert session.last_run is None
        dg.function(loss)(W, X, Y)
        assert session.last_run is not None
        assert session.last_run.tokens[0].end > session.last_run.tokens[0].start


def test_a_failed_run_is_not_recorded() -> None:
    @dg.op("Fails", infer=lambda x: (x.shape, x.dtype))
    def fails(x: Any) -> Any:
        raise ArithmeticError("no")

    with dg.Session(trace=True) as session:
        with pytest.raises(ArithmeticError, match="no"):
            dg.function(lambda x: fails(x))(X)
        assert session.last_run is None


@pytest.mark.parametrize(
    ("path", "text"),
    [("trace.txt", r"a trace is a \.json file, a report a \.html file"), ("no/such/t.json", "there is no folder")],
)
def test_a_path_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path, path: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"Session: trace: .*{text}"):
        dg.Session(trace=tmp_path / path)


def test_a_trace_is_a_path_or_a_flag() -> None:
    with pytest.raises(TypeError, match=r"trace is True or the path of a \.json or \.html file, got 3"):
        dg.Session(trace=3)  # type: ignore[arg-type]


def test_a_session_that_records_nothing_has_no_trace(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"records nothing: open it with Session\(trace=True\)"):
        dg.Session().write_trace(tmp_path / "trace.json")


def test_a_session_in_which_nothing_ran_has_no_trace(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run has ended in this session yet"):
        dg.Session(trace=True).write_trace(tmp_path / "trace.json")


def many(x: Any) -> Any:
    return np.sum(np.tanh(x) * np.exp(x) + np.sin(x), axis=0) @ np.ones((x.shape[1], 2))


@pytest.mark.parametrize("text", ["Tanh", "Exp", "Sin", "Sum", "MatMul"])
def test_a_task_is_found_by_every_op_in_it(text: str) -> None:
    entry = trace.Entry(dg.function(many).plan(np.ones((300, 300))), "many")
    task = trace.document([entry], "0")["distgrad"]["plans"][0]["tasks"][0]
    assert text in task["all"]
    assert f"test_trace.py:{many.__code__.co_firstlineno + 1}" in task["all"]


def deep(x: Any) -> Any:
    for _ in range(20):
        x = np.tanh(x) @ x
    return x


def test_a_task_is_found_by_the_ops_of_a_function_that_it_calls() -> None:
    inner = dg.function(deep)
    calls = dg.function(lambda x: sum([inner(x * k) for k in range(20)])).plan(np.ones((30, 30))).program.steps
    stamped = [step for step in calls if step.type == "Call"]
    assert trace._words(stamped) == f"MatMul Tanh test_trace.py:{deep.__code__.co_firstlineno + 2}"


def test_what_decides_is_that_of_the_explanation() -> None:
    plan = dg.function(many).plan(np.ones((300, 300)))
    decides = trace.document([trace.Entry(plan, "many")], "0")["distgrad"]["plans"][0]["decides"]
    assert f"bottleneck  {decides}\n" in plan.explain()
