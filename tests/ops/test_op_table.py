"""Every op against NumPy or SciPy, its gradients against finite differences, in every dtype that applies."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad import nest
from distgrad.registry import OPS, registered
from distgrad.testing import check_grads, random_like
from distgrad.workers.kernels import KERNELS
from distgrad.workers.native import turned_off

from ..cases import all_cases, composed
from ..cases.case import Case

CASES = all_cases()
#: The rows of op types, and those of functions that are made of several.
ROWS = CASES | composed.CASES
#: Op types that no builder of arrays makes: state, order and calls have tests of their own.
NOT_IN_TABLE = {"Placeholder", "Capture", "NoOp", "VarHandle", "ReadVariable", "Assign", "Call", "SymbolicGradient"}
#: Of those, the ones that an executor runs itself, without a kernel.
NO_KERNEL = {"Placeholder", "Capture", "VarHandle", "ReadVariable", "Assign", "Call", "SymbolicGradient"}
#: Public functions that no row can build: they give operations, or make the inputs and the order of a graph.
NOT_IN_ROWS = {
    "convert_to_tensor": "gives its argument, or a constant: test_graph.py",
    "group": "gives an operation, not arrays: test_graph.py",
    "no_op": "gives an operation, not arrays: test_graph.py",
    "placeholder": "has no value until it is fed: test_session.py",
    "tuple": "gates tensors by order, with the values of identity: test_graph.py",
}


def rows(applies: Callable[[Case], bool] = lambda case: True) -> list[Any]:
    """The rows to which a test applies, each a parameter named after its op type or function."""
    named = [(f"{name}-{i}", case) for name, cases in ROWS.items() for i, case in enumerate(cases)]
    return [pytest.param(case, id=name) for name, case in named if applies(case)]


def has_floats(case: Case) -> bool:
    return any(np.asarray(x).dtype.kind in "fc" for x in case.inputs)


def built_in() -> set[str]:
    """The built-in op types: user-defined ops have a kernel, and that of `tests/new_op.py` begins with Test."""
    return {op_type for op_type, d in OPS.items() if d.kernel is None and not op_type.startswith("Test")}


def as_dtype(x: Any, real: Any) -> Any:
    x = np.asarray(x)
    return x.astype(np.result_type(real, 1j) if x.dtype.kind == "c" else real) if x.dtype.kind in "fc" else x


def in_graph(case: Case, inputs: tuple[Any, ...], **options: Any) -> list[Any]:
    with dg.Graph():
        tensors = [dg.constant(x) for x in inputs]
        built = nest.flatten(case.build(*tensors))
        assert all(isinstance(t, dg.Tensor) for t in built)
    return dg.Session(**options).run(built)


def arrays(result: Any) -> list[Any]:
    return [np.asarray(x) for x in nest.flatten(list(result) if isinstance(result, tuple) else result)]


def test_every_op_has_a_row() -> None:
    assert built_in() - NOT_IN_TABLE == CASES.keys()


def public_builders() -> dict[str, FunctionType]:
    """The functions of distgrad/ops under the names by which a user calls them."""
    spaces = {"": dg, "nn.": dg.nn, "linalg.": dg.linalg, "random.": dg.random, "fft.": dg.fft}
    named = {prefix + name: getattr(space, name) for prefix, space in spaces.items() for name in space.__all__}
    return {
        name: f for name, f in named.items() if isinstance(f, FunctionType) and f.__module__.startswith("distgrad.ops.")
    }


#: What tells functions apart, as objects and as they run: the code, and what it closes over where several share it.
Identity = tuple[Any, tuple[int, ...]]


def identity_of(f: FunctionType) -> Identity:
    return f.__code__, tuple(id(cell.cell_contents) for cell in f.__closure__ or ())


def called_by(cases: Iterable[Case]) -> set[Identity]:
    """The functions that the rows call directly, not indirectly, while they are built."""
    tests, found = str(Path(__file__).parent.parent), set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_back and frame.f_back.f_code.co_filename.startswith(tests):
            code = frame.f_code
            found.add((code, tuple(id(frame.f_locals.get(name)) for name in code.co_freevars)))

    before = sys.getprofile()
    for case in cases:
        with dg.Graph():
            tensors = [dg.constant(x) for x in case.inputs]
            sys.setprofile(note)
            try:
                case.build(*tensors)
            finally:
                sys.setprofile(before)
    return found


def test_every_public_function_is_called_by_a_row() -> None:
    called = called_by(case for cases in ROWS.values() for case in cases)
    missing = {name for name, f in public_builders().items() if identity_of(f) not in called}
    assert missing == NOT_IN_ROWS.keys()


@pytest.mark.parametrize("name", sorted(composed.CASES))
def test_a_row_of_a_function_calls_it(name: str) -> None:
    for case in composed.CASES[name]:
        assert identity_of(public_builders()[name]) in called_by([case])


def test_every_op_has_a_kernel() -> None:
    assert built_in() - NO_KERNEL == {op_type for op_type in KERNELS if not op_type.startswith("Test")}


def test_every_op_has_a_gradient_or_says_it_has_none() -> None:
    assert [op_type for op_type in sorted(built_in()) if not registered(op_type)] == []


@pytest.mark.parametrize("op_type", sorted(CASES))
def test_a_row_builds_the_op_it_is_a_row_of(op_type: str) -> None:
    for case in CASES[op_type]:
        with dg.Graph() as graph:
            case.build(*[dg.constant(x) for x in case.inputs])
        assert op_type in {op.type for op in graph.ops}


@pytest.mark.parametrize("case", rows(lambda case: case.reference is not None))
def test_values_equal_the_reference(case: Case) -> None:
    assert case.reference is not None
    with np.errstate(all="ignore"):
        expected = arrays(case.reference(*case.inputs))
    found = in_graph(case, case.inputs)
    assert [x.shape for x in found] == [x.shape for x in expected]
    assert [x.dtype for x in found] == [x.dtype for x in expected]
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=case.rtol, atol=case.rtol)


@pytest.mark.parametrize("case", rows())
def test_eager_gives_the_bits_of_the_graph(case: Case) -> None:
    for native in {False, not turned_off()}:
        _check_eager(case, native)


def _check_eager(case: Case, native: bool) -> None:
    found = in_graph(case, case.inputs, native=native)
    with dg.Session(native=native):
        eager = nest.flatten(case.build(*case.inputs))
    for x, y in zip(found, eager, strict=True):
        assert isinstance(y, np.ndarray)
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("case", rows(lambda case: case.float32 and has_floats(case)))
def test_float32_is_float64_rounded(case: Case) -> None:
    single = in_graph(case, tuple(as_dtype(x, np.float32) for x in case.inputs))
    double = in_graph(case, case.inputs)
    for x, y in zip(single, double, strict=True):
        assert x.dtype == {"c": np.complex64, "f": np.float32}.get(y.dtype.kind, y.dtype)
        np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("case", rows(lambda case: case.order > 0))
def test_gradients_equal_finite_differences(case: Case) -> None:
    check_grads(case.build, case.inputs, case.order, rtol=case.grad_rtol)


def derivatives(case: Case, real: Any) -> list[Any]:
    """The gradients of a weighted sum of the results, and those of a weighted sum of them, in one precision."""
    inputs = [as_dtype(x, real) for x in case.inputs]
    with dg.Graph():
        xs = [dg.constant(x) for x in inputs]
        moving = [x for x in xs if x.dtype.kind in "fc"]
        level: Any = nest.flatten(case.build(*xs))
        found = []
        for _ in range(case.order):
            rng = np.random.default_rng(0)
            terms = [dg.sum(y * as_dtype(random_like(y, rng), real)) for y in level if y.dtype.kind in "fc"]
            made = dg.gradients([dg.real(t) for t in terms], moving, unconnected_gradients="zero")
            level = [dg.identity(dg.add(g, 0.0)) for g in made]
            assert [g.dtype for g in level] == [x.dtype for x in moving]
            found += level
    return dg.Session().run(found)


@pytest.mark.parametrize("case", rows(lambda case: case.float32 and case.order > 0 and has_floats(case)))
def test_float32_gradients_are_float64_ones_rounded(case: Case) -> None:
    for x, y in zip(derivatives(case, np.float32), derivatives(case, np.float64), strict=True):
        scale = max(1.0, float(np.abs(y).max(initial=0.0)))
        np.testing.assert_allclose(x / scale, y / scale, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("case", rows(lambda case: case.complex))
def test_complex_values_and_gradients(case: Case) -> None:
    rng = np.random.default_rng(7)
    floating = [np.asarray(x).dtype.kind == "f" for x in case.inputs]
    parts = [0.5j * rng.uniform(-1, 1, np.shape(x)) for x in case.inputs]
    inputs = tuple(x + i if f else x for x, i, f in zip(case.inputs, parts, floating, strict=True))
    found = in_graph(case, inputs)
    assert case.reference is not None
    for x, y in zip(found, arrays(case.reference(*inputs)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)
    check_grads(case.build, inputs, case.order, rtol=case.grad_rtol)
