"""Checkpoints: variables saved by name and restored together. `checkpoint_files` defines the format on disk.

Saving takes a consistent snapshot of all variables and then writes them one at a time, while training may continue.
Restoring reads all variables first and then sets them atomically: after an error every variable is unchanged.
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
    """The step, metadata and path of a restored checkpoint."""

    step: int | None
    metadata: dict[str, Any]
    path: str


def save_checkpoint(
    path: Path, variables: Variables, step: int | None = None, metadata: Mapping[str, Any] | None = None
) -> None:
    """Save variables to a directory, replacing the checkpoint in it.

    The replacement is atomic: at any time, even after a crash, the directory contains either the old checkpoint or the
    new one, complete. Concurrent writers of one directory wait for each other.

    Args:
        path: the directory; it is created if it does not exist.
        variables: a mapping from names to variables, or variables with distinct names.
        step: the training step.
        metadata: anything that can be written as JSON.

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
            raise TypeError(f"save_checkpoint: variable {name!r} is {spec}, which safetensors files cannot store")
    step = None if step is None else _whole("step", step, 0)
    files.write(
        as_path("save_checkpoint", path), step, _plain(metadata), specs, lambda name: value_of(values.pop(name))
    )


def restore_checkpoint(path: Path, variables: Variables) -> Restored:
    """Set variables to the values stored under their names in a checkpoint; returns its step and metadata.

    Either all variables are set, atomically, or none. The checkpoint may contain other variables too.

    Raises:
        FileNotFoundError: there is no checkpoint in this directory.
        CheckpointError: the checkpoint is damaged, or a variable is missing or has a different shape or dtype.

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
    """An initial value for a variable: the value stored under a name in a checkpoint.

    >>> import tempfile, distgrad as dg
    >>> path = tempfile.mkdtemp()
    >>> dg.save_checkpoint(path, {"w": dg.Variable([1.0, 2.0])})
    >>> dg.Variable(dg.from_checkpoint(path, "w"), name="w").numpy()
    array([1., 2.])
    """
    path = as_path("from_checkpoint", path)
    if not isinstance(name, str):
        raise TypeError(f"from_checkpoint: name must be the name of a variable, got {brief(name)}")

    def value() -> Array:
        return _stable(path, lambda index: {name: _found(path, index, name)})[1][name]

    return value


class Checkpoints:
    """The checkpoints of a training run: one directory per step, of which the last few are kept.

    Args:
        directory: the parent directory of the checkpoints.
        keep: number of checkpoints to keep, those of the highest steps; None keeps all. The one saved last is always
            kept.

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
        """The directory of a step's checkpoint, to pass to `restore_checkpoint`."""
        return os.path.join(self.directory, f"step-{_whole('step', step, 0):010}")

    def steps(self) -> list[int]:
        """The steps that have a complete checkpoint, in ascending order."""
        return [step for step in self._begun() if files.is_complete(self.path(step))]

    def save(self, step: int, variables: Variables, /, **metadata: Any) -> None:
        """Save variables as the checkpoint of a step, then remove old checkpoints beyond `keep`."""
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
        """Restore variables from the complete checkpoint with the highest step. Returns None if there is none.

        A damaged checkpoint raises an error that names the previous one; it is never skipped silently.
        """
        named = _named("restore", variables)
        while steps := self.steps():
            try:
                return restore_checkpoint(self.path(steps[-1]), named)
            except (FileNotFoundError, CheckpointError) as e:
                if self.steps()[-1:] == steps[-1:]:  # otherwise another process removed it in the meantime
                    if len(steps) > 1:
                        e.add_note(f"The previous checkpoint is {self.path(steps[-2])!r}.")
                    raise
        return None

    def _begun(self) -> list[int]:
        """The steps that have a folder here, complete or not. Links and folders with other names are ignored."""
        if not os.path.isdir(self.directory):
            return []
        with explain_os_errors("the checkpoints cannot be listed", self.directory), os.scandir(self.directory) as found:
            names = [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
        steps = [int(name[5:]) for name in names if re.fullmatch(r"step-[0-9]{10,19}", name)]
        return sorted({step for step in steps if step <= MAX_STEP and f"step-{step:010}" in names})


def latest_checkpoint(directory: Path) -> str | None:
    """The directory of the newest complete checkpoint saved by `Checkpoints`, or None.

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
        raise RuntimeError(f"{what} runs immediately, but a graph is being built here: call it outside the graph")
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
            raise ValueError(f"{what}: two variables are named {name!r}; rename one, or pass a mapping from names")
        if name == "__metadata__":
            raise ValueError(f"{what}: the name {name!r} is reserved in safetensors files; choose another name")
        if not usable_name(name):
            raise ValueError(f"{what}: the name {name!r} cannot be written as UTF-8 text; choose another name")
        named[name] = v
    if len(set(named.values())) < len(named):
        twice = next(v for v in named.values() if sum(v is w for w in named.values()) > 1)
        raise ValueError(f"{what}: {twice!r} is given under two names")
    return named


def _name(what: str, v: Any) -> str:
    if not isinstance(v, Variable):
        raise TypeError(f"{what}: variables is a mapping or a list of variables, but it contains {brief(v)}")
    return v.name


def _whole(what: str, value: Any, least: int) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not least <= value <= MAX_STEP:
        raise ValueError(f"checkpoints: {what} is a whole number, {least} or more, got {brief(value)}")
    return int(value)


def _plain(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Metadata as it will be read back. Raises before anything is written."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise TypeError(f"checkpoints: metadata is a mapping from names to JSON values, got {brief(metadata)}")
    try:
        made: dict[str, Any] = json.loads(json.dumps(dict(metadata or {}), default=_number))
    except (TypeError, ValueError, RecursionError) as e:
        raise TypeError(f"checkpoints: metadata must be JSON values, got {brief(metadata)}: {e}") from None
    return made


def _number(x: Any) -> Any:
    if isinstance(x, np.generic) or (isinstance(x, np.ndarray) and x.ndim == 0):
        return x.item()
    raise TypeError(f"a {type(x).__name__} is not; save arrays as variables")


# -- reading -----------------------------------------------------------------------------------------------------


def _stable(path: str, choose: Callable[[Index], dict[str, Entry]]) -> tuple[Index, dict[str, Array]]:
    """The index of a checkpoint, and the tensors that `choose` selects. Reads again if the checkpoint is replaced while
    it is read."""
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
                f"{entries[name].spec} under this name. Shape and dtype must match: change the variable, or create "
                f"it from the checkpoint with Variable(from_checkpoint(path, name))."
            )
    return entries


def _found(path: str, index: Index, name: str) -> Entry:
    if name not in index.entries:
        known = ", ".join(map(repr, [*index.entries][:8])) + (", ..." if len(index.entries) > 8 else "")
        raise CheckpointError(f"the checkpoint in {path!r} has no variable {name!r}; it has {known or 'none'}")
    return index.entries[name]
