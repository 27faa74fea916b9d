"""Blocking: into how many blocks the NumPy engine splits a step, and the scratch bytes of each thread.

Time and memory are both predicted from this. Groups run in exactly these blocks; for products the engine has its own
copy of the figure, and a test keeps them equal. Convolutions have a file of their own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from distgrad.registry import Kind, kind_of
from distgrad.scheduler.program import Step
from distgrad.types import Shape

#: Target elements per block; one row if rows are longer. Smaller blocks would stay in a faster cache, but threads hand
#: over the interpreter lock after every call, which takes as long as a call on a small block.
BLOCK = 192 << 10
#: From this many elements on, a group with sums over its rows has at least this many blocks, so that threads can take
#: some of the rows through many steps; sums are made of whole blocks.
FOLDED, FEWEST = 128 << 10, 4
#: Minimum elements times steps of a group that threads share: below it, waking threads costs more than it saves.
ALONE = 1 << 20
#: Elements per row when whole arrays are summed.
ROW = 1024
#: Minimum number of such rows at which blocks are made of whole rows.
EVEN = 32
#: Minimum flops of each half of a matrix product that is split across threads.
PIECE_FLOPS = 4 << 20


class Cut(NamedTuple):
    """Number of blocks, rows of the space per block, and whether threads share the blocks."""

    blocks: int
    rows: int
    shared: bool


def cut_group(step: Step) -> Cut:
    """The blocks of a group. Depends on the step alone, because sums depend on it.

    The count is even if above one, so that two threads finish together. For sums over rows it is a power of two, so
    that halves and quarters are whole blocks.
    """
    space: Shape = step.attrs["space"]
    elements, rows = math.prod(space), math.prod(space[: step.attrs["split"]])
    count = -(-elements // BLOCK)
    if len(space) > 1 and elements >= FOLDED and _folds(step):
        count = max(1 << (count - 1).bit_length(), FEWEST)
    elif count > 1:
        count += count % 2
    height = _even(max(-(-rows // max(count, 1)), 1), elements // max(rows, 1))
    count = -(-rows // height)
    return Cut(count, height, count > 1 and is_shared(step))


def is_shared(step: Step) -> bool:
    """Whether a group has enough to do for several threads."""
    space: Shape = step.attrs["space"]
    return math.prod(space) * len(step.body) >= ALONE


def _folds(step: Step) -> bool:
    return any(reduces_rows(inner) for inner in step.body)


def reduces_rows(inner: Step) -> bool:
    """Whether a step of a group reduces leading axes, of which each block makes a part."""
    return kind_of(inner.type) is Kind.REDUCTION and 0 in inner.attrs["axis"]


def _even(height: int, row: int) -> int:
    """Round up the rows per block if that adds little, so that blocks start at cache lines without remainders."""
    step = ROW // math.gcd(ROW, row)
    return -(-height // step) * step if height >= EVEN * step else height
