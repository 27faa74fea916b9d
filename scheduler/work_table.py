"""Which op type is of which family of work, and how heavy it is beside the others of its family.

What is not in the table, a user's own op, is counted by `plain`. The weights compare NumPy's functions on float32 in
blocks of 128 Ki elements, measured with NumPy 2.4 on AVX2: a cheap one as a multiple of a multiplication, a dear one as
a multiple of exp.
"""

from __future__ import annotations

import math

from distgrad.scheduler.program import Step
from distgrad.scheduler.work import (
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
    size,
    view,
)
from distgrad.scheduler.work_products import conv, einsum, factorisation, matmul, pool, solve

_CHEAP = {
    "Add": 1, "Sub": 1, "Mul": 1, "Div": 1, "Neg": 0.7, "Square": 0.6, "Abs": 0.7, "Maximum": 1, "Minimum": 1,
    "Relu": 1.5, "Equal": 1, "NotEqual": 1, "Less": 1, "LessEqual": 1, "Greater": 1, "GreaterEqual": 1, "IsNan": 0.6,
    "IsInf": 0.6, "IsFinite": 0.7, "LogicalAnd": 1, "LogicalOr": 1, "LogicalXor": 1, "LogicalNot": 1, "BitwiseAnd": 1,
    "BitwiseOr": 1, "BitwiseXor": 1, "Invert": 1, "Floor": 0.9, "Ceil": 0.9, "Trunc": 0.9, "Rint": 1.2,
    "Reciprocal": 1.3, "Sqrt": 2, "Rsqrt": 2.8, "Sign": 2.4, "Select": 4, "Cast": 1, "Conj": 1,
}  # fmt: skip

_DEAR = {
    "Exp": 1, "Log": 1.2, "Log2": 1.3, "Sin": 1.2, "Cos": 1.2, "Tanh": 2, "Exp2": 2, "Erf": 3.4, "Atan": 2.5,
    "Acos": 2.5, "Asin": 3, "Log10": 3, "Hypot": 3.2, "Log1p": 2.3, "Pow": 5.6, "Mod": 4.2, "Acosh": 4.3, "Expm1": 4.8,
    "Erfc": 5.3, "Digamma": 5.3, "Cosh": 5.5, "FloorDiv": 5.6, "Tan": 6, "Sinh": 6, "LogAddExp": 7.5, "Cbrt": 8,
    "Atan2": 8.5, "Atanh": 10, "Asinh": 10, "Lgamma": 11, "Polygamma": 200,
}  # fmt: skip

_FREE = (
    "Const", "Placeholder", "Capture", "VarHandle", "ReadVariable", "Assign", "Call", "SymbolicGradient", "NoOp",
)  # fmt: skip

_VIEWS = (
    "Identity", "IdentityN", "StopGradient", "PreventGradient", "Reshape", "Transpose", "BroadcastTo", "StridedSlice",
    "Split", "Unstack", "Reverse", "MatrixDiagPart", "Real", "Imag", "Size", "Rank", "Shape",
)  # fmt: skip


# -- rules of single types ---------------------------------------------------------------------------------------


