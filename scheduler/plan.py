"""Plans: a program partitioned into tasks, with their data transfers, placement and predicted cost.

A plan is complete: the engines that run it make no decision that changes a result. It is plain data, specified by
`check_plan`, which every new plan has to pass.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from distgrad.printing import format_attrs
from distgrad.registry import OPS, Kind, View
from distgrad.scheduler.cluster import Cluster
from distgrad.scheduler.cost.memory import value_bytes
from distgrad.scheduler.devices import parse, workers_of
from distgrad.scheduler.digest import content_digest, program_digest
from distgrad.scheduler.execution import DEFAULT, Executions
from distgrad.scheduler.program import Program, Step
from distgrad.scheduler.updates import Updates, check_updates
from distgrad.types import as_int


@dataclass(frozen=True, slots=True)
class Task:
    """Steps that run as a unit on one worker. All inputs are available before the first step starts, and all results
    are published after the last one ends."""

    #: Indices into program.steps, ascending.
    steps: tuple[int, ...]
    #: Values from outside the task: inputs of the program, or results of other tasks.
    reads: tuple[int, ...]
    #: Values that other tasks read, or that the run returns or stores.
    gives: tuple[int, ...]
    #: Tasks that must end first, in addition to those that made `reads`.
    waits: tuple[int, ...] = ()
    cpus: int = 1
    gpus: int = 0
    #: Peak memory in bytes, inputs included.
    memory: int = 0
    device: str | None = None
    #: Placement hint: index of a worker of the cluster.
    worker: int = 0
    seconds: float = 0.0
    flops: float = 0.0


@dataclass(frozen=True, slots=True)
class Bundle:
    """One object that a task produces: all of its values with the same readers and the same use at the end."""

    task: int
    values: tuple[int, ...]
    #: Tasks that read it, in ascending order; empty if the values are only fetched or written.
    readers: tuple[int, ...]
    #: Fetched at the end; new values of variables. Kept apart, so that fetching a loss does not move weights.
    fetched: bool
    written: bool
    nbytes: int

    @property
    def wanted(self) -> bool:
        return self.fetched or self.written


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions of the cost model and the simulator. Bytes are those that the run allocates, without its inputs."""

    seconds: float
    bytes_moved: int
    #: Peak of the worker that needs the most.
    peak_bytes: int
    #: Sum over all tasks, and length of the critical path; both without overheads.
    work_seconds: float
    critical_seconds: float
    #: The same peak where somebody holds all variables, so that none is updated in place.
    held_peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Options:
    """User options for partitioning."""

    #: Target seconds per task; None chooses by simulating candidates.
    granularity: float | None = None
    #: None means all cpus of the smallest worker. May change bits: large products are split into this many pieces.
    cpus_per_task: int | None = None
    #: Bytes that a run may allocate on one worker; None means the memory of the worker.
    memory: int | None = None
    #: Terms per addition of a reduce tree.
    fan_in: int = 4
    #: Whether fused steps run as native code, which changes their bits.
    native: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """The result of `function.plan(...)` and `Session.plan`: everything a run needs, and its predicted cost. Prints as
    its explanation.

    >>> import numpy, distgrad as dg
    >>> plan = dg.function(lambda x: dg.exp(x) @ x).plan(numpy.ones((8, 8)))
    >>> len(plan.tasks), plan.predictions.peak_bytes
    (1, 5632)
    """

    program: Program
    tasks: tuple[Task, ...]
    bundles: tuple[Bundle, ...]
    cluster: Cluster
    options: Options
    predictions: Predictions
    #: How tasks run, as far as predictions depend on it.
    executions: Executions = DEFAULT
    #: The array library, and what else the bits of results depend on (versions, kernels) as far as known at planning
    #: time. Not part of `digest`, because it does not change the partition.
    backend: str = ""
    fingerprint: tuple[tuple[str, str], ...] = ()
    #: Which variables a run updates in place; None on Ray, where updates make new objects.
    updates: Updates | None = None

    def __repr__(self) -> str:
        return f"<Plan of {len(self.tasks)} tasks, {len(self.program.steps)} steps, {self.predictions.seconds:.3g} s>"

    def __str__(self) -> str:
        return self.explain()

    def _repr_html_(self) -> str:
        from distgrad.scheduler.show.html import plan_html  # late: workers load plans but never show them

        return plan_html(self)

    @property
    def digest(self) -> str:
        """A hash of program, cluster and options, and of how tasks run unless that is the default; the same in every
        process."""
        executions = None if self.executions == DEFAULT else self.executions
        return content_digest(self.program, self.cluster, self.options, executions)

    @property
    def bits(self) -> dict[str, str]:
        """Everything that the bits of results depend on: plans with equal `bits` give equal results, except for NaN
        payloads. The shards of a batch are part of the program."""
        cpus = sorted({task.cpus for task in self.tasks})
        plan = {"program": program_digest(self.program), "cpus per task": ", ".join(map(str, cpus))}
        return {**plan, "backend": self.backend, **dict(self.fingerprint)}

    def explain(self, top: int = 10) -> str:
        """Describe what runs where, its predicted cost and what dominates it, with the `top` largest entries of each
        table and the source lines they come from."""
        from distgrad.scheduler.show.explain import explain

        return explain(self, as_int("explain", "top", top))

    def to_plain(self) -> dict[str, Any]:
        """The plan as dicts, lists, numbers and strings; attributes of steps are formatted as strings."""
        return {
            "digest": self.digest,
            "bits": self.bits,
            "backend": self.backend,
            "fingerprint": [list(field) for field in self.fingerprint],
            "cluster": self.cluster.to_json(),
            "options": asdict(self.options),
            "predictions": asdict(self.predictions),
            "updates": None if self.updates is None else asdict(self.updates),
            "tasks": [asdict(task) for task in self.tasks],
            "bundles": [asdict(bundle) for bundle in self.bundles],
            "program": _plain_program(self.program),
        }

    def to_json(self) -> str:
        """The result of `to_plain` as JSON."""
        return json.dumps(self.to_plain())


