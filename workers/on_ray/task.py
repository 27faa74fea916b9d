"""What runs on a worker: one function, which has the body of a task compiled once per process and runs it.

A process gets each body once, by its name, and keeps what it compiled.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import ray
from ray import exceptions

from distgrad.registry import OPS, OpDef
from distgrad.scheduler.bodies import Body
from distgrad.scheduler.outlined_calls import all_steps
from distgrad.scheduler.program import Step
from distgrad.scheduler.reports import Token
from distgrad.workers import blas, numerics
from distgrad.workers.backends import backend
from distgrad.workers.body import Compiled
from distgrad.workers.fingerprint import Fingerprint, fingerprint, flushes
from distgrad.workers.on_ray import resident
from distgrad.workers.on_ray.agreement import Agreement, admitted, extras_of
from distgrad.workers.on_ray.failures import Differs, Raised
from distgrad.workers.on_ray.packing import opened, pack
from distgrad.workers.on_ray.shipping import BodyLost, received
from distgrad.workers.task_monitor import Clock, TaskMonitor, resident_bytes

#: Compiled bodies that a process keeps: those that ran last.
MAX_COMPILED = 1024

_compiled: OrderedDict[str, tuple[ShippedBody, Compiled]] = OrderedDict()
#: Whether denormals were flushed when the fingerprint was taken.
_flushed = flushes()


@dataclass(frozen=True)
class ShippedBody:
    """What a worker needs to run a body: the user's own ops travel with it, by value."""

    body: Body
    backend: str
    check_numerics: bool
    ops: tuple[OpDef, ...]


class Pack(NamedTuple):
    """Which of a body's results leave as one object, and whether they are results of the run."""

    values: tuple[int, ...]
    wanted: bool


def run_task(holder: Sequence[Any], order: bytes, *objects: Any) -> Any:
    """The packed results and the token; see `order_of`. The token comes last: Ray stores what a task returns in that
    order, and where one finds no room, that and all that follow are errors. So a token says that all are there."""
    start = time.time()
    key, picks, packs, names, inline, timed = pickle.loads(order)
    clock = Clock() if timed else None
    given = {o: opened(objects[o]) for o in {o for o, _ in picks if o >= 0}}
    given[-1] = inline
    try:
        shipped, compiled = _found(holder, key)
        if names:
            made = _on_device(shipped, compiled, picks, packs, names, given, clock)
        else:
            made = compiled.run([given[o][i] for o, i in picks], clock)
        ops = () if clock is None else [tuple(op) for op in clock.ops()]  # before packing, which is no op
    except (exceptions.RayError, BodyLost, Differs):
        raise
    except SystemExit:  # by a kernel, or by Ray when the process is told to end: so it does
        raise
    except BaseException as e:
        raise Raised.of(e) from None
    worst = numerics.FINITE
    if shipped.check_numerics:
        worst = max([numerics.worst(made[i]) for values, wanted in packs if wanted for i in values], default=worst)
    packed = [pack([made[i] for i in values]) for values, _ in packs]
    seen = () if clock is None else (resident_bytes(), ops)
    token = Token(start, time.time(), _node(), os.getpid(), worst, *seen)
    return (*packed, written(token)) if packed else written(token)


def written(token: Token) -> bytes:
    """As bytes, which Ray hands on as they are: any other object costs as much as the rest of an empty task."""
    return pickle.dumps(tuple(token))


def read(raw: bytes) -> Token:
    return Token(*pickle.loads(raw))


def _on_device(
    shipped: ShippedBody,
    compiled: Compiled,
    picks: Sequence[tuple[int, int]],
    packs: Sequence[Pack],
    names: Sequence[str | None],
    objects: Mapping[int, Any],
    monitor: TaskMonitor | None,
) -> list[Any]:
    """Run where arrays are not NumPy's: what the driver named is moved there once, and what is made stays too."""
    library = backend(shipped.backend)
    with library.device(shipped.body.gpus):
        given = [resident.moved(library, names[o], i, objects[o][i]) for o, i in picks]
        made, there = compiled.run_kept(given, monitor)
    for number, (values, wanted) in enumerate(packs):
        if wanted:
            resident.keep_made(library, number, [there[i] for i in values])
    return made


def _found(holder: Sequence[Any], key: str) -> tuple[ShippedBody, Compiled]:
    _notice()
    if key not in _compiled:
        return _load(holder, key)
    _compiled.move_to_end(key)
    return _compiled[key]


