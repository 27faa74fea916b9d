"""The state machine of a run: on drawn plans event by event, and on random plans with a simulated driver that crashes,
loses objects and hangs."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distgrad.scheduler.partition.partition import partition
from distgrad.scheduler.plan import Bundle, Options, Plan, Predictions, Task
from distgrad.scheduler.run_state import Cancel, Command, Drop, GivenUp, RunState, Submit

from ..random_graphs import Choose
from ..step_graphs import chain, random_steps, ray_cluster
from ..support import LINEAR, growth

#: (maker, readers, whether it is fetched) of each bundle.
Edges = Sequence[tuple[int, tuple[int, ...], bool]]


def drawn(count: int, edges: Edges, waits: dict[int, tuple[int, ...]] | None = None, workers: int = 8) -> Plan:
    """A plan as the state sees it: tasks, and who hands what to whom."""
    tasks = [Task((), (), (), (waits or {}).get(k, ())) for k in range(count)]
    bundles = [Bundle(maker, (b,), readers, fetched, False, 8) for b, (maker, readers, fetched) in enumerate(edges)]
    predictions = Predictions(0.0, 0, 0, 0.0, 0.0)
    return Plan(chain(1), tuple(tasks), tuple(bundles), ray_cluster(workers), Options(), predictions)


#: 0 -> 1 -> 2, which is fetched
CHAIN = drawn(3, [(0, (1,), False), (1, (2,), False), (2, (), True)])
#: 0 -> 1, 2 -> 3, which is fetched; 0 has one bundle for both
DIAMOND = drawn(4, [(0, (1, 2), False), (1, (3,), False), (2, (3,), False), (3, (), True)])


def started(plan: Plan, in_flight: int = 8, **options: Any) -> RunState:
    state = RunState(plan, range(len(plan.tasks)), in_flight, **options)
    state.start(0.0)
    return state


def after(state: RunState, *done: int) -> RunState:
    for task in done:
        state.done(task, 0.0)
    return state


# -- submitting --------------------------------------------------------------------------------------------------


def test_tasks_are_submitted_before_what_they_read_is_there() -> None:
    assert RunState(CHAIN, [0, 1, 2], 8).start(0.0) == [Submit(0, 1), Submit(1, 1), Submit(2, 1)]


def test_no_more_are_submitted_than_may_be_in_flight() -> None:
    state = RunState(CHAIN, [0, 1, 2], 2)
    assert state.start(0.0) == [Submit(0, 1), Submit(1, 1)]
    assert state.done(0, 0.0) == [Submit(2, 1)]


def test_no_more_bytes_are_made_at_a_time_than_the_store_has_room_for() -> None:
    """Of 8 bytes each, with two slots: four are in flight whatever they make, and a fifth where it fits."""
    plan = drawn(7, [(k, (k + 1,) if k < 6 else (), k == 6) for k in range(7)])
    assert len(RunState(plan, range(7), 8, slots=2, ahead=0).start(0.0)) == 4
    assert len(RunState(plan, range(7), 8, slots=2, ahead=47).start(0.0)) == 5
    state = RunState(plan, range(7), 8, slots=2, ahead=40)
    assert len(state.start(0.0)) == 5
    assert state.done(0, 0.0) == [Submit(5, 1)]
    assert state.failed(1, "its worker died", 0.0) == [Submit(1, 2)]
    assert state.done(1, 0.0) == [Drop(0), Submit(6, 1)]


def test_a_run_with_no_room_in_flight_goes_one_by_one() -> None:
    assert RunState(CHAIN, [0, 1, 2], 0).start(0.0) == [Submit(0, 1)]


def test_of_tasks_that_can_be_submitted_the_first_in_the_order_goes_first() -> None:
    """three tasks side by side"""
    plan = drawn(3, [(k, (), True) for k in range(3)])
    assert RunState(plan, [2, 0, 1], 2).start(0.0) == [Submit(2, 1), Submit(0, 1)]


def test_a_task_goes_after_those_it_reads_from_whatever_the_order_says() -> None:
    assert RunState(CHAIN, [2, 1, 0], 8).start(0.0) == [Submit(0, 1), Submit(1, 1), Submit(2, 1)]


def test_a_task_goes_after_those_it_waits_for() -> None:
    """0, then 1, which reads nothing of it"""
    plan = drawn(2, [(0, (), True), (1, (), True)], {1: (0,)})
    assert RunState(plan, [1, 0], 8).start(0.0) == [Submit(0, 1), Submit(1, 1)]


def test_an_order_that_lacks_a_task_is_an_error() -> None:
    with pytest.raises(ValueError, match="must have each of the plan's 3 tasks once"):
        RunState(CHAIN, [0, 1, 1], 8)


def test_a_plan_without_tasks_is_finished_from_the_start() -> None:
    state = RunState(drawn(0, []), [], 8)
    assert (state.start(0.0), state.finished) == ([], True)


# -- letting go --------------------------------------------------------------------------------------------------


def test_an_object_is_let_go_when_its_last_reader_is_done() -> None:
    state = after(started(DIAMOND), 0)
    assert (state.done(1, 0.0), state.done(2, 0.0)) == ([], [Drop(0)])


def test_what_is_wanted_is_never_let_go() -> None:
    """0 -> 1, both fetched"""
    state = after(started(drawn(2, [(0, (1,), True), (1, (), True)])), 0)
    assert (state.done(1, 0.0), state.finished) == ([], True)


# -- failures ----------------------------------------------------------------------------------------------------


def test_a_failed_task_is_submitted_again() -> None:
    assert started(CHAIN).failed(0, "its worker died", 1.0) == [Submit(0, 2)]


def test_a_task_that_fails_collaterally_goes_again_once_what_it_reads_does() -> None:
    state = started(CHAIN, in_flight=2)
    assert state.failed(0, "its worker died", 1.0) == [Submit(0, 2)]
    assert state.failed(1, "task 0 failed", 1.0, collateral=True) == [Submit(1, 2)]


def test_a_task_that_itself_fails_too_often_is_given_up() -> None:
    state = started(CHAIN, attempts=3)
    state.failed(0, "its worker died", 1.0)
    state.failed(0, "its worker died", 2.0)
    with pytest.raises(GivenUp, match=r"task 0 failed 3 times .*; the last failure: out of memory") as e:
        state.failed(0, "out of memory", 3.0)
    assert (e.value.task, e.value.attempts, e.value.reason) == (0, 3, "out of memory")


def test_one_attempt_means_no_second_one() -> None:
    with pytest.raises(GivenUp, match="task 0 failed once"):
        started(CHAIN, attempts=1).failed(0, "its worker died", 1.0)


def test_given_up_survives_pickling() -> None:
    e = pickle.loads(pickle.dumps(GivenUp(3, 4, "out of memory")))
    assert (e.task, e.attempts, e.reason, str(e)) == (3, 4, "out of memory", str(GivenUp(3, 4, "out of memory")))


def test_collateral_failures_count_no_attempt() -> None:
    state = started(CHAIN, attempts=20)
    for _ in range(15):
        state.failed(0, "its worker died", 1.0)
        for _ in range(10):
            assert state.failed(1, "task 0 failed", 1.0, collateral=True)


def test_collateral_failures_without_end_and_without_a_cause_are_given_up() -> None:
    state = started(CHAIN)

    def fail() -> None:
        for _ in range(1000):
            state.failed(1, "an object was not to be had", 1.0, collateral=True)

    with pytest.raises(GivenUp, match="task 1 failed 100 times"):
        fail()


def test_only_what_ran_counts_as_recomputed() -> None:
    state = started(CHAIN)
    state.failed(0, "its worker died", 1.0)
    state.failed(1, "task 0 failed", 1.0, collateral=True)
    state.failed(2, "task 1 failed", 1.0, collateral=True)
    assert (after(state, 0, 1, 2).finished, state.recomputed) == (True, {0: 1})


def test_events_about_tasks_that_are_not_submitted_change_nothing() -> None:
    state = after(started(CHAIN), 0)
    assert [state.done(0, 1.0), state.failed(0, "late", 1.0), state.lost([1], 1.0)] == [[], [], []]


# -- lost objects ------------------------------------------------------------------------------------------------


def test_a_lost_object_is_made_again() -> None:
    assert after(started(DIAMOND), 0, 1).lost([0], 1.0) == [Submit(0, 2)]


def test_what_a_lost_object_was_made_from_is_made_again_where_it_was_let_go() -> None:
    """0 -> 1 -> 2: bundle 1 is lost after bundle 0 was let go"""
    state = after(started(CHAIN), 0, 1)
    assert state.lost([1], 1.0) == [Submit(0, 2), Submit(1, 2)]
    assert after(state, 0, 1, 2).recomputed == {0: 1, 1: 1}


def test_what_was_let_go_is_not_missed() -> None:
    assert after(started(CHAIN), 0, 1).lost([0], 1.0) == []


def test_an_object_that_is_made_again_for_others_is_let_go_again() -> None:
    """0 -> 1 -> 2"""
    state = after(started(CHAIN), 0, 1)
    state.lost([1], 1.0)
    assert after(state, 0).done(1, 2.0) == [Drop(0)]


def test_what_is_fetched_and_lost_at_the_very_end_is_made_again() -> None:
    state = after(started(CHAIN), 0, 1, 2)
    assert state.finished
    assert state.lost([2], 1.0) == [Submit(0, 2), Submit(1, 2), Submit(2, 2)]
    assert not state.finished


def test_a_lost_object_whose_readers_end_all_the_same_is_not_made_again() -> None:
    """0 -> 1 -> 2, and 3 beside them: 2 has what it reads when bundle 1 is lost, and there is no room to make it"""
    plan = drawn(4, [(0, (1,), False), (1, (2,), False), (2, (), True), (3, (), True)])
    state = after(started(plan, in_flight=2), 0, 1)
    assert state.lost([1], 1.0) == []
    assert state.done(2, 2.0) == []
    assert (after(state, 3).finished, state.recomputed) == (True, {})


def test_a_rerun_that_fails_when_nobody_needs_it_any_more_does_not_go_again() -> None:
    """0 -> 1, which has what it reads when that is lost"""
    state = after(started(drawn(2, [(0, (1,), False), (1, (), True)])), 0)
    assert (state.lost([0], 1.0), state.done(1, 2.0)) == ([Submit(0, 2)], [])
    assert (state.failed(0, "its worker died", 3.0), state.finished) == ([], True)


def test_an_object_that_nobody_reads_any_more_while_it_is_made_again_is_let_go_when_it_is_there() -> None:
    """0 -> 1, which has what it reads when that is lost"""
    state = after(started(drawn(2, [(0, (1,), False), (1, (), True)])), 0)
    assert (state.lost([0], 1.0), state.done(1, 2.0), state.done(0, 3.0)) == ([Submit(0, 2)], [], [Drop(0)])


def test_what_is_lost_again_and_again_is_given_up_in_the_end() -> None:
    """0, whose object is lost each time that it is there"""
    state = after(started(drawn(1, [(0, (), True)])), 0)
    for _ in range(99):
        assert len(state.lost([0], 1.0)) == 1
        assert after(state, 0).finished
    with pytest.raises(GivenUp, match=r"task 0 failed 100 times .*: its results were lost"):
        state.lost([0], 1.0)


def test_objects_that_are_lost_together_are_made_again_once() -> None:
    """0 gives one bundle to 1 and one to 2"""
    plan = drawn(3, [(0, (1,), False), (0, (2,), False), (1, (), True), (2, (), True)])
    assert after(started(plan), 0).lost([0, 1], 1.0) == [Submit(0, 2)]


# -- hangs -------------------------------------------------------------------------------------------------------


def test_a_task_that_hangs_is_ended_and_goes_again() -> None:
    state = started(CHAIN, task_timeout=10.0)
    assert (state.tick(10.0), state.tick(10.5)) == ([], [Cancel(0), Submit(0, 2)])


def test_time_spent_waiting_for_what_a_task_reads_is_no_hang() -> None:
    state = started(CHAIN, task_timeout=10.0)
    state.done(0, 9.0)
    assert (state.tick(18.0), state.tick(19.5)) == ([], [Cancel(1), Submit(1, 2)])


def test_time_spent_waiting_for_a_worker_is_no_hang() -> None:
    """two tasks on one worker"""
    state = started(drawn(2, [(0, (), True), (1, (), True)], workers=1), task_timeout=10.0)
    state.done(0, 9.0)
    assert (state.tick(18.0), state.tick(19.5)) == ([], [Cancel(1), Submit(1, 2)])


def test_how_many_run_side_by_side_can_be_told() -> None:
    state = started(drawn(2, [(0, (), True), (1, (), True)], workers=1), task_timeout=10.0, slots=2)
    assert state.tick(11.0) == [Cancel(0), Cancel(1), Submit(0, 2), Submit(1, 2)]


def test_a_hang_counts_as_a_failure() -> None:
    state = started(CHAIN, attempts=2, task_timeout=10.0)
    state.tick(11.0)
    with pytest.raises(GivenUp, match=r"task 0 failed 2 times .*: it did not end within 10 s"):
        state.tick(22.0)


def test_a_task_that_had_to_wait_for_a_worker_has_its_time_from_then_on() -> None:
    state = started(CHAIN, task_timeout=10.0)
    assert state.overdue(11.0) == [0]
    state.began(0, 6.0)
    assert (state.overdue(11.0), state.tick(11.0)) == ([], [])
    assert state.tick(17.0) == [Cancel(0), Submit(0, 2)]


def test_without_a_timeout_nothing_hangs() -> None:
    assert started(CHAIN).tick(1e9) == []


def test_tasks_that_wait_for_a_dead_node_are_ended_and_go_again_without_using_an_attempt() -> None:
    state = after(started(CHAIN, attempts=1), 0)
    assert state.stranded([0, 1], "its node died", 1.0) == [Cancel(1), Submit(1, 2)]
    assert state.recomputed == {}


# -- what a run waits for ----------------------------------------------------------------------------------------


def test_a_run_can_tell_what_it_waits_for() -> None:
    """0 -> 1 -> 2, and 3 beside them"""
    plan = drawn(4, [(0, (1,), False), (1, (2,), False), (2, (), True), (3, (), True)])
    assert started(plan, in_flight=2).waiting() == [
        (0, "a worker to finish it"),
        (1, "task 0"),
        (3, "one of 2 in flight to end"),
        (2, "task 1"),
    ]


def test_of_many_tasks_that_are_waited_for_three_are_named() -> None:
    """0, 1, 2, 3, 4 -> 5"""
    plan = drawn(6, [*[(k, (5,), False) for k in range(5)], (5, (), True)])
    assert started(plan).waiting()[-1] == (5, "tasks 0, 1, 2 and 2 more")


# -- random runs -------------------------------------------------------------------------------------------------

TASK_TIMEOUT, ATTEMPTS = 10.0, 4
FLYING, THERE, GONE = "flying", "there", "gone"


class World:
    """A driver that obeys, and a world where tasks crash and hang and objects are lost; both check what they are told.

    An object is a bundle and the attempt that makes it; that of a token has the complement of its task for a bundle.
    The driver hears of a crash at once or later, even after tasks that fail for it; of a loss at once, when a task
    fails for it, or when it looks for the results. A task that has begun needs its objects no more.
    """

    def __init__(self, plan: Plan, choose: Choose, troubles: int):
        self.plan, self.choose, self.troubles = plan, choose, troubles
        self.reads: list[list[int]] = [[b for b, x in enumerate(plan.bundles) if k in x.readers] for k in self.tasks]
        self.gives: list[list[int]] = [[b for b, x in enumerate(plan.bundles) if k == x.task] for k in self.tasks]
        self.room, self.slots, self.ahead = choose((1, 2, 3, 8, 100)), choose((None, 1, 2, 100)), choose((None, 0, 40))
        order = sorted(self.tasks, key=lambda k: (k // choose((1, 4)), k))
        self.state = RunState(plan, order, self.room, ATTEMPTS, TASK_TIMEOUT, self.slots, self.ahead)
        self.now = 0.0
        #: Objects by what became of them, and those that the driver was told are gone.
        self.objects: dict[tuple[int, int], str] = {}
        self.known: set[tuple[int, int]] = set()
        #: What the driver holds: the attempt by bundle; and the objects that each submitted task reads.
        self.held: dict[int, int] = {}
        self.flying: dict[int, list[tuple[int, int]]] = {}
        self.attempt = dict.fromkeys(self.tasks, 0)
        #: Tasks that were done at least once; those that hang; those that crashed and of which nobody knows.
        self.ended: set[int] = set()
        self.hanging: set[int] = set()
        self.crashed: set[int] = set()
        self.failures = dict.fromkeys(self.tasks, 0)
        self.runs = dict.fromkeys(self.tasks, 0)

    @property
    def tasks(self) -> range:
        return range(len(self.plan.tasks))

    # obeying

    def obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Submit):
                self.submit(command.task, command.attempt)
            elif isinstance(command, Drop):
                self.drop(command.bundle)
            else:
                self.cancel(command.task)
        assert len(self.flying) <= self.room
        if None not in (self.ahead, self.slots) and len(self.flying) > 2 * self.slots:
            assert sum(self.plan.bundles[b].nbytes for k in self.flying for b in self.gives[k]) <= self.ahead

    def submit(self, task: int, attempt: int) -> None:
        assert task not in self.flying
        assert attempt == self.attempt[task] + 1
        self.attempt[task] = attempt
        self.flying[task] = [(b, self.held[b]) for b in self.reads[task]]
        assert self.known.isdisjoint(self.flying[task])
        waits = self.plan.tasks[task].waits
        assert all(p in self.flying or p in self.ended for p in waits)
        self.flying[task] += [(~p, self.attempt[p]) for p in waits if p in self.flying]
        self.held.update(dict.fromkeys(self.gives[task], attempt))
        self.settle(task, FLYING)

    def drop(self, bundle: int) -> None:
        assert not self.plan.bundles[bundle].wanted
        assert (self.ended - self.flying.keys()).issuperset(self.plan.bundles[bundle].readers)
        del self.held[bundle]

    def cancel(self, task: int) -> None:
        assert task in self.hanging
        self.hanging.remove(task)
        self.end(task, GONE)
        self.runs[task] += 1
        self.failures[task] += 1

    def settle(self, task: int, how: str) -> None:
        self.objects.update(((b, self.attempt[task]), how) for b in (~task, *self.gives[task]))

    def end(self, task: int, how: str) -> None:
        self.settle(task, how)
        if how == GONE:
            self.known.update((b, self.attempt[task]) for b in self.gives[task])
        del self.flying[task]

    # what happens

    def run(self) -> None:
        self.obey(self.state.start(self.now))
        for _ in range(10_000):
            if self.state.finished and not self.missing():
                return
            self.now += 0.01
            self.happen()
        raise AssertionError(f"no end in sight: {self.state.waiting()}")

    def happen(self) -> None:
        sound = self.flying.keys() - self.hanging - self.crashed
        broken = [k for k in sorted(sound) if any(self.objects[x] == GONE for x in self.flying[k])]
        able = [k for k in sorted(sound) if all(self.objects[x] == THERE for x in self.flying[k])]
        if self.troubles and self.choose(range(3)) == 0:
            self.troubles -= 1
            self.trouble(able)
        elif self.crashed and (not able or self.choose((True, False))):
            self.hear(self.choose(sorted(self.crashed)))
        elif broken and (not able or self.choose((True, False))):
            self.collateral(self.choose(broken))
        elif able:
            self.done(self.choose(able))
        elif self.hanging:
            self.wait_for_hangs()
        else:
            assert self.state.finished, self.state.waiting()
            self.obey(self.state.lost(self.missing(), self.now))

    def missing(self) -> list[int]:
        return [b for b, x in enumerate(self.plan.bundles) if x.wanted and self.objects[b, self.held[b]] == GONE]

    def done(self, task: int) -> None:
        self.end(task, THERE)
        self.ended.add(task)
        self.runs[task] += 1
        self.obey(self.state.done(task, self.now))

    def collateral(self, task: int) -> None:
        gone = [(b, a) for b, a in self.flying[task] if self.objects[b, a] == GONE]
        self.tell([b for b, a in gone if self.held.get(b) == a and self.plan.bundles[b].task not in self.flying])
        self.end(task, GONE)
        self.obey(self.state.failed(task, f"{gone} are gone", self.now, collateral=True))

    def tell(self, bundles: Sequence[int]) -> None:
        self.known.update((b, self.held[b]) for b in bundles)
        self.obey(self.state.lost(bundles, self.now))

    def trouble(self, able: Sequence[int]) -> None:
        there = [b for b, a in self.held.items() if self.objects[b, a] == THERE]
        frail = [k for k in able if self.failures[k] < ATTEMPTS - 1]
        if there and (not frail or self.choose((True, False))):
            self.lose([b for b in there if self.choose((True, False, False))])
        elif frail:
            strike = self.choose((self.crash, self.hanging.add))
            strike(self.choose(frail))

    def lose(self, bundles: Sequence[int]) -> None:
        for k, needed in self.flying.items():
            if all(self.objects[x] == THERE for x in needed) and self.choose((True, False)):
                self.flying[k] = []
        for b in bundles:
            self.objects[b, self.held[b]] = GONE
        if self.choose((True, False)):
            self.tell(bundles)

    def crash(self, task: int) -> None:
        self.settle(task, GONE)
        self.crashed.add(task)
        if self.choose((True, False)):
            self.hear(task)

    def hear(self, task: int) -> None:
        self.crashed.remove(task)
        self.end(task, GONE)
        self.runs[task] += 1
        self.failures[task] += 1
        self.obey(self.state.failed(task, "its worker died", self.now))

    def wait_for_hangs(self) -> None:
        """Nothing moves any more but the clock: one of the tasks that hang is found out."""
        before = len(self.hanging)
        self.now += 2 * TASK_TIMEOUT
        self.obey(self.state.tick(self.now))
        assert len(self.hanging) < before


def random_plan(choose: Choose) -> Plan:
    devices = choose([(None,), (None, "worker:0", "worker:1")])
    program = random_steps(choose(range(1, 30)), choose, span=choose((2, 12)), devices=devices)
    return partition(program, ray_cluster(2), Options(granularity=choose((1e-9, 5e-5)), cpus_per_task=1))


def random_world(seed: int, troubles: Sequence[int]) -> World:
    rng = np.random.default_rng(seed)

    def choose(options: Any) -> Any:
        return options[int(rng.integers(len(options)))]

    world = World(random_plan(choose), choose, choose(troubles))
    world.run()
    return world


@settings(max_examples=300, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_whatever_crashes_hangs_or_is_lost_every_run_ends_with_what_is_wanted_and_nothing_else(seed: int) -> None:
    """The world checks on the way: bounds, inputs that are held, nothing dropped that is read."""
    world = random_world(seed, (1, 5, 30))
    wanted = [b for b, bundle in enumerate(world.plan.bundles) if bundle.wanted]
    assert [b for b, a in sorted(world.held.items()) if world.objects[b, a] != GONE] == wanted


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_what_is_counted_as_recomputed_is_what_ran_again(seed: int) -> None:
    world = random_world(seed, (1, 5, 30))
    assert world.state.recomputed == {k: n - 1 for k, n in world.runs.items() if n > 1}


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_without_trouble_every_task_runs_once(seed: int) -> None:
    world = random_world(seed, (0,))
    assert set(world.attempt.values()) <= {1}
    assert world.state.recomputed == {}


def test_twenty_thousand_tasks_in_a_row_are_run_twice_in_time_linear_in_them() -> None:
    """0 -> 1 -> 2 -> ..., the last object lost at the end: all is made again, without recursion"""

    def row(n: int) -> Any:
        return drawn(n, [*[(k, (k + 1,), False) for k in range(n - 1)], (n - 1, (), True)])

    def twice(plan: Any) -> None:
        n = len(plan.tasks)
        state = after(started(plan, in_flight=100), *range(n))
        state.lost([n - 1], 0.0)
        assert after(state, *range(n)).finished

    assert growth(twice, row(2_000), row(20_000)) < LINEAR
