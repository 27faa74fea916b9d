"""The current session: which session runs what."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import numpy as np

import distgrad as dg
from distgrad import runtime


def in_thread(f: Any) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(f()))
    thread.start()
    thread.join()
    return results[0]


def test_an_open_session_is_the_threads_own() -> None:
    default = runtime.current()
    with dg.Session() as session:
        assert runtime.current() is session
        assert in_thread(runtime.current) is default
        assert in_thread(lambda: dg.exp(np.zeros(1))) == 1


def test_a_session_of_another_thread_redirects_nobody() -> None:
    default, opened, done = runtime.current(), threading.Event(), threading.Event()

    def work() -> None:
        with dg.Session():
            opened.set()
            done.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    assert opened.wait(60)
    assert runtime.current() is default
    done.set()
    thread.join()


def test_a_copied_context_keeps_the_session() -> None:
    with dg.Session() as session:
        context = contextvars.copy_context()
    assert context.run(runtime.current) is session
    assert runtime.current() is not session


def test_sessions_close_in_any_order_and_the_default_stays() -> None:
    default, a, b = runtime.current(), dg.Session(), dg.Session()
    for session in (a, b, a):
        runtime.push(session)
    runtime.remove(a)
    assert runtime.current() is b
    runtime.remove(a)
    runtime.remove(b)
    for session in (a, default):
        runtime.remove(session)
    assert runtime.current() is default
