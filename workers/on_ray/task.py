"""What runs on a worker: one function, which runs the body of a task.

A process loads each body once, by its name, and keeps the compiled body.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import ray
from ray import exceptions

from distgrad.registry import OPS, OpDef
from distgrad.scheduler.bodies import Body
from distgrad.scheduler.reports import Token
from distgrad.workers import blas, numerics
from distgrad.workers.backends import backend
from distgrad.workers.body import Compiled
from distgrad.workers.fingerprint import Fingerprint, fingerprint, flushes
from distgrad.workers.kernels.user_ops import user_ops
from distgrad.workers.on_ray import resident
from distgrad.workers.on_ray.agreement import Agreement, admitted, extras_of
from distgrad.workers.on_ray.failures import Differs, Raised
from distgrad.workers.on_ray.packing import opened, pack
from distgrad.workers.on_ray.shipping import BodyLost, received
from distgrad.workers.task_monitor import Clock, TaskMonitor, resident_bytes

#: Maximum number of compiled bodies that a process keeps; the least recently used are evicted.
MAX_COMPILED = 1024

_compiled: OrderedDict[str, tuple[ShippedBody, Compiled]] = OrderedDict()
#: Whether denormals were flushed when the fingerprint was taken.
_flushed = flushes()


@dataclass(frozen=True)
class ShippedBody:
    """A body as it is sent to workers: with the array backend, and with the user's own ops, by value."""

    body: Body
    backend: str
    check_numerics: bool
    ops: tuple[OpDef, ...]


class Pack(NamedTuple):
    """Results of a body that are returned as one object, and whether they are results of the run."""

    values: tuple[int, ...]
    wanted: bool


def run_task(holder: Sequence[Any], order: bytes, *objects: Any) -> Any:
    """The packed results, then the token; see `order_of`. Ray stores the return values in order, and if one finds no
    room, it and all that follow become errors. So a token proves that all results were stored."""
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
    except SystemExit:  # raised by a kernel, or by Ray to end the process
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
    """The token as bytes, which Ray does not pickle: any other object costs as much as the rest of an empty task."""
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
    """Run on a device. Named inputs are moved there once, and results of the run stay there too."""
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
    _settle()  # also with bits="any", when the fingerprint is not checked
    admitted(head, settled_fingerprint)  # first: the body of another version may not even load
    shipped: ShippedBody = cloudpickle.loads(data)
    for op in shipped.ops:
        OPS[op.type] = op
    library = backend(shipped.backend)
    with library.device(shipped.body.gpus):
        made = _compiled[key] = shipped, Compiled(shipped.body, library)
    if len(_compiled) > MAX_COMPILED:
        _compiled.popitem(last=False)
    return made


def settled_fingerprint(extras: tuple[str, ...] = ()) -> Fingerprint:
    """The current fingerprint of this process, with the settings under which it runs tasks."""
    _settle()
    _notice()
    return fingerprint(extras)


def _notice() -> None:
    """Drop the fingerprint and the compiled bodies if a library that was loaded since has changed the flushing of
    denormals: then bodies are refused."""
    global _flushed
    if flushes() is not _flushed:
        _flushed = flushes()
        fingerprint.cache_clear()
        _compiled.clear()


@cache
def _settle() -> ExitStack:
    """Set up this process to run tasks: BLAS has one thread, as in every run, and NumPy does not warn."""
    stack = ExitStack()
    stack.enter_context(blas.threads(1))
    np.seterr(all="ignore")
    return stack


@cache
def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())


# -- the driver's side -------------------------------------------------------------------------------------------

#: max_retries=0: the driver retries, and reports it. max_calls=0: by default GPU workers end after each call.
remote: Any = ray.remote(max_retries=0, max_calls=0)(run_task)


def order_of(
    key: str,
    picks: Sequence[tuple[int, int]],
    packs: Sequence[Pack],
    names: Sequence[str | None],
    inline: Sequence[Any],
    timed: bool = False,
) -> bytes:
    """The arguments of a call: the key of its body; the (object, position) of each input; how to pack the results; the
    names of objects whose values may stay on the device; inline values; and whether to time ops. They are one bytes
    object, because Ray charges for every argument."""
    return pickle.dumps((key, picks, [tuple(pack) for pack in packs], names, inline, timed))


def serialized_body(
    body: Body, backend: str, check_numerics: bool, agreement: Agreement, ops: Mapping[str, OpDef] | None = None
) -> bytes:
    """The payload for `ship`: a line with the required fingerprint, then the pickled body. `ops` has users' ops as the
    engine found them; by default those of now are sent."""
    own = [op if ops is None else ops.get(op.type, op) for op in user_ops(body.steps).values()]
    sent = without_shape_rules(own)
    made = dumped(ShippedBody(body, backend, check_numerics, sent), sent)
    return agreement.head(extras_of(body, backend)) + b"\n" + made


def without_shape_rules(ops: Iterable[OpDef]) -> tuple[OpDef, ...]:
    """Users' ops as workers need them."""
    return tuple([replace(op, infer=_infer_nothing) for op in ops])


def dumped(x: Any, ops: Iterable[OpDef]) -> bytes:
    """Pickle a value, with the kernels of these ops by value."""
    with ExitStack() as stack:
        for op in ops:
            _by_value(op.kernel, stack)
        try:
            made: bytes = cloudpickle.dumps(x)
        except TypeError as e:
            raise _unsendable(ops, e) from None
    return made


def _unsendable(ops: Iterable[OpDef], error: TypeError) -> TypeError:
    """The error for a kernel that cannot be pickled, because it refers to a variable, for example."""
    for op in ops:
        try:
            cloudpickle.dumps(op.kernel)
        except TypeError as e:
            return TypeError(f"the kernel of op type {op.type!r} cannot be sent to workers: {e}")
    return error


def _infer_nothing(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("graphs are built by the driver, not by workers")


def _by_value(kernel: Callable[..., Any] | None, stack: ExitStack) -> None:
    """Pickle the kernel's module by value if it is not an installed package: workers may not have it."""
    import sys

    module = sys.modules.get(getattr(kernel, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if module is None or file is None or module.__name__ == "__main__" or module.__name__.startswith("distgrad."):
        return
    if "site-packages" in file or module.__name__ in cloudpickle.list_registry_pickle_by_value():
        return
    cloudpickle.register_pickle_by_value(module)
    stack.callback(cloudpickle.unregister_pickle_by_value, module)
