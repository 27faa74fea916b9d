"""The state of a run: which task to submit next, what to run again, which object to let go. Events in, commands out.

Pure: it knows no clock, no workers and no objects. An engine that runs a plan elsewhere reports what happened (`done`,
`failed`, `lost`, `tick`, each with the time) and obeys the commands that come back, in their order. Events are about
the current attempt of a task; one about a task that is not submitted is outdated and changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from distgrad.scheduler.plan import Plan

#: A task is to be submitted, was submitted, or has given all that it gives.
_WAITING, _SUBMITTED, _DONE = 0, 1, 2
#: Give up after 100 missing-input failures while nothing upstream failed; or where one task's results are lost as
#: often.
_UNEXPLAINED = 100


class Submit(NamedTuple):
    """Submit a task, on the latest objects of what it reads; its own objects take the place of older ones. Attempts
    count from 1."""

    task: int
    attempt: int


class Drop(NamedTuple):
    """Let go of an object: nobody reads it any more. One that failed or was lost is gone without that."""

    bundle: int


class Cancel(NamedTuple):
    """End the attempt that is running: it hangs."""

    task: int


Command = Submit | Drop | Cancel


class GivenUp(Exception):
    """A task failed as often as it may."""

    def __init__(self, task: int, attempts: int, reason: str):
        super().__init__(task, attempts, reason)  # all of them, for pickle
        self.task, self.attempts, self.reason = task, attempts, reason

    def __str__(self) -> str:
        times = "once" if self.attempts == 1 else f"{self.attempts} times"
        return f"task {self.task} failed {times}, which is as often as it may; the last time: {self.reason}"


class RunState:
    """One run of a plan. `order` has every task once: of those that can be submitted, the first in it goes first.

    A task can be submitted as soon as all tasks before it (those it reads from or waits for) were; at most `in_flight`
    are submitted and not done. `slots` is how many tasks run side by side at most, by default what the plan's cluster
    has room for: of the tasks that have all they need, only so many can have begun, and only these can hang.
    `ahead` is how many bytes those in flight may make: what runs ahead of the news of its ends is let go late and fills
    the store of a chain that needs two values at a time. Two tasks for each slot are in flight whatever they make.

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
        patience: float | None = None,
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
        self._room, self._attempts, self._patience = max(in_flight, 1), attempts, patience
        self._state, self._attempt, self._undone, self._flying = [_WAITING] * n, [0] * n, n, 0
        slots = _slots(plan) if slots is None else max(slots, 1)
        #: The bytes that each task makes, those that tasks in flight make, and how many these may be.
        self._makes = [sum([plan.bundles[b].nbytes for b in gives]) for gives in links.gives]
        self._making, self._ahead, self._least = 0, ahead, 2 * slots
        #: How many tasks before each are to be submitted, and the places in the order of those where none is.
        self._lacking = [len(before) for before in links.before]
        self._ready = [place for place, k in enumerate(order) if not links.before[k]]
        #: Readers of each bundle that are not done, and one for ever where it is wanted; whether its object is there
        #: or in flight.
        self._users = [len(bundle.readers) + bundle.wanted for bundle in plan.bundles]
        self._held = [False] * len(plan.bundles)
        #: Tasks that were done at least once, and how often each ran; how often tasks ran again, for reports.
        self._made, self._runs = [False] * n, [0] * n
        self.recomputed: dict[int, int] = {}
        self._failures: dict[int, int] = {}
        self._unexplained: dict[int, int] = {}
        self._losses: dict[int, int] = {}
        self._watch = None if patience is None else _Watch(links.after, slots)

    @property
    def finished(self) -> bool:
        """Whether all tasks are done and all that is wanted is there."""
        return not self._undone

    @property
    def left(self) -> int:
        """How many tasks are not done."""
        return self._undone

    # -- events --------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Command]:
        return self._fill([], now)

    def done(self, task: int, now: float) -> list[Command]:
        """All objects of a task are there."""
        if self._state[task] != _SUBMITTED:
            return []
        self._landed(task)
        self._ran(task)
        if self._watch is not None:
            self._watch.leave(task, now)
        return self._fill(self._end(task, now), now)

    def failed(self, task: int, reason: str, now: float, collateral: bool = False) -> list[Command]:
        """An attempt ended without its objects; `collateral`: because an object that it reads was not to be had.

        Raises GivenUp where the task itself failed as often as it may. A collateral failure counts no attempt, as the
        task never ran; only one that comes again and again while nothing before the task failed is given up too.
        """
        if self._state[task] != _SUBMITTED:
            return []
        return self._fill(self._again(task, reason, now, collateral), now)

    def lost(self, bundles: Iterable[int], now: float) -> list[Command]:
        """Objects are gone: the tasks that made them run again, and before them those whose objects these need and
        that were let go. What was let go, or is being made again, is not missed.

        Raises GivenUp where what a task made was lost again and again.
        """
        gone = [b for b in bundles if self._held[b] and self._state[self._links.maker[b]] != _SUBMITTED]
        for b in gone:
            self._held[b] = False
        makers = list(dict.fromkeys([self._links.maker[b] for b in gone]))
        for k in makers:
            self._losses[k] = self._losses.get(k, 0) + 1
            if self._losses[k] >= _UNEXPLAINED:
                raise GivenUp(k, self._losses[k], "what it made was lost")
        self._back(makers, now)
        return self._fill([], now)

    def tick(self, now: float) -> list[Command]:
        """Time has passed: what has been running for longer than `patience` hangs. It is ended, which counts as a
        failure, and goes again."""
        commands: list[Command] = []
        for task in self.overdue(now):
            commands.append(Cancel(task))
            commands += self._again(task, f"it did not end within {self._patience:g} s", now)
        return self._fill(commands, now) if commands else commands

    def overdue(self, now: float) -> list[int]:
        """The tasks that `tick` would take for hung."""
        running = {} if self._watch is None else self._watch.running
        return [task for task, since in running.items() if now - since > (self._patience or 0)]

    def began(self, task: int, at: float) -> None:
        """A task began later than it seemed, as when a worker has to be started for it."""
        if self._watch is not None and task in self._watch.running:
            self._watch.running[task] = at

    def waiting(self) -> list[tuple[int, str]]:
        """The tasks that are not done and what each waits for, those first that nothing keeps from running."""
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
        return f"one of {self._flying} in flight to end" if late else "a worker to run it to its end"

    # -- what follows from them ------------------------------------------------------------------------------------

    def _fill(self, commands: list[Command], now: float) -> list[Command]:
        """Submit what can be submitted."""
        ready, state, lacking = self._ready, self._state, self._lacking
        while ready and self._flying < self._room:
            k = self._order[ready[0]]
            can = state[k] == _WAITING and not lacking[k]  # otherwise it was true once
            if can and not self._fits(k):
                break
            heapq.heappop(ready)
            if can:
                commands.append(self._submit(k, now))
        return commands

    def _fits(self, task: int) -> bool:
        """Whether what a task makes, beside what is in flight, is no more than may be made ahead."""
        return self._ahead is None or self._flying < self._least or self._making + self._makes[task] <= self._ahead

    def _submit(self, task: int, now: float) -> Submit:
        self._state[task] = _SUBMITTED
        self._flying += 1
        self._making += self._makes[task]
        self._attempt[task] += 1
        for b in self._links.gives[task]:
            self._held[b] = True
        self._open(task)
        if self._watch is not None:
            self._watch.enter(task, {p for p in self._links.before[task] if self._state[p] != _DONE}, now)
        return Submit(task, self._attempt[task])

    def _landed(self, task: int) -> None:
        self._flying -= 1
        self._making -= self._makes[task]

    def _open(self, task: int) -> None:
        """A task waits no more: those after it lack one less."""
        lacking, state = self._lacking, self._state
        for c in self._links.after[task]:
            lacking[c] -= 1
            if not lacking[c] and state[c] == _WAITING:
                heapq.heappush(self._ready, self._rank[c])

    def _end(self, task: int, now: float) -> list[Command]:
        """A task is done: what it was the last to read is let go, and of its own what nobody reads any more.

        Where that was also the reason to run another one again, there is no reason left: it is done as it is.
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
                if users[b] or state[maker] == _SUBMITTED:  # being made again: let go when it is there
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
        if self._watch is not None:
            self._watch.end(task, now)

    def _ran(self, task: int) -> None:
        self._runs[task] += 1
        if self._runs[task] > 1:
            self.recomputed[task] = self._runs[task] - 1

    def _again(self, task: int, reason: str, now: float, collateral: bool = False) -> list[Command]:
        """A task that was submitted goes again, unless nobody needs that any more."""
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
        """Whether a task that goes again was done before, and all that is still read of it is there."""
        return self._made[task] and all(self._held[b] or not self._users[b] for b in self._links.gives[task])

    def _back(self, tasks: Iterable[int], now: float) -> None:
        """Tasks are to be submitted again, and with them the makers of what they read that is not there any more."""
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
        if self._watch is not None:
            self._watch.leave(task, now)
        self._state[task] = _WAITING
        for c in self._links.after[task]:
            self._lacking[c] += 1
            self._unexplained.pop(c, None)
        if not self._lacking[task]:
            heapq.heappush(self._ready, self._rank[task])


class _Links:
    """Who reads what of whom: bundles read and given by each task, the tasks before and after it."""

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
    """How many tasks the cluster runs side by side at least: as if all were as large as the largest."""
    cpus = max((task.cpus for task in plan.tasks), default=1) or 1
    gpus = max((task.gpus for task in plan.tasks), default=0)
    return sum([min(w.cpus // cpus, w.gpus // gpus) if gpus else w.cpus // cpus for w in plan.cluster.workers]) or 1


class _Watch:
    """Since when tasks run, as far as that can be told from outside: those with all they need begin in the order in
    which they got it, as many at a time as there are slots."""

    def __init__(self, after: Sequence[Sequence[int]], slots: int):
        self.running: dict[int, float] = {}
        self._queued: dict[int, None] = {}
        #: Of each submitted task, those before it that were not done since: once done, it has what it needs of them.
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
