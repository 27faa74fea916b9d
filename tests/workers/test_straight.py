"""Straight-line code: the calls of a tape, with the same results and the same errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.workers.calls import TapeCall, nothing
from distgrad.workers.numpy_engine import straight
from distgrad.workers.numpy_engine.straight import CHUNK, Straight, failed_at

from ..engines import optimized


def played(calls: list[TapeCall], slots: list[Any], static: tuple[int, ...] = ()) -> list[Any]:
    for chunk in Straight(calls, static).bound(slots):
        chunk(slots)
    return slots


def test_results_go_from_call_to_call() -> None:
    calls = [TapeCall(lambda x, y: x + y, (0, 1), 2, None), TapeCall(lambda x: 2 * x, (2,), 3, None)]
    assert played(calls, [1, 2, None, None]) == [1, 2, 3, 6]


def test_results_go_from_chunk_to_chunk() -> None:
    count = 2 * CHUNK + 3
    calls = [TapeCall(lambda x: x + 1, (i,), i + 1, None) for i in range(count)]
    assert played(calls, [0] + [None] * count)[-1] == count


def test_static_slots_are_those_of_the_arena_that_the_code_is_bound_to() -> None:
    code = Straight([TapeCall(np.add, (0, 1, 1), 1, None)], (0, 1))
    first, second = ([np.ones(2), np.zeros(2)] for _ in range(2))
    bound = code.bound(first)
    code.bound(second)[0](second)
    bound[0](first)
    bound[0](first)
    assert (first[1].tolist(), second[1].tolist()) == ([2, 2], [1, 1])


def test_an_array_that_is_let_go_is_in_no_slot() -> None:
    calls = [TapeCall(lambda: 5, (), 0, None), TapeCall(lambda x: x, (0,), 1, None), TapeCall(nothing, (), 0, None)]
    assert played(calls, [None, None]) == [None, 5]


def test_an_error_says_at_which_call_of_its_chunk_it_was() -> None:
    calls = [TapeCall(lambda: 1, (), 0, None), TapeCall(lambda x: x / 0, (0,), 1, None)]
    with pytest.raises(ZeroDivisionError) as caught:
        played(calls, [None, None])
    assert failed_at(caught.tb) == 1


@pytest.mark.parametrize("longest", [0, 4096])
def test_an_error_names_its_op_with_and_without_generated_code(longest: int, monkeypatch: Any) -> None:
    monkeypatch.setattr("distgrad.workers.numpy_engine.tape.LONGEST", longest)

    @dg.op("StraightFails", infer=lambda x: (x.shape, x.dtype), override=True)
    def fails(x: Any) -> Any:
        raise ArithmeticError("no")

    f = dg.function(lambda x: dg.exp(fails(dg.sin(x), name="culprit")))
    with pytest.raises(ArithmeticError, match="no") as caught:
        f(np.ones(3))
    assert any("op 'culprit' (type StraightFails" in note for note in caught.value.__notes__)


def test_generated_code_gives_the_bits_of_the_loop(monkeypatch: Any) -> None:
    def step(x: Any) -> Any:
        y = dg.sum(dg.tanh(x * x[0]) / (1 + x))
        return y, dg.gradients(y, x)[0]

    x = np.random.default_rng(0).standard_normal(20)
    found = dg.function(step)(x)
    monkeypatch.setattr("distgrad.workers.numpy_engine.tape.LONGEST", 0)
    for a, b in zip(found, dg.function(step)(x), strict=True):
        assert a.tobytes() == b.tobytes()


# -- sums of many small terms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int64"])
@pytest.mark.parametrize("shape", [(16,), (8, 8), (64, 1), (1, 32), (3,)])
def test_a_sum_of_many_small_terms_is_one_addition_after_another(shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(0)
    arrays = [(10 * rng.standard_normal(shape)).astype(dtype) for _ in range(21)]

    @dg.function
    def total(*xs: Any) -> Any:
        terms = [x * x for x in xs]
        return dg.add_n(terms), dg.add_n([*terms, terms[0]]), terms[3] - terms[4]

    found, more, difference = total(*arrays)
    expected = arrays[0] * arrays[0]
    for x in arrays[1:]:
        expected = expected + x * x
    assert found.tobytes() == expected.tobytes()
    assert more.tobytes() == (expected + arrays[0] * arrays[0]).tobytes()
    assert difference.tobytes() == (arrays[3] * arrays[3] - arrays[4] * arrays[4]).tobytes()


def test_small_terms_lie_in_one_table() -> None:
    from distgrad.workers.numpy_engine.tape import Tape
    from distgrad.workers.thread_pool import ThreadPool

    with dg.Graph():
        xs = [dg.placeholder((16,)) for _ in range(9)]
        program = optimized([dg.sin(dg.add_n([dg.exp(x) for x in xs]))], xs)
    tape = Tape(program.steps, program.types, program.feeds, program.fetches, ThreadPool(1))
    assert sum(call.run is np.add for call in tape.calls) == 0
    assert straight.LONGEST >= len(tape.calls) == 9 + 1 + 2  # exp, the sum, and sin into a new array
