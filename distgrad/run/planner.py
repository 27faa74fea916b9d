"""Planner: turns the fetches of a session into an engine that computes them; equal programs are planned once.

This is the only module that connects the scheduler with the engines; a session imports it when it first runs something.
It passes kernels to the scheduler, which has none: constants are folded with the kernels of the local engine.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, cast

from distgrad import progress
from distgrad.errors import BudgetError
from distgrad.graph import Attrs, FuncGraph, Operation, Tensor
from distgrad.registry import OPS, OpDef
from distgrad.report.recording import Recording, target
from distgrad.run.options import SessionOptions
from distgrad.scheduler.cluster import Cluster, load_cluster, local_cluster, usable_cpus
from distgrad.scheduler.cost.work_table import element_work
from distgrad.scheduler.digest import constant_bytes, content_digest, is_plain
from distgrad.scheduler.execution import NATIVE, PLAIN, Execution, Executions
from distgrad.scheduler.outlined_calls import has_outlined_calls
from distgrad.scheduler.partition.partition import partition
from distgrad.scheduler.partition.two_phases import in_two_phases
from distgrad.scheduler.passes.calls import expanded_program
from distgrad.scheduler.passes.fuse import always
from distgrad.scheduler.passes.pipeline import Context, improve
from distgrad.scheduler.plan import Options, Plan
from distgrad.scheduler.program import Program, Step, lower, planning
from distgrad.scheduler.updates import second_phase
from distgrad.types import DType, Shape, Spec
from distgrad.workers import native, numerics
from distgrad.workers.backends import Backend, backend, gpu_backend
from distgrad.workers.fingerprint import NATIVE_CODE, fingerprint
from distgrad.workers.importing import explain_import
from distgrad.workers.local.engine import Engine, Settings
from distgrad.workers.local.second_phase import has_code
from distgrad.workers.numpy_engine.single import compute
from distgrad.workers.tools import calibrate

if TYPE_CHECKING:
    from distgrad.workers.on_ray.engine import RayEngine
    from distgrad.workers.on_ray.link import Link
    from distgrad.workers.on_ray.settings import RaySettings

#: Maximum number of cached plans, for programs that are built again, such as a function that is traced again.
MAX_CACHED_PLANS = 256
#: Plans of programs with more bytes of constants are not cached, since the constants would outlive their functions; nor
#: are plans of programs with attributes that cannot be compared, such as a function passed to a user-defined op.
MAX_CACHED_CONSTANT_BYTES = 1 << 20

_LOCK = threading.Lock()
_plans: OrderedDict[Any, Plan] = OrderedDict()


@dataclass(frozen=True, eq=False)
class Planner:
    """The cluster and options to plan for, and the settings to run with. Local planners are interned, because graphs
    cache engines per planner."""

    cluster: Cluster
    options: Options
    settings: Settings
    #: The connection to Ray, if plans run there.
    link: Link | None = None
    on_ray: RaySettings | None = None
    #: The recording of runs, if the session records them.
    recording: Recording | None = None

    def engine(
        self, tensors: Sequence[Tensor], feeds: Sequence[Tensor], effects: Sequence[Operation]
    ) -> Engine | RayEngine:
        """The engine that computes these tensors from values for `feeds`."""
        name = _name([*[t.op for t in tensors], *effects])
        work = progress.begin("planning", name, session_mode=self.settings.progress)
        try:
            with planning():
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
        """Compute one op immediately."""
        made = compute(definition, inputs, attrs, specs, self.options.native)
        if self.settings.check_numerics:
            numerics.check_op(definition.type, made, inputs, attrs)
        return made

    def plan(self, program: Program) -> Plan:
        program = self._improved(program)
        if not is_plain(program) or constant_bytes(program) > MAX_CACHED_CONSTANT_BYTES:
            return self._cut(program)
        key = (
            content_digest(program, self.cluster, self.options),
            self._fingerprint,
            self.settings.backend.name,
            self._one_phase if program.writes else "",
        )
        with _LOCK:
            if key in _plans:
                _plans.move_to_end(key)
                return _plans[key]
        plan = self._cut(program)
        with _LOCK:
            _plans[key] = plan
            if len(_plans) > MAX_CACHED_PLANS:
                _plans.popitem(last=False)
        return plan

    def _improved(self, program: Program) -> Program:
        """The program after all passes. They run on a worker if this process would fold constants to different bits."""
        in_loops = self._execution is NATIVE
        can_fuse = _can_fuse if in_loops else always
        fold, work = partial(evaluate, native=self.options.native), element_work if in_loops else None
        context = Context(fold, self.options.fan_in, can_fuse, work)
        if self.link is None or self.link.bits.folds:
            return improve(program, context)
        from distgrad.workers.on_ray.remote_passes import run_on_worker

        timeout = None if self.on_ray is None else self.on_ray.timeout
        return run_on_worker(self.link, improve, program, context, timeout=timeout)

    @cached_property
    def _fingerprint(self) -> tuple[tuple[str, str], ...]:
        """Everything that the bits of results depend on, of the workers or of this process; empty with bits="any"."""
        if self.link is None:
            return fingerprint(_packages(self.settings.backend, self.options)).fields
        expected = self.link.bits.expected
        return () if expected is None else expected.with_extras(_packages(self.settings.backend, self.options)).fields

    @cached_property
    def _executions(self) -> Executions:
        """How tasks run on the session's backend, and on the backend of its GPU tasks."""
        return Executions(self._execution, gpu_backend(self.settings.backend.name).execution)

    @property
    def _execution(self) -> Execution:
        found = self.settings.backend.execution
        return PLAIN if found is NATIVE and not self.options.native else found

    def _cut(self, program: Program) -> Plan:
        plan = self._partition(program)
        if self.link is None:
            plan = in_two_phases(
                plan, second_phase(plan.program, self._one_phase, partial(has_code, plan.program.types))
            )
        return replace(plan, backend=self.settings.backend.name, fingerprint=self._fingerprint)

    @property
    def _one_phase(self) -> str:
        """Why runs do not update variables in place; empty if they do where they can."""
        if not self.settings.backend.is_numpy:
            return f"the arrays are {self.settings.backend.name}'s"
        if not self.options.native:
            return "the plan is without native code"
        return "check_numerics looks at new values first" if self.settings.check_numerics else ""

    def _partition(self, program: Program) -> Plan:
        try:
            return partition(program, self.cluster, self.options, self._executions)
        except BudgetError:
            if not has_outlined_calls(program):
                raise
        flat = expanded_program(program)  # its calls can be split among tasks
        return partition(flat, self.cluster, self.options, self._executions)


