"""Runs the planner's passes on a worker.

Passes fold constants. When this process would compute different bits than the workers do, a worker folds them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import cloudpickle
import ray
from ray import exceptions

from distgrad.registry import OPS
from distgrad.scheduler.program import Program
from distgrad.workers.kernels.user_ops import user_ops
from distgrad.workers.on_ray import agreement, placing
from distgrad.workers.on_ray.failures import Raised, Refused, UserError, classify
from distgrad.workers.on_ray.link import Link
from distgrad.workers.on_ray.task import dumped, settled_fingerprint, without_shape_rules

#: Attempts if workers die, and seconds for all of them together unless the session has a timeout.
ATTEMPTS, DEFAULT_TIMEOUT = 4, 600.0


def run_on_worker(
    link: Link, function: Callable[..., Program], program: Program, *args: Any, timeout: float | None
) -> Program:
    """The result of `function(program, *args)` on a worker. The user's own ops are sent along."""
    ops = without_shape_rules(user_ops(program.steps).values())
    data = link.bits.head() + b"\n" + dumped((ops, function, (program, *args)), ops)
    left, ends = ATTEMPTS, time.monotonic() + (timeout or DEFAULT_TIMEOUT)
    while True:
        link.check()
        ref = link.call(placing.anywhere(_remote, link).remote, data, what="sending a program to a worker")
        try:
            seconds = max(ends - time.monotonic(), 0.001)
            raw = link.monitor.answered(ray.get, ref, what="folding constants on a worker", timeout=seconds)
            made: Program = cloudpickle.loads(raw)
            return made
        except TimeoutError:
            ray.cancel(ref, force=True)
            raise TimeoutError(
                f"folding constants took longer than {timeout or DEFAULT_TIMEOUT:g} s. A worker does it, because "
                f"this process has different kernels."
            ) from None
        except exceptions.RayError as e:
            failure = classify(e, ref.task_id().hex())
        if isinstance(failure, UserError):
            failure.throw()
        if isinstance(failure, Refused):
            link.exclude(failure.node, link.bits.differences(failure.fingerprint))
            placing.check_left(link)
        else:
            link.exclude_unfit_nodes()
            left -= 1
            if not left:
                raise RuntimeError(f"constants cannot be folded on a worker: {failure.reason}")


def _run(data: bytes) -> bytes:
    head, _, rest = data.partition(b"\n")
    agreement.admitted(head, settled_fingerprint)
    try:
        ops, function, args = cloudpickle.loads(rest)
        for op in ops:
            OPS[op.type] = op
        return dumped(function(*args), ops)
    except BaseException as e:
        raise Raised.of(e) from None


_remote: Any = ray.remote(max_retries=0)(_run)
