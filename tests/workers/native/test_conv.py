"""Native convolutions against the plain kernels of workers/kernels/conv.py, which run on any array namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from distgrad.workers import native
from distgrad.workers.kernels import KERNELS

if native.unusable():
    pytest.skip(f"native code: {native.unusable()}", allow_module_level=True)

from distgrad.errors import Source
from distgrad.scheduler.cost import convolutions
from distgrad.scheduler.program import Step
from distgrad.types import Spec
from distgrad.workers.native.kernels.steps import native_step
from distgrad.workers.thread_pool import ThreadPool, thread_pool

Array = np.ndarray[Any, np.dtype[Any]]
OPS = ("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter")


class Shapes(NamedTuple):
    images: tuple[int, int, int]  # count, height, width
    window: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    dilation: tuple[int, int] = (1, 1)
    channels: tuple[int, int] = (2, 3)

    @property
    def out(self) -> tuple[int, ...]:
        padded = [n + sum(pad) for n, pad in zip(self.images[1:], self.padding, strict=True)]
        each = zip(padded, self.window, self.strides, self.dilation, strict=True)
        return tuple((n - (k - 1) * d - 1) // s + 1 for n, k, s, d in each)


class Call(NamedTuple):
    """An op on arrays, which the shapes alone decide."""

    type: str
    inputs: tuple[Array, Array]
    attrs: dict[str, Any]
    shape: tuple[int, ...]

    def plain(self) -> Array:
        made: Array = KERNELS[self.type](np, *self.inputs, **self.attrs)
        return made

    def native(self, pool: ThreadPool, inputs: tuple[Array, Array] | None = None) -> Array:
        x, y = self.inputs if inputs is None else inputs
        types = [Spec(x.shape, x.dtype), Spec(y.shape, y.dtype), Spec(self.shape, x.dtype)]
        run = native_step(_step(self.type, self.attrs), types, pool)
        assert run is not None
        return run(x, y, np.full(self.shape, np.nan, x.dtype))


def _step(op_type: str, attrs: dict[str, Any]) -> Step:
    return Step(op_type, (0, 1), (2,), attrs, (), Source("test.py", 1, "f"), op_type)


def calls(shapes: Shapes, dtype: Any = np.float64) -> list[Call]:
    """The convolution and both of its gradients."""
    rng = np.random.default_rng(0)
    channels, made = shapes.channels
    x = rng.standard_normal((*shapes.images, channels)).astype(dtype)
    w = rng.standard_normal((*shapes.window, channels, made)).astype(dtype)
    g = rng.standard_normal((shapes.images[0], *shapes.out, made)).astype(dtype)
    attrs = {name: getattr(shapes, name) for name in ("strides", "padding", "dilation")} | {"groups": 1}
    return [
        Call(OPS[0], (x, w), attrs, g.shape),
        Call(OPS[1], (w, g), attrs | {"size": shapes.images[1:]}, x.shape),
        Call(OPS[2], (x, g), attrs | {"size": shapes.window}, w.shape),
    ]


def assert_as_plain(shapes: Shapes, dtype: Any = np.float64, tolerance: float = 1e-11, threads: int = 1) -> None:
    for call in calls(shapes, dtype):
        made, expected = call.native(thread_pool(threads)), call.plain()
        assert made.dtype == expected.dtype
        np.testing.assert_allclose(made, expected, rtol=tolerance, atol=tolerance * 10, err_msg=call.type)


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
pads = st.tuples(st.integers(0, 3), st.integers(0, 3))
drawn = st.builds(
    Shapes,
    images=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    window=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    strides=pairs,
    padding=st.tuples(pads, pads),
    dilation=pairs,
    channels=st.tuples(st.sampled_from((1, 2, 3, 16, 17)), st.sampled_from((1, 2, 3, 8, 33))),
)
#: Bytes and positions of a tile.
tile_sizes = st.sampled_from(((1, 1), (2000, 3), (1 << 20, 48)))


def with_tiles(patch: pytest.MonkeyPatch, sizes: tuple[int, int], transform: float = convolutions.TRANSFORM) -> None:
    patch.setattr(convolutions, "TILE_BYTES", sizes[0])
    patch.setattr(convolutions, "BLOCK_BYTES", sizes[0])
    patch.setattr(convolutions, "UNIT", sizes[1])
    patch.setattr(convolutions, "TRANSFORM", transform)


@settings(deadline=None)  # the first example compiles
@given(drawn, tile_sizes)
def test_any_window_stride_padding_and_dilation_in_tiles_of_any_size(shapes: Shapes, sizes: tuple[int, int]) -> None:
    assume(min(shapes.out) > 0)
    with pytest.MonkeyPatch.context() as patch:
        with_tiles(patch, sizes)
        assert_as_plain(shapes)


@settings(deadline=None)  # the first example compiles
@given(drawn, tile_sizes)
def test_fewer_products_of_3_by_3_windows_give_the_same_sums(shapes: Shapes, sizes: tuple[int, int]) -> None:
    shapes = shapes._replace(window=(3, 3), strides=(1, 1), dilation=(1, 1))
    assume(min(shapes.out) > 0)
    with pytest.MonkeyPatch.context() as patch:
        with_tiles(patch, sizes, transform=-1e9)
        assert_as_plain(shapes)


SAME = ((1, 1), (1, 1))
TABLE = {
    "3x3, many channels": Shapes((4, 8, 8), (3, 3), padding=SAME, channels=(32, 48)),
    "3x3, odd sizes": Shapes((3, 7, 11), (3, 3), padding=SAME, channels=(24, 24)),
    "3x3, one image, VALID": Shapes((1, 9, 10), (3, 3), channels=(32, 32)),
    "3x3, more padding than window": Shapes((2, 6, 6), (3, 3), padding=((4, 3), (0, 5)), channels=(32, 32)),
    "3x3 at stride 2": Shapes((4, 8, 8), (3, 3), (2, 2), SAME, channels=(16, 32)),
    "3x3 at stride 2, TensorFlow's padding": Shapes((4, 8, 8), (3, 3), (2, 2), ((0, 1), (0, 1)), channels=(16, 32)),
    "1x1": Shapes((4, 5, 6), (1, 1), channels=(16, 8)),
    "1x1 at stride 2": Shapes((4, 8, 7), (1, 1), (2, 2), channels=(16, 8)),
    "1x1 with padding": Shapes((2, 3, 3), (1, 1), padding=((2, 1), (0, 1))),
    "7x7 at stride 2 on colours": Shapes((2, 17, 15), (7, 7), (2, 2), ((3, 3), (3, 3)), channels=(3, 8)),
    "stride larger than window": Shapes((2, 10, 11), (2, 1), (3, 4)),
    "dilated and strided": Shapes((2, 12, 13), (3, 2), (2, 3), SAME, (3, 2)),
    "many tiles": Shapes((5, 33, 31), (3, 3), padding=SAME, channels=(19, 45)),
}


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-11), (np.float32, 2e-5)], ids=["float64", "float32"])
@pytest.mark.parametrize("name", TABLE)
def test_common_layers_are_what_the_plain_kernels_make_of_them(name: str, dtype: Any, tolerance: float) -> None:
    assert_as_plain(TABLE[name], dtype, tolerance, threads=2)


def test_both_ways_are_taken_by_common_layers() -> None:
    def ways(name: str) -> set[type]:
        found = []
        for call in calls(TABLE[name]):
            ins, out = [Spec(x.shape, x.dtype) for x in call.inputs], Spec(call.shape, call.inputs[0].dtype)
            found += convolutions.cut(call.type, convolutions.shapes(call.type, ins, [out], call.attrs))
        return {type(piece) for piece in found}

    assert ways("3x3, many channels") == {convolutions.Tiles}
    assert ways("3x3 at stride 2") == ways("1x1") == {convolutions.Windows}


def test_windows_of_3_by_3_in_float32_are_as_exact_as_the_sum_of_products() -> None:
    """Both are compared with float64; the plain sum rounds once per product."""
    shapes = Shapes((2, 16, 16), (3, 3), padding=SAME, channels=(64, 64))
    for single, double in zip(calls(shapes, np.float32), calls(shapes), strict=True):
        exact = double._replace(inputs=tuple(x.astype(np.float64) for x in single.inputs)).plain()
        errors = [np.sqrt(np.mean((made - exact) ** 2)) for made in (single.native(thread_pool(1)), single.plain())]
        assert errors[0] < 3 * errors[1]


@pytest.mark.parametrize("name", ["3x3, many channels", "3x3 at stride 2", "1x1"])
def test_arrays_of_any_layout_give_the_bits_of_their_copies(name: str) -> None:
    for call in calls(TABLE[name], np.float32):
        expected = call.native(thread_pool(1))
        for layout in (backwards, unaligned):
            x, y = call.inputs
            assert call.native(thread_pool(1), (layout(x), layout(y))).tobytes() == expected.tobytes()


def backwards(x: Array) -> Array:
    """The same numbers, with the axes in memory the other way round."""
    return np.asfortranarray(x)


def unaligned(x: Array) -> Array:
    raw = np.empty(x.nbytes + 1, np.uint8)[1:]
    made = raw.view(x.dtype).reshape(x.shape)
    made[...] = x
    return made


@pytest.mark.parametrize("shapes", [Shapes((0, 5, 5), (3, 3)), Shapes((2, 5, 5), (3, 3), channels=(0, 2))])
def test_empty_arrays_are_left_to_the_plain_kernels(shapes: Shapes) -> None:
    for call in calls(shapes):
        types = [Spec(x.shape, x.dtype) for x in call.inputs] + [Spec(call.shape, np.dtype(np.float64))]
        assert native_step(_step(call.type, call.attrs), types, thread_pool(1)) is None


@pytest.mark.parametrize("dtype", [np.float16, np.complex64, np.int64])
def test_other_dtypes_are_left_to_the_plain_kernels(dtype: Any) -> None:
    for call in calls(TABLE["1x1"], dtype):
        types = [Spec(x.shape, x.dtype) for x in call.inputs] + [Spec(call.shape, np.dtype(dtype))]
        assert native_step(_step(call.type, call.attrs), types, thread_pool(1)) is None
        assert call.plain().dtype == dtype


# -- threads -----------------------------------------------------------------------------------------------------------


class Pool(ThreadPool):
    """A pool of a task with `size` cpus, whose ranges run on other threads or in another order."""

    def __init__(self, size: int, each: Callable[[int, Callable[[Iterator[int]], None]], None]):
        super().__init__(size)
        self._each = each

    def each(self, count: int, work: Callable[[Iterator[int]], None]) -> None:
        self._each(count, work)


def in_reverse(count: int, work: Callable[[Iterator[int]], None]) -> None:
    work(iter(range(count)[::-1]))


def on_three_threads(count: int, work: Callable[[Iterator[int]], None]) -> None:
    threads = [Thread(target=work, args=(iter(range(i, count, 3)),)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("each", [in_reverse, on_three_threads])
@pytest.mark.parametrize("cpus", [1, 2, 5, 8])
@pytest.mark.parametrize("name", ["3x3, many channels", "3x3 at stride 2", "1x1", "many tiles"])
def test_neither_threads_nor_their_order_change_a_bit(
    name: str, cpus: int, each: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_tiles(monkeypatch, (1 << 14, 3))
    for call in calls(TABLE[name], np.float32):
        assert call.native(Pool(cpus, each)).tobytes() == call.native(thread_pool(cpus)).tobytes()


@pytest.mark.parametrize("op_type", OPS[:2])
@pytest.mark.parametrize("name", ["3x3, many channels", "3x3 at stride 2", "many tiles"])
def test_results_that_are_no_sums_over_positions_are_the_same_for_every_number_of_cpus(name: str, op_type: str) -> None:
    (call,) = [call for call in calls(TABLE[name], np.float32) if call.type == op_type]
    assert len({call.native(thread_pool(cpus)).tobytes() for cpus in range(1, 9)}) == 1


# -- runs --------------------------------------------------------------------------------------------------------------


def test_cells_side_by_side_are_one_run() -> None:
    assert convolutions._runs([0, 2], [-1, 0, 1]) == ((0, -1, 3, 0), (2, -1, 3, 3))
    assert convolutions._runs([5], [0, 2]) == ((5, 0, 1, 0), (5, 2, 1, 1))
    assert convolutions._runs([], [0]) == convolutions._runs([0], []) == ()
