"""Native code for matrix products of tiles that are in the cache already: c = a @ b, or c += a @ b.

The result is cut into pieces that fit the CPU's vector registers: some rows by two vectors of columns. Each element is
one chain of fma along the depth, whatever piece it is in, so its bits depend neither on the shapes of pieces nor on the
CPU. Neither a nor b is packed: a row of b is read as vectors, and an element of a, wherever it is, is spread over one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from llvmlite import ir

from distgrad.types import DType
from distgrad.workers.native.emitter import Emitter
from distgrad.workers.native.llvm import host
from distgrad.workers.native.values import Value, constant, fma

_I1, _I64 = ir.IntType(1), ir.IntType(64)
_POINTER = ir.IntType(8).as_pointer()

#: Columns of a piece, in vectors.
_VECTORS = 2
NAME = "multiply"
#: a, elements from a row of it to the next and along a row; b and the length of its rows; c and the length of its rows;
#: rows, columns and depth; whether c is added to. Sizes are in elements.
_SIGNATURE = ir.FunctionType(
    ir.VoidType(), [_POINTER, _I64, _I64, _POINTER, _I64, _POINTER, _I64, _I64, _I64, _I64, _I1]
)


class _Registers(NamedTuple):
    """Bytes of a vector, and rows of pieces: as many as there are registers for, then fewer for the last ones."""

    nbytes: int
    rows: tuple[int, ...]


def _registers(features: str) -> _Registers:
    if "+avx512f" in features:
        return _Registers(64, (12, 8, 4, 2, 1))
    if "+avx" in features:
        return _Registers(32, (6, 4, 2, 1))
    return _Registers(16, (12, 8, 4, 2, 1) if "+neon" in features else (6, 4, 2, 1))


def multiply(module: ir.Module, dtype: DType) -> ir.Function:
    """The function of a module."""
    found = module.globals.get(NAME)
    return _Product(module, dtype).function if found is None else found


class _Product(Emitter):
    """Panels of columns, and in each of them pieces of rows."""

    def __init__(self, module: ir.Module, dtype: DType):
        self.module, self._dtype = module, dtype
        registers = _registers(host()[1])
        lanes = registers.nbytes // dtype.itemsize
        self._pieces = {
            (rows, vectors, masked): _Piece(module, dtype, rows, lanes, vectors, masked).function
            for rows in registers.rows
            for vectors, masked in ((_VECTORS, False), (1, False), (1, True))
        }
        self.function = ir.Function(module, _SIGNATURE, NAME)
        self._b = b = ir.IRBuilder(self.function.append_basic_block("entry"))
        columns = self.function.args[8]
        wide = b.sub(columns, b.urem(columns, _I64(_VECTORS * lanes)))
        whole = b.sub(columns, b.urem(columns, _I64(lanes)))
        for vectors, masked, first, last in (
            (_VECTORS, False, _I64(0), wide),
            (1, False, wide, whole),
            (1, True, whole, columns),
        ):
            with self._counted(first, last, vectors * lanes, "panel") as j:
                self._panel(registers.rows, vectors, masked, j)
        b.ret_void()

    def _panel(self, sizes: Sequence[int], vectors: int, masked: bool, j: ir.Value) -> None:
        b, (a, a_row, a_step, right, b_row, c, c_row, rows, columns, depth, add) = self._b, self.function.args
        done: ir.Value = _I64(0)
        for size in sizes:
            rest = b.sub(rows, done)
            last = b.sub(rows, b.urem(rest, _I64(size)))
            with self._counted(done, last, size, "rows") as i:
                at = self._after(c, b.add(b.mul(i, c_row), j))
                first = self._after(a, b.mul(i, a_row))
                own = [first, a_row, a_step, self._after(right, j), b_row, at, c_row, b.sub(columns, j), depth, add]
                b.call(self._pieces[size, vectors, masked], own)
            done = last

    def _after(self, at: ir.Value, elements: ir.Value) -> ir.Value:
        return self._b.gep(at, [self._b.mul(elements, _I64(self._dtype.itemsize))])


class _Piece(Emitter):
    """The function of one piece, whose sums stay in registers along the depth."""

    def __init__(self, module: ir.Module, dtype: DType, rows: int, lanes: int, vectors: int, masked: bool):
        self.module, self._dtype, self._lanes = module, dtype, lanes
        kind = ir.FunctionType(ir.VoidType(), [_POINTER, _I64, _I64, _POINTER, _I64, _POINTER, _I64, _I64, _I64, _I1])
        self.function = ir.Function(module, kind, f"piece.{rows}.{vectors}{'.masked' * masked}")
        self.function.linkage = "internal"
        self._b = b = ir.IRBuilder(self.function.append_basic_block("entry"))
        *_, c, c_row, columns, _, add = self.function.args
        self._mask_of_columns = self._mask(columns, lanes) if masked else None
        sums = self._sums(rows, vectors)
        cells = product(range(rows), range(vectors))
        places = [self._after(c, b.add(b.mul(_I64(i), c_row), _I64(v * lanes))) for i, v in cells]
        with b.if_else(add) as (adding, setting):
            with adding:
                for at, total in zip(places, sums, strict=True):
                    self._write(at, self._read(at) + total)
            with setting:
                for at, total in zip(places, sums, strict=True):
                    self._write(at, total)
        b.ret_void()

    def _sums(self, rows: int, vectors: int) -> list[Value]:
        """for (k = 0; k < depth; k++) sums[i, v] = fma(a[i, k], b[k, v], sums[i, v])"""
        b, (a, a_row, a_step, right, b_row, *_, depth, _) = self._b, self.function.args
        before = b.block
        head, body, end = (b.append_basic_block(name) for name in ("head", "body", "end"))
        b.branch(head)
        b.position_at_end(head)
        zero = constant(0, self._dtype, self._lanes)
        k, *chains = (b.phi(kind) for kind in (_I64, *[zero.type] * (rows * vectors)))
        for phi, start in ((k, _I64(0)), *[(chain, zero) for chain in chains]):
            phi.add_incoming(start, before)
        b.cbranch(b.icmp_signed("<", k, depth), body, end)
        b.position_at_end(body)
        row, column = self._after(right, b.mul(k, b_row)), self._after(a, b.mul(k, a_step))
        factors = [self._read(self._after(row, _I64(v * self._lanes))) for v in range(vectors)]
        for i in range(rows):
            one = self._load(self._after(column, b.mul(_I64(i), a_row)), self._dtype, 1)
            for factor, chain in zip(factors, chains[i * vectors :], strict=False):
                chain.add_incoming(fma(one, factor, Value(b, chain, self._dtype)).raw, body)
        k.add_incoming(b.add(k, _I64(1)), body)
        b.branch(head)
        b.position_at_end(end)
        return [Value(b, chain, self._dtype) for chain in chains]

    def _read(self, at: ir.Value) -> Value:
        return self._load(at, self._dtype, self._lanes, self._mask_of_columns)

    def _write(self, at: ir.Value, value: Value) -> None:
        self._save(at, self._dtype, value, self._mask_of_columns)

    def _after(self, at: ir.Value, elements: ir.Value) -> ir.Value:
        return self._b.gep(at, [self._b.mul(elements, _I64(self._dtype.itemsize))])
