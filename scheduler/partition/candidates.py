"""Candidates: ways to cut a program into tasks, best first by what a simulation says of each.

All are put together from the same small pieces, and what pieces hand to each other is found once: a way to cut is
simulated without making its plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from distgrad.scheduler.partition.contract import DEEP, contract, pieces, whole
from distgrad.scheduler.partition.nodes import Groups, Nodes, quotient
from distgrad.scheduler.partition.priced_program import Priced
from distgrad.scheduler.partition.reduce import Lanes, Way
from distgrad.scheduler.partition.simulate import Load, Thing, run

#: Grains that are tried, as multiples of the smallest.
COARSER = (4, 16)
#: Pieces per worker that are tried when towers are cut, so that work behind them can start before they end.
PIECES = (1, 4)
#: Tasks per worker that are tried when towers are put together with the sums over them.
FOLDS = (1, 4)
#: Tasks that add up side by side: one per worker is tried, and so many, because each costs every tower an object.
FEW = 2
#: Sums side by side should take so many times the overhead of a task. Those of 15 MB, as two tasks of 1.5 ms, ended
#: 9 ms later than as one of 3 ms.
SUMS_PAY = 2.0
#: Candidates times pieces: of a very large and irregular graph only the first few candidates are tried.
MAX_SIMULATED_PIECES = 200_000


def best_first(work: Priced, total: float) -> Iterator[Groups]:
    """All candidates are put together from the same small pieces: so the steps are gone through once."""
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
    """Ways to cut, the most promising first."""
    grain, each = work.grain, total / work.slots
    many = Way(grain, columns=work.slots, least=SUMS_PAY * work.cluster.machine.task_seconds)
    few = many._replace(columns=min(FEW, work.slots))
    folds = [0.0, *[1.05 * each / n for n in FOLDS]]  # towers alone, or with the sums over them
    ways = [
        *[way._replace(fold=fold) for fold in folds for way in (many, few)],  # trees of sums side by side
        *[few._replace(fold=fold, deep=DEEP) for fold in folds],  # what towers share is no part of any
        Way(grain),  # every level of a tree for itself
        *[few._replace(window=each / n) for n in PIECES],  # cut, so that what is behind them overlaps
        few._replace(branches=True),  # branches of towers too
        *[few._replace(grain=grain * factor) for factor in COARSER],
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


def _given(work: Priced, groups: Groups, count: int) -> list[set[int]]:
    """What each group reads from outside, where that has to travel."""
    given: list[set[int]] = [set() for _ in range(count)]
    if work.cluster.nodes > 1:
        for g, read in zip(groups, work.given, strict=True):
            given[g].update(read)
    return given


def _packs(work: Priced, groups: Groups) -> dict[_Pack, int]:
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


def _score(work: Priced, nodes: Nodes, groups: Sequence[int], pieces: _Things) -> float:
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
    return run(loads, things, work.cluster, work.given_bytes).seconds


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
