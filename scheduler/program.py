"""Program: a graph made flat. Steps refer to values by integer id, function bodies are laid out in place.

`lower` takes what is to be fetched and what is fed, and keeps only the ops that are needed. The order of steps is the
order of creation, which is a topological order; among the reads and assigns of one variable it is what defines the
result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distgrad.errors import Source
from distgrad.function import CALLS
from distgrad.graph import FuncGraph, Operation, Tensor
from distgrad.printing import format_attrs
from distgrad.registry import OPS
from distgrad.types import Spec

#: Op types whose value comes from outside: a feed, or the inputs of the call.
ARGUMENTS = ("Placeholder", "Capture")


@dataclass(frozen=True, slots=True)
class Step:
    """One op of a program: what it reads and makes by value id, and the steps it must follow beside those."""

    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Mapping[str, Any]
    after: tuple[int, ...]
    source: Source
    name: str
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """Steps in order; `types[i]` is the type of value i; feeds and fetches are value ids."""

    steps: tuple[Step, ...]
    types: tuple[Spec, ...]
    feeds: tuple[int, ...]
    fetches: tuple[int, ...]
    #: The keys of the variables that steps read or assign, in the order of first use.
    variables: tuple[Any, ...] = ()

    @property
    def assigns(self) -> bool:
        return any(step.type == "Assign" for step in self.steps)

    def __str__(self) -> str:
        """One step per line, as graphs print."""
        lines = [f"%{i} {self.types[i]} = Feed()" for i in self.feeds]
        for step in self.steps:
            made = ", ".join(f"%{i} {self.types[i]}" for i in step.outputs)
            read = ", ".join([*(f"%{i}" for i in step.inputs), *format_attrs(step.attrs)])
            lines.append(f"{made or step.name} = {step.type}({read})  # {step.source}")
        return "\n".join([*lines, f"return {', '.join(f'%{i}' for i in self.fetches)}"])


def lower(fetches: Sequence[Tensor], feeds: Sequence[Tensor] = (), effects: Sequence[Operation] = ()) -> Program:
    """The program that computes `fetches` and runs `effects`, given values for `feeds`.

    >>> import distgrad as dg
    >>> with dg.Graph():
    ...     x = dg.placeholder((2,), name="x")
    ...     y, unused = dg.exp(x), dg.log(x)
    >>> print(lower([y], [x]))  # doctest: +ELLIPSIS
    %0 f64[2] = Feed()
    %1 f64[2] = Exp(%0)  # ...
    return %1
    """
    flat = _Flattener(feeds)
    fetched, keep = flat.run(fetches, effects)
    steps = _prune(flat.steps, fetched, keep)
    _check_fed(flat.unfed, steps, fetched)
    variables = tuple(dict.fromkeys(s.attrs["key"] for s in steps if s.type in ("ReadVariable", "Assign")))
    return check_program(Program(steps, tuple(flat.types), tuple(flat.feeds), fetched, variables))


def _check_fed(unfed: Mapping[int, Operation], steps: Sequence[Step], fetched: Sequence[int]) -> None:
    """A placeholder without a value is an error if something reads it, which only the pruned steps tell."""
    if unfed:
        for v in (*fetched, *(v for step in steps for v in step.inputs)):
            if v in unfed:
                raise ValueError(_unfed_text(unfed[v]))


def _unfed_text(op: Operation) -> str:
    if isinstance(op.graph, FuncGraph):
        return (
            f"{op.outputs[0]!r} is an argument of function {op.graph.name!r}, whose trace is over: what depends on it "
            f"has no value here. Return that from the function, and use what the call gives."
        )
    return f"placeholder {op.name!r} (at {op.source}) must be fed: give this tensor (not its name) a value in feed_dict"


class _Frame:
    """One body being laid out: the ops still to come, and the ids and steps of those that are done."""

    def __init__(
        self,
        ops: Iterable[Operation],
        ids: dict[Tensor, int],
        after: tuple[int, ...] = (),
        call: Operation | None = None,
        device: str | None = None,
    ):
        self.ops = iter(ops)
        self.ids = ids
        self.after = after
        self.call = call
        self.device = device
        self.steps_of: dict[Operation, tuple[int, ...]] = {}


class _Flattener:
    """Lays ops out as steps. Calls open a frame on a stack of our own: nesting costs no recursion."""

    def __init__(self, feeds: Sequence[Tensor]):
        self.steps: list[Step] = []
        self.types: list[Spec] = []
        self.ids = {t: self.new_id(t) for t in dict.fromkeys(feeds)}
        self.feeds = [self.ids[t] for t in feeds]
        self.maker: dict[int, int] = {}
        self.unfed: dict[int, Operation] = {}

    def new_id(self, t: Tensor) -> int:
        self.types.append(t.spec)
        return len(self.types) - 1

    def run(self, fetches: Sequence[Tensor], effects: Sequence[Operation]) -> tuple[tuple[int, ...], list[int]]:
        root = _Frame(_needed(fetches, effects, self.ids), self.ids)
        frames = [root]
        while frames:
            frame = frames[-1]
            op = next(frame.ops, None)
            if op is None:
                frames.pop()
                if frame.call is not None:
                    self.close(frame, frames[-1])
            elif op.type in CALLS:
                frames.append(self.open(op, frame))
            else:
                self.emit(op, frame)
        return tuple(self.ids[t] for t in fetches), [i for op in effects for i in root.steps_of.get(op, ())]

    def open(self, op: Operation, frame: _Frame) -> _Frame:
        body: FuncGraph = op.attrs["body"]
        ids = {inner: frame.ids[outer] for inner, outer in zip(body.inputs, op.inputs, strict=True)}
        inside = _Frame(_needed(body.outputs, (), ids), ids, self.after(op, frame), op, op.device or frame.device)
        inside.steps_of = {t.op: self.steps_that_made(i) for t, i in ids.items()}  # a body may wait for an argument
        return inside

    def close(self, frame: _Frame, caller: _Frame) -> None:
        op = frame.call
        assert op is not None
        body: FuncGraph = op.attrs["body"]
        for outer, inner in zip(op.outputs, body.outputs, strict=True):
            waits = frame.after and inner.op.type in ARGUMENTS  # passed through: nothing in the body waits for it
            made = self.identity(outer, frame.ids[inner], frame) if waits else frame.ids[inner]
            caller.ids.setdefault(outer, made)
        makers = [i for t in op.outputs for i in self.steps_that_made(caller.ids[t])]
        caller.steps_of[op] = tuple(dict.fromkeys(makers))

    def identity(self, t: Tensor, read: int, frame: _Frame) -> int:
        made = self.new_id(t)
        self.maker[made] = len(self.steps)
        source, name = t.op.source, t.op.name
        self.steps.append(Step("Identity", (read,), (made,), {}, frame.after, source, name, frame.device))
        return made

    def steps_that_made(self, value: int) -> tuple[int, ...]:
        return (self.maker[value],) if value in self.maker else ()

    def after(self, op: Operation, frame: _Frame) -> tuple[int, ...]:
        return (*frame.after, *(i for c in op.control_inputs for i in frame.steps_of.get(c, ())))

    def emit(self, op: Operation, frame: _Frame) -> None:
        if op.type in ARGUMENTS:
            if op.outputs[0] in frame.ids:  # fed, and waited for by somebody: there already
                return
            frame.ids[op.outputs[0]] = self.new_id(op.outputs[0])
            self.unfed[frame.ids[op.outputs[0]]] = op
            return
        if op.type == "VarHandle":
            return
        attrs, inputs = op.attrs, op.inputs
        if op.type in ("ReadVariable", "Assign"):
            attrs, inputs = inputs[0].op.attrs, inputs[1:]
        outputs = tuple([self.new_id(t) for t in op.outputs])
        for t, i in zip(op.outputs, outputs, strict=True):
            frame.ids.setdefault(t, i)  # a fed output keeps the fed value
            self.maker[i] = len(self.steps)
        frame.steps_of[op] = (len(self.steps),)
        ids = frame.ids
        read, after = tuple([ids[t] for t in inputs]), self.after(op, frame)
        device = op.device or frame.device
        self.steps.append(Step(op.type, read, outputs, attrs, after, op.source, op.name, device))


def _needed(fetches: Iterable[Tensor], effects: Iterable[Operation], given: Mapping[Tensor, int]) -> list[Operation]:
    """The ops behind these tensors and operations, in order, not looking behind what is given."""
    stack = [*(t.op for t in fetches if t not in given), *effects]
    seen = set(stack)
    while stack:
        op = stack.pop()
        for t in op.inputs if op.type not in ARGUMENTS else ():
            if t not in given and t.op not in seen:
                seen.add(t.op)
                stack.append(t.op)
        for c in op.control_inputs:
            if c not in seen:
                seen.add(c)
                stack.append(c)
    return sorted(seen, key=lambda op: op.id)


def _prune(steps: Sequence[Step], fetches: Sequence[int], keep: Sequence[int]) -> tuple[Step, ...]:
    """Drop the steps of inlined bodies that nobody reads, and renumber what others wait for."""
    live, wanted = set(fetches), set(keep)
    kept: list[int] = []
    for i in range(len(steps) - 1, -1, -1):
        step = steps[i]
        if i in wanted or not live.isdisjoint(step.outputs):
            kept.append(i)
            live.update(step.inputs)
            wanted.update(step.after)
    kept.reverse()
    if len(kept) == len(steps):
        return tuple(steps)
    place = {old: new for new, old in enumerate(kept)}
    return tuple(_moved(steps[i], place) for i in kept)


def _moved(step: Step, place: Mapping[int, int]) -> Step:
    if not step.after:
        return step
    after = tuple(place[i] for i in step.after)
    return Step(step.type, step.inputs, step.outputs, step.attrs, after, step.source, step.name, step.device)


def check_program(program: Program) -> Program:
    """What every executor relies on; raises ValueError at the first thing that does not hold."""
    made = set(program.feeds)
    count = len(program.types)
    for v in program.feeds:
        if not 0 <= v < count:
            raise ValueError(f"value {v} is fed but has no type: there are {count} values")
    for i, step in enumerate(program.steps):
        if step.type not in OPS:
            raise ValueError(f"step {i} ({step.name!r}) has unknown op type {step.type!r}")
        for v in step.inputs:
            if v not in made:
                raise ValueError(f"step {i} ({step.name!r}) reads value {v} before anything made it")
        for v in step.outputs:
            if v in made or not 0 <= v < count:
                raise ValueError(f"step {i} ({step.name!r}) makes value {v}, which is out of range or made already")
        if any(not 0 <= j < i for j in step.after):
            raise ValueError(f"step {i} ({step.name!r}) waits for a step that does not come before it")
        made.update(step.outputs)
    for v in program.fetches:
        if v not in made:
            raise ValueError(f"value {v} is fetched but nothing makes it")
    return program
