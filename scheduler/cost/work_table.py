"""What each op type costs: how heavy it is beside the others of its kind.

What has no row is counted by its kind, and a user's own op by its bytes. The weights compare NumPy's functions on
float32 in blocks of 128 Ki elements, measured with NumPy 2.4 on AVX2: a cheap one as a multiple of a multiplication, a
dear one as a multiple of exp.
"""

from __future__ import annotations

import math

from distgrad.registry import OPS, Kind
from distgrad.scheduler.cost.work import (
    Attrs,
    Rule,
    Specs,
    Work,
    add_n,
    cheap_factor,
    copy,
    elementwise,
    fill,
    irregular,
    nbytes,
    nothing,
    plain,
    reduction,
    rowwise,
    rule,
    size,
    view,
)
from distgrad.scheduler.cost.work_products import conv, einsum, factorisation, matmul, pool, solve

_CHEAP = {
    "Neg": 0.7, "Square": 0.6, "Abs": 0.7, "Relu": 1.5, "IsNan": 0.6, "IsInf": 0.6, "IsFinite": 0.7, "Floor": 0.9,
    "Ceil": 0.9, "Trunc": 0.9, "Rint": 1.2, "Reciprocal": 1.3, "Sqrt": 2, "Rsqrt": 2.8, "Sign": 2.4, "Select": 4,
}  # fmt: skip

_DEAR = {
    "Exp": 1, "Log": 1.2, "Log2": 1.3, "Sin": 1.2, "Cos": 1.2, "Tanh": 2, "Exp2": 2, "Erf": 3.4, "Atan": 2.5,
    "Acos": 2.5, "Asin": 3, "Log10": 3, "Hypot": 3.2, "Log1p": 2.3, "Pow": 5.6, "Mod": 4.2, "Acosh": 4.3, "Expm1": 4.8,
    "Erfc": 5.3, "Digamma": 5.3, "Cosh": 5.5, "FloorDiv": 5.6, "Tan": 6, "Sinh": 6, "LogAddExp": 7.5, "Cbrt": 8,
    "Atan2": 8.5, "Atanh": 10, "Asinh": 10, "Lgamma": 11, "Polygamma": 200,
}  # fmt: skip

# -- rules of single types ---------------------------------------------------------------------------------------


