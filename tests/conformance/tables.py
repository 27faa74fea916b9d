"""The random graphs' ops in distgrad, TensorFlow and JAX: one row per op, one column per library.

The ops of tests/random_graphs.py, and more that are only compared between libraries: with kinks, with ties, without a
registered gradient, with a gradient that is explicitly disabled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
}
