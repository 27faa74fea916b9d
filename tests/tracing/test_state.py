"""Calls as transactions: what fails or is interrupted leaves no trace, and calls of several threads do not mix."""

from __future__ import annotations

import dis
import gc
import itertools
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.tracing.state import put, take

#: Ways to run one plan: alone, task by task side by side, watched, and with a timeout.
SESSIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "many tasks": {"granularity": 1e-9},
    "side by side": {"threads": 2, "cpus_per_task": 1, "granularity": 1e-9},
    "timeout": {"timeout": 60},
    "check_numerics": {"check_numerics": True, "threads": 2, "cpus_per_task": 1, "granularity": 1e-9},
}


class Bomb:
    """Raises its error at the `fuse`-th time that a kernel is called."""

    fuse = -1
    error: type[BaseException] = ZeroDivisionError

    def tick(self) -> None:
        self.fuse -= 1
        if self.fuse == 0:
            raise self.error("boom")


BOMB = Bomb()


@dg.op("TestStateBomb", infer=lambda x: (x.shape, x.dtype))
def bomb(x: Any) -> Any:
    BOMB.tick()
    return x + 0


@pytest.fixture(autouse=True)
def _defused() -> Iterator[None]:
    yield
    BOMB.fuse = -1


class Model:
    """Two weights and a counter that one step moves together, with kernels that may fail in between."""

    bombs = 6

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.w = dg.Variable(rng.normal(size=(8, 8)))
        self.b = dg.Variable(rng.normal(size=8))
        self.count = dg.Variable(0)
        self.x = rng.normal(size=(4, 8))
        self.step = dg.function(self._step)

    def _step(self, x: dg.Tensor) -> dg.Tensor:
        hidden = bomb(dg.tanh(bomb(x) @ self.w + self.b))
        loss = dg.sum(bomb(hidden) ** 2)
        gw, gb = dg.gradients(dg.sum(dg.tanh(x @ self.w + self.b) ** 2), [self.w, self.b])
        self.w.assign_sub(0.1 * bomb(gw))
        self.count.assign_add(1)
        self.b.assign_sub(bomb(0.1 * gb))
        return bomb(loss)

    def state(self) -> list[bytes]:
        return [v.numpy().tobytes() for v in (self.w, self.b, self.count)]


@pytest.mark.parametrize("options", SESSIONS.values(), ids=SESSIONS)
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_call_that_fails_anywhere_leaves_every_bit_as_it_was(options: Any, error: type[BaseException]) -> None:
    model, good = Model(), Model()
    BOMB.error = error
    with dg.Session(**options):
        good.step(good.x)
        before = model.state()
        for BOMB.fuse in range(1, Model.bombs + 1):
            with pytest.raises(error, match="boom"):
                model.step(model.x)
            assert model.state() == before
        model.step(model.x)
    assert model.state() == good.state()


def test_a_nan_that_is_found_leaves_every_bit_as_it_was() -> None:
    model = Model()
    before = model.state()
    with dg.Session(check_numerics=True), pytest.raises(dg.NumericsError, match="contains NaN"):
        model.step(np.full((4, 8), np.nan))
    assert model.state() == before
    w = dg.Variable([1.0, 2.0])

    @dg.function
    def step(x: dg.Tensor) -> dg.Tensor:
        return w.assign_add(dg.log(x))

    with dg.Session(check_numerics=True), pytest.raises(dg.NumericsError, match=r"op 'Log'.* produced NaN"):
        step(np.array([1.0, -1.0]))
    assert w.numpy().tolist() == [1.0, 2.0]


