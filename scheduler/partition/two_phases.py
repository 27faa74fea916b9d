"""A plan with a second phase, and the peaks of its memory."""

from __future__ import annotations

from dataclasses import replace

from distgrad.scheduler.cost.footprint import footprint
from distgrad.scheduler.cost.memory import value_bytes
from distgrad.scheduler.plan import Plan, Predictions, check_plan
from distgrad.scheduler.updates import Updates, first_phase, stays


def in_two_phases(plan: Plan, updates: Updates) -> Plan:
    """The plan with these updates in place. The peak of several tasks is left as it is: that of a plan without."""
    if not plan.program.writes:
        return replace(plan, updates=updates)
    one = bool(updates.steps) and len(plan.tasks) == 1
    predictions = _peaks(plan, updates) if one else plan.predictions
    return check_plan(replace(plan, updates=updates, predictions=predictions))


def _peaks(plan: Plan, updates: Updates) -> Predictions:
    """Arrays that the first phase makes for the second one live until the end of the call."""
    program, (task,), nbytes = plan.program, plan.tasks, value_bytes(plan.program.types)
    kept, gives = first_phase(program, updates, task.steps, task.gives)
    steps, stay = [program.steps[i] for i in kept], stays(program, updates, 1)
    first = footprint(steps, program.types, nbytes, gives, task.cpus, plan.executions.on_cpus, stay).total
    new = dict(program.writes)
    in_place = sum([nbytes[new[key]] for key in updates.in_place])
    made = sum([nbytes[v] for i in updates.steps for v in program.steps[i].outputs])
    return replace(plan.predictions, peak_bytes=first + made - in_place, held_peak_bytes=first + made)
