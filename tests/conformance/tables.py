"""The random graphs' ops in distgrad, TensorFlow and JAX: one row per op, one column per library.

The ops of tests/random_graphs.py, and more that are only compared between libraries: with kinks, with ties, without a
registered gradient, with a gradient that is explicitly disabled; and functions with a gradient of their own and calls
of functions, each one Python function that is handed the library to write itself with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

import distgrad as dg
from distgrad.graph import current_graph

from ..random_graphs import ALL, Build, Option, RandomOp, Shape, each, keep, one, pairs, reduced, unit

#: A name under which no library has a gradient: an Identity that is sent there has none.
NOWHERE = "distgrad_conformance_nowhere"


def _axis(f: Callable[..., Any]) -> Build:
    return lambda xs, attrs: [f(xs[0], axis=attrs["axis"], keepdims=attrs["keepdims"])]


def along(shapes: Sequence[Shape]) -> Iterator[Option]:
    """Ops along one axis that keep the shape."""
    for v, shape in enumerate(shapes):
        for axis in range(len(shape)):
            yield (v,), {"axis": axis}, (shape,)


def _unregistered(graph: Callable[[], Any], identity: Callable[..., Any]) -> Build:
    def build(xs: Sequence[Any], attrs: Any) -> list[Any]:
        with graph().gradient_override_map({"Identity": NOWHERE}):
            return [identity(xs[0])]

    return build


# -- the same Python function in each library --------------------------------------------------------------------


def _jax_custom_gradient(pair: Callable[..., Any]) -> Callable[..., Any]:
    """jax.custom_vjp of a function that returns (y, grad_fn), as TensorFlow and distgrad take it."""

    def backward(xs: Sequence[Any], dys: Any) -> tuple[Any, ...]:
        grads = pair(*xs)[1](*(dys if isinstance(dys, tuple) else (dys,)))
        grads = grads if isinstance(grads, tuple) else (grads,)
        return tuple(jnp.zeros_like(x) if g is None else g for g, x in zip(grads, xs, strict=True))

    f = jax.custom_vjp(lambda *xs: pair(*xs)[0])
    f.defvjp(lambda *xs: (f(*xs), xs), backward)  # f, not pair: a second derivative asks for f's gradient again
    return f


def _tensorflow_function(f: Callable[..., Any]) -> Callable[..., Any]:
    return tf.function(f, autograph=False)  # type: ignore[no-any-return]


#: What the functions below are written with.
WITH_DISTGRAD, WITH_TENSORFLOW = (
    SimpleNamespace(
        custom_gradient=library.custom_gradient,
        function=function,
        **{name: getattr(library, name) for name in ("tanh", "sin", "exp", "square", "floor", "stop_gradient")},
    )
    for library, function in ((dg, dg.function), (tf, _tensorflow_function))
)
WITH_JAX = SimpleNamespace(
    custom_gradient=_jax_custom_gradient,
    function=jax.jit,
    stop_gradient=jax.lax.stop_gradient,
    **{name: getattr(jnp, name) for name in ("tanh", "sin", "exp", "square", "floor")},
)


def _custom(m: Any, x: Any) -> Any:
    return m.custom_gradient(lambda x: (m.sin(x), lambda dy: dy * m.exp(-x * x)))(x)


def _custom_closure(m: Any, x: Any) -> Any:
    """What grad_fn closes over was computed from x: a second derivative goes through it."""

    def f(x: Any) -> Any:
        y = m.tanh(x)
        return y, lambda dy: dy * (1 - y * y) * 2

    return m.custom_gradient(f)(x)


def _custom_swapped(m: Any, x: Any, y: Any) -> Any:
    return m.custom_gradient(lambda x, y: (m.sin(x) * y, lambda dy: (dy * x, dy * m.sin(y))))(x, y)


def _custom_none(m: Any, x: Any, y: Any) -> Any:
    return m.custom_gradient(lambda x, y: (m.sin(x) + y, lambda dy: (dy * (x * x + 3), None)))(x, y)


def _custom_outputs(m: Any, x: Any) -> Any:
    return m.custom_gradient(lambda x: ((m.sin(x), m.tanh(x)), lambda d1, d2: d1 * x + 2 * m.square(d2)))(x)


def _straight_through(m: Any, x: Any) -> Any:
    return m.custom_gradient(lambda x: (m.floor(x), lambda dy: dy))(x)


def _called(m: Any, x: Any, y: Any) -> Any:
    return m.function(lambda x, y: m.tanh(x) * m.sin(y))(x, y)


def _called_outputs(m: Any, x: Any) -> Any:
    return m.function(lambda x: (m.sin(x) * x, m.tanh(x)))(x)


def _called_captured(m: Any, x: Any, y: Any) -> Any:
    return m.function(lambda x: m.sin(x) * y)(x)


def _called_unused(m: Any, x: Any, y: Any) -> Any:
    return m.function(lambda x, y: m.square(m.sin(x)))(x, y)


def _called_stopped(m: Any, x: Any, y: Any) -> Any:
    return m.function(lambda x, y: m.stop_gradient(m.tanh(x)) * m.tanh(y))(x, y)


def _called_nested(m: Any, x: Any) -> Any:
    inner = m.function(lambda x: m.sin(_custom(m, x)))
    return m.function(lambda x: inner(x) * inner(m.tanh(x)))(x)


def alike(shapes: Sequence[Shape]) -> Iterator[Option]:
    """Pairs of one shape."""
    for a, shape in enumerate(shapes):
        yield from (((a, b), {}, (shape,)) for b, other in enumerate(shapes) if other == shape)


def twice(shapes: Sequence[Shape]) -> Iterator[Option]:
    for v, shape in enumerate(shapes):
        yield (v,), {}, (shape, shape)


#: Name: what it may read, how large its outputs can be, and the function.
SHARED: dict[str, tuple[Callable[..., Iterator[Option]], Callable[..., float], Callable[..., Any]]] = {
    "Custom": (each, unit, _custom),
    "CustomClosure": (each, unit, _custom_closure),
    "CustomSwapped": (alike, keep, _custom_swapped),
    "CustomNone": (alike, lambda x, y: y + 1, _custom_none),
    "CustomOutputs": (twice, unit, _custom_outputs),
    "StraightThrough": (each, lambda x: x + 1, _straight_through),
    "Called": (pairs, unit, _called),
    "CalledOutputs": (twice, lambda x: max(x, 1.0), _called_outputs),
    "CalledCaptured": (pairs, lambda x, y: y, _called_captured),
    "CalledUnused": (alike, unit, _called_unused),
    "CalledStopped": (pairs, unit, _called_stopped),
    "CalledNested": (each, unit, _called_nested),
}


def _shared(m: Any) -> dict[str, Build]:
    def with_library(f: Callable[..., Any]) -> Build:
        def build(xs: Sequence[Any], attrs: Any) -> list[Any]:
            made = f(m, *xs)
            return list(made) if isinstance(made, tuple) else [made]

        return build

    return {name: with_library(f) for name, (_, _, f) in SHARED.items()}


# -- the columns -------------------------------------------------------------------------------------------------

EXTRA: dict[str, RandomOp] = {
    "Minimum": RandomOp(pairs, keep, one(dg.minimum)),
    "Max": RandomOp(reduced, keep, _axis(dg.max)),
    "Mean": RandomOp(reduced, keep, _axis(dg.mean)),
    "Prod": RandomOp(reduced, lambda x: max(x, 1.0) ** 3, _axis(dg.prod)),
    "LogSumExp": RandomOp(reduced, lambda x: x + 2, _axis(dg.logsumexp)),
    "Cumsum": RandomOp(along, lambda x: 3 * x, one(dg.cumsum)),
    "Softmax": RandomOp(along, unit, one(dg.nn.softmax)),
    "Softplus": RandomOp(each, lambda x: x + 1, one(dg.nn.softplus)),
    "Relu": RandomOp(each, keep, one(dg.nn.relu)),
    "Erf": RandomOp(each, unit, one(dg.erf)),
    "Atan": RandomOp(each, lambda x: 2.0, one(dg.arctan)),
    "Log1p": RandomOp(each, keep, one(lambda x: dg.log1p(x * x))),
    "Rsqrt": RandomOp(each, unit, one(lambda x: dg.rsqrt(1 + x * x))),
    "Pow": RandomOp(each, lambda x: (1 + x * x) ** 1.5, one(lambda x: (1 + x * x) ** 1.5)),
    "Sign": RandomOp(each, unit, one(dg.sign)),
    "PreventGradient": RandomOp(each, keep, one(lambda x: dg.prevent_gradient(x, "no"))),
    "Unregistered": RandomOp(each, keep, _unregistered(current_graph, dg.identity)),
    **{name: RandomOp(*SHARED[name][:2], build) for name, build in _shared(WITH_DISTGRAD).items()},
}
OPS: dict[str, RandomOp] = {**ALL, **EXTRA}
#: Ops at which only structure is compared: they raise in graph libraries and do not exist in JAX.
RAISING = ("PreventGradient", "Unregistered")

DISTGRAD: dict[str, Build] = {name: op.build for name, op in OPS.items()}

TENSORFLOW: dict[str, Build] = {
    "Tanh": one(tf.tanh),
    "Sin": one(tf.sin),
    "Sigmoid": one(tf.sigmoid),
    "Neg": one(tf.negative),
    "Identity": one(tf.identity),
    "Square": one(tf.square),
    "Exp": one(tf.exp),
    "Add": one(tf.add),
    "Sub": one(tf.subtract),
    "Mul": one(tf.multiply),
    "SafeDiv": one(lambda x, y: x / (1 + y * y)),
    "MatMul": one(tf.matmul),
    "Sum": _axis(tf.reduce_sum),
    "Reshape": one(tf.reshape),
    "Transpose": one(tf.transpose),
    "Concat": lambda xs, attrs: [tf.concat(list(xs), attrs["axis"])],
    "Stack": lambda xs, attrs: [tf.stack(list(xs))],
    "Split": lambda xs, attrs: tf.split(xs[0], 2, attrs["axis"]),
    "Slice": lambda xs, attrs: [xs[0][attrs["start"] :]],
    "Gather": lambda xs, attrs: [tf.gather(xs[0], list(attrs["indices"]))],
    "Maximum": one(tf.maximum),
    "Abs": one(tf.abs),
    "Where": one(lambda x, y: tf.where(x > y, x, y * y)),
    "StopGradient": one(tf.stop_gradient),
    "Floor": one(tf.floor),
    "Round": one(lambda x: tf.cast(tf.cast(x, tf.int32), x.dtype)),
    "Minimum": one(tf.minimum),
    "Max": _axis(tf.reduce_max),
    "Mean": _axis(tf.reduce_mean),
    "Prod": _axis(tf.reduce_prod),
    "LogSumExp": _axis(tf.reduce_logsumexp),
    "Cumsum": one(tf.cumsum),
    "Softmax": one(tf.nn.softmax),
    "Softplus": one(tf.nn.softplus),
    "Relu": one(tf.nn.relu),
    "Erf": one(tf.math.erf),
    "Atan": one(tf.atan),
    "Log1p": one(lambda x: tf.math.log1p(x * x)),
    "Rsqrt": one(lambda x: tf.math.rsqrt(1 + x * x)),
    "Pow": one(lambda x: (1 + x * x) ** 1.5),
    "Sign": one(tf.sign),
    "PreventGradient": one(lambda x: tf.raw_ops.PreventGradient(input=x, message="no")),
    "Unregistered": _unregistered(tf.compat.v1.get_default_graph, tf.identity),
    **_shared(WITH_TENSORFLOW),
}

JAX: dict[str, Build] = {
    "Tanh": one(jnp.tanh),
    "Sin": one(jnp.sin),
    "Sigmoid": one(jax.nn.sigmoid),
    "Neg": one(jnp.negative),
    "Identity": one(lambda x: x),
    "Square": one(jnp.square),
    "Exp": one(jnp.exp),
    "Add": one(jnp.add),
    "Sub": one(jnp.subtract),
    "Mul": one(jnp.multiply),
    "SafeDiv": one(lambda x, y: x / (1 + y * y)),
    "MatMul": one(jnp.matmul),
    "Sum": _axis(jnp.sum),
    "Reshape": one(jnp.reshape),
    "Transpose": one(jnp.transpose),
    "Concat": lambda xs, attrs: [jnp.concatenate(list(xs), attrs["axis"])],
    "Stack": lambda xs, attrs: [jnp.stack(list(xs))],
    "Split": lambda xs, attrs: jnp.split(xs[0], 2, attrs["axis"]),
    "Slice": lambda xs, attrs: [xs[0][attrs["start"] :]],
    "Gather": lambda xs, attrs: [xs[0][np.array(attrs["indices"])]],
    "Maximum": one(jnp.maximum),
    "Abs": one(jnp.abs),
    "Where": one(lambda x, y: jnp.where(x > y, x, y * y)),
    "StopGradient": one(jax.lax.stop_gradient),
    "Floor": one(jnp.floor),
    "Round": one(lambda x: x.astype(jnp.int32).astype(x.dtype)),
    "Minimum": one(jnp.minimum),
    "Max": _axis(jnp.max),
    "Mean": _axis(jnp.mean),
    "Prod": _axis(jnp.prod),
    "LogSumExp": _axis(jax.nn.logsumexp),
    "Cumsum": one(jnp.cumsum),
    "Softmax": one(jax.nn.softmax),
    "Softplus": one(jax.nn.softplus),
    "Relu": one(jax.nn.relu),
    "Erf": one(jax.scipy.special.erf),
    "Atan": one(jnp.arctan),
    "Log1p": one(lambda x: jnp.log1p(x * x)),
    "Rsqrt": one(lambda x: jax.lax.rsqrt(1 + x * x)),
    "Pow": one(lambda x: (1 + x * x) ** 1.5),
    "Sign": one(jnp.sign),
    **_shared(WITH_JAX),
}
#: JAX with TensorFlow's rules where there is no derivative: at a tie all to the first, and 0 for abs at 0.
JAX_KINKS: dict[str, Build] = {
    **JAX,
    "Abs": one(lambda x: x * jnp.sign(x)),
    "Maximum": one(lambda x, y: jnp.where(x >= y, x, y)),
    "Minimum": one(lambda x, y: jnp.where(x <= y, x, y)),
}
