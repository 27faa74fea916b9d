"""One run of a plan on Ray: a thin loop that reports events to the run's state and carries out its commands."""

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
from distgrad.workers.on_ray.objects import FULL, IN_REPLY_BYTES, LOST, no_room
from distgrad.workers.on_ray.packing import opened
from distgrad.workers.on_ray.placing import check_places
from distgrad.workers.on_ray.task import order_of, read
from distgrad.workers.on_ray.values import Stored, Value

if TYPE_CHECKING:
    from distgrad.workers.on_ray.engine import RayEngine

Array = np.ndarray[Any, np.dtype[Any]]

log = logging.getLogger("distgrad")

#: Seconds in which tasks of a failed run may end by themselves: since the last one ended, and in total.
GRACE, LONGEST_GRACE = 0.1, 1.0
#: Seconds between two checks for failed and hung tasks while nothing else happens.
POLL_INTERVAL = 0.2
#: Seconds without an event after which a run looks for nodes that have died, and between two such looks.
DEAD_NODE_INTERVAL = 5.0
#: Seconds that Ray takes to free the store of released objects.
STORE_FREE_SECONDS = 1.2


class GivenLost(Exception):
    """Inputs of the run were lost from the object store."""

    def __init__(self, stored: Sequence[Stored]):
        super().__init__(f"{len(stored)} input objects of the run were lost")
        self._stored = stored

    def remake(self, ends: float | None) -> None:
        for stored in self._stored:
            remake(stored, ends)


