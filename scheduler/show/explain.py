"""A plan as text: its predicted cost, the bottleneck, the longest tasks and the largest bundles.

Readable for one task and for five thousand: tables show only the top entries, with the user's source lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from distgrad.printing import bytes_text, time_text
from distgrad.scheduler.cost.memory import given_bytes, largest, named, value_bytes
from distgrad.scheduler.cost.step_costs import costs_inside, needs_of
from distgrad.scheduler.devices import counted
from distgrad.scheduler.overwriting import overwriting

if TYPE_CHECKING:
    from distgrad.scheduler.plan import Plan
    from distgrad.scheduler.program import Step

#: Minimum share of the run for something to count as the bottleneck.
BOTTLENECK_SHARE = 0.8
#: Minimum share of the work for an op or a line to be listed.
LISTED_SHARE = 0.01
#: Maximum devices listed in the totals, and op types listed per task.
MAX_NAMED_DEVICES = 3
MAX_NAMED_OPS = 3
#: Maximum variables listed per way in which they are updated.
MAX_NAMED_VARIABLES = 8
#: Maximum lines listed that copy an array which they assign to.
MAX_NAMED_COPIES = 8


def explain(plan: Plan, top: int = 10) -> str:
    """The text of a plan: totals, predictions, dominant ops and lines, tasks, steps, bundles, barriers, memory."""
    needs = needs_of(plan.program, plan.cluster, plan.options, plan.executions)
    costs = costs_inside(plan.program, plan.cluster, needs)
    seconds = [sum([cost for _, cost in inside]) for inside in costs]
    parts = [_totals(plan), _dominates(costs), _tasks(plan, costs, top), _steps(plan, seconds, top)]
    parts += [_bundles(plan, top), _barriers(plan, top), _memory(plan)]
    return "\n\n".join(["\n".join(lines) for lines in parts if lines])


def _totals(plan: Plan) -> list[str]:
    program, cluster, predicted = plan.program, plan.cluster, plan.predictions
    workers, cpus = len(cluster.workers), cluster.cpus
    gpus = f", {counted(cluster.gpus, 'GPU')}" if cluster.gpus else ""
    lines = [
        f"{counted(len(plan.tasks), 'task')} of {counted(len(program.steps), 'step')} on cluster {cluster.name!r} "
        f"({cluster.engine}: {counted(workers, 'worker')}, {counted(cpus, 'cpu')}{gpus})",
        f"predicted   {time_text(predicted.seconds)}, {bytes_text(predicted.bytes_moved)} moved, "
        f"at most {bytes_text(predicted.peak_bytes)} on one worker" + _where_held(plan),
        f"            {time_text(predicted.work_seconds)} of work, "
        f"{time_text(predicted.critical_seconds)} on the critical path",
        f"bottleneck  {bottleneck(plan)}",
    ]
    return lines + _bits(plan) + _devices(plan) + _updates(plan) + _copies(plan)


def _where_held(plan: Plan) -> str:
    """The peak of a run that cannot update variables in place, because somebody holds all of them."""
    predicted = plan.predictions
    differs = predicted.held_peak_bytes > predicted.peak_bytes
    return f", {bytes_text(predicted.held_peak_bytes)} while others hold all variables" if differs else ""


def _updates(plan: Plan) -> list[str]:
    """The variables that are updated in place, and the others, by reason."""
    if plan.updates is None:
        return []
    found: list[tuple[str, Sequence[str]]] = [("in place", plan.updates.in_place)]
    for why in dict.fromkeys([why for _, why in plan.updates.two_versions]):
        found.append((f"in two versions, because {why}", [key for key, w in plan.updates.two_versions if w == why]))
    return [f"{'updates':11} {how}: {_keys(keys)}" for how, keys in found if keys]


def _copies(plan: Plan) -> list[str]:
    """The lines that assign to an array and copy all of it, because another line reads the old version later."""
    program, nbytes = plan.program, value_bytes(plan.program.types)
    found: Counter[tuple[str, str]] = Counter()
    for task in plan.tasks:
        steps = [program.steps[i] for i in task.steps]
        whole = overwriting(steps, nbytes, task.gives).whole
        for step in steps:
            for v in step.outputs:
                if v in whole:
                    found[f"{step.source}", _why(whole[v])] += nbytes[v]
    lines = [f"{'copies':11} {line} copies {bytes_text(n)}, because {why}" for (line, why), n in found.most_common()]
    more = [f"{'':11} {len(lines) - MAX_NAMED_COPIES} more"] if len(lines) > MAX_NAMED_COPIES else []
    return lines[:MAX_NAMED_COPIES] + more


def _why(reader: Step | None) -> str:
    if reader is None:
        return "what it replaces is a result"
    return f"{reader.type} at {reader.source} reads what it replaces"


def _keys(keys: Sequence[str]) -> str:
    names = [key.rpartition("#")[0] for key in keys]
    more = [f"{len(names) - MAX_NAMED_VARIABLES} more"] if len(names) > MAX_NAMED_VARIABLES else []
    return ", ".join(names[:MAX_NAMED_VARIABLES] + more)


def _bits(plan: Plan) -> list[str]:
    """The most important of what the bits of results depend on; `plan.bits` has the full list."""
    known = plan.bits if plan.fingerprint else {}
    shown = [f"{name} {known[name]}" for name in ("numpy", "blas kernels", "cpus per task") if name in known]
    return [f"bits        depend on {', '.join(shown)}; the full list is in plan.bits"] if shown else []


def _devices(plan: Plan) -> list[str]:
    """The number of tasks per device, if the program uses any."""
    count = Counter(["any worker" if task.device is None else task.device for task in plan.tasks])
    if count.keys() <= {"any worker"}:
        return []
    shown = [f"{counted(n, 'task')} on {device}" for device, n in count.most_common(MAX_NAMED_DEVICES)]
    shown += [f"{len(count) - MAX_NAMED_DEVICES} more"] if len(count) > MAX_NAMED_DEVICES else []
    return [f"devices     {', '.join(shown)}"]


def bottleneck(plan: Plan) -> str:
    """What limits the speed of the run, and what would make it faster."""
    predicted = plan.predictions
    total = predicted.seconds or 1.0
    cpus = max([task.cpus for task in plan.tasks], default=1)
    slots = sum(worker.cpus // cpus for worker in plan.cluster.workers)
    if slots > 1 and len(plan.tasks) == 1:
        pays = time_text(10 * plan.cluster.machine.task_seconds)
        return f"the plan is one task: more workers would not help, shards with at least {pays} of work each would"
    if slots > 1 and predicted.critical_seconds >= BOTTLENECK_SHARE * total:
        return "the critical path: more workers would not help, more shards or faster steps would"
    if predicted.work_seconds / slots >= BOTTLENECK_SHARE * total:
        return "the work itself: " + ("faster steps" if slots == 1 else "more workers or cpus") + " would help"
    sent = _sent(plan)
    if sent / plan.cluster.machine.link_bandwidth >= BOTTLENECK_SHARE * total:
        return f"feeds and variables: {bytes_text(sent)} leave the driver's node, one object at a time"
    overhead = plan.cluster.machine.task_seconds
    return f"dependencies between tasks, transfers, and {time_text(overhead)} of overhead per task"


def _sent(plan: Plan) -> int:
    """The bytes of feeds and variables that are sent from the driver's node to other nodes, once to each."""
    given, workers = given_bytes(plan.program), plan.cluster.workers
    home = workers[0].node
    there = {(v, workers[task.worker].node) for task in plan.tasks for v in task.reads if v in given}
    return sum([given[v] for v, node in there if node != home])


