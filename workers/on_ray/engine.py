"""The Ray engine: runs a plan as Ray tasks.

It decides nothing that changes a result: `scheduler.run_state` decides what to submit, release and retry, and a task
has the same body here as in the local engine.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from distgrad.errors import StoreFull, TaskFailed
from distgrad.handles import Handle, value_of
from distgrad.scheduler.bodies import Body, bodies
from distgrad.scheduler.partition.simulate import replay
from distgrad.scheduler.plan import Plan
from distgrad.workers import numerics
from distgrad.workers.arena import MODERATE, keep_freed_memory
from distgrad.workers.backends import BACKENDS, gpu_backend
from distgrad.workers.kernels.user_ops import user_ops
from distgrad.workers.on_ray import task as tasks
from distgrad.workers.on_ray.agreement import Agreement
from distgrad.workers.on_ray.link import Link
from distgrad.workers.on_ray.objects import IN_REPLY_BYTES, WHOLE_REPLY_BYTES
from distgrad.workers.on_ray.placing import check_places, options_of
from distgrad.workers.on_ray.run import GivenLost, Run
from distgrad.workers.on_ray.settings import RaySettings
from distgrad.workers.on_ray.shipping import ship
from distgrad.workers.on_ray.values import Record, Stored, Value

Array = np.ndarray[Any, np.dtype[Any]]

log = logging.getLogger("distgrad")

#: Bytes of results that may pile up in the store between two polls of the driver.
MAX_UNSEEN_BYTES = 32 << 20
#: Maximum bytes of feeds that are sent inline with a task's call; larger ones go through the store.
MAX_INLINE_FEEDS = 32 << 10
#: Limits of a value's lineage, in runs to replay and in bytes of inputs kept for that: beyond them values are copied to
#: the driver's node.
MAX_REPLAYED_RUNS, MAX_REPLAY_BYTES = 64, 256 << 20
#: Restarts of a run after inputs were lost, in addition to one per input.
MAX_RESTARTS = 4


class BodyRef(NamedTuple):
    """A shipped body: the references that calls carry, its name, and whether its values stay on a device."""

    holder: list[Any]
    key: str
    stays: bool


class TaskCall(NamedTuple):
    """How a task is called: the remote function, its shipped body, and how its results are packed into objects."""

    remote: Any
    holder: list[Any]
    key: str
    stays: bool
    packs: tuple[tasks.Pack, ...]


class Source(NamedTuple):
    """Where a task finds an input: at a position of a bundle, or (bundle -1) among the inputs of the run."""

    bundle: int
    place: int


class RayEngine:
    """A plan that is ready to run. Its bodies are shipped once, and compiled once by each process that runs them."""

    def __init__(
        self, plan: Plan, settings: RaySettings, link: Link, names: Sequence[str] = (), name: str = "run"
    ):
        self.plan, self.settings, self.link, self.name = plan, settings, link, name
        self._names = names or [f"feed {i}" for i in range(len(plan.program.feeds))]
        #: Tasks that may end between two polls of the driver, which then releases dead objects.
        self.batch = max(MAX_UNSEEN_BYTES * len(plan.tasks) // max(sum([b.nbytes for b in plan.bundles]), 1), 1)
        start = replay(plan).start
        self.order = sorted(range(len(plan.tasks)), key=lambda k: (start[k], k))
        #: The bundles of each task, in the order in which it returns them; and the position of each value in them.
        self.made: list[list[int]] = [[] for _ in plan.tasks]
        self.place: dict[int, Source] = {}
        for b, bundle in enumerate(plan.bundles):
            self.made[bundle.task].append(b)
            self.place.update((v, Source(b, i)) for i, v in enumerate(bundle.values))
        self.sources = [[self.place.get(v) or Source(-1, v) for v in task.reads] for task in plan.tasks]
        self._readers = _readers(plan)
        self._ops = user_ops(plan.program.steps)  # they may be redefined before a lost body is shipped again
        #: The bundles that outlive a run; and those of them that are kept in the store of a node.
        self.wanted = [b for b, bundle in enumerate(plan.bundles) if bundle.wanted]
        self.in_stores = [b for b in self.wanted if not self._comes_with_reply(b)]
        #: For each task, the fetched bundles that arrive with its reply.
        fetched = {b for b in self.wanted if plan.bundles[b].fetched and self._comes_with_reply(b)}
        self.in_reply = [[b for b in made if b in fetched] for made in self.made]
        self._calls: list[TaskCall] = []
        self._agreement: Agreement | None = None  # that of the calls
        if sum([b.nbytes for b in plan.bundles if b.fetched]) >= MODERATE:  # every run copies them here
            keep_freed_memory()

    def _comes_with_reply(self, b: int) -> bool:
        """Whether Ray sends a bundle to the driver with its task's reply, so that it cannot be lost with a store."""
        bundles = self.plan.bundles
        whole = sum([bundles[other].nbytes for other in self.made[bundles[b].task]])
        return bundles[b].nbytes <= IN_REPLY_BYTES and whole <= WHOLE_REPLY_BYTES

    @property
    def calls(self) -> list[TaskCall]:
        """How each task is called. Computed at the first run, and again after nodes are excluded or bodies are shipped
        again."""
        if not self._calls or self._agreement is not self.link.bits:
            check_places(self.plan.tasks, self.link)
            self._agreement, (shipped, of) = self.link.bits, self._shipped
            self._calls = [self._call(k, shipped[i]) for k, i in enumerate(of)]
        return self._calls

    @cached_property
    def _shipped(self) -> tuple[list[BodyRef], list[int]]:
        """The shipped bodies, and the body of each task."""
        distinct, of = bodies(self.plan)
        return [self._ship(body) for body in distinct], of

    def _call(self, k: int, shipped: BodyRef) -> TaskCall:
        task, bundles = self.plan.tasks[k], [self.plan.bundles[b] for b in self.made[k]]
        place = {v: i for i, v in enumerate(task.gives)}
        packs = tuple([tasks.Pack(tuple([place[v] for v in bundle.values]), bundle.wanted) for bundle in bundles])
        return TaskCall(options_of(task, self.plan.cluster, self.link, 1 + len(packs)), *shipped, packs)

    def _ship(self, body: Body) -> BodyRef:
        """Ship a body. One that needs a GPU uses an array library that supports GPUs."""
        name = self.settings.backend
        backend = gpu_backend(name) if body.gpus else BACKENDS[name]
        payload = tasks.serialized_body(body, backend.name, self.settings.check_numerics, self.link.bits, self._ops)
        holder, key = self.link.call(ship, payload, self.link.name, what=f"sending {self.name!r} to Ray")
        return BodyRef(holder, key, not backend.is_numpy)

    def shipped_as(self, k: int) -> list[str]:
        """The names by which an error may refer to the body of a task."""
        call = self.calls[k]
        return [call.key, *[ref.hex() for ref in call.holder]]

    def ship_again(self, k: int) -> None:
        """Ship a lost body again, for all tasks that share it."""
        shipped, of = self._shipped
        shipped[of[k]] = self._ship(bodies(self.plan)[0][of[k]])
        self._calls = []  # a new list: another thread may be using the old one

    def run(
        self, feeds: Sequence[Array | Handle], state: Mapping[str, Array | Handle], fetch: bool = True
    ) -> tuple[list[Any], dict[str, Handle]]:
        """The fetched values (without `fetch`, handles of them), and handles of the values that the program writes."""
        with self.link.used():
            self.link.check()
            return self._run(feeds, state, fetch)

    def _run(
        self, feeds: Sequence[Array | Handle], state: Mapping[str, Array | Handle], fetch: bool
    ) -> tuple[list[Any], dict[str, Handle]]:
        feeds, state = self._placed(feeds, state)
        run = self._finished(feeds, state, fetch, self._ends())
        self.link.last = run.report
        if run.report.worst and self.settings.check_numerics:
            self._blame(feeds, state, run)
        if self.settings.record is not None:
            self.settings.record(self.name, self.plan, run.report)
        return self._results(run, feeds, state, fetch)

    def run_again(
        self, feeds: Sequence[Any], state: Mapping[str, Any], ends: float | None
    ) -> dict[int, tuple[Any, int]]:
        """Replay a run on these inputs; return the references and bytes of its results, by bundle."""
        run = self._finished(feeds, state, False, ends or self._ends())
        self.link.faults.replayed_runs += 1
        self.link.faults.replayed += len(self.plan.tasks)
        return {b: (run.refs[b], self.plan.bundles[b].nbytes) for b in run.refs if self.plan.bundles[b].wanted}

    def _ends(self) -> float | None:
        timeout = self.settings.timeout
        return None if timeout is None else time.monotonic() + timeout

    def _finished(self, feeds: Sequence[Any], state: Mapping[str, Any], fetch: bool, ends: float | None) -> Run:
        """A finished run. Lost inputs are recomputed, within the same deadline."""
        program, replayed = self.plan.program, self.link.faults.replayed
        given = dict(zip(program.feeds, feeds, strict=True))
        given.update((v, state[key]) for key, v in program.reads)
        left = MAX_RESTARTS + len({id(x.stored) for x in given.values() if isinstance(x, Value)})
        while True:
            run = Run(self, given, ends)
            try:
                run.finish(fetch)
                run.report.replayed = self.link.faults.replayed - replayed
                return run
            except GivenLost as e:
                left -= 1
                if not left:
                    raise TaskFailed(
                        f"{self.name!r} failed: {e}, and were lost again each time they were recomputed. "
                        f"Variables are unchanged."
                    ) from None
                e.remake(ends)

    # -- what a run is given -------------------------------------------------------------------------------------

    def _placed(
        self, feeds: Sequence[Any], state: Mapping[str, Any]
    ) -> tuple[list[Array | Value], dict[str, Array | Value]]:
        """The same inputs, with large ones in the store; those that the same tasks read form one object. The values of
        variables never change, so they are put there once."""
        program, link = self.plan.program, self.link
        fed = [x if _is_here(x, link) else value_of(x) for x in feeds]
        kept = {key: x if _is_here(x, link) else value_of(x) for key, x in state.items()}
        for group in self._together({i: v for i, v in enumerate(program.feeds) if not isinstance(fed[i], Value)}):
            if sum([fed[i].nbytes for i in group]) > MAX_INLINE_FEEDS:
                what = _listed("feed", [self._names[i] for i in group])
                for i, value in zip(group, link.put([fed[i] for i in group], what), strict=True):
                    fed[i] = value
        for keys in self._together({key: v for key, v in program.reads if not isinstance(kept[key], Value)}):
            what = _listed("variable", [key.rpartition("#")[0] for key in keys])
            kept.update(zip(keys, link.placed([kept[key] for key in keys], what), strict=True))
        return fed, kept

    def _together(self, values: Mapping[Any, int]) -> Iterable[list[Any]]:
        """The keys of inputs, grouped by the tasks that read them."""
        groups: dict[Any, list[Any]] = {}
        for key, v in values.items():
            if v in self._readers:
                groups.setdefault(self._readers[v], []).append(key)
        return groups.values()

    # -- what comes of it ----------------------------------------------------------------------------------------

    def _results(
        self, run: Run, feeds: Sequence[Any], state: Mapping[str, Any], fetch: bool
    ) -> tuple[list[Any], dict[str, Handle]]:
        program, types = self.plan.program, self.plan.program.types
        given = {**dict(zip(program.feeds, feeds, strict=True)), **{v: state[key] for key, v in program.reads}}
        stored: dict[int, Stored] = {}
        record: list[Record] = []

        def handle(v: int) -> Handle:
            if v in given:
                known: Handle = given[v]
                return known
            b, place = self.place[v]
            if b not in stored:
                stored[b] = self._stored(run, b, feeds, state, record)
            return Value(types[v], self.link, stored[b], place)

        self._put_together(given, [v for _, v in program.writes] + ([] if fetch else [*program.fetches]))
        writes = {key: handle(v) for key, v in program.writes}
        values: list[Any]
        if fetch:
            values = [value_of(given[v]) if v in given else run.value(*self.place[v]) for v in program.fetches]
        else:
            values = [handle(v) for v in program.fetches]
        if record and (record[0].depth > MAX_REPLAYED_RUNS or record[0].nbytes > MAX_REPLAY_BYTES):
            self._pull_to_driver(stored.values(), feeds, state)
        return values, writes

    def _pull_to_driver(self, made: Iterable[Stored], feeds: Sequence[Any], state: Mapping[str, Any]) -> None:
        """Cut the lineage: copy the results of this run, and the inputs that they do not replace, to the driver's
        node."""
        replaced = {key for key, _ in self.plan.program.writes}
        given = [*feeds, *[x for key, x in state.items() if key not in replaced]]
        old = [x.stored for x in given if isinstance(x, Value) and x.stored.record is not None]
        try:
            for stored in dict.fromkeys([*made, *old]):
                self.link.pull_to_driver(stored)
        except StoreFull as e:  # the lineage grows; the next call tries again
            log.warning("distgrad: values of other nodes cannot be copied to the driver's node: %s", e)

    def _put_together(self, given: dict[int, Any], wanted: Sequence[int]) -> None:
        """Put arrays that are both inputs and results into the store as one object: each object costs every call that
        reads it."""
        new = [v for v in dict.fromkeys(wanted) if v in given and not isinstance(given[v], Value)]
        if new:
            given.update(zip(new, self.link.put([given[v] for v in new]), strict=True))

    def _stored(self, run: Run, b: int, feeds: Any, state: Any, record: list[Record]) -> Stored:
        bundle = self.plan.bundles[b]
        if run.report.tokens[bundle.task].node == self.link.home:
            return Stored(run.refs[b], bundle.nbytes)
        if not record:
            record.append(Record(self, feeds, state))
        return record[0].made(b, run.refs[b], bundle.nbytes)

    def _blame(self, feeds: Sequence[Any], state: Mapping[str, Any], run: Run) -> None:
        """Raise NumericsError for the first op that made a NaN or Inf: found by running the program again, op by op."""
        program = self.plan.program
        arrays = [value_of(x) for x in feeds], {key: value_of(x) for key, x in state.items()}
        given = {**dict(zip(program.feeds, arrays[0], strict=True)), **{v: arrays[1][key] for key, v in program.reads}}
        made = [given[v] if v in given else run.value(*self.place[v]) for v in program.wanted]
        numerics.check(program, made, *arrays, self._names, self._ops)


def _listed(kind: str, names: Sequence[str]) -> str:
    """
    >>> _listed("feed", ["x", "y", "z", "u"])
    "the feeds 'x', 'y', 'z' and 1 more"
    """
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"the {kind}{'s' * (len(names) > 1)} {', '.join([repr(name) for name in names[:3]])}{more}"


def _is_here(x: Any, link: Link) -> bool:
    return isinstance(x, Value) and x.link is link


def _readers(plan: Plan) -> dict[int, tuple[int, ...]]:
    """The tasks that read each input of the program."""
    found: dict[int, list[int]] = {v: [] for v in plan.program.given}
    for k, task in enumerate(plan.tasks):
        for v in task.reads:
            if v in found:
                found[v].append(k)
    return {v: tuple(readers) for v, readers in found.items() if readers}
