"""Planner: from what a session is asked to run to an engine that runs it; equal programs are planned once.

All that plans and runs comes together here, and only here: a session imports this module when it first needs it. It
hands kernels to the scheduler, which knows none: constants are folded with the kernels that the local engine runs.
"""

from __future__ import annotations

import math
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from distgrad import progress
from distgrad.errors import BudgetError
from distgrad.graph import Attrs, FuncGraph, Operation, Tensor
from distgrad.recording import Recording, target
from distgrad.registry import OPS, OpDef
from distgrad.scheduler import (
    Cluster,
    Options,
    Plan,
    Program,
    Step,
    constant_bytes,
    content_digest,
    fuse,
    is_plain,
    load_cluster,
    local_cluster,
    lower,
    optimize,
    partition,
    slopes,
)
from distgrad.scheduler.cluster import ENGINES, LIMITS, MOST_WORKERS, usable_cpus
from distgrad.scheduler.devices import canonical
from distgrad.scheduler.stamps import expanded_program, is_stamped, mapped
from distgrad.types import DType, Shape, Spec, brief
from distgrad.workers import calibrate, numerics
from distgrad.workers.backends import Backend, backend
from distgrad.workers.fingerprint import fingerprint
from distgrad.workers.importing import explain_import
from distgrad.workers.local import Engine, Settings
from distgrad.workers.tape import compute

if TYPE_CHECKING:
    from distgrad.workers.on_ray.engine import RayEngine
    from distgrad.workers.on_ray.link import Link
    from distgrad.workers.on_ray.settings import RaySettings

#: Plans that are kept for programs that come again: a function that is traced anew, say.
KEPT = 256
#: Not those of programs with larger constants, which would outlive their functions; nor of programs with attributes
#: that cannot be compared, as a function that a user gives to his own op.
KEPT_BYTES = 1 << 20
#: Threads of a local session at most: a number beyond is a mistake.
MOST_THREADS = 1024

_LOCK = threading.Lock()
_plans: OrderedDict[Any, Plan] = OrderedDict()


@dataclass(frozen=True, eq=False)
class Planner:
    """What plans are made for, and how they run. Equal ones are one object, which graphs keep what is ready under."""

    cluster: Cluster
    options: Options
    settings: Settings
    #: The connection to Ray, where plans run there.
    link: Link | None = None
    on_ray: RaySettings | None = None
    #: What is kept of runs, where they are recorded.
    recording: Recording | None = None

    def engine(
        self, tensors: Sequence[Tensor], feeds: Sequence[Tensor], effects: Sequence[Operation]
    ) -> Engine | RayEngine:
        """What computes these tensors, given values for `feeds`."""
        name = _name([*[t.op for t in tensors], *effects])
        work = progress.begin("planning", name)
        try:
            plan, names = self.plan(lower(tensors, feeds, effects)), [t.op.name for t in feeds]
        finally:
            progress.end(work)
        if self.link is None or self.on_ray is None:
            return Engine(plan, self.settings, names, name)
        from distgrad.workers.on_ray.engine import RayEngine

        return RayEngine(plan, self.on_ray, self.link, names, name)

    def compute(
        self, definition: OpDef, inputs: Sequence[Any], attrs: Attrs, specs: Sequence[tuple[Shape, DType]]
    ) -> list[Any]:
        """One op at once."""
        made = compute(definition, inputs, attrs, specs)
        if self.settings.check_numerics:
            numerics.check_op(definition.type, made, inputs, attrs)
        return made

    def plan(self, program: Program) -> Plan:
        program = self._improved(canonical(program))
        if not is_plain(program) or constant_bytes(program) > KEPT_BYTES:
            return self._cut(program)
        key = content_digest(program, self.cluster, self.options), self._fingerprint, self.settings.backend.name
        with _LOCK:
            if key in _plans:
                _plans.move_to_end(key)
                return _plans[key]
        plan = self._cut(program)
        with _LOCK:
            _plans[key] = plan
            if len(_plans) > KEPT:
                _plans.popitem(last=False)
        return plan

    def _improved(self, program: Program) -> Program:
        """What the passes make of it; by a worker where this process would fold constants to other bits than workers
        compute."""
        how = self.options.fan_in, self.settings.backend.name
        if self.link is None or self.link.bits.folds:
            return improved(program, *how)
        from distgrad.workers.on_ray.elsewhere import on_worker

        timeout = None if self.on_ray is None else self.on_ray.timeout
        return on_worker(self.link, improved, program, *how, timeout=timeout)

    @cached_property
    def _fingerprint(self) -> tuple[tuple[str, str], ...]:
        """What the bits of all plans depend on: of the workers, or of this process; nothing where any will do."""
        if self.link is None:
            return fingerprint(extras(self.settings.backend)).fields
        expected = self.link.bits.expected
        return () if expected is None else expected.with_extras(extras(self.settings.backend)).fields

    def _cut(self, program: Program) -> Plan:
        return replace(self._partition(program), backend=self.settings.backend.name, fingerprint=self._fingerprint)

    def _partition(self, program: Program) -> Plan:
        try:
            return partition(program, self.cluster, self.options)
        except BudgetError:
            if not is_stamped(program):
                raise
        return partition(expanded_program(program), self.cluster, self.options)  # whose calls can be cut


