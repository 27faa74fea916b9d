"""Updates in place: who keeps a variable's array from being written over, and that nobody sees half of a call.

Everything here that reads a variable relies on what it got never changing:

- `numpy()`, `np.array(v)`, `repr` and eager ops: copies, or views that refer to the array
- `take`: checkpoints being written, and calls that run in other threads
- results: fetched variables, old and new, and handles (`fetch=False`)
- arguments and feeds that are a variable's array
- a variable that is made of a handle
- what a Ray session has placed on the cluster: it recognises arrays by weak references (`Link.placed`)
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.handles import LocalHandle
from distgrad.store import checkpoint_files
from distgrad.tracing.state import take

SHAPE = (64, 64)
G = np.random.default_rng(1).random(SHAPE, np.float32)


def filled(seed: int) -> dg.Variable:
    return dg.Variable(np.random.default_rng(seed).random(SHAPE, np.float32))


class Adam:
    """A parameter with its moments, and a step that moves them."""

    def __init__(self) -> None:
        self.p, self.m, self.v = self.variables = [filled(i) for i in range(3)]
        self.step = dg.function(self._step)

    def _step(self, g: Any) -> Any:
        self.m.assign(0.9 * self.m + 0.1 * g)
        self.v.assign(0.99 * self.v + 0.01 * g * g)
        self.p.assign_sub(0.01 * self.m / (np.sqrt(self.v) + 1e-8))
        return dg.sum(g @ g)

    def values(self) -> list[Any]:
        return [v.numpy() for v in self.variables]

    def places(self) -> list[int]:
        return [v._value.ctypes.data for v in self.variables]


@pytest.fixture
def adam() -> Iterator[Adam]:
    with dg.Session(native=True):
        yield Adam()


def expected(adam: Adam) -> list[Any]:
    """What a step makes of the present values, into fresh memory."""
    twin = Adam()
    for mine, its in zip(adam.variables, twin.variables, strict=True):
        its.assign(mine.numpy())
    held = take(twin.variables)
    twin.step(G)
    assert all(v._value is not x for v, x in zip(twin.variables, held, strict=True))
    return twin.values()


def same(xs: list[Any], ys: list[Any]) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(xs, ys, strict=True))


# -- in place ----------------------------------------------------------------------------------------------------------


def test_a_step_moves_parameter_and_moments_where_they_are(adam: Adam) -> None:
    places, after = adam.places(), expected(adam)
    adam.step(G)
    assert adam.places() == places
    assert same(adam.values(), after)


def test_the_second_step_is_in_place_too(adam: Adam) -> None:
    places = adam.places()
    for _ in range(3):
        after = expected(adam)
        adam.step(G)
        assert same(adam.values(), after)
    assert adam.places() == places


def test_large_results_that_were_assigned_before_are_updated_in_place() -> None:
    """Their memory is of the pool of result buffers."""
    a = dg.Variable(np.ones((512, 512), np.float32))
    set_to = dg.function(lambda x: (a.assign(x @ x), dg.sum(x))[1])
    step = dg.function(lambda x: (a.assign_sub(0.5 * x), dg.sum(x))[1])
    x = np.eye(512, dtype=np.float32)
    with dg.Session(native=True):
        set_to(x)
        place = a._value.ctypes.data
        step(x)
    assert (a._value.ctypes.data, a.numpy().sum()) == (place, 256)


@pytest.mark.parametrize("options", [{"granularity": 1e-9}, {"threads": 2, "cpus_per_task": 1, "granularity": 1e-9}])
def test_plans_of_several_tasks_give_the_same_bits(options: Any) -> None:
    with dg.Session(native=True):
        one = Adam()
        after = expected(one)
    with dg.Session(native=True, timeout=60, **options):
        other = Adam()
        places = other.places()
        other.step(G)
    assert other.places() == places
    assert same(other.values(), after)


def test_check_numerics_keeps_two_versions_with_the_same_bits(adam: Adam) -> None:
    after, places = expected(adam), adam.places()
    with dg.Session(native=True, check_numerics=True):
        adam.step(G)
    assert all(a != b for a, b in zip(adam.places(), places, strict=True))
    assert same(adam.values(), after)


def test_a_variable_that_keeps_two_versions_changes_together_with_the_others(adam: Adam) -> None:
    count = dg.Variable(0)
    step = dg.function(lambda g: (count.assign_add(1), adam._step(g))[1])
    after = expected(adam)
    step(G)
    assert (int(count.numpy()), same(adam.values(), after)) == (1, True)


# -- who holds an array ------------------------------------------------------------------------------------------------

HOLDERS: dict[str, Callable[[dg.Variable], Any]] = {
    "the array itself": lambda v: v._value,
    "a view": lambda v: v._value[3:5].T,
    "take": lambda v: take([v]),
    "an eager op that makes a view": lambda v: dg.reshape(v, (4096,)),
    "a memoryview": lambda v: memoryview(v._value),
    "a weak reference": lambda v: weakref.ref(v._value),
    "a handle": lambda v: LocalHandle(v._value),
}


def test_what_is_held_does_not_change_and_nothing_else_is_copied(adam: Adam) -> None:
    before, places, after = adam.p.numpy(), adam.places(), expected(adam)
    held = adam.p._value[:]
    adam.step(G)
    assert held.tobytes() == before.tobytes()
    assert same(adam.values(), after)
    assert [a == b for a, b in zip(adam.places(), places, strict=True)] == [False, True, True]


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_each_holder_alone_keeps_an_array_from_changing(adam: Adam, hold: Callable[[dg.Variable], Any]) -> None:
    place = adam.p._value.ctypes.data
    held = hold(adam.p)
    adam.step(G)
    assert adam.p._value.ctypes.data != place
    del held
    place = adam.p._value.ctypes.data
    adam.step(G)
    assert adam.p._value.ctypes.data == place


def test_an_argument_that_is_the_variables_array_is_read_as_it_was(adam: Adam) -> None:
    before = adam.m.numpy()
    adam.step(adam.m._value)
    np.testing.assert_array_equal(adam.m.numpy(), np.float32(0.9) * before + np.float32(0.1) * before)


def test_a_fetched_old_value_is_a_copy(adam: Adam) -> None:
    step = dg.function(lambda g: (adam.p.read(), adam._step(g)))
    before, places = adam.p.numpy(), adam.places()
    old, _ = step(G)
    assert adam.places() == places
    np.testing.assert_array_equal(old, before)


def test_a_fetched_view_of_an_old_value_is_a_copy(adam: Adam) -> None:
    step = dg.function(lambda g: (dg.transpose(adam.p.read()), adam._step(g)))
    before = adam.p.numpy()
    old, _ = step(G)
    np.testing.assert_array_equal(old, before.T)


def test_handles_of_old_and_new_values_do_not_change(adam: Adam) -> None:
    step = dg.function(lambda g: (adam.p.read(), adam.m.assign_add(g)))
    with dg.Session(native=True) as session:
        before = adam.p.numpy()
        old, new = session.submit(step, G)
        after = adam.m.numpy()
        adam.step(G)
        adam.step(G)
    np.testing.assert_array_equal(old.numpy(), before)
    np.testing.assert_array_equal(new.numpy(), after)


def test_a_variable_made_of_a_handle_leaves_the_handles_value_alone() -> None:
    with dg.Session(native=True) as session:
        handle = session.submit(dg.function(lambda x: x * 2), G)
        v = dg.Variable(handle)
        dg.function(lambda g: (v.assign_sub(g), dg.sum(g))[1])(G)
    np.testing.assert_array_equal(handle.numpy(), G * 2)
    np.testing.assert_array_equal(v.numpy(), G)


def test_a_constant_taken_from_a_variable_does_not_change(adam: Adam) -> None:
    first = adam.p.numpy()
    reader = dg.function(lambda x: x + adam.p.numpy())
    zeros = np.zeros(SHAPE, np.float32)
    reader(zeros)
    adam.step(G)
    np.testing.assert_array_equal(reader(zeros), first)


def test_a_checkpoint_that_is_being_written_has_the_values_of_one_moment(
    adam: Adam, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps run while the file is written."""
    before, write = adam.values(), checkpoint_files.write

    def slowly(*args: Any) -> None:
        adam.step(G)
        write(*args)

    monkeypatch.setattr(checkpoint_files, "write", slowly)
    named = dict(zip("pmv", adam.variables, strict=True))
    dg.save_checkpoint(tmp_path, named)
    dg.restore_checkpoint(tmp_path, named)
    assert same(adam.values(), before)


