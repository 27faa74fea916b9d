"""The state machine of a run: which task to submit next, which to retry, which object to release. Events in, commands
out.

Pure: it has no clock, workers or objects. An engine reports events (`done`, `failed`, `lost`, `tick`, each with the
time) and executes the returned commands in order. Events refer to the current attempt of a task; events about a task
that is not submitted are outdated and ignored.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from distgrad.scheduler.plan import Plan

#: States of a task: to be submitted, submitted, or done with all results available.
_WAITING, _SUBMITTED, _DONE = 0, 1, 2
#: Give up on a task after this many missing-input failures while nothing upstream failed, or after its results were
#: lost this many times.
_UNEXPLAINED = 100


class Submit(NamedTuple):
    """Submit a task on the latest versions of the objects it reads; its results replace older ones. Attempts count from
    1."""

    task: int
    attempt: int


class Drop(NamedTuple):
    """Release an object that has no readers left. Not sent for objects that failed or were lost."""

    bundle: int


class Cancel(NamedTuple):
    """Cancel the running attempt of a task that hangs."""

    task: int


Command = Submit | Drop | Cancel


class GivenUp(Exception):
    """A task used up its attempts."""

    def __init__(self, task: int, attempts: int, reason: str):
        super().__init__(task, attempts, reason)  # all of them, for pickle
        self.task, self.attempts, self.reason = task, attempts, reason

    def __str__(self) -> str:
        times = "once" if self.attempts == 1 else f"{self.attempts} times"
        return f"task {self.task} failed {times} and is not retried; the last failure: {self.reason}"


class RunState:
    """One run of a plan. `order` lists every task once; of the tasks that can be submitted, the first in it goes first.

    A task can be submitted as soon as all of its predecessors (those it reads from or waits for) were submitted. At
    most `in_flight` tasks are submitted and not done. `slots` is the maximum number of tasks that run concurrently, by
    default the capacity of the plan's cluster: only this many of the ready tasks can have started, and only those can
    hang. `task_timeout` is in seconds; None disables it. `ahead` is a limit on the bytes that tasks in flight produce
    (back-pressure): results of tasks that run ahead are released late and could fill the object store. Two tasks per
    slot are always allowed in flight.

    >>> import distgrad as dg
    >>> plan = dg.function(lambda x: dg.exp(x)).plan(1.0)
    >>> state = RunState(plan, order=[0], in_flight=8)
    >>> state.start(0.0), state.failed(0, "its worker died", 1.0), state.done(0, 2.0)
    ([Submit(task=0, attempt=1)], [Submit(task=0, attempt=2)], [])
    >>> state.finished, state.recomputed
    (True, {0: 1})
    """

    def __init__(
        self,
        plan: Plan,
        order: Sequence[int],
        in_flight: int,
        attempts: int = 4,
        task_timeout: float | None = None,
        slots: int | None = None,
        ahead: int | None = None,
    ):
        n = len(plan.tasks)
        if len(order) != n or set(order) != set(range(n)):
            raise ValueError(f"the order of a run must have each of the plan's {n} tasks once")
        self._links = links = _Links(plan)
        self._order, self._rank = order, [0] * n
        for place, k in enumerate(order):
            self._rank[k] = place
        self._room, self._attempts, self._timeout = max(in_flight, 1), attempts, task_timeout
        self._state, self._attempt, self._undone, self._flying = [_WAITING] * n, [0] * n, n, 0
        slots = _slots(plan) if slots is None else max(slots, 1)
        #: Bytes that each task produces, that tasks in flight produce, and the limit for these; and the number of tasks
        #: in flight that are always allowed.
        self._makes = [sum([plan.bundles[b].nbytes for b in gives]) for gives in links.gives]
        self._making, self._ahead, self._least = 0, ahead, 2 * slots
        #: Number of unsubmitted predecessors of each task, and the ranks of the tasks that have none.
        self._lacking = [len(before) for before in links.before]
        self._ready = [place for place, k in enumerate(order) if not links.before[k]]
        #: Reference count of each bundle: readers that are not done, plus one if it is an output; whether its object
        #: exists or is in flight.
        self._users = [len(bundle.readers) + bundle.wanted for bundle in plan.bundles]
        self._held = [False] * len(plan.bundles)
        #: Tasks that were done at least once, how often each ran, and the retries by task, for reports.
        self._made, self._runs = [False] * n, [0] * n
        self.recomputed: dict[int, int] = {}
        self._failures: dict[int, int] = {}
        self._unexplained: dict[int, int] = {}
        self._losses: dict[int, int] = {}
        self._started = None if task_timeout is None else _StartTimes(links.after, slots)

    @property
    def finished(self) -> bool:
        """Whether all tasks are done and all outputs exist."""
        return not self._undone

    @property
    def left(self) -> int:
        """Number of tasks that are not done."""
        return self._undone

    # -- events --------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Command]:
        """The run starts."""
        return self._fill([], now)

    def done(self, task: int, now: float) -> list[Command]:
        """All results of a task exist."""
        if self._state[task] != _SUBMITTED:
            return []
        self._landed(task)
        self._ran(task)
        if self._started is not None:
            self._started.leave(task, now)
        return self._fill(self._end(task, now), now)

    def failed(self, task: int, reason: str, now: float, collateral: bool = False) -> list[Command]:
        """An attempt ended without results; `collateral` if an object that it reads was missing.

        Raises GivenUp if the task has no attempts left. A collateral failure does not use an attempt, because the task
        never ran; it is given up only after many such failures while nothing upstream failed.
        """
        if self._state[task] != _SUBMITTED:
            return []
        return self._fill(self._again(task, reason, now, collateral), now)

    def lost(self, bundles: Iterable[int], now: float) -> list[Command]:
        """Objects were lost: resubmit the tasks that made them, and those that make released inputs of these. Objects
        that were released, or are being recomputed, are ignored.

        Raises GivenUp if the results of a task were lost too often.
        """
        gone = [b for b in bundles if self._held[b] and self._state[self._links.maker[b]] != _SUBMITTED]
        for b in gone:
            self._held[b] = False
        makers = list(dict.fromkeys([self._links.maker[b] for b in gone]))
        for k in makers:
            self._losses[k] = self._losses.get(k, 0) + 1
            if self._losses[k] >= _UNEXPLAINED:
                raise GivenUp(k, self._losses[k], "its results were lost")
        self._back(makers, now)
        return self._fill([], now)

    def tick(self, now: float) -> list[Command]:
        """Time has passed: cancel and resubmit tasks that ran for longer than `task_timeout`. This counts as a
        failure."""
        commands: list[Command] = []
        for task in self.overdue(now):
            commands.append(Cancel(task))
            commands += self._again(task, f"it did not end within {self._timeout:g} s", now)
        return self._fill(commands, now) if commands else commands

    def stranded(self, tasks: Iterable[int], reason: str, now: float) -> list[Command]:
        """Tasks in flight will never end, through no fault of theirs: cancel and resubmit them. No attempt is used."""
        commands: list[Command] = []
        for task in tasks:
            if self._state[task] == _SUBMITTED:
                commands.append(Cancel(task))
                commands += self._again(task, reason, now, collateral=True)
        return self._fill(commands, now)

    def overdue(self, now: float) -> list[int]:
        """The tasks that `tick` would cancel."""
        running = {} if self._started is None else self._started.running
        return [task for task, since in running.items() if now - since > (self._timeout or 0)]

    def began(self, task: int, at: float) -> None:
        """A task started later than assumed, for example because its worker had to be started first."""
        if self._started is not None and task in self._started.running:
            self._started.running[task] = at

    def waiting(self) -> list[tuple[int, str]]:
        """The tasks that are not done, with what each waits for; those that could run come first."""
        state, found = self._state, []
        for k in self._order:
            if state[k] != _DONE:
                missing = [p for p in self._links.before[k] if state[p] != _DONE]
                found.append((state[k] != _SUBMITTED, bool(missing), k, missing))
        found.sort(key=lambda item: item[:2])
        return [(k, self._reason(late, missing)) for late, _, k, missing in found]

    def _reason(self, late: bool, missing: Sequence[int]) -> str:
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            return f"task{'s' * (len(missing) > 1)} {', '.join(map(str, missing[:3]))}{more}"
        return f"one of {self._flying} in flight to end" if late else "a worker to finish it"

    # -- what follows from them ------------------------------------------------------------------------------------

    def _fill(self, commands: list[Command], now: float) -> list[Command]:
        """Submit what can be submitted."""
        ready, state, lacking = self._ready, self._state, self._lacking
        while ready and self._flying < self._room:
            k = self._order[ready[0]]
            can = state[k] == _WAITING and not lacking[k]  # entries can be stale
            if can and not self._fits(k):
                break
            heapq.heappop(ready)
            if can:
                commands.append(self._submit(k, now))
        return commands

    def _fits(self, task: int) -> bool:
        """Whether submitting a task keeps the bytes in flight within the limit."""
        return self._ahead is None or self._flying < self._least or self._making + self._makes[task] <= self._ahead

    def _submit(self, task: int, now: float) -> Submit:
        self._state[task] = _SUBMITTED
        self._flying += 1
        self._making += self._makes[task]
        self._attempt[task] += 1
        for b in self._links.gives[task]:
            self._held[b] = True
        self._open(task)
        if self._started is not None:
            self._started.enter(task, {p for p in self._links.before[task] if self._state[p] != _DONE}, now)
        return Submit(task, self._attempt[task])

    def _landed(self, task: int) -> None:
        self._flying -= 1
        self._making -= self._makes[task]

    def _open(self, task: int) -> None:
        """A task was submitted: its successors have one unsubmitted predecessor less."""
        lacking, state = self._lacking, self._state
        for c in self._links.after[task]:
            lacking[c] -= 1
            if not lacking[c] and state[c] == _WAITING:
                heapq.heappush(self._ready, self._rank[c])

    def _end(self, task: int, now: float) -> list[Command]:
        """A task is done: release the objects it was the last to read, and its own results that have no readers left.

        A task that was to be recomputed only for such an object counts as done, too.
        """
        links, state, held, users = self._links, self._state, self._held, self._users
        commands: list[Command] = []
        ended = [task]
        while ended:
            k = ended.pop()
            self._close(k, now)
            unread = [b for b in links.gives[k] if not users[b]]
            for b in links.reads[k]:
                users[b] -= 1
                maker = links.maker[b]
                if users[b] or state[maker] == _SUBMITTED:  # being recomputed: released when it is done
                    continue
                unread.append(b)
                if state[maker] == _WAITING and maker not in ended and self._needless(maker):
                    ended.append(maker)
            for b in unread:
                if held[b]:
                    held[b] = False
                    commands.append(Drop(b))
        return commands

    def _close(self, task: int, now: float) -> None:
        if self._state[task] == _WAITING:
            self._open(task)
        self._state[task] = _DONE
        self._made[task] = True
        self._undone -= 1
        if self._started is not None:
            self._started.end(task, now)

    def _ran(self, task: int) -> None:
        self._runs[task] += 1
        if self._runs[task] > 1:
            self.recomputed[task] = self._runs[task] - 1

    def _again(self, task: int, reason: str, now: float, collateral: bool = False) -> list[Command]:
        """Retry a submitted task, unless its results are not needed any more."""
        counts, limit = (self._unexplained, _UNEXPLAINED) if collateral else (self._failures, self._attempts)
        if not collateral:
            self._ran(task)
        self._back([task], now)
        if self._needless(task):
            return self._end(task, now)
        counts[task] = counts.get(task, 0) + 1
        if counts[task] >= limit:
            raise GivenUp(task, counts[task], reason)
        return []

    def _needless(self, task: int) -> bool:
        """Whether a task was done before, and all of its results that still have readers exist."""
        return self._made[task] and all(self._held[b] or not self._users[b] for b in self._links.gives[task])

    def _back(self, tasks: Iterable[int], now: float) -> None:
        """Return tasks to the waiting state, along with the makers of inputs that do not exist any more."""
        links, state, held = self._links, self._state, self._held
        stack = list(tasks)
        while stack:
            k = stack.pop()
            if state[k] == _SUBMITTED:
                self._landed(k)
                for b in links.gives[k]:
                    held[b] = False
            elif state[k] == _DONE:
                self._undone += 1
                for b in links.reads[k]:
                    self._users[b] += 1
                stack += [links.maker[b] for b in links.reads[k] if not held[b]]
            else:
                continue
            self._reopen(k, now)

    def _reopen(self, task: int, now: float) -> None:
        if self._started is not None:
            self._started.leave(task, now)
        self._state[task] = _WAITING
        for c in self._links.after[task]:
            self._lacking[c] += 1
            self._unexplained.pop(c, None)
        if not self._lacking[task]:
            heapq.heappush(self._ready, self._rank[task])


class _Links:
    """The graph of a plan: bundles that each task reads and gives, its predecessors and successors."""

    def __init__(self, plan: Plan):
        n = len(plan.tasks)
        self.maker = [bundle.task for bundle in plan.bundles]
        self.reads: list[list[int]] = [[] for _ in range(n)]
        self.gives: list[list[int]] = [[] for _ in range(n)]
        for b, bundle in enumerate(plan.bundles):
            self.gives[bundle.task].append(b)
            for k in bundle.readers:
                self.reads[k].append(b)
        self.before = [
            list(dict.fromkeys([*[self.maker[b] for b in read], *task.waits]))
            for task, read in zip(plan.tasks, self.reads, strict=True)
        ]
        self.after: list[list[int]] = [[] for _ in range(n)]
        for k, before in enumerate(self.before):
            for p in before:
                self.after[p].append(k)


def _slots(plan: Plan) -> int:
    """A lower bound on the concurrent tasks of the cluster: as if all were as large as the largest."""
    cpus = max((task.cpus for task in plan.tasks), default=1) or 1
    gpus = max((task.gpus for task in plan.tasks), default=0)
    return sum([min(w.cpus // cpus, w.gpus // gpus) if gpus else w.cpus // cpus for w in plan.cluster.workers]) or 1


class _StartTimes:
    """Estimated start times of running tasks: tasks are assumed to start in the order in which they became ready, as
    slots become free."""

    def __init__(self, after: Sequence[Sequence[int]], slots: int):
        self.running: dict[int, float] = {}
        self._queued: dict[int, None] = {}
        #: For each submitted task, its predecessors that were not done yet.
        self._missing: dict[int, set[int]] = {}
        self._after, self._slots = after, max(slots, 1)

    def enter(self, task: int, missing: set[int], now: float) -> None:
        self._missing[task] = missing
        if not missing:
            self._queue(task, now)

    def leave(self, task: int, now: float) -> None:
        self._missing.pop(task, None)
        self._queued.pop(task, None)
        if self.running.pop(task, None) is not None and self._queued:
            first = next(iter(self._queued))
            del self._queued[first]
            self.running[first] = now

    def end(self, task: int, now: float) -> None:
        for c in self._after[task]:
            missing = self._missing.get(c)
            if missing and task in missing:
                missing.remove(task)
                if not missing:
                    self._queue(c, now)

    def _queue(self, task: int, now: float) -> None:
        if len(self.running) < self._slots:
            self.running[task] = now
        else:
            self._queued[task] = None
