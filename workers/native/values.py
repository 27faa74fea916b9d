"""Values of a loop under construction: vectors of `LANES` elements, or single numbers, with Python's operators.

A rule is written as a formula of such values. What it computes for an element is one fixed sequence of IEEE operations:
nothing is reassociated, and a product and a sum are one operation only where the formula says `fma`. So the bits of an
element do not depend on the width of the CPU's vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from distgrad.types import DType

#: Elements that a loop takes at a time, and partial sums of a sum: the same on every CPU.
LANES = 16

BOOL = np.dtype(bool)


class Value:
    """A number of an element type, in each lane of a vector or alone.

    `dtype` is NumPy's. A bool is a single bit here; in memory it is a byte.
    """

    __slots__ = ("builder", "dtype", "raw")

    def __init__(self, builder: ir.IRBuilder, raw: ir.Value, dtype: DType):
        self.builder, self.raw, self.dtype = builder, raw, dtype

    # -- types -----------------------------------------------------------------------------------------------------

    @property
    def lanes(self) -> int:
        return self.raw.type.count if isinstance(self.raw.type, ir.VectorType) else 1

    @property
    def is_float(self) -> bool:
        return self.dtype.kind == "f"

    def like(self, number: Any, dtype: DType | None = None) -> Value:
        """A constant of this value's lanes; its dtype is that of this value if none is given."""
        dtype = self.dtype if dtype is None else dtype
        return Value(self.builder, constant(number, dtype, self.lanes), dtype)

    def _same(self, other: Any) -> Value:
        made = other if isinstance(other, Value) else self.like(other)
        if made.dtype != self.dtype:
            raise TypeError(f"values of {self.dtype} and {made.dtype} do not mix: cast one of them")
        return spread(made, self.lanes)

    def _made(self, raw: ir.Value) -> Value:
        return Value(self.builder, raw, self.dtype)

    def _binary(self, other: Any, of_floats: str, of_ints: str) -> Value:
        if isinstance(other, Value) and other.lanes > self.lanes:
            return spread(self, other.lanes)._binary(other, of_floats, of_ints)
        name = of_floats if self.is_float else of_ints
        return self._made(getattr(self.builder, name)(self.raw, self._same(other).raw))

    # -- arithmetic ------------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Value:
        return self._binary(other, "fadd", "add")

    def __sub__(self, other: Any) -> Value:
        return self._binary(other, "fsub", "sub")

    def __mul__(self, other: Any) -> Value:
        return self._binary(other, "fmul", "mul")

    def __truediv__(self, other: Any) -> Value:
        return self._binary(other, "fdiv", "")  # integers are cast before they are divided

    def __radd__(self, other: Any) -> Value:
        return self.like(other) + self

    def __rsub__(self, other: Any) -> Value:
        return self.like(other) - self

    def __rmul__(self, other: Any) -> Value:
        return self.like(other) * self

    def __rtruediv__(self, other: Any) -> Value:
        return self.like(other) / self

    def __neg__(self) -> Value:
        return self._made(self.builder.fneg(self.raw) if self.is_float else self.builder.neg(self.raw))

    # -- bits ------------------------------------------------------------------------------------------------------

    def __and__(self, other: Any) -> Value:
        return self._binary(other, "", "and_")

    def __or__(self, other: Any) -> Value:
        return self._binary(other, "", "or_")

    def __xor__(self, other: Any) -> Value:
        return self._binary(other, "", "xor")

    def __invert__(self) -> Value:
        return self._made(self.builder.not_(self.raw))

    def __lshift__(self, other: Any) -> Value:
        return self._binary(other, "", "shl")

    def __rshift__(self, other: Any) -> Value:
        """Arithmetic where the dtype is signed."""
        return self._binary(other, "", "ashr" if self.dtype.kind == "i" else "lshr")

    def bits(self, kind: str = "i") -> Value:
        """The same bits as an integer, signed unless `kind` is "u"; of an integer, as a float if `kind` is "f"."""
        dtype = np.dtype(f"{kind}{self.dtype.itemsize}")
        return Value(self.builder, self.builder.bitcast(self.raw, vector(scalar_type(dtype), self.lanes)), dtype)

    # -- comparing: bools ------------------------------------------------------------------------------------------

    def _compare(self, sign: str, other: Any) -> Value:
        if isinstance(other, Value) and other.lanes > self.lanes:
            return spread(self, other.lanes)._compare(sign, other)
        right = self._same(other).raw
        if self.is_float:
            compare = self.builder.fcmp_unordered if sign == "!=" else self.builder.fcmp_ordered
        else:
            compare = self.builder.icmp_signed if self.dtype.kind == "i" else self.builder.icmp_unsigned
        return Value(self.builder, compare(sign, self.raw, right), BOOL)

    def __lt__(self, other: Any) -> Value:
        return self._compare("<", other)

    def __le__(self, other: Any) -> Value:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> Value:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> Value:
        return self._compare(">=", other)

    def __eq__(self, other: Any) -> Value:  # type: ignore[override]
        return self._compare("==", other)

    def __ne__(self, other: Any) -> Value:  # type: ignore[override]
        return self._compare("!=", other)

    __hash__ = object.__hash__

    def is_nan(self) -> Value:
        return Value(self.builder, self.builder.fcmp_unordered("uno", self.raw, self.raw), BOOL)

    # -- one IEEE operation each -----------------------------------------------------------------------------------

    def __abs__(self) -> Value:
        if self.is_float:
            return self._intrinsic("fabs")
        return select(self < 0, -self, self) if self.dtype.kind == "i" else self

    def floor(self) -> Value:
        return self._intrinsic("floor")

    def ceil(self) -> Value:
        return self._intrinsic("ceil")

    def trunc(self) -> Value:
        return self._intrinsic("trunc")

    def rint(self) -> Value:
        """To the nearest integer, halves to the even one."""
        return self._intrinsic("rint")

    def sqrt(self) -> Value:
        return self._intrinsic("sqrt")

    def copysign(self, sign: Value) -> Value:
        """This number with the sign of another."""
        return self._intrinsic("copysign", sign)

    def _intrinsic(self, name: str, *others: Any) -> Value:
        args = [self, *[self._same(x) for x in others]]
        made = self.raw.type
        letter = f"{'v' + str(self.lanes) if self.lanes > 1 else ''}f{8 * self.dtype.itemsize}"
        function = declared(self.builder.module, f"llvm.{name}.{letter}", ir.FunctionType(made, [made] * len(args)))
        return self._made(self.builder.call(function, [x.raw for x in args]))

    def cast(self, dtype: DType) -> Value:
        """As NumPy's astype for values that the dtype can hold. Floats become integers by truncation."""
        if dtype == self.dtype:
            return self
        to, b = vector(scalar_type(dtype), self.lanes), self.builder
        if dtype == BOOL:
            return self != 0
        if self.dtype == BOOL or (self.dtype.kind == "u" and dtype.kind != "f"):
            if dtype.kind == "f":
                return Value(b, b.uitofp(self.raw, to), dtype)
            narrower = dtype.itemsize < self.dtype.itemsize and self.dtype != BOOL
            same = dtype.itemsize == self.dtype.itemsize and self.dtype != BOOL
            return Value(b, self.raw if same else b.trunc(self.raw, to) if narrower else b.zext(self.raw, to), dtype)
        if self.is_float and dtype.kind == "f":
            return Value(b, (b.fpext if dtype.itemsize > self.dtype.itemsize else b.fptrunc)(self.raw, to), dtype)
        if self.is_float:
            return Value(b, (b.fptosi if dtype.kind == "i" else b.fptoui)(self.raw, to), dtype)
        if dtype.kind == "f":
            return Value(b, (b.sitofp if self.dtype.kind == "i" else b.uitofp)(self.raw, to), dtype)
        if dtype.itemsize == self.dtype.itemsize:
            return Value(b, self.raw, dtype)
        return Value(b, (b.sext if dtype.itemsize > self.dtype.itemsize else b.trunc)(self.raw, to), dtype)


