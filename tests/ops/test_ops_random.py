"""Random numbers: the same key gives the same bits anywhere, and the numbers have the right distribution."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import scipy.stats

import distgrad as dg
from distgrad import random
from distgrad.testing import check_grads

N = 50_000
DRAWS = {
    "uniform": lambda key: random.uniform(key, 20),
    "normal": lambda key: random.normal(key, 20),
    "truncated_normal": lambda key: random.truncated_normal(key, 20),
    "bernoulli": lambda key: random.bernoulli(key, 0.5, 64),
    "randint": lambda key: random.randint(key, 20, 0, 1000),
    "permutation": lambda key: random.permutation(key, 20),
    "categorical": lambda key: random.categorical(key, np.zeros((20, 10))),
    "split": lambda key: random.split(key),
    "fold_in": lambda key: random.fold_in(key, 5),
}
draws = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())


# -- keys --------------------------------------------------------------------------------------------------------


@draws
def test_the_same_key_gives_the_same_bits_whatever_ran_before(draw: Any) -> None:
    first = draw(random.key(3))
    random.normal(9, 100)
    np.random.default_rng().random(7)
    np.testing.assert_array_equal(draw(random.key(3)), first)
    np.testing.assert_array_equal(draw(3), first)
    np.testing.assert_array_equal(dg.function(draw)(random.key(3)), first)


@draws
def test_different_keys_give_different_numbers(draw: Any) -> None:
    assert not np.array_equal(draw(random.key(3)), draw(random.key(4)))


def test_another_process_draws_the_same_numbers() -> None:
    code = "import distgrad as dg; print(dg.random.normal(dg.random.fold_in(7, 1), 3, 'float32').tolist())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert eval(out) == random.normal(random.fold_in(7, 1), 3, "float32").tolist()


def test_a_function_draws_new_numbers_for_a_new_key_without_retracing() -> None:
    traces = []

    @dg.function
    def f(key: Any, x: Any) -> Any:
        traces.append(1)
        return dg.nn.dropout(x, 0.5, key) + random.normal(random.fold_in(key, 1), x.shape)

    keys = random.split(0, 4)
    results = [f(key, np.ones(5)) for key in keys]
    assert len(traces) == 1
    assert len({r.tobytes() for r in results}) == 4
    np.testing.assert_array_equal(f(keys[2], np.ones(5)), results[2])


def test_a_seed_may_be_a_tensor() -> None:
    f = dg.function(lambda seed: random.uniform(seed, 3))
    for seed in (0, 5, -1, 2**40):
        np.testing.assert_array_equal(f(np.int64(seed)), random.uniform(seed, 3))


def test_a_step_number_folds_in_as_int_or_tensor() -> None:
    np.testing.assert_array_equal(random.fold_in(1, 12), random.fold_in(random.key(1), np.array(12, np.int32)))
    np.testing.assert_array_equal(random.fold_in(1, -1), random.fold_in(1, np.array(-1)))


def test_split_fold_in_and_draws_of_one_key_share_no_bits() -> None:
    keys = np.concatenate([random.split(0, 1000), [random.fold_in(0, i) for i in range(1000)], [random.key(0)]])
    assert len({k.tobytes() for k in keys}) == 2001
    drawn = np.random.Philox(key=random.key(0)).random_raw(4000)
    assert not set(drawn.tolist()) & set(keys.ravel().tolist())


def test_split_keys_draw_independent_numbers() -> None:
    keys = random.split(11, 6)
    samples = np.stack([random.normal(key, N) for key in keys] + [random.normal(11, N)])
    correlation = np.corrcoef(samples) - np.eye(len(samples))
    assert np.abs(correlation).max() < 5 / np.sqrt(N)


def test_more_keys_begin_with_the_same_keys() -> None:
    np.testing.assert_array_equal(random.split(0, 5)[:2], random.split(0))


# -- distributions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_distributions_pass_a_kolmogorov_smirnov_test(dtype: str) -> None:
    bound = 2 / np.sqrt(N) + (1e-3 if dtype == "float16" else 0)
    for draw, expected in (
        (random.uniform, scipy.stats.uniform()),
        (random.normal, scipy.stats.norm()),
        (random.truncated_normal, scipy.stats.truncnorm(-2, 2)),
    ):
        x = draw(1, N, dtype)
        assert x.dtype == dtype
        assert scipy.stats.kstest(x.astype(float), expected.cdf).statistic < bound


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_draws_stay_in_their_ranges(dtype: str) -> None:
    u, t = random.uniform(2, N, dtype), random.truncated_normal(2, N, dtype)
    assert u.min() >= 0
    assert u.max() < 1
    assert np.abs(t).max() <= 2


def test_parameters_scale_and_shift() -> None:
    x = random.normal(0, (N, 2), mean=[1.0, -5.0], stddev=[0.1, 3.0])
    np.testing.assert_allclose(x.mean(0), [1, -5], atol=0.1)
    np.testing.assert_allclose(x.std(0), [0.1, 3], rtol=0.03)
    u = random.uniform(0, N, minval=-2, maxval=3)
    assert -2 <= u.min() < -1.9
    assert 2.9 < u.max() < 3


def test_without_a_shape_the_parameters_give_it() -> None:
    assert random.normal(0).shape == ()
    assert random.normal(0, mean=np.zeros((3, 1)), stddev=np.ones(2)).shape == (3, 2)
    assert random.bernoulli(0, np.full(4, 0.5)).shape == (4,)


def test_tensor_parameters_get_gradients_in_their_own_dtype() -> None:
    key = random.key(5)
    check_grads(lambda m, s: random.normal(key, (2, 3), mean=m, stddev=s) ** 2, [np.ones(3), np.full((2, 1), 2.0)])
    check_grads(lambda a, b: random.uniform(key, 4, minval=a, maxval=b) ** 2, [np.array(0.5), np.array(2.0)])
    grad = dg.function(lambda m: dg.gradients(random.normal(key, 3, mean=m), m)[0])
    np.testing.assert_array_equal(grad(np.float32(1)), np.float32(3))


def test_the_key_has_no_gradient() -> None:
    with dg.Graph():
        key = random.key(0)
        assert dg.gradients(random.normal(key, 3), key) == [None]


def test_bernoulli_is_true_as_often_as_p_says() -> None:
    x = random.bernoulli(0, [0.0, 0.2, 1.0], (N, 3))
    assert x.dtype == bool
    np.testing.assert_allclose(x.mean(0), [0, 0.2, 1], atol=0.01)


def test_randint_hits_every_number_equally_often() -> None:
    x = random.randint(0, N, -3, 4, "int8")
    values, counts = np.unique(x, return_counts=True)
    assert x.dtype == np.int8
    np.testing.assert_array_equal(values, range(-3, 4))
    np.testing.assert_allclose(counts / N, 1 / 7, atol=0.01)
    assert set(random.randint(0, N, 0, 256, "uint8").tolist()) == set(range(256))


def test_categorical_draws_with_softmax_probabilities() -> None:
    p = np.array([[0.1, 0.9, 0.0], [0.5, 0.2, 0.3]])
    with np.errstate(divide="ignore"):
        x = random.categorical(0, np.log(p), shape=(N, 2))
    assert x.dtype == np.int64
    np.testing.assert_allclose([(x == i).mean(0) for i in range(3)], p.T, atol=0.01)
    np.testing.assert_array_equal(random.categorical(1, np.log(p + 1e-9)).shape, (2,))


def test_permutation_keeps_the_elements_and_moves_slices_together() -> None:
    x = np.arange(30).reshape(10, 3)
    y = random.permutation(0, x)
    assert not np.array_equal(x, y)
    np.testing.assert_array_equal(y[np.argsort(y[:, 0])], x)
    np.testing.assert_array_equal(np.sort(random.permutation(0, 10)), range(10))


def test_permutation_starts_anywhere_equally_often() -> None:
    first = [int(random.permutation(key, 5)[0]) for key in random.split(0, 2000)]
    assert np.bincount(first).min() > 300


# -- errors ------------------------------------------------------------------------------------------------------


def test_errors_name_the_argument() -> None:
    with pytest.raises(TypeError, match=r"random.normal: key must be uint64 of shape \[2\] .* got float64"):
        random.normal(np.zeros(3), 2)
    with pytest.raises(TypeError, match=r"key must be uint64 of shape \[2\]"):
        random.normal(random.split(0), 2)
    with pytest.raises(TypeError, match="dtype must be float16, float32 or float64, got int64; for integers use"):
        random.uniform(0, 2, int)
    with pytest.raises(ValueError, match=r"random.normal: mean of shape \[3\] does not broadcast to \[2\]"):
        random.normal(0, 2, mean=np.zeros(3))
    with pytest.raises(ValueError, match="minval must be below maxval, both within int8"):
        random.randint(0, 2, 0, 300, "int8")
    with pytest.raises(ValueError, match="minval must be below maxval"):
        random.randint(0, 2, 3, 3)
    with pytest.raises(TypeError, match="dtype must be an integer dtype, got float32"):
        random.randint(0, 2, 0, 3, "float32")
    with pytest.raises(TypeError, match="minval must be integers, got dtype float64"):
        random.randint(0, 2, 0.5, 3)
    with pytest.raises(TypeError, match=r"random.key: seed must be one integer, got float64"):
        random.key(1.5)
    with pytest.raises(ValueError, match="num must be a non-negative int"):
        random.split(0, -1)
    with pytest.raises(ValueError, match="shape must not be negative"):
        random.normal(0, (2, -1))
    with pytest.raises(ValueError, match=r"shape \[3\] must end in the shape of the rows of logits, \[2\]"):
        random.categorical(0, np.zeros((2, 4)), shape=3)
    with pytest.raises(ValueError, match="have no class to draw"):
        random.categorical(0, np.zeros((2, 0)))
    with pytest.raises(ValueError, match="non-negative int, got -1"):
        random.permutation(0, -1)


def test_randint_of_all_of_uint64_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="minval must be below maxval, both within uint64"):
        dg.random.randint(0, 3, 0, 2**64, "uint64")
    assert dg.random.randint(0, 3, 0, 2**64 - 1, "uint64").dtype == np.uint64
