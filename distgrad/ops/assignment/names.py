"""Names: what a user's function holds where it assigns to arrays while it is traced.

Values never change, and graphs stay append-only. An array that is assigned to becomes a *name*: an `Array`, which
stands for one value after the other. Arrays that share memory in NumPy share a `Memory` here: it has the newest value
of the array that owns the memory (the root), and each name knows its place in it. A name is read from the root again
when that has changed, and assigning to it makes a new value of the root.

A tensor is not a name until it is assigned to: then `adopt` finds the array that owns its memory and everything that is
a view of it, from the graph, in which views are ops. The tensors that the user holds become names; the graph gets new
tensors in their place, which nobody else holds. So whoever never assigns pays nothing.

An array that depends on no argument is *concrete*: it has a NumPy array until something traced is assigned to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from distgrad.errors import here
from distgrad.graph import FuncGraph, Graph, Operation, Tensor, current_graph
from distgrad.ops.arithmetic import imag, real
from distgrad.ops.assignment.shadows import SHADOWS, Place, blank, place_of, read, whole, write
from distgrad.ops.builder import CONST, convert, make
from distgrad.ops.layout import broadcast_to
from distgrad.registry import OPS, Kind, View, kind_of, view_of
from distgrad.types import DType, Shape, brief

Raw = np.ndarray[Any, np.dtype[Any]]


#: Ops that give a part of complex numbers.
_PARTS = {"Real": "real", "Imag": "imag"}


class Memory:
    """What arrays that are views of one another share: the newest value of the array that owns the memory."""

    __slots__ = (
        "argument",
        "birth",
        "changed",
        "concrete",
        "dtype",
        "graph",
        "index",
        "op",
        "ordered",
        "reshaped",
        "root",
        "version",
        "where",
    )

    def __init__(self, graph: FuncGraph, root: Raw, dtype: DType, value: Tensor | None):
        self.graph = graph
        #: A NumPy array of the shape of the owner: its content while the memory is concrete, a shadow otherwise.
        self.root = root
        self.dtype = dtype
        self.concrete = value is None
        self.version = 0
        #: Whether the owner is known to be C-contiguous.
        self.ordered = True
        #: Whether a name is a view of it in another shape, which depends on that.
        self.reshaped = False
        self.birth = len(graph.ops) if value is None else value.op.id
        #: The number of ops when it was assigned last.
        self.changed = -1
        #: The argument of the traced function that owns the memory, and the line that wrote to it first.
        self.argument: int | None = None
        self.where = ""
        if value is not None:
            self.hold(value)

    def hold(self, value: Tensor) -> None:
        """Operation and index instead of the tensor: the graph's tensor for them may be replaced by `adopt`."""
        self.op, self.index = value.op, value.index

    @property
    def value(self) -> Tensor:
        return self.op.outputs[self.index]

    def trace(self) -> None:
        """Leave the concrete state, before something traced is assigned."""
        if self.concrete:
            self.hold(_recorded(self.graph, self.root))
            self.concrete = False
            self.version += 1


class Seen:
    """What a name knows: its memory, its shadow, and the value that it had at some version of the memory."""

    __slots__ = ("_place", "index", "memory", "op", "part", "refusal", "shadow", "uncertain", "version")

    def __init__(self, memory: Memory, shadow: Raw, part: str | None = None, value: Tensor | None = None):
        self.memory = memory
        self.shadow = shadow
        #: "real" or "imag", of a complex memory.
        self.part = part
        #: Why this name cannot be written to.
        self.refusal: str | None = None
        #: Whether it may be a copy: then it cannot be read after its memory changed, either.
        self.uncertain = False
        self.version = -1
        self._place: Place | None = None
        if value is not None:
            self.know(value)

    def know(self, value: Tensor) -> None:
        self.op, self.index, self.version = value.op, value.index, self.memory.version

    @property
    def place(self) -> Place:
        if self._place is None:
            self._place = place_of(self.shadow, self.memory.root)
        return self._place


