"""Which processes may run a body, and their settings: the worker's side, in this process and without a cluster."""

from __future__ import annotations

import contextlib
import ctypes
import sysconfig
from collections.abc import Iterator

import numpy as np
import pytest

import distgrad as dg
from distgrad.scheduler.bodies import bodies
from distgrad.workers.fingerprint import fingerprint
from distgrad.workers.on_ray import agreement, task
from distgrad.workers.on_ray.failures import Differs

ANY = agreement.Agreement({}, None, True, {})


@contextlib.contextmanager
def flushing() -> Iterator[None]:
    libm, env = ctypes.CDLL("libm.so.6"), (ctypes.c_uint32 * 8)()
    libm.fegetenv(env)
    kept = env[7]
    env[7] |= 0x8040
    libm.fesetenv(env)
    try:
        yield
    finally:
        env[7] = kept
        libm.fesetenv(env)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the bodies that were loaded, of those that `shipped` gives; all is as before in the end."""
    names: list[str] = []

    def received(holder: list[bytes], name: str) -> bytes:
        names.append(name)
        return holder[0]

    monkeypatch.setattr(task, "received", received)
    yield names
    task._settle().close()
    task._settle.cache_clear()
    task._notice()
    task._compiled.clear()


def shipped(agreed: agreement.Agreement) -> list[bytes]:
    (body,), _ = bodies(dg.function(lambda x: dg.exp(x)).plan(np.ones(3)))
    return [task.serialized_body(body, "numpy", False, agreed)]


def test_where_any_bits_will_do_blas_has_one_thread_and_numpy_is_quiet_too(loaded: list[str]) -> None:
    with np.errstate(all="warn"):
        task._found(shipped(ANY), "a")
        assert np.geterr()["over"] == "ignore"
    assert task._settle.cache_info().currsize == 1


@pytest.mark.skipif(not sysconfig.get_platform().endswith("x86_64"), reason="the register is x86's")
def test_a_process_that_came_to_flush_denormals_refuses_every_time(
    loaded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Here:
        def get_node_id(self) -> str:
            return "node"

        get_task_id = get_node_id

    monkeypatch.setattr(agreement.ray, "get_runtime_context", Here)
    holder = shipped(agreement.Agreement({}, fingerprint(), True, {}))
    task._found(holder, "a")
    with flushing():
        for _ in range(3):
            with pytest.raises(Differs):
                task._found(holder, "a")
    task._found(holder, "a")


@pytest.mark.skipif(not sysconfig.get_platform().endswith("x86_64"), reason="the register is x86's")
def test_where_any_bits_will_do_it_compiles_once_more_and_no_more(loaded: list[str]) -> None:
    holder = shipped(ANY)
    task._found(holder, "a")
    with flushing():
        for _ in range(3):
            task._found(holder, "a")
    assert loaded == ["a", "a"]
