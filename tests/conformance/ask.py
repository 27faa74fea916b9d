"""The same question put to distgrad, to TensorFlow and to JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

import distgrad as dg
from distgrad.ops.builder import convert
from tests.conformance.questions import Answer, Question, Sparse, attempt
from tests.conformance.tables import DISTGRAD, JAX, RAISING, TENSORFLOW
from tests.random_graphs import Build, build


def ask_distgrad(q: Question) -> Answer | str:
    with dg.Graph() as graph:
        values = build(q.graph, [dg.constant(x) for x in q.leaves()], DISTGRAD)
        assert [t.shape for t in values] == q.graph.shapes, f"a row of the table says another shape: {q.graph}"
        ys, xs = [values[v] for v in q.ys], [values[v] for v in q.xs]
        options = q.options(values, dg.UnconnectedGradients)
        first = attempt(lambda: dg.gradients(ys, xs, **options))
        if isinstance(first, str):
            return first
        found, leaves = [convert(g) for g in first if g is not None], values[: len(q.graph.leaves)]
        second = attempt(lambda: dg.gradients(found, leaves, stop_gradients=options["stop_gradients"]))
        dense = [] if isinstance(second, str) else [None if g is None else convert(g) for g in second]
    dg.check_graph(graph)
    got, made, again = dg.Session().run([ys, first, dense])
    made = [Sparse(*g) if isinstance(g, dg.IndexedSlicesValue) else g for g in made]
    return Answer(got, made, second if isinstance(second, str) else again)


def ask_tensorflow(q: Question) -> Answer | str:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        values = build(q.graph, [tf.constant(x) for x in q.leaves()], TENSORFLOW)
        ys, xs = [values[v] for v in q.ys], [values[v] for v in q.xs]
        options = q.options(values, tf.UnconnectedGradients)
        first = attempt(lambda: tf.gradients(ys, xs, **options))
        if isinstance(first, str):
            return first
        found, leaves = [tf.convert_to_tensor(g) for g in first if g is not None], values[: len(q.graph.leaves)]
        second = attempt(lambda: tf.gradients(found, leaves, stop_gradients=options["stop_gradients"]))
        dense = [] if isinstance(second, str) else [None if g is None else tf.convert_to_tensor(g) for g in second]
        got, made, again = session.run([ys, without_none(first), without_none(dense)])
    triples = [Sparse(m.values, m.indices, tuple(m.dense_shape)) if hasattr(m, "dense_shape") else m for m in made]
    return Answer(got, with_none(first, triples), second if isinstance(second, str) else with_none(dense, again))


def without_none(items: list[Any]) -> list[Any]:
    return [x for x in items if x is not None]


def with_none(items: list[Any], values: list[Any]) -> list[Any]:
    """The values again at the places of what was not None."""
    rest = iter(values)
    return [None if x is None else next(rest) for x in items]


def ask_jax(q: Question, table: Mapping[str, Build] = JAX) -> Answer | None:
    """JAX differentiates functions: of a zero that is added to each x, behind a stop_gradient where one is asked for.

    It has no op that raises when it is differentiated.
    """
    if any(n.op in RAISING for n in q.graph.nodes):
        return None
    every = list(dict.fromkeys([*range(len(q.graph.leaves)), *q.xs]))

    def ys(zeros: list[Any]) -> list[Any]:
        added = dict(zip(every, zeros, strict=True))

        def after(v: int, x: Any) -> Any:
            x = jax.lax.stop_gradient(x) if v in q.stops else x
            return x + added[v] if v in added else x

        values = build(q.graph, [jnp.asarray(x) for x in q.leaves()], table, after)
        return [values[v] for v in q.ys]

    def first(zeros: list[Any]) -> Any:
        got, pull = jax.vjp(ys, zeros)
        given = q.grad_ys or [np.ones(y.shape, y.dtype) for y in got]
        found = pull([jnp.asarray(g) for g in given])[0]
        return [found[every.index(v)] for v in q.xs], got

    with jax.disable_jit():  # op by op: compiling each graph would take most of the run
        made, pull, got = jax.vjp(first, [jnp.zeros(q.graph.shapes[v], q.dtype) for v in every], has_aux=True)
        return Answer(got, made, pull([jnp.ones_like(g) for g in made])[0][: len(q.graph.leaves)])
