"""The options of a session: what each of them does, and what is said of values that cannot be."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad import runtime
from distgrad.run import planner
from distgrad.run.options import SessionOptions
from distgrad.scheduler.cluster import Cluster, Worker, local_cluster

from ..step_graphs import this_process

POSITIVE = "is a positive whole number, got"
SECONDS = "is a positive number of seconds, got"
FLAG = "is True or False, got"
MEMORY = "memory is a positive number of bytes or text such as '4 GiB', got"

#: Options that cannot be, and what is said of them.
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"threads": 0}, ValueError, f"threads {POSITIVE} 0"),
    ({"threads": -2}, ValueError, f"threads {POSITIVE} -2"),
    ({"threads": 1.5}, ValueError, f"threads {POSITIVE} 1.5"),
    ({"threads": True}, ValueError, f"threads {POSITIVE} True"),
    ({"threads": "2"}, ValueError, f"threads {POSITIVE} '2'"),
    ({"cpus_per_task": 0}, ValueError, f"cpus_per_task {POSITIVE} 0"),
    ({"threads": 2, "cpus_per_task": 3}, ValueError, "cpus_per_task is 3, but the session has 2"),
    ({"memory": 0}, ValueError, f"{MEMORY} 0"),
    ({"memory": -1}, ValueError, f"{MEMORY} -1"),
    ({"memory": "much"}, ValueError, f"{MEMORY} 'much'"),
    ({"memory": "4 apples"}, ValueError, f"{MEMORY} '4 apples'"),
    ({"memory": "1.2.3 GB"}, ValueError, f"{MEMORY} '1.2.3 GB'"),
    ({"memory": True}, ValueError, f"{MEMORY} True"),
    ({"memory": float("nan")}, ValueError, f"{MEMORY} nan"),
    ({"timeout": 0}, ValueError, f"timeout {SECONDS} 0"),
    ({"timeout": float("inf")}, ValueError, f"timeout {SECONDS} inf"),
    ({"timeout": "1"}, ValueError, f"timeout {SECONDS} '1'"),
    ({"timeout": True}, ValueError, f"timeout {SECONDS} True"),
    ({"granularity": -1e-3}, ValueError, f"granularity {SECONDS} -0.001"),
    ({"granularity": float("nan")}, ValueError, f"granularity {SECONDS} nan"),
    ({"in_order": "yes"}, TypeError, f"in_order {FLAG} 'yes'"),
    ({"check_numerics": None}, TypeError, f"check_numerics {FLAG} None"),
    ({"backend": "nump"}, ValueError, "there is no array backend 'nump'; the known ones are 'numpy', 'torch'"),
    ({"backend": np}, TypeError, "backend is the name of an array library, such as 'numpy', got <module 'numpy'"),
    ({"cluster": 5}, TypeError, "cluster is a Cluster or the path of a cluster file, got 5"),
    ({"engine": "dask"}, ValueError, "unknown engine 'dask'; there are 'local' and 'ray'"),
    ({"engine": 4}, ValueError, "unknown engine 4; there are 'local' and 'ray'"),
    ({"workers": 3}, ValueError, "workers is an option of Session('ray'), not of 'local'"),
    ({"task_timeout": 3}, ValueError, "task_timeout is an option of Session('ray'), not of 'local'"),
    ({"engine": "ray", "threads": 3}, ValueError, "threads is an option of Session('local'), not of 'ray'"),
    ({"engine": "ray", "address": 3}, TypeError, "address is the address of a Ray cluster, such as 'auto', got 3"),
    ({"engine": "ray", "workers": 0}, ValueError, f"workers {POSITIVE} 0"),
    ({"engine": "ray", "attempts": True}, ValueError, f"attempts {POSITIVE} True"),
    ({"engine": "ray", "in_flight": "all"}, ValueError, f"in_flight {POSITIVE} 'all'"),
    ({"engine": "ray", "task_timeout": -1}, ValueError, f"task_timeout {SECONDS} -1"),
    ({"engine": "ray", "object_store_memory": "much"}, ValueError, "object_store_memory"),
    ({"threads": 5000}, ValueError, "threads is 5000; the maximum is 1024"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "error", "text"), WRONG, ids=[str(options) for options, _, _ in WRONG])
def test_a_value_that_cannot_be_is_named_with_what_is_allowed(options: Any, error: Any, text: str) -> None:
    with pytest.raises(error) as info:
        dg.Session(**options)
    assert str(info.value).startswith(f"Session: {text}")


def test_numpy_numbers_are_numbers() -> None:
    made = dg.Session(threads=np.int64(2), timeout=np.float32(2), memory=np.int32(10**6), in_order=np.bool_(True))
    assert made._planner is dg.Session(threads=2, timeout=2.0, memory=10**6, in_order=True)._planner


# -- threads and tasks -------------------------------------------------------------------------------------------


def towers(count: int = 4) -> Any:
    """Products that do not need each other, summed at the end."""
    return dg.function(lambda x: dg.add_n([dg.exp(x * float(i)) @ x for i in range(count)]))


X = np.random.default_rng(0).normal(size=(32, 32)) * 0.01


def cpus_of(plan: dg.Plan) -> set[int]:
    return {task.cpus for task in plan.tasks}


def test_a_task_has_all_threads_of_the_session_unless_told_otherwise() -> None:
    f = towers()
    with dg.Session(threads=3):
        assert cpus_of(f.plan(X)) == {3}
    with dg.Session(threads=3, cpus_per_task=1):
        assert cpus_of(f.plan(X)) == {1}


def test_granularity_and_order_and_side_by_side_change_no_bit() -> None:
    f = towers()
    with dg.Session(threads=1):
        expected = f(X).tobytes()
    for options in (
        {"granularity": 1e-9},
        {"granularity": 10.0},
        {"granularity": 1e-9, "in_order": True},
        {"threads": 4, "cpus_per_task": 1, "granularity": 1e-9},
        {"threads": 4, "cpus_per_task": 1, "granularity": 1e-9, "timeout": 60},
    ):
        with dg.Session(**{"threads": 1, **options}):  # type: ignore[arg-type]
            assert f(X).tobytes() == expected


@pytest.mark.parametrize(("in_order", "expected"), [(False, 2), (True, 1)])
def test_in_order_runs_one_task_at_a_time(in_order: bool, expected: int) -> None:
    meeting = threading.Barrier(expected)

    @dg.op("TestOptionsMeet", infer=lambda x: (x.shape, x.dtype), override=True)
    def meet(x: Any) -> Any:
        meeting.wait(60)
        return x + 0

    f = dg.function(lambda x: meet(dg.exp(x) @ x) + meet(dg.sin(x) @ x))
    with dg.Session(threads=2, cpus_per_task=1, granularity=1e-9, cluster=this_process(), in_order=in_order):
        assert len(f.plan(X).tasks) > 2
        f(X)


def test_a_kernel_may_call_functions_though_it_occupies_the_pool() -> None:
    inner = dg.function(lambda x: dg.sum(x * 2) + dg.sum(dg.exp(x) @ x))

    @dg.op("TestOptionsNested", infer=lambda x: (x.shape, x.dtype))
    def nested(x: Any) -> Any:
        return x + inner(x)

    f = dg.function(lambda x: nested(x) + nested(x * 2))
    with dg.Session():
        expected = f(X).tobytes()
    for options in ({"granularity": 1e-9, "threads": 2, "cpus_per_task": 1}, {"threads": 1, "timeout": 60}):
        with dg.Session(**options):
            assert f(X).tobytes() == expected


# -- memory ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "nbytes"),
    [
        (1000, 1000),
        (1e3, 1000),
        ("1000", 1000),
        ("4GiB", 4 << 30),
        (" 0.5 mib ", 1 << 19),
        ("2 kB", 2000),
        ("3 TB", 3 * 10**12),
    ],
)
def test_memory_is_bytes_or_text(memory: Any, nbytes: int) -> None:
    assert SessionOptions(memory=memory).memory == nbytes


def test_what_needs_more_memory_than_allowed_is_refused_before_anything_runs() -> None:
    ran: list[int] = []

    @dg.op("TestOptionsRan", infer=lambda x: (x.shape, x.dtype))
    def ran_op(x: Any) -> Any:
        ran.append(1)
        return x + 0

    @dg.function
    def f(x: dg.Tensor) -> dg.Tensor:
        outer = dg.exp(ran_op(x)[:, None] @ x[None, :])
        return dg.sum(outer @ outer)

    x = np.ones(1000)
    with dg.Session(memory="10 MiB"), pytest.raises(dg.BudgetError) as info:
        f(x)
    assert ran == []
    text = str(info.value)
    assert re.match(r"the run would need 1\d\.\d MiB at its peak, but may use only 10.0 MiB. The largest tensors", text)
    assert text.count("f64[1000,1000], 7.6 MiB") == 2
    assert "test_session_options.py:" in text
    assert "What would help: a smaller batch, " in text
    assert "float32 instead of float64" in text
    with dg.Session(memory="20 MiB"):
        assert f(x) > 0
    assert isinstance(info.value, MemoryError)


def test_a_refused_run_leaves_every_variable_as_it_was() -> None:
    v = dg.Variable(1.0)

    @dg.function
    def f(x: dg.Tensor) -> dg.Tensor:
        v.assign(2.0)
        return x[:, None] * x

    with dg.Session(memory=1000), pytest.raises(dg.BudgetError):
        f(np.ones(100))
    assert v.numpy() == 1.0


# -- timeout -----------------------------------------------------------------------------------------------------


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a kernel waits for; open after the test, so that no thread waits for ever."""
    event = threading.Event()
    yield event
    event.set()


