"""One run of a plan on Ray: a thin loop that carries out what the run's state says, and tells it what happened."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import ray
from ray import exceptions

from distgrad import progress
from distgrad.errors import StoreFull, TaskFailed
from distgrad.printing import bytes_text
from distgrad.scheduler.reports import Report, Shares, Token, at_text
from distgrad.scheduler.run_state import Cancel, Command, Drop, GivenUp, RunState, Submit
from distgrad.workers.on_ray import objects
from distgrad.workers.on_ray.failures import Collateral, Crashed, Failure, Full, Refused, UserError, classify
from distgrad.workers.on_ray.hang_detector import places, task_text, timeout_text
from distgrad.workers.on_ray.link import remake
from distgrad.workers.on_ray.objects import FULL, LOST, SMALL, no_room
from distgrad.workers.on_ray.packing import opened
from distgrad.workers.on_ray.placing import check_places
from distgrad.workers.on_ray.task import order_of, read
from distgrad.workers.on_ray.values import Stored, Value

if TYPE_CHECKING:
    from distgrad.workers.on_ray.engine import RayEngine

Array = np.ndarray[Any, np.dtype[Any]]

log = logging.getLogger("distgrad")

#: Seconds in which tasks of a failed run may end by themselves: since the last one did, and in all.
GRACE, LONGEST_GRACE = 0.1, 1.0
#: Seconds between two looks at tasks that have failed or hang, while nothing else happens.
POLL_INTERVAL = 0.2
#: Seconds in which Ray gives back the room of what was let go.
STORE_FREE_SECONDS = 1.2


class GivenLost(Exception):
    """Values that the run was given are gone."""

    def __init__(self, stored: Sequence[Stored]):
        super().__init__(f"{len(stored)} objects that the run was given were lost")
        self._stored = stored

    def remake(self, ends: float | None) -> None:
        for stored in self._stored:
            remake(stored, ends)


class Run:
    """The objects and tasks of one run that Ray has. `refs` are the objects by bundle; at `ends` it is given up."""

    def __init__(self, engine: RayEngine, given: Mapping[int, Any], ends: float | None):
        settings = engine.settings
        self._engine, self._plan, self._given = engine, engine.plan, given
        limits = settings.in_flight, settings.attempts, settings.task_timeout
        self._state = RunState(engine.plan, engine.order, *limits, ahead=engine.link.ahead)
        self.refs: dict[int, Any] = {}
        self.report = Report()
        self._tokens: dict[Any, int] = {}  # reference of a token -> its task
        self._token_of: dict[int, Any] = {}
        self._values: dict[int, Any] = {}
        self._ends = ends
        engine.link.spares.look()
        #: Tasks whose results had no room, the last time that they ran; whether this look has waited for room.
        self._full: set[int] = set()
        self._waited = False
        self._quiet = time.monotonic()  # since when nothing has come
        self._timed = settings.record is not None

    def value(self, bundle: int, place: int) -> Array:
        if bundle not in self._values:
            what = f"reading results of {self._engine.name!r} from Ray's store"
            self._values[bundle] = opened(self._engine.link.call(ray.get, self.refs[bundle], what=what))
        made: Array = self._values[bundle][place]
        return made

    def finish(self, fetch: bool) -> None:
        """Run all tasks, until all that they were to make is there; with `fetch`, what is fetched comes here."""
        count, own = len(self._plan.tasks), self._engine.settings.progress
        self._work = progress.begin("running", self._engine.name, count, "tasks", self._at, own)
        if self._work is not progress.NOT_SHOWN:
            self._shares = Shares(self._plan)
        try:
            self._obey(self._state.start(time.monotonic()))
            while not self._state.finished or not self._complete(fetch):
                self._look()
        except BaseException as e:
            if not isinstance(e, GivenLost):  # then the run begins again, and shall find its workers alive
                self._end()
            self.refs.clear()
            if isinstance(e, GivenUp):
                raise self._failure(e.task, str(e)) from None
            raise
        finally:
            progress.end(self._work)
        self.report.seconds = time.time() - self.report.began
        self.report.recomputed = dict(self._state.recomputed)
        self._engine.link.faults.add(self.report)
        if self.report.recomputed:
            log.warning("distgrad: ran again after failures: %s", "; ".join(self.report.reasons))

    def _failure(self, k: int, what: str) -> TaskFailed:
        text = f"{task_text(self._plan, k)}: {what}. Variables are as they were."
        if k not in self._full:
            return TaskFailed(text)
        makes = bytes_text(sum([self._plan.bundles[b].nbytes for b in self._engine.made[k]]))
        return StoreFull(
            f"{text}\nIt makes {makes} for others, and Ray's object store ({objects.store_text(self._engine.link)}) "
            f"had no room for that, nor had the disk that it spills to. {objects.REMEDY}"
        )

    def _at(self) -> str:
        """Where the run is, in a few words: the tasks that were submitted first and have not ended."""
        tasks, steps = self._plan.tasks, self._plan.program.steps
        first = [steps[tasks[k].steps[-1]] for k in list(self._token_of)[:2]]
        return "; ".join([at_text(step) for step in first])

    # -- commands ------------------------------------------------------------------------------------------------

    def _obey(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, Submit):
                self._submit(command.task)
            elif isinstance(command, Drop):
                self.refs.pop(command.bundle, None)
            elif isinstance(command, Cancel):
                token = self._token_of.pop(command.task)
                del self._tokens[token]
                self._cancel([token])
                self._engine.link.spares.replace()

    def _submit(self, k: int) -> None:
        remote, holder, key, stays, packs = self._engine.calls[k]
        objects, picks, inline = self._objects(k)
        names = [*[x.hex() for x in objects], None] if stays else ()
        objects += [self._token_of[j] for j in self._plan.tasks[k].waits if j in self._token_of]
        order = order_of(key, picks, packs, names, inline, self._timed)
        try:
            made = self._engine.link.submitted(remote.remote, holder, order, *objects)
        except FULL as e:  # what is large Ray puts into the store
            raise no_room(f"what is sent to {task_text(self._plan, k)},", len(order), e) from e
        *bundles, token = made if isinstance(made, list) else [made]
        self.refs.update(zip(self._engine.made[k], bundles, strict=True))
        self._tokens[token] = k
        self._token_of[k] = token

    def _objects(self, k: int) -> tuple[list[Any], list[tuple[int, int]], list[Array]]:
        """The objects that a task reads, each once, where in them its values lie, and what travels with the call (its
        place is -1)."""
        objects: list[Any] = []
        places: dict[Any, int] = {}
        picks = []
        inline: list[Array] = []
        for bundle, at in self._engine.sources[k]:
            if bundle >= 0:
                key, ref = bundle, self.refs[bundle]
            else:
                x = self._given[at]
                if not isinstance(x, Value):
                    picks.append((-1, len(inline)))
                    inline.append(x)
                    continue
                key, ref, at = id(x.stored), x.stored.ref, x.place
            if key not in places:
                places[key] = len(objects)
                objects.append(ref)
            picks.append((places[key], at))
        return objects, picks, inline

    def _end(self) -> None:
        """End what this run still has with Ray. Readers of a failed task fail by themselves: they get a moment to,
        because Ray (2.60) aborts this process when a task ends at the moment it is cancelled. Then cancel the rest, the
        last submitted first: they have not begun."""
        if not ray.is_initialized():  # a call of Ray would start another one
            return
        left, ends = list(self._tokens), time.monotonic() + LONGEST_GRACE
        try:
            while left and time.monotonic() < ends:
                ended, left = ray.wait(left, num_returns=len(left), timeout=GRACE, fetch_local=False)
                if not ended:
                    break
        except Exception as e:  # Ray is gone
            log.debug("distgrad: ending a run: %s", e)
        self._cancel(left[::-1])

    def _cancel(self, tokens: Sequence[Any]) -> None:
        """End what runs: by force, because what waits in a system call hears nothing else."""
        for token in tokens:
            try:
                ray.cancel(token, force=True)
            except Exception as e:  # ended already, or Ray is gone
                log.debug("distgrad: cancelling a task: %s", e)

    # -- events --------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Wait for some tasks to end, and go on from there."""
        self._engine.link.check_open()
        waiting, self._waited = list(self._tokens), False
        some = len(waiting) if self._state.left == len(waiting) else max(len(waiting) // 2, 1)
        some = min(some, self._engine.batch)
        ready, _ = ray.wait(waiting, num_returns=some, timeout=self._poll_seconds(), fetch_local=False)
        if ready:
            self._quiet = time.monotonic()
        else:
            self._engine.link.monitor.check(self._quiet, self._doing())
        ended = sorted(ready, key=self._tokens.__getitem__)
        for token, result in zip(ended, _outcomes(ended), strict=True):
            if token in self._tokens:  # an event before it may have changed that
                self._event(token, result)
        self._hunt()
        if self._ends is not None and time.monotonic() > self._ends:
            self._give_up()

    def _hunt(self) -> None:
        """End what hangs, and have it run again; what waited for a worker has not been running all that time."""
        late = self._state.overdue(time.monotonic())
        if not late:
            return
        where, now = places({k: self._token_of[k] for k in late}), time.monotonic()
        if where is None:  # nobody knows when they began
            return
        for k, at in where.items():
            self._state.began(k, now - at.seconds)
        for k in self._state.overdue(now):
            self.report.reasons.append(f"task {k}: hung {where.get(k, 'somewhere')}")
        self._obey(self._state.tick(now))

    def _doing(self) -> str:
        return f"running {self._engine.name!r}, of which {self._state.left} tasks are left (first {self._at()})"

    def _give_up(self) -> NoReturn:
        self._engine.link.monitor.judge(self._doing())
        raise TimeoutError(timeout_text(self._plan, self._state, self._token_of, self._engine.settings.timeout))

    def _left(self) -> float | None:
        """Seconds until the run is given up."""
        return None if self._ends is None else max(self._ends - time.monotonic(), 0.001)

    def _poll_seconds(self) -> float:
        left = self._left()
        return POLL_INTERVAL if left is None else min(POLL_INTERVAL, left)

    def _event(self, token: Any, result: Token | Failure) -> None:
        k = self._tokens.pop(token)
        del self._token_of[k]
        now = time.monotonic()
        if isinstance(result, Token):
            self.report.tokens[k] = result
            if self._work is not progress.NOT_SHOWN:
                self._shares.ended(k, self._work)
            self._obey(self._state.done(k, now))
        elif isinstance(result, UserError):
            result.throw()
        elif isinstance(result, Refused):
            self._hush(k)
            self._exclude(k, result)
            self._obey(self._state.failed(k, "its worker would give other bits", now, collateral=True))
        elif isinstance(result, Collateral):
            lost = self._bundles_lost(k, result)
            if lost:  # told first: the task that reads it then knows what it waits for
                self._obey(self._state.lost(lost, now))
            self._obey(self._state.failed(k, result.reason, now, collateral=True))
        else:
            self._failed(k, result)

    def _failed(self, k: int, failure: Crashed | Full) -> None:
        self.report.reasons.append(f"task {k}: {failure.reason}")
        if isinstance(failure, Full):
            self._full.add(k)
            self._make_room(k)
        else:
            self._full.discard(k)
            self._engine.link.spares.replace()
            self._hush(k)
            if self._engine.link.look_again(self._ends):
                check_places([self._plan.tasks[k]], self._engine.link, self._ends)
        self._obey(self._state.failed(k, failure.reason, time.monotonic()))

    def _make_room(self, k: int) -> None:
        """Let go of what a task could store before the store was full, and give Ray the time to free that, and what
        else was let go."""
        for b in self._engine.made[k]:
            self.refs.pop(b, None)
        if not self._waited:
            left = self._left()
            time.sleep(STORE_FREE_SECONDS if left is None else min(STORE_FREE_SECONDS, left))
            self._waited = True

    def _exclude(self, k: int, refused: Refused) -> None:
        """A node gets no task any more; FingerprintError where none is left that could run this one."""
        link = self._engine.link
        link.exclude(refused.node, link.bits.differences(refused.fingerprint))
        self.report.reasons.append(f"task {k}: node {refused.node[:8]} would give other bits")
        check_places([self._plan.tasks[k]], link, self._ends)

    def _hush(self, k: int) -> None:
        """Look at the objects of a task that died: Ray prints errors that nobody looked at; these are dealt with."""
        for b in self._engine.made[k]:
            with suppress(exceptions.RayError):
                ray.get(self.refs.get(b, []), timeout=POLL_INTERVAL)  # it may come a moment after that of the token

    def _bundles_lost(self, k: int, failure: Collateral) -> list[int]:
        """The bundles behind a lost object; GivenLost where it is one that the run was given. Where it is the body of
        the task, that is shipped again."""
        if failure.lost is None:
            return []
        if failure.lost in self._engine.shipped_as(k):
            self.report.reasons.append(f"task {k}: its body was lost, and is shipped again")
            self._engine.ship_again(k)
            return []
        given = [x.stored for x in self._given.values() if isinstance(x, Value)]
        gone = [stored for stored in dict.fromkeys(given) if stored.ref.hex() == failure.lost]
        if gone:
            raise GivenLost(gone)
        found = [b for b, ref in self.refs.items() if ref.hex() == failure.lost]
        self.report.reasons.append(f"lost the object of bundle {found}" if found else failure.reason)
        return found

    def _complete(self, fetch: bool) -> bool:
        """Whether all that the run leaves behind can be read; what of it was lost is made again."""
        try:
            gone = (self._fetch() if fetch else {}) or self._missing()
        except (exceptions.GetTimeoutError, TimeoutError):
            self._give_up()
        for b, error in gone.items():
            if not isinstance(error, LOST):
                k = self._plan.bundles[b].task
                raise self._failure(k, f"what it made cannot be read: {type(error).__name__}: {error}")
        if gone:
            self.report.reasons.append(f"lost the object of bundle {list(gone)}")
            self._obey(self._state.lost(gone, time.monotonic()))
        return not gone

    def _fetch(self) -> dict[int, Any]:
        """Have all that is fetched come here; what cannot, with what Ray says of it."""
        refs = {b: self.refs[b] for b in self._engine.wanted if self._plan.bundles[b].fetched}
        try:
            found = self._asked(refs, partial(ray.get, timeout=self._left()), list(refs.values()))
            self._values = dict(zip(refs, map(opened, found), strict=True))
            return {}
        except exceptions.GetTimeoutError:
            raise
        except exceptions.RayError:
            return self._unreadable(refs) or self._fetch()

    def _missing(self) -> dict[int, Any]:
        """Of what is to be kept and is not here, what cannot be read, with what Ray says of it."""
        refs = {b: self.refs[b] for b in self._engine.in_stores if b not in self._values}
        if not refs:
            return {}
        made_on = {b: self.report.tokens[self._plan.bundles[b].task].node for b in refs}
        gone, doubtful = objects.missing(refs, made_on, self._engine.link.home)
        return gone | (self._unreadable({b: refs[b] for b in doubtful}) if doubtful else {})

    def _unreadable(self, refs: Mapping[int, Any]) -> dict[int, Any]:
        found: dict[int, Any] = self._asked(refs, objects.unreadable, refs, self._left())
        return found

    def _asked(self, bundles: Iterable[int], call: Callable[..., Any], *args: Any) -> Any:
        """A call that has the objects of bundles come here. Small ones came with Ray's own messages, so nobody is asked
        for them, and the call cannot wait for anybody."""
        if all(self._plan.bundles[b].nbytes <= SMALL for b in bundles):
            return call(*args)
        what = f"reading results of {self._engine.name!r} from Ray's store"
        return self._engine.link.monitor.answered(call, *args, what=what, timeout=self._left())


def _outcomes(tokens: Sequence[Any]) -> list[Token | Failure]:
    try:
        return [read(raw) for raw in ray.get(list(tokens))]
    except Exception:
        return [_outcome(token) for token in tokens]


def _outcome(token: Any) -> Token | Failure:
    try:
        return read(ray.get(token))
    except exceptions.RayError as e:
        return classify(e, token.task_id().hex())