class Array(Tensor):
    """A tensor that is a name: an array in NumPy's sense, which can be assigned to."""

    __slots__ = ()
    state: Seen

    @property
    def op(self) -> Operation:  # type: ignore[override]
        return self.now().op

    @property
    def index(self) -> int:  # type: ignore[override]
        return self.now().index

    @property
    def graph(self) -> Graph:
        return self.state.memory.graph

    def now(self) -> Tensor:
        """The value that this name stands for, a tensor of the graph."""
        state = self.state
        memory = state.memory
        if memory.concrete:
            return _known_record(state)
        if (span := memory.graph.frozen) is not None and span[0] <= memory.changed and memory.birth < span[1]:
            raise ValueError(
                f"{span[2]} runs its body again for the gradient, but an array that the body captures was assigned in "
                f"between (first at {memory.where}): pass the array as an argument"
            )
        if state.version == memory.version:
            return state.op.outputs[state.index]
        if state.uncertain:
            raise ValueError(f"{state.refusal}, and the array that it may be a view of was assigned at {memory.where}")
        with _building(memory.graph):
            made = read(memory.value, state.place)
            if state.part is not None:
                made = (real if state.part == "real" else imag)(made)
        state.know(made)
        return made

    def derived(self, op: Operation) -> list[Tensor]:
        """The outputs of an op on this name: names themselves, if the op makes views."""
        if not _is_view(op):
            return list(op.outputs)
        return [self._derived(op, i, t) for i, t in enumerate(op.outputs)]

    def _derived(self, op: Operation, i: int, t: Tensor) -> Tensor:
        if _is_part_of_nothing(t):
            return t
        if self.state.memory.concrete:
            shadow = SHADOWS[op.type](self.state.shadow, i, op.attrs)
            return t if shadow is None or op.type in _PARTS else wrapped(shadow)
        state = view_state(op, i, self.state)
        if state is None:
            return t
        made = Array.__new__(Array)
        made.shape, made.dtype, made.state = t.shape, t.dtype, state
        state.know(t)
        return made

    def __repr__(self) -> str:
        if self.state.memory.concrete:
            return repr(self.state.shadow)
        return super().__repr__()


@contextmanager
def _building(graph: FuncGraph) -> Iterator[None]:
    if current_graph() is graph:
        yield
        return
    with graph:
        yield


# -- concrete arrays ---------------------------------------------------------------------------------------------


def concrete(x: Any) -> Raw | None:
    """The NumPy array of a name that depends on no argument, else None."""
    if type(x) is Array and x.state.memory.concrete:
        return x.state.shadow
    return None


def _recorded(graph: FuncGraph, array: Raw) -> Tensor:
    """An array as a tensor of the graph; one number that is everywhere is stored once."""
    with _building(graph), graph.clean():
        first = array.reshape(-1)[:1]
        if array.size > 1 and first.tobytes() * array.size == array.tobytes():
            single = np.array(first.reshape(()))
            return broadcast_to(make(CONST, (), {"value": _frozen(single)}), array.shape)
        return make(CONST, (), {"value": _frozen(np.array(array, order="C"))})


def _frozen(array: Raw) -> Raw:
    array.flags.writeable = False
    return array


def _known_record(state: Seen) -> Tensor:
    """The tensor of a concrete array, a new one when the array has changed."""
    graph = current_graph()
    if not isinstance(graph, FuncGraph):
        graph = state.memory.graph
    known = graph.memo("records")
    kept, made = known.get(id(state), (None, None))
    content = state.shadow.tobytes()
    if kept is None or kept[0] is not state or kept[1] != content:
        t = _recorded(graph, state.shadow)
        made = (t.op, t.index)
        known[id(state)] = (state, content), made
    op, index = made
    value: Tensor = op.outputs[index]
    return value


def owner_of(array: Raw) -> Raw:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _in_order(owner: Raw) -> Raw:
    """The owner with its axes in the order of memory, so that it is C-contiguous."""
    if owner.flags.c_contiguous:
        return owner
    return owner.transpose(sorted(range(owner.ndim), key=lambda axis: -owner.strides[axis]))


