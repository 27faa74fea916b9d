"""Stretches: steps that each thread takes some rows through, one step after another, without waiting for the others.

Threads that share every step meet at every step: the next one begins when the slowest has ended this one. Most steps of
a model, though, do not mix the rows of a batch: what a norm, a product with weights or an activation makes of a row
depends on that row alone. A run of such steps is cut into items along the first axis. An item goes through all of them,
which is also when its values are still in the cache; threads meet at the end of the stretch. No bit depends on it:
products are cut where they are cut by themselves, and sums over all rows are made of the same blocks.

What reads all rows, as the gradient of a weight does, waits until the stretch has ended. Products among it are cut into
pieces, which threads take that have come to the end of the next stretch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from distgrad.registry import OPS, Kind, kind_of, view_of
from distgrad.scheduler.cost.cutting import PIECE_FLOPS
from distgrad.scheduler.program import FUSED, Step
from distgrad.types import Shape, Spec
from distgrad.workers.fused_run import FusedRun
from distgrad.workers.kernels.products import even_pieces

#: A stretch ends where it holds more bytes than its steps one by one would: this share of the task's peak, within
#: these bounds in bytes.
LEAST_HELD, HELD, SHARE = 4 << 20, 16 << 20, 0.15
#: A step that makes no more than this can be done before a stretch or after it, on one thread.
LITTLE = 1 << 16


class Stretch(NamedTuple):
    """The steps from `start` to `stop` run in `items` items of an axis of length `lead`. For each step, by its place,
    along which axes its values are cut; None where it is a product of its own, which threads share in pieces."""

    start: int
    stop: int
    lead: int
    items: int
    cut: tuple[Mapping[int, int] | None, ...]


def stretches(
    steps: Sequence[Step],
    types: Sequence[Spec],
    last: Mapping[int, int],
    threads: int,
    runs: Mapping[int, FusedRun],
) -> tuple[list[Step], list[Stretch]]:
    """The steps in an order in which there are stretches, and these. `last` has the last step that sees the memory of
    each value, `runs` has how fused steps run, by what they make first."""
    task = _Task(types, threads, runs)
    if threads == 1 or sum([task.is_large(step) for step in steps]) < 2:
        return list(steps), []
    freed = task.freed(steps, last)
    order: list[Step] = []
    found: list[Stretch] = []
    under_way: _Open | None = None
    rest = _Rest(task)
    for step, held, count in zip(steps, freed, task.counts(steps), strict=True):
        if under_way is not None:
            if under_way.held <= task.most and under_way.takes(step, held):
                continue
            rest = under_way.close(order, found)
        under_way = _Open.at(step, held, count, task, rest)
        if under_way is None and not rest.lets_pass(step):
            if rest.takes(step, held):
                continue
            rest = rest.put(order, found)
            under_way = _Open.at(step, held, count, task, rest)
        if under_way is None:
            order.append(step)
        else:
            rest = _Rest(task)
    if under_way is not None:
        rest = under_way.close(order, found)
    rest.put(order, found)
    return order, found


class _Task:
    """What steps are to a number of threads."""

    def __init__(self, types: Sequence[Spec], threads: int, runs: Mapping[int, FusedRun]):
        self.types, self.threads, self.runs = types, threads, runs
        self.most = HELD

    def nbytes(self, v: int) -> int:
        spec = self.types[v]
        return spec.dtype.itemsize * math.prod(spec.shape)

    def is_large(self, step: Step) -> bool:
        """Whether threads would share the step by itself."""
        if step.type == FUSED:
            return self.runs[step.outputs[0]].shared
        if not self.is_product(step):
            return False
        depth = self.types[step.inputs[0]].shape[-2 if step.attrs["transpose_a"] else -1]
        return math.prod(self.types[step.outputs[0]].shape) * depth >= PIECE_FLOPS

    def is_product(self, step: Step) -> bool:
        """Whether it is computed by BLAS into its place. Others are made elsewhere and copied, all of them at once."""
        known = step.type == "MatMul" and OPS[step.type].kernel is None
        return known and self.types[step.outputs[0]].dtype.char in "fdFD"

    def is_little(self, step: Step) -> bool:
        return all(self.nbytes(v) <= LITTLE for v in (*step.inputs, *step.outputs))

    def pieces(self, step: Step) -> int:
        """Into how many equal pieces of rows a product of rows with a matrix is cut; 0 for anything else."""
        if not self.is_product(step) or step.attrs["transpose_a"]:
            return 0
        a, b = (len(self.types[v].shape) for v in step.inputs)
        shape = self.types[step.outputs[0]].shape
        rows = len(shape) == a and b == 2 and self.is_large(step)
        return even_pieces(math.prod(shape[:-1]), self.threads) if rows else 0

    def counts(self, steps: Sequence[Step]) -> list[int]:
        """The items of a stretch that begins with a step: the pieces of the product that comes next."""
        count, counts = 2 * self.threads, []
        for step in reversed(steps):
            count = self.pieces(step) or count
            counts.append(count)
        return counts[::-1]

    def freed(self, steps: Sequence[Step], last: Mapping[int, int]) -> list[int]:
        """The bytes that each step lets go of, but for those where its own results can be. Says what `most` is."""
        freed, peak, now = [0] * len(steps), 0, 0
        made: set[int] = set()
        for i, step in enumerate(steps):
            seen = view_of(step.type) is not None or step.type == "Const"
            inside = [v for v in step.outputs if not seen and last[v] < len(steps)]
            for v in inside:
                freed[last[v]] += self.nbytes(v)
                now += self.nbytes(v)
            free = {u for u in step.inputs if u in made and last[u] == i} if step.type == FUSED else set()
            again = sum([self.nbytes(u) for u in self._overwritten(step, inside, free)])
            peak = max(peak, now - again)
            now -= freed[i]
            freed[i] -= again
            made.update(inside)
        self.most = min(HELD, max(LEAST_HELD, int(SHARE * peak)))
        return freed

    def _overwritten(self, step: Step, outputs: Sequence[int], free: set[int]) -> Iterator[int]:
        for v in outputs if free else ():
            for u in self.runs[step.outputs[0]].overwritable(v):
                if u in free and self.types[u] == self.types[v]:
                    free.remove(u)
                    yield u
                    break


class _Rest:
    """What a stretch leaves to be done with the next one: products of all rows, and what reads those. `held` is how
    many bytes wait for that."""

    def __init__(self, task: _Task, products: Sequence[Step] = (), held: int = 0):
        self._task = task
        self.products = [*products]
        self.held = held
        self.readers: list[Step] = []
        self.made = {v for step in products for v in step.outputs}

    def lets_pass(self, step: Step) -> bool:
        """Whether a step that is in no stretch can go first, and is so little that the rest can wait for it."""
        if not self.made:
            return True
        little = step.type == "Const" or view_of(step.type) is not None or self._task.is_little(step)
        return little and not step.after and self.made.isdisjoint(step.inputs)

    def takes(self, step: Step, held: int) -> bool:
        """Whether the step waits with the others: one more product, or a view or something little of what they make."""
        reads = not self.made.isdisjoint(step.inputs)
        fits = view_of(step.type) is not None or self._task.is_little(step) if reads else self._task.is_product(step)
        if step.after or not fits or self.held > self._task.most:
            return False
        (self.readers if reads else self.products).append(step)
        self.made.update(step.outputs)
        self.held += held
        return True

    def put(self, order: list[Step], found: list[Stretch]) -> _Rest:
        """All of it right here, with no stretch to do it in; nothing is left."""
        count = len(self.products)
        if count > 1:
            found.append(Stretch(len(order), len(order) + count, 0, 0, (None,) * count))
        order += [*self.products, *self.readers]
        return _Rest(self._task)


class _Open:
    """A stretch under way: the steps in it, those that are done before it, and those that wait for its end."""

    def __init__(self, lead: int, count: int, task: _Task, rest: _Rest):
        self._lead, self._count, self._task, self._types = lead, count, task, task.types
        self._rest = rest
        self._all: list[Step] = []
        self._before: list[Step] = []
        self._inside: list[Step] = []
        self._views: list[Step] = []
        self._products: list[Step] = []
        self._later: list[Step] = []
        self._cut: list[Mapping[int, int]] = []
        self._large = 0
        #: Values that the stretch makes in items, with the axis; all rows of them at once; what is made of those, or of
        #: all items.
        self._made: dict[int, int] = {}
        self._whole: set[int] = set()
        self._after = set(rest.made)
        #: Bytes that would have been released by now, and those of them that wait for products.
        self.held = rest.held
        self._waiting = 0

    @staticmethod
    def at(step: Step, held: int, count: int, task: _Task, rest: _Rest) -> _Open | None:
        """A stretch that begins with a step."""
        begins = step.type == FUSED or kind_of(step.type) in (Kind.PRODUCT, Kind.LAYOUT)
        if not begins or rest.held > task.most or task.is_little(step):
            return None
        shape = step.attrs["space"] if step.type == FUSED else task.types[step.outputs[0]].shape
        stretch = _Open(shape[0] if shape else 1, count, task, rest)
        return stretch if stretch.takes(step, held) and stretch._inside else None

    def takes(self, step: Step, held: int) -> bool:
        """Whether the step is done with the stretch: before it, in it, or after it."""
        if step.after:
            return False
        inputs, is_view = set(step.inputs), view_of(step.type) is not None
        late = not self._after.isdisjoint(inputs)
        touched = late or not (self._made.keys().isdisjoint(inputs) and self._whole.isdisjoint(inputs))
        is_product, is_little = self._task.is_product(step), self._task.is_little(step)
        if step.type == "Const" or (is_view and not touched):
            self._before.append(step)
        elif not late and self._go_in(step, inputs):
            pass
        elif not touched and is_little:
            self._before.append(step)
        elif not touched and not is_product:
            return False
        elif is_view and not late:
            self._views.append(step)
            self._whole.update(step.outputs)
        elif is_product and not late:
            self._products.append(step)
            self._after.update(step.outputs)
            self._waiting += held
        elif (not late and step.type != FUSED) or is_view or is_little:
            self._later.append(step)
            self._after.update(step.outputs)
        else:
            return False
        self._all.append(step)
        self.held += held
        return True

    def _go_in(self, step: Step, inputs: set[int]) -> bool:
        """Whether an item finds what the step reads: parts of what it made itself, and all of what was there before."""
        cut = self._cut_of(step) if self._whole.isdisjoint(inputs) else None
        if cut is None or any(v in self._made and self._made[v] != cut.get(v) for v in inputs):
            return False
        self._inside.append(step)
        self._cut.append(cut)
        self._large += self._task.is_large(step)
        self._made.update((v, cut[v]) for v in step.outputs if v in cut)
        self._after.update(v for v in step.outputs if v not in cut)
        return True

    def close(self, order: list[Step], found: list[Stretch]) -> _Rest:
        """Put the steps in order; what is left is for the next stretch."""
        if self._large + len(self._rest.products) < 2:
            self._rest.put(order, found)
            order += self._all
            return _Rest(self._task)
        order += self._before
        start, products = len(order), self._rest.products
        order += [*products, *self._inside]
        cut = (*[None] * len(products), *self._cut)
        found.append(Stretch(start, len(order), self._lead, self._count, cut))
        order += [*self._rest.readers, *self._views]
        rest = _Rest(self._task, self._products, self._waiting)
        for step in self._later:
            if rest.made.isdisjoint(step.inputs):
                order.append(step)
            else:
                rest.readers.append(step)
                rest.made.update(step.outputs)
        return rest if rest.held <= self._task.most else rest.put(order, found)

    # -- what steps do with items ----------------------------------------------------------------------------------

    def _cut_of(self, step: Step) -> Mapping[int, int] | None:
        """Along which axes values of a step are cut where it runs by items; None where it does not."""
        if step.type == FUSED:
            run, values = self._task.runs[step.outputs[0]], (*step.inputs, *step.outputs)
            cut = None if not self._made.keys().isdisjoint(run.checked) else run.cut_by_items(self._lead, self._count)
            return None if cut is None else {v: 0 for v, is_cut in zip(values, cut, strict=True) if is_cut}
        if OPS[step.type].kernel is not None or self._lead % self._count:
            return None
        return self._product(step) if step.type == "MatMul" else self._laid_out(step)

    def _product(self, step: Step) -> Mapping[int, int] | None:
        """Rows of the first, as the product is cut by itself, times all of the second; or products of a batch."""
        a, b = (self._types[v].shape for v in step.inputs)
        (out,) = step.outputs
        shape, lead = self._types[out].shape, self._lead
        if shape[0] != lead or not self._task.is_product(step):
            return None
        if len(b) == 2:
            fits = self._task.pieces(step) == self._count and step.inputs[0] != step.inputs[1]
            return {step.inputs[0]: 0, out: 0} if fits else None
        cut = [v for v, x in zip(step.inputs, (a, b), strict=True) if len(x) == len(shape) and x[0] == lead]
        return dict.fromkeys((*cut, out), 0) if cut else None

    def _laid_out(self, step: Step) -> Mapping[int, int] | None:
        """Of a step that only rearranges its inputs, if items stay apart."""
        axes = {self._made.get(v, 0) for v in step.inputs}
        axis = axes.pop() if len(axes) == 1 else -1
        if axis < 0 or any(self._types[v].shape[axis : axis + 1] != (self._lead,) for v in step.inputs):
            return None
        moved = _axis_after(step, axis, [self._types[v].shape for v in (step.inputs[0], step.outputs[0])])
        if moved is None:
            return None
        return {**dict.fromkeys(step.inputs, axis), **dict.fromkeys(step.outputs, moved)}


def _axis_after(step: Step, axis: int, shapes: Sequence[Shape]) -> int | None:
    """Where an axis of the inputs is in the outputs, whole and in its order; None where it is not."""
    attrs = step.attrs
    match step.type:
        case "Identity" | "StopGradient" | "PreventGradient":
            return axis
        case "Transpose":
            return int(attrs["axes"].index(axis))
        case "Reshape":
            before, (old, new) = math.prod(shapes[0][:axis]), shapes
            return next((k for k, n in enumerate(new) if n == old[axis] and math.prod(new[:k]) == before), None)
        case "StridedSlice":
            return _axis_after_slice(attrs["index"], axis, shapes[0][axis])
        case "Concat" | "Split":
            return axis if attrs["axis"] != axis else None
        case "Unstack":
            return axis - (attrs["axis"] < axis) if attrs["axis"] != axis else None
        case "Stack":
            return axis + int(attrs["axis"] <= axis)
    return None


def _axis_after_slice(index: Sequence[Any], axis: int, length: int) -> int | None:
    """An index has one item for each axis, and None for each new one."""
    old = new = 0
    for item in index:
        if item is not None and old == axis:
            return new if item == (0, length, 1) else None
        old += item is not None
        new += not isinstance(item, int)
    return None