def _name(ops: Sequence[Operation]) -> str:
    """The name of a run: that of its function or, for a graph built by hand, of the first fetch."""
    if not ops:
        return "nothing"
    graph = ops[0].graph
    return graph.name if isinstance(graph, FuncGraph) else ops[0].name


_interned = lru_cache(maxsize=MAX_CACHED_PLANS)(Planner)


def evaluate(step: Step, arrays: Sequence[Any], specs: Sequence[Spec], native: bool = False) -> list[Any]:
    """The results of a step. Raises if it makes NaN or Inf from finite numbers: the run can report where."""
    made = compute(OPS[step.type], arrays, step.attrs, specs, native)
    numerics.check_op(step.type, made, arrays, step.attrs)
    return made


# -- planners of sessions ----------------------------------------------------------------------------------------


def planner(options: SessionOptions) -> Planner:
    """The planner of a session. Raises ValueError for options that contradict each other or do not work here."""
    return _PLANNERS[options.engine](options)


def _local_planner(options: SessionOptions) -> Planner:
    threads, backend = options.threads or usable_cpus(), _backend(options.backend)
    cluster = _cluster(options) or local_cluster(threads, None, backend.rates(calibrate.machine(threads)))
    settings = _made(Settings, options, backend=backend, threads=threads)
    asked = _fitting(_made(Options, options, native=_native(options, backend)), cluster)
    recording = _recording(options)
    if recording is None:
        return _interned(cluster, asked, settings)
    return Planner(cluster, asked, replace(settings, record=recording.add), recording=recording)


