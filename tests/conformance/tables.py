"""The random graphs' ops in distgrad, TensorFlow and JAX: one row per op, one column per library.

The ops of tests/random_graphs.py, and more that are only compared between libraries: with kinks, with ties, without a
registered gradient, with a gradient that is explicitly disabled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

import distgrad as dg

from ..random_graphs import ALL, Build, RandomOp, _each, _keep, _one, _pairs, _reduced, _unit

#: A name under which no library has a gradient: an Identity that is sent there has none.
NOWHERE = "distgrad_conformance_nowhere"


def _axis(f: Callable[..., Any]) -> Build:
    return lambda xs, attrs: [f(xs[0], axis=attrs["axis"], keepdims=attrs["keepdims"])]


def _unregistered(graph: Callable[[], Any], identity: Callable[..., Any]) -> Build:
    def build(xs: Sequence[Any], attrs: Any) -> list[Any]:
        with graph().gradient_override_map({"Identity": NOWHERE}):
            return [identity(xs[0])]

    return build


EXTRA: dict[str, RandomOp] = {
    "Minimum": RandomOp(_pairs, _keep, _one(dg.minimum)),
    "Max": RandomOp(_reduced, _keep, _axis(dg.max)),
    "Mean": RandomOp(_reduced, _keep, _axis(dg.mean)),
    "Prod": RandomOp(_reduced, lambda x: max(x, 1.0) ** 3, _axis(dg.prod)),
    "LogSumExp": RandomOp(_reduced, lambda x: x + 2, _axis(dg.logsumexp)),
    "Cumsum": RandomOp(_reduced, lambda x: 3 * x, lambda xs, attrs: [dg.cumsum(xs[0], axis=attrs["axis"])]),
    "Softmax": RandomOp(_reduced, _unit, lambda xs, attrs: [dg.nn.softmax(xs[0], axis=attrs["axis"])]),
    "Softplus": RandomOp(_each, lambda x: x + 1, _one(dg.nn.softplus)),
    "Relu": RandomOp(_each, _keep, _one(dg.nn.relu)),
    "Erf": RandomOp(_each, _unit, _one(dg.erf)),
    "Atan": RandomOp(_each, lambda x: 2.0, _one(dg.arctan)),
    "Log1p": RandomOp(_each, _keep, _one(lambda x: dg.log1p(x * x))),
    "Rsqrt": RandomOp(_each, _unit, _one(lambda x: dg.rsqrt(1 + x * x))),
    "Pow": RandomOp(_each, lambda x: (1 + x * x) ** 1.5, _one(lambda x: (1 + x * x) ** 1.5)),
    "Sign": RandomOp(_each, _unit, _one(dg.sign)),
    "PreventGradient": RandomOp(_each, _keep, _one(lambda x: dg.prevent_gradient(x, "no"))),
    "Unregistered": RandomOp(_each, _keep, _unregistered(lambda: _distgrad_graph(), dg.identity)),
}
OPS: dict[str, RandomOp] = {**ALL, **EXTRA}
#: Ops at which only structure is compared: they raise in graph libraries and do not exist in JAX.
RAISING = ("PreventGradient", "Unregistered")


def _distgrad_graph() -> Any:
    graph = dg.graph.current_graph()
    return contextlib.nullcontext() if graph is None else graph


DISTGRAD: dict[str, Build] = {name: op.build for name, op in OPS.items()}

TENSORFLOW: dict[str, Build] = {
    "Tanh": _one(tf.tanh),
    "Sin": _one(tf.sin),
    "Sigmoid": _one(tf.sigmoid),
    "Neg": _one(tf.negative),
    "Identity": _one(tf.identity),
    "Square": _one(tf.square),
    "Exp": _one(tf.exp),
    "Add": _one(tf.add),
    "Sub": _one(tf.subtract),
    "Mul": _one(tf.multiply),
    "SafeDiv": _one(lambda x, y: x / (1 + y * y)),
    "MatMul": _one(tf.matmul),
    "Sum": _axis(tf.reduce_sum),
    "Reshape": _one(tf.reshape),
    "Transpose": _one(tf.transpose),
    "Concat": lambda xs, attrs: [tf.concat(list(xs), attrs["axis"])],
    "Stack": lambda xs, attrs: [tf.stack(list(xs))],
    "Split": lambda xs, attrs: tf.split(xs[0], 2, attrs["axis"]),
    "Slice": lambda xs, attrs: [xs[0][attrs["start"] :]],
    "Gather": lambda xs, attrs: [tf.gather(xs[0], list(attrs["indices"]))],
    "Maximum": _one(tf.maximum),
    "Abs": _one(tf.abs),
    "Where": _one(lambda x, y: tf.where(x > y, x, y * y)),
    "StopGradient": _one(tf.stop_gradient),
    "Floor": _one(tf.floor),
    "Round": _one(lambda x: tf.cast(tf.cast(x, tf.int32), x.dtype)),
    "Minimum": _one(tf.minimum),
    "Max": _axis(tf.reduce_max),
    "Mean": _axis(tf.reduce_mean),
    "Prod": _axis(tf.reduce_prod),
    "LogSumExp": _axis(tf.reduce_logsumexp),
    "Cumsum": lambda xs, attrs: [tf.cumsum(xs[0], axis=attrs["axis"])],
    "Softmax": lambda xs, attrs: [tf.nn.softmax(xs[0], axis=attrs["axis"])],
    "Softplus": _one(tf.nn.softplus),
    "Relu": _one(tf.nn.relu),
    "Erf": _one(tf.math.erf),
    "Atan": _one(tf.atan),
    "Log1p": _one(lambda x: tf.math.log1p(x * x)),
    "Rsqrt": _one(lambda x: tf.math.rsqrt(1 + x * x)),
    "Pow": _one(lambda x: (1 + x * x) ** 1.5),
    "Sign": _one(tf.sign),
    "PreventGradient": _one(lambda x: tf.raw_ops.PreventGradient(input=x, message="no")),
    "Unregistered": _unregistered(tf.compat.v1.get_default_graph, tf.identity),
}

JAX: dict[str, Build] = {
    "Tanh": _one(jnp.tanh),
    "Sin": _one(jnp.sin),
    "Sigmoid": _one(jax.nn.sigmoid),
    "Neg": _one(jnp.negative),
    "Identity": _one(lambda x: x),
    "Square": _one(jnp.square),
    "Exp": _one(jnp.exp),
    "Add": _one(jnp.add),
    "Sub": _one(jnp.subtract),
    "Mul": _one(jnp.multiply),
    "SafeDiv": _one(lambda x, y: x / (1 + y * y)),
    "MatMul": _one(jnp.matmul),
    "Sum": _axis(jnp.sum),
    "Reshape": _one(jnp.reshape),
    "Transpose": _one(jnp.transpose),
    "Concat": lambda xs, attrs: [jnp.concatenate(list(xs), attrs["axis"])],
    "Stack": lambda xs, attrs: [jnp.stack(list(xs))],
    "Split": lambda xs, attrs: jnp.split(xs[0], 2, attrs["axis"]),
    "Slice": lambda xs, attrs: [xs[0][attrs["start"] :]],
    "Gather": lambda xs, attrs: [xs[0][np.array(attrs["indices"])]],
    "Maximum": _one(jnp.maximum),
    "Abs": _one(jnp.abs),
    "Where": _one(lambda x, y: jnp.where(x > y, x, y * y)),
    "StopGradient": _one(jax.lax.stop_gradient),
    "Floor": _one(jnp.floor),
    "Round": _one(lambda x: x.astype(jnp.int32).astype(x.dtype)),
    "Minimum": _one(jnp.minimum),
    "Max": _axis(jnp.max),
    "Mean": _axis(jnp.mean),
    "Prod": _axis(jnp.prod),
    "LogSumExp": _axis(jax.nn.logsumexp),
    "Cumsum": lambda xs, attrs: [jnp.cumsum(xs[0], axis=attrs["axis"])],
    "Softmax": lambda xs, attrs: [jax.nn.softmax(xs[0], axis=attrs["axis"])],
    "Softplus": _one(jax.nn.softplus),
    "Relu": _one(jax.nn.relu),
    "Erf": _one(jax.scipy.special.erf),
    "Atan": _one(jnp.arctan),
    "Log1p": _one(lambda x: jnp.log1p(x * x)),
    "Rsqrt": _one(lambda x: jax.lax.rsqrt(1 + x * x)),
    "Pow": _one(lambda x: (1 + x * x) ** 1.5),
    "Sign": _one(jnp.sign),
}
