"""A discrete-event simulation of a plan: when each task would start and end on a cluster. Runs nothing.

It follows the rules of the engines. A task starts when all of its inputs are on its node and its cpus and GPUs are
free. It ends when its results are written to the store of its node, where others read them in place. A bundle is sent
once to each other node that reads it, and a node sends and receives one object at a time. Ready tasks are ordered by
the length of the critical path that remains after them, and are placed where they can start first.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from distgrad.scheduler.cluster import Cluster
from distgrad.scheduler.cost.memory import given_bytes
from distgrad.scheduler.devices import parse, workers_of
from distgrad.scheduler.plan import Bundle, Plan, Task

#: Maximum workers holding inputs of a task that are considered for it, in addition to the one that is free first.
NEAR = 4
#: Ray sends objects up to this many bytes inline with task messages. The first larger object that a task writes or
#: reads is part of its overhead; each further one takes this many seconds to create in the store, or to fetch.
RAY_INLINE_BYTES = 100 << 10
MAKE_SECONDS, GET_SECONDS = 1.2e-3, 2e-4
#: Kinds of objects that are sent: bundles, and input values.
MADE, GIVEN = 0, 1


@dataclass(frozen=True, slots=True)
class Timeline:
    """When and where each task runs, and the memory of each worker as (time, bytes) at every change."""

    start: tuple[float, ...]
    end: tuple[float, ...]
    worker: tuple[int, ...]
    bytes_moved: int
    memory: tuple[tuple[tuple[float, int], ...], ...] = ()
    #: Seconds of the critical path without overheads: a lower bound for any number of workers.
    critical_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """The makespan."""
        return max(self.end, default=0.0)

    @property
    def peak_bytes(self) -> int:
        """Peak memory of the worker that needs the most."""
        return max((held for line in self.memory for _, held in line), default=0)


class Load(NamedTuple):
    """A task for the simulator: `reads` are indices of objects, `given` ids of input values."""

    seconds: float
    cpus: int
    gpus: int
    device: str | None
    reads: tuple[int, ...]
    waits: tuple[int, ...]
    given: tuple[int, ...] = ()


class Thing(NamedTuple):
    """An object: the task that makes it, and its bytes."""

    task: int
    nbytes: int


def simulate(
    tasks: Sequence[Task],
    bundles: Sequence[Bundle],
    cluster: Cluster,
    given: Mapping[int, int] | None = None,
    placed: bool = False,
) -> Timeline:
    """Simulate these tasks; `given` has the bytes of the input values.

    With `placed`, each task runs on the worker it names; otherwise the simulator chooses, and its choice is the
    placement hint of a plan.
    """
    given = {} if given is None else given
    loads, things = loads_of(tasks, bundles, given)
    found = run(loads, things, cluster, given, [t.worker for t in tasks] if placed else None)
    memory = held(tasks, bundles, [worker.node for worker in cluster.workers], given, found)
    return replace(found, memory=memory, critical_seconds=critical_seconds(loads, things))


def replay(plan: Plan) -> Timeline:
    """Simulate a plan with its own placement."""
    return simulate(plan.tasks, plan.bundles, plan.cluster, given_bytes(plan.program), placed=True)


def loads_of(
    tasks: Sequence[Task], bundles: Sequence[Bundle], given: Mapping[int, int]
) -> tuple[list[Load], list[Thing]]:
    read: list[list[int]] = [[] for _ in tasks]
    for b, bundle in enumerate(bundles):
        for k in bundle.readers:
            read[k].append(b)
    loads = [
        Load(t.seconds, t.cpus, t.gpus, t.device, tuple(read[k]), t.waits, tuple([v for v in t.reads if v in given]))
        for k, t in enumerate(tasks)
    ]
    return loads, [Thing(b.task, b.nbytes) for b in bundles]


def critical_seconds(loads: Sequence[Load], things: Sequence[Thing]) -> float:
    """The length of the critical path: a lower bound for any number of workers."""
    end: list[float] = []
    for load in loads:
        before = [*load.waits, *(things[x].task for x in load.reads)]
        end.append(load.seconds + max([end[k] for k in before], default=0.0))
    return max(end, default=0.0)


def eligible(cluster: Cluster, cpus: int, gpus: int, device: str | None) -> tuple[int, ...]:
    """The workers that match the device and have enough cpus and GPUs."""
    workers = cluster.workers
    allowed = workers_of(parse(device), cluster)
    return tuple([w for w in allowed if workers[w].cpus >= cpus and workers[w].gpus >= gpus])


def run(
    loads: Sequence[Load],
    things: Sequence[Thing],
    cluster: Cluster,
    given: Mapping[int, int] | None = None,
    fixed: Sequence[int] | None = None,
) -> Timeline:
    """Simulate without tracking memory; `fixed` is the worker of each task, if given."""
    return _Simulation(loads, things, cluster, given or {}, fixed).run()


class _Simulation:
    """The state between events: when resources are free, and which objects have arrived where."""

    def __init__(
        self,
        loads: Sequence[Load],
        things: Sequence[Thing],
        cluster: Cluster,
        given: Mapping[int, int],
        fixed: Sequence[int] | None,
    ):
        self.loads, self.things, self.cluster, self.given = loads, things, cluster, given
        self.rooms = [_Room(worker.cpus, worker.gpus) for worker in cluster.workers]
        self.start, self.end = [0.0] * len(loads), [0.0] * len(loads)
        self.worker = [0] * len(loads)
        self.handling = self._handling()
        self.moved = 0
        self.arrived: dict[tuple[int, int, int], float] = {}
        self.sending: dict[int, float] = {}
        self.receiving: dict[int, float] = {}
        self.queues: dict[tuple[int, ...], _Queue] = {}
        self.queue_of = [self._queue(load, None if fixed is None else fixed[k]) for k, load in enumerate(loads)]

    def _handling(self) -> list[float]:
        """Seconds in which each task fetches its inputs and writes its results. With the local engine tasks share
        arrays, so this is 0."""
        if self.cluster.engine == "local":
            return [0.0] * len(self.loads)
        stored = [thing.nbytes > RAY_INLINE_BYTES for thing in self.things]
        seconds = [GET_SECONDS * max(sum([stored[x] for x in load.reads]) - 1, 0) for load in self.loads]
        wrote = [False] * len(self.loads)
        for thing, large in zip(self.things, stored, strict=True):
            seconds[thing.task] += thing.nbytes / self.cluster.machine.store_bandwidth
            seconds[thing.task] += MAKE_SECONDS if large and wrote[thing.task] else 0.0
            wrote[thing.task] |= large
        return seconds

    def _queue(self, load: Load, fixed: int | None) -> _Queue:
        kind = load.cpus, load.gpus
        workers = eligible(self.cluster, *kind, load.device) if fixed is None else (fixed,)
        if not workers:
            raise ValueError(f"no worker of cluster {self.cluster.name!r} has {kind[0]} cpus and {kind[1]} GPUs")
        key = (*kind, *workers)
        if key not in self.queues:
            self.queues[key] = _Queue(*kind, workers)
        return self.queues[key]

    def run(self) -> Timeline:
        before = [{*load.waits, *(self.things[x].task for x in load.reads)} for load in self.loads]
        after: list[list[int]] = [[] for _ in self.loads]
        for k, tasks in enumerate(before):
            for j in tasks:
                after[j].append(k)
        missing = [len(tasks) for tasks in before]
        rank = self._ranks(after)
        events: list[tuple[float, int]] = []
        now = 0.0
        ready = [k for k, n in enumerate(missing) if n == 0]
        while True:
            for k in ready:
                heapq.heappush(self.queue_of[k].ready, (-rank[k], k))
            for queue in self.queues.values():
                self._dispatch(queue, now, events)
            if not events:
                break
            now, ended = heapq.heappop(events)
            ready = []
            for k in after[ended]:
                missing[k] -= 1
                if not missing[k]:
                    ready.append(k)
        return Timeline(tuple(self.start), tuple(self.end), tuple(self.worker), self.moved)

    def _ranks(self, after: Sequence[Sequence[int]]) -> list[float]:
        """The critical path from the start of each task to the end of the run, including transfers between nodes."""
        machine = self.cluster.machine
        out = [0] * len(self.loads)
        for thing in self.things if self.cluster.nodes > 1 else ():
            out[thing.task] += thing.nbytes
        rank = [0.0] * len(self.loads)
        for k in range(len(rank) - 1, -1, -1):
            own, move = machine.task_seconds + self.loads[k].seconds + self.handling[k], out[k] / machine.link_bandwidth
            rank[k] = own + max([move + rank[j] for j in after[k]], default=0.0)
        return rank

    def _dispatch(self, queue: _Queue, now: float, events: list[tuple[float, int]]) -> None:
        while queue.ready and (w := queue.first_free(self.rooms))[0] <= now:
            _, k = heapq.heappop(queue.ready)
            self._place(k, self._chosen(k, w[1], queue, now), now)
            heapq.heappush(events, (self.end[k], k))

    def _chosen(self, k: int, free: int, queue: _Queue, now: float) -> int:
        """The worker on which the task can start first: a free one, or one that holds its inputs."""
        near = dict.fromkeys([self.worker[self.things[x].task] for x in self.loads[k].reads])
        options = [free, *[w for w in list(near)[:NEAR] if w != free and w in queue.members]]
        if len(options) == 1:
            return free
        return min(options, key=lambda w: (self._could_start(k, w, queue, now), w != free))

    def _could_start(self, k: int, w: int, queue: _Queue, now: float) -> float:
        at = max(now, self.rooms[w].free_at(queue.cpus, queue.gpus))
        node = self.cluster.workers[w].node
        for x in self.loads[k].reads:
            thing = self.things[x]
            source = self.worker[thing.task]
            known = self.arrived.get((MADE, x, node))
            if known is None:
                known = self.end[thing.task] + self._crossing(thing.nbytes, source, w)
            at = max(at, known)
        return at

    def _place(self, k: int, w: int, now: float) -> None:
        load = self.loads[k]
        room = self.rooms[w]
        at = max(now, room.free_at(load.cpus, load.gpus))
        for x in load.reads:
            thing = self.things[x]
            at = max(at, self._arrival((MADE, x), thing.nbytes, self.worker[thing.task], w, self.end[thing.task]))
        for v in load.given:
            at = max(at, self._arrival((GIVEN, v), self.given[v], 0, w, 0.0))  # the driver is on the node of worker 0
        self.worker[k], self.start[k] = w, at
        self.end[k] = at + self.cluster.machine.task_seconds + load.seconds + self.handling[k]
        room.take(load.cpus, load.gpus, self.end[k])

    def _arrival(self, what: tuple[int, int], nbytes: int, source: int, target: int, made: float) -> float:
        """When an object arrives. It is sent to each node once; transfers between nodes are queued."""
        workers = self.cluster.workers
        a, b = workers[source].node, workers[target].node
        if self.cluster.engine == "local" or (what[0] == GIVEN and a == b):
            return made
        key = (*what, b)
        if key not in self.arrived:
            begin = made
            if a != b:
                begin = max(made, self.sending.get(a, 0.0), self.receiving.get(b, 0.0))
                busy = begin + nbytes / self.cluster.machine.link_bandwidth
                self.sending[a] = self.receiving[b] = busy
            self.arrived[key] = begin + self._crossing(nbytes, source, target)
            self.moved += nbytes
        return self.arrived[key]

    def _crossing(self, nbytes: int, source: int, target: int) -> float:
        """Seconds of a transfer; 0 on the same node, where workers share a store."""
        workers = self.cluster.workers
        near = workers[source].node == workers[target].node
        return 0.0 if near else self.cluster.move_seconds(nbytes, source, target)


class _Room:
    """When each cpu and each GPU of a worker is free, ascending."""

    __slots__ = ("cpus", "gpus")

    def __init__(self, cpus: int, gpus: int):
        self.cpus, self.gpus = [0.0] * cpus, [0.0] * gpus

    def free_at(self, cpus: int, gpus: int) -> float:
        at = self.cpus[cpus - 1] if cpus else 0.0
        return max(at, self.gpus[gpus - 1]) if gpus else at

    def take(self, cpus: int, gpus: int, until: float) -> None:
        for free, count in ((self.cpus, cpus), (self.gpus, gpus)):
            del free[:count]
            for _ in range(count):
                insort(free, until)


class _Queue:
    """Ready tasks with the same requirements, and the workers that can run them, by when they are free."""

    __slots__ = ("cpus", "gpus", "idle", "members", "ready")

    def __init__(self, cpus: int, gpus: int, workers: Sequence[int]):
        self.cpus, self.gpus = cpus, gpus
        self.ready: list[tuple[float, int]] = []
        self.members = frozenset(workers)
        self.idle = [(0.0, w) for w in sorted(workers)]

    def first_free(self, rooms: Sequence[_Room]) -> tuple[float, int]:
        """The worker that is free first. Times in the heap are updated lazily, when they reach the top."""
        while True:
            at, w = self.idle[0]
            real = rooms[w].free_at(self.cpus, self.gpus)
            if real == at:
                return at, w
            heapq.heapreplace(self.idle, (real, w))


# -- memory ------------------------------------------------------------------------------------------------------


def held(
    tasks: Sequence[Task],
    bundles: Sequence[Bundle],
    nodes: Sequence[int],
    given: Mapping[int, int],
    found: Timeline,
) -> tuple[tuple[tuple[float, int], ...], ...]:
    """The memory of each worker over time: running tasks, and bundles from their creation to the end of their last
    reader. Nodes of remote readers hold a copy. `nodes` has the node of each worker."""
    changes: list[dict[float, int]] = [{} for _ in nodes]
    inner = [task.memory - sum([given[v] for v in task.reads if v in given]) for task in tasks]
    for bundle in bundles:
        for k in bundle.readers:
            inner[k] -= bundle.nbytes
        for w, begin, end in _stays(bundle, nodes, found):
            _add(changes[w], begin, end, bundle.nbytes)
    for k in range(len(tasks)):
        _add(changes[found.worker[k]], found.start[k], found.end[k], inner[k])
    return tuple([_running_sum(change) for change in changes])


def _stays(bundle: Bundle, nodes: Sequence[int], found: Timeline) -> list[tuple[int, float, float | None]]:
    """The workers that hold a bundle, from when until when; None means until the end of the run."""
    home = found.worker[bundle.task]
    last = {nodes[home]: (home, found.end[bundle.task], found.end[bundle.task])}
    for k in bundle.readers:
        w = found.worker[k]
        holder, begin, end = last.get(nodes[w], (w, found.start[k], 0.0))
        last[nodes[w]] = holder, min(begin, found.start[k]), max(end, found.end[k])
    kept = nodes[home] if bundle.wanted else -1
    return [(w, begin, None if node == kept else end) for node, (w, begin, end) in last.items()]


def _add(change: dict[float, int], begin: float, end: float | None, nbytes: int) -> None:
    change[begin] = change.get(begin, 0) + nbytes
    if end is not None:
        change[end] = change.get(end, 0) - nbytes


def _running_sum(change: Mapping[float, int]) -> tuple[tuple[float, int], ...]:
    held, line = 0, []
    for at in sorted(change):
        held += change[at]
        line.append((at, held))
    return tuple(line)
