"""Deeply nested tracing: functions in functions, gradients of gradients, without overflowing Python's stack.

Tracing runs the user's Python functions, which call each other, so the recursion cannot be turned into a loop. When the
stack of a thread reaches a fraction of Python's recursion limit, the next level continues in a new thread with a fresh
stack, and this one waits for it. Knows graphs only to pass on which one is being built.
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

#: Maximum number of threads that wait for each other: about 8,000 nested functions. Only infinite recursion needs more.
MAX_STACKS = 100

_stacks: ContextVar[int] = ContextVar("distgrad_stacks", default=0)


def nested(f: Callable[P, T]) -> Callable[P, T]:
    """Decorator for functions that recurse through user functions or gradient rules, to any depth."""

    @functools.wraps(f)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            sys._getframe(sys.getrecursionlimit() * 2 // 5)
        except ValueError:  # the stack is not that deep
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
        except BaseException as e:  # also KeyboardInterrupt: raised again in the waiting thread
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
    """Wait for a thread. An exception that interrupts the wait is raised in the thread too, and returned. Not
    `Thread.join`, which marks the thread as ended if interrupted. Polls, for signals that another thread received."""
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
        f"Is one of them infinitely recursive? To repeat a computation, use a loop, or call a function in a loop."
    )
