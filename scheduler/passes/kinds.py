"""What passes know of op types by name: which compute element by element, and how their results lie in memory."""

from __future__ import annotations

#: Functions of one argument, element by element.
UNARY = frozenset((
    "Neg", "Square", "Reciprocal", "Exp", "Exp2", "Expm1", "Log", "Log2", "Log10", "Log1p", "Sqrt", "Rsqrt", "Cbrt",
    "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh", "Sigmoid", "Erf",
    "Erfc", "Lgamma", "Digamma", "Floor", "Ceil", "Trunc", "Rint", "Sign", "Abs", "Conj", "Cast", "LogicalNot", "IsNan",
    "IsInf", "IsFinite", "Invert", "Relu", "LeakyRelu", "Elu", "Softplus", "Gelu",
))  # fmt: skip
#: Functions of several arguments that broadcast and are exact or rounded once: they give the same bits however they are
#: computed, so also where one operand is a number instead of an array of it.
ROUNDED = frozenset((
    "Add", "Sub", "Mul", "Div", "Maximum", "Minimum", "Equal", "NotEqual", "Less", "LessEqual", "Greater",
    "GreaterEqual", "LogicalAnd", "LogicalOr", "LogicalXor", "Select",
))  # fmt: skip
#: All functions of several arguments that broadcast.
BROADCASTING = ROUNDED | {
    "FloorDiv", "Mod", "Pow", "Atan2", "Hypot", "LogAddExp", "BitwiseAnd", "BitwiseOr", "BitwiseXor",
}  # fmt: skip
#: What passes values on.
PASSING = frozenset(("Identity", "StopGradient", "PreventGradient", "IdentityN"))
#: What lays elements out otherwise, at no more cost than a copy.
LAYOUT = frozenset(("Reshape", "Transpose", "StridedSlice", "Split", "Unstack", "Concat", "Stack", "Cast"))
#: The results lie row by row in memory (axis 0 outermost, without gaps) where the inputs do.
KEEPS_ROWS = UNARY | BROADCASTING | PASSING | {
    "Reshape", "AddN", "Sum", "Mean", "Max", "Min", "Prod", "Any", "All", "LogSumExp", "Concat", "Stack", "MatMul",
    "ZerosLike", "OnesLike", "ReluGrad", "LeakyReluGrad", "GeluGrad", "Softmax", "SoftmaxGrad", "LogSoftmax",
    "LayerNorm", "LayerNormScale", "LayerNormGrad", "SoftmaxCrossEntropyWithLogits",
    "SparseSoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogitsGrad",
}  # fmt: skip
#: The results lie row by row whatever the inputs do.
MAKES_ROWS = frozenset(("Fill", "StridedSliceGrad", "AddSlices", "AdvancedIndexGrad", "UnsortedSegmentSum"))
