"""Run reports as plain data: when and where tasks ran, how long their ops took, and which were retried and why."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from distgrad.printing import time_text
from distgrad.scheduler.devices import counted
from distgrad.scheduler.program import CALL, Step

if TYPE_CHECKING:
    from distgrad.progress import ProgressItem
    from distgrad.scheduler.plan import Plan

#: Maximum number of failure reasons kept per session.
KEPT = 1000
#: Maximum number of op types listed for a fused step.
MAX_NAMED_OPS = 4


class OpTime(NamedTuple):
    """The seconds and calls of one op at one source line of the user, within a task."""

    op: str
    line: str
    seconds: float
    calls: int


class Token(NamedTuple):
    """The small last result of each task: when and where it ran, and whether its results have infs or NaNs
    (`worst`). In recorded runs also the resident bytes at its end, and the times of its ops."""

    start: float
    end: float
    node: str
    pid: int
    worst: int
    resident: int = 0
    ops: Sequence[tuple[str, str, float, int]] = ()


@dataclass(repr=False)
class Report:
    """What happened in a run: when and where each task ran, which were retried, and why."""

    tokens: dict[int, Token] = field(default_factory=dict)
    #: Retries by task, and the reasons for them.
    recomputed: dict[int, int] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    #: Tasks of earlier runs that were rerun because an input of this run was lost.
    replayed: int = 0
    #: Start of the run in seconds since 1970, and its duration in seconds.
    began: float = field(default_factory=time.time)
    seconds: float = 0.0

    def __repr__(self) -> str:
        """
        >>> Report({0: Token(0.0, 0.1, "a", 71, 0), 1: Token(0.1, 0.15, "b", 71, 0)}, seconds=0.158)
        <Report of 2 tasks on 2 processes, 158.0 ms, 0 run again>
        """
        places = {(token.node, token.pid) for token in self.tokens.values()}
        kind = "process" if any(node for node, _ in places) else "thread"  # the local engine has threads, no nodes
        on = f"{len(places)} {kind}{'' if len(places) == 1 else 'es' if kind == 'process' else 's'}"
        again = sum(self.recomputed.values())
        return f"<Report of {counted(len(self.tokens), 'task')} on {on}, {time_text(self.seconds)}, {again} run again>"

    @property
    def worst(self) -> int:
        return max([token.worst for token in self.tokens.values()], default=0)


@dataclass
class Faults:
    """What failures have cost a session so far, as counts."""

    #: Tasks that were retried within their own run.
    recomputed: int = 0
    #: Values lost with their nodes, earlier runs that were rerun to recompute them, and the tasks of those runs.
    lost: int = 0
    replayed_runs: int = 0
    replayed: int = 0
    #: Reasons for failures, the latest last.
    reasons: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT))

    def add(self, report: Report) -> None:
        self.recomputed += sum(report.recomputed.values())
        self.reasons.extend(report.reasons)


class Shares:
    """The share of each task in a plan's predicted seconds, and the bytes it produces. For progress display."""

    def __init__(self, plan: Plan):
        self._seconds = [task.seconds for task in plan.tasks]
        self._all = sum(self._seconds) or 1.0
        self._nbytes = [0] * len(plan.tasks)
        for bundle in plan.bundles:
            self._nbytes[bundle.task] += bundle.nbytes

    def ended(self, task: int, work: ProgressItem) -> None:
        """Record the end of a task in the progress."""
        work.done += 1
        work.nbytes += self._nbytes[task]
        work.share = (work.share or 0.0) + self._seconds[task] / self._all


def op_text(step: Step) -> str:
    """An op as named in reports; for a fused step or a call, the ops inside.

    >>> import numpy, distgrad as dg
    >>> plan = dg.function(lambda x: dg.exp(x) * x + x).plan(numpy.ones(100_000))
    >>> [op_text(step) for step in plan.program.steps]
    ['Exp + Mul + Add']
    """
    inner = step.attrs["inner"].program.steps if step.type == CALL else step.body
    if not inner:
        return step.type
    types = Counter([each.type for group in inner for each in group.body or (group,)])
    names = [f"{count} {name}" if count > 1 else name for name, count in types.items()]
    more = len(names) - MAX_NAMED_OPS
    return " + ".join(names[:MAX_NAMED_OPS]) + (f" + {more} more" if more > 0 else "")


def at_text(step: Step) -> str:
    """The step that a run is at, for progress display."""
    return f"{op_text(step)} at {step.source}"
