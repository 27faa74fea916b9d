"""Candidate partitions of a program, ranked by simulation.

All candidates are built from the same small pieces, and the data passed between pieces is computed once, so a candidate
is simulated without building its plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from distgrad.scheduler.partition.contract import DEEP, contract, pieces, whole
from distgrad.scheduler.partition.nodes import Groups, Nodes, quotient
from distgrad.scheduler.partition.priced_program import Priced
from distgrad.scheduler.partition.reduce import Lanes, Way
from distgrad.scheduler.partition.simulate import Load, Thing, run

#: Grains to try, as multiples of the smallest.
COARSER = (4, 16)
#: Pieces per worker to try when splitting towers, so that later work can start before a tower ends.
PIECES = (1, 4)
#: Tasks per worker to try when merging towers with the sums over them.
FOLDS = (1, 4)
#: Concurrent summing tasks to try besides one per worker: each of them costs every tower one object.
FEW = 2
#: Minimum duration of concurrent summing tasks, in task overheads: sums of 15 MB split into two tasks of 1.5 ms ended
#: 9 ms later than as one task of 3 ms.
SUMS_PAY = 2.0
#: Maximum candidates times pieces: for very large graphs only the first few candidates are simulated.
MAX_SIMULATED_PIECES = 200_000


def best_first(work: Priced, total: float) -> Iterator[Groups]:
    """The candidate partitions, the shortest predicted run first. All are built from the same small pieces."""
    small = pieces(work.nodes, work.grain)
    graph, place = quotient(work.nodes, small)
    of = [place[g] for g in small]
    tries = _tries(work, total)[: max(1, MAX_SIMULATED_PIECES // len(graph))]
    known: dict[tuple[float, bool, int], Lanes] = {}
    ways = [whole(graph), *[contract(graph, way, known) for way in tries]]
    found = list(dict.fromkeys([tuple(groups) for groups in ways]))
    things = _Things(_given(work, of, len(graph)), _packs(work, of))
    scores = [_score(work, graph, groups, things) for groups in found]
    for i in sorted(range(len(found)), key=lambda i: (scores[i], i)):
        yield [found[i][g] for g in of]


def _tries(work: Priced, total: float) -> list[Way]:
    """The partitioning strategies to try, the most promising first."""
    grain, each = work.grain, total / work.slots
    many = Way(grain, columns=work.slots, least=SUMS_PAY * work.cluster.machine.task_seconds)
    few = many._replace(columns=min(FEW, work.slots))
    folds = [0.0, *[1.05 * each / n for n in FOLDS]]  # towers alone, or with the sums over them
    ways = [
        *[way._replace(fold=fold) for fold in folds for way in (many, few)],  # concurrent trees of sums
        *[few._replace(fold=fold, deep=DEEP) for fold in folds],  # steps shared by towers belong to none
        Way(grain),  # every level of a tree separately
        *[few._replace(window=each / n) for n in PIECES],  # split, so that later work overlaps
        few._replace(branches=True),  # branches of towers too
        *[few._replace(grain=grain * factor) for factor in COARSER],
    ]
    return list(dict.fromkeys(ways))


class _Pack(NamedTuple):
    """Values that one piece makes for the same other pieces, or as outputs."""

    maker: int
    readers: tuple[int, ...]
    wanted: bool


class _Things(NamedTuple):
    """What pieces read: input values, and packs from each other with their bytes."""

    given: list[set[int]]
    packs: dict[_Pack, int]


def _given(work: Priced, groups: Groups, count: int) -> list[set[int]]:
    """The input values that each group reads, if the cluster has several nodes."""
    given: list[set[int]] = [set() for _ in range(count)]
    if work.cluster.nodes > 1:
        for g, read in zip(groups, work.given, strict=True):
            given[g].update(read)
    return given


def _packs(work: Priced, groups: Groups) -> dict[_Pack, int]:
    """The data passed between pieces, packed like bundles."""
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


def _score(work: Priced, nodes: Nodes, groups: Sequence[int], pieces: _Things) -> float:
    """The predicted seconds of a candidate."""
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
    return run(loads, things, work.cluster, work.given_bytes).seconds


def _moved(packs: Mapping[_Pack, int], of: Sequence[int], count: int) -> tuple[list[tuple[int, ...]], list[Thing]]:
    """The things that each group reads from others, by index; `of` is the group of each piece."""
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