def hanging(event: threading.Event) -> Any:
    @dg.op("TestOptionsHang", infer=lambda x: (x.shape, x.dtype), override=True)
    def hang(x: Any) -> Any:
        event.wait(60)
        return x + 0

    return hang


@pytest.mark.parametrize("options", [{}, {"threads": 2, "cpus_per_task": 1, "granularity": 1e-9}])
def test_a_run_that_takes_too_long_is_given_up_and_says_where_it_was(options: Any, gate: threading.Event) -> None:
    hang, v = hanging(gate), dg.Variable(1.0)

    @dg.function
    def f(x: dg.Tensor) -> dg.Tensor:
        v.assign_add(1.0)
        return hang(dg.exp(x) @ x, name="stuck")

    g = dg.function(lambda x: dg.sum(x @ x) + v.assign_add(1.0))
    with dg.Session(timeout=1, **options), pytest.raises(TimeoutError) as info:
        f(X)
    lines = str(info.value).splitlines()
    assert lines[0] == "the run was stopped after its timeout of 1 s. It was waiting for:"
    assert any(" steps: at op 'stuck' (type TestOptionsHang, at test_session_options.py:" in line for line in lines)
    assert lines[-1].startswith("Variables are unchanged. Increase Session(timeout=)")
    assert v.numpy() == 1.0
    with dg.Session(timeout=60, **options):  # while the kernel still hangs
        g(X)
    assert v.numpy() == 2.0


