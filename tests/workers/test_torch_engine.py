"""Tasks on torch: groups of steps become one piece of work, memory is written over, and results are what they were."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import distgrad as dg
from distgrad.scheduler.passes.fuse import fuse
from distgrad.scheduler.program import Program, lower
from distgrad.workers.backends import backend
from distgrad.workers.backends.eager import Eager
from distgrad.workers.backends.torch.rules import rewrite
from distgrad.workers.backends.torch.steps import TorchStep
from distgrad.workers.calls import StepFailed

from ..engines import Array, optimized, slowly
from ..random_graphs import RandomGraph
from .test_tape import built, graphs

needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed")
on_backends = pytest.mark.parametrize("name", ["array-api-strict", pytest.param("torch", marks=needs_torch)])

Build = Callable[..., Sequence[dg.Tensor]]


def program(f: Build, *shapes: tuple[int, ...], dtype: str = "float32") -> Program:
    with dg.Graph():
        xs = [dg.placeholder(shape, dtype) for shape in shapes]
        return optimized(list(f(*xs)), xs)


def with_gradients(f: Callable[..., dg.Tensor]) -> Build:
    """f, and the gradients of a sum that weighs each of its elements differently."""

    def build(*xs: dg.Tensor) -> list[dg.Tensor]:
        y = f(*xs)
        weights = np.linspace(-1, 1, int(np.prod(y.shape)), dtype=y.dtype).reshape(y.shape)
        return [y, *dg.gradients(dg.sum(y * weights), list(xs))]

    return build


def works(p: Program, cpu: bool = True) -> list[TorchStep]:
    flat = [each for step in p.steps for each in (step.body or (step,))]
    constants = {s.outputs[0]: s.attrs["value"] for s in flat if s.type == "Const"}
    return rewrite([s for s in flat if s.type != "Const"], p.types, constants, {*p.given, *p.wanted}, cpu)


def kinds(p: Program, cpu: bool = True) -> Counter[str]:
    return Counter(work.type for work in works(p, cpu))


def eager(p: Program, name: str = "torch") -> Eager:
    return Eager(p.steps, p.types, p.given, p.wanted, backend(name))


def some(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape).astype(np.float32)


def feeds(p: Program) -> list[Array]:
    return [some(*p.types[v].shape, seed=v).astype(p.types[v].dtype) for v in p.feeds]


def check(p: Program) -> None:
    """torch gives what the slow executor gives, twice, and leaves its inputs alone."""
    given, run = feeds(p), eager(p)
    kept, expected = [x.copy() for x in given], slowly(p, given)
    for _ in range(2):
        for x, y in zip(run.run(given), expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5 * max(1.0, float(np.abs(y).max(initial=0.0))))
    for x, y in zip(given, kept, strict=True):
        np.testing.assert_array_equal(x, y)


# -- attention ---------------------------------------------------------------------------------------------------

HEADS = ((2, 3, 5, 4),) * 3


def attention(q: dg.Tensor, k: dg.Tensor, v: dg.Tensor, causal: bool = True, scale: float = 0.5) -> dg.Tensor:
    scores = (q @ dg.swapaxes(k, -1, -2)) * scale
    masked = dg.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf) if causal else scores
    return dg.nn.softmax(masked) @ v


def in_rows(x: dg.Tensor) -> dg.Tensor:
    """Attention of three parts of one array, as models with one projection have it."""
    q, k, v = (dg.transpose(x[:, :, i], (0, 2, 1, 3)) for i in range(3))
    return attention(q, k, v)


def masked(mask: Callable[[dg.Tensor], dg.Tensor], scale: float = 0.5) -> Callable[..., dg.Tensor]:
    """Attention with a mask on its scores."""
    return lambda q, k, v: dg.nn.softmax(mask((q @ dg.swapaxes(k, -1, -2)) * scale)) @ v


def computed(q: dg.Tensor, k: dg.Tensor, v: dg.Tensor) -> dg.Tensor:
    """With masks that depend on the inputs: one that is added, and one that keeps at least one key."""
    bias, keep = dg.tanh(dg.stop_gradient(v[:, :1, :1, :1])), dg.stop_gradient(k[:, :, :, 0])[:, :, None] < 0.5
    keep = keep | (np.arange(5) == 2)
    scores = bias + (q @ dg.swapaxes(k, -1, -2)) / 3.0
    return dg.nn.softmax(dg.where(keep, scores, -np.inf)) @ v


BAND, BIAS = np.tri(5, k=1, dtype=bool), np.linspace(-2, 2, 15, dtype=np.float32).reshape(3, 1, 5)
VARIANTS = {
    "causal": (attention, HEADS),
    "causal-dropped": (masked(lambda s: dg.where(~np.tri(5, dtype=bool), -np.inf, s)), HEADS),
    "causal-added": (masked(lambda s: s + np.where(np.tri(5), 0, -np.inf).astype(s.dtype)), HEADS),
    "causal-1e9": (masked(lambda s: dg.where(np.tri(5, dtype=bool), s, -1e9)), HEADS),
    "band": (masked(lambda s: dg.where(BAND, s, -np.inf)), HEADS),
    "band-per-head": (masked(lambda s: dg.where(np.stack([BAND, BAND.T, BAND & BAND.T]), s, -np.inf)), HEADS),
    "bias": (masked(lambda s: BIAS.astype(s.dtype) + s), HEADS),
    "bias-and-band": (masked(lambda s: dg.where(BAND, s + BIAS.astype(s.dtype), -np.inf)), HEADS),
    "divided": (masked(lambda s: dg.where(BAND, s / 3.0, -np.inf), 1.0), HEADS),
    "computed": (computed, HEADS),
    "no-heads": (attention, ((2, 5, 4),) * 3),
    "one-matrix": (masked(lambda s: dg.where(BAND, s, -np.inf)), ((5, 4),) * 3),
    "free": (lambda q, k, v: attention(q, k, v, causal=False), HEADS),
    "unscaled": (lambda q, k, v: attention(q, k, v, scale=1.0), HEADS),
    "other-keys": (lambda q, k, v: attention(q, k, v, causal=False), ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4))),
    "rows": (in_rows, ((2, 5, 3, 3, 4),)),
}


@pytest.mark.parametrize(("f", "shapes"), VARIANTS.values(), ids=VARIANTS)
def test_attention_and_its_gradients_are_two_pieces_of_work(f: Any, shapes: Any) -> None:
    found = kinds(program(with_gradients(f), *shapes))
    assert found["Attention"] == found["AttentionGrad"] == 1
    assert not {"Softmax", "SoftmaxGrad", "MatMul", "Select"} & found.keys()


@needs_torch
@pytest.mark.parametrize(("f", "shapes"), VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_attention_is_computed_as_by_the_slow_executor(f: Any, shapes: Any, dtype: str) -> None:
    check(program(with_gradients(f), *shapes, dtype=dtype))


def test_attention_without_gradients_is_one_piece_of_work() -> None:
    assert kinds(program(lambda *xs: [attention(*xs)], *HEADS)) == {"Attention": 1}


def with_weights(q: dg.Tensor, k: dg.Tensor, v: dg.Tensor) -> list[dg.Tensor]:
    weights = dg.nn.softmax(q @ dg.swapaxes(k, -1, -2))
    return [weights @ v, weights]


def other_fill(q: dg.Tensor, k: dg.Tensor, v: dg.Tensor) -> list[dg.Tensor]:
    return [dg.nn.softmax(dg.where(np.tri(5, dtype=bool), q @ dg.swapaxes(k, -1, -2), -1.0)) @ v]


def empty_rows(q: dg.Tensor, k: dg.Tensor, v: dg.Tensor) -> list[dg.Tensor]:
    """Softmax makes equal weights of a row that is masked out with a finite number."""
    return [dg.nn.softmax(dg.where(np.arange(5)[:, None] < 4, q @ dg.swapaxes(k, -1, -2), -1e9)) @ v]


def down_columns(q: dg.Tensor, k: dg.Tensor, v: dg.Tensor) -> list[dg.Tensor]:
    return [dg.nn.softmax(q @ dg.swapaxes(k, -1, -2), axis=-2) @ v]


@pytest.mark.parametrize("f", [with_weights, other_fill, empty_rows, down_columns])
def test_what_is_not_quite_attention_is_left_as_it_is(f: Build) -> None:
    assert "Attention" not in kinds(program(f, *HEADS))


@needs_torch
@pytest.mark.parametrize("keeps", [np.arange(5)[:, None] < 4, np.zeros((5, 1), bool)], ids=["one", "all"])
def test_a_row_that_is_masked_out_completely_is_nan_as_by_the_slow_executor(keeps: Any) -> None:
    p = program(lambda *xs: [masked(lambda s: dg.where(keeps, s, -np.inf))(*xs)], *HEADS)
    assert kinds(p) == {"Attention": 1}
    check(p)


def test_attention_with_a_trained_bias_stays_in_steps() -> None:
    def f(q: dg.Tensor, k: dg.Tensor, v: dg.Tensor, bias: dg.Tensor) -> dg.Tensor:
        return dg.nn.softmax(q @ dg.swapaxes(k, -1, -2) + bias) @ v

    assert "Attention" not in kinds(program(with_gradients(f), *HEADS, (5, 5)))


def test_attention_stays_in_steps_where_a_gpu_runs_it() -> None:
    assert "Attention" not in kinds(program(with_gradients(attention), *HEADS), cpu=False)


# -- normalisation, convolution, losses --------------------------------------------------------------------------

ROWS = ((2, 3, 6), (6,), (6,))


def norm(x: dg.Tensor, gamma: dg.Tensor, beta: dg.Tensor) -> dg.Tensor:
    return dg.nn.layer_norm(x, gamma, beta)


def test_a_normalisation_and_its_three_gradients_are_two_pieces_of_work() -> None:
    found = kinds(program(with_gradients(norm), *ROWS))
    assert found["Norm"] == found["NormGrad"] == 1
    assert not {"LayerNorm", "LayerNormGrad", "Sum"} & found.keys()


def test_a_normalisation_whose_rows_are_read_shares_its_statistics() -> None:
    def f(x: dg.Tensor, gamma: dg.Tensor, beta: dg.Tensor) -> list[dg.Tensor]:
        rows = dg.nn.layer_norm(x)
        return [rows, *dg.gradients(dg.sum(dg.tanh(rows * gamma + beta)), [x, gamma, beta])]

    found = kinds(program(f, *ROWS))
    assert found["Norm"] == found["NormGrad"] == 1
    assert not {"LayerNorm", "LayerNormGrad"} & found.keys()


def conv(x: dg.Tensor, w: dg.Tensor, b: dg.Tensor) -> dg.Tensor:
    return dg.nn.relu(dg.nn.conv2d(x, w) + b)


def test_a_convolution_takes_its_bias() -> None:
    found = kinds(program(with_gradients(conv), (2, 5, 5, 3), (3, 3, 3, 4), (4,)))
    assert found["ConvBias"] == 1
    assert not {"Conv2D", "Add"} & found.keys()


def layer(x: dg.Tensor, w: dg.Tensor, b: dg.Tensor) -> dg.Tensor:
    return dg.tanh(x @ w + b)


@pytest.mark.parametrize("shapes", [((5, 3), (3, 4), (4,)), ((2, 5, 3), (3, 4), (4,)), ((5, 3), (3, 4), (1, 4))])
def test_a_product_with_one_matrix_takes_its_bias(shapes: Any) -> None:
    found = kinds(program(with_gradients(layer), *shapes))
    assert found["Dense"] == 1
    assert "Add" not in found


@pytest.mark.parametrize("shapes", [((2, 5, 3), (2, 3, 4), (4,)), ((5, 3), (3, 4), (5, 4)), ((5, 3), (3, 4), (5, 1))])
def test_other_products_do_not(shapes: Any) -> None:
    assert "Dense" not in kinds(program(with_gradients(layer), *shapes))


def test_a_product_that_is_read_without_its_bias_stays() -> None:
    assert "Dense" not in kinds(program(lambda x, w, b: [x @ w, x @ w + b], (5, 3), (3, 4), (4,)))


def curve(x: dg.Tensor) -> dg.Tensor:
    return dg.nn.gelu(x, approximate=True)


def test_the_slope_of_a_gelu_is_made_with_its_value() -> None:
    found = kinds(program(with_gradients(curve), (3, 4)))
    assert found["GeluSlope"] == found["Mul"] == 1
    assert not {"Gelu", "GeluGrad"} & found.keys()


def test_a_gelu_by_itself_and_one_on_a_gpu_have_no_slope() -> None:
    assert "GeluSlope" not in kinds(program(lambda x: [curve(x)], (3, 4)))
    assert "GeluSlope" not in kinds(program(with_gradients(curve), (3, 4)), cpu=False)
    assert "GeluSlope" not in kinds(program(with_gradients(dg.nn.gelu), (3, 4)))


@needs_torch
def test_the_slope_of_a_gelu_far_out() -> None:
    x = np.array([-3e38, -1e15, -40.0, -5.0, 0.0, 5.0, 40.0, 1e15], "float32")
    with dg.Session(backend="torch"):
        value, slope = dg.function(lambda x: (curve(x), dg.gradients(curve(x), x)[0]))(x)
    np.testing.assert_allclose(slope[1:], [0, 0, 0, 0.5, 1, 1, 1], atol=3e-5)
    np.testing.assert_allclose(value[1:], [0, 0, 0, 0, 5, 40, 1e15], atol=3e-5)


def loss(x: dg.Tensor) -> dg.Tensor:
    return dg.nn.sparse_softmax_cross_entropy(x, np.array([0, 2, 1]))


def test_a_loss_and_its_gradient_share_their_logarithms() -> None:
    found = kinds(program(with_gradients(loss), (3, 4)))
    assert found["CrossEntropy"] == found["CrossEntropyGrad"] == 1


GROUPS = {
    "norm": (norm, ROWS),
    "norm-of-two-axes": (lambda x, g, b: dg.nn.layer_norm(x, g, b, axis=(1, 2)), ((2, 3, 6), (3, 6), (3, 6))),
    "plain-norm": (lambda x: dg.nn.layer_norm(x) * 2.0, ((2, 3, 6),)),
    "norm-without-shift": (lambda x, g: dg.nn.layer_norm(x) * g, ROWS[:2]),
    "norm-times-itself": (lambda x, b: dg.square(dg.nn.layer_norm(x, axis=(0, 1))) + b, ((3, 6), (3, 6))),
    "norm-of-all-times-itself": (lambda x, b: dg.nn.layer_norm(x) * dg.nn.layer_norm(x) + b, ((6,), (6,))),
    "norm-plus-itself": (lambda x, g: dg.nn.layer_norm(x) * g + dg.nn.layer_norm(x), ((6,), (6,))),
    "conv": (conv, ((2, 5, 5, 3), (3, 3, 3, 4), (4,))),
    "dense": (layer, ((5, 3), (3, 4), (4,))),
    "dense-of-a-batch": (layer, ((2, 5, 3), (3, 4), (4,))),
    "dense-with-a-row": (layer, ((5, 3), (3, 4), (1, 4))),
    "dense-turned": (lambda x, w, b: dg.matmul(x, w, transpose_a=True, transpose_b=True) + b, ((3, 5), (4, 3), (4,))),
    "dense-of-nothing": (layer, ((5, 0), (0, 4), (4,))),
    "loss": (loss, ((3, 4),)),
    "gelu": (curve, ((3, 4),)),
    "gelu-by-erf": (lambda x: dg.nn.gelu(x), ((3, 4),)),
}


@needs_torch
@pytest.mark.parametrize(("f", "shapes"), GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_group_is_computed_as_by_the_slow_executor(f: Any, shapes: Any, dtype: str) -> None:
    check(program(with_gradients(f), *shapes, dtype=dtype))


# -- writing over what is dead -----------------------------------------------------------------------------------


def over(f: Build, *shapes: tuple[int, ...]) -> dict[str, int | None]:
    """By type, over which input the work writes."""
    return {work.type: work.over for work in works(program(f, *shapes))}


def test_a_result_takes_the_place_of_an_input_that_dies() -> None:
    assert over(lambda x: [dg.exp(dg.tanh(x))], (3,)) == {"Tanh": None, "Exp": 0}


def test_the_second_input_may_be_the_one_that_dies() -> None:
    assert over(lambda x: [x * dg.tanh(x)], (3,)) == {"Tanh": None, "Mul": 1}


def test_what_is_fetched_is_not_written_over() -> None:
    def f(x: dg.Tensor) -> list[dg.Tensor]:
        y = dg.tanh(x)
        return [y, dg.exp(y)]

    assert over(f, (3,)) == {"Tanh": None, "Exp": None}


def test_what_a_view_still_shows_is_not_written_over() -> None:
    def f(x: dg.Tensor) -> list[dg.Tensor]:
        y = dg.tanh(x)
        return [dg.transpose(y), dg.exp(y)]

    assert over(f, (3, 3))["Exp"] is None


def test_what_is_read_through_a_view_at_the_same_time_is_not_written_over() -> None:
    def f(x: dg.Tensor) -> list[dg.Tensor]:
        y = dg.tanh(x)
        return [y * dg.transpose(y)]

    assert over(f, (3, 3))["Mul"] is None


def test_an_input_of_another_shape_is_not_written_over() -> None:
    assert over(lambda x, y: [dg.tanh(x) * y], (3,), (2, 3))["Mul"] is None


def test_a_sum_of_more_than_two_writes_nowhere_that_it_reads() -> None:
    with dg.Graph():
        x = dg.placeholder((3,))
        p = lower([dg.add_n([dg.exp(x), dg.tanh(x), dg.sin(x)])], [x])
    assert [(work.type, work.over) for work in works(p)][-1] == ("AddN", None)


# -- a task as a whole -------------------------------------------------------------------------------------------


@on_backends
@settings(deadline=None, max_examples=60, derandomize=True)
@given(graph=graphs())
def test_programs_full_of_views_are_computed_as_by_the_slow_executor(name: str, graph: RandomGraph) -> None:
    with dg.Graph():
        leaves, fetches = built(graph)
        p = fuse(optimized(fetches, leaves))
    given = graph.leaf_values(dtype=np.float32)
    run = eager(p, name)
    with np.errstate(all="ignore"):
        found, again = run.run(given), run.run(given)
    for x, y, z in zip(found, slowly(p, given), again, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(y).max(initial=0.0))))
        np.testing.assert_array_equal(x, z)
    assert_apart([*found, *again, *given])


def assert_apart(arrays: Sequence[Array]) -> None:
    for i, x in enumerate(arrays):
        assert not any(np.shares_memory(x, y) for y in arrays[:i])


@on_backends
def test_results_that_see_inputs_constants_or_each_other_are_copies(name: str) -> None:
    constant = np.ones((2, 3), np.float32)

    def f(x: dg.Tensor) -> list[dg.Tensor]:
        y = dg.tanh(x)
        return [dg.reshape(x, (6,)), y, dg.reshape(y, (3, 2)), dg.transpose(y), dg.constant(constant), y[:1]]

    p = program(f, (2, 3))
    (x,), run = feeds(p), eager(p, name)
    assert_apart([*run.run([x]), *run.run([x]), x, constant])


@needs_torch
def test_a_result_that_torch_made_is_handed_out_as_it_is() -> None:
    p = program(lambda x: [dg.tanh(x)], (2, 3))
    (found,) = eager(p).run(feeds(p))
    assert found.flags.writeable
    assert found.base is not None  # torch's memory


@needs_torch
def test_a_small_part_of_a_large_result_keeps_none_of_the_rest() -> None:
    p = program(lambda x: [dg.tanh(x)[:1]], (2, 3))
    (found,) = eager(p).run(feeds(p))
    assert found.base is None


@on_backends
def test_an_error_says_which_step_failed(name: str) -> None:
    with dg.Graph():
        ids = dg.placeholder((2,), "int64")
        p = lower([dg.exp(dg.nn.embedding(dg.constant(np.zeros((3, 2))), ids))], [ids])
    with pytest.raises(StepFailed) as found:
        eager(p, name).run([np.array([0, 3])])
    assert found.value.step is not None
    assert found.value.step.type == "Gather"


@needs_torch
@pytest.mark.parametrize("labels", [[0, 2, 3], [0, -1, 1], [0, -100, 1]])
def test_labels_that_are_no_classes_are_refused(labels: list[int]) -> None:
    f = dg.function(dg.value_and_grad(lambda x, y: dg.mean(dg.nn.sparse_softmax_cross_entropy(x, y))))
    with dg.Session(backend="torch"), pytest.raises(ValueError, match="labels must be classes from 0 to 2, got values"):
        f(np.zeros((3, 3), "float32"), np.array(labels))
