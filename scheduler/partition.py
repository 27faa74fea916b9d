"""Partition: from a program to a plan for a cluster.

Prices the steps, contracts them in a few ways, simulates each, and takes the best that fits the memory. Every step runs
the same kernel in every partition: bits never depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from distgrad.errors import BudgetError
from distgrad.scheduler.assemble import COPIED, Draft, assemble
from distgrad.scheduler.cluster import Cluster
from distgrad.scheduler.contract import contract, pieces, whole
from distgrad.scheduler.devices import canonical
from distgrad.scheduler.memory import given_bytes, largest, refusal, refuse, value_bytes
from distgrad.scheduler.nodes import Groups, Nodes, quotient
from distgrad.scheduler.plan import Options, Plan, Predictions, check_plan, copied
from distgrad.scheduler.prices import Needs, needs_of, prices
from distgrad.scheduler.program import FUSED, Program, Step, planning
from distgrad.scheduler.reduce import Way
from distgrad.scheduler.simulate import Load, Thing, critical_seconds, loads_of, simulate
from distgrad.scheduler.simulate import run as run_loads

__all__ = ["Options", "partition"]

#: A task should last so many times its overhead: 20 ms on Ray, half a millisecond in this process.
PAYS = 10
#: Grains that are tried, as multiples of the smallest.
COARSER = (4, 16)
#: Pieces per worker that are tried when towers are cut, so that work behind them can start before they end.
PIECES = (1, 4)
#: Tasks per worker that are tried when towers are put together with the sums over them.
FOLDS = (1, 4)
#: Tasks that add up side by side: one per worker is tried, and so many, because each costs every tower an object.
FEW = 2
#: Sums side by side should take so many times the overhead of a task: they write about four times as long as they add.
SUMS_PAY = 0.25
#: Candidates times pieces: of a very large and irregular graph only the first few candidates are tried.
PATIENCE = 200_000
#: Pieces of a run that are tried when a task does not fit the memory of a worker.
SMALLER = (4, 16, 64)


def partition(program: Program, cluster: Cluster, options: Options | None = None) -> Plan:
    """The plan for this program on this cluster; BudgetError where no plan keeps within the memory, DeviceError where
    the cluster has no such device.

    >>> import distgrad as dg
    >>> from distgrad.scheduler import local_cluster, lower
    >>> with dg.Graph():
    ...     x = dg.placeholder((100, 100))
    ...     plan = partition(lower([dg.exp(x) @ x], [x]), local_cluster(2, 1 << 30))
    >>> [task.steps for task in plan.tasks]
    [(0, 1)]
    """
    with planning():
        return _partition(_Work.of(canonical(program), cluster, options or Options()))


def _partition(work: _Work) -> Plan:
    best: Plan | None = None
    for groups in _ways(work):
        plan = _plan(work, groups)
        if _fits(plan):
            return check_plan(plan)
        if best is None or plan.predictions.peak_bytes < best.predictions.peak_bytes:
            best = plan
    assert best is not None
    refuse(work.program, best, work.options.memory)
    raise _too_small(best)


# -- prices ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Work:
    """A program with its prices, and the graph that is contracted: the steps that are not copied."""

    program: Program
    cluster: Cluster
    options: Options
    needs: dict[str | None, Needs]
    seconds: list[float]
    flops: list[float]
    nbytes: list[int]
    free: list[bool]
    nodes: Nodes
    #: Per node the values from outside that it reads; empty where all nodes of the cluster have them.
    given: list[tuple[int, ...]]

    @classmethod
    def of(cls, program: Program, cluster: Cluster, options: Options) -> _Work:
        needs = needs_of(program, cluster, options)
        costs = prices(program, cluster, needs)
        seconds, flops = [c.seconds for c in costs], [c.flops for c in costs]
        nbytes, free = value_bytes(program.types), copied(program)
        nodes, given = _nodes(program, seconds, nbytes, free, {device: k for k, device in enumerate(needs)})
        return cls(program, cluster, options, needs, seconds, flops, nbytes, free, nodes, given)

    @property
    def slots(self) -> int:
        """How many tasks can run at once."""
        cpus = max([need.cpus for need in self.needs.values()], default=1)
        return sum(worker.cpus // cpus for worker in self.cluster.workers)

    @property
    def grain(self) -> float:
        return PAYS * self.cluster.machine.task_seconds


def _nodes(
    program: Program,
    seconds: Sequence[float],
    nbytes: Sequence[int],
    free: Sequence[bool],
    devices: dict[str | None, int],
) -> tuple[Nodes, list[tuple[int, ...]]]:
    place = [-1] * len(program.steps)
    maker = [-1] * len(program.types)
    outside: dict[int, tuple[int, ...]] = {v: (v,) for v in program.given}
    nodes = Nodes([], [], [], [], [])
    given: list[tuple[int, ...]] = []
    for i, step in enumerate(program.steps):
        if free[i]:
            outside[step.outputs[0]] = tuple([x for v in step.inputs for x in outside[v]])
            continue
        place[i] = node = len(nodes.weight)
        edges: dict[int, int] = {}
        read: list[int] = []
        for v in step.inputs:
            p = maker[v]
            if p >= 0:
                edges[p] = edges.get(p, 0) + nbytes[v]
            else:
                read += outside[v]
        for j in step.after:
            edges.setdefault(place[j], 0)
        for v in step.outputs:
            maker[v] = node
        nodes.weight.append(seconds[i])
        nodes.before.append(tuple(edges))
        nodes.moved.append(tuple(edges.values()))
        nodes.device.append(devices[step.device])
        nodes.joint.append(_adds_up(step))
        given.append(tuple(read))
    return nodes, given


def _adds_up(step: Step) -> bool:
    """Whether a step adds terms: a part of a reduce tree, if they come from several towers."""
    if step.type == FUSED:
        inputs = set(step.inputs)
        return any(inner.type == "AddN" and len(inputs.intersection(inner.inputs)) > 1 for inner in step.body)
    return step.type == "AddN" and len(step.inputs) > 1


# -- candidates --------------------------------------------------------------------------------------------------


def _ways(work: _Work) -> Iterator[Groups]:
    """Ways to cut, those with the shortest predicted run first; then, where none of them fits, ever smaller pieces."""
    asked, total = work.options.granularity, sum(work.nodes.weight)
    if asked is not None:
        if not asked > 0:
            raise ValueError(f"granularity is {asked!r}, but must be a number of seconds above 0, or None")
        yield contract(work.nodes, Way(asked, asked))
    elif work.slots == 1 or total < 2 * work.grain:
        yield whole(work.nodes)
    else:
        yield from _best_first(work, total)
    for count in SMALLER:
        yield contract(work.nodes, Way(total / count, total / count))


def _best_first(work: _Work, total: float) -> Iterator[Groups]:
    """All candidates are put together from the same small pieces: so the steps are gone through once."""
    small = pieces(work.nodes, work.grain)
    graph, place = quotient(work.nodes, small)
    of = [place[g] for g in small]
    tries = _tries(work, total)
    found = [whole(graph), *[contract(graph, way) for way in tries[: max(1, PATIENCE // len(graph))]]]
    things = _Things(_given(work, of, len(graph)), _packs(work, of))
    scores = [_score(work, graph, groups, things) for groups in found]
    for i in sorted(range(len(found)), key=lambda i: (scores[i], i)):
        yield [found[i][g] for g in of]


def _tries(work: _Work, total: float) -> list[Way]:
    """Ways to cut, the most promising first."""
    grain, each, least = work.grain, total / work.slots, SUMS_PAY * work.cluster.machine.task_seconds
    folds = [0.0, *[1.05 * each / n for n in FOLDS]]  # towers alone, or with the sums over them
    many, few = {"columns": work.slots, "least": least}, {"columns": min(FEW, work.slots), "least": least}
    ways = [
        *[Way(grain, fold=fold, **sums) for fold in folds for sums in (many, few)],  # trees of sums side by side
        Way(grain),  # every level of a tree for itself
        *[Way(grain, each / n, **few) for n in PIECES],  # cut, so that what is behind them overlaps
        Way(grain, branches=True, **few),  # branches of towers too
        *[Way(grain * factor, **few) for factor in COARSER],
    ]
    return list(dict.fromkeys(ways))


class _Pack(NamedTuple):
    """Values that one piece makes for the same other pieces, or that are wanted at the end."""

    maker: int
    readers: tuple[int, ...]
    wanted: bool


class _Things(NamedTuple):
    """What pieces read: from outside, and from each other, with its bytes."""

    given: list[set[int]]
    packs: dict[_Pack, int]


def _given(work: _Work, groups: Groups, count: int) -> list[set[int]]:
    """What each group reads from outside, where that has to travel."""
    given: list[set[int]] = [set() for _ in range(count)]
    if work.cluster.nodes > 1:
        for g, read in zip(groups, work.given, strict=True):
            given[g].update(read)
    return given


def _packs(work: _Work, groups: Groups) -> dict[_Pack, int]:
    """What pieces hand to each other, as bundles would pack it."""
    maker: dict[int, int] = {}
    readers: dict[int, dict[int, None]] = {}
    numbers = iter(groups)
    for step, free in zip(work.program.steps, work.free, strict=True):
        if free:
            continue
        here = next(numbers)
        for v in step.inputs:
            if maker.get(v, here) != here:
                readers.setdefault(v, {})[here] = None
        for v in step.outputs:
            maker[v] = here
    wanted = set(work.program.wanted)
    packs: dict[_Pack, int] = {}
    for v in (*readers, *[v for v in wanted if v in maker and v not in readers]):
        pack = _Pack(maker[v], tuple(readers.get(v, ())), v in wanted)
        packs[pack] = packs.get(pack, 0) + work.nbytes[v]
    return packs


def _score(work: _Work, nodes: Nodes, groups: Groups, pieces: _Things) -> float:
    """The predicted seconds of a way to cut."""
    graph, place = quotient(nodes, groups)
    given: list[set[int]] = [set() for _ in range(len(graph))]
    for v, g in enumerate(groups):
        given[place[g]] |= pieces.given[v]
    reads, things = _moved(pieces.packs, [place[g] for g in groups], len(graph))
    devices = list(work.needs)
    loads: list[Load] = []
    for k, before in enumerate(graph.before):
        device = devices[graph.device[k]]
        need = work.needs[device]
        loads.append(Load(graph.weight[k], need.cpus, need.gpus, device, reads[k], before, tuple(sorted(given[k]))))
    return run_loads(loads, things, work.cluster, given_bytes(work.program)).seconds


def _moved(packs: Mapping[_Pack, int], of: Sequence[int], count: int) -> tuple[list[tuple[int, ...]], list[Thing]]:
    """What each group reads of the others, as numbers of things; `of` is the group of each piece."""
    bundles: dict[_Pack, int] = {}
    for pack, nbytes in packs.items():
        maker = of[pack.maker]
        readers = tuple(sorted({of[r] for r in pack.readers} - {maker}))
        if readers or pack.wanted:
            key = _Pack(maker, readers, pack.wanted)
            bundles[key] = bundles.get(key, 0) + nbytes
    reads: list[list[int]] = [[] for _ in range(count)]
    for x, pack in enumerate(bundles):
        for r in pack.readers:
            reads[r].append(x)
    return [tuple(each) for each in reads], [Thing(pack.maker, nbytes) for pack, nbytes in bundles.items()]


# -- plans -------------------------------------------------------------------------------------------------------


def _plan(work: _Work, groups: Groups) -> Plan:
    program, cluster = work.program, work.cluster
    of, count = _tasks_of(work, groups)
    draft = Draft(program, of, count, work.seconds, work.flops, work.nbytes, work.needs)
    tasks, bundles = assemble(draft)
    given = given_bytes(program)
    timeline = simulate(tasks, bundles, cluster, given)
    placed = [replace(task, worker=w) for task, w in zip(tasks, timeline.worker, strict=True)]
    loads, things = loads_of(tasks, bundles, given)
    predictions = Predictions(
        seconds=timeline.seconds,
        bytes_moved=timeline.bytes_moved,
        peak_bytes=timeline.peak_bytes,
        work_seconds=sum([task.seconds for task in tasks]),
        critical_seconds=critical_seconds(loads, things),
    )
    return Plan(program, tuple(placed), tuple(bundles), cluster, work.options, predictions)


def _tasks_of(work: _Work, groups: Groups) -> tuple[list[int], int]:
    """The task of every step; where all that is wanted is copied, one task has it."""
    numbers = iter(groups)
    of = [COPIED if free else next(numbers) for free in work.free]
    count = max(groups, default=-1) + 1
    makes = {v for step in work.program.steps for v in step.outputs} if count == 0 else set()
    return of, max(count, int(any(v in makes for v in work.program.wanted)))


def _fits(plan: Plan) -> bool:
    budget = plan.options.memory
    if budget is not None and plan.predictions.peak_bytes > budget:
        return False
    return all(task.memory <= plan.cluster.workers[task.worker].memory for task in plan.tasks)


def _too_small(plan: Plan) -> BudgetError:
    """What to say where some task fits no worker: of the way to cut that needs least."""
    task = max(plan.tasks, key=lambda task: task.memory - plan.cluster.workers[task.worker].memory)
    has = plan.cluster.workers[task.worker].memory
    return BudgetError(refusal(plan.program, task.memory, has, largest(plan.program, plan)))
