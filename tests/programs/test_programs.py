"""Programs written for NumPy, with only the import changed: values are NumPy's, derivatives those of differences."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad import nest
from tests.programs import table

HERE = Path(__file__).parent
FILES = ("stencils", "matrices", "signals", "networks")


@functools.cache
def load(file: str, changed: bool) -> dict[str, table.Program]:
    """The programs of a file, as they are or with the import changed."""
    text = (HERE / f"{file}.py").read_text()
    assert text.count("import numpy as np\n") == 1
    if changed:
        text = text.replace("import numpy as np\n", "import distgrad.numpy as np\n")
    table.PROGRAMS.clear()
    exec(compile(text, file, "exec"), types.ModuleType(file).__dict__)
    return {program.name: program for program in table.PROGRAMS}


NAMES = [(file, name) for file in FILES for name in load(file, False)]


def floats(tree: Any) -> list[Any]:
    return [x for x in nest.flatten(tree) if getattr(x, "dtype", np.dtype(int)).kind in "fc"]


def outcome(program: table.Program, args: Any) -> Any:
    """What a program returns, and its arguments after the call."""
    return program.run(*args), args


def moving(args: Any) -> list[int]:
    return [i for i, x in enumerate(args) if isinstance(x, np.ndarray) and x.dtype.kind in "fc"]


def total(program: table.Program, args: Any) -> Any:
    return sum(
        (np.sum(np.real(x) * np.cos(1.0 + i)) + np.sum(np.imag(x) * np.sin(1.0 + i)))
        for i, x in enumerate(floats(outcome(program, args)))
    )


def copies(args: Any) -> list[Any]:
    return [x.copy() if isinstance(x, np.ndarray) else x for x in args]


def direction(args: Any) -> dict[int, Any]:
    rng = np.random.default_rng(5)
    return {i: rng.uniform(-1, 1, args[i].shape).astype(args[i].dtype) for i in moving(args)}


def moved(args: Any, towards: dict[int, Any], step: float) -> list[Any]:
    return [x + step * towards[i] if i in towards else x for i, x in enumerate(args)]


def slope(program: table.Program, args: Any) -> Any:
    """The derivative of the total in a fixed direction, as a function of the moving arguments."""
    towards = direction(args)
    places = moving(args)

    def along(*xs: Any) -> Any:
        given = list(args)
        for i, x in zip(places, xs, strict=True):
            given[i] = x
        grads = dg.grad(lambda *a: total(program, list(a)), argnums=places)(*given)
        return sum(dg.sum(dg.real(g * dg.conj(towards[i]))) for i, g in zip(places, grads, strict=True))

    return along, [args[i] for i in places]


def test_there_are_at_least_forty() -> None:
    assert len(NAMES) >= 40


@pytest.mark.parametrize(("file", "name"), NAMES)
def test_values_are_numpys(file: str, name: str) -> None:
    ours, numpys = load(file, True)[name], load(file, False)[name]
    args = numpys.make(np.random.default_rng(0))
    places = [i for i, x in enumerate(args) if isinstance(x, np.ndarray) and x.dtype.kind in "fc"]

    def run(*xs: Any) -> Any:
        given = list(args)
        for i, x in zip(places, xs, strict=True):
            given[i] = x
        return [x for x in nest.flatten(outcome(ours, given)) if hasattr(x, "dtype")]

    with pytest.warns(UserWarning, match="assigns to its argument") if _writes(numpys, args) else _quiet():
        found = dg.function(run)(*[args[i] for i in places])
    expected = [x for x in nest.flatten(outcome(numpys, copies(args))) if hasattr(x, "dtype")]
    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        assert np.shape(x) == np.shape(y)
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)


def _writes(program: table.Program, args: Any) -> bool:
    after = copies(args)
    program.run(*after)
    return any(isinstance(x, np.ndarray) and not np.array_equal(x, y) for x, y in zip(args, after, strict=True))


def _quiet() -> Any:
    return contextlib.nullcontext()


@pytest.fixture
def without_native_code() -> Iterator[None]:
    """Compiling takes longer than these programs."""
    with dg.Session(native=False):
        yield


@pytest.mark.usefixtures("without_native_code")
@pytest.mark.parametrize(("file", "name"), NAMES)
def test_derivatives_are_those_of_differences(file: str, name: str) -> None:
    ours, numpys = load(file, True)[name], load(file, False)[name]
    args = numpys.make(np.random.default_rng(0))
    towards = direction(args)

    def at(step: float) -> float:
        return float(np.real(total(numpys, moved(args, towards, step))))

    along, xs = slope(ours, list(args))
    step = 1e-6
    found = dg.function(along)(*xs)
    np.testing.assert_allclose(found, (at(step) - at(-step)) / (2 * step), rtol=1e-4, atol=1e-5)
    if not numpys.second:
        return
    places = moving(args)
    again = dg.grad(along, argnums=tuple(range(len(xs))))(*xs)
    second = sum(np.sum(np.real(g * np.conj(towards[i]))) for i, g in zip(places, again, strict=True))
    before, after = (dg.function(along)(*[moved(args, towards, s)[i] for i in places]) for s in (-step, step))
    np.testing.assert_allclose(second, (after - before) / (2 * step), rtol=1e-3, atol=1e-4)
