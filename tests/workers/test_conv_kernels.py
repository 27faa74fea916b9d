"""The convolutions of workers/kernels/conv_numpy.py against those of conv.py, which run on any array namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from distgrad.workers.kernels import KERNELS, conv_blocks, conv_numpy
from distgrad.workers.kernels import conv_winograd as winograd
from distgrad.workers.kernels.sharing import shared


class Shapes(NamedTuple):
    images: tuple[int, int, int]  # count, height, width
    window: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    dilation: tuple[int, int] = (1, 1)
    channels: tuple[int, int] = (2, 3)
    groups: int = 1

    @property
    def out(self) -> tuple[int, ...]:
        padded = [n + sum(pad) for n, pad in zip(self.images[1:], self.padding, strict=True)]
        each = zip(padded, self.window, self.strides, self.dilation, strict=True)
        return tuple((n - (k - 1) * d - 1) // s + 1 for n, k, s, d in each)


def results(shapes: Shapes, dtype: Any = np.float64) -> list[Any]:
    """The convolution and both of its gradients, of numbers that the shapes alone decide."""
    rng = np.random.default_rng(0)
    (channels, made), groups = shapes.channels, shapes.groups
    x = rng.standard_normal((*shapes.images, channels)).astype(dtype)
    w = rng.standard_normal((*shapes.window, channels // groups, made)).astype(dtype)
    g = rng.standard_normal((shapes.images[0], *shapes.out, made)).astype(dtype)
    attrs = {name: getattr(shapes, name) for name in ("strides", "padding", "dilation", "groups")}
    return [
        KERNELS["Conv2D"](np, x, w, **attrs),
        KERNELS["Conv2DBackpropInput"](np, w, g, size=shapes.images[1:], **attrs),
        KERNELS["Conv2DBackpropFilter"](np, x, g, size=shapes.window, **attrs),
    ]


def assert_as_on_any_namespace(shapes: Shapes, dtype: Any = np.float64, tolerance: float = 1e-11) -> None:
    made = results(shapes, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conv_numpy, "serves", lambda *_: False)
        expected = results(shapes, dtype)
    for name, a, b in zip(("y", "x", "w"), made, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * 10, err_msg=name)


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
pads = st.tuples(st.integers(0, 3), st.integers(0, 3))
drawn = st.builds(
    Shapes,
    images=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    window=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    strides=pairs,
    padding=st.tuples(pads, pads),
    dilation=pairs,
    channels=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    groups=st.just(1),
)


@given(drawn, st.sampled_from((1, 200, 1 << 20)))
def test_any_window_stride_padding_and_dilation_in_blocks_of_any_size(shapes: Shapes, block_bytes: int) -> None:
    assume(min(shapes.out) > 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conv_blocks, "BLOCK_BYTES", block_bytes)
        assert_as_on_any_namespace(shapes)


@given(drawn, st.sampled_from((1, 2000, 1 << 20)))
def test_fewer_products_of_3_by_3_windows_give_the_same_sums(shapes: Shapes, block_bytes: int) -> None:
    shapes = shapes._replace(window=(3, 3), strides=(1, 1), dilation=(1, 1))
    assume(min(shapes.out) > 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "pays", lambda *_: True)
        patch.setattr(conv_blocks, "BLOCK_BYTES", block_bytes)
        assert_as_on_any_namespace(shapes)


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
    "no images": Shapes((0, 5, 5), (3, 3), padding=SAME),
    "no channels": Shapes((2, 5, 5), (3, 3), padding=SAME, channels=(0, 2)),
    "groups": Shapes((2, 5, 5), (3, 3), padding=SAME, channels=(4, 6), groups=2),
    "depthwise": Shapes((2, 5, 5), (3, 3), padding=SAME, channels=(4, 4), groups=4),
}


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-11), (np.float32, 2e-5)], ids=["float64", "float32"])
@pytest.mark.parametrize("name", TABLE)
def test_common_layers_are_what_they_are_on_any_namespace(name: str, dtype: Any, tolerance: float) -> None:
    assert_as_on_any_namespace(TABLE[name], dtype, tolerance)


@pytest.mark.parametrize("dtype", [np.float16, np.complex64, np.int64])
def test_dtypes_that_are_not_served_are_convolved_all_the_same(dtype: Any) -> None:
    made = results(TABLE["3x3 at stride 2"], dtype)
    assert [x.dtype for x in made] == [dtype] * 3


def test_images_that_are_views_are_convolved_as_their_copies() -> None:
    rng = np.random.default_rng(0)
    planes, w = rng.standard_normal((2, 32, 9, 8)), rng.standard_normal((3, 3, 32, 32))
    x = planes.transpose(0, 2, 3, 1)
    for strides in ((1, 1), (2, 2)):
        made, expected = (conv_numpy.conv2d(a, w, strides, SAME, (1, 1)) for a in (x, x.copy()))
        np.testing.assert_allclose(made, expected, rtol=1e-12, atol=1e-12)


# -- threads -----------------------------------------------------------------------------------------------------------


def backwards(count: int, work: Callable[[Iterator[int]], None]) -> None:
    work(iter(range(count)[::-1]))


def on_three_threads(count: int, work: Callable[[Iterator[int]], None]) -> None:
    threads = [Thread(target=work, args=(iter(range(i, count, 3)),)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("each", [backwards, on_three_threads])
@pytest.mark.parametrize("name", ["3x3, many channels", "3x3 at stride 2", "1x1", "7x7 at stride 2 on colours"])
def test_neither_threads_nor_the_order_of_blocks_change_a_bit(
    name: str, each: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv_blocks, "BLOCK_BYTES", 1 << 13)
    expected = results(TABLE[name])
    with shared(3, each):
        made = results(TABLE[name])
    assert [a.tobytes() for a in made] == [b.tobytes() for b in expected]


# -- blocks ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 1 << 21), st.integers(0, 1 << 24))
def test_blocks_cover_every_row_of_every_image_once(images: int, rows: int, row_bytes: int, sum_bytes: int) -> None:
    seen = np.zeros((images, rows), int)
    for (first, last), (top, bottom) in conv_blocks.cut(conv_blocks.Extent(images, rows, row_bytes), sum_bytes):
        seen[first:last, top:bottom] += 1
    assert np.all(seen == 1)