def test_threads_see_all_of_a_step_or_nothing(adam: Adam) -> None:
    """Copies, calls that read, and checks of consistency, while another thread trains."""
    first, second = (dg.Variable(np.zeros((300, 300), np.float32)) for _ in range(2))

    def step(g: Any) -> Any:
        first.assign_add(g)
        second.assign_sub(g)
        return dg.sum(g)

    train, read = dg.function(step), dg.function(lambda: (first * 1, second * 1))
    ones, torn, over = np.ones((300, 300), np.float32), [], threading.Event()
    session = dg.Session(native=True)

    def look() -> None:
        with session:
            while not over.is_set():
                pairs = [read(), [x.copy() for x in take([first, second])]]
                torn.extend([pair for pair in pairs if len({*pair[0].ravel(), *(-pair[1]).ravel()}) != 1])
                torn.extend([x for x in [first.numpy()] if len(set(x.ravel())) != 1])

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    with session:
        for _ in range(200):
            train(ones)
    over.set()
    for reader in readers:
        reader.join()
    assert not torn
    assert first.numpy()[0, 0] == 200


def test_a_reader_inside_of_the_call_gets_a_copy_and_does_not_wait(adam: Adam, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal handler would, between the moment at which variables are closed and the second phase."""
    from distgrad.workers.local.second_phase import SecondPhase

    ready, seen = SecondPhase.ready, []

    def look(self: Any, *args: Any) -> Any:
        seen.append(adam.p.numpy())
        return ready(self, *args)

    before = adam.p.numpy()
    monkeypatch.setattr(SecondPhase, "ready", look)
    adam.step(G)
    np.testing.assert_array_equal(seen[0], before)


# -- failures ----------------------------------------------------------------------------------------------------------


@dg.op("FailsBeforeUpdates", infer=lambda x: (x.shape, x.dtype))
def fails(x: Any) -> Any:
    raise OSError("no disk")


def test_an_error_before_the_second_phase_leaves_everything(adam: Adam) -> None:
    step = dg.function(lambda g: (adam._step(g), fails(g))[1])
    before, places = adam.values(), adam.places()
    with pytest.raises(OSError, match="no disk"):
        step(G)
    assert (same(adam.values(), before), adam.places() == places) == (True, True)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, TimeoutError])
def test_an_error_at_the_last_moment_before_the_second_phase_leaves_everything(
    adam: Adam, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    from distgrad.run import session

    def fail(*args: Any) -> Any:
        raise error

    before = adam.values()
    with monkeypatch.context() as patch:
        patch.setattr(session, "put", fail)
        with pytest.raises(error):
            adam.step(G)
    assert same(adam.values(), before)
    after = expected(adam)
    adam.step(G)  # its variables are free, and open to readers
    assert same(adam.values(), after)


@dg.op("HangsBeforeUpdates", infer=lambda x: (x.shape, x.dtype))
def hangs(x: Any) -> Any:
    RELEASED.wait(30)
    return x


RELEASED = threading.Event()


def test_a_timeout_in_the_first_phase_leaves_everything(adam: Adam) -> None:
    step = dg.function(lambda g: (adam._step(g), hangs(g))[1])
    before = adam.values()
    with dg.Session(native=True, timeout=0.2), pytest.raises(TimeoutError):
        step(G)
    RELEASED.set()
    assert same(adam.values(), before)


@pytest.mark.parametrize(
    "options", [{}, {"threads": 2, "cpus_per_task": 1, "granularity": 1e-9}, {"timeout": 60}], ids=str
)
def test_an_interrupt_at_a_random_moment_leaves_the_bits_of_whole_steps(options: Any) -> None:
    root = Path(__file__).parent.parent.parent
    command = [sys.executable, "-m", "tests.interrupted_updates", "170", json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 1


# -- Ray ---------------------------------------------------------------------------------------------------------------


@pytest.mark.ray
def test_ray_has_the_bits_of_updates_in_place(ray_session: dg.Session, adam: Adam) -> None:
    after, other = expected(adam), Adam()
    ray_session.submit(other.step, G)
    adam.step(G)
    assert same(adam.values(), after)
    assert same(other.values(), after)


@pytest.mark.ray
def test_what_ray_was_given_of_a_variable_is_not_taken_for_its_later_value(ray_session: dg.Session, adam: Adam) -> None:
    read = dg.function(lambda: adam.p * 1)
    before = ray_session.submit(read).numpy()
    after = expected(adam)
    adam.step(G)
    assert before.tobytes() != after[0].tobytes()
    assert ray_session.submit(read).numpy().tobytes() == after[0].tobytes()