def _norm_grad(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """Half of it is the normalising, unless that is given."""
    given = len(ins) == 3
    return rowwise(cheap=8 if given else 12, reductions=2 if given else 4, calls=9 if given else 17)(ins, outs, attrs)


def _gather(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """Each index is one run of memory, or one for each place before its axis; what is not gathered is not read."""
    params, indices = ins
    before = math.prod(params.shape[: attrs["axis"]])
    return Work(irregular=before * size(indices), nbytes=2 * nbytes(outs) + nbytes((indices,)), calls=3)


def _advanced_index(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """The slices at the end of the key are a run of memory for each place that the arrays name."""
    run = 1
    for entry in reversed(attrs["index"]):
        if not isinstance(entry, tuple) or entry[2] != 1:
            break
        run *= max(entry[1], 1)
    places = size(outs[0]) / run
    return Work(irregular=0.3 * places, nbytes=2 * nbytes(outs) + nbytes(ins[1:]), calls=2)


def _add_slices(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    cheap = sum(size(term) for term in ins) * cheap_factor(outs[0].dtype)
    return Work(cheap=cheap, nbytes=2 * nbytes(ins) + 2 * nbytes(outs), calls=3 * len(ins) + 1)


def _scatter(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """Every element that is added finds its place alone."""
    updates = ins[0] if "num_segments" in attrs or "index" in attrs else ins[2]
    return Work(irregular=0.3 * size(updates), nbytes=nbytes(ins) + nbytes(outs), calls=8)


def _load(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """Disks are slower than memory by a factor of ten or so."""
    return Work(nbytes=10 * nbytes(outs), calls=100)


def _sort(weight: float) -> Rule:
    def rule(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
        x = ins[0]
        length = x.shape[attrs.get("axis", -1)] if x.shape else 1
        return Work(irregular=weight * size(x) * math.log2(length + 1), nbytes=nbytes(ins) + nbytes(outs), calls=2)

    return rule


def _linear_scan(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """Doubling: a pass over both operands for every bit of the length."""
    passes = math.ceil(math.log2(ins[1].shape[attrs["axis"]] + 1))
    cheap = 5.0 * passes * size(ins[1]) * ins[1].dtype.itemsize / 4
    return Work(cheap=cheap, nbytes=4.0 * passes * nbytes(ins[1:]), calls=8 * passes)


def _categorical(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """A draw and a logarithm for each class of each result."""
    n = size(outs[0]) * ins[1].shape[-1]
    return Work(cheap=3.0 * n, dear=1.1 * n, irregular=0.5 * n, nbytes=nbytes(ins) + nbytes(outs), calls=6)


WORK: dict[str, Rule] = {
    **dict.fromkeys(_FREE, nothing),
    **dict.fromkeys(_VIEWS, view),
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
    **{name: reduction(cheap=1) for name in ("Sum", "Mean", "Prod", "Any", "All")},
    **{name: reduction(cheap=1) for name in ("Max", "Min")},
    **{name: reduction(cheap=2) for name in ("ArgMax", "ArgMin")},
    **{name: elementwise(cheap=28) for name in ("Cumsum", "Cumprod")},
    "LinearScan": _linear_scan,
    # copies
    **dict.fromkeys(("Fill", "ZerosLike", "OnesLike"), fill),
    **dict.fromkeys(("Concat", "Stack", "Pad", "Roll", "Tril", "Triu", "MatrixDiag", "StridedSliceGrad"), copy),
    "LoadTensor": _load,
    # one by one
    "Gather": _gather,
    "AdvancedIndex": _advanced_index,
    "AdvancedIndexGrad": _scatter,
    "ScatterAdd": _scatter,
    "UnsortedSegmentSum": _scatter,
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

#: Attributes that a rule reads: with the types they decide the work.
READ = {
    "Einsum": ("equation",),
    "AdvancedIndex": ("index",),
    **dict.fromkeys(("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"), ("strides", "dilation", "groups")),
    **dict.fromkeys(("MaxPool", "MaxPoolGrad", "MaxPoolGradGrad", "AvgPool", "AvgPoolGrad"), ("window",)),
    **dict.fromkeys(("Sum", "Mean", "Prod", "Any", "All", "Max", "Min", "ArgMax", "ArgMin", "LogSumExp"), ("axis",)),
    **dict.fromkeys(("Softmax", "SoftmaxGrad", "LogSoftmax", "SoftmaxCrossEntropyWithLogits"), ("axis",)),
    **dict.fromkeys(("LayerNorm", "LayerNormScale", "LayerNormGrad", "Sort", "ArgSort"), ("axis",)),
    **dict.fromkeys(("Gather", "LinearScan"), ("axis",)),
}


def step_work(step: Step, ins: Specs, outs: Specs) -> Work:
    """The work of a step that is no group."""
    return WORK.get(step.type, plain)(ins, outs, step.attrs)