def _plain_program(program: Program) -> dict[str, Any]:
    return {
        "steps": [
            {
                "type": step.type,
                "name": step.name,
                "line": str(step.source),
                "inputs": list(step.inputs),
                "outputs": list(step.outputs),
                "after": list(step.after),
                "device": step.device,
                "attrs": format_attrs(step.attrs),
                "body": [inner.type for inner in step.body],
            }
            for step in program.steps
        ],
        "types": [str(spec) for spec in program.types],
        "feeds": list(program.feeds),
        "fetches": list(program.fetches),
        "reads": [list(pair) for pair in program.reads],
        "writes": [list(pair) for pair in program.writes],
    }


# -- steps without a task ----------------------------------------------------------------------------------------


def recomputed_per_task(program: Program) -> list[bool]:
    """Steps duplicated into every task that reads them: constants, and views of constants and of given values.

    They cost nothing, but merging equal steps makes towers share them: assigned to one task, they would make all towers
    depend on it.
    """
    free = bytearray(len(program.types))
    for v in program.given:
        free[v] = 1
    waited = {j for step in program.steps if step.after for j in step.after}
    may = {op_type: _may_cost_nothing(op_type) for op_type in {step.type for step in program.steps}}
    found = [False] * len(program.steps)
    for i, step in enumerate(program.steps):
        if may[step.type] and not step.after and i not in waited and _costs_nothing(step, free):
            free[step.outputs[0]] = 1
            found[i] = True
    return found


def _may_cost_nothing(op_type: str) -> bool:
    definition = OPS.get(op_type)
    return definition is not None and (definition.kind is Kind.SOURCE or definition.view is not None)


def _costs_nothing(step: Step, free: Sequence[int]) -> bool:
    """Whether it is a constant, or a view of a whole value that every task has."""
    definition = OPS.get(step.type)
    if definition is None:
        return False
    if definition.kind is Kind.SOURCE:
        return not definition.at_run
    whole = definition.view is not None and definition.view is not View.PART and len(step.outputs) == 1
    return whole and free[step.inputs[0]] == 1


