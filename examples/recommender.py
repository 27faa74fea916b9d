"""A recommender: predicts clicks with an embedding of a million rows, of which a step updates a few thousand.

A click is predicted by the dot product of the rows of a user and an item. The gradient of the table is an
`IndexedSlices`: the rows that the batch looked up, and their indices. It stays sparse from the lookup through the sum
over shards to the update, which computes only these rows. (The new table is a copy of the old one with these rows
changed: a step is a transaction, and the old table is needed until the step has succeeded.)

    python examples/recommender.py
    distgrad run examples/recommender.py --workers 2

Prints how much smaller the gradients are than the table, how well clicks of another day are ranked (the area under the
ROC curve: 0.5 is guessing), and that rows that no batch looked up are unchanged.
"""

from __future__ import annotations

import argparse
import functools

import numpy as np

import distgrad as dg

WIDTH, GENRES = 16, 8


def day(seed: int, rows: int, clicks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random impressions: user and item, whether the user clicked, and whether the user likes the item's genre.

    Some users and items are much more frequent than others. Users have the first half of the rows, items the second.
    """
    rng, half = np.random.default_rng(seed), rows // 2
    user, item = (half ** rng.uniform(size=(2, clicks))).astype(np.int64) - 1  # the frequency of the n-th is 1/n
    taste = user * 7919 % 3**GENRES  # its base-3 digits are the user's taste in each genre
    likes = taste // 3 ** (item % GENRES) % 3 == 0
    clicked = rng.uniform(size=clicks) < np.where(likes, 0.9, 0.1)
    return np.stack([user, half + item], axis=1), clicked.astype("float32"), likes


def score(table, ids):
    user, item = np.moveaxis(dg.nn.embedding(table, ids), 1, 0)
    return np.sum(user * item, axis=1)


def loss(table, ids, clicked):
    """The mean cross-entropy of clicks over the batch."""
    s = score(table, ids)
    return np.mean(dg.nn.softplus(s) - clicked * s)


def trainer(table: dg.Variable, shards: int, rate: float = 0.2):
    """A function that takes one step of Adagrad with one rate per row: frequent rows move less."""
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
    """The area under the ROC curve: the probability that a clicked item has a higher score than one not clicked."""
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    below = np.cumsum(count) - (count + 1) / 2  # ties share their rank
    good, bad = clicked.sum(), (1 - clicked).sum()
    return float((below[place][clicked == 1].sum() - good * (good - 1) / 2) / (good * bad))


def main(steps: int = 300, rows: int = 1_000_000, clicks: int = 4096, shards: int = 2) -> np.ndarray:
    """The area under the ROC curve before and after training, and the fraction of rows that changed."""
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
    print(f"a step allocates {needs / 1e6:,.1f} MB, including the new table")
    print(f"{touched.sum():,} rows were looked up; the others are unchanged: {(after == before)[~touched].all()}")
    print(f"clicks of another day are ranked correctly with probability {first:.3f} before, {last:.3f} after,")
    print(f"and with {ranked(likes, other_clicked):.3f} by an oracle that knows everyone's taste")
    return np.array([first, last, (after != before).any(axis=1).mean()])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table")
    parser.add_argument("--clicks", type=int, default=4096, help="clicks in a batch")
    parser.add_argument("--shards", type=int, default=2, help="shards of a batch")
    main(**vars(parser.parse_args()))
