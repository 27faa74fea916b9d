"""The layout of an arena: where values with disjoint lifetimes lie in one block of memory.

Predictions and the engine use the same, so the gaps between values are predicted too.
"""

from __future__ import annotations

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
        self._free: list[tuple[int, int]] = []  # (offset, size), by offset, never touching each other

    def take(self, nbytes: int) -> int:
        """The offset of the smallest free range that fits; the arena grows if there is none."""
        need = _rounded(nbytes)
        fits = [(size, offset) for offset, size in self._free if size >= need]
        if fits:
            size, offset = min(fits)
            self._free.remove((offset, size))
            if size > need:
                self._insert(offset + need, size - need)
            return offset
        if self._free and sum(self._free[-1]) == self.size:  # extend the last free range
            offset, _ = self._free.pop()
        else:
            offset = self.size
        self.size = offset + need
        return offset

    def give(self, offset: int, nbytes: int) -> None:
        self._insert(offset, _rounded(nbytes))

    def _insert(self, offset: int, size: int) -> None:
        at = next((i for i, (o, _) in enumerate(self._free) if o > offset), len(self._free))
        if at < len(self._free) and offset + size == self._free[at][0]:
            size += self._free.pop(at)[1]
        if at and sum(self._free[at - 1]) == offset:
            before = self._free.pop(at - 1)
            offset, size = before[0], before[1] + size
            at -= 1
        self._free.insert(at, (offset, size))


def _rounded(nbytes: int) -> int:
    return -(-max(nbytes, 1) // ALIGN) * ALIGN