# -- checking ----------------------------------------------------------------------------------------------------


def check_plan(plan: Plan) -> Plan:
    """Return the plan; raise ValueError at the first violated invariant of those that both engines rely on."""
    of = _check_steps(plan)
    made, readers = _check_reads(plan, of), _readers(plan)
    _check_gives(plan, made, readers)
    _check_bundles(plan, made, readers)
    _check_waits(plan, of)
    for k, task in enumerate(plan.tasks):
        _check_resources(plan, k, task)
    _check_devices(plan)
    if plan.updates is not None:
        check_updates(plan.program, plan.updates)
    return plan


def _check_steps(plan: Plan) -> list[int]:
    """Every step is in one task (-1: in each that reads it), in order, without mixing devices. Returns the task of each
    step."""
    steps = plan.program.steps
    free = recomputed_per_task(plan.program)
    of = [-1] * len(steps)
    for k, task in enumerate(plan.tasks):
        if not task.steps:
            raise ValueError(f"task {k} has no steps")
        before = -1
        for i in task.steps:
            if not before < i < len(steps):
                raise ValueError(f"task {k}: step {i} is out of order or not of the program")
            before = i
            if free[i]:
                continue
            if of[i] >= 0:
                raise ValueError(f"step {i} ({steps[i].name!r}) is in task {of[i]} and again in task {k}")
            if steps[i].device != task.device:
                raise ValueError(
                    f"task {k} is on device {task.device!r}, its step {i} ({steps[i].name!r}) on {steps[i].device!r}"
                )
            of[i] = k
    for i, k in enumerate(of):
        if k < 0 and not free[i]:
            raise ValueError(f"step {i} ({steps[i].name!r}) is in no task")
    return of


def _check_reads(plan: Plan, of: Sequence[int]) -> list[set[int]]:
    """Tasks read exactly the values they lack, from earlier tasks. Returns the values that each task makes."""
    there = set(plan.program.given)
    made: list[set[int]] = []
    for k, task in enumerate(plan.tasks):
        inside, lacking = _inside(plan, k, task, of)
        reads = set(task.reads)
        for v in reads ^ lacking:
            what = "needs value {} but does not read it" if v in lacking else "reads value {} but does not need it"
            raise ValueError(f"task {k} {what.format(v)}")
        for v in reads:
            if v not in there:
                raise ValueError(f"task {k} reads value {v}, which nothing before it gives: tasks are not in order")
        there.update(task.gives)
        made.append(inside)
    return made


def _inside(plan: Plan, k: int, task: Task, of: Sequence[int]) -> tuple[set[int], set[int]]:
    """The values that a task makes, and those it lacks. Every duplicated step must be used."""
    inside: set[int] = set()
    lacking: set[int] = set()
    copies: dict[int, int] = {}
    for i in task.steps:
        step = plan.program.steps[i]
        for v in step.inputs:
            copies.pop(v, None)
            if v not in inside:
                lacking.add(v)
        inside.update(step.outputs)
        if of[i] < 0:
            copies[step.outputs[0]] = i
    for v, i in copies.items():
        if v not in task.gives:
            raise ValueError(f"task {k} has a copy of step {i} ({plan.program.steps[i].name!r}) and no use for it")
    return inside, lacking


def _readers(plan: Plan) -> dict[int, list[int]]:
    """The tasks that read each value, ascending."""
    readers: dict[int, list[int]] = {}
    for k, task in enumerate(plan.tasks):
        for v in task.reads:
            readers.setdefault(v, []).append(k)
    return readers


