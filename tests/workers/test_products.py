"""Products in pieces: every part of the result is in one of them, and who computes it changes no bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distgrad.workers.kernels.products import pieces, product
from distgrad.workers.kernels.sharing import BlockRunner, shared


@given(st.integers(1, 5000), st.integers(1, 64), st.sampled_from([1, 16]))
def test_pieces_lie_side_by_side_and_the_long_ones_come_first(n: int, count: int, tile: int) -> None:
    parts = pieces(n, count, tile)
    lengths = [part.stop - part.start for part in parts]
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == n
    assert min(lengths) > 0
    assert all(length % tile == 0 for length in lengths[:-1])
    assert lengths[:count] == sorted(lengths[:count], reverse=True)
    assert max(lengths) < -(-n // count) + tile
    assert len(parts) <= 2 * count


SHAPES = [((1024, 256), (256, 192)), ((96, 700), (700, 1000)), ((8, 40, 300), (300, 200)), ((8, 128, 96), (8, 96, 128))]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_the_order_of_pieces_changes_no_bit(shapes: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype("float32") for shape in shapes)
    counts = []

    def backwards(count: int, work: BlockRunner) -> None:
        counts.append(count)
        work(iter(range(count - 1, -1, -1)))

    def forwards(count: int, work: BlockRunner) -> None:
        for i in range(count):
            work(_one(i))

    found = []
    for each in (forwards, backwards):
        with shared(2, each):
            found.append(product(a, b, np.full((a @ b).shape, 7, "float32")))
    assert counts == [4]
    assert found[0].tobytes() == found[1].tobytes()
    np.testing.assert_allclose(found[0], a.astype("float64") @ b, rtol=1e-4, atol=1e-4)


def _one(i: int) -> Iterator[int]:
    yield i
