"""data_parallel: runs a function on shards of a batch and reduces the results.

Splits the arguments, traces the function once per shard shape, and sums or averages the results. The planner decides
which shards run in parallel and which tasks compute the sums; this module knows nothing of workers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from types import MethodType
from typing import Any

import numpy as np

from distgrad import nest
from distgrad.autodiff.aggregation import summing
from distgrad.autodiff.derivative_arguments import check_function, listed, name_of, short_name
from distgrad.graph import Operation, Tensor, current_graph
from distgrad.ops.builder import cast, convert
from distgrad.ops.indexed_slices import IndexedSlices
from distgrad.tracing.function import Function, call, named_leaves, op_name, positional_names, signature_of
from distgrad.tracing.signature import is_array
from distgrad.tracing.variables import NotPure
from distgrad.types import INT, brief

REDUCTIONS = ("mean", "sum")


def data_parallel(fn: Callable[..., Any], shards: int, *, batch: Any = None, reduction: str = "mean") -> DataParallel:
    """Return a function that runs `fn` on each of `shards` parts of a batch and sums or averages the results.

    With `reduction="mean"` every leaf of the result is the mean over all rows, with shards weighted by their rows. This
    equals `fn` of the whole batch if `fn` returns a mean over rows, as most losses and their gradients do. With "sum"
    it is the sum over the shards, for losses that are sums over rows. Results must not have a batch axis. None stays
    None, and a sparse gradient (IndexedSlices) stays sparse.

    The last bits of the result depend on the number of shards, never on the number of workers; more shards than workers
    is normal. Split random keys yourself: a key that is not part of the batch is the same in all shards.

    Args:
        fn: function of arrays or nested structures of them. It is traced once per shard shape and must not assign
            variables.
        shards: number of shards; their sizes are those of np.array_split along axis 0.
        batch: the arguments to split, by position or name (one, or a sequence). The default is all arguments that
            contain arrays, except those that grad, value_and_grad, jacobian or hessian differentiate if `fn` was made
            by one of them.
        reduction: "mean" or "sum".

    >>> import distgrad as dg
    >>> step = dg.data_parallel(dg.value_and_grad(lambda w, x: dg.mean(x * w)), shards=2)
    >>> step(np.array(3.0), np.array([1.0, 2.0, 6.0]))
    (array(9.), array(3.))
    """
    check_function("data_parallel", fn)
    if not isinstance(shards, int | np.integer) or isinstance(shards, bool) or shards < 1:
        raise ValueError(f"data_parallel: shards is a positive whole number, got {brief(shards)}")
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"data_parallel: reduction is one of {', '.join(map(repr, REDUCTIONS))}, got {brief(reduction)}"
        )
    return DataParallel(fn, int(shards), _chosen(fn, batch), reduction == "mean")


class _Pieces(list[Any]):
    """An argument split into shards, one structure for each. A separate type, so that its signature is not a list's."""


