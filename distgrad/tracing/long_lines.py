"""A log line for each line of a user's code that records very many ops: a graph is as long as the loops that make it.

Planning and compiling take time for each op, so whoever waits for a first call learns which line to look at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from distgrad.errors import resolve
from distgrad.graph import Operation

#: Maximum ops of one line in one trace that are nothing special.
MANY_OPS = 1_000


def log_long_lines(name: str, ops: Sequence[Operation]) -> None:
    """Log the lines that recorded more than `MANY_OPS` of these ops; those that gradients added do not count."""
    if len(ops) <= MANY_OPS:
        return
    import logging  # late: most programs never need it

    log = logging.getLogger("distgrad")
    places = Counter([(op._code, op._lasti) for op in ops if op._code is not None])
    lines: Counter[tuple[str, str]] = Counter()
    for (code, lasti), count in places.items():
        source = resolve(code, lasti)
        lines[str(source), source.filename] += count
    for (line, _), count in lines.most_common():
        if count > MANY_OPS:
            log.warning(
                "%s recorded %s ops in one trace of %s. Each is planned and compiled in the first call, so operations "
                "on whole arrays would make it shorter.",
                line,
                f"{count:,}",
                name,
            )