def _load(holder: Sequence[Any], key: str) -> tuple[ShippedBody, Compiled]:
    head, _, data = received(holder, key).partition(b"\n")
    _settle()  # also where any bits will do, and nobody asks for the fingerprint
    admitted(head, settled_fingerprint)  # first: what comes from another version may not even load
    shipped: ShippedBody = cloudpickle.loads(data)
    for op in shipped.ops:
        OPS[op.type] = op
    with _device(shipped.body.gpus):
        made = _compiled[key] = shipped, Compiled(shipped.body, backend(shipped.backend))
    if len(_compiled) > MAX_COMPILED:
        _compiled.popitem(last=False)
    return made


def settled_fingerprint(extras: tuple[str, ...] = ()) -> Fingerprint:
    """Of this process as it runs tasks, and as it is now."""
    _settle()
    _notice()
    return fingerprint(extras)


def _notice() -> None:
    """A library that was loaded since may flush denormals: then this process is admitted to no body any more."""
    global _flushed
    if flushes() is not _flushed:
        _flushed = flushes()
        fingerprint.cache_clear()
        _compiled.clear()


@cache
def _settle() -> ExitStack:
    """This process runs tasks and nothing else: BLAS has one thread, as inside of every run, and NumPy is quiet."""
    stack = ExitStack()
    stack.enter_context(blas.threads(1))
    np.seterr(all="ignore")
    return stack


@cache
def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())


# -- the driver's side -------------------------------------------------------------------------------------------

#: Retries are the driver's: it bounds them and tells of them. GPU workers would end after each call by default.
remote: Any = ray.remote(max_retries=0, max_calls=0)(run_task)


def order_of(
    key: str,
    picks: Sequence[tuple[int, int]],
    packs: Sequence[Pack],
    names: Sequence[str | None],
    inline: Sequence[Any],
    timed: bool = False,
) -> bytes:
    """What a call is to do: the key of its body; where each value that it reads lies in the objects; what to pack; what
    the objects are known by, where values of them may stay on the device; values that travel with the call; and whether
    ops are timed. One piece of bytes, because every argument that is an object has a price."""
    return pickle.dumps((key, picks, [tuple(pack) for pack in packs], names, inline, timed))


def serialized_body(body: Body, backend: str, check_numerics: bool, agreement: Agreement) -> bytes:
    """The body for `ship`: after a line that says which fingerprint a process must have."""
    ops = own_ops(body.steps)
    made = dumped(ShippedBody(body, backend, check_numerics, ops), ops)
    return agreement.head(extras_of(body, backend)) + b"\n" + made


def own_ops(steps: Sequence[Step]) -> tuple[OpDef, ...]:
    """The user's own ops among those of steps, as workers need them."""
    types = dict.fromkeys([each.type for each in all_steps(steps)])
    own = [OPS[t] for t in types if t in OPS and OPS[t].kernel is not None]
    return tuple([replace(op, infer=_infer_nothing) for op in own])


def dumped(x: Any, ops: Iterable[OpDef]) -> bytes:
    """As bytes, with the kernels of these ops by value."""
    with ExitStack() as stack:
        for op in ops:
            _by_value(op.kernel, stack)
        try:
            made: bytes = cloudpickle.dumps(x)
        except TypeError as e:
            raise _unsendable(ops, e) from None
    return made


def _unsendable(ops: Iterable[OpDef], error: TypeError) -> TypeError:
    """What cannot be pickled, with the kernel that holds it: one that refers to a variable, say."""
    for op in ops:
        try:
            cloudpickle.dumps(op.kernel)
        except TypeError as e:
            return TypeError(f"the kernel of op type {op.type!r} cannot be sent to workers: {e}")
    return error


def _infer_nothing(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("graphs are built by the driver, not on workers")


def _by_value(kernel: Callable[..., Any] | None, stack: ExitStack) -> None:
    """Have a kernel of a module beside the user's script travel whole: workers need not have that module."""
    import sys

    module = sys.modules.get(getattr(kernel, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if module is None or file is None or module.__name__ == "__main__" or module.__name__.startswith("distgrad."):
        return
    if "site-packages" in file or module.__name__ in cloudpickle.list_registry_pickle_by_value():
        return
    cloudpickle.register_pickle_by_value(module)
    stack.callback(cloudpickle.unregister_pickle_by_value, module)
