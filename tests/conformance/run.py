"""`make conformance`: the same random graphs in distgrad, TensorFlow and JAX.

With TensorFlow, values, gradients, their dtypes, which of them are None or sparse, and the type of what is raised are
compared; with JAX, values and gradients; with both, second derivatives. A difference that is understood is counted
under its explanation (docs/differences.md); any other is printed with its graph, and the exit code is 1. So it is when
too little of some kind was met for the comparison to mean anything.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import jax
import numpy as np
import tensorflow as tf

from tests.conformance.ask import ask_distgrad, ask_jax, ask_tensorflow
from tests.conformance.bad_calls import BAD_CALLS, bad_calls
from tests.conformance.defuns import compare_defuns
from tests.conformance.questions import Answer, Question, Sparse, question, single_outputs
from tests.conformance.tables import JAX_KINKS, SHARED

jax.config.update("jax_enable_x64", True)

#: How many there must be of each, per graph.
FLOORS = {
    "gave values": 0.7,
    "raised": 0.03,
    "gradients None": 0.2,
    "gradients dense": 1.0,
    "gradients sparse": 0.08,
    "in float32": 0.15,
    "stopped on the way": 0.2,
    "with a custom gradient": 0.3,
    "with a call of a function": 0.3,
    "compared with JAX": 0.4,
    "second derivatives compared with TensorFlow": 0.5,
    "second derivatives that are not zero": 0.3,
    "Defuns compared": 0.1,
}


# -- comparing ---------------------------------------------------------------------------------------------------


def same(a: Any, b: Any, none_is_zero: bool = False) -> bool:
    """Whether two gradients are one, in float32 roughly. With `none_is_zero`, sparse ones are dense, too."""
    if none_is_zero:
        a, b = (g.dense() if isinstance(g, Sparse) else g for g in (a, b))
    if a is None or b is None:
        return a is b or (none_is_zero and not np.any(b if a is None else a))
    if isinstance(a, Sparse) and isinstance(b, Sparse):
        return a.dense_shape == b.dense_shape and np.array_equal(a.indices, b.indices) and same(a.values, b.values)
    if isinstance(a, Sparse) or isinstance(b, Sparse):
        return False
    a, b = np.asarray(a), np.asarray(b)
    rtol, atol = (1e-3, 1e-4) if a.dtype == np.float32 else (1e-9, 1e-10)
    return a.shape == b.shape and a.dtype == b.dtype and bool(np.allclose(a, b, rtol, atol, equal_nan=True))


def all_same(ours: Sequence[Any], theirs: Sequence[Any], none_is_zero: bool = False) -> bool:
    return all(same(a, b, none_is_zero) for a, b in zip(ours, theirs, strict=True))


def leaked_zeros(q: Question, ours: Answer, theirs: Answer) -> bool:
    """Whether they differ only where TensorFlow reports its own filling-in as a result.

    An output of a multi-output op that ys do not depend on is unconnected. TensorFlow gives None for it too, unless
    another x lies upstream: then the zeros that it hands to the op's gradient function come back as the gradient.
    """
    single = set(single_outputs(q.graph))
    differing = [i for i, pair in enumerate(zip(ours.first, theirs.first, strict=True)) if not same(*pair)]
    return all_same(ours.values, theirs.values) and all(
        q.xs[i] not in single and ours.first[i] is None and not np.any(theirs.first[i]) for i in differing
    )


def like_jax(ours: Answer, third: Answer) -> bool:
    first = all_same(ours.values, third.values) and all_same(ours.first, third.first, none_is_zero=True)
    return first and not isinstance(ours.second, str) and all_same(ours.second, third.second, none_is_zero=True)


class Comparison:
    """What was met so far, and what nobody can explain."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.unexplained: list[str] = []

    def ask(self, seed: int) -> None:
        q = question(seed)
        ours, theirs = ask_distgrad(q), ask_tensorflow(q)
        third = ask_jax(q) if seed % 3 else None  # JAX compiles every op for every shape: most of the time is its
        self.count(q, theirs)
        if isinstance(ours, str) or isinstance(theirs, str):
            if ours != theirs:
                self.report(seed, q, ours, theirs)
            return
        self.compare_first(seed, q, ours, theirs)
        self.compare_second(seed, q, ours, theirs)
        if third is not None:
            self.compare_jax(seed, q, ours, third)

    def count(self, q: Question, theirs: Answer | str) -> None:
        counts, ops = self.counts, {node.op for node in q.graph.nodes}
        counts["raised" if isinstance(theirs, str) else "gave values"] += 1
        counts["in float32"] += q.dtype == "float32"
        counts["stopped on the way"] += any(v >= len(q.graph.leaves) for v in q.stops)
        counts["with a custom gradient"] += any(op in SHARED and not op.startswith("Called") for op in ops)
        counts["with a call of a function"] += any(op in SHARED and op.startswith("Called") for op in ops)
        for g in [] if isinstance(theirs, str) else theirs.first:
            counts[f"gradients {'None' if g is None else 'sparse' if isinstance(g, Sparse) else 'dense'}"] += 1

    def compare_first(self, seed: int, q: Question, ours: Answer, theirs: Answer) -> None:
        if all_same(ours.values, theirs.values) and all_same(ours.first, theirs.first):
            return
        if leaked_zeros(q, ours, theirs):
            self.counts["explained: TensorFlow leaks the zeros it fills in"] += 1
        else:
            self.report(seed, q, ours, theirs)

    def compare_second(self, seed: int, q: Question, ours: Answer, theirs: Answer) -> None:
        """None and zeros are one here: which of them it is depends on how the rules of the library are written."""
        if isinstance(ours.second, str):
            self.report(seed, q, ours, theirs)
        elif isinstance(theirs.second, str):
            self.counts[f"explained: TensorFlow has no second derivative ({theirs.second})"] += 1
        else:
            self.counts["second derivatives compared with TensorFlow"] += 1
            self.counts["second derivatives that are not zero"] += any(g is not None and g.any() for g in ours.second)
            if not all_same(ours.second, theirs.second, none_is_zero=True):
                self.report(seed, q, ours, theirs)

    def compare_jax(self, seed: int, q: Question, ours: Answer, third: Answer) -> None:
        self.counts["compared with JAX"] += 1
        if like_jax(ours, third):
            return
        with_our_rules = ask_jax(q, JAX_KINKS)
        if with_our_rules is not None and like_jax(ours, with_our_rules):
            self.counts["explained: JAX has another rule at a tie, or for abs at 0"] += 1
        else:
            self.report(seed, q, ours, third, "JAX")

    def report(self, seed: int, q: Question, ours: Any, theirs: Any, who: str = "TensorFlow") -> None:
        self.unexplained.append(f"seed {seed}: {q}\n  distgrad   {ours}\n  {who:10} {theirs}")

    def check_floors(self, graphs: int) -> None:
        for what, share in FLOORS.items():
            if self.counts[what] < int(share * graphs):
                self.unexplained.append(f"only {self.counts[what]} {what}, where {int(share * graphs)} should be met")


# -- the run -----------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    args = parser.parse_args()
    comparison, start = Comparison(), time.monotonic()
    for i in range(args.graphs):
        if i % 25 == 0:
            seconds = time.monotonic() - start
            print(f"\r{i} of {args.graphs} graphs, {seconds:.0f} s", end="", file=sys.stderr, flush=True)
        comparison.ask(args.seed + i)
    print(f"\r{args.graphs} graphs, {time.monotonic() - start:.0f} s    ", file=sys.stderr)
    counts, unexplained = comparison.counts, comparison.unexplained
    defuns, wrong = compare_defuns(range(args.seed, args.seed + args.graphs // 5))
    counts.update(defuns)
    unexplained += wrong
    kinder, wrong = bad_calls()
    counts["bad calls"] = len(BAD_CALLS)
    counts["explained: bad calls with a kinder exception"] = kinder
    unexplained += wrong
    comparison.check_floors(args.graphs)
    print(f"TensorFlow {tf.__version__}, JAX {jax.__version__}, {args.graphs} random graphs")
    for what, n in sorted(counts.items()):
        print(f"  {n:6} {what}")
    print(f"  {len(unexplained):6} unexplained differences")
    print("\n".join(unexplained[:10]))
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