@rule("axis")
def _norm_grad(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """Half of it is the normalising, unless that is given."""
    given = len(ins) == 3
    whole = rowwise(cheap=8 if given else 12, reductions=2 if given else 4, calls=9 if given else 17)
    return whole.work(ins, outs, attrs)


@rule("axis")
def _gather(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """Each index is one run of memory, or one for each place before its axis; what is not gathered is not read."""
    params, indices = ins
    before = math.prod(params.shape[: attrs["axis"]])
    return Work(irregular=before * size(indices), nbytes=2 * nbytes(outs) + nbytes((indices,)), calls=3)


@rule("index")
def _advanced_index(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """The slices at the end of the key are a run of memory for each place that the arrays name."""
    run = 1
    for entry in reversed(attrs["index"]):
        if not isinstance(entry, tuple) or entry[2] != 1:
            break
        run *= max(entry[1], 1)
    places = size(outs[0]) / run
    return Work(irregular=0.3 * places, nbytes=2 * nbytes(outs) + nbytes(ins[1:]), calls=2)


@rule()
def _add_slices(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    cheap = sum(size(term) for term in ins) * cheap_factor(outs[0].dtype)
    return Work(cheap=cheap, nbytes=2 * nbytes(ins) + 2 * nbytes(outs), calls=3 * len(ins) + 1)


def _scatter(updates: int) -> Rule:
    """Every element that is added, of input `updates`, finds its place alone."""

    @rule()
    def made(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
        return Work(irregular=0.3 * size(ins[updates]), nbytes=nbytes(ins) + nbytes(outs), calls=8)

    return made


@rule()
def _load(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """Disks are slower than memory by a factor of ten or so."""
    return Work(nbytes=10 * nbytes(outs), calls=100)


def _sort(weight: float) -> Rule:
    @rule("axis")
    def made(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
        x = ins[0]
        length = x.shape[attrs.get("axis", -1)] if x.shape else 1
        return Work(irregular=weight * size(x) * math.log2(length + 1), nbytes=nbytes(ins) + nbytes(outs), calls=2)

    return made


@rule("axis")
def _linear_scan(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """Doubling: a pass over both operands for every bit of the length."""
    passes = math.ceil(math.log2(ins[1].shape[attrs["axis"]] + 1))
    cheap = 5.0 * passes * size(ins[1]) * ins[1].dtype.itemsize / 4
    return Work(cheap=cheap, nbytes=4.0 * passes * nbytes(ins[1:]), calls=8 * passes)


@rule()
def _categorical(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """A draw and a logarithm for each class of each result."""
    n = size(outs[0]) * ins[1].shape[-1]
    return Work(cheap=3.0 * n, dear=1.1 * n, irregular=0.5 * n, nbytes=nbytes(ins) + nbytes(outs), calls=6)


#: Op types whose weights differ from those of their kind.
WORK: dict[str, Rule] = {
    **{name: elementwise(cheap=weight) for name, weight in _CHEAP.items()},
    **{name: elementwise(dear=weight) for name, weight in _DEAR.items()},
    # elementwise, of several functions
    "ReluGrad": elementwise(cheap=2.3, calls=2),
    "LeakyRelu": elementwise(cheap=1.7, calls=2),
    "LeakyReluGrad": elementwise(cheap=5.4, calls=5),
    "Elu": elementwise(cheap=6, dear=8, calls=6),
    "Softplus": elementwise(cheap=4, dear=3.3, calls=12),
    "Sigmoid": elementwise(cheap=6, dear=1, calls=7),
    "Gelu": elementwise(cheap=3, dear=1, calls=7),
    "GeluGrad": elementwise(cheap=8, dear=1, calls=13),
    "AddN": add_n,
    "AddSlices": _add_slices,
    # along rows
    "Softmax": rowwise(cheap=6, dear=1, reductions=2, calls=7),
    "SoftmaxGrad": rowwise(cheap=3.5, reductions=1, calls=4),
    "LogSoftmax": rowwise(cheap=6, dear=1, reductions=2, calls=6),
    "SoftmaxCrossEntropyWithLogits": rowwise(cheap=20, dear=1, reductions=3, calls=11),
    "SparseSoftmaxCrossEntropyWithLogits": rowwise(cheap=4, dear=1, reductions=3, calls=12),
    "SparseSoftmaxCrossEntropyWithLogitsGrad": rowwise(cheap=9, dear=1, reductions=3, calls=12, over=1),
    "LayerNorm": rowwise(cheap=6, reductions=2, calls=9),
    "LayerNormScale": rowwise(cheap=0.01, calls=1),  # with the norm itself, which makes it on the way
    "LayerNormGrad": _norm_grad,
    "LogSumExp": reduction(cheap=4, dear=1),
    "ArgMax": reduction(cheap=2),
    "ArgMin": reduction(cheap=2),
    "Cumsum": elementwise(cheap=28),
    "Cumprod": elementwise(cheap=28),
    "LinearScan": _linear_scan,
    # of types alone
    "Size": view,
    "Rank": view,
    "Shape": view,
    "Fill": fill,
    "ZerosLike": fill,
    "OnesLike": fill,
    "LoadTensor": _load,
    # one by one
    "Gather": _gather,
    "AdvancedIndex": _advanced_index,
    "AdvancedIndexGrad": _scatter(0),
    "ScatterAdd": _scatter(2),
    "UnsortedSegmentSum": _scatter(0),
    "Sort": _sort(0.03),
    "ArgSort": _sort(0.3),
    "TopK": _sort(0.2),
    "RandomKey": irregular(1),
    "RandomSplit": irregular(1),
    "RandomFoldIn": irregular(1),
    "StatelessRandomUniform": irregular(0.35),
    "StatelessRandomUniformInt": irregular(0.4),
    "StatelessRandomNormal": irregular(0.7),
    "StatelessTruncatedNormal": irregular(2),
    "StatelessCategorical": _categorical,
    "StatelessPermutation": irregular(0.7),
    # matrices and windows
    "MatMul": matmul,
    "Einsum": einsum,
    "Conv2D": conv("Conv2D"),
    "Conv2DBackpropInput": conv("Conv2DBackpropInput"),
    "Conv2DBackpropFilter": conv("Conv2DBackpropFilter"),
    "MaxPool": pool(3),
    "MaxPoolGrad": pool(40),
    "MaxPoolGradGrad": pool(40),
    "AvgPool": pool(4),
    "AvgPoolGrad": pool(7),
    "Cholesky": factorisation(1 / 3, slower=500),
    "MatrixDeterminant": factorisation(2 / 3, slower=300),
    "LogMatrixDeterminant": factorisation(2 / 3, slower=300),
    "MatrixInverse": factorisation(8 / 3, slower=200),
    "Qr": factorisation(10 / 3, slower=220),
    "SelfAdjointEigV2": factorisation(9, slower=100),
    "Svd": factorisation(20, slower=100),
    "MatrixPseudoInverse": factorisation(24, slower=100),
    "MatrixSolve": solve(2 / 3),
    "MatrixTriangularSolve": solve(0),
}

#: What op types without a row cost, by kind.
BY_KIND: dict[Kind, Rule] = {
    Kind.ELEMENTWISE: elementwise(cheap=1),
    Kind.ROWWISE: rowwise(cheap=6, dear=1, reductions=2, calls=7),  # as a softmax
    Kind.REDUCTION: reduction(cheap=1),
    Kind.LAYOUT: copy,
    Kind.SOURCE: nothing,
    Kind.ARGUMENT: nothing,
    Kind.STATE: nothing,
    Kind.BARRIER: nothing,
    Kind.CALL: nothing,
}


def rule_of(op_type: str) -> Rule:
    """How the work of an op type is counted: by its row in the table, as a view, by its kind, or by its bytes."""
    if op_type in WORK:
        return WORK[op_type]
    definition = OPS.get(op_type)
    if definition is None or definition.kind is None:
        return plain
    return view if definition.view is not None else BY_KIND.get(definition.kind, plain)