def _name(ops: Sequence[Operation]) -> str:
    """What a run is called: as its function, or as what is fetched of a graph that was built by hand."""
    if not ops:
        return "nothing"
    graph = ops[0].graph
    return graph.name if isinstance(graph, FuncGraph) else ops[0].name


def improved(program: Program, fan_in: int, backend: str = "numpy") -> Program:
    """What the passes make of a program: first of the bodies that it calls, each once, then of itself."""

    def improve(program: Program) -> Program:
        program = optimize(program, _evaluate, fan_in)
        return fuse(slopes(program) if backend == "numpy" else program)  # other libraries have kernels for groups

    return improve(mapped(program, improve))


_interned = lru_cache(maxsize=KEPT)(Planner)


def _evaluate(step: Step, arrays: Sequence[Any], specs: Sequence[Spec]) -> list[Any]:
    """The results of a step. What makes NaN or Inf of finite numbers is left to the run, which can tell where it is."""
    made = compute(OPS[step.type], arrays, step.attrs, specs)
    numerics.check_op(step.type, made, arrays, step.attrs)
    return made


# -- the options of a session ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choices:
    """The options of a session, as they were given."""

    engine: str = "local"
    threads: Any = None
    cpus_per_task: Any = None
    memory: Any = None
    backend: Any = "numpy"
    check_numerics: Any = False
    timeout: Any = None
    in_order: Any = False
    granularity: Any = None
    cluster: Any = None
    address: Any = None
    workers: Any = None
    gpus: Any = None
    object_store_memory: Any = None
    in_flight: Any = None
    attempts: Any = None
    task_timeout: Any = None
    bits: Any = None
    trace: Any = None
    progress: Any = None


#: What only a Ray session can be told, and what only a local one can.
_OF_RAY = ("address", "workers", "gpus", "object_store_memory", "in_flight", "attempts", "task_timeout", "bits")
_OF_LOCAL = ("threads", "in_order")


def planner(choices: Choices) -> Planner:
    """The planner for the options of a session; TypeError or ValueError for those that cannot be."""
    if choices.engine not in ENGINES:
        known = " and ".join(map(repr, ENGINES))
        raise ValueError(f"Session: unknown engine {choices.engine!r}; there are {known}")
    other = "local" if choices.engine == "ray" else "ray"
    for name in _OF_LOCAL if choices.engine == "ray" else _OF_RAY:
        if getattr(choices, name) not in (None, False):
            raise ValueError(f"Session: {name} is an option of Session({other!r}), not of {choices.engine!r}")
    _check_progress(choices.progress)
    return _ray_planner(choices) if choices.engine == "ray" else _local_planner(choices)


def _local_planner(choices: Choices) -> Planner:
    count = _count("threads", choices.threads) or usable_cpus()
    if count > MOST_THREADS:
        raise ValueError(f"Session: threads is {count}; more than {MOST_THREADS} help no machine")
    cluster = _cluster(choices.cluster, count)
    settings = Settings(
        backend=_backend(choices.backend),
        threads=count,
        check_numerics=_flag("check_numerics", choices.check_numerics),
        in_order=_flag("in_order", choices.in_order),
        timeout=_seconds("timeout", choices.timeout),
    )
    options, recording = _options(choices, cluster), _recording(choices.trace)
    if recording is None:
        return _interned(cluster, options, settings)
    return Planner(cluster, options, replace(settings, record=recording.add), recording=recording)


def _ray_planner(choices: Choices) -> Planner:
    """A planner of its own for each session: it goes with its connection."""
    cpus, workers = _count("cpus_per_task", choices.cpus_per_task) or 1, _count("workers", choices.workers)
    gpus, memory = _count("gpus", choices.gpus), memory_bytes(choices.memory)
    store = memory_bytes(choices.object_store_memory, "object_store_memory")
    _check_workers(workers or 1, cpus)
    backend, check = _backend(choices.backend), _flag("check_numerics", choices.check_numerics)
    any_bits = _any_bits(choices.bits)
    on_ray, recording = _ray_settings(choices, backend, check), _recording(choices.trace)
    if recording is not None:
        on_ray = replace(on_ray, record=recording.add)
    link = _link(choices.address, None if workers is None else workers * cpus, gpus, store, on_ray.timeout)
    try:
        link.agree(extras(backend), any_bits)
        cluster = choices.cluster
        if cluster is None:
            cluster = link.cluster(workers, cpus, memory, calibrate.machine(cpus))
        else:
            cluster = _cluster(cluster, cpus)
        options = _options(choices, cluster)
        options = replace(options, cpus_per_task=options.cpus_per_task or cpus)
        return Planner(cluster, options, Settings(backend, cpus, check), link, on_ray, recording)
    except BaseException:
        link.close()
        raise


def _check_workers(workers: int, cpus: int) -> None:
    """ValueError for numbers that no cluster has: Ray would take its own cpus for so many."""
    for what, value, most in (("workers", workers, MOST_WORKERS), ("cpus_per_task", cpus, LIMITS["cpus"][1])):
        if value > most:
            raise ValueError(f"Session: {what} is {value}, but {most} are the most")


