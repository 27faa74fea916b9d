"""The resources of tasks on a cluster, and the predicted cost of each step of a program there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from distgrad.registry import view_of
from distgrad.scheduler.cluster import Cluster
from distgrad.scheduler.cost.footprint import is_placed
from distgrad.scheduler.cost.memory import value_bytes
from distgrad.scheduler.cost.rates import Cost, CostModel
from distgrad.scheduler.cost.work_table import rule_of
from distgrad.scheduler.devices import check_devices, parse
from distgrad.scheduler.execution import DEFAULT, NATIVE, Execution, Executions
from distgrad.scheduler.overwriting import overwriting
from distgrad.scheduler.program import CALL, FUSED, Inner, Program, Step
from distgrad.types import Spec

if TYPE_CHECKING:
    from distgrad.scheduler.plan import Options


@dataclass(frozen=True, slots=True)
class Needs:
    """The resources of each task on one device."""

    cpus: int = 1
    gpus: int = 0
    execution: Execution = NATIVE


def needs_of(
    program: Program, cluster: Cluster, options: Options, executions: Executions = DEFAULT
) -> dict[str | None, Needs]:
    """The needs of tasks by device; DeviceError for a device that the cluster does not have.

    By default a task gets the cpus of the smallest worker, so that it fits every worker. The bits of results depend on
    this number, but not on the number of workers.
    """
    most = max(worker.cpus for worker in cluster.workers)
    cpus = options.cpus_per_task
    if cpus is None:
        cpus = min(worker.cpus for worker in cluster.workers)
    if not 1 <= cpus <= most:
        raise ValueError(f"cpus_per_task is {cpus}, but the largest worker of cluster {cluster.name!r} has {most} cpus")
    check_devices(program, cluster, cpus)
    devices = dict.fromkeys([step.device for step in program.steps])
    gpus = {device: parse(device).gpus for device in devices}
    return {device: Needs(cpus, n, executions.on_gpus if n else executions.on_cpus) for device, n in gpus.items()}


def prices(program: Program, cluster: Cluster, needs: Mapping[str | None, Needs]) -> list[Cost]:
    """The predicted cost of every step. Results outside the arena are in newly allocated memory."""
    models = {device: _model(cluster, need) for device, need in needs.items()}
    types, wanted = program.types, set(program.wanted)
    costs = []
    called: dict[Inner, Cost] = {}
    numbers: dict[Spec, int] = {}
    number = [numbers.setdefault(spec, len(numbers)) for spec in types]
    known: dict[Any, Cost] = {}
    found = overwriting(program.steps, value_bytes(types), program.wanted)
    allocated = {op_type: _is_allocated(op_type) for op_type in {step.type for step in program.steps}}
    reads = {op_type: bool(rule_of(op_type).reads) for op_type in {step.type for step in program.steps} - {FUSED, CALL}}
    for step in program.steps:
        if step.type == CALL:
            inner: Inner = step.attrs["inner"]
            if inner not in called:
                called[inner] = _sum(prices(inner.program, cluster, needs))
            costs.append(called[inner])
            continue
        model = models[step.device]
        if found.in_place and not found.in_place.isdisjoint(step.outputs):
            step = _of_value(step)
        if reads.get(step.type, True):
            cost = model.cost(step, types)
        else:  # equal for all steps of this type on values of these types
            key = step.type, step.device, *[number[v] for v in step.inputs], *[number[v] for v in step.outputs]
            cost = known.get(key) or known.setdefault(key, model.cost(step, types))
        if allocated[step.type] and model.execution.has_arena:
            cost = model.on_fresh(cost, [types[v] for v in step.outputs])
        elif not wanted.isdisjoint(step.outputs):
            cost = model.on_fresh(cost, [types[v] for v in step.outputs if v in wanted])
        costs.append(cost)
    return costs


def _of_value(step: Step) -> Step:
    """An update in place, which costs what it assigns: as if that was all of the array."""
    value = step.inputs[1]
    return replace(step, inputs=(value, *step.inputs[1:]), outputs=(value,))


def _model(cluster: Cluster, need: Needs) -> CostModel:
    """The cost model of a task. GPU rates describe the whole GPU, whatever the cpus of its task."""
    if need.gpus and cluster.gpu:
        return CostModel(cluster.gpu, 1, need.execution)
    return CostModel(cluster.machine, need.cpus, need.execution)


def _is_allocated(op_type: str) -> bool:
    """Whether results are separate arrays instead of places in the arena."""
    return not is_placed(op_type) and op_type != "Const" and view_of(op_type) is None


def costs_inside(
    program: Program, cluster: Cluster, needs: Mapping[str | None, Needs]
) -> list[Sequence[tuple[Step, float]]]:
    """The predicted seconds of each step; for an outlined call, of the steps inside, in one list per body."""
    called: dict[Inner, list[tuple[Step, float]]] = {}
    made: list[Sequence[tuple[Step, float]]] = []
    for step, cost in zip(program.steps, prices(program, cluster, needs), strict=True):
        if step.type != CALL:
            made.append(((step, cost.seconds),))
            continue
        inner: Inner = step.attrs["inner"]
        if inner not in called:
            called[inner] = [pair for inside in costs_inside(inner.program, cluster, needs) for pair in inside]
        made.append(called[inner])
    return made


def _sum(costs: Sequence[Cost]) -> Cost:
    return Cost(*map(sum, zip(*costs, strict=True)))
