"""Code for a group: one function that takes a range of rows through all of its loops.

    void group(char **memory, int64 start, int64 stop, int64 height, int64 part)

`memory` has the arrays of the step, then the parts of its folds, then scratch. The function runs over blocks of
`height` rows; the first of them makes part number `part`. In each row, a loop runs over vectors of `LANES` elements.
Where a value depends on a reduction of the row, it belongs to a second loop, and so on: what a later loop needs of an
earlier one is read again where it is in memory, computed again where that is cheap, and else kept in scratch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from llvmlite import ir

from distgrad.types import DType, Shape
from distgrad.workers.native.emitter import Emitter, memory_bytes
from distgrad.workers.native.formulas import CHEAP, REDUCTIONS, Node, identity
from distgrad.workers.native.group import Fold, Group, Operand
from distgrad.workers.native.rules import RULES
from distgrad.workers.native.values import (
    BOOL,
    LANES,
    Value,
    constant,
    reduced,
    scalar_type,
    select,
    spread,
    vector,
)

NAME = "group"

_I32, _I64, _BYTE = ir.IntType(32), ir.IntType(64), ir.IntType(8)
_POINTER = _BYTE.as_pointer()
_SIGNATURE = ir.FunctionType(ir.VoidType(), [_POINTER.as_pointer(), _I64, _I64, _I64, _I64])


class Loops(Emitter):
    """The module with a group's function, and the bytes of scratch that it needs per call."""

    def __init__(self, group: Group):
        self.group = group
        self.module = ir.Module(name=NAME)
        self.scratch_bytes = 0
        self._function = ir.Function(self.module, _SIGNATURE, NAME)
        self._b = ir.IRBuilder(self._function.append_basic_block("entry"))
        self._phases = 1 + max([node.phase for node in self._wanted()], default=0)
        self._kept = self._choose_kept()
        #: The last loop that reads each array.
        self.last_reads: dict[int, int] = {}
        self._allocate()
        self._emit()

    def _wanted(self) -> list[Node]:
        group = self.group
        return [store.node for store in group.stores] + [fold.node for fold in group.folds]

    # -- what is where -------------------------------------------------------------------------------------------------

    def _choose_kept(self) -> dict[Node, int | None]:
        """Values that a later loop needs of an earlier one, and does not compute again: their place in scratch, or
        None where the result of the step has them."""
        needed = self._needed_later()
        stored = {store.node for store in self.group.stores if store.node.full}
        kept: dict[Node, int | None] = {}
        for node in needed:
            if node in stored:
                kept[node] = None
            elif node.cost > CHEAP:
                kept[node] = self.scratch_bytes
                self.scratch_bytes += -(-self.group.length // LANES) * LANES * memory_bytes(node.dtype)
        return kept

    def _needed_later(self) -> list[Node]:
        """Full values that are read by a loop later than their own, the last ones first: what is kept of them decides
        what is needed of others."""
        stored = {store.node for store in self.group.stores if store.node.full}
        found: dict[Node, None] = {}
        for phase in range(self._phases):
            todo = [x for root in self._roots(phase) for x in _reads(root)]
            seen: set[Node] = set()
            while todo:
                node = todo.pop()
                if node in seen or node.type in _AT_HAND:
                    continue
                seen.add(node)
                if node.phase < phase:
                    found[node] = None
                    if node in stored or node.cost > CHEAP:
                        continue
                todo += _reads(node)
        return list(found)

    def _roots(self, phase: int) -> list[Node]:
        """What a loop is run for."""
        reductions = [node for node in self._all() if node.type in REDUCTIONS and node.phase == phase + 1]
        return reductions + [_Root(node) for node in self._wanted() if node.full and node.phase == phase]

    def _all(self) -> list[Node]:
        """Every node, each after those that it reads."""
        order: dict[Node, None] = {}
        for root in self._wanted():
            stack = [(root, False)]
            while stack:
                node, ready = stack.pop()
                if node in order:
                    continue
                if ready:
                    order[node] = None
                    continue
                stack.append((node, True))
                stack += [(x, False) for x in reversed(node.args) if x not in order]
        return list(order)

    # -- the function --------------------------------------------------------------------------------------------------

    def _allocate(self) -> None:
        """Addresses of arrays, and accumulators, once per call."""
        group, b = self.group, self._b
        table, self._start, self._stop, self._height, self._part = self._function.args
        self._arrays = len(group.step.inputs) + len(group.step.outputs)

        def address(i: int) -> ir.Value:
            return b.load(b.gep(table, [_I64(i)]))

        wanted = {x.array for x in group.operands} | {store.to.array for store in group.stores}
        self._base = {i: address(i) for i in sorted(wanted)}
        self._parts = [address(self._arrays + i) for i in range(len(group.folds))]
        self._scratch = address(self._arrays + len(group.folds)) if self.scratch_bytes else None
        self._lanes: dict[Any, ir.Value] = {}
        for key, dtype in self._accumulated():
            self._lanes[key] = b.alloca(vector(scalar_type(dtype), LANES))
            self._lanes[key].align = 64

    def _accumulated(self) -> list[tuple[Any, DType]]:
        made: list[tuple[Any, DType]] = [(node, node.dtype) for node in self._all() if node.type in REDUCTIONS]
        return made + [(i, fold.node.dtype) for i, fold in enumerate(self.group.folds) if self._inside(fold)]

    def _inside(self, fold: Fold) -> bool:
        """Whether a fold also reduces along rows."""
        return len(self.group.space) - 1 in fold.axes

    def _over_all(self, fold: Fold) -> bool:
        return self._inside(fold) and fold.shape == ()

    def _emit(self) -> None:
        group, b = self.group, self._b
        self._uniform()
        span = b.sub(self._stop, self._start)
        blocks = b.sdiv(b.add(span, b.sub(self._height, _I64(1))), self._height)
        with self._counted(_I64(0), blocks, 1, "block") as block:
            first = b.add(self._start, b.mul(block, self._height))
            end = b.add(first, self._height)
            last = b.select(b.icmp_signed("<", end, self._stop), end, self._stop)
            number = b.add(self._part, block)
            parts = [
                b.gep(base, [b.mul(number, _I64(math.prod(fold.shape) * memory_bytes(fold.node.dtype)))])
                for base, fold in zip(self._parts, group.folds, strict=True)
            ]
            for i, fold in enumerate(group.folds):
                if self._over_all(fold):
                    self._reset(i, fold.type, fold.node.dtype)
            if group.flat:
                self._phase(0, first, last, {}, parts, None)
            else:
                with self._counted(first, last, 1, "row") as row:
                    self._one_row(row, parts)
            for i, fold in enumerate(group.folds):
                if self._over_all(fold):
                    self._save(parts[i], fold.node.dtype, self._reduced(i, fold.type, fold.node.dtype))
        b.ret_void()

    def _uniform(self) -> None:
        """Values that are the same everywhere are computed once per call."""
        self._fixed: dict[Node, Value] = {}
        for node in self._all():
            if node.full or node.type in REDUCTIONS or node.phase:
                continue
            if node.type == "Load":
                if math.prod(node.attrs["operand"].shape) == 1:
                    self._note(node, 0)
                    self._fixed[node] = self._load(self._base[node.attrs["operand"].array], node.dtype, 1)
            elif all(x in self._fixed for x in node.args) and node.type != "Iota":
                self._fixed[node] = self._computed(node, self._fixed, None)

    def _one_row(self, row: ir.Value, parts: list[ir.Value]) -> None:
        group = self.group
        self._index = self._indices(row)
        values = dict(self._fixed)
        for phase in range(self._phases):
            self._row_values(phase, values, row)
            if self._roots(phase):
                self._phase(phase, _I64(0), _I64(group.length), values, parts, row)
                for node in self._all():
                    if node.type in REDUCTIONS and node.phase == phase + 1:
                        values[node] = self._reduced(node, node.type, node.dtype)
        for store in group.stores:
            if not store.node.full:
                self._save(self._at(store.to, row), store.node.dtype, values[store.node])
        for i, fold in enumerate(group.folds):
            if not self._over_all(fold) and (self._inside(fold) or not fold.node.full):
                value = self._reduced(i, fold.type, fold.node.dtype) if self._inside(fold) else values[fold.node]
                self._add_to(self._part_row(parts[i], fold), fold, value, None)

    def _row_values(self, phase: int, values: dict[Node, Value], row: ir.Value) -> None:
        """Values per row that are known before a loop."""
        for node in self._all():
            if node.full or node in values or node.phase > phase or node.type in REDUCTIONS:
                continue
            if node.type == "Load":
                self._note(node, phase)
                values[node] = self._load(self._at(node.attrs["operand"], row), node.dtype, 1)
            else:
                values[node] = self._computed(node, values, None)

    # -- one loop over elements ----------------------------------------------------------------------------------------

    def _phase(
        self,
        phase: int,
        start: ir.Value,
        stop: ir.Value,
        values: Mapping[Node, Value],
        parts: list[ir.Value],
        row: ir.Value | None,
    ) -> None:
        b, group = self._b, self.group
        known = dict(values) if row is not None else dict(self._fixed)
        for node in self._all():
            if node.type in REDUCTIONS and node.phase == phase + 1:
                self._reset(node, node.type, node.dtype)
        for i, fold in enumerate(group.folds):
            if self._inside(fold) and not self._over_all(fold) and fold.node.phase == phase:
                self._reset(i, fold.type, fold.node.dtype)
        bases = self._row_bases(row)
        if row is not None:
            count = group.length // LANES * LANES
            whole, rest = _I64(count), _I64(group.length - count) if count < group.length else None
        else:
            span = b.sub(stop, start)
            rest = b.and_(span, _I64(LANES - 1))
            whole = b.sub(stop, rest)
        if row is None or count:
            with self._counted(start, whole, LANES, "element") as i:
                self._elements(phase, i, None, known, bases, parts)
        if rest is not None:
            if row is not None:
                self._elements(phase, whole, self._mask(rest), known, bases, parts)
            else:
                with b.if_then(b.icmp_signed(">", rest, _I64(0))):
                    self._elements(phase, whole, self._mask(rest), known, bases, parts)

    def _row_bases(self, row: ir.Value | None) -> dict[Operand, ir.Value]:
        """Where the row of each array begins."""
        used = set(self.group.operands) | {store.to for store in self.group.stores}
        full = [x for x in used if x.shape[self.group.axis :] == self.group.space[self.group.axis :]]
        return {x: self._base[x.array] if row is None else self._at(x, row) for x in sorted(full, key=_order)}

    def _elements(
        self,
        phase: int,
        i: ir.Value,
        mask: ir.Value | None,
        known: Mapping[Node, Value],
        bases: Mapping[Operand, ir.Value],
        parts: list[ir.Value],
    ) -> None:
        """What a loop does with the elements i to i + LANES - 1, or those of them that the mask names."""
        group, b = self.group, self._b
        values = dict(known)

        def value(node: Node) -> Value:
            stack = [node]
            while stack:
                top = stack[-1]
                if top in values:
                    stack.pop()
                    continue
                waiting = [] if self._is_at_hand(top, phase) else [x for x in top.args if x not in values]
                if waiting:
                    stack += waiting
                    continue
                values[top] = self._read(top, phase, i, mask, bases) or self._computed(top, values, i)
                stack.pop()
            return values[node]

        wanted = [(store, value(store.node)) for store in group.stores if store.node.full and store.node.phase == phase]
        sums = [node for node in self._all() if node.type in REDUCTIONS and node.phase == phase + 1]
        for node in sums:
            self._accumulate(node, node.type, value(node.args[0]), mask)
        kept = [(node, at) for node, at in self._kept.items() if at is not None and node.phase == phase]
        for node, at in kept:
            self._save(self._scratch_at(at, i, node.dtype), node.dtype, value(node), mask=None)
        for k, fold in enumerate(group.folds):
            if fold.node.phase != phase or not fold.node.full:
                continue
            if self._inside(fold):
                self._accumulate(k, fold.type, value(fold.node), mask)
            else:
                at = self._b.gep(self._part_row(parts[k], fold), [b.mul(i, _I64(memory_bytes(fold.node.dtype)))])
                self._add_to(at, fold, value(fold.node), mask)
        for store, made in wanted:  # last: a result may lie where an input was
            at = b.gep(bases[store.to], [b.mul(i, _I64(memory_bytes(made.dtype)))])
            self._save(at, made.dtype, spread(made, LANES), mask)

    def _is_at_hand(self, node: Node, phase: int) -> bool:
        return node.type in _AT_HAND or (node in self._kept and node.phase < phase)

    def _read(
        self, node: Node, phase: int, i: ir.Value, mask: ir.Value | None, bases: Mapping[Operand, ir.Value]
    ) -> Value | None:
        """A full value that is in memory; None if it has to be computed."""
        b = self._b
        if node.type == "Load":
            base = bases[node.attrs["operand"]]
            self._note(node, phase)
        elif node in self._kept and node.phase < phase:
            at = self._kept[node]
            if at is not None:
                return self._load(self._scratch_at(at, i, node.dtype), node.dtype, LANES)
            base = bases[next(store.to for store in self.group.stores if store.node is node)]
        else:
            return None
        return self._load(b.gep(base, [b.mul(i, _I64(memory_bytes(node.dtype)))]), node.dtype, LANES, mask)

    def _note(self, node: Node, phase: int) -> None:
        array = node.attrs["operand"].array
        self.last_reads[array] = max(phase, self.last_reads.get(array, 0))

    def _computed(self, node: Node, values: Mapping[Node, Value], i: ir.Value | None) -> Value:
        b = self._b
        if node.type == "Const":
            return Value(b, constant(node.attrs["value"], node.dtype, 1), node.dtype)
        if node.type == "Iota":
            start = spread(Value(b, i, node.dtype), LANES)
            return start + Value(b, ir.Constant(start.raw.type, list(range(LANES))), node.dtype)
        made = RULES[node.type].build(*[values[x] for x in node.args], **node.attrs)
        return spread(made, LANES) if node.full else made

    # -- accumulators --------------------------------------------------------------------------------------------------

    def _reset(self, key: Any, type: str, dtype: DType) -> None:
        self._b.store(constant(identity(type, dtype), dtype, LANES), self._lanes[key])

    def _accumulate(self, key: Any, type: str, value: Value, mask: ir.Value | None) -> None:
        """Element i goes to lane i % LANES."""
        before = Value(self._b, self._b.load(self._lanes[key]), value.dtype)
        after = combine(type)(before, spread(value, LANES))
        if mask is not None:
            after = select(Value(self._b, mask, BOOL), after, before)
        self._b.store(after.raw, self._lanes[key])

    def _reduced(self, key: Any, type: str, dtype: DType) -> Value:
        return reduced(Value(self._b, self._b.load(self._lanes[key]), dtype), combine(type))

    def _add_to(self, at: ir.Value, fold: Fold, value: Value, mask: ir.Value | None) -> None:
        """Add to a part in memory."""
        lanes = 1 if not fold.node.full or self._inside(fold) else LANES
        before = self._load(at, value.dtype, lanes, mask)
        self._save(at, value.dtype, combine(fold.type)(before, spread(value, lanes)), mask)

    def _part_row(self, base: ir.Value, fold: Fold) -> ir.Value:
        """Where the present row adds to a part: the axes that the fold reduces do not count."""
        group = self.group
        if group.flat:
            return base
        shape = tuple([1 if i in fold.axes else n for i, n in enumerate(group.space)])
        return self._b.gep(base, [self._offset(shape, memory_bytes(fold.node.dtype))])

    # -- addresses -----------------------------------------------------------------------------------------------------

    def _indices(self, row: ir.Value) -> list[ir.Value]:
        """The index along each axis before the row's own. The first is not taken modulo its length."""
        b, found, rest = self._b, [], row
        for n in reversed(self.group.space[1 : self.group.axis]):
            found.append(b.srem(rest, _I64(n)))
            rest = b.sdiv(rest, _I64(n))
        return [rest, *reversed(found)]

    def _at(self, x: Operand, row: ir.Value) -> ir.Value:
        """Where the row of an array begins."""
        group, itemsize = self.group, memory_bytes(x.dtype)
        base = self._base[x.array]
        if x.shape[: group.axis] == group.space[: group.axis]:
            return self._b.gep(base, [self._b.mul(row, _I64(math.prod(x.shape[group.axis :]) * itemsize))])
        return self._b.gep(base, [self._offset(x.shape, itemsize)])

    def _offset(self, shape: Shape, itemsize: int) -> ir.Value:
        b, total = self._b, _I64(0)
        for axis, index in enumerate(self._index):
            if shape[axis] != 1:
                total = b.add(total, b.mul(index, _I64(math.prod(shape[axis + 1 :]) * itemsize)))
        return total

    def _scratch_at(self, at: int, i: ir.Value, dtype: DType) -> ir.Value:
        b = self._b
        return b.gep(self._scratch, [b.add(_I64(at), b.mul(i, _I64(memory_bytes(dtype))))])


#: Nodes that a loop has without computing them.
_AT_HAND = frozenset(["Load", "Const", "Iota"])


class _Root(Node):
    """Stands for the reader of a result."""

    __slots__ = ()

    def __init__(self, node: Node):
        super().__init__("Result", (node,), {}, node.dtype, True)


def _reads(node: Node) -> list[Node]:
    return [x for x in node.args if x.full]


def combine(type: str) -> Callable[[Value, Value], Value]:
    return RULES[REDUCTIONS[type]].build


def _order(x: Operand) -> Any:
    return x.array, x.shape