def fma(x: Value, y: Any, z: Any) -> Value:
    """x * y + z with one rounding."""
    lanes = max([v.lanes for v in (x, y, z) if isinstance(v, Value)])
    return spread(x, lanes)._intrinsic("fma", y, z)


def select(condition: Value, x: Any, y: Any) -> Value:
    """x where the condition holds, else y. One of them may be a Python number."""
    typed = x if isinstance(x, Value) else y
    lanes = max([v.lanes for v in (condition, x, y) if isinstance(v, Value)])
    a, b = (spread(v if isinstance(v, Value) else typed.like(v), lanes) for v in (x, y))
    if a.dtype != b.dtype:
        raise TypeError(f"values of {a.dtype} and {b.dtype} do not mix: cast one of them")
    return Value(typed.builder, typed.builder.select(spread(condition, lanes).raw, a.raw, b.raw), a.dtype)


def polynomial(x: Value, *coefficients: float) -> Value:
    """Horner's scheme by fma, from the coefficient of the highest power down to the constant."""
    total = x.like(coefficients[0])
    for c in coefficients[1:]:
        total = fma(total, x, x.like(c))
    return total


def spread(value: Value, lanes: int) -> Value:
    """A single number in all lanes."""
    if value.lanes == lanes:
        return value
    b, kind = value.builder, vector(value.raw.type, lanes)
    one = b.insert_element(ir.Constant(kind, ir.Undefined), value.raw, ir.Constant(ir.IntType(32), 0))
    mask = ir.Constant(vector(ir.IntType(32), lanes), [0] * lanes)
    return Value(b, b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), mask), value.dtype)


