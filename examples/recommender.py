"""Who clicks what: a recommender whose embedding has a million rows, of which a step touches a few thousand.

A click is predicted from the rows of a user and of an item: their dot product. The gradient of the table is an
`IndexedSlices`: the rows that the batch looked up, and their indices. It stays sparse from the lookup through the sum
over shards to the update, which computes with those rows alone. (The new table is a copy of the old one with these rows
changed: a step is a transaction, and until it has succeeded the old table must be there.)

    python examples/recommender.py
    distgrad run examples/recommender.py --workers 2

Prints how much smaller the gradients are than the table, how well clicks of another day are ranked (the area under the
ROC curve: 0.5 is guessing), and that rows which no batch touched have the bits they began with.
"""

from __future__ import annotations

import argparse
import functools

import numpy as np

import distgrad as dg

WIDTH, GENRES = 16, 8


def day(seed: int, rows: int, clicks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What was shown to whom, whether they clicked, and whether they like it: each item is of one of eight genres.

    Some users come often and some items are shown often. Users have the rows of the first half, items the others.
    """
    rng, half = np.random.default_rng(seed), rows // 2
    user, item = (half ** rng.uniform(size=(2, clicks))).astype(np.int64) - 1  # the n-th comes 1/n as often
    taste = user * 7919 % 3**GENRES  # whose digits to the base of 3 say which genres the user likes
    likes = taste // 3 ** (item % GENRES) % 3 == 0
    clicked = rng.uniform(size=clicks) < np.where(likes, 0.9, 0.1)
    return np.stack([user, half + item], axis=1), clicked.astype("float32"), likes


def score(table, ids):
    user, item = np.moveaxis(dg.nn.embedding(table, ids), 1, 0)
    return np.sum(user * item, axis=1)


def loss(table, ids, clicked):
    """The cross-entropy of clicks, mean over the batch."""
    s = score(table, ids)
    return np.mean(dg.nn.softplus(s) - clicked * s)


def trainer(table: dg.Variable, shards: int, rate: float = 0.2):
    """A function that takes one step of Adagrad, with one rate per row: rows that were seen often move less."""
    squares = dg.Variable(np.full(table.shape[0], 1e-8, "float32"), name="squares")

    @functools.partial(dg.data_parallel, shards=shards)
    def gradient(ids, clicked):
        value = loss(table, ids, clicked)
        return value, dg.gradients(value, table)[0]

    @dg.function
    def step(ids, clicked):
        value, g = gradient(ids, clicked)
        seen = squares.assign(dg.scatter_add(squares, g.indices, np.mean(g.values**2, axis=1)))
        speed = rate / np.sqrt(dg.gather(seen, g.indices))
        table.assign(dg.scatter_add(table, g.indices, -speed[:, None] * g.values))
        return value, g.values

    return step


def ranked(scores: np.ndarray, clicked: np.ndarray) -> float:
    """The probability that what was clicked has a higher score than what was not: the area under the ROC curve."""
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    below = np.cumsum(count) - (count + 1) / 2  # equal scores share their places
    good, bad = clicked.sum(), (1 - clicked).sum()
    return float((below[place][clicked == 1].sum() - good * (good - 1) / 2) / (good * bad))


def main(steps: int = 300, rows: int = 1_000_000, clicks: int = 4096, shards: int = 2) -> np.ndarray:
    """The area under the ROC curve before and after, and the share of rows that changed."""
    table = dg.Variable(lambda: 0.1 * dg.random.normal(dg.random.key(0), (rows, WIDTH), "float32"), name="table")
    before, step = table.numpy(), trainer(table, shards)
    other_ids, other_clicked, likes = day(10**6, rows, 20_000)
    predict = dg.function(lambda ids: score(table, ids))
    first = ranked(predict(other_ids), other_clicked)

    touched, values = np.zeros(rows, bool), before
    for i in range(steps):
        ids, clicked, _ = day(i, rows, clicks)
        touched[ids] = True
        value, values = step(ids, clicked)
        if i % 50 == 0 or i == steps - 1:
            print(f"step {i:3d}  loss {float(value):.4f}")
    last = ranked(predict(other_ids), other_clicked)

    after, needs = table.numpy(), step.plan(ids, clicked).predictions.peak_bytes
    print(f"\nthe table has {rows:,} rows and {before.nbytes / 1e6:,.1f} MB, a gradient {values.nbytes / 1e6:,.3f} MB;")
    print(f"a step allocates {needs / 1e6:,.1f} MB, the new table among them")
    print(f"{touched.sum():,} rows were touched; the others are as before: {(after == before)[~touched].all()}")
    print(f"clicks of another day are ranked right with probability {first:.3f} before, {last:.3f} after,")
    print(f"and with {ranked(likes, other_clicked):.3f} by who knows everyone's taste")
    return np.array([first, last, (after != before).any(axis=1).mean()])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the table")
    parser.add_argument("--clicks", type=int, default=4096, help="in a batch")
    parser.add_argument("--shards", type=int, default=2, help="that a batch is cut into")
    main(**vars(parser.parse_args()))