def wrapped(array: Raw) -> Array:
    """A concrete name for a NumPy array that was made in this trace."""
    graph = current_graph()
    assert isinstance(graph, FuncGraph)
    owner = owner_of(array)
    known = graph.memo("memories")
    memory = known.get(id(owner))
    if memory is None:
        memory = known[id(owner)] = Memory(graph, _in_order(owner), owner.dtype, None)
    part = None
    if array.dtype != memory.dtype:
        if memory.dtype.kind != "c" or array.dtype != np.empty(0, memory.dtype).real.dtype:
            return wrapped(array.copy())
        start = array.__array_interface__["data"][0] - memory.root.__array_interface__["data"][0]
        part = "imag" if start % memory.root.itemsize else "real"
    made = named(memory, array, part)
    if not array.flags.writeable:
        made.state.refusal = "this array is read-only, as in NumPy"
    return made


def named(memory: Memory, shadow: Raw, part: str | None = None, value: Tensor | None = None) -> Array:
    """A new name for a place of a memory."""
    made = Array.__new__(Array)
    made.shape = shadow.shape
    made.dtype = memory.dtype if part is None else np.empty(0, memory.dtype).real.dtype
    made.state = Seen(memory, shadow, part, value)
    return made


def fresh(value: Tensor, scalars: bool = False) -> Tensor:
    """A name with a memory of its own that stands for a value; a scalar is no array, and stays as it is."""
    graph = value.graph
    if not isinstance(graph, FuncGraph) or not (value.shape or scalars):
        return value
    value = value.now()
    shadow = blank(value.shape)
    memory = Memory(graph, shadow, value.dtype, value)
    memory.ordered = False
    memory.birth = len(graph.ops)
    return named(memory, shadow, None, value)


# -- adopting ----------------------------------------------------------------------------------------------------


def is_scalar(t: Tensor) -> bool:
    """Whether NumPy has a scalar, which is no array, where this tensor is."""
    if t.shape or type(t) is Array:
        return False
    d = OPS.get(t.op.type)
    return d is None or not d.types_only


def adopt(t: Tensor) -> Array:
    """Make a tensor of a trace a name, with all that shares its memory."""
    while type(t) is not Array:
        owner = t
        x = t
        while _is_view(x.op) and not _is_part_of_nothing(x):
            x = x.op.inputs[0]
            if type(x) is Tensor and x not in _copied(x.op.graph):
                owner = x
        _adopt_owner(owner)
    return t


def _is_view(op: Operation) -> bool:
    return op.type in SHADOWS


def _is_part_of_nothing(t: Tensor) -> bool:
    return not t.shape and view_of(t.op.type) is View.PART


def _copied(graph: Graph) -> set[Tensor]:
    """The graph's own tensors of arrays that are names already: a view of them that is no name is a copy in NumPy."""
    known: set[Tensor] = graph.memo("split off", set)
    return known


def _adopt_owner(t: Tensor) -> None:
    graph = t.op.graph
    assert isinstance(graph, FuncGraph)
    value = split_off(t)
    shadow = blank(t.shape)
    memory = Memory(graph, shadow, t.dtype, value)
    memory.ordered = contiguous(value)
    memory.argument = next((i for i, x in enumerate(graph.declared) if x is value), None)
    if memory.argument is not None:
        graph.memo("arguments", list).append(memory)
    _become(t, Seen(memory, shadow, None, value))
    _adopt_views(value, t.state)


def _become(t: Tensor, state: Seen) -> None:
    t.__class__ = Array
    t.state = state


def _adopt_views(value: Tensor, state: Seen) -> None:
    stack = [(value, state)]
    while stack:
        source, known = stack.pop()
        for op in _users(source.op.graph).get(source, ()):
            if _is_view(op) and op.inputs[0] is source:
                for i, t in enumerate(op.outputs):
                    made = view_state(op, i, known)
                    if made is not None and type(t) is Tensor and not _is_part_of_nothing(t):
                        stack.append((split_off(t), made))
                        made.know(op.outputs[i])
                        _become(t, made)