def _ray_planner(options: SessionOptions) -> Planner:
    """A new planner for each session, because it holds the connection."""
    from distgrad.workers.on_ray.settings import RaySettings

    cpus, backend = options.cpus_per_task or 1, _backend(options.backend)
    asked = _made(Options, options, native=_native(options, backend))
    settings = _made(Settings, options, backend=backend, threads=cpus)
    cluster, recording = _cluster(options), _recording(options)
    on_ray = _made(RaySettings, options, record=recording and recording.add)
    link = _link(options, cpus)
    try:
        link.agree(_packages(backend, asked), options.bits == "any")
        asked = replace(asked, native=asked.native and link.bits.native)
        cluster = cluster or link.cluster(options.workers, cpus, asked.memory, backend.rates(calibrate.machine(cpus)))
        asked = replace(_fitting(asked, cluster), cpus_per_task=cpus)
        return Planner(cluster, asked, settings, link, on_ray, recording)
    except BaseException:
        link.close()
        raise


#: By the name of the engine.
_PLANNERS = {"local": _local_planner, "ray": _ray_planner}

_Made = TypeVar("_Made", Options, Settings, "RaySettings")


def _made(what: type[_Made], options: SessionOptions, **more: Any) -> _Made:
    """Settings of type `what` from the options with the same names that are set, and from `more`."""
    names = {each.name for each in fields(what)}
    given = {name: value for name, value in vars(options).items() if name in names and value is not None}
    return what(**given | more)


def _recording(options: SessionOptions) -> Recording | None:
    if options.trace is None:
        return None
    try:
        return Recording(None if isinstance(options.trace, bool) else target(options.trace))
    except ValueError as e:
        raise ValueError(f"Session: trace: {e}") from None


def _link(options: SessionOptions, cpus: int) -> Link:
    from distgrad.workers.on_ray.connect.waits import finished

    try:
        finished(partial(import_module, "distgrad.workers.on_ray.link"))  # a half-imported Ray cannot be imported again
        from distgrad.workers.on_ray.link import Link
    except Exception as e:  # a broken install raises all kinds
        raise ImportError(f"Session: {explain_import(e)}") from e
    cpus_in_all = options.workers and options.workers * cpus
    store = cast("int | None", options.object_store_memory)
    return Link(options.address, cpus_in_all, options.gpus, store, options.timeout)


def _cluster(options: SessionOptions) -> Cluster | None:
    given = options.cluster
    return load_cluster(given) if isinstance(given, str | os.PathLike) else given


def _fitting(asked: Options, cluster: Cluster) -> Options:
    """The same options. Raises ValueError if no worker has that many CPUs per task."""
    most = max(worker.cpus for worker in cluster.workers)
    if asked.cpus_per_task is not None and asked.cpus_per_task > most:
        local = f"the session has {most} thread{'s' * (most > 1)}"
        limit = local if cluster.name == "local" else f"the largest worker of cluster {cluster.name!r} has {most} cpus"
        raise ValueError(f"Session: cpus_per_task is {asked.cpus_per_task}, but {limit}")
    return asked


def _native(options: SessionOptions, backend: Backend) -> bool:
    """Whether plans are for native code, which only NumPy's engine runs."""
    if options.native and native.unusable():
        raise ValueError(f"Session: native is True, but {native.unusable()}")
    asked = not native.turned_off() if options.native is None else options.native
    return asked and backend.is_numpy


def _can_fuse(step: Step, types: Sequence[Spec]) -> bool:
    from distgrad.workers.native.formulas import has_rule  # late: llvmlite is large

    return has_rule(step, types)


def _packages(backend: Backend, options: Options) -> tuple[str, ...]:
    """What the bits of a plan depend on beside what those of every plan do."""
    return (*backend.packages, *([NATIVE_CODE] if options.native else []))


def _backend(name: str) -> Backend:
    try:
        return backend(name)
    except ValueError as e:
        raise ValueError(f"Session: {e}") from None
