"""Scenes of full stores and full disks."""

from __future__ import annotations

import gc
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import distgrad as dg

from .stage import SLACK, Ledger, Stage, open_session, pids, scene, send, session, until, workers

#: A store of 80 MiB whose spill disk has room for two arrays of 8 MiB.
SPILL: dict[str, Any] = {"disks": {"spill": 20 << 20}, "env": {"RAY_object_spilling_directory": "{folder}/spill"}}
#: An array of 8 MiB; more of them than store and disk can hold.
LARGE, MANY = 1 << 20, 24
TIMEOUT = 45.0
WITHIN = TIMEOUT + SLACK


@scene(**SPILL, limit=240)
def full_store_while_assigning(stage: Stage) -> None:
    """All of many variables are assigned in one call, or none; whichever it is, all can be read."""
    variables = [dg.Variable(np.zeros(LARGE)) for _ in range(MANY)]

    @dg.function
    def assign(x: dg.Tensor) -> None:
        for i, v in enumerate(variables):
            v.assign(x + float(i + 1))

    with session(timeout=TIMEOUT):
        found = stage.call("assign", lambda: assign(np.zeros(LARGE)), WITHIN)
        right = [0.0 if found.failed else i + 1.0 for i in range(MANY)]
        for v, x in zip(variables, right, strict=True):
            stage.result(f"read {v.name}", lambda v=v: _only(v.numpy()), WITHIN, x)
        small = dg.Variable(0.0)
        stage.call("a small step", lambda: dg.function(lambda: small.assign_add(1.0))(), WITHIN)


@scene(**SPILL, limit=240)
def full_store_of_handles(stage: Stage) -> None:
    """Handles are kept until nothing more fits: those that were given before can be read."""
    with session(timeout=TIMEOUT) as s:
        handles: list[Any] = []
        for i in range(MANY):
            found = stage.call(f"submit {i}", lambda i=i: s.submit(_plus, np.zeros(LARGE), float(i)), WITHIN)
            if found.failed:
                break
            handles.append(found.value)
        for i, handle in enumerate(handles):
            stage.result(f"read {i}", lambda handle=handle: _only(handle.value()), WITHIN, float(i))
        del found, handle
        handles.clear()
        gc.collect()
        stage.result("after letting go", lambda: _after(s), WITHIN, 5.0)


@dg.function
def _plus(x: dg.Tensor, i: dg.Tensor) -> dg.Tensor:
    return x + i


def _after(s: dg.Session) -> float:
    """Ray lets go of objects a little later: the first try may come too early."""
    return _only(s.submit(_plus, np.zeros(LARGE), 5.0).value())


def _only(x: Any) -> float:
    return float(x[0]) if (x == x[0]).all() else float("nan")


@scene(**SPILL, limit=200)
def full_store_while_fetching(stage: Stage) -> None:
    """A call gives back more than the store can hold."""

    @dg.function
    def many(x: dg.Tensor) -> list[dg.Tensor]:
        return [x + float(i) for i in range(MANY)]

    ledger = Ledger()
    with session(timeout=TIMEOUT):
        ledger.step()
        stage.call("fetch", lambda: [_only(x) for x in many(np.zeros(LARGE))], WITHIN, [float(i) for i in range(MANY)])
        ledger.is_right(stage, WITHIN)
        stage.result("step", ledger.step, WITHIN, 2)


@scene(**SPILL, limit=200)
def full_store_while_feeding(stage: Stage) -> None:
    """A call is given more than the store can hold."""

    @dg.function
    def total(*xs: dg.Tensor) -> list[dg.Tensor]:
        return [dg.sum(x) for x in xs]

    ledger = Ledger()
    with session(timeout=TIMEOUT):
        ledger.step()
        fed = [np.full(LARGE, float(i)) for i in range(MANY)]
        stage.call("feed", lambda: [float(x) for x in total(*fed)], WITHIN, [float(LARGE * i) for i in range(MANY)])
        ledger.is_right(stage, WITHIN)
        stage.result("step", ledger.step, WITHIN, 2)


