"""The gradient of a Call.

The gradient of a call is again a call. Its body is a copy of the forward body followed by the backward ops. The forward
part is not computed twice: lowering inlines all bodies, and common subexpressions are merged.
"""

from __future__ import annotations

from typing import Any

from distgrad.autodiff.gradients import gradients
from distgrad.graph import FuncGraph, Graph, Operation, Tensor, current_graph
from distgrad.ops.builder import convert
from distgrad.ops.control import zeros
from distgrad.registry import RegisterGradient
from distgrad.tracing.function import Traced, call, finish, op_name
from distgrad.tracing.variables import NotPure
from distgrad.types import Spec, trainable

# -- the body of a gradient --------------------------------------------------------------------------------------


class GradientBody(FuncGraph):
    """A copy of a forward body, in which its gradient is built.

    A gradient function may refer to tensors of the forward body, as closures of custom_gradient do; each is replaced by
    its copy.
    """

    def __init__(self, forward: FuncGraph, outer: Graph | None):
        super().__init__(f"{forward.name}_grad", outer)
        self.copies: dict[Tensor, Tensor] = {}
        self._copy_ops(forward)
        copies = self.copies
        copies.update([(outside, copies[inside]) for outside, inside in forward.captures.items()])
        if isinstance(forward, GradientBody):
            copies.update([(t, copies[copy]) for t, copy in forward.copies.items()])
        self.reads = {v: copies[t] for v, t in forward.reads.items()}
        self.handles = {v: copies[t] for v, t in forward.handles.items()}
        self.functions = dict(forward.functions)

    def parameter(self, spec: Spec, name: str, outside: Tensor | None = None) -> Tensor:
        """A declared input. The copy of a captured one still leads outside, where gradients() may follow it."""
        if outside is None or self.outer is None:
            op = self.add("Placeholder", (), [spec], name=name)
        else:
            op = self.add("Capture", (self.outer.local(outside),), [spec], name=name)
        self.declared.append(op.outputs[0])
        return op.outputs[0]

    def stand_in(self, tensor: Tensor) -> Tensor | None:
        return tensor if tensor.graph is self else self.copies.get(tensor)

    def in_place(self, tensor: Tensor) -> Tensor | None:
        copy = self.copies.get(tensor)
        return super().stand_in(tensor) if copy is None or tensor.graph in self.around() else copy

    def _copy_ops(self, forward: FuncGraph) -> None:
        copies = self.copies
        ops: dict[Operation, Operation] = {}
        for t in forward.inputs:
            outside = t.op.inputs[0] if t.op.type == "Capture" else None
            copies[t] = self.parameter(t.spec, t.op.name, outside)
            ops[t.op] = copies[t].op
        for op in forward.ops:
            if op in ops:
                continue
            inputs = tuple([copies[t] for t in op.inputs])
            made = ops[op] = self.add(op.type, inputs, [t.spec for t in op.outputs], op.attrs, op.name)
            made.control_inputs = tuple([ops[c] for c in op.control_inputs])
            made.gradient, made.device, made.original_op = op.gradient, op.device, op.original_op
            made._code, made._lasti = op._code, op._lasti
            copies.update(zip(op.outputs, made.outputs, strict=True))


def gradient_of(body: FuncGraph, outer: Graph | None, total: bool = False) -> Traced:
    """The backward body: takes the inputs of `body` and the gradients of its outputs, returns gradients of its inputs.

    By default it takes the gradients of float and complex outputs only and returns None for unconnected inputs. With
    `total` it takes the gradients of all outputs and returns zeros instead. It is built once per body, unless a
    gradient function captured a tensor of the enclosing graph, which may differ at the next call.
    """
    known = body.memo("gradients")
    made: Traced | None = known.get((total, outer))
    if made is None:
        try:
            made = _build_gradient(body, outer, total)
        except NotPure as e:
            raise ValueError(_assigning(body, str(e))) from None
        if made.body.impure:  # a bare `except:` in user code swallowed NotPure
            raise ValueError(_assigning(body, "a variable is assigned in the body of a call"))
        if not made.body.captures:
            known[total, outer] = made
    return made


def _assigning(body: FuncGraph, what: str) -> str:
    return (
        f"the gradient of {body.name}: {what}. The gradient function of a function that is called in a graph must not "
        f"assign variables. Return the new value from the function, and assign it outside."
    )


def _build_gradient(body: FuncGraph, outer: Graph | None, total: bool) -> Traced:
    made = GradientBody(body, outer)
    inputs = list(made.declared)
    ys: list[Tensor] = []
    grad_ys: list[Tensor] = []
    for t in body.outputs:
        if total or trainable(t.dtype):
            g = made.parameter(t.spec, "grad_ys")
        if trainable(t.dtype):
            ys.append(made.copies[t])
            grad_ys.append(g)
    with made:
        found = iter(gradients(ys, [x for x in inputs if trainable(x.dtype)], grad_ys))
        structure = [next(found) if trainable(x.dtype) else None for x in inputs]
        if total:
            pairs = zip(structure, inputs, strict=True)
            structure = [zeros(x.shape, x.dtype) if g is None else convert(g) for g, x in pairs]
    return finish(made, structure)


@RegisterGradient("Call")
@RegisterGradient("SymbolicGradient")
def _call_grad(op: Operation, *gs: Any) -> Any:
    made = gradient_of(op.attrs["body"], current_graph())
    if not made.body.outputs:
        return [None] * len(op.inputs)
    wanted = [g for g, t in zip(gs, op.outputs, strict=True) if trainable(t.dtype)]
    return made.rebuild(call(made.body, [*op.inputs, *wanted], name=op_name(made.body.name)))