class Run:
    """The objects and tasks of one run on Ray. `refs` are the objects by bundle; `ends` is the deadline."""

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
        self._fetches = False
        self._ends = ends
        #: Tasks whose last attempt found the store full; whether this poll has already waited for space.
        self._full: set[int] = set()
        self._waited = False
        self._quiet = time.monotonic()  # when something last arrived
        self._looked = self._quiet  # when it last looked for dead nodes
        self._left_nodes: set[str] = set()
        self._timed = settings.record is not None

    def value(self, bundle: int, place: int) -> Array:
        if bundle not in self._values:
            what = f"reading results of {self._engine.name!r} from Ray's store"
            self._values[bundle] = opened(self._engine.link.call(ray.get, self.refs[bundle], what=what))
        made: Array = self._values[bundle][place]
        return made

    def finish(self, fetch: bool) -> None:
        """Run all tasks until their results exist; with `fetch`, copy the fetched values to this process."""
        self._fetches = fetch
        count, own = len(self._plan.tasks), self._engine.settings.progress
        self._work = progress.begin("running", self._engine.name, count, "tasks", self._at, own)
        if self._work is not progress.NOT_SHOWN:
            self._shares = Shares(self._plan)
        try:
            self._obey(self._state.start(time.monotonic()))
            while not self._state.finished or not self._complete():
                self._wait()
        except BaseException as e:
            if not isinstance(e, GivenLost):  # then the run restarts, on the same workers
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
            log.warning("distgrad: tasks were retried after failures: %s", "; ".join(self.report.reasons))

    def _failure(self, k: int, what: str) -> TaskFailed:
        text = f"{task_text(self._plan, k)}: {what}. Variables are unchanged."
        if k not in self._full:
            return TaskFailed(text)
        makes = bytes_text(sum([self._plan.bundles[b].nbytes for b in self._engine.made[k]]))
        return StoreFull(
            f"{text}\nIts results take {makes}. Ray's object store ({objects.store_text(self._engine.link)}) and the "
            f"disk that it spills to have no room for them. {objects.REMEDY}"
        )

    def _at(self) -> str:
        """Where the run is, in a few words: the oldest tasks in flight."""
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

    def _submit(self, k: int) -> None:
        remote, holder, key, stays, packs = self._engine.calls[k]
        objects, picks, inline = self._objects(k)
        names = [*[x.hex() for x in objects], None] if stays else ()
        objects += [self._token_of[j] for j in self._plan.tasks[k].waits if j in self._token_of]
        order = order_of(key, picks, packs, names, inline, self._timed)
        try:
            made = self._engine.link.submitted(remote.remote, holder, order, *objects)
        except FULL as e:  # Ray puts large arguments into the store
            raise no_room(f"the arguments of {task_text(self._plan, k)},", len(order), e) from e
        *bundles, token = made if isinstance(made, list) else [made]
        self.refs.update(zip(self._engine.made[k], bundles, strict=True))
        self._tokens[token] = k
        self._token_of[k] = token

    def _objects(self, k: int) -> tuple[list[Any], list[tuple[int, int]], list[Array]]:
        """The objects that a task reads, each once; the (object, position) of each value; and the inline values, whose
        object is -1."""
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
        """End the tasks that are still in flight. Readers of a failed task fail by themselves; they get a moment to do
        so, because Ray (2.60) aborts this process if a task ends while it is being cancelled. Then cancel the rest, the
        last submitted first, as those have not begun."""
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
        """Kill running tasks: one that blocks in a system call ignores anything else."""
        for token in tokens:
            try:
                ray.cancel(token, force=True)
            except Exception as e:  # ended already, or Ray is gone
                log.debug("distgrad: cancelling a task: %s", e)

    # -- events --------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait for some tasks to end, and handle them."""
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
        for token, result in zip(ended, self._outcomes(ended), strict=True):
            if token in self._tokens:  # an event before it may have changed that
                self._event(token, result)
        self._retry_hung()
        self._leave_dead_nodes()
        if self._ends is not None and time.monotonic() > self._ends:
            self._give_up()

    def _outcomes(self, tokens: Sequence[Any]) -> list[Token | Failure]:
        """The results of tasks that ended. The same call of Ray reads fetched values that came with their replies."""
        count, of = len(tokens), self._engine.in_reply
        bundles = [b for token in tokens for b in of[self._tokens[token]]] if self._fetches else []
        try:
            raw = ray.get([*tokens, *[self.refs[b] for b in bundles]])
        except Exception:
            return [_outcome(token) for token in tokens]
        self._values.update(zip(bundles, map(opened, raw[count:]), strict=True))
        return [read(each) for each in raw[:count]]

    def _retry_hung(self) -> None:
        """Kill and retry hung tasks. Time spent waiting for a worker does not count."""
        late = self._state.overdue(time.monotonic())
        if not late:
            return
        where, now = places({k: self._token_of[k] for k in late}), time.monotonic()
        if where is None:  # it is unknown when they began
            return
        for k, at in where.items():
            self._state.began(k, now - at.seconds)
        for k in self._state.overdue(now):
            self.report.reasons.append(f"task {k}: hung {where.get(k, 'somewhere')}")
        self._obey(self._state.tick(now))

    def _leave_dead_nodes(self) -> None:
        """Resubmit tasks that wait for a dead node, once for each node. If its raylet is stopped, or its machine hangs,
        Ray (2.60) still waits for the answer to what it asked before the node was declared dead."""
        now = time.monotonic()
        if now - max(self._quiet, self._looked) < DEAD_NODE_INTERVAL:
            return
        self._looked, dead = now, self._engine.link.died() - self._left_nodes
        where = places(self._token_of) if dead else None
        if where is None:
            return
        self._left_nodes |= dead
        alive = {k for k, at in where.items() if at.node and at.node not in dead}
        stranded = sorted(set(self._token_of) - alive)
        self.report.reasons += [f"task {k}: waited for a node that has died" for k in stranded]
        self._obey(self._state.stranded(stranded, "its node died", time.monotonic()))

    def _doing(self) -> str:
        return f"running {self._engine.name!r}, {self._state.left} tasks left (first {self._at()})"

    def _give_up(self) -> NoReturn:
        self._engine.link.monitor.judge(self._doing())
        raise TimeoutError(timeout_text(self._plan, self._state, self._token_of, self._engine.settings.timeout))

    def _left(self) -> float | None:
        """Seconds until the deadline."""
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
            self._obey(self._state.failed(k, "its worker would compute different bits", now, collateral=True))
        elif isinstance(result, Collateral):
            lost = self._bundles_lost(k, result)
            if lost:  # first, so that the task that reads it knows what it waits for
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
            self._hush(k)
            if self._engine.link.exclude_unfit_nodes(self._ends):
                check_places([self._plan.tasks[k]], self._engine.link, self._ends)
        self._obey(self._state.failed(k, failure.reason, time.monotonic()))

    def _make_room(self, k: int) -> None:
        """Release what a task stored before the store was full, and give Ray time to free released objects."""
        for b in self._engine.made[k]:
            self.refs.pop(b, None)
        if not self._waited:
            left = self._left()
            time.sleep(STORE_FREE_SECONDS if left is None else min(STORE_FREE_SECONDS, left))
            self._waited = True

    def _exclude(self, k: int, refused: Refused) -> None:
        """Send no more tasks to a node; FingerprintError if no remaining node could run this one."""
        link = self._engine.link
        link.exclude(refused.node, link.bits.differences(refused.fingerprint))
        self.report.reasons.append(f"task {k}: node {refused.node[:8]} would compute different bits")
        check_places([self._plan.tasks[k]], link, self._ends)

    def _hush(self, k: int) -> None:
        """Fetch the errors of a dead task's objects: Ray logs errors that are never fetched, and these are handled."""
        for b in self._engine.made[k]:
            with suppress(exceptions.RayError):
                ray.get(self.refs.get(b, []), timeout=POLL_INTERVAL)  # it may come a moment after that of the token

    def _bundles_lost(self, k: int, failure: Collateral) -> list[int]:
        """The bundles of a lost object. Raises GivenLost if it is an input of the run; a lost body is shipped again."""
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

    def _complete(self) -> bool:
        """Whether all results of the run can be read; lost ones are recomputed."""
        try:
            gone = (self._fetch() if self._fetches else {}) or self._missing()
        except (exceptions.GetTimeoutError, TimeoutError):
            self._give_up()
        for b, error in gone.items():
            if not isinstance(error, LOST):
                k = self._plan.bundles[b].task
                raise self._failure(k, f"its results cannot be read: {type(error).__name__}: {error}")
        if gone:
            self.report.reasons.append(f"lost the object of bundle {list(gone)}")
            self._obey(self._state.lost(gone, time.monotonic()))
        return not gone

    def _fetch(self) -> dict[int, Any]:
        """Copy the fetched values to this process; return the bundles that cannot be read, with Ray's errors."""
        bundles = self._plan.bundles
        refs = {b: self.refs[b] for b in self._engine.wanted if bundles[b].fetched and b not in self._values}
        if not refs:
            return {}
        try:
            found = self._asked(refs, partial(ray.get, timeout=self._left()), list(refs.values()))
            self._values.update(zip(refs, map(opened, found), strict=True))
            return {}
        except exceptions.GetTimeoutError:
            raise
        except exceptions.RayError:
            return self._unreadable(refs) or self._fetch()

    def _missing(self) -> dict[int, Any]:
        """The results that stay in the store and cannot be read, with Ray's errors."""
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
        """The result of a call that fetches the objects of bundles. Small ones arrived with the replies of their tasks,
        so then the call cannot block."""
        if all(self._plan.bundles[b].nbytes <= IN_REPLY_BYTES for b in bundles):
            return call(*args)
        what = f"reading results of {self._engine.name!r} from Ray's store"
        return self._engine.link.monitor.answered(call, *args, what=what, timeout=self._left())


def _outcome(token: Any) -> Token | Failure:
    try:
        return read(ray.get(token))
    except exceptions.RayError as e:
        return classify(e, token.task_id().hex())
