"""Partitioning: turns a program into a plan for a cluster.

Predicts the cost of each step, generates candidate partitions, simulates them, and takes the best one that fits the
memory. Every step runs the same kernel in every partition, so the bits of results do not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from distgrad.errors import BudgetError
from distgrad.scheduler.cluster import Cluster
from distgrad.scheduler.cost.memory import largest, refusal, refuse
from distgrad.scheduler.execution import DEFAULT, Executions
from distgrad.scheduler.partition.assemble import COPIED, Draft, assemble
from distgrad.scheduler.partition.candidates import best_first
from distgrad.scheduler.partition.contract import contract
from distgrad.scheduler.partition.nodes import Groups
from distgrad.scheduler.partition.priced_program import Priced
from distgrad.scheduler.partition.reduce import Way
from distgrad.scheduler.partition.simulate import simulate
from distgrad.scheduler.passes.chunks import chunks, joins, large_sums
from distgrad.scheduler.plan import Options, Plan, Predictions, check_plan
from distgrad.scheduler.program import Program, planning

__all__ = ["Options", "partition"]

#: Minimum task duration in task overheads when large sums are split into chunks: adding is short, writing is long.
CHUNK_PAYS = 2
#: Numbers of pieces to try when a task does not fit the memory of a worker.
SMALLER = (4, 16, 64)


def partition(
    program: Program, cluster: Cluster, options: Options | None = None, executions: Executions = DEFAULT
) -> Plan:
    """Plan a program, after the passes, for this cluster. Raises BudgetError if no plan fits the memory, and
    DeviceError if the cluster lacks a device.

    >>> import distgrad as dg
    >>> from distgrad.scheduler.cluster import local_cluster
    >>> from distgrad.scheduler.program import lower
    >>> with dg.Graph():
    ...     x = dg.placeholder((100, 100))
    ...     plan = partition(lower([dg.exp(x) @ x], [x]), local_cluster(2, 1 << 30))
    >>> [task.steps for task in plan.tasks]
    [(0, 1)]
    """
    options = options or Options()
    with planning():
        if cluster.engine == "local":
            return _partition(Priced.of(program, cluster, options, executions))
        work = Priced.of(joins(program, options.fan_in), cluster, options, executions)
        plan = _partition(work)
        sums = _sums_between_tasks(plan)
        return _better(plan, chunks(work.program, sums, work.slots)) if sums and work.slots > 1 else plan


def _partition(work: Priced) -> Plan:
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


def _ways(work: Priced) -> Iterator[Groups]:
    """Candidate partitions, the shortest predicted run first; then, if none fits, smaller and smaller pieces."""
    asked, total = work.options.granularity, work.total
    if asked is not None:
        if not asked > 0:
            raise ValueError(f"granularity is {asked!r}, but must be a number of seconds above 0, or None")
        yield contract(work.nodes, Way(asked, asked))
    elif work.slots == 1 or total < 2 * work.grain:
        yield work.one_group
    else:
        yield from best_first(work, total)
    for count in SMALLER:
        yield contract(work.nodes, Way(total / count, total / count))


# -- chunks ------------------------------------------------------------------------------------------------------


def _sums_between_tasks(plan: Plan) -> set[int]:
    """The large sums with terms from several tasks or inputs."""
    large = large_sums(plan.program)
    if not large:
        return set()
    of = {i: k for k, task in enumerate(plan.tasks) for i in task.steps}
    home = {v: of[i] for i, step in enumerate(plan.program.steps) if i in of for v in step.outputs}
    found: set[int] = set()
    for i in large:
        step = plan.program.steps[i]
        space = plan.program.types[step.outputs[0]].shape
        terms = [v for v in step.inputs if plan.program.types[v].shape == space]
        away = [home.get(v, -1 - v) for v in terms if home.get(v) != of[i]]  # each input counts as a task
        if len(set(away)) > 1:
            found.add(i)
    return found


def _better(plan: Plan, program: Program) -> Plan:
    """The faster of the plan and one for the program with split sums."""
    try:
        other = _partition(Priced.of(program, plan.cluster, plan.options, plan.executions, CHUNK_PAYS))
    except BudgetError:
        return plan
    return other if other.predictions.seconds < plan.predictions.seconds else plan


# -- plans -------------------------------------------------------------------------------------------------------


def _plan(work: Priced, groups: Groups) -> Plan:
    program, cluster = work.program, work.cluster
    of, count = _tasks_of(work, groups)
    draft = Draft(program, of, count, work.seconds, work.flops, work.nbytes, work.needs)
    tasks, bundles = assemble(draft)
    timeline = simulate(tasks, bundles, cluster, work.given_bytes)
    placed = [replace(task, worker=w) for task, w in zip(tasks, timeline.worker, strict=True)]
    predictions = Predictions(
        seconds=timeline.seconds,
        bytes_moved=timeline.bytes_moved,
        peak_bytes=timeline.peak_bytes,
        work_seconds=sum([task.seconds for task in tasks]),
        critical_seconds=timeline.critical_seconds,
        held_peak_bytes=timeline.peak_bytes,
    )
    return Plan(program, tuple(placed), tuple(bundles), cluster, work.options, predictions, work.executions)


def _tasks_of(work: Priced, groups: Groups) -> tuple[list[int], int]:
    """The task of each step, and the number of tasks. If only duplicated steps make outputs, one task has them."""
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
    """The error if a task fits no worker, for the candidate that needs the least memory."""
    task = max(plan.tasks, key=lambda task: task.memory - plan.cluster.workers[task.worker].memory)
    has = plan.cluster.workers[task.worker].memory
    return BudgetError(refusal(plan.program, task.memory, has, largest(plan.program, plan)))
