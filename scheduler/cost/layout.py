"""The layout of an arena: where values with disjoint lifetimes lie in one block of memory.

Predictions and the engine use the same, so the gaps between values are predicted too.
"""

from __future__ import annotations

from bisect import bisect_left, insort

#: Alignment of values in bytes: a cache line.
ALIGN = 64


class Layout:
    """Allocates offsets of an arena and frees them; `size` is the bytes that the arena needs.

    >>> layout = Layout()
    >>> a, b = layout.take(100), layout.take(100)
    >>> layout.give(a, 100)
    >>> layout.take(64) == a, layout.size
    (True, 256)
    """

    def __init__(self) -> None:
        self.size = 0
        self._sizes: dict[int, int] = {}  # of the free ranges, by offset; they never touch each other
        self._starts: dict[int, int] = {}  # of the free ranges, by their end
        self._sorted: list[tuple[int, int]] = []  # (size, offset) of the free ranges

    def take(self, nbytes: int) -> int:
        """The offset of the smallest free range that fits; the arena grows if there is none."""
        need = -(-nbytes // ALIGN) * ALIGN or ALIGN
        free = self._sorted
        at = bisect_left(free, (need, 0))
        if at < len(free):
            size, offset = free.pop(at)
            del self._sizes[offset], self._starts[offset + size]
            if size > need:
                self._add(offset + need, size - need)
            return offset
        if self.size in self._starts:  # extend the last free range
            offset = self._starts[self.size]
            self._remove(offset, self.size - offset)
        else:
            offset = self.size
        self.size = offset + need
        return offset

    def give(self, offset: int, nbytes: int) -> None:
        """Free a range, which becomes one with free neighbours."""
        size = -(-nbytes // ALIGN) * ALIGN or ALIGN
        after = self._sizes.get(offset + size)
        if after is not None:
            self._remove(offset + size, after)
            size += after
        before = self._starts.get(offset)
        if before is not None:
            self._remove(before, offset - before)
            offset, size = before, size + offset - before
        self._add(offset, size)

    def _add(self, offset: int, size: int) -> None:
        self._sizes[offset] = size
        self._starts[offset + size] = offset
        insort(self._sorted, (size, offset))

    def _remove(self, offset: int, size: int) -> None:
        del self._sizes[offset], self._starts[offset + size]
        del self._sorted[bisect_left(self._sorted, (size, offset))]
