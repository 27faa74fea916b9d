"""Programs: flattened graphs. Steps refer to values by integer id, and function bodies are inlined.

`lower` takes the fetches and the feeds, and keeps only the ops that are needed. Steps are in creation order, which is a
topological order. Lowering removes variables: a read becomes the value that the variable has at that point (its initial
one, or the one assigned last), and writes become a list of values. So every step is a pure function of its inputs, and
steps are ordered only by their data and by `after`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

from distgrad.collector import collector
from distgrad.errors import Source
from distgrad.graph import FuncGraph, Operation, Tensor
from distgrad.printing import format_attrs
from distgrad.registry import OPS, Kind, kind_of
from distgrad.types import Spec, brief

#: The op type of a group of steps that runs as one.
FUSED = "Fused"

#: The op type of an outlined call: one step, with its body as a separate program.
CALL = "Call"

#: A body with at least this many calls and this many steps is outlined instead of inlined at each call: a function on
#: thousands of shards is planned once, not thousands of times.
MANY_CALLS, LONG_BODY = 16, 32

#: Kinds of ops without a step: arguments are inputs, state becomes reads and writes, and a call becomes its body.
_NO_STEP = frozenset((Kind.ARGUMENT, Kind.STATE, Kind.CALL))


@dataclass(frozen=True, slots=True)
class Step:
    """One op of a program: the value ids it reads and makes, and in `after` further steps that must run before it.

    A step of type Fused stands for the steps in its body, which run as one: `inputs` are the values that the body reads
    from outside, `outputs` those that other steps read. Values inside the body have ids and types like all others.
    """

    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Mapping[str, Any]
    after: tuple[int, ...]
    source: Source
    name: str
    device: str | None = None
    body: tuple[Step, ...] = ()


def renumbered(step: Step, ids: Mapping[int, int]) -> Step:
    """The step, including its body, with new value ids. Drops `after`."""
    inputs, outputs = tuple([ids[v] for v in step.inputs]), tuple([ids[v] for v in step.outputs])
    body = tuple([renumbered(inner, ids) for inner in step.body])
    return Step(step.type, inputs, outputs, step.attrs, (), step.source, step.name, step.device, body)


@dataclass(frozen=True, eq=False)
class Inner:
    """The attribute `inner` of an outlined call: the program of its body. All calls of a body share it."""

    program: Program

    def __repr__(self) -> str:
        """A digest of the content, because digests of programs include it."""
        return f"<Inner {self._digest}>"

    @cached_property
    def _digest(self) -> str:
        from distgrad.scheduler.digest import program_digest

        return program_digest(self.program)


@dataclass(frozen=True, slots=True)
class Program:
    """Steps in topological order. `types[i]` is the type of value i; feeds and fetches are value ids."""

    steps: tuple[Step, ...]
    types: tuple[Spec, ...]
    feeds: tuple[int, ...]
    fetches: tuple[int, ...]
    #: Pairs (variable key, value id): values that variables have at the start, and values they are set to.
    reads: tuple[tuple[str, int], ...] = ()
    writes: tuple[tuple[str, int], ...] = ()

    @property
    def given(self) -> tuple[int, ...]:
        """The input values: feeds and variable reads."""
        return (*self.feeds, *(v for _, v in self.reads))

    @property
    def wanted(self) -> tuple[int, ...]:
        """The output values: fetches and variable writes."""
        return (*self.fetches, *(v for _, v in self.writes))

    def __str__(self) -> str:
        """One step per line, in the format of graphs."""
        lines = [f"%{i} {self.types[i]} = Feed()" for i in self.feeds]
        lines += [f"%{i} {self.types[i]} = Read({key!r})" for key, i in self.reads]
        for step in self.steps:
            lines.append(_line(step, self.types))
            lines += [f"    {_line(inner, self.types)}" for inner in step.body]
        lines += [f"Write({key!r}, %{i})" for key, i in self.writes]
        return "\n".join([*lines, f"return {', '.join(f'%{i}' for i in self.fetches)}"])


def _line(step: Step, types: Sequence[Spec]) -> str:
    made = ", ".join(f"%{i} {types[i]}" for i in step.outputs)
    read = ", ".join([*(f"%{i}" for i in step.inputs), *format_attrs(step.attrs)])
    return f"{made or step.name} = {step.type}({read})  # {step.source}"


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
    _check_ends(fetches, feeds, effects)
    with planning():
        flat = _Flattener(feeds)
        fetched, keep = flat.run(fetches, effects)
        writes = tuple(flat.writes.items())
        wanted = (*fetched, *flat.writes.values())
        steps = _prune(flat.steps, len(flat.types), wanted, keep)
        reads = tuple(flat.reads.items())
        if reads or flat.unfed:
            used = {*wanted, *(v for step in steps for v in step.inputs)}
            _check_fed(flat.unfed, used)
            reads = tuple([(key, v) for key, v in reads if v in used])
        return check_program(Program(steps, tuple(flat.types), tuple(flat.feeds), fetched, reads, writes))


def _check_ends(fetches: Any, feeds: Any, effects: Any) -> None:
    for what, given, kind in (("fetches", fetches, Tensor), ("feeds", feeds, Tensor), ("effects", effects, Operation)):
        if not isinstance(given, list | tuple) or not all(isinstance(each, kind) for each in given):
            raise TypeError(f"lower: {what} must be a list of {kind.__name__}s, got {brief(given)}")


@contextmanager
def planning() -> Iterator[None]:
    """Run the garbage collector less often inside: what planning allocates lives as long as the program."""
    collector.relax()
    try:
        yield
    finally:
        collector.restore()


def _check_fed(unfed: Mapping[int, Operation], used: Container[int]) -> None:
    """An unfed placeholder is an error only if a step that is left after pruning reads it."""
    for v in unfed:
        if v in used:
            raise ValueError(_unfed_text(unfed[v]))


def _unfed_text(op: Operation) -> str:
    if isinstance(op.graph, FuncGraph):
        return (
            f"{op.outputs[0]!r} is an argument of function {op.graph.name!r} and has no value after tracing. "
            f"Return the tensor you need from the function, and use the result of the call."
        )
    return f"placeholder {op.name!r} (at {op.source}) must be fed: give this tensor (not its name) a value in feed_dict"


class _Frame:
    """One body being inlined: the remaining ops, and the ids and steps of those that are done."""

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
    """Converts ops to steps. Calls push a frame on an explicit stack, so nesting needs no recursion."""

    def __init__(self, feeds: Sequence[Tensor]):
        self.steps: list[Step] = []
        self.types: list[Spec] = []
        #: The step that makes each value; -1 for inputs.
        self.maker: list[int] = []
        self.ids = {t: self.new_id(t) for t in dict.fromkeys(feeds)}
        self.feeds = [self.ids[t] for t in feeds]
        self.unfed: dict[int, Operation] = {}
        self.reads: dict[str, int] = {}
        self.writes: dict[str, int] = {}
        self.keep: list[int] = []
        self.outlined: dict[FuncGraph, _Outlined] = {}

    def new_id(self, t: Tensor, maker: int = -1) -> int:
        self.types.append(t.spec)
        self.maker.append(maker)
        return len(self.types) - 1

    def run(self, fetches: Sequence[Tensor], effects: Sequence[Operation]) -> tuple[tuple[int, ...], list[int]]:
        ops = _needed(fetches, effects, self.ids)
        self.outlined = _outlined_bodies(ops, fetches, self.ids)
        root = _Frame(ops, self.ids)
        frames = [root]
        while frames:
            frame = frames[-1]
            call = self.lay_out(frame)
            if call is not None and self.add_outlined_call(call, frame):
                continue
            if call is not None:
                frames.append(self.open(call, frame))
                continue
            frames.pop()
            if frame.call is not None:
                self.close(frame, frames[-1])
        kept = [*self.keep, *(i for op in effects for i in root.steps_of.get(op, ()))]
        return tuple(self.ids[t] for t in fetches), kept

    def add_outlined_call(self, op: Operation, frame: _Frame) -> bool:
        """Add a call as one step if its body is outlined; returns whether it was."""
        outlined = self.outlined.get(op.attrs["body"]) if not op.control_inputs and op.device is None else None
        if outlined is None or frame.after or frame.device is not None or any(t in frame.ids for t in op.outputs):
            return False
        place = len(self.steps)
        outputs = tuple([self.new_id(op.outputs[i], place) for i in outlined.used])
        frame.ids.update(zip([op.outputs[i] for i in outlined.used], outputs, strict=True))
        frame.steps_of[op] = (place,)
        read = tuple([frame.ids[t] for t in op.inputs])
        self.steps.append(Step(CALL, read, outputs, {"inner": outlined.inner}, (), op.source, op.name))
        return True

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
            passed_through = kind_of(inner.op.type) is Kind.ARGUMENT  # so nothing in the body waits for it
            waits = frame.after and passed_through
            made = self.identity(outer, frame.ids[inner], frame) if waits else frame.ids[inner]
            caller.ids.setdefault(outer, made)
        makers = [i for t in op.outputs for i in self.steps_that_made(caller.ids[t])]
        caller.steps_of[op] = tuple(dict.fromkeys(makers))

    def identity(self, t: Tensor, read: int, frame: _Frame) -> int:
        made = self.new_id(t, len(self.steps))
        source, name = t.op.source, t.op.name
        self.steps.append(Step("Identity", (read,), (made,), {}, frame.after, source, name, frame.device))
        return made

    def steps_that_made(self, value: int) -> tuple[int, ...]:
        maker = self.maker[value]
        return () if maker < 0 else (maker,)

    def after(self, op: Operation, frame: _Frame) -> tuple[int, ...]:
        return (*frame.after, *(i for c in op.control_inputs for i in frame.steps_of.get(c, ())))

    def lay_out(self, frame: _Frame) -> Operation | None:
        """Add the steps of a body up to its next call, and return that call. The hot loop of lowering."""
        steps, types, maker, ids, steps_of = self.steps, self.types, self.maker, frame.ids, frame.steps_of
        around, before = frame.device, frame.after
        for op in frame.ops:
            kind = OPS[op.type].kind
            if kind in _NO_STEP:
                if kind is Kind.CALL:
                    return op
                if kind is Kind.STATE:
                    self.touch(op, frame)
                else:
                    self.argue(op, frame)
                continue
            place, outputs = len(steps), []
            for t in op.outputs:
                outputs.append(len(types))
                ids.setdefault(t, len(types))  # a fed output keeps the fed value
                types.append(Spec(t.shape, t.dtype))
                maker.append(place)
            steps_of[op] = (place,)
            read = tuple([ids[t] for t in op.inputs])
            after = self.after(op, frame) if op.control_inputs else before
            device = op.device or around
            steps.append(Step(op.type, read, tuple(outputs), op.attrs, after, op.source, op.name, device))
        return None

    def argue(self, op: Operation, frame: _Frame) -> None:
        """A placeholder or a capture: fed, or noted as missing."""
        t = op.outputs[0]
        if t not in frame.ids:
            frame.ids[t] = self.new_id(t)
            self.unfed[frame.ids[t]] = op

    def touch(self, op: Operation, frame: _Frame) -> None:
        """A read or an assign: not a step, but the value that the variable has at this point."""
        if op.type == "VarHandle":
            return
        key = op.inputs[0].op.attrs["key"]
        if op.type == "Assign":
            self.writes[key] = frame.ids[op.inputs[1]]
        elif key not in self.writes and key not in self.reads:
            self.reads[key] = self.new_id(op.outputs[0])
        value = self.writes[key] if key in self.writes else self.reads[key]
        frame.ids.setdefault(op.outputs[0], value)
        after = self.after(op, frame)
        self.keep += after  # its control inputs run even if its value is unused
        frame.steps_of[op] = (*after, *self.steps_that_made(value))


class _Outlined(NamedTuple):
    """An outlined body, and the indices of its outputs that are used."""

    inner: Inner
    used: tuple[int, ...]


def _outlined_bodies(
    ops: Sequence[Operation], fetches: Sequence[Tensor], fed: Container[Tensor]
) -> dict[FuncGraph, _Outlined]:
    """The bodies to outline: called often, long, pure functions of their inputs, and without devices."""
    calls: dict[FuncGraph, list[Operation]] = {}
    for op in ops:
        if op.type == CALL:
            calls.setdefault(op.attrs["body"], []).append(op)
    often = {body: found for body, found in calls.items() if len(found) >= MANY_CALLS}
    if not often:
        return {}
    read = {t for op in ops for t in op.inputs}.union(fetches)
    made = {}
    for body, found in often.items():
        used = tuple([i for i in range(len(body.outputs)) if any(op.outputs[i] in read for op in found)])
        inner = _inner(body, used)
        if inner is not None:
            made[body] = _Outlined(inner, used)
    return made


def _inner(body: FuncGraph, used: Sequence[int]) -> Inner | None:
    flat = _Flattener(body.inputs)
    fetched, keep = flat.run([body.outputs[i] for i in used], ())
    steps = _prune(flat.steps, len(flat.types), fetched, keep)
    passed = len(set(fetched)) < len(fetched) or not set(fetched).isdisjoint(flat.feeds)
    if len(steps) < LONG_BODY or passed or flat.reads or flat.writes or flat.unfed:
        return None
    if any(step.device is not None or step.type == CALL for step in steps):
        return None
    return Inner(check_program(Program(steps, tuple(flat.types), tuple(flat.feeds), fetched)))


def _needed(fetches: Iterable[Tensor], effects: Iterable[Operation], given: Mapping[Tensor, int]) -> list[Operation]:
    """The ops that these tensors and operations depend on, in order, stopping at given tensors."""
    stack = [*(t.op for t in fetches if t not in given), *effects]
    seen = set(stack)
    while stack:
        op = stack.pop()
        for t in op.inputs if kind_of(op.type) is not Kind.ARGUMENT else ():
            if t not in given and t.op not in seen:
                seen.add(t.op)
                stack.append(t.op)
        for c in op.control_inputs:
            if c not in seen:
                seen.add(c)
                stack.append(c)
    return sorted(seen, key=attrgetter("id"))


def _prune(steps: Sequence[Step], values: int, fetches: Sequence[int], keep: Sequence[int]) -> tuple[Step, ...]:
    """Drop the unused steps of inlined bodies, and renumber `after`."""
    live, wanted = bytearray(values), set(keep)
    for v in fetches:
        live[v] = 1
    kept: list[int] = []
    for i in range(len(steps) - 1, -1, -1):
        step = steps[i]
        if i in wanted or 1 in [live[v] for v in step.outputs]:
            kept.append(i)
            for v in step.inputs:
                live[v] = 1
            wanted.update(step.after)
    if len(kept) == len(steps):
        return tuple(steps)
    kept.reverse()
    place = {old: new for new, old in enumerate(kept)}
    return tuple([_moved(steps[i], place) for i in kept])


def _moved(step: Step, place: Mapping[int, int]) -> Step:
    if not step.after:
        return step
    after = tuple(place[i] for i in step.after)
    return Step(step.type, step.inputs, step.outputs, step.attrs, after, step.source, step.name, step.device)


def check_program(program: Program) -> Program:
    """Return the program; raise ValueError at the first violated invariant of those that executors rely on."""
    made = set(program.given)
    count = len(program.types)
    for v in made:
        if not 0 <= v < count:
            raise ValueError(f"value {v} is fed or read but has no type: there are {count} values")
    for what, pairs in (("read", program.reads), ("written", program.writes)):
        if len(dict(pairs)) != len(pairs):
            raise ValueError(f"a variable is {what} twice: {', '.join(key for key, _ in pairs)}")
    for i, step in enumerate(program.steps):
        if step.type == FUSED:
            _check_body(step, i, made, count)
        elif step.type not in OPS:
            raise ValueError(f"step {i} ({step.name!r}) has unknown op type {step.type!r}")
        if not made.issuperset(step.inputs):
            v = next(v for v in step.inputs if v not in made)
            raise ValueError(f"step {i} ({step.name!r}) reads value {v} before anything made it")
        for v in step.outputs:
            if v in made or not 0 <= v < count:
                raise ValueError(f"step {i} ({step.name!r}) makes value {v}, which is out of range or made already")
            made.add(v)
        for j in step.after:
            if not 0 <= j < i:
                raise ValueError(f"step {i} ({step.name!r}) waits for a step that does not come before it")
    for v in program.wanted:
        if v not in made:
            raise ValueError(f"value {v} is fetched or written but nothing makes it")
    return program


def _check_body(step: Step, i: int, made: Container[int], count: int) -> None:
    """The body is a valid small program: it reads the inputs of the step and makes its outputs."""
    inside, place = set(step.inputs), f"step {i} ({step.name!r})"
    if not step.body:
        raise ValueError(f"{place} is Fused and has no steps inside")
    for inner in step.body:
        for v in inner.inputs:
            if v not in inside:
                raise ValueError(f"{place}: inside, step {inner.name!r} reads value {v} before anything made it")
        for v in inner.outputs:
            if v in inside or v in made or not 0 <= v < count:
                raise ValueError(
                    f"{place}: inside, step {inner.name!r} makes value {v}, which is out of range or made already"
                )
        inside.update(inner.outputs)
    for v in step.outputs:
        if v not in inside:
            raise ValueError(f"{place} gives value {v}, which nothing inside makes")
