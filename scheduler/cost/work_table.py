"""The work of each op type.

Op types without a row are counted by their kind, and user-defined ops by their bytes. Weights are relative times of
NumPy functions on float32 blocks of 128 Ki elements, measured with NumPy 2.4 on AVX2: simple arithmetic relative to a
multiplication, transcendental functions relative to exp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from distgrad.registry import OPS, Kind
from distgrad.scheduler.cost.work import (
    Attrs,
    Rule,
    Specs,
    Work,
    add_n,
    copy,
    elementwise_factor,
    fill,
    irregular,
    nbytes,
    nothing,
    per_element,
    plain,
    reduction,
    rowwise,
    rule,
    size,
    view,
)
from distgrad.scheduler.cost.work_products import conv, einsum, factorisation, matmul, pool, solve
from distgrad.scheduler.program import Step
from distgrad.types import Spec

_ELEMENTWISE = {
    "Neg": 0.7, "Square": 0.6, "Abs": 0.7, "Relu": 1.5, "IsNan": 0.6, "IsInf": 0.6, "IsFinite": 0.7, "Floor": 0.9,
    "Ceil": 0.9, "Trunc": 0.9, "Rint": 1.2, "Reciprocal": 1.3, "Sqrt": 2, "Rsqrt": 2.8, "Sign": 2.4, "Select": 4,
}  # fmt: skip

_TRANSCENDENTAL = {
    "Exp": 1, "Exp2": 1, "Expm1": 1, "Tanh": 1.5, "Log": 1.5, "Log2": 1.5, "Log1p": 1.5, "Log10": 1.6, "Cosh": 1.5,
    "Sinh": 1.6, "Erf": 1.7, "Asin": 2.2, "Acos": 2.2, "Atan": 2.6, "Erfc": 2.9, "Sin": 3.1, "Cos": 3.2, "Atan2": 3.6,
    "Tan": 3.7, "Atanh": 3.7, "Acosh": 4.4, "Pow": 4.4, "Asinh": 4.8, "Hypot": 3.2, "Mod": 4.2, "Digamma": 5.3,
    "FloorDiv": 5.6, "LogAddExp": 7.5, "LogAddExp2": 7.5, "Cbrt": 8, "Lgamma": 11, "Polygamma": 200,
}  # fmt: skip

# -- rules of single types ---------------------------------------------------------------------------------------


@rule("axis")
def _gather(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """Each index is one contiguous run, or one per position of the leading axes. Only gathered rows are read."""
    params, indices = ins
    before = math.prod(params.shape[: attrs["axis"]])
    return Work(irregular=before * size(indices), nbytes=2 * nbytes(outs) + nbytes((indices,)), calls=3)


@rule("index")
def _advanced_index(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """Trailing slices of the key make one contiguous run per indexed position."""
    run = 1
    for entry in reversed(attrs["index"]):
        if not isinstance(entry, tuple) or entry[2] != 1:
            break
        run *= max(entry[1], 1)
    places = size(outs[0]) / run
    return Work(irregular=0.3 * places, nbytes=2 * nbytes(outs) + nbytes(ins[1:]), calls=2)


@rule()
def _add_slices(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    elements = sum(size(term) for term in ins) * elementwise_factor(outs[0].dtype)
    return Work(elementwise=elements, nbytes=2 * nbytes(ins) + 2 * nbytes(outs), calls=3 * len(ins) + 1)


def _scatter(updates: int) -> Rule:
    """Each element of input `updates` is added at a random position."""

    @rule()
    def made(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
        return Work(irregular=0.3 * size(ins[updates]), nbytes=nbytes(ins) + nbytes(outs), calls=8)

    return made


@rule()
def _update(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """A copy of the array, and what is assigned: one after another with index arrays."""
    irregular = 0.3 * size(ins[1]) if len(ins) > 2 else 0.0
    return Work(irregular=irregular, nbytes=nbytes(ins) + nbytes(outs), calls=8 if len(ins) > 2 else 2)


@rule()
def _load(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """Disks are about ten times slower than memory."""
    return Work(nbytes=10 * nbytes(outs), calls=100)


@rule()
def _transform(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """One pass per bit of the length along each axis."""
    whole = max(*ins, *outs, key=size)
    axes = attrs.get("axes", (attrs.get("axis", -1),))
    passes = sum(math.log2(whole.shape[i] + 1) for i in axes) if whole.shape else 1.0
    return Work(elementwise=4.0 * passes * size(whole), nbytes=len(axes) * (nbytes(ins) + nbytes(outs)), calls=4)


def _sort(weight: float) -> Rule:
    @rule("axis")
    def made(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
        x = ins[0]
        length = x.shape[attrs.get("axis", -1)] if x.shape else 1
        return Work(irregular=weight * size(x) * math.log2(length + 1), nbytes=nbytes(ins) + nbytes(outs), calls=2)

    return made


@rule()
def _search(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """A comparison at a random place per bit of the length."""
    a, v = ins
    return Work(irregular=0.03 * size(v) * math.log2(size(a) + 1), nbytes=nbytes(ins) + nbytes(outs))


@rule("axis")
def _linear_scan(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """Recursive doubling: one pass over both operands per bit of the length."""
    passes = math.ceil(math.log2(ins[1].shape[attrs["axis"]] + 1))
    elements = 5.0 * passes * size(ins[1]) * ins[1].dtype.itemsize / 4
    return Work(elementwise=elements, nbytes=4.0 * passes * nbytes(ins[1:]), calls=8 * passes)


@rule()
def _categorical(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """One random draw and one logarithm per class of each result."""
    n = size(outs[0]) * ins[1].shape[-1]
    moved = nbytes(ins) + nbytes(outs)
    return Work(elementwise=3.0 * n, transcendental=1.1 * n, irregular=0.5 * n, nbytes=moved, calls=6)


#: Op types that cost more or less than their kind.
WORK: dict[str, Rule] = {
    **{name: per_element(elementwise=weight) for name, weight in _ELEMENTWISE.items()},
    **{name: per_element(transcendental=weight) for name, weight in _TRANSCENDENTAL.items()},
    # elementwise, of several functions
    "ReluGrad": per_element(elementwise=2.3, calls=2),
    "LeakyRelu": per_element(elementwise=1.7, calls=2),
    "LeakyReluGrad": per_element(elementwise=5.4, calls=5),
    "Elu": per_element(elementwise=2, transcendental=1, calls=6),
    "Softplus": per_element(transcendental=2.6, calls=12),
    "Sigmoid": per_element(transcendental=1.8, calls=7),
    "Gelu": per_element(transcendental=1.7, calls=7),
    "GeluGrad": per_element(elementwise=8, transcendental=1.7, calls=13),
    "AddN": add_n,
    "AddSlices": _add_slices,
    # along rows
    "Softmax": rowwise(elementwise=6, transcendental=1, reductions=2, calls=7),
    "SoftmaxGrad": rowwise(elementwise=3.5, reductions=1, calls=4),
    "LogSoftmax": rowwise(elementwise=6, transcendental=1, reductions=2, calls=6),
    "SoftmaxCrossEntropyWithLogits": rowwise(elementwise=20, transcendental=1, reductions=3, calls=11),
    "SparseSoftmaxCrossEntropyWithLogits": rowwise(elementwise=4, transcendental=1, reductions=3, calls=12),
    "SparseSoftmaxCrossEntropyWithLogitsGrad": rowwise(elementwise=9, transcendental=1, reductions=3, calls=12, over=1),
    "LayerNorm": rowwise(elementwise=6, reductions=2, calls=9),
    "LayerNormScale": rowwise(elementwise=5, reductions=2, calls=8),
    "LayerNormGrad": rowwise(elementwise=12, reductions=4, calls=17),
    "LogSumExp": reduction(elementwise=4, transcendental=1),
    "ArgMax": reduction(elementwise=2),
    "ArgMin": reduction(elementwise=2),
    "Cumsum": per_element(elementwise=28),
    "Cumprod": per_element(elementwise=28),
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
    "Update": _update,
    "UnsortedSegmentSum": _scatter(0),
    "FFTND": _transform,
    "IFFTND": _transform,
    "RFFT": _transform,
    "IRFFT": _transform,
    "Sort": _sort(0.03),
    "ArgSort": _sort(0.3),
    "SearchSorted": _search,
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

#: The work of op types without a row, by kind.
BY_KIND: dict[Kind, Rule] = {
    Kind.ELEMENTWISE: per_element(elementwise=1),
    Kind.ROWWISE: rowwise(elementwise=6, transcendental=1, reductions=2, calls=7),  # as a softmax
    Kind.REDUCTION: reduction(elementwise=1),
    Kind.LAYOUT: copy,
    Kind.SOURCE: nothing,
    Kind.ARGUMENT: nothing,
    Kind.STATE: nothing,
    Kind.BARRIER: nothing,
    Kind.CALL: nothing,
}


def rule_of(op_type: str) -> Rule:
    """The rule of an op type: its row in the table, else view, else by kind, else by bytes."""
    if op_type in WORK:
        return WORK[op_type]
    definition = OPS.get(op_type)
    if definition is None or definition.kind is None:
        return plain
    return view if definition.view is not None else BY_KIND.get(definition.kind, plain)


def element_work(step: Step, types: Sequence[Spec]) -> float:
    """The work of an elementwise step per element, in multiplications; infinite with transcendental functions."""
    outs = [types[v] for v in step.outputs]
    work = rule_of(step.type).count([types[v] for v in step.inputs], outs, step.attrs)
    return math.inf if work.transcendental else work.elementwise / max(size(outs[0]), 1)