#: Instructions after which Python looks for signals.
LOOKS = {dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD")}


class Interrupter:
    """Raises KeyboardInterrupt at the n-th moment at which a signal could be handled in these files of distgrad."""

    def __init__(self, n: int, *files: str):
        self.left, self.files, self.before = n, files, {}  # type: ignore[var-annotated]

    def __call__(self, frame: Any, event: str, arg: object) -> Any:
        if event == "call":
            if not frame.f_code.co_filename.endswith(self.files):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            self.left -= self.before.get(frame) in LOOKS
            self.before[frame] = frame.f_code.co_code[frame.f_lasti]
            if not self.left:
                raise KeyboardInterrupt("boom")
        return self


@pytest.mark.parametrize("options", [SESSIONS["plain"], SESSIONS["timeout"]])
def test_an_interrupt_at_any_moment_leaves_all_as_it_was_or_all_done(options: Any) -> None:
    a, b = dg.Variable(0), dg.Variable(np.zeros(3, int))
    step = dg.function(lambda: (a.assign_add(1), b.assign_add(1)))
    with dg.Session(**options):
        step()
        for n in itertools.count(1):
            steps, tracer = int(a.numpy()), sys.gettrace()
            sys.settrace(Interrupter(n, "state.py", "session.py", "local.py", "pool.py"))
            try:
                step()
                break
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(tracer)
            assert int(a.numpy()) in (steps, steps + 1)
            assert (b.numpy() == a.numpy()).all()
            assert not a.gate.locked()
            assert not b.gate.locked()
    assert n > 40


@pytest.mark.parametrize("options", [SESSIONS["plain"], SESSIONS["side by side"], SESSIONS["timeout"]])
def test_an_interrupt_at_a_random_moment_leaves_whole_steps_and_free_variables(options: Any) -> None:
    root = Path(__file__).parent.parent.parent
    command = [sys.executable, "-m", "tests.interrupts", "60", json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    steps, threads = (int(word) for word in done.stdout.split() if word.isdigit())
    assert steps > 60
    assert threads <= 8


# -- several threads ---------------------------------------------------------------------------------------------


def in_threads(*works: Callable[[], object]) -> None:
    """Run all at the same time; an error of any is an error, and so is a wait without end."""
    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result(60)


def repeat(work: Callable[[], object], times: int = 100) -> Callable[[], object]:
    return lambda: [work() for _ in range(times)]


def test_concurrent_steps_lose_no_update() -> None:
    v = dg.Variable(0)
    step = dg.function(lambda: v.assign_add(1))
    in_threads(*[repeat(step)] * 6)
    assert v.numpy() == 600


def test_concurrent_assigns_outside_any_graph_lose_no_update() -> None:
    v = dg.Variable(0)
    step = dg.function(lambda: v.assign_add(1))
    in_threads(repeat(lambda: v.assign_add(1), 300), repeat(lambda: v.assign_sub(1), 200), repeat(step))
    assert v.numpy() == 200


def test_an_assign_outside_any_graph_gives_what_it_set() -> None:
    v = dg.Variable(0)
    seen: list[int] = []
    in_threads(*[repeat(lambda: seen.append(int(v.assign_add(1))))] * 4)
    assert sorted(seen) == list(range(1, 401))


def test_variables_that_are_assigned_together_are_never_seen_apart() -> None:
    a, b = dg.Variable(0), dg.Variable(np.zeros(1000, int))
    seen: list[Any] = []

    @dg.function
    def move() -> None:
        a.assign_add(1)
        b.assign_add(np.ones(1000, int))

    look = dg.function(lambda: (a * 1, b * 1))
    graph = dg.Graph()
    with graph:
        fetches = [a.read(), b.read()]
    in_threads(
        repeat(move), repeat(lambda: seen.append(look())), repeat(lambda: seen.append(dg.Session().run(fetches)))
    )
    assert [x for x, y in seen if (y != x).any()] == []


def test_who_is_told_that_an_old_value_went_sees_all_new_values() -> None:
    variables = [dg.Variable(np.zeros(3)) for _ in range(20)]
    seen: list[set[float]] = []

    def look(_: Any) -> None:
        seen.append({float(value[0]) for value in take(variables)})

    @dg.function
    def step(x: dg.Tensor) -> None:
        for v in variables:
            v.assign(x + np.zeros(3))  # the old value is not read, so nobody has it but the variable

    for number in (1.0, 2.0, 3.0):
        watched = [weakref.ref(v._value, look) for v in variables]
        step(number)
        assert [w() for w in watched] == [None] * 20
        assert seen == [{number}] * 20
        seen.clear()


@pytest.fixture
def collected_often() -> Iterator[list[Callable[[], None]]]:
    """What is in this list runs whenever the garbage collector does, which is as often as it can."""
    hooks: list[Callable[[], None]] = []

    def hook(phase: str, _: Any) -> None:
        for each in hooks if phase == "start" else ():
            each()

    threshold = gc.get_threshold()
    gc.collect()
    gc.freeze()  # so that a collection has little to do
    gc.callbacks.append(hook)
    gc.set_threshold(1, 1000, 1000)
    yield hooks
    gc.set_threshold(*threshold)
    gc.callbacks.remove(hook)
    gc.unfreeze()


class Shared:
    def __init__(self, value: Any) -> None:
        self._value, self.gate = value, threading.Lock()
        self.closed = self.gate


def test_no_collection_of_garbage_comes_between_the_writes_of_one_call(collected_often: Any) -> None:
    variables, torn = [Shared(0) for _ in range(500)], 0

    def look() -> None:
        nonlocal torn
        torn += len({v._value for v in variables}) > 1

    collected_often.append(look)
    for number in range(100):
        put(variables, [number] * len(variables))
    assert torn == 0


def test_no_collection_of_garbage_comes_between_the_reads_of_one_call(collected_often: Any) -> None:
    variables, numbers = [Shared(0) for _ in range(500)], itertools.count(1)
    collected_often.append(lambda: put(variables, [next(numbers)] * len(variables)))
    for _ in range(100):
        held: list[Any] = [[] for _ in range(100)]
        assert len(set(take(variables))) == 1, held
    assert next(numbers) > 100


def test_calls_that_share_a_variable_are_never_under_way_at_once() -> None:
    v, lock = dg.Variable(0.0), threading.Lock()

    @dg.op("TestStateExclusive", infer=lambda x: (x.shape, x.dtype))
    def exclusive(x: Any) -> Any:
        assert lock.acquire(blocking=False), "another call is under way"
        try:
            return np.asarray(sum(range(1000), x))
        finally:
            lock.release()

    step = dg.function(lambda: v.assign(exclusive(v) - 499500.0 + 1.0))
    in_threads(*[repeat(step, 50)] * 4)
    assert v.numpy() == 200.0


def test_calls_on_different_variables_are_under_way_at_once() -> None:
    a, b, shared = dg.Variable(0.0), dg.Variable(0.0), dg.Variable(1.0)
    both = threading.Barrier(2)

    @dg.op("TestStateMeet", infer=lambda x: (x.shape, x.dtype))
    def meet(x: Any) -> Any:
        both.wait(60)
        return x + 0

    in_threads(dg.function(lambda: a.assign_add(meet(a) + 1)), dg.function(lambda: b.assign_add(meet(b) + 2)))
    assert (a.numpy(), b.numpy()) == (1.0, 2.0)
    in_threads(dg.function(lambda: meet(shared * 1)), dg.function(lambda: a.assign_add(meet(a))))


def test_calls_that_name_variables_in_opposite_order_do_not_wait_for_each_other() -> None:
    variables = [dg.Variable(0) for _ in range(4)]

    def adder(order: tuple[dg.Variable, ...]) -> Callable[[], object]:
        return dg.function(lambda: [v.assign_add(1) for v in order])

    orders = list(itertools.permutations(variables))[::5]
    in_threads(*[repeat(adder(order), 40) for order in orders])
    assert {int(v.numpy()) for v in variables} == {40 * len(orders)}


@pytest.mark.parametrize("options", [SESSIONS["plain"], SESSIONS["timeout"]])
def test_a_kernel_that_writes_what_its_own_call_writes_is_refused(options: Any) -> None:
    v = dg.Variable(1.0, name="v")

    @dg.op("TestStateImpure", infer=lambda x: (x.shape, x.dtype), override=True)
    def impure(x: Any) -> Any:
        v.assign_add(1.0)
        return x + 0

    with dg.Session(**options), pytest.raises(RuntimeError, match=r"'v'.* is written by the call that is running"):
        dg.function(lambda: v.assign(impure(v) * 2))()
    assert v.numpy() == 1.0
    assert v.assign_add(1.0) == 2.0


# -- what is left ------------------------------------------------------------------------------------------------


def test_a_result_shares_no_memory_with_what_was_assigned() -> None:
    v = dg.Variable(np.zeros((2, 3)))

    @dg.function
    def step(x: dg.Tensor) -> Any:
        y = v.assign(dg.exp(x))
        return y, dg.reshape(y, (3, 2)), y.T, y[0]

    x = np.zeros((2, 3))
    for result in step(x):
        result[...] = 7.0
    v.numpy()[...] = 8.0
    assert v.numpy().tolist() == np.ones((2, 3)).tolist()
    echo = dg.function(lambda x: (v.assign(x), x))
    for result in (*echo(x), x):
        result[...] = 9.0
    assert not v.numpy().any()


@pytest.mark.parametrize("options", SESSIONS.values(), ids=SESSIONS)
def test_a_failed_call_keeps_nothing_alive(options: Any) -> None:
    class Array(np.ndarray):  # what can be referred to weakly
        pass

    fed = np.zeros(1000).view(Array)
    alive = weakref.ref(fed)
    step = dg.function(lambda x: bomb(dg.exp(x)))
    with dg.Session(**options):
        step(np.zeros(1000))
        BOMB.error, BOMB.fuse = ValueError, 1
        with pytest.raises(ValueError, match="boom"):
            step(fed)
    del fed
    gc.collect()
    assert alive() is None


def test_failed_calls_leave_no_threads_behind() -> None:
    step = dg.function(lambda x: (bomb(dg.exp(x)), dg.sin(x) @ dg.cos(x)))
    x = np.zeros((8, 8))
    BOMB.error = ValueError
    with dg.Session(**SESSIONS["side by side"]):
        step(x)
        before = threading.active_count()
        for _ in range(20):
            BOMB.fuse = 1
            with pytest.raises(ValueError, match="boom"):
                step(x)
        step(x)
    for thread in threading.enumerate():
        if thread.name == "distgrad-task" and threading.active_count() > before:
            thread.join(0.5)
    assert threading.active_count() <= before + 2