class DataParallel(Function):
    """The result of data_parallel: called, planned and cached like a @distgrad.function."""

    def __init__(self, fn: Callable[..., Any], shards: int, batch: tuple[int | str, ...] | None, mean: bool):
        @functools.wraps(fn, updated=())
        def build(*args: Any, **kwargs: Any) -> Any:
            return self._build(args, kwargs)

        super().__init__(build, f"data_parallel_{short_name(fn)}", defaults=False)
        self.shards = shards
        self._tower = Function(fn, short_name(fn), defaults=False)
        self._batch = batch
        self._mean = mean

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    # -- splitting -----------------------------------------------------------------------------------------------

    def _canonical(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments with those of the batch split; outside a graph into views of the arrays, fed separately."""
        args, kwargs = super()._canonical(args, kwargs)
        places = self._places(args, kwargs)
        bounds = self._bounds(self._rows(args, kwargs, places))
        made = [_cut(x, bounds) if i in places else x for i, x in enumerate(args)]
        return tuple(made), {key: _cut(x, bounds) if key in places else x for key, x in kwargs.items()}

    def _places(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[int | str]:
        """The arguments to split, as positions and keywords of this call."""
        given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        if self._batch is not None:
            return [self._place(each, args, kwargs) for each in self._batch]
        kept = [i % len(args) for i in listed(getattr(self._tower, "argnums", ())) if -len(args) <= i < len(args)]
        return [place for place, x in given if place not in kept and any(is_array(leaf) for leaf in nest.flatten(x))]

    def _place(self, each: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | str:
        names, _ = positional_names(self._signature)
        place = names.index(each) if each in names else each
        if isinstance(place, int) and -len(args) <= place < len(args):
            return place % len(args)
        if isinstance(place, str) and place in kwargs:
            return place
        what = f"{len(args)} by position" + (f", and {', '.join(kwargs)}" if kwargs else "")
        raise ValueError(
            f"{self.name}: batch names the argument {brief(each)}, which the call does not give: it has {what}"
        )

    def _rows(self, args: Sequence[Any], kwargs: Mapping[str, Any], places: Sequence[int | str]) -> int:
        """The rows that all arrays of the batch have."""
        rows: dict[str, int] = {}
        for name, x in self._leaves(args, kwargs, places):
            if not is_array(x):
                raise TypeError(
                    f"{self.name}: the argument {name} is {brief(x)}, not an array, and cannot be split. {_NAME}"
                )
            shape = np.shape(x) if not hasattr(x, "shape") else x.shape
            if not shape:
                raise ValueError(f"{self.name}: the argument {name} is a scalar and has no rows to split. {_NAME}")
            rows[name] = int(shape[0])
        if not rows:
            raise ValueError(f"{self.name}: no argument of the call contains an array to split. {_NAME}")
        if len(set(rows.values())) > 1:
            listing = ", ".join(f"{name} has {n}" for name, n in rows.items())
            raise ValueError(f"{self.name}: the arguments to split have different numbers of rows: {listing}. {_NAME}")
        return next(iter(rows.values()))

    def _leaves(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], places: Sequence[int | str]
    ) -> Iterator[tuple[str, Any]]:
        """The leaves to split, each with its expression."""
        chosen = [x if i in places else () for i, x in enumerate(args)]
        yield from named_leaves(self._signature, chosen, {key: x for key, x in kwargs.items() if key in places})

    def _bounds(self, rows: int) -> list[tuple[int, int]]:
        if rows < self.shards:
            raise ValueError(
                f"{self.name}: {rows} rows cannot be split into {self.shards} shards: each needs at least one. "
                f"Give a larger batch, or fewer shards."
            )
        each, more = divmod(rows, self.shards)
        sizes = [each + (i < more) for i in range(self.shards)]
        return list(pairwise(accumulate(sizes, initial=0)))

    # -- building ------------------------------------------------------------------------------------------------

    def _build(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """One Call per shard and one body per shape: captured values cannot change between the shards."""
        graph = current_graph()
        assert graph is not None
        bodies: dict[int, Any] = {}
        found, rows = [], []
        for i in range(self.shards):
            part = tuple([_piece(x, i) for x in args]), {key: _piece(x, i) for key, x in kwargs.items()}
            rows.append(_length(args, kwargs, i))
            if rows[i] not in bodies:
                bodies[rows[i]] = self._traced(*part)
            traced = bodies[rows[i]]
            tensors = [convert(x) for x in nest.flatten(part) if is_array(x)]
            found.append(traced.rebuild(call(traced.body, tensors, name=op_name(self._tower.name))))
        return self._combined(found, rows)

    def _traced(self, args: Any, kwargs: Any) -> Any:
        try:
            return self._tower.trace(args, kwargs, current_graph())
        except NotPure as e:
            raise ValueError(
                f"{self.name}: {e}. Shards run in parallel, so none may assign. Return the new value from the "
                f"function, and assign it after data_parallel."
            ) from None

    def _combined(self, found: Sequence[Any], rows: Sequence[int]) -> Any:
        leaves = [nest.flatten(each) for each in found]
        names = [name for name, _ in nest.paths(found[0], "its result")]
        made = [self._sum(name, terms, rows) for name, *terms in zip(names, *leaves, strict=True)]
        return nest.unflatten(found[0], made)

    def _sum(self, name: str, terms: list[Any], rows: Sequence[int]) -> Any:
        """The sum or mean of one leaf of the results. Shards of unequal size are weighted before they are summed."""
        if terms[0] is None:
            return None
        _check_terms(self.name, name, terms)
        terms = [cast(x, INT) if x.dtype == bool else x for x in terms]
        even = len(set(rows)) == 1
        if self._mean and not even:
            terms = [_scaled(x, n / sum(rows)) for x, n in zip(terms, rows, strict=True)]
        total = summing(None)(terms, terms[0]) if len(terms) > 1 else terms[0]
        return _scaled(total, 1 / len(terms)) if self._mean and even and len(terms) > 1 else total


_NAME = "Name the arguments to split with batch=, by position or name."


def _chosen(fn: Callable[..., Any], batch: Any) -> tuple[int | str, ...] | None:
    """`batch` as a tuple; ValueError for a name that no parameter has."""
    if batch is None:
        return None
    made = tuple(batch) if isinstance(batch, list | tuple | set) else (batch,)
    signature = signature_of(fn)
    for each in made:
        if isinstance(each, bool) or not isinstance(each, int | str):
            raise TypeError(f"data_parallel: batch has positions and names of arguments, got {brief(each)}")
        parameters = {} if signature is None else signature.parameters
        open_ended = signature is None or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if isinstance(each, str) and each not in parameters and not open_ended:
            listing = ", ".join(parameters)
            raise ValueError(
                f"data_parallel: batch names {brief(each)}, but the arguments of {name_of(fn)} are {listing}"
            )
    if not made:
        raise ValueError("data_parallel: batch is empty: name at least one argument to split")
    return made


def _cut(tree: Any, bounds: Sequence[tuple[int, int]]) -> _Pieces:
    whole = [x if isinstance(x, Tensor | np.ndarray) or not is_array(x) else np.asarray(x) for x in nest.flatten(tree)]
    return _Pieces([nest.unflatten(tree, [x[a:b] if is_array(x) else x for x in whole]) for a, b in bounds])


def _piece(x: Any, i: int) -> Any:
    return x[i] if isinstance(x, _Pieces) else x


def _length(args: Sequence[Any], kwargs: Mapping[str, Any], i: int) -> int:
    """The rows of a shard."""
    cut = next(x for x in (*args, *kwargs.values()) if isinstance(x, _Pieces))
    return int(next(x for x in nest.flatten(cut[i]) if is_array(x)).shape[0])


def _check_terms(what: str, name: str, terms: Sequence[Any]) -> None:
    first = terms[0]
    if isinstance(first, Operation):
        raise TypeError(f"{what}: {name} is the operation {first.name!r}, which cannot be summed; return tensors")
    if first.dtype.kind not in "biufcV":
        raise TypeError(f"{what}: {name} has dtype {first.dtype}, which cannot be summed")
    shapes = {x.dense_shape if isinstance(x, IndexedSlices) else x.shape for x in terms}
    if len(shapes) > 1:
        raise ValueError(
            f"{what}: {name} has different shapes in different shards ({', '.join(sorted(map(str, shapes)))}), so it "
            f"has a batch axis and cannot be summed. Return a mean or a sum over the rows."
        )


def _scaled(x: Any, factor: float) -> Any:
    if isinstance(x, IndexedSlices):
        return x.with_values(x.values * factor)
    return x * factor
