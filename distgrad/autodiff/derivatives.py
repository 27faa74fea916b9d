"""Derivatives of functions: grad, vjp, jvp, jacobian, hessian and the like, all built on gradients().

Inside a graph they add ops to it. Outside, the functions that grad, value_and_grad, jacobian and hessian return trace f
once per signature and run the trace, as @distgrad.function does. vjp, jvp and hvp trace f at every call; to trace once,
call them in a @distgrad.function. Only the arguments of f are differentiated: tensors that it captures count as
constants, even if they depend on the arguments. Complex gradients follow `gradients`: g times the conjugate of the
derivative.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from distgrad import nest
from distgrad.autodiff.derivative_arguments import (
    check_function,
    checked,
    fitting,
    listed,
    name_of,
    paired,
    scalar,
    select,
    short_name,
    with_aux,
)
from distgrad.autodiff.gradients import gradients
from distgrad.autodiff.pullback import Pullback
from distgrad.graph import FuncGraph, Tensor, current_graph
from distgrad.ops.array import reshape, stack
from distgrad.ops.assignment.names import held
from distgrad.ops.builder import as_array, check_fits, check_parts, convert
from distgrad.ops.control import identity, zeros
from distgrad.tracing.function import Function, bind, signature_of
from distgrad.types import Shape, brief, size_of, trainable

# -- scalar functions --------------------------------------------------------------------------------------------


def grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that computes the gradient of the scalar function f.

    Args:
        f: function that returns a scalar tensor or, with `has_aux`, a pair (scalar tensor, anything).
        argnums: positional arguments to differentiate with respect to. They may be nested (dicts, lists, dataclasses);
            the gradient has the same structure. An int gives one gradient, a sequence a tuple of gradients.
        has_aux: if true, return the pair (gradient, second value returned by f).

    The gradient of an argument that does not affect the result is zeros.

    >>> import distgrad as dg
    >>> grad(lambda x: dg.sum(x * x))(np.array([1.0, 2.0]))
    array([2., 4.])
    """
    return _gradient("grad", f, argnums, has_aux)


def _gradient(what: str, f: Callable[..., Any], argnums: Any, has_aux: bool) -> Callable[..., Any]:
    both = _value_and_gradient(what, f, argnums, has_aux)

    def wanted(made: tuple[Any, Any]) -> Any:
        value, found = made
        return (found, value[1]) if has_aux else found

    def gradient(*args: Any, **kwargs: Any) -> Any:
        return wanted(both(*args, **kwargs))

    def prepared(*args: Any, **kwargs: Any) -> tuple[_Prepared, list[Any]]:
        traced, values = both.prepared(*args, **kwargs)  # type: ignore[attr-defined]
        return _Prepared(traced.body, lambda results: wanted(traced.rebuild(results))), values

    gradient.plan, gradient.prepared, gradient.argnums = both.plan, prepared, argnums  # type: ignore[attr-defined]
    return _named_after(gradient, what, f)