def test_a_run_that_ends_in_time_is_not_affected() -> None:
    with dg.Session(timeout=60):
        assert dg.function(lambda x: x + 1)(np.ones(2)).tolist() == [2.0, 2.0]


def test_a_task_that_was_given_up_stops_before_its_next_step(gate: threading.Event) -> None:
    hang, threads = hanging(gate), []

    @dg.op("TestOptionsRecord", infer=lambda x: (x.shape, x.dtype))
    def record(x: Any) -> Any:
        threads.append(threading.current_thread())
        return x + 0

    f = dg.function(lambda x: record(hang(record(x))))
    with dg.Session(timeout=0.05), pytest.raises(TimeoutError, match="was stopped after its timeout"):
        f(np.ones(2))
    gate.set()
    threads[0].join(60)
    assert not threads[0].is_alive()  # nobody else has work for it
    assert len(threads) == 1


def test_a_process_ends_though_a_kernel_that_was_given_up_still_runs(tmp_path: Path) -> None:
    code = """
import threading, numpy as np, distgrad as dg
@dg.op("Hang", infer=lambda x: (x.shape, x.dtype))
def hang(x):
    threading.Event().wait()
with dg.Session(timeout=0.05):
    try:
        dg.function(lambda x: hang(x))(np.ones(2))
    except TimeoutError:
        print("given up")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert (done.stdout, done.returncode) == ("given up\n", 0), done.stderr


# -- clusters and plans ------------------------------------------------------------------------------------------

FILE = """
name = "three"
[[nodes]]
count = 3
cpus = 4
memory = "8 GiB"
"""


def test_a_plan_is_made_for_the_cluster_that_is_given(tmp_path: Path) -> None:
    path = tmp_path / "three.toml"
    path.write_text(FILE)
    f = towers()
    for cluster in (path, str(path)):
        with dg.Session(cluster=cluster):
            plan = f.plan(X)
        assert (plan.cluster.name, len(plan.cluster.workers), cpus_of(plan)) == ("three", 3, {4})
    with dg.Session(cluster=Cluster((Worker(2),) * 2, name="two")):
        assert f.plan(X).cluster.name == "two"
        assert f(X).shape == (32, 32)  # this machine runs it


def test_a_cluster_file_that_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere.toml: cannot be read: No such file"):
        dg.Session(cluster=tmp_path / "nowhere.toml")
    path = tmp_path / "three.toml"
    path.write_text(FILE.replace("count", "counts"))
    with pytest.raises(ValueError, match=r"three.toml: \[\[nodes\]\] 1: there is no field 'counts'; did you mean"):
        dg.Session(cluster=path)


def test_a_task_cannot_have_more_cpus_than_a_worker() -> None:
    with pytest.raises(ValueError, match="cpus_per_task is 8, but the largest worker of cluster 'two' has 2"):
        dg.Session(cluster=Cluster((Worker(2),) * 2, name="two"), cpus_per_task=8)


def test_a_session_gives_the_plan_of_what_it_would_run() -> None:
    with dg.Graph():
        x = dg.placeholder((4, 4), name="x")
        y, v = dg.exp(x) @ x, dg.Variable(1.0)
        doubled = v.assign(v * 2)
    plan = dg.Session(threads=2).plan({"y": [y], "op": doubled.op}, {x: np.ones((4, 4))})
    assert isinstance(plan, dg.Plan)
    assert {step.type for step in plan.program.steps} >= {"Exp", "MatMul"}
    assert plan.program.writes
    assert "Exp" in plan.explain() or "MatMul" in plan.explain()
    assert v.numpy() == 1.0


@pytest.mark.parametrize("nothing", [None, [], {"a": None}])
def test_there_is_no_plan_for_nothing(nothing: Any) -> None:
    with pytest.raises(ValueError, match="there is nothing to run in"):
        dg.Session().plan(nothing)


def test_a_function_gives_its_plan_in_the_current_session_and_computes_nothing() -> None:
    v = dg.Variable(1.0)
    f = dg.function(lambda x, *, k=2: v.assign_add(dg.sum(x) * k))
    with dg.Session(threads=1):
        plan = f.plan(np.ones(3), k=3)
    assert (plan.cluster.cpus, v.numpy()) == (1, 1.0)
    assert f.plan(np.ones(3)).cluster == runtime.current()._planner.cluster  # type: ignore[attr-defined]


def test_plans_are_kept_by_content(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    real = planner.partition
    monkeypatch.setattr(planner, "_plans", type(planner._plans)())
    monkeypatch.setattr(planner, "partition", lambda *args: made.append(args) or real(*args))  # type: ignore[func-returns-value]

    def traced_anew() -> Any:
        return dg.function(lambda x: dg.exp(x) @ x + 0.125)

    x, here = np.ones((7, 7)), {"cluster": this_process()}
    with dg.Session(**here):
        first = traced_anew().plan(x)
        assert (traced_anew().plan(x) is first, len(made)) == (True, 1)
    with dg.Session(check_numerics=True, timeout=60, **here):  # how it runs is not what runs
        assert (traced_anew().plan(x) is first, len(made)) == (True, 1)
        assert (traced_anew().plan(np.ones((8, 8))) is first, len(made)) == (False, 2)
    for options in ({"granularity": 0.5}, {"memory": "1 GiB"}, {"cluster": local_cluster(1, 1 << 30)}):
        with dg.Session(**here | options):
            assert traced_anew().plan(x) is not first
    assert len(made) == 5


def test_a_plan_records_its_own_backend_though_others_have_an_equal_program() -> None:
    for backend in ("numpy", "array-api-strict"):
        with dg.Session(threads=1, backend=backend):
            assert dg.function(lambda x: x @ x).plan(np.ones((3, 3))).backend == backend


def test_only_so_many_plans_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "MAX_CACHED_PLANS", 3)
    monkeypatch.setattr(planner, "_plans", type(planner._plans)())
    plans = [dg.function(lambda x: x + 1.5).plan(np.ones(n)) for n in (1, 2, 3, 1, 4, 1, 2)]
    assert len(planner._plans) == 3
    assert plans[0] is plans[3] is plans[5]
    assert plans[1] is not plans[6]


def test_sessions_with_equal_options_share_what_is_ready() -> None:
    x = np.ones(3)
    f = dg.function(lambda x: x + 1)
    for _ in range(3):
        with dg.Session(threads=2):
            f(x)
    assert len(f.body(x).memo("ready")) == 1


# -- mistakes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "meant"),
    [("thread", "threads"), ("timeut", "timeout"), ("cpu_per_task", "cpus_per_task"), ("Trace", "trace"),
     ("adress", "address"), ("object_store", "object_store_memory"), ("check_numeric", "check_numerics")],
)  # fmt: skip
def test_a_misspelt_option_proposes_the_right_one(option: str, meant: str) -> None:
    for engine in ("local", "ray"):
        with pytest.raises(TypeError, match=f"^Session: there is no option {option!r}; did you mean {meant!r}\\?$"):
            dg.Session(engine, **{option: 2})  # type: ignore[arg-type]


def test_an_option_that_is_like_none_is_told_all() -> None:
    with pytest.raises(TypeError, match=r"there is no option 'xyz'; its options are engine, threads, .*, progress$"):
        dg.Session(xyz="red")  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"workers": 10**9}, {"cpus_per_task": 10**18}])
def test_numbers_that_no_cluster_has_start_no_ray(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"Session: {next(iter(options))} is 10+; the maximum is "):
        dg.Session("ray", **options)  # type: ignore[arg-type]


BROKEN = """
import sys
sys.path.insert(0, "")
import distgrad as dg
for name in sys.argv[1:]:
    sys.modules[name] = None
try:
    dg.Session("ray")
except ImportError as e:
    print(e)
"""


@pytest.mark.parametrize(
    ("files", "missing", "text"),
    [
        ({}, ["ray"], r"^Session: Ray is not installed: pip install 'ray\[default\]'$"),
        ({}, ["yaml"], r"^Session: Ray is installed, but cannot be imported without 'yaml' \(ModuleNotFoundError: "),
        ({}, ["ray._raylet"], r"^Session: Ray is installed, but lacks 'ray._raylet' \(ModuleNotFoundError: "),
        ({"ray.py": ""}, [], r"^Session: Ray cannot be imported \(.*\), because .*ray\.py shadows it: rename"),
        ({"ray.py": "1 / 0"}, [], r"^Session: Ray cannot be imported \(ZeroDivisionError: .*ray\.py shadows it"),
        ({"yaml.py": "raise OSError('libyaml')"}, [], r"but importing it failed \(OSError: libyaml\): `.*import ray'`"),
    ],
)
def test_an_import_that_failed_is_told_as_it_was(
    files: dict[str, str], missing: list[str], text: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    command = [sys.executable, "-c", BROKEN, *missing]
    made = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=True, timeout=60).stdout
    assert re.search(text, made), made
    assert made.count("\n") == 1
