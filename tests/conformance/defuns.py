"""Whole random graphs as functions: gradients through a Defun, and SymbolicGradient itself, in both libraries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.function import Defun as TensorFlowDefun

import distgrad as dg
from tests.conformance.tables import DISTGRAD, TENSORFLOW
from tests.random_graphs import SMOOTH, RandomGraph, build, random_graph, seeded


def compare_defuns(seeds: Iterable[int]) -> tuple[Counter[str], list[str]]:
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for seed in seeds:
        graph = random_graph(seeded(seed), SMOOTH)
        theirs = in_tensorflow(graph)
        if theirs is None:
            counts["explained: TensorFlow's SymbolicGradient lacks an op"] += 1
            continue
        counts["Defuns compared"] += 1
        for a, b in zip(in_distgrad(graph), theirs, strict=True):
            if np.shape(a) != np.shape(b) or not np.allclose(a, b, rtol=1e-9, atol=1e-10):
                wrong.append(f"defun of seed {seed}: {graph}\n  distgrad   {a}\n  TensorFlow {b}")
    return counts, wrong


def in_distgrad(graph: RandomGraph) -> list[Any]:
    """Values, gradients through the call, and what SymbolicGradient gives."""
    types = [np.dtype(np.float64)] * len(graph.leaves)

    @dg.Defun(*types)
    def f(*leaves: Any) -> Any:
        values = build(graph, leaves, DISTGRAD)
        return tuple(values[v] for v in graph.ends)

    with dg.Graph():
        xs = [dg.constant(x) for x in graph.leaf_values()]
        ys = dg.nest.flatten(f(*xs))
        seeds = [dg.cos(y) for y in ys]
        symbolic = dg.raw_ops.SymbolicGradient(input=[*xs, *seeds], Tout=types, f=f)
        return dg.Session().run([*ys, *dg.gradients(ys, xs, seeds), *symbolic])  # type: ignore[no-any-return]


def in_tensorflow(graph: RandomGraph) -> list[Any] | None:
    types = [tf.float64] * len(graph.leaves)

    @TensorFlowDefun(*types)
    def f(*leaves: Any) -> Any:
        values = build(graph, leaves, TENSORFLOW)
        return tuple(values[v] for v in graph.ends)

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        xs = [tf.constant(x) for x in graph.leaf_values()]
        made = f(*xs)
        ys = list(made) if isinstance(made, list | tuple) else [made]
        seeds = [tf.cos(y) for y in ys]
        symbolic = tf.raw_ops.SymbolicGradient(input=[*xs, *seeds], Tout=types, f=f)
        through_call = tf.gradients(ys, xs, seeds)
        try:  # one at a time: where both fail in one run, one of them is reported as cancelled
            return [value for part in (ys, through_call, symbolic) for value in session.run(part)]
        except tf.errors.NotFoundError:  # "No gradient defined for op"
            return None