@scene(**SPILL, limit=240)
def full_store_by_somebody_else(stage: Stage) -> None:
    """Another one's objects fill the store; once they are gone, all is well."""
    import ray

    ledger = Ledger()
    with session(timeout=TIMEOUT):
        ledger.step()
        kept = []
        try:
            for _ in range(40):
                kept.append(ray.put(np.ones(4 << 20, np.uint8)))
        except Exception as e:
            stage.say(f"filled with {len(kept)} objects: {type(e).__name__}")
        stage.call("step", ledger.step, WITHIN)
        ledger.is_right(stage, WITHIN)
        kept.clear()
        gc.collect()
        until(lambda: False, 2.0)
        stage.result("step", ledger.step, WITHIN, ledger.steps + 1)
        ledger.is_right(stage, WITHIN)


@scene(**SPILL, limit=240)
def full_store_and_a_variable_of_old(stage: Stage) -> None:
    """A large variable is written again and again: the old value must not go before the new one is there."""
    v = dg.Variable(np.zeros(4 * LARGE))
    grow = dg.function(lambda: v.assign_add(1.0))
    done = 0
    with session(timeout=TIMEOUT):
        for _ in range(5):
            done += not stage.call("grow", grow, WITHIN).failed
            stage.result("read", lambda: _only(v.numpy()), WITHIN, float(done))


# -- disks -------------------------------------------------------------------------------------------------------


@scene(disks={"saved": 12 << 20})
def checkpoint_on_a_full_disk(stage: Stage) -> None:
    """The second checkpoint does not fit beside the first: an error that names the place, and the first is whole."""
    _saved(stage, keep=3)


@scene(disks={"saved": 12 << 20})
def checkpoint_on_a_full_disk_keeping_one(stage: Stage) -> None:
    _saved(stage, keep=1)


def _saved(stage: Stage, keep: int) -> None:
    folder = stage.folder / "saved" / "c"
    v, checkpoints = dg.Variable(np.zeros(LARGE), name="v"), dg.Checkpoints(folder, keep=keep)
    grow = dg.function(lambda: v.assign_add(1.0))
    with session():
        grow()
        stage.result("save", lambda: checkpoints.save(0, [v]), 30)
        grow()
        error = stage.error("save on a full disk", lambda: checkpoints.save(1, [v]), 30)
        stage.check("the error names the place", str(folder) in f"{error}{getattr(error, 'filename', '')}")
        stage.result("read", lambda: _only(v.numpy()), 30, 2.0)
        stage.result("restore", lambda: checkpoints.restore([v]).step, 30, 0)  # type: ignore[union-attr]
        stage.result("read", lambda: _only(v.numpy()), 30, 1.0)


#: Ray's own folder on a disk of its own.
OWN_DISK: dict[str, Any] = {"disks": {"r": 48 << 20}, "env": {"RAY_TMPDIR": "{folder}/r"}}


@scene(**OWN_DISK)
def tmp_full_while_running(stage: Stage) -> None:
    """The disk of logs and sockets fills up after the start."""
    ledger = Ledger()
    with session():
        ledger.step()
        _fill(stage.folder / "r")
        for _ in range(3):
            stage.call("step", ledger.step, 35)
        ledger.is_right(stage, 35)
        send(signal.SIGKILL, workers())  # new ones have nowhere to write their logs
        stage.call("step with new workers", ledger.step, 35)
        ledger.is_right(stage, 35)
        _empty(stage.folder / "r")
        stage.result("step", ledger.step, 35)
        ledger.is_right(stage, 35)


@scene(**OWN_DISK)
def tmp_full_while_opening(stage: Stage) -> None:
    """No room for Ray's files: one clear error; with room, all is well."""
    _fill(stage.folder / "r")
    made = stage.call("open", lambda: open_session(timeout=20.0), 25)
    if made.value is not None:
        stage.call("close", made.value.close, 25)
    stage.check("nothing is left", until(lambda: not pids("raylet", "gcs_server", "ray::"), 15))
    _empty(stage.folder / "r")
    ledger = Ledger()
    with session():
        stage.result("step", ledger.step, 35, 1)


@scene(disks={"/dev/shm": 24 << 20})
def shared_memory_too_small_for_the_store(stage: Stage) -> None:
    ledger = Ledger()
    made = stage.call("open", lambda: open_session(timeout=20.0), 25)
    if made.value is not None:
        with made.value:
            stage.call("step", ledger.step, 25)
            ledger.is_right(stage, 25)


def _fill(folder: Path) -> None:
    with (folder / "ballast").open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)


def _empty(folder: Path) -> None:
    (folder / "ballast").unlink()
