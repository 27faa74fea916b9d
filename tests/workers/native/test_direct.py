"""Builtins: they take arrays as they are, count references, and give up the GIL for long work alone."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.scheduler.program import lower
from distgrad.workers import native

if native.unusable():
    pytest.skip(f"native code: {native.unusable()}", allow_module_level=True)

from distgrad.workers.native import direct
from distgrad.workers.native.small import SmallStep, small_step

Array = np.ndarray[Any, np.dtype[Any]]


def product(length: int) -> SmallStep:
    with dg.Graph():
        x, y = (dg.placeholder((length,), np.float32) for _ in range(2))
        program = lower([x * y], [x, y])
    made = small_step(program.steps[-1], program.types)
    assert made is not None
    return made


def squares(count: int, length: int) -> Array:
    """A table whose only argument is squared `count` times."""
    step = product(length)
    kernels = [(step.code.address, length)] * count
    return direct.walk_table(kernels, [3] * count, np.zeros(3 * count, np.uint64), [range(3 * count)])


def test_a_step_returns_the_array_that_it_fills() -> None:
    x, out = np.arange(5, dtype=np.float32), np.empty(5, np.float32)
    assert product(5)(x, x, out) is out
    assert out.tolist() == [0, 1, 4, 9, 16]


def test_a_walk_computes_row_after_row() -> None:
    x = np.array([2, 3], np.float32)
    table = squares(3, 2)
    assert direct.builtins().walk(table, x) is table
    assert x.tolist() == [2**8, 3**8]


def test_arrays_in_the_table_stay_and_arguments_move() -> None:
    step = product(2)
    x, made = np.array([2, 3], np.float32), [np.zeros(2, np.float32) for _ in range(2)]
    arrays = np.array([direct.address(x), direct.address(x), 0], np.uint64)
    table = direct.walk_table([(step.code.address, 2)], [3], arrays, [[2]])
    for out in made:
        direct.builtins().walk(table, out)
    assert [out.tolist() for out in made] == [[4, 9]] * 2


def test_views_and_subclasses_are_read_where_their_data_is() -> None:
    class Named(np.ndarray):  # type: ignore[type-arg]
        pass

    whole = np.arange(8, dtype=np.float32)
    out = np.empty(2, np.float32)
    product(2)(whole[2:4].view(Named), whole[4:6], out)
    assert out.tolist() == [8, 15]


def test_references_are_counted() -> None:
    step, table = product(2), squares(1, 2)
    x, out = np.ones(2, np.float32), np.empty(2, np.float32)
    before = [sys.getrefcount(each) for each in (x, out, table)]
    for _ in range(100):
        step(x, x, out)
        direct.builtins().walk(table, x)
    assert [sys.getrefcount(each) for each in (x, out, table)] == before


def test_threads_share_a_step() -> None:
    """A step has no state: each call has its own addresses, with and without the GIL."""
    for length in (7, direct.MANY_ELEMENTS + 3):
        step = product(length)

        def checked(k: int, step: SmallStep = step, length: int = length) -> bool:
            x, out = np.full(length, k, np.float32), np.empty(length, np.float32)
            return all((step(x, x, out) == k * k).all() for _ in range(20))

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(checked, range(16)))


def test_others_run_during_a_long_walk() -> None:
    begin, ran = threading.Event(), []

    def other() -> None:
        begin.wait()
        ran.append(True)

    table, x = squares(100, direct.MANY_ELEMENTS), np.ones(direct.MANY_ELEMENTS, np.float32)
    thread = threading.Thread(target=other)
    thread.start()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)  # nobody is asked to give up the GIL
    try:
        begin.set()
        for _ in range(100):
            direct.builtins().walk(table, x)
            if ran:
                break
        seen = bool(ran)
    finally:
        sys.setswitchinterval(before)
        thread.join()
    assert seen
