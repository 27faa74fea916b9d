"""Cost: how long a step takes on a machine. The work of a step comes from `work_table`, the rates from the machine.

A step costs its matrix products, then its elements or its traffic through memory (the longer of them: they overlap),
then what is done one by one, then the calls. `explain_cost` prints these terms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from distgrad.scheduler.cluster import Machine
from distgrad.scheduler.program import Step
from distgrad.scheduler.work import Product, Work, nbytes
from distgrad.scheduler.work_table import READ, step_work
from distgrad.types import Spec

#: A group runs in blocks of about so many elements; shorter ones would not hide the handing over between threads.
BLOCK = 1 << 16
#: A product below this many flops runs on one thread: BLAS libraries do not split smaller ones.
SPLIT_FLOPS = 1e6
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


def step_cost(step: Step, types: Sequence[Spec], machine: Machine, cpus: int = 1) -> Cost:
    """The predicted cost of one step on `cpus` of a machine. For many steps, take `CostModel(machine, cpus).cost`.

    >>> import distgrad as dg
    >>> from distgrad.scheduler import lower
    >>> with dg.Graph():
    ...     a, b = dg.placeholder((512, 512)), dg.placeholder((512, 512))
    ...     program = lower([a @ b], [a, b])
    >>> step_cost(program.steps[0], program.types, Machine()).flops == 2 * 512**3
    True
    """
    return _model(machine, cpus).cost(step, types)


def explain_cost(step: Step, types: Sequence[Spec], machine: Machine, cpus: int = 1) -> str:
    """The terms that `step_cost` adds up, as text."""
    model = _model(machine, cpus)
    work, space = model.work(step, types)
    terms = model.terms(work, space)
    counts = (
        ("products", f"{sum(p.flops for p in work.products) / 1e9:.4g} Gflop", terms.products),
        ("elements", f"{work.cheap:.4g} cheap, {work.dear:.4g} dear", terms.elements),
        ("traffic", f"{work.nbytes / 1e6:.4g} MB (beside elements: the longer counts)", terms.traffic),
        ("one by one", f"{work.irregular:.4g} places", terms.irregular),
        ("calls", f"{work.calls:.4g}", terms.calls),
    )
    made = ", ".join(str(types[v]) for v in step.outputs)
    read = ", ".join(str(types[v]) for v in step.inputs)
    on = f"{terms.threads} thread{'s' * (terms.threads > 1)}"
    lines = [f"{made} = {step.type}({read}): {terms.seconds * 1e6:.4g} µs on {on}"]
    return "\n".join(lines + [f"  {name:10} {seconds * 1e6:10.4g} µs  {count}" for name, count, seconds in counts])


class CostModel:
    """Costs of steps on `cpus` of one machine. Steps of the same type on the same types are priced once."""

    def __init__(self, machine: Machine, cpus: int = 1):
        self.machine = machine
        self.cpus = max(cpus, 1)
        self._works: dict[Any, Work] = {}
        self._costs: dict[Any, Cost] = {}

    def cost(self, step: Step, types: Sequence[Spec]) -> Cost:
        if step.body:
            return self._priced(*self._group(step, types))
        key = _key(step, types)
        found = self._costs.get(key)
        if found is None:
            _make_room(self._costs)
            found = self._costs[key] = self._priced(self._single(step, types, key), 0)
        return found

    def work(self, step: Step, types: Sequence[Spec]) -> tuple[Work, int]:
        """What a step does, and over how many elements its blocks are spread: 0 for a step that is no group."""
        return self._group(step, types) if step.body else (self._single(step, types, _key(step, types)), 0)

    def terms(self, work: Work, space: int) -> Terms:
        """The seconds of some work: on one thread, or on as many as blocks of `space` elements feed, if that pays."""
        alone = self._terms(work, 1)
        threads = min(self.cpus, space // BLOCK)
        if threads <= 1:
            return alone
        spread = self._terms(work, threads)
        spread = spread._replace(calls=spread.calls + self.machine.spread_seconds)
        return spread if spread.seconds < alone.seconds else alone

    def _terms(self, work: Work, threads: int) -> Terms:
        machine = self.machine
        products = sum([self._product(p) for p in work.products])
        used = self.cpus if products else threads
        return Terms(
            products,
            (work.cheap / machine.elementwise + work.dear / machine.transcendental) / threads,
            self._traffic(work.nbytes, used),
            work.irregular / machine.irregular / threads,
            work.calls * machine.kernel_seconds,
            used,
        )

    def _product(self, product: Product) -> float:
        machine = self.machine
        rate = machine.gemm_flops64 if product.double else machine.gemm_flops
        if product.flops > SPLIT_FLOPS * product.items:
            rate *= 1 + machine.gemm_parallel * (self.cpus - 1)
        return product.flops * (1 + machine.gemm_half / product.dim) / rate if product.flops else 0.0

    def _traffic(self, moved: float, threads: int) -> float:
        """What fits the cache comes from there, the rest through memory."""
        machine = self.machine
        near = min(moved, machine.cache_bytes)
        far = min(machine.memory_bandwidth, machine.memory_bandwidth_one * threads)
        return near / (machine.cache_bandwidth * threads) + (moved - near) / far

    def _priced(self, work: Work, space: int) -> Cost:
        flops = sum([p.flops for p in work.products]) + work.cheap + work.dear
        return Cost(self.terms(work, space).seconds, flops, work.nbytes)

    def _single(self, step: Step, types: Sequence[Spec], key: Any) -> Work:
        found = self._works.get(key)
        if found is None:
            _make_room(self._works)
            ins, outs = [types[v] for v in step.inputs], [types[v] for v in step.outputs]
            found = self._works[key] = step_work(step, ins, outs)
        return found

    def _group(self, step: Step, types: Sequence[Spec]) -> tuple[Work, int]:
        """The steps of a group work in cache, block by block; only what enters and leaves it moves through memory."""
        works = [self._single(inner, types, _key(inner, types)) for inner in step.body]
        space = max([math.prod(types[v].shape) for v in (*step.inputs, *step.outputs)], default=0)
        blocks = -(-space // BLOCK) or 1
        moved = nbytes([types[v] for v in (*step.inputs, *step.outputs)])
        products = tuple([p for w in works for p in w.products])
        cheap, dear = sum([w.cheap for w in works]), sum([w.dear for w in works])
        irregular, calls = sum([w.irregular for w in works]), blocks * sum([w.calls for w in works])
        return Work(products, cheap, dear, irregular, moved, calls), space


def _key(step: Step, types: Sequence[Spec]) -> Any:
    """What decides the work of a step: its type, those of its values, and the attributes that its rule reads."""
    specs = tuple([types[v] for v in step.inputs]), tuple([types[v] for v in step.outputs])
    read = READ.get(step.type)
    return (step.type, specs, tuple([step.attrs.get(name) for name in read])) if read else (step.type, specs)


def _make_room(remembered: dict[Any, Any]) -> None:
    if len(remembered) >= REMEMBERED:
        remembered.clear()


_model = lru_cache(maxsize=16)(CostModel)
