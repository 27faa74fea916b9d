"""Digests of programs, clusters and options: equal content has an equal digest in every process."""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from distgrad.errors import Source
from distgrad.scheduler.cluster import Cluster
from distgrad.scheduler.program import CALL, Inner, Program, Step
from distgrad.types import Spec

if TYPE_CHECKING:
    from distgrad.scheduler.plan import Options

#: Steps per hasher update: hashing one long text is faster than many short ones.
_CHUNK = 4096
#: The version of Python's format of plain values: later ones say which objects are the same, not only equal.
_FORMAT = 2
#: Types with a repr that is complete and the same on every machine.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
#: Fixed name of `Inner` in digests, so that moving the class does not change them.
_INNER = "distgrad.scheduler.program.Inner"


def content_digest(program: Program, cluster: Cluster, options: Options, executions: Any = None) -> str:
    """The cache key of a plan.

    >>> import distgrad as dg
    >>> from distgrad.scheduler.plan import Options
    >>> from distgrad.scheduler.cluster import local_cluster
    >>> from distgrad.scheduler.program import lower
    >>> def key():
    ...     with dg.Graph():
    ...         return content_digest(lower([dg.constant(1.0)]), local_cluster(2, 1 << 30), Options())
    >>> key() == key(), len(key())
    (True, 64)
    """
    hasher = hashlib.sha256(program_digest(program).encode())
    hasher.update(repr(_plain(cluster.to_json())).encode())
    hasher.update(repr(_plain(asdict(options))).encode())
    if executions is not None:
        hasher.update(repr(_plain(asdict(executions))).encode())
    return hasher.hexdigest()


def program_digest(program: Program) -> str:
    """The digest of a program: types, ids, attributes (with the bytes of arrays), names and lines of all steps."""
    hasher = hashlib.sha256()
    for start in range(0, len(program.types), _CHUNK):
        hasher.update("".join(_types(program.types[start : start + _CHUNK])).encode())
    lines: dict[Source, str] = {}
    for start in range(0, len(program.steps), _CHUNK):
        hasher.update(_text([_step(step, lines) for step in program.steps[start : start + _CHUNK]]))
    ends = program.feeds, program.fetches, program.reads, program.writes
    hasher.update(repr(ends).encode(errors="surrogatepass"))
    return hasher.hexdigest()


def is_plain(program: Program) -> bool:
    """Whether the digest identifies the program, i.e. all attributes are plain values."""
    called = {step.attrs["inner"] for step in program.steps if step.type == CALL}
    own = (s for step in program.steps if step.type != CALL for s in (step, *step.body))
    return all(_known(value) for s in own for value in s.attrs.values()) and all(is_plain(i.program) for i in called)


def _known(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_known(item) for item in value)
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    return type(value) in _PLAIN or isinstance(value, np.dtype | np.generic)


def constant_bytes(program: Program) -> int:
    """The total bytes of the constants of a program."""
    own: int = sum([step.attrs["value"].nbytes for step in program.steps if step.type == "Const"])
    inner = {step.attrs["inner"] for step in program.steps if step.type == CALL}
    return own + sum([constant_bytes(each.program) for each in inner])


def _types(types: tuple[Spec, ...]) -> list[str]:
    known: dict[Spec, str] = {}
    found = []
    for spec in types:
        text = known.get(spec)
        if text is None:
            text = known[spec] = f"{spec.shape}{_dtype(spec.dtype)};"
        found.append(text)
    return found


def _dtype(dtype: np.dtype[Any]) -> str:
    return f"{dtype.name}/{dtype.str}"  # bfloat16 has the str of two raw bytes, strings differ only in theirs


def _step(step: Step, lines: dict[Source, str]) -> tuple[Any, ...]:
    line = lines.get(step.source)
    if line is None:
        line = lines[step.source] = str(step.source)
    attrs = _mapping(step.attrs) if step.attrs else ()
    body = [_step(inner, lines) for inner in step.body] if step.body else ()  # bodies hold no bodies
    return step.type, step.inputs, step.outputs, attrs, step.after, line, step.name, step.device, body


def _text(steps: list[tuple[Any, ...]]) -> bytes:
    """The content of some steps as bytes. What Python cannot write as it is, such as numbers of NumPy, has a repr."""
    try:
        return marshal.dumps(steps, _FORMAT)
    except ValueError:
        return repr(steps).encode(errors="surrogatepass")


def _mapping(attrs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value if type(value) in _PLAIN else _plain(value)) for name, value in attrs.items()]


def _plain(value: Any) -> Any:
    """A value converted so that its repr is its content.

    Arrays are hashed by their bytes. A user-defined object is identified by the name of its type and its repr, so a
    difference that the repr hides is hidden from the digest too; without a custom repr, its fields are used.
    """
    if isinstance(value, _PLAIN):
        return type(value).__name__, value
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject:
            return "array", array.shape, _plain(array.tolist())
        return "array", array.shape, _dtype(array.dtype), hashlib.sha256(array.tobytes()).hexdigest()
    if isinstance(value, np.dtype):
        return "dtype", _dtype(value)
    if isinstance(value, tuple | list):
        return type(value).__name__, [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return "mapping", [(_plain(key), _plain(item)) for key, item in value.items()]
    if isinstance(value, Inner):
        return _INNER, repr(value)
    return _object(value)


def _object(value: Any) -> Any:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if callable(value) and hasattr(value, "__qualname__"):  # a function or a class: where it is defined
        return name, f"{value.__module__}.{value.__qualname__}"
    text = repr(value)
    if " at 0x" in text:  # an address, which differs between processes
        return name, _plain(dict(getattr(value, "__dict__", {})))
    return name, text