def value_and_grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the value of the scalar function f and its gradient; see `grad`.

    >>> import distgrad as dg
    >>> value_and_grad(lambda p, x: p["w"] * x, argnums=0)({"w": 3.0}, np.array(2.0))
    (array(6.), {'w': array(2.)})
    """
    return _value_and_gradient("value_and_grad", f, argnums, has_aux)


def _value_and_gradient(what: str, f: Callable[..., Any], argnums: Any, has_aux: bool) -> Callable[..., Any]:
    def build(*args: Any, **kwargs: Any) -> Any:
        args, xs = _inside(args, argnums)
        result = f(*args, **kwargs)
        value, aux = with_aux(what, f, result) if has_aux else (result, None)
        y = scalar(what, f, value)
        found = _pull([y], xs(), None)
        return ((y, aux) if has_aux else y), select(args, argnums, found)

    return _wrapped(build, what, f, argnums)


def hessian(f: Callable[..., Any], argnums: int = 0) -> Callable[..., Any]:
    """Return a function that computes the Hessian of the scalar function f, of shape `x.shape + x.shape`.

    For a nested argument the result is nested twice, with one block for each pair of leaves.

    >>> import distgrad as dg
    >>> hessian(lambda x: dg.sum(x * x * x))(np.array([1.0, 2.0]))
    array([[ 6.,  0.],
           [ 0., 12.]])
    """
    return _jacobian_of("hessian", _gradient("hessian", f, argnums, has_aux=False), f, argnums)


def hvp(f: Callable[..., Any], primals: Any, tangents: Any) -> Any:
    """The product of the Hessian of a scalar function and a vector, without computing the Hessian.

    `primals` is the tuple of f's arguments, or its only argument; `tangents` and the result have the same structure.

    >>> import distgrad as dg
    >>> hvp(lambda x: dg.sum(x * x * x), np.array([1.0, 2.0]), np.array([1.0, 10.0]))
    array([  6., 120.])
    """
    check_function("hvp", f)
    many = isinstance(primals, tuple)

    def build(args: Any, vs: Any) -> Any:
        args, xs = _inside(args, range(len(args)))
        found = _pull([scalar("hvp", f, f(*args))], xs(), None)
        return nest.unflatten(args, _pull(found, xs(), vs))

    arguments, vectors = (primals, tangents) if many else ((primals,), (tangents,))
    made = _lifted(build, "hvp", f)(*paired("hvp", f, arguments, vectors))
    return made if many else made[0]


# -- functions of anything ---------------------------------------------------------------------------------------


def vjp(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of f at `primals`, and its pullback: the function that maps gradients of the value to gradients of the
    arguments.

    The pullback takes gradients with the structure of the value and returns a tuple with one entry per argument. With
    `has_aux`, f returns a pair (value, aux), and the result is (value, pullback, aux). f runs once; the pullback uses
    the values that arguments and variables had at that time.

    >>> import distgrad as dg
    >>> y, pullback = vjp(lambda x: dg.exp(x), np.zeros(2))
    >>> pullback(np.array([1.0, 5.0]))
    (array([1., 5.]),)
    """
    check_function("vjp", f)
    args = checked("vjp", f, primals, range(len(primals)))

    def forward(*args: Any) -> Any:
        result = f(*args)
        value, aux = with_aux("vjp", f, result) if has_aux else (result, None)
        return nest.map_structure(convert, value), aux

    made = _vjp_inside(forward, args) if current_graph() is not None else _vjp_outside(forward, f, args)
    return made if has_aux else made[:2]


def _vjp_inside(forward: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Callable[..., Any], Any]:
    args, xs = _inside(args, range(len(args)))
    ys, aux = forward(*args)
    values = held(nest.flatten(ys))
    graph = current_graph()

    def pullback(cotangents: Any) -> Any:
        if current_graph() is not graph:
            raise ValueError("vjp: the pullback adds ops to the graph of vjp; call it in the same graph or function")
        pairs = zip(values(), fitting(_COTANGENTS, cotangents, ys), strict=True)
        floats = [(y, g) for y, g in pairs if trainable(y.dtype)]
        return nest.unflatten(args, _pull([y for y, _ in floats], xs(), [g for _, g in floats]))

    return ys, pullback, aux


_COTANGENTS = "vjp: the gradients given to the pullback"


