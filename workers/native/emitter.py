"""Emitter: a function of LLVM code under construction, with its accesses to memory and its loops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from llvmlite import ir

from distgrad.types import DType
from distgrad.workers.native.values import BOOL, LANES, Value, declared, memory_type, spread, vector

_I32, _I64 = ir.IntType(32), ir.IntType(64)


class Emitter:
    """What loops are written with. Addresses are pointers to bytes."""

    module: ir.Module
    _b: ir.IRBuilder

    # -- memory --------------------------------------------------------------------------------------------------------

    def _load(self, at: ir.Value, dtype: DType, lanes: int, mask: ir.Value | None = None) -> Value:
        b, kind = self._b, vector(memory_type(dtype), lanes)
        if mask is None or lanes == 1:
            raw = b.load(b.bitcast(at, kind.as_pointer()), align=memory_bytes(dtype))
        else:
            types = [kind.as_pointer(), _I32, mask.type, kind]
            function = declared(self.module, f"llvm.masked.load.{_letters(kind)}.p0", ir.FunctionType(kind, types))
            align, zeros = _I32(memory_bytes(dtype)), ir.Constant(kind, None)
            raw = b.call(function, [b.bitcast(at, kind.as_pointer()), align, mask, zeros])
        if dtype == BOOL:
            raw = b.icmp_unsigned("!=", raw, ir.Constant(kind, None) if lanes > 1 else kind(0))
        return Value(b, raw, dtype)

    def _save(self, at: ir.Value, dtype: DType, value: Value, mask: ir.Value | None = None) -> None:
        b, kind = self._b, vector(memory_type(dtype), value.lanes)
        raw = b.zext(value.raw, kind) if dtype == BOOL else value.raw
        if mask is None or value.lanes == 1:
            b.store(raw, b.bitcast(at, kind.as_pointer()), align=memory_bytes(dtype))
            return
        types = [kind, kind.as_pointer(), _I32, mask.type]
        function = declared(
            self.module, f"llvm.masked.store.{_letters(kind)}.p0", ir.FunctionType(ir.VoidType(), types)
        )
        b.call(function, [raw, b.bitcast(at, kind.as_pointer()), _I32(memory_bytes(dtype)), mask])

    def _mask(self, count: ir.Value, lanes: int = LANES) -> ir.Value:
        b, kind = self._b, ir.VectorType(_I64, lanes)
        counts = spread(Value(b, count, np.dtype(np.int64)), lanes)
        return b.icmp_signed("<", ir.Constant(kind, list(range(lanes))), counts.raw)

    # -- loops ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def _counted(self, start: ir.Value, stop: ir.Value, step: int, name: str) -> Iterator[ir.Value]:
        """for (i = start; i < stop; i += step)"""
        b = self._b
        before = b.block
        head, body, end = (b.append_basic_block(f"{name}.{part}") for part in ("head", "body", "end"))
        b.branch(head)
        b.position_at_end(head)
        i = b.phi(_I64, name)
        i.add_incoming(start, before)
        b.cbranch(b.icmp_signed("<", i, stop), body, end)
        b.position_at_end(body)
        yield i
        i.add_incoming(b.add(i, _I64(step)), b.block)
        b.branch(head)
        b.position_at_end(end)


def memory_bytes(dtype: DType) -> int:
    return dtype.itemsize


def _letters(kind: ir.Type) -> str:
    """How intrinsics name a vector type."""
    element = kind.element
    return f"v{kind.count}" + {"float": "f32", "double": "f64"}.get(str(element), str(element))