def _check_gives(plan: Plan, made: Sequence[set[int]], readers: Mapping[int, Sequence[int]]) -> None:
    wanted, given = set(plan.program.wanted), set(plan.program.given)
    giver: dict[int, int] = {}
    for k, task in enumerate(plan.tasks):
        for v in task.gives:
            if v not in made[k]:
                raise ValueError(f"task {k} gives value {v}, which it does not make")
            if v in giver:
                raise ValueError(f"value {v} is given by task {giver[v]} and again by task {k}")
            if v not in readers and v not in wanted:
                raise ValueError(f"task {k} gives value {v}, which nobody reads and nobody wants")
            giver[v] = k
    for v in wanted - given - giver.keys():
        raise ValueError(f"value {v} is fetched or written but no task gives it")


def _check_bundles(plan: Plan, made: Sequence[set[int]], readers: Mapping[int, Sequence[int]]) -> None:
    program, nbytes = plan.program, value_bytes(plan.program.types)
    fetched, written = set(program.fetches), {v for _, v in program.writes}
    packed: list[set[int]] = [set() for _ in made]
    seen: set[tuple[int, tuple[int, ...], bool, bool]] = set()
    for b, bundle in enumerate(plan.bundles):
        key = bundle.task, bundle.readers, bundle.fetched, bundle.written
        if not 0 <= bundle.task < len(made) or key in seen:
            raise ValueError(f"bundle {b} has no task, or its task has a second bundle with the same readers")
        seen.add(key)
        for v in bundle.values:
            if v in packed[bundle.task] or v not in plan.tasks[bundle.task].gives:
                raise ValueError(f"bundle {b} holds value {v}, which task {bundle.task} does not give or packs twice")
            if tuple(readers.get(v, ())) != bundle.readers:
                raise ValueError(f"bundle {b} holds value {v}, which has other readers: {readers.get(v, [])}")
            if (v in fetched, v in written) != (bundle.fetched, bundle.written):
                raise ValueError(f"bundle {b} holds value {v}, which is fetched or written where the others are not")
            packed[bundle.task].add(v)
        if bundle.nbytes != sum([nbytes[v] for v in bundle.values]):
            raise ValueError(f"bundle {b} says {bundle.nbytes} bytes, but its values have a different sum")
    for k, task in enumerate(plan.tasks):
        for v in set(task.gives) - packed[k]:
            raise ValueError(f"task {k} gives value {v}, which is in no bundle")


def _check_waits(plan: Plan, of: Sequence[int]) -> None:
    """Barriers wait for earlier tasks; all are listed, except those implied by a read."""
    giver = {v: k for k, task in enumerate(plan.tasks) for v in task.gives}
    for k, task in enumerate(plan.tasks):
        needed = {of[j] for i in task.steps for j in plan.program.steps[i].after} - {k, -1}
        needed -= {giver[v] for v in task.reads if v in giver}
        for j in needed ^ set(task.waits):
            what = "must wait for" if j in needed else "has no reason to wait for"
            raise ValueError(f"task {k} {what} task {j}")
        for j in needed:
            if j > k:
                raise ValueError(f"task {k} waits for task {j}, which comes later: tasks are not in order")


def _check_resources(plan: Plan, k: int, task: Task) -> None:
    if not 0 <= task.worker < len(plan.cluster.workers):
        raise ValueError(f"task {k} is placed on worker {task.worker} of {len(plan.cluster.workers)}")
    worker = plan.cluster.workers[task.worker]
    for what in ("cpus", "gpus", "memory"):
        need, has = getattr(task, what), getattr(worker, what)
        if need > has:
            raise ValueError(f"task {k} needs {need} {what}, but worker {task.worker}, where it is placed, has {has}")


def _check_devices(plan: Plan) -> None:
    """Tasks are placed on workers that match their device, and have the GPU that it requires."""
    allowed = {text: workers_of(parse(text), plan.cluster) for text in {task.device for task in plan.tasks}}
    for k, task in enumerate(plan.tasks):
        if task.worker not in allowed[task.device]:
            raise ValueError(f"task {k} is on device {task.device!r}, but is placed on worker {task.worker}")
        if task.gpus < parse(task.device).gpus:
            raise ValueError(f"task {k} is on device {task.device!r}, but has no GPU")