def view_state(op: Operation, i: int, base: Seen) -> Seen | None:
    """What the name of an op's output knows, where the op makes a view of a name; None where NumPy copies."""
    shadow = SHADOWS[op.type](base.shadow, i, op.attrs)
    if shadow is None:
        if base.memory.ordered:
            return None
        return _uncertain(op, i, base)
    made = Seen(base.memory, shadow, base.part)
    made.refusal, made.uncertain = base.refusal, base.uncertain
    if op.outputs[i].dtype != base.memory.dtype and base.part is None:
        made.part = _PARTS[op.type]
    flat = view_of(op.type) is View.FLAT
    if flat and not base.memory.ordered and not _only_ones(base.shadow.shape, shadow.shape):
        return _uncertain(op, i, base)
    if flat:
        base.memory.reshaped = True
    if op.type == "BroadcastTo" or op.type == "MatrixDiagPart":
        made.refusal = f"{op.type} gives a view that is read-only in NumPy"
    return made


def _only_ones(a: Shape, b: Shape) -> bool:
    """Whether a reshape only adds or removes axes of size 1, which NumPy never copies for."""
    return [n for n in a if n != 1] == [n for n in b if n != 1]


def _uncertain(op: Operation, i: int, base: Seen) -> Seen:
    shadow = blank(op.outputs[i].shape)
    made = Seen(base.memory, shadow)
    made.uncertain = True
    made.refusal = (
        f"{op.type} (at {op.source}) gives a view of an array or a copy of it, depending on the array's layout in "
        f"memory, which is not known here: write a copy explicitly, as in x.reshape(...).copy()"
    )
    return made


# -- the graph's own tensors -------------------------------------------------------------------------------------


def split_off(t: Tensor) -> Tensor:
    """Give the graph a tensor of its own for this value, in place of the one that the user holds."""
    op = t.op
    graph = op.graph
    made = Tensor(op, t.index, t.shape, t.dtype)
    op.outputs = tuple([made if x is t else x for x in op.outputs])
    _copied(graph).add(made)
    users = _users(graph)
    for user in users.pop(t, ()):
        user.inputs = tuple([made if x is t else x for x in user.inputs])
        users.setdefault(made, []).append(user)
    for table in (graph.handles, graph.reads):
        for key, x in table.items():
            if x is t:
                table[key] = made
    constants = graph.memo("constants")
    for key in [key for key, (_, x) in constants.items() if x is t]:
        del constants[key]
    if isinstance(graph, FuncGraph):
        graph.declared[:] = [made if x is t else x for x in graph.declared]
        for outside, x in graph.captures.items():
            if x is t:
                graph.captures[outside] = made
    for body in graph.memo("captured by", list):
        body.recapture(t, made)
    return made


def _users(graph: Graph) -> dict[Tensor, list[Operation]]:
    """The ops that read each tensor; looks only at ops that are new since the last call."""
    users: dict[Tensor, list[Operation]] = graph.memo("users")
    seen = graph.memo("seen by users", lambda: [0])
    ops = graph.ops
    for op in ops[seen[0] :] if seen[0] < len(ops) else ():
        for x in op.inputs:
            known = users.setdefault(x, [])
            if not known or known[-1] is not op:
                known.append(op)
    seen[0] = len(ops)
    return users


def held(tensors: Any) -> Callable[[], list[Tensor]]:
    """Tensors as values: the function gives them later, whatever the user has assigned to them in between."""
    pairs = [(t.op, t.index) for t in map(_value, tensors)]
    return lambda: [op.outputs[index] for op, index in pairs]


def _value(t: Tensor) -> Tensor:
    return t.now()


# -- layout ------------------------------------------------------------------------------------------------------


def contiguous(t: Tensor) -> bool:
    """Whether NumPy's array for a value is known to be C-contiguous."""
    if len(t.shape) <= 1 and not _is_view(t.op):
        return True
    known = t.graph.memo("contiguous")
    stack = [t]
    while stack:
        x = stack[-1]
        if x in known:
            stack.pop()
            continue
        needed = _decides(x)
        missing = [] if needed is None else [y for y in needed if y not in known]
        if missing:
            stack += missing
        else:
            known[x] = needed is not None and all(known[y] for y in needed)
    made: bool = known[t]
    return made


