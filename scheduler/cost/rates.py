"""The cost model: how long a step takes on a machine, from its work (`work_table`) and the machine's rates.

The time of a step is the sum of its matrix products, the longer of its arithmetic and its memory traffic (they
overlap), its random accesses and its function calls. Threads share large products, groups and convolutions. They do not
share function calls, because the interpreter runs one thread at a time; each call even takes longer, because the
threads hand the interpreter lock to each other. Native code has rates of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from distgrad.registry import Kind, kind_of
from distgrad.scheduler.cluster import Machine
from distgrad.scheduler.cost.cutting import PIECE_FLOPS, is_shared
from distgrad.scheduler.cost.work import Product, Work, nbytes
from distgrad.scheduler.cost.work_table import rule_of
from distgrad.scheduler.execution import NATIVE, Execution
from distgrad.scheduler.program import Step
from distgrad.types import Spec

#: Calls of array functions that take as long as beginning and ending a group.
GROUP_CALLS = 12.0
#: Maximum number of cached works, and of cached costs, per model.
REMEMBERED = 1 << 16


class Cost(NamedTuple):
    """The predicted cost of a step: seconds, floating-point operations, bytes read and written."""

    seconds: float
    flops: float
    bytes: float


class Terms(NamedTuple):
    """The seconds of a step term by term, and the number of threads it runs on."""

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
    """Costs of steps on `cpus` cores of one machine. Equal steps are priced once."""

    def __init__(self, machine: Machine, cpus: int = 1, execution: Execution = NATIVE):
        self.machine = machine
        self.execution = execution
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
        """The work of a step."""
        return self._group(step, types) if step.body else self._single(step, types, _key(step, types))

    def terms(self, work: Work) -> Terms:
        """The seconds of some work."""
        machine, threads, pieces, used = self.machine, *self._threads(work)
        return Terms(
            sum([self._product(p) for p in work.products]),
            self._elements(work) / threads,
            self._traffic(work.nbytes, used),
            work.irregular / machine.irregular / threads,
            work.calls * machine.kernel_seconds
            + work.native * machine.native_seconds
            + (pieces * machine.spread_seconds if used > 1 else 0.0),
            used,
        )

    def _elements(self, work: Work) -> float:
        machine = self.machine
        if work.native:
            return work.elementwise / machine.native_elementwise + work.transcendental / machine.native_transcendental
        return work.elementwise / machine.elementwise + work.transcendental / machine.transcendental

    def _threads(self, work: Work) -> tuple[int, float, int]:
        """The threads that share elements; the pieces that are handed to threads; the threads that are used at all."""
        if self.execution.splits_steps:
            return self.cpus, 0.0, self.cpus
        threads = min(self.cpus, work.blocks)
        if threads == 1:
            pieces = float(self.cpus * len([p for p in work.products if self._is_cut(p)]))
        else:
            pieces = threads if work.native else work.calls
        return threads, pieces, self.cpus if pieces else threads

    def on_fresh(self, cost: Cost, results: Sequence[Spec]) -> Cost:
        """The cost of a step that writes these results into newly allocated memory."""
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
        """Data that fits the cache moves at its bandwidth, the rest at that of main memory."""
        machine = self.machine
        near = min(moved, machine.cache_bytes)
        far = min(machine.memory_bandwidth, machine.memory_bandwidth_one * threads)
        return near / (machine.cache_bandwidth * threads) + (moved - near) / far

    def _priced(self, work: Work) -> Cost:
        flops = sum([p.flops for p in work.products]) + work.elementwise + work.transcendental
        return Cost(self.terms(work).seconds, flops, work.nbytes)

    def _single(self, step: Step, types: Sequence[Spec], key: Any) -> Work:
        found = self._works.get(key)
        if found is None:
            _make_room(self._works)
            ins, outs = [types[v] for v in step.inputs], [types[v] for v in step.outputs]
            found = rule_of(step.type).work(ins, outs, step.attrs)
            if self.execution.splits_steps:
                found = found._replace(calls=min(found.calls, 1.0), blocks=1)
            elif self.execution.fuses and kind_of(step.type) is Kind.ELEMENTWISE:
                found = found._replace(calls=0.0, irregular=0.0, native=1)
            self._works[key] = found
        return found

    def _group(self, step: Step, types: Sequence[Spec]) -> Work:
        """Only the inputs and outputs of a group move through memory. Without fused loops its steps run one by one."""
        works = [self._single(inner, types, _key(inner, types)) for inner in step.body]
        if not self.execution.fuses:
            return _one_by_one(works)
        moved = nbytes([types[v] for v in (*step.inputs, *step.outputs)])
        elementwise, transcendental = sum([w.elementwise for w in works]), sum([w.transcendental for w in works])
        blocks = self.cpus if is_shared(step) else 1
        return Work((), elementwise, transcendental, 0.0, moved, GROUP_CALLS, blocks, len(step.body))


def _one_by_one(works: Sequence[Work]) -> Work:
    return Work(
        tuple([p for w in works for p in w.products]),
        sum([w.elementwise for w in works]),
        sum([w.transcendental for w in works]),
        sum([w.irregular for w in works]),
        sum([w.nbytes for w in works]),
        sum([w.calls for w in works]),
    )


def _key(step: Step, types: Sequence[Spec]) -> Any:
    """The cache key of a step's work: its op type, the types of its values, and the attributes its rule reads."""
    specs = tuple([types[v] for v in step.inputs]), tuple([types[v] for v in step.outputs])
    read = rule_of(step.type).reads
    return (step.type, specs, tuple([step.attrs.get(name) for name in read])) if read else (step.type, specs)


def _make_room(remembered: dict[Any, Any]) -> None:
    if len(remembered) >= REMEMBERED:
        remembered.clear()
