"""The arena: places never overlap, memory is kept for the next run, and runs at the same time have one each."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distgrad.scheduler.cost.layout import ALIGN, Layout
from distgrad.workers.arena import MAX_IDLE_ARENAS, Arena, Arenas

#: Take so many bytes, or give back the n-th of those that are taken (modulo their number).
Moves = list[tuple[str, int]]
moves = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.sampled_from([0, 1, 63, 64, 65, 100, 640, 1000, 4096])),
        st.tuples(st.just("give"), st.integers(0, 50)),
    ),
    max_size=50,
)
common = settings(deadline=None, max_examples=80, derandomize=True)


def rounded(nbytes: int) -> int:
    return -(-max(nbytes, 1) // ALIGN) * ALIGN


def play(layout: Layout, played: Moves) -> list[list[tuple[int, int]]]:
    """The places that are taken after each move."""
    taken: list[tuple[int, int]] = []
    states = []
    for move, n in played:
        if move == "take":
            taken.append((layout.take(n), n))
        elif taken:
            layout.give(*taken.pop(n % len(taken)))
        states.append(list(taken))
    return states


@common
@given(moves)
def test_places_that_are_taken_never_overlap(played: Moves) -> None:
    for taken in play(Layout(), played):
        ends = sorted((offset, offset + rounded(n)) for offset, n in taken)
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))


@common
@given(moves)
def test_places_are_aligned_and_within_the_size(played: Moves) -> None:
    layout = Layout()
    for taken in play(layout, played):
        assert all(offset % ALIGN == 0 and offset + n <= layout.size for offset, n in taken)


@common
@given(moves)
def test_the_size_is_at_least_the_peak_and_at_most_all_that_was_taken(played: Moves) -> None:
    layout = Layout()
    peak = max([sum(rounded(n) for _, n in taken) for taken in play(layout, played)], default=0)
    assert peak <= layout.size <= sum(rounded(n) for move, n in played if move == "take")


@common
@given(moves)
def test_when_all_is_given_back_all_fits_in_one_place_again(played: Moves) -> None:
    layout = Layout()
    states = play(layout, played)
    for place in states[-1] if states else []:
        layout.give(*place)
    size = layout.size
    assert size == 0 or layout.take(size) == 0
    assert layout.size == size


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)])
def test_neighbours_that_are_given_back_become_one_place(order: tuple[int, ...]) -> None:
    layout = Layout()
    places = [layout.take(64) for _ in range(3)]
    for i in order:
        layout.give(places[i], 64)
    assert layout.take(192) == 0


def test_what_lives_by_turns_needs_room_for_one() -> None:
    """The arrays of a chain: each dies when the next but one is made."""
    layout = Layout()
    last = layout.take(1000)
    for _ in range(100):
        place = layout.take(1000)
        layout.give(last, 1000)
        last = place
    assert layout.size == 2 * rounded(1000)


def test_memory_is_aligned_and_grows_only() -> None:
    arena = Arena()
    arena.reserve(1000)
    memory = arena.memory
    arena.reserve(10)
    assert arena.memory is memory
    assert memory.ctypes.data % ALIGN == 0
    assert memory.size >= 1000


def test_what_was_bound_to_memory_that_is_gone_is_forgotten() -> None:
    class Bound: ...

    arena, bound = Arena(), Bound()
    arena.reserve(100)
    arena.bound[bound] = [arena.memory]
    arena.reserve(200)
    assert bound not in arena.bound


def test_an_arena_is_used_again_but_never_twice_at_once() -> None:
    arenas = Arenas()
    first, second = arenas.take(), arenas.take()
    assert first is not second
    arenas.give(first)
    assert arenas.take() is first


def test_only_a_few_arenas_are_kept() -> None:
    arenas = Arenas()
    several = [arenas.take() for _ in range(2 * MAX_IDLE_ARENAS)]
    for arena in several:
        arenas.give(arena)
    assert sum(arenas.take() in several for _ in range(2 * MAX_IDLE_ARENAS)) == MAX_IDLE_ARENAS