def _vjp_outside(
    forward: Callable[..., Any], f: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[Any, Callable[..., Any], Any]:
    """One trace that includes the gradients, so the pullback uses the current values of arguments and variables."""
    args = nest.map_structure(as_array, args)
    traced = Function(functools.wraps(f)(forward), f"vjp_{short_name(f)}").trace(args, {}, None)
    ys, _ = traced.structure
    xs = list(traced.body.declared)
    floats = [y for y in nest.flatten(ys) if trainable(y.dtype)]
    run = Pullback(traced.body, nest.flatten(args), lambda gs: _pull(floats, xs, gs), [y.spec for y in floats])
    like = nest.unflatten(args, xs)

    def pullback(cotangents: Any) -> Any:
        pairs = zip(nest.flatten(ys), fitting(_COTANGENTS, cotangents, ys), strict=True)
        return nest.unflatten(like, run([g for y, g in pairs if trainable(y.dtype)]))

    value, aux = traced.rebuild(run.values)
    return value, pullback, aux


def jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """The value of f at `primals`, and its derivative along `tangents` (both tuples, one entry per argument of f).

    Computed by two reverse passes: the gradient is linear in its seed, and its derivative with respect to the seed is
    the forward derivative. The derivative of integer results is zeros.

    >>> import distgrad as dg
    >>> jvp(lambda x: x * x * x, (np.array([1.0, 2.0]),), (np.array([1.0, 10.0]),))
    (array([1., 8.]), array([  3., 120.]))
    """
    check_function("jvp", f)
    for what, value in (("primals", primals), ("tangents", tangents)):
        if not isinstance(value, list | tuple):
            raise TypeError(f"jvp: {what} must be a tuple with one entry per argument of f, got {brief(value)}")

    def build(args: Any, vs: Any) -> Any:
        args, xs = _inside(args, range(len(args)))
        ys = nest.map_structure(convert, f(*args))
        floats = [y for y in nest.flatten(ys) if trainable(y.dtype)]
        moved = iter(_push(floats, xs(), vs, [zeros(y.shape, y.dtype) for y in floats]))
        return ys, nest.map_structure(lambda y: next(moved) if trainable(y.dtype) else zeros(y.shape, y.dtype), ys)

    made: tuple[Any, Any] = _lifted(build, "jvp", f)(*paired("jvp", f, tuple(primals), tuple(tangents)))
    return made


def jacobian(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """Return a function that computes the derivative of every element of f's value by every element of an argument.

    The result has the structure of f's value, with the structure of the argument in place of each leaf (a tuple of
    these if argnums is a sequence). Its arrays have shape `y.shape + x.shape`. It takes one backward pass per element
    of the value or one forward pass per element of the arguments, whichever is fewer.

    >>> import distgrad as dg
    >>> jacobian(lambda x: x * x)(np.array([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]])
    """
    return _jacobian_of("jacobian", f, f, argnums)


def _jacobian_of(what: str, g: Callable[..., Any], f: Callable[..., Any], argnums: Any) -> Callable[..., Any]:
    """The Jacobian of g, which was derived from f: error messages name f."""

    def build(*args: Any, **kwargs: Any) -> Any:
        args, xs = _inside(args, argnums)
        ys = nest.map_structure(convert, g(*args, **kwargs))
        for name, y in nest.paths(ys, "its value"):
            if not trainable(y.dtype):
                raise TypeError(f"{what}: {name} of {name_of(f)} has dtype {y.dtype}, which has no derivative")
        blocks = iter(_jacobian(nest.flatten(ys), xs()))
        return nest.map_structure(lambda _: select(args, argnums, next(blocks)), ys)

    return _wrapped(build, what, f, argnums)


def _jacobian(ys: list[Tensor], xs: list[Tensor]) -> list[list[Tensor]]:
    rows, columns = sum(size_of(y.shape) for y in ys), sum(size_of(x.shape) for x in xs)
    real = not any(t.dtype.kind == "c" for t in (*ys, *xs))  # forward passes give the conjugate of backward ones
    return _by_columns(ys, xs) if columns < rows and real else [_by_rows(y, xs) for y in ys]


def _by_rows(y: Tensor, xs: list[Tensor]) -> list[Tensor]:
    rows = [_pull([y], xs, [unit]) for unit in _units(y)]
    return [_stacked([row[i] for row in rows], (*y.shape, *x.shape), x) for i, x in enumerate(xs)]


def _by_columns(ys: list[Tensor], xs: list[Tensor]) -> list[list[Tensor]]:
    seeds = [zeros(y.shape, y.dtype) for y in ys]
    gs = gradients(ys, xs, seeds)
    blocks: list[list[Tensor]] = [[] for _ in ys]
    for x, g in zip(xs, gs, strict=True):
        columns = [[None] * len(ys) if g is None else gradients(convert(g), seeds, [unit]) for unit in _units(x)]
        for i, y in enumerate(ys):
            column = [zeros(y.shape, y.dtype) if c[i] is None else convert(c[i]) for c in columns]
            blocks[i].append(_stacked(column, (*y.shape, *x.shape), y, axis=-1))
    return blocks


def _units(t: Tensor) -> list[Any]:
    """The standard basis of t's shape: arrays with a single one and zeros elsewhere."""
    size = size_of(t.shape)
    check_fits("jacobian or hessian", (size, size), t.dtype)
    check_parts("jacobian or hessian", size)
    return [np.eye(1, size, i, dtype=t.dtype).reshape(t.shape) for i in range(size)]


def _stacked(parts: list[Tensor], shape: Shape, like: Tensor, axis: int = 0) -> Tensor:
    return reshape(stack(parts, axis), shape) if parts else zeros(shape, like.dtype)


# -- tensors -----------------------------------------------------------------------------------------------------


def hessians(
    ys: Any, xs: Any, name: str = "hessians", gate_gradients: bool = False, aggregation_method: Any = None
) -> list[Tensor]:
    """The Hessians of the sum of `ys` with respect to each x, of shape `x.shape + x.shape`.

    Zeros if ys are linear in x or do not depend on it.

    >>> import distgrad as dg
    >>> with dg.Graph():
    ...     x = dg.constant([1.0, 2.0])
    ...     (h,) = hessians(x * x * x, x)
    >>> dg.Session().run(h)
    array([[ 6.,  0.],
           [ 0., 12.]])
    """
    xs = list(xs) if isinstance(xs, list | tuple) else [xs]
    options = {"gate_gradients": gate_gradients, "aggregation_method": aggregation_method}
    found = [convert(g) for g in gradients(ys, xs, name=name, unconnected_gradients="zero", **options)]
    made = []
    for x, g in zip(xs, found, strict=True):
        with g.graph:
            rows = [gradients(g, x, [unit], name, unconnected_gradients="zero", **options)[0] for unit in _units(g)]
            made.append(_stacked([convert(row) for row in rows], (*g.shape, *g.shape), g))
    return made


def hessian_vector_product(ys: Any, xs: Any, v: Any) -> list[Any]:
    """The Hessian of the sum of `ys` with respect to `xs`, times `v` (one tensor per x). None for an unconnected x.

    >>> import distgrad as dg
    >>> with dg.Graph():
    ...     x = dg.constant([1.0, 2.0])
    ...     (h,) = hessian_vector_product(x * x * x, x, dg.constant([1.0, 10.0]))
    >>> dg.Session().run(h)
    array([  6., 120.])
    """
    xs, v = ([*t] if isinstance(t, list | tuple) else [t] for t in (xs, v))
    if len(xs) != len(v):
        raise ValueError(f"hessian_vector_product: xs and v must have the same length, got {len(xs)} and {len(v)}")
    pairs = [(g, w) for g, w in zip(gradients(ys, xs), v, strict=True) if g is not None]
    return gradients([g for g, _ in pairs], xs, [w for _, w in pairs])


# -- inside ------------------------------------------------------------------------------------------------------


def _pull(ys: Sequence[Tensor], xs: Sequence[Tensor], seeds: Sequence[Any] | None) -> list[Tensor]:
    """Dense gradients of xs; zeros for an unconnected x."""
    found = gradients(list(ys), list(xs), seeds, unconnected_gradients="zero")
    return [g if isinstance(g, Tensor) else convert(g) for g in found]


def _push(ys: list[Tensor], xs: list[Tensor], vs: list[Tensor], seeds: list[Tensor]) -> list[Tensor]:
    """The derivatives of ys along vs. The values of `seeds` do not matter: the gradient is linear in them."""
    pairs = [(convert(g), v) for g, v in zip(gradients(ys, xs, seeds), vs, strict=True) if g is not None]
    return _pull([g for g, _ in pairs], seeds, [v for _, v in pairs])


def _inside(args: Any, argnums: Any) -> tuple[tuple[Any, ...], Callable[[], list[Tensor]]]:
    """The arguments with fresh tensors for those to differentiate, and a function that gives the values of these, also
    after they have been assigned to."""
    made = list(args)
    for i in listed(argnums):
        made[i] = nest.map_structure(identity, made[i])
    return tuple(made), held([x for i in listed(argnums) for x in nest.flatten(made[i])])


class _Prepared(NamedTuple):
    """The body that a call runs, and the function that packs its results."""

    body: FuncGraph
    rebuild: Callable[[list[Any]], Any]


# -- outside -----------------------------------------------------------------------------------------------------


def _lifted(build: Callable[..., Any], what: str, f: Any) -> Callable[..., Any]:
    """`build` itself inside a graph; outside, traced once per signature."""
    traced = Function(build, f"{what}_{short_name(f)}", defaults=False)  # negative argnums count the arguments given

    def lifted(*args: Any, **kwargs: Any) -> Any:
        return (traced if current_graph() is None else build)(*args, **kwargs)

    lifted.plan, lifted.prepared = traced.plan, traced.prepared  # type: ignore[attr-defined]
    return lifted


def _wrapped(build: Callable[..., Any], what: str, f: Any, argnums: Any) -> Callable[..., Any]:
    """The public function: checks the arguments of f, then builds or runs."""
    check_function(what, f)
    signature = signature_of(f)
    lifted = _lifted(_named_after(build, what, f), what, f)

    def given(args: Any, kwargs: Any) -> tuple[Any, Any]:
        args, kwargs = bind(f"{what} of {name_of(f)}", signature, args, kwargs)
        return checked(what, f, args, argnums), kwargs

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = given(args, kwargs)
        return lifted(*args, **kwargs)

    def plan(*args: Any, **kwargs: Any) -> Any:
        """The plan of a call with these arguments; see `Function.plan`."""
        args, kwargs = given(args, kwargs)
        return lifted.plan(*args, **kwargs)  # type: ignore[attr-defined]

    def prepared(*args: Any, **kwargs: Any) -> Any:
        """The trace and the arrays of a call; see `Function.prepared`."""
        args, kwargs = given(args, kwargs)
        return lifted.prepared(*args, **kwargs)  # type: ignore[attr-defined]

    run.plan, run.prepared, run.argnums = plan, prepared, argnums  # type: ignore[attr-defined]
    return _named_after(run, what, f)


def _named_after(made: Callable[..., Any], what: str, f: Any) -> Callable[..., Any]:
    functools.update_wrapper(made, f, assigned=("__module__", "__doc__"), updated=())
    made.__name__ = made.__qualname__ = f"{what}_{short_name(f)}"
    return made
