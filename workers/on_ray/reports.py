"""What is told of runs: when and where tasks ran, what was run again, and why. Knows no Ray."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distgrad.workers.on_ray.task import Token

#: Reasons that are kept of a session.
KEPT = 1000


@dataclass
class Report:
    """What happened in a run: when and where each task ran, what was run again, and why."""

    tokens: dict[int, Token] = field(default_factory=dict)
    #: Task -> how often it was run again; and what was said about it.
    recomputed: dict[int, int] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    #: Tasks of earlier runs that ran once more, because a value was lost that this run was given.
    replayed: int = 0

    @property
    def worst(self) -> int:
        return max([token.worst for token in self.tokens.values()], default=0)


@dataclass
class Faults:
    """What failures have cost a session so far."""

    #: Tasks that ran again in the run they belong to.
    recomputed: int = 0
    #: Values that were lost with their nodes, earlier runs that ran once more to make them, and the tasks of these.
    lost: int = 0
    replayed_runs: int = 0
    replayed: int = 0
    #: What was said, the latest last.
    reasons: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT))

    def add(self, report: Report) -> None:
        self.recomputed += sum(report.recomputed.values())
        self.reasons.extend(report.reasons)
