"""Pullback: a trace that runs in two halves, the second one when it is given the gradients of the results.

Everything that does not need these gradients runs in the first half, so the second half uses the values and variables
of that time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from distgrad import runtime
from distgrad.graph import FuncGraph, Operation, Tensor, current_graph
from distgrad.ops.builder import as_array
from distgrad.tracing.function import call, op_name
from distgrad.types import Spec


class Pullback:
    """Runs a root body on `arguments` immediately, and its backward half at every call.

    `pull` builds the backward ops from gradients of the results, which have types `specs`. `values` are the results.
    """

    def __init__(
        self,
        body: FuncGraph,
        arguments: Sequence[Any],
        pull: Callable[[list[Tensor]], list[Tensor]],
        specs: Sequence[Spec],
    ):
        ops, effects, results = len(body.ops), len(body.effects), len(body.outputs)
        with body:
            seeds = [body.add("Placeholder", (), [spec], name="grad_ys").outputs[0] for spec in specs]
            found = [g.now() for g in pull(seeds)]
        self._half = _Half(body, _late(body.ops[ops:], seeds), seeds, found)
        del body.effects[effects:]  # those of the backward ops
        body.outputs += self._half.kept
        values = runtime.current().call(body, arguments)
        self._kept = values[results:]
        self.values = [value.copy() for value in values[:results]]  # one may be (a view of) something kept

    def __call__(self, seeds: Sequence[Any]) -> list[Any]:
        if current_graph() is None:
            return runtime.current().call(self._half, [*self._kept, *[as_array(seed) for seed in seeds]])
        if self._half.effects:
            raise ValueError(f"{self._half.name} assigns a variable, so it cannot be part of a graph: call it outside")
        return call(self._half, [*self._kept, *seeds], name=op_name(self._half.name))


def _late(ops: Sequence[Operation], seeds: Sequence[Tensor]) -> list[Operation]:
    """The ops that depend on the seeds, and the assigns with the reads of what they assign: these run at every call."""
    late = dict.fromkeys([seed.op for seed in seeds])
    assigned = {op.inputs[0] for op in ops if op.type == "Assign"}
    for op in ops:
        again = op.type in ("Assign", "ReadVariable") and op.inputs[0] in assigned
        if again or any(t.op in late for t in op.inputs) or any(c in late for c in op.control_inputs):
            late[op] = None
    return list(late)


class _Half(FuncGraph):
    """Copies of some ops of a body. Inputs are the tensors that they read from other ops (`kept`), then the seeds."""

    def __init__(self, body: FuncGraph, ops: Iterable[Operation], seeds: Sequence[Tensor], found: Sequence[Tensor]):
        super().__init__(f"{body.name}_pullback")
        self.kept: list[Tensor] = []
        self._copies: dict[Tensor, Tensor] = {}
        copied = {op: self._copy(op) for op in ops}
        for op, made in copied.items():
            made.control_inputs = tuple([copied[c] for c in op.control_inputs if c in copied])
        self.effects = [made for made in copied.values() if made.type == "Assign"]
        self.outputs = [self._copy_of(t) for t in found]
        self.declared = [self._copies[t] for t in (*self.kept, *seeds)]
        self.handles = {v: self._copies[t] for v, t in body.handles.items() if t in self._copies}

    def _copy(self, op: Operation) -> Operation:
        inputs = tuple([self._copy_of(t) for t in op.inputs])
        made = self.add(op.type, inputs, [t.spec for t in op.outputs], op.attrs, op.name)
        made.gradient, made.device = op.gradient, op.device
        self._copies.update(zip(op.outputs, made.outputs, strict=True))
        while op.original_op is not None:  # take the forward op's source line without keeping the op alive
            op = op.original_op
        made._code, made._lasti = op._code, op._lasti
        return made

    def _copy_of(self, t: Tensor) -> Tensor:
        if t in self._copies:
            return self._copies[t]
        if t.op.inputs or t.op.type == "Placeholder":
            self.kept.append(t)
            self._copies[t] = self.add("Placeholder", (), [t.spec], name="kept").outputs[0]
        else:  # a constant, or the handle of a variable
            self._copy(t.op)
        return self._copies[t]