def extras(backend: Backend) -> tuple[str, ...]:
    """The packages that all plans of a session use, beside those of every session."""
    return ("torch",) if backend.name == "torch" else ()


def _any_bits(bits: Any) -> bool:
    if bits not in (None, "same", "any"):
        raise ValueError(f"Session: bits is 'same' or 'any', got {bits!r}")
    return bool(bits == "any")


def _recording(trace: Any) -> Recording | None:
    if trace is None or trace is False:
        return None
    if trace is not True and not isinstance(trace, str | os.PathLike):
        raise TypeError(f"Session: trace is True or the path of a .json or .html file, got {trace!r}")
    try:
        return Recording(None if trace is True else target(trace))
    except ValueError as e:
        raise ValueError(f"Session: trace: {e}") from None


def _check_progress(mode: Any) -> None:
    if mode is not None:
        try:
            progress.use(mode)
        except ValueError as e:
            raise ValueError(f"Session: {e}") from None


def _link(address: Any, cpus: int | None, gpus: int | None, store: int | None, timeout: float | None) -> Link:
    if address is not None and not isinstance(address, str):
        raise TypeError(f"Session: address is the address of a Ray cluster, such as 'auto', got {address!r}")
    from distgrad.workers.on_ray.waits import finished

    try:
        finished(partial(import_module, "distgrad.workers.on_ray.link"))  # half of Ray could not be imported again
        from distgrad.workers.on_ray.link import Link
    except Exception as e:  # a broken install raises all kinds
        raise ImportError(f"Session: {explain_import(e)}") from e
    return Link(address, cpus, gpus, store, timeout)


def _ray_settings(choices: Choices, backend: Backend, check: bool) -> RaySettings:
    from distgrad.workers.on_ray.settings import RaySettings

    given: dict[str, Any] = {name: _count(name, getattr(choices, name)) for name in ("in_flight", "attempts")}
    given |= {name: _seconds(name, getattr(choices, name)) for name in ("timeout", "task_timeout")}
    return RaySettings(backend.name, check, **{name: value for name, value in given.items() if value is not None})


def _options(choices: Choices, cluster: Cluster) -> Options:
    return Options(
        granularity=_seconds("granularity", choices.granularity),
        cpus_per_task=_cpus(_count("cpus_per_task", choices.cpus_per_task), cluster),
        memory=memory_bytes(choices.memory),
    )


def _cluster(cluster: Any, threads: int) -> Cluster:
    if cluster is None:
        return local_cluster(threads, None, calibrate.machine(threads))
    if isinstance(cluster, str | os.PathLike):
        return load_cluster(cluster)
    if not isinstance(cluster, Cluster):
        raise TypeError(f"Session: cluster is a Cluster or the path of a cluster file, got {cluster!r}")
    return cluster


def _cpus(cpus: int | None, cluster: Cluster) -> int | None:
    most = max(worker.cpus for worker in cluster.workers)
    if cpus is not None and cpus > most:
        whose = "the session" if cluster.name == "local" else f"the largest worker of cluster {cluster.name!r}"
        raise ValueError(f"Session: cpus_per_task is {cpus}, but {whose} has {most}")
    return cpus


def _backend(name: Any) -> Backend:
    if not isinstance(name, str):
        raise TypeError(f"Session: backend is the name of an array library, such as 'numpy', got {brief(name)}")
    try:
        return backend(name)
    except ValueError as e:
        raise ValueError(f"Session: {e}") from None


def _count(what: str, value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"Session: {what} is a positive whole number, got {brief(value)}")
    return int(value)


def _seconds(what: str, value: Any) -> float | None:
    if value is None:
        return None
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:
        raise ValueError(f"Session: {what} is a positive number of seconds, got {brief(value)}")
    return float(value)


def _flag(what: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"Session: {what} is True or False, got {brief(value)}")
    return bool(value)


_UNITS = {"": 1, "b": 1, **{f"{p}b": 1000**i for i, p in enumerate("kmgt", 1)}}
_UNITS |= {f"{p}ib": 1024**i for i, p in enumerate("kmgt", 1)}


def memory_bytes(memory: Any, what: str = "memory") -> int | None:
    """A number of bytes.

    >>> memory_bytes("1.5 GiB"), memory_bytes(10**9), memory_bytes(None)
    (1610612736, 1000000000, None)
    """
    if memory is None:
        return None
    found: float = 0
    if isinstance(memory, str):
        text = re.fullmatch(r"\s*(\d+\.?\d*)\s*([a-zA-Z]*)\s*", memory)
        if text and text[2].lower() in _UNITS:
            found = float(text[1]) * _UNITS[text[2].lower()]
    elif isinstance(memory, int | float | np.integer | np.floating) and not isinstance(memory, bool):
        found = float(memory)
    if not (math.isfinite(found) and found >= 1):
        raise ValueError(f"Session: {what} is a positive number of bytes or text such as '4 GiB', got {brief(memory)}")
    return int(found)
