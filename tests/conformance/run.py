"""`make conformance`: the same random graphs in distgrad, TensorFlow and JAX.

With TensorFlow, values, gradients, which gradients are None or sparse, and the type of what is raised are compared;
with JAX, values and gradients. A difference that is understood is counted under its explanation (docs/differences.md);
any other is printed with its graph, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import jax
import numpy as np
import tensorflow as tf

import distgrad as dg
from tests.conformance.tables import DISTGRAD, JAX, OPS, RAISING, TENSORFLOW
from tests.random_graphs import RandomGraph, build, random_graph, seeded

jax.config.update("jax_enable_x64", True)


@dataclass(frozen=True)
class Question:
    """What is asked of a graph: values by number, and the options of gradients()."""

    graph: RandomGraph
    ys: list[int]
    xs: list[int]
    grad_ys: list[Any] | None
    stops: list[int]
    unconnected: str
    gate: bool
    aggregation: int

    def options(self, values: list[Any], method: Any) -> dict[str, Any]:
        return {
            "grad_ys": self.grad_ys,
            "stop_gradients": [values[v] for v in self.stops] or None,
            "unconnected_gradients": method(self.unconnected),
            "gate_gradients": self.gate,
            "aggregation_method": self.aggregation,
        }


def question(seed: int) -> Question:
    """A random graph and a random use of gradients() on it."""
    choose = seeded(seed)
    graph = random_graph(choose, OPS, max_nodes=10)
    shapes = graph.shapes
    every = list(range(len(shapes)))
    ys = [choose(graph.ends), *([choose(every)] if choose((True, False)) else [])]
    xs = list(dict.fromkeys([choose(every) if choose((True, False, False)) else v for v in range(len(graph.leaves))]))
    rng = np.random.default_rng(seed)
    given = [rng.uniform(-1, 1, shapes[y]) for y in ys] if choose((True, False)) else None
    stops = [choose(single_outputs(graph))] if choose((True, False, False)) else []
    return Question(graph, ys, xs, given, stops, choose(("none", "zero")), choose((True, False)), choose((0, 1, 2)))


def single_outputs(graph: RandomGraph) -> list[int]:
    """Where stopping at a tensor and at its op is the same: see docs/differences.md."""
    found, v = list(range(len(graph.leaves))), len(graph.leaves)
    for node in graph.nodes:
        if len(node.shapes) == 1:
            found.append(v)
        v += len(node.shapes)
    return found


Answer = tuple[list[Any], list[Any]]


def attempt(call: Callable[[], Any]) -> Any:
    """What gradients() gives, or the name of the exception that it raises, any of those that a library documents."""
    try:
        return call()
    except (LookupError, ValueError, TypeError, RuntimeError, AttributeError) as e:
        return type(e).__name__


def ask_distgrad(q: Question) -> Answer | str:
    with dg.Graph() as graph:
        values = build(q.graph, [dg.constant(x) for x in q.graph.leaf_values()], DISTGRAD)
        ys, xs = [values[v] for v in q.ys], [values[v] for v in q.xs]
        grads = attempt(lambda: dg.gradients(ys, xs, **q.options(values, dg.UnconnectedGradients)))
    if isinstance(grads, str):
        return grads
    dg.check_graph(graph)
    got, made = dg.Session().run([ys, grads])
    return got, [sparse(*g) if isinstance(g, dg.IndexedSlicesValue) else g for g in made]


def ask_tensorflow(q: Question) -> Answer | str:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        values = build(q.graph, [tf.constant(x) for x in q.graph.leaf_values()], TENSORFLOW)
        ys, xs = [values[v] for v in q.ys], [values[v] for v in q.xs]
        grads = attempt(lambda: tf.gradients(ys, xs, **q.options(values, tf.UnconnectedGradients)))
        if isinstance(grads, str):
            return grads
        got, found = session.run([ys, [g for g in grads if g is not None]])
    rest = iter(found)
    made = [None if g is None else next(rest) for g in grads]
    return got, [sparse(m.values, m.indices, m.dense_shape) if isinstance(g, tf.IndexedSlices) else m
                 for g, m in zip(grads, made, strict=True)]  # fmt: skip


def sparse(values: Any, indices: Any, dense_shape: Any) -> Any:
    dense = np.zeros(tuple(dense_shape))
    np.add.at(dense, indices, values)
    return ("sparse", dense)


def ask_jax(q: Question) -> Answer | None:
    """JAX differentiates functions: asked where all xs are leaves and nothing is stopped by option or raises."""
    if q.stops or any(v >= len(q.graph.leaves) for v in q.xs) or any(n.op in RAISING for n in q.graph.nodes):
        return None

    def f(xs: list[Any]) -> list[Any]:
        leaves = [jax.numpy.asarray(x) for x in q.graph.leaf_values()]
        for v, x in zip(q.xs, xs, strict=True):
            leaves[v] = x
        values = build(q.graph, leaves, JAX)
        return [values[v] for v in q.ys]

    leaves = q.graph.leaf_values()
    got, pull = jax.vjp(f, [jax.numpy.asarray(leaves[v]) for v in q.xs])
    given = q.grad_ys or [np.ones(y.shape) for y in got]
    return got, pull([jax.numpy.asarray(g) for g in given])[0]


def same(a: Any, b: Any, none_is_zero: bool = False) -> bool:
    if none_is_zero:
        a, b = (0.0 if x is None else x[1] if isinstance(x, tuple) else x for x in (a, b))
    if a is None or b is None:
        return a is b
    if isinstance(a, tuple) or isinstance(b, tuple):
        return isinstance(a, tuple) and isinstance(b, tuple) and same(a[1], b[1])
    a, b = np.asarray(a), np.asarray(b)
    return (none_is_zero or a.shape == b.shape) and bool(np.allclose(a, b, rtol=1e-9, atol=1e-11, equal_nan=True))


def compare(ours: Answer | str, theirs: Answer | str, none_is_zero: bool = False) -> bool:
    if isinstance(ours, str) or isinstance(theirs, str):
        return ours == theirs
    pairs = [(a, b) for side in (0, 1) for a, b in zip(ours[side], theirs[side], strict=True)]
    return all(same(a, b, none_is_zero) for a, b in pairs)


def leaked_zeros(q: Question, ours: Answer | str, theirs: Answer | str) -> bool:
    """Whether they differ only where TensorFlow reports its own filling-in as a result.

    An output of a multi-output op that ys do not depend on is unconnected. TensorFlow gives None for it too, unless
    another x lies upstream: then the zeros that it hands to the op's gradient function come back as the gradient.
    """
    if isinstance(ours, str) or isinstance(theirs, str):
        return False
    single = set(single_outputs(q.graph))
    differing = [i for i, pair in enumerate(zip(ours[1], theirs[1], strict=True)) if not same(*pair)]
    return compare((ours[0], []), (theirs[0], [])) and all(
        q.xs[i] not in single and ours[1][i] is None and not np.any(theirs[1][i]) for i in differing
    )


def tied(q: Question) -> bool:
    """Whether a Maximum, Minimum, Max or Abs of the graph meets a tie, where JAX shares the gradient otherwise."""
    leaves = q.graph.leaf_values()
    values = [np.asarray(v) for v in build(q.graph, leaves, DISTGRAD)]
    for node in q.graph.nodes:
        if node.op in ("Maximum", "Minimum", "Where") and np.any(values[node.inputs[0]] == values[node.inputs[1]]):
            return True
        if node.op in ("Max", "Prod") and len(np.unique(values[node.inputs[0]])) < values[node.inputs[0]].size:
            return True
        if node.op in ("Abs", "Sign", "Relu") and np.any(values[node.inputs[0]] == 0):
            return True
    return False


# -- calls with bad arguments ------------------------------------------------------------------------------------

#: Name, call given (the library's gradients, x, y = x * x, constant), and why distgrad's exception differs, if it does.
BAD_CALLS: list[tuple[str, Callable[..., Any], str | None]] = [
    ("too few grad_ys", lambda G, x, y, c: G([y, y], x, grad_ys=[c(1.0)]), None),
    ("too many grad_ys", lambda G, x, y, c: G(y, x, grad_ys=[c(1.0), c(1.0)]), None),
    ("empty grad_ys", lambda G, x, y, c: G(y, x, grad_ys=[]), None),
    ("bool grad_ys", lambda G, x, y, c: G(y, x, grad_ys=c(True)), None),
    ("complex grad_ys", lambda G, x, y, c: G(y, x, grad_ys=c(1j)), None),
    ("grad_ys of another dtype", lambda G, x, y, c: G(y, x, grad_ys=c(np.float64(1.0))), None),
    ("grad_ys of another shape", lambda G, x, y, c: G(y, x, grad_ys=c(np.ones((3,), np.float32))), None),
    ("unknown unconnected_gradients", lambda G, x, y, c: G(y, x, unconnected_gradients="nonsense"), None),
    ("unknown aggregation_method", lambda G, x, y, c: G(y, x, aggregation_method=17), None),
    ("an object as ys", lambda G, x, y, c: G(object(), x), None),
    ("a dict as xs", lambda G, x, y, c: G(y, {"x": x}), None),
    ("a nested list as xs", lambda G, x, y, c: G(y, [[x]]), None),
    ("None as ys", lambda G, x, y, c: G(None, x), "TypeError instead of a leaked AttributeError"),
    ("None in xs", lambda G, x, y, c: G(y, [x, None]), "TypeError instead of a leaked AttributeError"),
    ("a float to stop at", lambda G, x, y, c: G(y, x, stop_gradients=[1.0]), "TypeError instead of AttributeError"),
    ("an invalid name", lambda G, x, y, c: G(y, x, name="no spaces"), None),
    ("colocate_gradients_with_ops", lambda G, x, y, c: G(y, x, colocate_gradients_with_ops=True), None),
]


def bad_calls() -> tuple[int, list[str]]:
    explained, unexplained = 0, []
    for name, call, reason in BAD_CALLS:
        with dg.Graph():
            x = dg.constant(np.float32([2.0, 3.0]))
            ours = attempt(lambda x=x, call=call: call(dg.gradients, x, x * x, dg.constant))
        with tf.Graph().as_default():
            t = tf.constant([2.0, 3.0])
            theirs = attempt(lambda t=t, call=call: call(tf.gradients, t, t * t, tf.constant))
        if isinstance(ours, str) and ours == theirs:
            continue
        if reason is not None and isinstance(ours, str):
            explained += 1
        else:
            unexplained.append(f"{name}: distgrad {ours}, TensorFlow {theirs}")
    return explained, unexplained


# -- the run -----------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    unexplained: list[str] = []
    for seed in range(args.seed, args.seed + args.graphs):
        if (seed - args.seed) % 50 == 0:
            print(f"{seed - args.seed} of {args.graphs} graphs", file=sys.stderr)
        q = question(seed)
        ours, theirs, third = ask_distgrad(q), ask_tensorflow(q), ask_jax(q)
        counts["raised" if isinstance(theirs, str) else "gave values"] += 1
        if not isinstance(theirs, str):
            counts["gradients None"] += sum(g is None for g in theirs[1])
            counts["gradients sparse"] += sum(isinstance(g, tuple) for g in theirs[1])
            counts["gradients dense"] += sum(isinstance(g, np.ndarray | np.generic) for g in theirs[1])
        if not compare(ours, theirs) and leaked_zeros(q, ours, theirs):
            counts["explained: TensorFlow leaks the zeros it fills in"] += 1
        elif not compare(ours, theirs):
            unexplained.append(f"seed {seed}: {q}\n  distgrad   {ours}\n  TensorFlow {theirs}")
        if third is not None and not isinstance(ours, str):
            counts["compared with JAX"] += 1
            if not compare(ours, third, none_is_zero=True):
                if tied(q):
                    counts["explained: JAX shares the gradient of a tie"] += 1
                else:
                    unexplained.append(f"seed {seed}: {q}\n  distgrad   {ours}\n  JAX        {third}")
    explained, wrong = bad_calls()
    counts["bad calls"] = len(BAD_CALLS)
    counts["explained: bad calls with a kinder exception"] = explained
    unexplained += wrong
    print(f"TensorFlow {tf.__version__}, JAX {jax.__version__}, {args.graphs} random graphs")
    for what, n in sorted(counts.items()):
        print(f"  {n:6} {what}")
    print(f"  {len(unexplained):6} unexplained differences")
    if counts["gave values"] < args.graphs / 2 or counts["compared with JAX"] < args.graphs / 10:
        unexplained.append("too few graphs gave values: the comparison says little")
    print("\n".join(unexplained[:10]))
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