def _decides(t: Tensor) -> list[Tensor] | None:
    """The inputs that must be contiguous for a value to be; None if nothing is known."""
    op, kind = t.op, kind_of(t.op.type)
    if kind is Kind.SOURCE:
        value = op.attrs.get("value")
        return [] if not isinstance(value, np.ndarray) or value.flags.c_contiguous else None
    if op.type == "Placeholder":
        return []
    if kind is Kind.ELEMENTWISE or view_of(op.type) is View.SAME:
        return [x for x in op.inputs if len(x.shape) > 1]
    if op.type == "Update":
        return [op.inputs[0]]
    if kind in (Kind.REDUCTION, Kind.SCAN, Kind.PRODUCT):
        return [x for x in op.inputs if len(x.shape) > 1] if op.type != "Einsum" else None
    if op.type == "Reshape":
        return [op.inputs[0]]
    if op.type == "BroadcastTo" and not op.inputs[0].shape:
        return []
    return None


def in_order(t: Tensor) -> bool | None:
    """Whether NumPy's array where t is, a view perhaps, is C-contiguous; None if that is not known."""
    if type(t) is Array:
        ordered, shadow = t.state.memory.ordered, t.state.shadow
    else:
        chain = []
        while _is_view(t.op) and not _is_part_of_nothing(t):
            chain.append(t)
            t = t.op.inputs[0]
        ordered, shadow = contiguous(t), blank(t.shape)
        for x in reversed(chain):
            made = SHADOWS[x.op.type](shadow, x.index, x.op.attrs)
            if made is None:
                made, ordered = blank(x.shape), True
            shadow = made
    return shadow.flags.c_contiguous if ordered else None


# -- assigning ---------------------------------------------------------------------------------------------------


def assignable(x: Tensor, what: str) -> bool:
    """Whether x belongs to a trace, where statements work; an error for a tensor that no statement may change here."""
    home = x.graph
    if not isinstance(home, FuncGraph):
        return False
    current = current_graph()
    if current is not home and not (current is None and type(x) is Array):
        raise TypeError(
            f"{what} would modify {_shown(x)}, which belongs to {home.name!r}, from the body of another function: "
            f"a body is a value of its own. Return the new value (x.at[key].set(value) makes it) and assign it outside."
        )
    return True


def _shown(x: Tensor) -> str:
    return brief(x)


@contextmanager
def sealed(graph: Graph, what: str) -> Iterator[None]:
    """Within, only arrays that are made within may be assigned."""
    with graph._setting("sealed", (len(graph.ops), what)):
        yield


@contextmanager
def unchanged_since(graph: Graph, end: int, begin: int, what: str) -> Iterator[None]:
    """Within, an array older than op `begin` must not have been assigned since op `end`."""
    with graph._setting("frozen", (end, begin, what)):
        yield


def check_sealed(memory: Memory) -> None:
    seal = memory.graph.sealed
    if seal is not None and memory.birth < seal[0]:
        raise TypeError(
            f"{seal[1]} assigns an array that was made outside (at {here(2)}): its body may run at another time, "
            f"or again. Return the new value from it (x.at[key].set(value) makes it), and assign that outside."
        )


def assign(x: Array, value: Tensor, mode: str = "set") -> None:
    """Let a name stand for a value of its dtype, and of its shape or none; with a mode, combine what is there with
    it."""
    state = x.state
    memory = state.memory
    check_sealed(memory)
    if state.refusal is not None:
        raise ValueError(f"assignment: {state.refusal}")
    memory.trace()
    if not memory.where:
        memory.where = str(here(3))
    if state.part is not None:
        value = _joined(read(memory.value, state.place), value, state.part)
    place = state.place
    root = memory.value
    if mode == "set" and whole(place, root.shape):
        made = value if value.shape == root.shape else broadcast_to(value, root.shape)
    else:
        made = write(root, place, value, mode)
    made = convert(made)
    if memory.reshaped:
        memory.graph.memo("reshaped", list).append(memory)
    memory.version += 1
    memory.changed = len(memory.graph.ops)
    memory.hold(made)


def _joined(z: Tensor, value: Tensor, part: str) -> Tensor:
    """z with another real or imaginary part."""
    if part == "real":
        return value + _times_i(imag(z))
    return real(z) + _times_i(value)


def _times_i(x: Tensor) -> Tensor:
    return x * 1j