def reduced(value: Value, combine: Callable[[Value, Value], Value]) -> Value:
    """The lanes of a vector as one number, by a tree: lane i with lane i + n / 2, until one is left."""
    b, lanes = value.builder, value.lanes
    while lanes > 1:
        lanes //= 2
        if lanes == 1:
            halves = [b.extract_element(value.raw, ir.Constant(ir.IntType(32), at)) for at in (0, 1)]
        else:
            masks = [ir.Constant(vector(ir.IntType(32), lanes), list(range(at, at + lanes))) for at in (0, lanes)]
            halves = [b.shuffle_vector(value.raw, value.raw, mask) for mask in masks]
        value = combine(*[Value(b, half, value.dtype) for half in halves])
    return value


# -- types of LLVM -------------------------------------------------------------------------------------------------

_FLOATS = {4: ir.FloatType(), 8: ir.DoubleType()}


def scalar_type(dtype: DType) -> ir.Type:
    if dtype == BOOL:
        return ir.IntType(1)
    return _FLOATS[dtype.itemsize] if dtype.kind == "f" else ir.IntType(8 * dtype.itemsize)


def memory_type(dtype: DType) -> ir.Type:
    return ir.IntType(8) if dtype == BOOL else scalar_type(dtype)


def vector(scalar: ir.Type, lanes: int) -> ir.Type:
    return scalar if lanes == 1 else ir.VectorType(scalar, lanes)


def constant(number: Any, dtype: DType, lanes: int) -> ir.Constant:
    """`number` is rounded to the dtype first, as NumPy does."""
    rounded = np.array(number, dtype)
    if dtype.kind == "f":
        # Through its bits: the text of a decimal number would be rounded once more, and NaN has no text.
        bits = ir.IntType(8 * dtype.itemsize)(int(rounded.view(f"u{dtype.itemsize}")))
        scalar = bits.bitcast(scalar_type(dtype))
    else:
        scalar = ir.Constant(scalar_type(dtype), int(rounded))
    return scalar if lanes == 1 else ir.Constant(ir.VectorType(scalar.type, lanes), [scalar] * lanes)


def declared(module: ir.Module, name: str, kind: ir.FunctionType) -> ir.Function:
    """An intrinsic; llvmlite's own `declare_intrinsic` guesses the types of some wrongly."""
    found = module.globals.get(name)
    return found if found is not None else ir.Function(module, kind, name)
