"""Checkpoints: variables saved under their names and restored together. How they lie on a disk: `checkpoint_files`.

Saving takes the values of all variables at one moment and then one by one to the disk, while the training may go on.
Restoring reads all of them first and sets them in one go: after an error every variable is as it was.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from distgrad.disk import as_path, explain_os_errors
from distgrad.errors import CheckpointError
from distgrad.graph import current_graph
from distgrad.handles import value_of
from distgrad.store import checkpoint_files as files
from distgrad.store.checkpoint_index import MAX_STEP, Entry, Index, usable_name
from distgrad.tensor_files import writable
from distgrad.tracing.state import Array, alone, frozen, put, take
from distgrad.tracing.variables import Variable
from distgrad.types import Spec, brief

Path: TypeAlias = str | os.PathLike[str]
Variables: TypeAlias = Mapping[str, Variable] | Iterable[Variable]


class Restored(NamedTuple):
    """What a checkpoint says beside the values of its variables."""

    step: int | None
    metadata: dict[str, Any]
    path: str


def save_checkpoint(
    path: Path, variables: Variables, step: int | None = None, metadata: Mapping[str, Any] | None = None
) -> None:
    """Save variables into a directory, in place of the checkpoint that is there.

    Whatever happens meanwhile, the directory holds the checkpoint of before or the new one, complete. Writers of one
    directory wait for each other.

    Args:
        path: the directory; it is made if it is not there.
        variables: a mapping from names to variables, or variables whose own names differ.
        step: of the training.
        metadata: anything that JSON can keep.

    >>> import tempfile, distgrad as dg
    >>> path, w = tempfile.mkdtemp(), dg.Variable([1.0, 2.0], name="w")
    >>> dg.save_checkpoint(path, [w], step=7, metadata={"loss": 0.5})
    >>> _ = w.assign([0.0, 0.0])
    >>> found = dg.restore_checkpoint(path, [w])
    >>> w.numpy(), found.step, found.metadata
    (array([1., 2.]), 7, {'loss': 0.5})
    """
    named = _named("save_checkpoint", variables)
    values = dict(zip(named, take([*named.values()]), strict=True))
    specs = {name: Spec(tuple(x.shape), x.dtype) for name, x in values.items()}
    for name, spec in specs.items():
        if not writable(spec):
            raise TypeError(f"save_checkpoint: variable {name!r} is {spec}, a dtype that safetensors files cannot have")
    step = None if step is None else _whole("step", step, 0)
    files.write(
        as_path("save_checkpoint", path), step, _plain(metadata), specs, lambda name: value_of(values.pop(name))
    )


def restore_checkpoint(path: Path, variables: Variables) -> Restored:
    """Set variables to the values that a checkpoint has under their names; gives its step and metadata.

    Either all are set, at one moment, or none. The checkpoint may have more variables than are asked for.

    Raises:
        FileNotFoundError: there is no checkpoint in this directory.
        CheckpointError: it is damaged, lacks a variable, or has another shape or dtype for one.

    >>> import tempfile, distgrad as dg
    >>> path = tempfile.mkdtemp()
    >>> dg.save_checkpoint(path, {"encoder/w": dg.Variable(3.0)})
    >>> v = dg.Variable(0.0)
    >>> dg.restore_checkpoint(path, {"encoder/w": v}).step is None
    True
    >>> v.numpy()
    array(3.)
    """
    named, path = _named("restore_checkpoint", variables), as_path("restore_checkpoint", path)
    index, arrays = _stable(path, partial(_matching, path, named))
    targets, values = [*named.values()], [frozen(arrays.pop(name)) for name in named]
    alone(targets, partial(put, targets, values))
    return Restored(index.step, index.metadata, path)


def from_checkpoint(path: Path, name: str) -> Callable[[], Array]:
    """An initial value for a variable: what a checkpoint has under a name.

    >>> import tempfile, distgrad as dg
    >>> path = tempfile.mkdtemp()
    >>> dg.save_checkpoint(path, {"w": dg.Variable([1.0, 2.0])})
    >>> dg.Variable(dg.from_checkpoint(path, "w"), name="w").numpy()
    array([1., 2.])
    """
    path = as_path("from_checkpoint", path)
    if not isinstance(name, str):
        raise TypeError(f"from_checkpoint: name is that of a variable, a string, got {brief(name)}")

    def value() -> Array:
        return _stable(path, lambda index: {name: _found(path, index, name)})[1][name]

    return value


class Checkpoints:
    """The checkpoints of a training: one directory for each step, the last few of which are kept.

    Args:
        directory: where they are.
        keep: how many of them, those of the highest steps; None keeps all. The one saved last is always kept.

    >>> import tempfile, distgrad as dg
    >>> w, checkpoints = dg.Variable(0.0, name="w"), dg.Checkpoints(tempfile.mkdtemp(), keep=2)
    >>> found = checkpoints.restore([w])
    >>> for step in range(found.step + 1 if found else 0, 5):
    ...     _ = w.assign_add(1.0)
    ...     checkpoints.save(step, [w], loss=0.5)
    >>> checkpoints.steps()
    [3, 4]
    >>> checkpoints.restore([w]).metadata
    {'loss': 0.5}
    """

    def __init__(self, directory: Path, keep: int | None = 3):
        self.directory = as_path("Checkpoints", directory)
        self.keep = None if keep is None else _whole("keep", keep, 1)

    def path(self, step: int) -> str:
        """The directory of a step's checkpoint, as `restore_checkpoint` takes it."""
        return os.path.join(self.directory, f"step-{_whole('step', step, 0):010}")

    def steps(self) -> list[int]:
        """The steps of which there is a complete checkpoint, in order."""
        return [step for step in self._begun() if files.is_complete(self.path(step))]

    def save(self, step: int, variables: Variables, /, **metadata: Any) -> None:
        """Save variables as the checkpoint of a step, then remove those that are not kept."""
        step = _whole("step", step, 0)
        if os.path.islink(self.path(step)):
            raise CheckpointError(f"{self.path(step)!r} is a link, which is not followed: remove it, or save elsewhere")
        save_checkpoint(self.path(step), variables, step, metadata)
        complete = self.steps()
        for left in {*self._begun()}.difference(complete):
            files.remove(self.path(left), complete=False)
        for old in complete[: -self.keep] if self.keep else ():
            if old != step:
                files.remove(self.path(old), complete=True)

    def restore(self, variables: Variables) -> Restored | None:
        """Set variables to those of the newest complete checkpoint, the one of the highest step; None when there is
        none. A damaged one is an error that names the one before, not a silent step back."""
        named = _named("restore", variables)
        while steps := self.steps():
            try:
                return restore_checkpoint(self.path(steps[-1]), named)
            except (FileNotFoundError, CheckpointError) as e:
                if self.steps()[-1:] == steps[-1:]:  # else another process removed it meanwhile
                    if len(steps) > 1:
                        e.add_note(f"The checkpoint before it is {self.path(steps[-2])!r}.")
                    raise
        return None

    def _begun(self) -> list[int]:
        """The steps that have a folder here: not a link to one, nor a folder that a step would not have made."""
        if not os.path.isdir(self.directory):
            return []
        with explain_os_errors("the checkpoints cannot be listed", self.directory), os.scandir(self.directory) as found:
            names = [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
        steps = [int(name[5:]) for name in names if re.fullmatch(r"step-[0-9]{10,19}", name)]
        return sorted({step for step in steps if step <= MAX_STEP and f"step-{step:010}" in names})


def latest_checkpoint(directory: Path) -> str | None:
    """The directory of the newest complete checkpoint that `Checkpoints` saved; None when there is none.

    >>> import tempfile, distgrad as dg
    >>> latest_checkpoint(tempfile.mkdtemp()) is None
    True
    """
    checkpoints = Checkpoints(directory)
    steps = checkpoints.steps()
    return checkpoints.path(steps[-1]) if steps else None


# -- arguments ---------------------------------------------------------------------------------------------------


def _named(what: str, variables: Variables) -> dict[str, Variable]:
    if current_graph() is not None:
        raise RuntimeError(f"{what} acts when it is called, and a graph is being built here: call it outside")
    if isinstance(variables, Variable):
        raise TypeError(
            f"{what}: variables is a mapping or a list of variables, got {brief(variables)}; pass [variable]"
        )
    if not isinstance(variables, Iterable) or isinstance(variables, str | bytes):
        raise TypeError(f"{what}: variables is a mapping or a list of variables, got {brief(variables)}")
    pairs = [*variables.items()] if isinstance(variables, Mapping) else [(_name(what, v), v) for v in variables]
    named: dict[str, Variable] = {}
    for name, v in pairs:
        if not isinstance(v, Variable) or not isinstance(name, str):
            raise TypeError(f"{what}: variables is a mapping from names to variables, got {brief(v)} under {name!r}")
        if name in named:
            raise ValueError(f"{what}: two variables are called {name!r}; name them, or pass a mapping from names")
        if name == "__metadata__":
            raise ValueError(f"{what}: safetensors files keep the name {name!r} for themselves; choose another one")
        if not usable_name(name):
            raise ValueError(f"{what}: the name {name!r} cannot be written as UTF-8 text; choose another one")
        named[name] = v
    if len(set(named.values())) < len(named):
        twice = next(v for v in named.values() if sum(v is w for w in named.values()) > 1)
        raise ValueError(f"{what}: {twice!r} is given under two names")
    return named


def _name(what: str, v: Any) -> str:
    if not isinstance(v, Variable):
        raise TypeError(f"{what}: variables is a mapping or a list of variables, and has {brief(v)} in it")
    return v.name


def _whole(what: str, value: Any, least: int) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not least <= value <= MAX_STEP:
        raise ValueError(f"checkpoints: {what} is a whole number, {least} or more, got {brief(value)}")
    return int(value)


def _plain(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Metadata as it will be read; an error before anything is written."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise TypeError(f"checkpoints: metadata is a mapping from names to what JSON can keep, got {brief(metadata)}")
    try:
        made: dict[str, Any] = json.loads(json.dumps(dict(metadata or {}), default=_number))
    except (TypeError, ValueError, RecursionError) as e:
        raise TypeError(f"checkpoints: metadata is what JSON can keep, got {brief(metadata)}: {e}") from None
    return made


def _number(x: Any) -> Any:
    if isinstance(x, np.generic) or (isinstance(x, np.ndarray) and x.ndim == 0):
        return x.item()
    raise TypeError(f"a {type(x).__name__} is not; save arrays as variables")


# -- reading -----------------------------------------------------------------------------------------------------


def _stable(path: str, choose: Callable[[Index], dict[str, Entry]]) -> tuple[Index, dict[str, Array]]:
    """The index of a checkpoint, and the tensors that `choose` takes from it; of the next one, when the checkpoint is
    replaced while it is read."""
    while True:
        index = _index(path)
        try:
            return index, files.read(path, choose(index))
        except (OSError, CheckpointError):
            if _index(path).entries == index.entries:
                raise


def _index(path: str) -> Index:
    try:
        return files.read_index(path)
    except (FileNotFoundError, NotADirectoryError):
        newest = latest_checkpoint(path)
        hint = f"; the newest one below it is {newest!r}, or use Checkpoints({path!r}).restore" if newest else ""
        raise FileNotFoundError(f"there is no complete checkpoint in {path!r}{hint}") from None


def _matching(path: str, named: Mapping[str, Variable], index: Index) -> dict[str, Entry]:
    entries = {name: _found(path, index, name) for name in named}
    for name, v in named.items():
        if entries[name].spec != (v.shape, v.dtype):
            raise CheckpointError(
                f"variable {name!r} is {Spec(v.shape, v.dtype)}, but {os.path.join(path, entries[name].file)!r} has "
                f"{entries[name].spec} under this name. Shape and dtype must be the same: make the variable so, or "
                f"start it from the checkpoint with Variable(from_checkpoint(path, name))."
            )
    return entries


def _found(path: str, index: Index, name: str) -> Entry:
    if name not in index.entries:
        known = ", ".join(map(repr, [*index.entries][:8])) + (", ..." if len(index.entries) > 8 else "")
        raise CheckpointError(f"the checkpoint in {path!r} has no variable {name!r}; it has {known or 'none'}")
    return index.entries[name]
