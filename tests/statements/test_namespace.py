"""`distgrad.numpy` has all of NumPy's names: supported on traced arrays, passed through, or refused with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distgrad as dg
import distgrad.numpy as dnp
from distgrad.numpy.arrays import OWN
from distgrad.numpy.calls import Ufunc
from distgrad.ops import numpy_api
from distgrad.ops.assignment.statements import WRITERS

X = np.arange(6.0).reshape(2, 3)


def status(name: str) -> str:
    """What becomes of a name."""
    own = getattr(np, name)
    if name in OWN:
        return "supported"
    if not isinstance(own, np.ufunc | type(np.sum)):
        return "passed through"
    return "supported" if own in numpy_api.FUNCTIONS or own in WRITERS else "refused"


@pytest.mark.parametrize("name", sorted(np.__all__))
def test_a_name_is_supported_passed_through_or_refused(name: str) -> None:
    assert hasattr(dnp, name)
    if name == "__version__" or status(name) != "refused":
        return
    own = getattr(np, name)
    reason = numpy_api._unsupported(own)
    assert "is not supported on tensors" in reason
    with pytest.raises(TypeError, match=r"not supported|argument"):
        dg.function(lambda x: numpy_api.array_function(None, own, (), (x,), {}))(X)


def test_outside_a_trace_it_is_numpy() -> None:
    assert type(dnp.zeros(3)) is np.ndarray
    assert dnp.float64 is np.float64
    assert dnp.pi == np.pi
    assert type(dnp.linalg.inv(np.eye(2))) is np.ndarray
    assert dnp.random.default_rng(0).normal() == np.random.default_rng(0).normal()
    assert isinstance(dnp.ndarray((2, 2)), np.ndarray)
    assert isinstance(np.zeros(2), dnp.ndarray)


def inside(f: Any) -> Any:
    """What f(x) gives in a trace, and outside."""
    return dg.function(f)(X), f(X)


def test_concrete_arrays_work_as_sizes_conditions_and_bounds() -> None:
    def f(x: Any) -> Any:
        sizes = dnp.array([2, 3])
        total = dnp.zeros(tuple(sizes))
        for i in range(sizes[0]):
            if sizes[i] > 2 and len(sizes) == 2 and bool(sizes.all()):
                total[i, sizes[0]] = x[1, int(sizes[0])]
        assert isinstance(total, dnp.ndarray)
        assert isinstance(x * 1, dnp.ndarray)
        assert not isinstance(x[0, 0], dnp.ndarray)
        return total, list(sizes), dnp.zeros(sizes)[dnp.arange(2)]

    found, expected = inside(f)
    for a, b in zip([found[0], *found[1], found[2]], [expected[0], *expected[1], expected[2]], strict=True):
        np.testing.assert_array_equal(a, b)


def test_views_of_concrete_arrays_stay_views_when_they_become_traced() -> None:
    def f(x: Any) -> Any:
        a = dnp.zeros((3, 4))
        row, flat, turned = a[1], a.reshape(-1), a.T
        row += 1
        flat[::5] = x[0, 1]
        turned[3] *= 2
        return a, row, flat, turned

    for a, b in zip(*inside(f), strict=True):
        np.testing.assert_array_equal(a, b)


def test_arrays_are_made_of_tensors() -> None:
    def f(x: Any) -> Any:
        made = dnp.array([[x[0, 0], 1.0], [x[1, 1], x[0, 2]]])
        made[0, 1] = 7.0
        return made, dnp.r_[x[0], 1.0], dnp.c_[x[0], x[1]], dnp.full(2, x[0, 1]), dnp.asarray(x), dnp.full_like(x, 3)

    for a, b in zip(*inside(f), strict=True):
        np.testing.assert_array_equal(a, b)


def test_random_numbers_in_a_trace_are_refused() -> None:
    for draw in (lambda: dnp.random.default_rng(0), lambda: dnp.random.rand(3)):
        with pytest.raises(TypeError, match=r"draw once.*distgrad\.random\.normal\(key, shape\)"):
            dg.function(lambda x, draw=draw: x + draw())(X)


def test_ufuncs_are_numpys() -> None:
    assert isinstance(dnp.add, Ufunc)
    assert dnp.add.identity == 0
    assert dnp.add == np.add
    np.testing.assert_array_equal(dnp.add.outer([1, 2], [3]), [[4], [5]])
    np.testing.assert_array_equal(dnp.maximum.accumulate([1, 3, 2]), [1, 3, 3])


def test_what_comes_from_elsewhere_is_not_made_assignable() -> None:
    outer = np.zeros(3)

    def f(x: Any) -> Any:
        view = dnp.asarray(outer)[:2]
        view[0] = x[0, 0]
        return view

    with pytest.raises(TypeError, match="in place of `import numpy as np`"):
        dg.function(f)(X)
    assert not outer.any()