def _dominates(costs: Sequence[Sequence[tuple[Step, float]]]) -> list[str]:
    pairs = [pair for inside in costs for pair in inside]
    total = sum([cost for _, cost in pairs]) or 1.0
    by_op = summed([(step.type, cost) for step, cost in pairs])
    by_line = summed([(str(step.source), cost) for step, cost in pairs])
    lines = []
    for title, found in (("by op", by_op), ("by line", by_line)):
        shares = [f"{name} {cost / total:.0%}" for name, cost in found[:5] if cost >= LISTED_SHARE * total]
        lines.append(f"{title:11} {', '.join(shares)}")
    return lines if pairs else []


def summed(items: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """The sum of each name, largest first."""
    cost: dict[str, float] = {}
    for name, each in items:
        cost[name] = cost.get(name, 0.0) + each
    return sorted(cost.items(), key=lambda item: (-item[1], item[0]))


def _steps(plan: Plan, seconds: Sequence[float], top: int) -> list[str]:
    order = sorted(range(len(seconds)), key=lambda i: (-seconds[i], i))[:top]
    rows = [["step", "seconds", "op", "makes", "at"]]
    for i in order:
        step = plan.program.steps[i]
        made = ", ".join([str(plan.program.types[v]) for v in step.outputs[:2]]) + ", ..." * (len(step.outputs) > 2)
        rows.append([f"{i}", time_text(seconds[i]), f"{step.type} {step.name!r}", made, str(step.source)])
    return _table(_title("steps", "longest", len(order), len(seconds)), rows) if order else []


def _tasks(plan: Plan, costs: Sequence[Sequence[tuple[Step, float]]], top: int) -> list[str]:
    order = sorted(range(len(plan.tasks)), key=lambda k: (-plan.tasks[k].seconds, k))[:top]
    rows = [["task", "worker", "seconds", "with inputs", "steps", "reads", "gives", "ops", "mostly at"]]
    for k in sorted(order):
        task = plan.tasks[k]
        pairs = [pair for i in task.steps for pair in costs[i]]
        ops = ops_text([(step.type, cost, 1) for step, cost in pairs])
        where = summed([(str(step.source), cost) for step, cost in pairs])[0][0]
        place = f"{task.worker}" if task.device is None else f"{task.worker} @{task.device}"
        sizes = [f"{len(task.steps)}", f"{len(task.reads)}", f"{len(task.gives)}"]
        rows.append([f"{k}", place, time_text(task.seconds), bytes_text(task.memory), *sizes, ops, where])
    return _table(_title("tasks", "longest", len(order), len(plan.tasks)), rows)


def ops_text(items: Sequence[tuple[str, float, int]]) -> str:
    """Ops with their counts, the longest first, from (name, seconds, count) items."""
    count: Counter[str] = Counter()
    for name, _, n in items:
        count[name] += n
    names = [name for name, _ in summed([(name, cost) for name, cost, _ in items])]
    text = ", ".join([f"{name} ×{count[name]}" if count[name] > 1 else name for name in names[:MAX_NAMED_OPS]])
    return text + (f", +{len(names) - MAX_NAMED_OPS} more" if len(names) > MAX_NAMED_OPS else "")


def _bundles(plan: Plan, top: int) -> list[str]:
    between = [b for b, bundle in enumerate(plan.bundles) if bundle.readers]
    order = sorted(between, key=lambda b: (-plan.bundles[b].nbytes, b))[:top]
    rows = [["bundle", "bytes", "values", "from", "to", ""]]
    for b in order:
        bundle = plan.bundles[b]
        to = ", ".join(map(str, bundle.readers[:6])) + (", ..." if len(bundle.readers) > 6 else "")
        wanted = "also a result" if bundle.wanted else ""
        rows.append([f"{b}", bytes_text(bundle.nbytes), f"{len(bundle.values)}", f"{bundle.task}", to, wanted])
    return _table(_title("bundles between tasks", "largest", len(order), len(between)), rows) if between else []


def _barriers(plan: Plan, top: int) -> list[str]:
    waiting = [(k, task.waits) for k, task in enumerate(plan.tasks) if task.waits]
    rows = [["task", "waits for"]]
    for k, waits in waiting[:top]:
        rows.append([f"{k}", ", ".join(map(str, waits[:12])) + (", ..." if len(waits) > 12 else "")])
    return _table(_title("barriers", "first", min(top, len(waiting)), len(waiting)), rows) if waiting else []


def _memory(plan: Plan) -> list[str]:
    held = named(plan.program, largest(plan.program, plan))
    return ["largest at the peak", *held] if held else []


def _title(what: str, which: str, shown: int, count: int) -> str:
    return f"{what}, the {shown} {which} of {count:,}" if shown < count else what


def _table(title: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their longest entry."""
    widths = [max([len(row[c]) for row in rows]) for c in range(len(rows[0]))]
    return [title, *["  ".join([f"{t:<{w}}" for t, w in zip(row, widths, strict=True)]).rstrip() for row in rows]]
