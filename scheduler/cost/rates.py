"""Cost: how long a step takes on a machine. The work of a step comes from `work_table`, the rates from the machine.

A step costs its matrix products, then its elements or its traffic through memory (the longer of them: they overlap),
then what is done one by one, then the calls. Threads share large products, and the blocks of groups and convolutions;
they share no calls, because the interpreter runs one at a time, and each call takes longer than alone, because the
interpreter's lock goes from thread to thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from distgrad.scheduler.cluster import Machine
from distgrad.scheduler.cost.cutting import PIECE_FLOPS, cut_group
from distgrad.scheduler.cost.work import Product, Work, nbytes
from distgrad.scheduler.cost.work_table import rule_of
from distgrad.scheduler.program import Step
from distgrad.types import Spec

#: So many works and costs are remembered by each model.
REMEMBERED = 1 << 16


class Cost(NamedTuple):
    """What a step is predicted to cost: seconds, floating-point operations, bytes read and written."""

    seconds: float
    flops: float
    bytes: float


class Terms(NamedTuple):
    """The seconds of a step, term by term, and the threads that it runs on."""

    products: float
    elements: float
    traffic: float
    irregular: float
    calls: float
    threads: int

    @property
    def seconds(self) -> float:
        return self.products + max(self.elements, self.traffic) + self.irregular + self.calls


class CostModel:
    """Costs of steps on `cpus` of one machine. Steps of the same type on the same types are priced once."""

    def __init__(self, machine: Machine, cpus: int = 1):
        self.machine = machine
        self.cpus = max(cpus, 1)
        self._works: dict[Any, Work] = {}
        self._costs: dict[Any, Cost] = {}

    def cost(self, step: Step, types: Sequence[Spec]) -> Cost:
        if step.body:
            return self._priced(self._group(step, types))
        key = _key(step, types)
        found = self._costs.get(key)
        if found is None:
            _make_room(self._costs)
            found = self._costs[key] = self._priced(self._single(step, types, key))
        return found

    def work(self, step: Step, types: Sequence[Spec]) -> Work:
        """What a step does."""
        return self._group(step, types) if step.body else self._single(step, types, _key(step, types))

    def terms(self, work: Work) -> Terms:
        """The seconds of some work."""
        machine, threads = self.machine, min(self.cpus, work.blocks)
        pieces = self.cpus * len([p for p in work.products if self._is_cut(p)]) if threads == 1 else work.calls
        used = self.cpus if pieces else threads
        return Terms(
            sum([self._product(p) for p in work.products]),
            (work.cheap / machine.elementwise + work.dear / machine.transcendental) / threads,
            self._traffic(work.nbytes, used),
            work.irregular / machine.irregular / threads,
            work.calls * machine.kernel_seconds + (pieces * machine.spread_seconds if used > 1 else 0.0),
            used,
        )

    def on_fresh(self, cost: Cost, results: Sequence[Spec]) -> Cost:
        """The cost of a step with these results in memory that is touched for the first time."""
        return cost._replace(seconds=cost.seconds + nbytes(results) / self.machine.fresh_bandwidth)

    def _is_cut(self, product: Product) -> bool:
        return product.shared and product.flops >= 2 * PIECE_FLOPS

    def _product(self, product: Product) -> float:
        machine = self.machine
        rate = machine.gemm_flops64 if product.double else machine.gemm_flops
        if self._is_cut(product):
            rate *= 1 + machine.gemm_parallel * (self.cpus - 1)
        return product.flops * (1 + machine.gemm_half / product.dim) / rate if product.flops else 0.0

    def _traffic(self, moved: float, threads: int) -> float:
        """What fits the cache comes from there, the rest through memory."""
        machine = self.machine
        near = min(moved, machine.cache_bytes)
        far = min(machine.memory_bandwidth, machine.memory_bandwidth_one * threads)
        return near / (machine.cache_bandwidth * threads) + (moved - near) / far

    def _priced(self, work: Work) -> Cost:
        flops = sum([p.flops for p in work.products]) + work.cheap + work.dear
        return Cost(self.terms(work).seconds, flops, work.nbytes)

    def _single(self, step: Step, types: Sequence[Spec], key: Any) -> Work:
        found = self._works.get(key)
        if found is None:
            _make_room(self._works)
            ins, outs = [types[v] for v in step.inputs], [types[v] for v in step.outputs]
            found = self._works[key] = rule_of(step.type).work(ins, outs, step.attrs)
        return found

    def _group(self, step: Step, types: Sequence[Spec]) -> Work:
        """The steps of a group work in cache, block by block; only what enters and leaves it moves through memory."""
        works = [self._single(inner, types, _key(inner, types)) for inner in step.body]
        cut = cut_group(step)
        moved = nbytes([types[v] for v in (*step.inputs, *step.outputs)])
        cheap, dear = sum([w.cheap for w in works]), sum([w.dear for w in works])
        irregular, calls = sum([w.irregular for w in works]), cut.blocks * sum([w.calls for w in works])
        return Work((), cheap, dear, irregular, moved, calls, cut.blocks if cut.shared else 1)


def _key(step: Step, types: Sequence[Spec]) -> Any:
    """What decides the work of a step: its type, those of its values, and the attributes that its rule reads."""
    specs = tuple([types[v] for v in step.inputs]), tuple([types[v] for v in step.outputs])
    read = rule_of(step.type).reads
    return (step.type, specs, tuple([step.attrs.get(name) for name in read])) if read else (step.type, specs)


def _make_room(remembered: dict[Any, Any]) -> None:
    if len(remembered) >= REMEMBERED:
        remembered.clear()
