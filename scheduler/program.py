"""Program: a graph made flat. Steps refer to values by integer id, function bodies are laid out in place.

`lower` takes what is to be fetched and what is fed, and keeps only the ops that are needed. The order of steps is the
order of creation, which is a topological order. Variables are gone after it: a read is the value that the order of
creation says (the variable's own, or what was assigned last), and what a program writes is a list of values. So every
step is a pure function of its inputs, and only data and `after` order the steps.
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

#: The op type of a call that stays one step, with its body as a program of its own.
CALL = "Call"

#: A body that is called so often, and has so many steps, is no longer laid out at each call: a function on thousands of
#: shards is planned once, not thousands of times.
MANY_CALLS, LONG_BODY = 16, 32

#: Ops that make no step: arguments are given, state becomes the reads and writes of the program, a call its body.
_NO_STEP = frozenset((Kind.ARGUMENT, Kind.STATE, Kind.CALL))


@dataclass(frozen=True, slots=True)
class Step:
    """One op of a program: what it reads and makes by value id, and the steps it must follow beside those.

    A step of type Fused stands for the steps in its body, run as one: `inputs` is what the body reads from outside,
    `outputs` what others read of it. The values in between have ids and types as all others.
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
    """The same step on other values, with those of its body. It waits for no other step."""
    inputs, outputs = tuple([ids[v] for v in step.inputs]), tuple([ids[v] for v in step.outputs])
    body = tuple([renumbered(inner, ids) for inner in step.body])
    return Step(step.type, inputs, outputs, step.attrs, (), step.source, step.name, step.device, body)


@dataclass(frozen=True, eq=False)
class Inner:
    """The attribute `inner` of a Call: the program of its body. All calls of a body have the same one."""

    program: Program

    def __repr__(self) -> str:
        """The content, in short: digests are made of it."""
        return f"<Inner {self._digest}>"

    @cached_property
    def _digest(self) -> str:
        from distgrad.scheduler.digest import program_digest

        return program_digest(self.program)


@dataclass(frozen=True, slots=True)
class Program:
    """Steps in order; `types[i]` is the type of value i; feeds and fetches are value ids."""

    steps: tuple[Step, ...]
    types: tuple[Spec, ...]
    feeds: tuple[int, ...]
    fetches: tuple[int, ...]
    #: (key of a variable, the id under which its value comes in), and (key, id of the value that it gets).
    reads: tuple[tuple[str, int], ...] = ()
    writes: tuple[tuple[str, int], ...] = ()

    @property
    def given(self) -> tuple[int, ...]:
        """The values that come from outside."""
        return (*self.feeds, *(v for _, v in self.reads))

    @property
    def wanted(self) -> tuple[int, ...]:
        """The values that must be there at the end."""
        return (*self.fetches, *(v for _, v in self.writes))

    def __str__(self) -> str:
        """One step per line, as graphs print."""
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
            raise TypeError(f"lower: {what} is a list of {kind.__name__}s, got {brief(given)}")


@contextmanager
def planning() -> Iterator[None]:
    """What is allocated inside lives as long as the program: the garbage collector looks at it less often."""
    collector.relax()
    try:
        yield
    finally:
        collector.restore()


def _check_fed(unfed: Mapping[int, Operation], used: Container[int]) -> None:
    """A placeholder without a value is an error if something reads it, which only the pruned steps tell."""
    for v in unfed:
        if v in used:
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
        #: The step that made each value; -1 for what comes from outside.
        self.maker: list[int] = []
        self.ids = {t: self.new_id(t) for t in dict.fromkeys(feeds)}
        self.feeds = [self.ids[t] for t in feeds]
        self.unfed: dict[int, Operation] = {}
        self.reads: dict[str, int] = {}
        self.writes: dict[str, int] = {}
        self.keep: list[int] = []
        self.stamps: dict[FuncGraph, _Stamp] = {}

    def new_id(self, t: Tensor, maker: int = -1) -> int:
        self.types.append(t.spec)
        self.maker.append(maker)
        return len(self.types) - 1

    def run(self, fetches: Sequence[Tensor], effects: Sequence[Operation]) -> tuple[tuple[int, ...], list[int]]:
        ops = _needed(fetches, effects, self.ids)
        self.stamps = _stamps(ops, fetches, self.ids)
        root = _Frame(ops, self.ids)
        frames = [root]
        while frames:
            frame = frames[-1]
            call = self.lay_out(frame)
            if call is not None and self.stamped(call, frame):
                continue
            if call is not None:
                frames.append(self.open(call, frame))
                continue
            frames.pop()
            if frame.call is not None:
                self.close(frame, frames[-1])
        kept = [*self.keep, *(i for op in effects for i in root.steps_of.get(op, ()))]
        return tuple(self.ids[t] for t in fetches), kept

    def stamped(self, op: Operation, frame: _Frame) -> bool:
        """Add a call as one step, if its body is one of those that stay together."""
        stamp = self.stamps.get(op.attrs["body"]) if not op.control_inputs and op.device is None else None
        if stamp is None or frame.after or frame.device is not None or any(t in frame.ids for t in op.outputs):
            return False
        place = len(self.steps)
        outputs = tuple([self.new_id(op.outputs[i], place) for i in stamp.used])
        frame.ids.update(zip([op.outputs[i] for i in stamp.used], outputs, strict=True))
        frame.steps_of[op] = (place,)
        read = tuple([frame.ids[t] for t in op.inputs])
        self.steps.append(Step(CALL, read, outputs, {"inner": stamp.inner}, (), op.source, op.name))
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
        """The steps of a body up to its next call, which is given back. Goes once round its loop per op: kept lean."""
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
        """A placeholder or a capture: fed, or a value that is missing."""
        t = op.outputs[0]
        if t not in frame.ids:
            frame.ids[t] = self.new_id(t)
            self.unfed[frame.ids[t]] = op

    def touch(self, op: Operation, frame: _Frame) -> None:
        """A read or an assign: no step, but the value that the variable has at this place of the order."""
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
        self.keep += after  # what it waits for runs, whether its value is used or not
        frame.steps_of[op] = (*after, *self.steps_that_made(value))


class _Stamp(NamedTuple):
    """A body that stays together, and which of its outputs somebody reads."""

    inner: Inner
    used: tuple[int, ...]


def _stamps(ops: Sequence[Operation], fetches: Sequence[Tensor], fed: Container[Tensor]) -> dict[FuncGraph, _Stamp]:
    """The bodies that are called often, are long, and are pure functions of their inputs on no device of their own."""
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
            made[body] = _Stamp(inner, used)
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
    """The ops behind these tensors and operations, in order, not looking behind what is given."""
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
    """Drop the steps of inlined bodies that nobody reads, and renumber what others wait for."""
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
    """What every executor relies on; raises ValueError at the first thing that does not hold."""
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
    """A body is a small program of its own: it reads what the step reads, and makes what the step gives."""
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
