"""What the benchmark runs on Ray from its own process: each row is a function that does the work once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import ray
from steps import in_distgrad, inputs

import distgrad as dg

from . import by_hand

Array = np.ndarray[Any, np.dtype[Any]]

WORKERS = 2
#: Bytes of the object store: the eight terms and all partial sums of the program by hand.
STORE = 1 << 30
TERMS, TERM_BYTES = 8, 32 << 20
TASKS = 1000


class Run(NamedTuple):
    """A row: what to do once, and from what that gives its arrays, if they are to be compared."""

    title: str
    once: Callable[[], Any]
    arrays: Callable[[Any], list[Array]] | None = None
    predicted: float | None = None


def session(workers: int = WORKERS, **options: Any) -> dg.Session:
    """The first starts Ray, others join it."""
    return dg.Session("ray", workers=workers, **options)


def placed(where: dg.Session, tree: Any) -> Any:
    """Put these arrays into the store, and return handles."""
    return where.submit(dg.function(lambda x: x, name="place"), tree)


# -- gradients of gpt --------------------------------------------------------------------------------------------


@contextmanager
def gpt(two: dg.Session) -> Iterator[dict[str, Run]]:
    params, data = inputs.make("gpt")
    step = dg.data_parallel(dg.value_and_grad(in_distgrad.gpt), shards=WORKERS)
    there, tasks, actors = placed(two, params), by_hand.Tasks(params), by_hand.Actors(params)
    with session(workers=1) as one:
        lonely = placed(one, params)
        yield {
            "left": _submitted("distgrad, left in the store", two, step, there, *data),
            "fetched": Run("distgrad, fetched", lambda: _within(two, step, there, *data), _arrays),
            "one": _submitted("distgrad, 1 worker, left", one, step, lonely, *data),
            "hand-left": Run("Ray tasks by hand, left", lambda: _left(tasks(*data)), ray.get),
            "hand": Run("Ray tasks by hand, fetched", lambda: ray.get(tasks(*data)), list),
            "actors": Run("Ray actors by hand, fetched", lambda: ray.get(actors(*data)), list),
        }


def _arrays(made: Any) -> list[Array]:
    return [np.asarray(x) for x in inputs.leaves(made)]


def _within(where: dg.Session, function: Any, *args: Any) -> Any:
    from distgrad import runtime

    runtime.push(where)
    try:
        return function(*args)
    finally:
        runtime.remove(where)


def _submitted(title: str, where: dg.Session, step: Any, *args: Any) -> Run:
    """The step with its results left in the store, and what its plan says."""
    said = float(_within(where, step.plan, *args).predictions.seconds)
    return Run(title, lambda: where.submit(step, *args), _arrays, said)


def _left(ref: Any) -> Any:
    ray.wait([ref], fetch_local=False)
    return ref


# -- the sum of large arrays -------------------------------------------------------------------------------------


@contextmanager
def tree(two: dg.Session) -> Iterator[dict[str, Run]]:
    rng = np.random.default_rng(0)
    terms = [rng.standard_normal(TERM_BYTES // 4, np.float32) for _ in range(TERMS)]
    total = dg.function(lambda *xs: dg.add_n(xs), name="total")
    there, refs = placed(two, terms), [ray.put(x) for x in terms]
    source, target = terms[0], np.empty_like(terms[0])
    yield {
        "left": Run("distgrad, left in the store", lambda: two.submit(total, *there), lambda made: [made.numpy()]),
        "fetched": Run("distgrad, read in place", lambda: two.submit(total, *there).value(), lambda made: [made]),
        "hand-left": Run("pairwise Ray tasks, left", lambda: _left(by_hand.tree_sum(refs)), lambda ref: [ray.get(ref)]),
        "hand": Run("pairwise Ray tasks, read in place", lambda: ray.get(by_hand.tree_sum(refs)), lambda made: [made]),
        "memcpy": Run("a copy of one of the terms", lambda: np.copyto(target, source)),
    }


# -- tasks that do nothing ---------------------------------------------------------------------------------------


@contextmanager
def tasks(_: dg.Session) -> Iterator[dict[str, Run]]:
    """Every product is a task of its own, as any is longer than the granularity asked for; and all have one body."""
    function = dg.function(lambda xs: [x * 2.0 for x in xs], name="many")
    one = [np.array(float(i)) for i in range(TASKS)]
    with session(granularity=1e-12) as fine:
        there = len(_within(fine, function.plan, one).tasks)
        if there != TASKS:
            raise RuntimeError(f"the plan has {there} tasks, not {TASKS}")
        yield {
            "left": Run("distgrad", lambda: fine.submit(function, one), lambda made: [x.numpy() for x in made[:3]]),
            "hand": Run("Ray", lambda: by_hand.many(TASKS)),
        }
