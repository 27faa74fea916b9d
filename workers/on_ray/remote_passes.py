"""Elsewhere: a function of the planner that runs on a worker, whose kernels give the bits of the session's runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import cloudpickle
import ray
from ray import exceptions

from distgrad.registry import OPS
from distgrad.scheduler.program import Program
from distgrad.workers.on_ray import agreement, placing
from distgrad.workers.on_ray.failures import Raised, Refused, UserError, classify
from distgrad.workers.on_ray.link import Link
from distgrad.workers.on_ray.task import dumped, own_ops, settled_fingerprint

#: How often it is tried where workers die, and the seconds for all of that unless the session has a timeout.
ATTEMPTS, DEFAULT_TIMEOUT = 4, 600.0


def run_on_worker(
    link: Link, function: Callable[..., Program], program: Program, *args: Any, timeout: float | None
) -> Program:
    """What a function makes of a program there. The user's own ops go along, as with bodies."""
    ops = own_ops(program.steps)
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
                f"folding constants took longer than {timeout or DEFAULT_TIMEOUT:g} s. It is done by a worker, "
                f"because this process has other kernels."
            ) from None
        except exceptions.RayError as e:
            failure = classify(e, ref.task_id().hex())
        if isinstance(failure, UserError):
            failure.throw()
        if isinstance(failure, Refused):
            link.exclude(failure.node, link.bits.differences(failure.fingerprint))
            placing.check_left(link)
        else:
            link.look_again()
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
