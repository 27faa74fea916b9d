"""Neural network ops beyond the op table: stability, structure of gradients, output sizes, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.signal
import scipy.special

import distgrad as dg
from distgrad import nn
from distgrad.testing import check_grads

from ..cases.case import apart, arr


def gradient(f: Any, *args: Any, wrt: int = 0) -> Any:
    return dg.function(lambda *xs: dg.gradients(f(*xs), xs[wrt])[0])(*[np.asarray(a) for a in args])


# -- activations -------------------------------------------------------------------------------------------------


def test_composed_activations_equal_their_formulas() -> None:
    x = arr(40, low=-6, high=6)
    np.testing.assert_allclose(nn.silu(x), x * scipy.special.expit(x), rtol=1e-12)
    np.testing.assert_allclose(nn.gelu(x), x * scipy.special.ndtr(x), rtol=1e-12)
    half = scipy.special.expit(np.sqrt(8 / np.pi) * (x + 0.044715 * x**3))  # (1 + tanh) / 2, with its left tail
    np.testing.assert_allclose(nn.gelu(x, approximate=True), x * half, rtol=1e-12)


@pytest.mark.parametrize("f", [nn.silu, nn.gelu, lambda x: nn.gelu(x, approximate=True)])
def test_composed_activations_have_second_derivatives(f: Any) -> None:
    check_grads(f, [arr(3, 4)], order=3)


def test_gelu_keeps_its_left_tail() -> None:
    np.testing.assert_allclose(nn.gelu(np.array(-20.0)), -20 * scipy.special.ndtr(-20.0), rtol=1e-12)


def test_relu_and_leaky_relu_take_the_left_slope_at_zero() -> None:
    assert gradient(nn.relu, 0.0) == 0
    assert gradient(nn.leaky_relu, 0.0) == 0.2


def test_relu_passes_nan_on_and_keeps_integers() -> None:
    assert np.isnan(nn.relu(np.array(np.nan)))
    assert nn.relu(np.array([-1, 2], np.int8)).dtype == np.int8


def test_the_slope_of_relu_has_zeros_for_a_gradient_not_none() -> None:
    def penalty(x: Any) -> Any:
        (g,) = dg.gradients(dg.sum(nn.relu(x)), x)
        return dg.sum(g * g)

    np.testing.assert_array_equal(gradient(penalty, np.array([1.0, -1.0])), [0.0, 0.0])


def test_activations_far_out_are_finite() -> None:
    x = np.array([-1e4, -800.0, 800.0, 1e4])
    for f in (nn.softplus, nn.elu, nn.silu, nn.gelu, nn.sigmoid, nn.tanh):
        assert np.isfinite(f(x)).all(), f
        assert np.isfinite(gradient(f, x)).all(), f


@pytest.mark.parametrize("f", [nn.relu, nn.elu, nn.softmax, nn.layer_norm])
def test_complex_numbers_are_refused(f: Any) -> None:
    with pytest.raises(TypeError, match="takes real numbers, got dtype complex128"):
        f(np.array([1j]))


@pytest.mark.parametrize("f", [nn.elu, nn.softplus, nn.gelu, nn.silu, nn.softmax, nn.log_softmax, nn.layer_norm])
def test_dtypes_follow_numpys_exp(f: Any) -> None:
    assert f(np.ones(3, np.float32)).dtype == np.float32
    assert f(np.ones(3, np.float16)).dtype == np.float16
    assert f(np.ones(3, np.int64)).dtype == np.float64


# -- softmax and its losses --------------------------------------------------------------------------------------


def test_softmax_takes_huge_and_infinite_logits() -> None:
    np.testing.assert_array_equal(nn.softmax(np.array([1e300, -1e300, -np.inf])), [1, 0, 0])
    np.testing.assert_array_equal(nn.log_softmax(np.array([0.0, -1e4])), [0, -1e4])


def test_third_derivatives_of_the_fused_ops() -> None:
    check_grads(nn.softmax, [arr(2, 3)], order=3)
    check_grads(nn.layer_norm, [arr(2, 4)], order=3)
    check_grads(lambda x: nn.sparse_softmax_cross_entropy(x, [1, 0]), [arr(2, 3)], order=3)


def test_a_masked_class_costs_nothing_and_gets_no_gradient() -> None:
    logits, labels = np.array([[1.0, 2.0, -np.inf]]), np.array([[0.5, 0.5, 0.0]])
    assert np.isfinite(nn.softmax_cross_entropy(logits, labels)).all()
    found = gradient(nn.softmax_cross_entropy, logits, labels)
    np.testing.assert_allclose(found, scipy.special.softmax(logits) - labels)


def test_sparse_and_dense_cross_entropy_agree() -> None:
    logits, labels = arr(5, 3), np.array([0, 2, 1, 1, 0])
    dense = nn.softmax_cross_entropy(logits, np.eye(3)[labels])
    np.testing.assert_allclose(nn.sparse_softmax_cross_entropy(logits, labels), dense, rtol=1e-12)


def test_integer_labels_do_not_widen_the_logits() -> None:
    logits = arr(2, 3).astype(np.float32)
    assert nn.softmax_cross_entropy(logits, np.eye(3, dtype=int)[:2]).dtype == np.float32


@pytest.mark.parametrize("labels", [[3, 0], [-1, 0]])
def test_a_label_that_is_no_class_is_an_error(labels: Any) -> None:
    with pytest.raises(ValueError, match="labels must be classes from 0 to 2, got values from"):
        nn.sparse_softmax_cross_entropy(arr(2, 3), labels)


def test_cross_entropy_names_both_shapes() -> None:
    with pytest.raises(ValueError, match=r"labels \[4\] must have the shape of logits \[2, 3\] without its last axis"):
        nn.sparse_softmax_cross_entropy(arr(2, 3), np.zeros(4, int))
    with pytest.raises(TypeError, match="labels must be integer classes, got dtype float64"):
        nn.sparse_softmax_cross_entropy(arr(2, 3), arr(2))
    with pytest.raises(ValueError, match=r"logits \[2, 3\] and labels \[2, 4\] must have the same shape"):
        nn.softmax_cross_entropy(arr(2, 3), arr(2, 4))


# -- layer_norm --------------------------------------------------------------------------------------------------


def test_layer_norm_has_mean_0_and_variance_1() -> None:
    y = nn.layer_norm(arr(4, 100) * 7 + 1000, eps=0.0)
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-12)
    np.testing.assert_allclose(y.var(-1), 1, rtol=1e-12)


def test_layer_norm_names_the_parameter_and_the_shape_it_needs() -> None:
    with pytest.raises(ValueError, match=r"gamma has shape \[4\], but x \[2, 3\] .* must have shape \[3\]"):
        nn.layer_norm(arr(2, 3), gamma=arr(4))


def test_the_name_goes_to_the_op_that_makes_the_result() -> None:
    with dg.Graph():
        x, p = dg.constant(arr(2, 3)), arr(3)
        made = [nn.layer_norm(x, name="a"), nn.layer_norm(x, p, name="b"), nn.layer_norm(x, p, p, name="c")]
    assert [t.op.name for t in made] == ["a", "b", "c"]


# -- convolution -------------------------------------------------------------------------------------------------


def test_conv2d_is_scipys_correlation() -> None:
    x, w = arr(1, 8, 9, 1), arr(3, 4, 1, 1)
    expected = scipy.signal.correlate(x[0, :, :, 0], w[:, :, 0, 0], "valid")
    np.testing.assert_allclose(nn.conv2d(x, w, padding="VALID")[0, :, :, 0], expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("n", [5, 6, 7])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_output_sizes_are_those_tensorflow_documents(n: int, k: int, stride: int) -> None:
    x, w = np.ones((1, n, n, 1)), np.ones((k, k, 1, 1))
    same, valid = (-(-n // stride),) * 2, (-(-(n - k + 1) // stride),) * 2
    assert nn.conv2d(x, w, stride, "SAME").shape[1:3] == same
    assert nn.conv2d(x, w, stride, "VALID").shape[1:3] == valid
    assert nn.max_pool(x, k, stride, "SAME").shape[1:3] == nn.avg_pool(x, k, stride, "SAME").shape[1:3] == same
    assert nn.max_pool(x, k, stride).shape[1:3] == nn.avg_pool(x, k, stride).shape[1:3] == valid


def test_a_large_batch_is_convolved_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from distgrad.workers.kernels import conv

    x, w = arr(5, 6, 6, 2), arr(3, 3, 1, 4)

    def run() -> Any:
        grads = dg.function(lambda x, w: dg.gradients(dg.sum(nn.conv2d(x, w, groups=2) ** 2), [x, w]))(x, w)
        return [nn.conv2d(x, w, groups=2), *grads]

    whole = run()
    monkeypatch.setattr(conv, "_COLUMN_BYTES", 2 * 9 * 36 * 2 * 8)  # two images at a time
    for a, b in zip(run(), whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_grouped_convolution_is_one_convolution_per_group() -> None:
    x, w = arr(2, 5, 5, 6), arr(3, 3, 2, 9)
    parts = [nn.conv2d(x[..., 2 * i : 2 * i + 2], w[..., 3 * i : 3 * i + 3]) for i in range(3)]
    np.testing.assert_allclose(nn.conv2d(x, w, groups=3), np.concatenate(parts, -1), rtol=1e-12, atol=1e-12)


def test_depthwise_convolution_takes_its_own_path_to_the_same_numbers() -> None:
    x, w = arr(2, 5, 5, 3), arr(3, 3, 1, 3)
    twice = np.repeat(w, 2, axis=3)  # two outputs per channel are convolved as groups
    grouped = nn.conv2d(x, twice, groups=3)[..., ::2]
    np.testing.assert_allclose(nn.conv2d(x, w, groups=3), grouped, rtol=1e-12, atol=1e-12)


def test_convolution_errors_name_shapes_and_arguments() -> None:
    x, w = arr(1, 5, 5, 4), arr(3, 3, 4, 6)
    with pytest.raises(ValueError, match=r"groups=3 must divide both the 4 channels of x \[1, 5, 5, 4\]"):
        nn.conv2d(x, w, groups=3)
    with pytest.raises(ValueError, match=r"with groups=2 the kernel must have 2 input channels, but w .* has 4"):
        nn.conv2d(x, w, groups=2)
    with pytest.raises(ValueError, match=r"covers 7 cells in height, and x \[1, 5, 5, 4\] \(NHWC\) has 5"):
        nn.conv2d(x, w, padding="VALID", dilation=3)
    with pytest.raises(ValueError, match="padding must be 'SAME', 'VALID' or"):
        nn.conv2d(x, w, padding="FULL")
    with pytest.raises(ValueError, match="padding must be 'SAME', 'VALID' or"):
        nn.conv2d(x, w, padding=((1, -1), (0, 0)))
    with pytest.raises(ValueError, match="strides must be a positive int"):
        nn.conv2d(x, w, strides=0)
    with pytest.raises(ValueError, match=r"x must have 4 axes, NHWC; got shape \[5, 5, 4\]"):
        nn.conv2d(x[0], w)
    with pytest.raises(ValueError, match=r"w must be \[height, width, channels / groups, output channels\]"):
        nn.conv2d(x, w[0])
    with pytest.raises(ValueError, match="data_format must be 'NHWC' or 'NCHW', got 'CHWN'"):
        nn.conv2d(x, w, data_format="CHWN")


# -- pooling -----------------------------------------------------------------------------------------------------


def test_the_first_of_equal_cells_gets_the_gradient_of_max_pool() -> None:
    found = gradient(lambda x: nn.max_pool(x, 2), np.ones((1, 2, 2, 1)))
    np.testing.assert_array_equal(found[0, :, :, 0], [[1, 0], [0, 0]])


def test_overlapping_windows_of_max_pool_add_up() -> None:
    x = np.zeros((1, 1, 5, 1))
    x[0, 0, 2, 0] = 1
    found = gradient(lambda x: nn.max_pool(x, (1, 3), 1), x)
    np.testing.assert_array_equal(found[0, 0, :, 0], [0, 0, 3, 0, 0])


def test_max_pool_has_derivatives_of_third_order() -> None:
    check_grads(lambda x: nn.max_pool(x, 2, 1, "SAME") ** 3, [apart(1, 3, 3, 1) * 0.5], order=3)


def test_max_pool_of_negative_numbers_and_integers_ignores_padding() -> None:
    x = -1 - np.arange(9.0).reshape(1, 3, 3, 1)
    assert nn.max_pool(x, 2, padding="SAME").max() == -1
    assert nn.max_pool(x.astype(np.int16), 3, 1, "SAME").dtype == np.int16
    assert nn.max_pool(x.astype(np.int16), 3, 1, "SAME").min() == -5


def test_pooling_errors_name_the_argument() -> None:
    x = arr(1, 4, 4, 1)
    with pytest.raises(ValueError, match="max_pool: window must be a positive int"):
        nn.max_pool(x, (2, 2, 2))
    with pytest.raises(ValueError, match=r"avg_pool: padding \(\(2, 0\), \(0, 0\)\) must be smaller than the window"):
        nn.avg_pool(x, 2, padding=((2, 0), (0, 0)))
    with pytest.raises(TypeError, match="avg_pool: a mean needs a floating dtype, got int64"):
        nn.avg_pool(x.astype(int), 2)
    with pytest.raises(TypeError, match="complex numbers have no order"):
        nn.max_pool(x + 0j, 2)


# -- embedding and dropout ---------------------------------------------------------------------------------------


def test_the_gradient_of_an_embedding_is_sparse() -> None:
    def f(table: Any) -> Any:
        return dg.gradients(dg.sum(nn.embedding(table, [[3, 1], [3, 3]]) ** 2), table)[0]

    table = arr(5, 2)
    found = dg.function(f)(table)
    assert isinstance(found, dg.IndexedSlicesValue)
    assert found.values.shape[-1] == 2
    assert found.dense_shape == (5, 2)
    dense = gradient(lambda t: dg.sum(nn.embedding(dg.identity(t) * 1.0, [[3, 1], [3, 3]]) ** 2), table)
    np.testing.assert_allclose(dense, 2 * table * np.array([0, 1, 0, 3, 0])[:, None])


def test_dropout_keeps_the_mean_and_drops_its_share() -> None:
    y = nn.dropout(np.ones(100_000), 0.3, key=1)
    assert abs(y.mean() - 1) < 0.01
    assert abs((y == 0).mean() - 0.3) < 0.01
    np.testing.assert_allclose(np.unique(y), [0, 1 / 0.7])


def test_the_gradient_of_dropout_uses_the_same_mask() -> None:
    x, key = arr(50), dg.random.key(4)
    y, g = dg.function(lambda x, key: (y := nn.dropout(x, 0.5, key), dg.gradients(y, x)[0]))(x, key)
    np.testing.assert_array_equal(g, np.where(y == 0, 0, 2))
    np.testing.assert_array_equal(y, nn.dropout(x, 0.5, key))
    check_grads(lambda x: nn.dropout(x, 0.5, key) ** 2, [x])


def test_dropout_without_training_or_rate_is_nothing() -> None:
    x = arr(5).astype(np.float32)
    np.testing.assert_array_equal(nn.dropout(x, 0.5, 0, training=False), x)
    np.testing.assert_array_equal(nn.dropout(x, 0.0, 0), x)
    assert nn.dropout(x, 0.5, 0).dtype == np.float32


@pytest.mark.parametrize("rate", [1.0, -0.1, "half"])
def test_dropout_refuses_a_rate_that_is_no_share(rate: Any) -> None:
    with pytest.raises(ValueError, match="0 <= rate < 1, got"):
        nn.dropout(arr(3), rate, 0)
