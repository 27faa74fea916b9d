"""Functions traced inside of functions, gradients built inside of gradients: however deep, Python's stack does not end.

Tracing runs the user's Python functions, which call each other, so levels cannot be made a loop. When the stack of a
thread is filled to a part of Python's limit, the next level goes on in a new thread, which has a stack of its own, and
this one waits for it. Knows graphs as far as it must hand over which one is being built.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any, ParamSpec, TypeVar

from distgrad.graph import FuncGraph, _context

P = ParamSpec("P")
T = TypeVar("T")

#: So many threads may wait for each other. About 8,000 functions inside one another: a program has fewer, unless one
#: calls itself without end.
MAX_STACKS = 100

_stacks: ContextVar[int] = ContextVar("distgrad_stacks", default=0)


def nested(f: Callable[P, T]) -> Callable[P, T]:
    """Decorator for what may call itself, through functions of the user's or gradient rules, as deep as they nest."""

    @functools.wraps(f)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            sys._getframe(sys.getrecursionlimit() * 2 // 5)
        except ValueError:  # the stack is not as deep
            return f(*args, **kwargs)
        return _in_new_thread(functools.partial(f, *args, **kwargs))

    return call


def _in_new_thread(f: Callable[[], T]) -> T:
    if _stacks.get() >= MAX_STACKS:
        raise RuntimeError(_too_deep())
    outcome: list[Any] = []
    done = threading.Event()
    graphs = _context.stack, _context.graph

    def work() -> None:
        _context.stack, _context.graph = graphs
        _stacks.set(_stacks.get() + 1)
        try:
            outcome.append((f(), None))
        except BaseException as e:  # also what is no Exception: it goes on where the thread is waited for
            outcome.append((None, e))
        finally:
            done.set()

    thread = threading.Thread(target=copy_context().run, args=(work,), name="distgrad-nesting", daemon=True)
    thread.start()
    interrupted = _wait(thread, done)
    value: Any
    value, error = outcome.pop() if outcome else (None, interrupted)
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


def _wait(thread: threading.Thread, done: threading.Event) -> BaseException | None:
    """Wait for a thread; what interrupts the waiting interrupts the thread, and is given back. Not by `Thread.join`,
    which takes a thread for ended when it is interrupted. Wakes now and then, for signals that another thread got."""
    interrupted = None
    while True:
        try:
            while not done.wait(0.5):
                pass
            return interrupted
        except BaseException as e:
            interrupted = e
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(type(e)))


def _too_deep() -> str:
    names = [graph.name for graph in _context.stack if isinstance(graph, FuncGraph)]
    last = " in ".join(repr(name) for name in reversed(names[-3:])) or "a gradient"
    return (
        f"functions are nested too deeply: {len(names):,} are being traced inside one another, the last ones {last}. "
        f"Does one of them call itself without end? What repeats is a loop, or a function that is called in one."
    )
