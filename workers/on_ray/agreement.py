"""Agreement on bits: which kernels the workers of a session run, and which fingerprint each of them must have.

When a session opens, its nodes report the features of their CPUs; the runtime environment of the tasks selects kernels
that all of them can run; and a process on each node reports its fingerprint. Bodies carry the digest of the agreed
fingerprint, and a process with a different one refuses to run them: see `admitted`, which runs on workers.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from distgrad.errors import FingerprintError
from distgrad.scheduler.bodies import Body
from distgrad.workers import cpus, node_report
from distgrad.workers.backends import BACKENDS
from distgrad.workers.fingerprint import NATIVE_CODE, Fingerprint, fingerprint, is_extra
from distgrad.workers.on_ray.failures import Differs

if TYPE_CHECKING:
    from distgrad.workers.on_ray.link import Node

log = logging.getLogger("distgrad")

#: Seconds to wait for all nodes; further seconds to wait for the first one. Nodes that have not answered are checked by
#: their first task.
ALL_NODES_TIMEOUT, ANY_NODE_TIMEOUT = 10.0, 60.0
#: Seconds to wait for nodes that joined later, because a run is waiting meanwhile.
NEW_NODES_TIMEOUT = 4.0
#: Maximum number of nodes that an error names.
MAX_NAMED_NODES = 4
REMEDY = (
    "Install the same versions of distgrad, NumPy and SciPy on every node and where the script runs (`distgrad submit` "
    'runs it on the cluster, and --install has Ray install what it needs), or open Session("ray", bits="any"), which '
    "makes no promise about bits"
)

#: Answers of nodes to earlier sessions of this process. A restarted node has a new id.
_cpus: dict[str, cpus.Cpu] = {}
_read: dict[tuple[str, Any], Fingerprint] = {}


@dataclass(frozen=True)
class Agreement:
    """What was agreed on. `expected` is None with bits="any"; `folds` says whether the driver computes the same bits as
    the workers; `excluded` are the nodes that get no tasks, with the reasons; `native` says whether all nodes have the
    driver's native code."""

    env: Mapping[str, str]
    expected: Fingerprint | None
    folds: bool
    excluded: Mapping[str, str]
    native: bool = True

    def head(self, extras: tuple[str, ...] = ()) -> bytes:
        """The line that bodies carry for `admitted`."""
        if self.expected is None:
            return b""
        return " ".join([self.expected.with_extras(extras).digest, *extras]).encode()

    def without(self, node: str, why: str) -> Agreement:
        """The same agreement with one more excluded node."""
        return self if node in self.excluded else replace(self, excluded={**self.excluded, node: why})

    def differences(self, found: Fingerprint) -> str:
        """How a fingerprint differs from the agreed one."""
        if self.expected is None:
            return ""
        extras = tuple([name for name, _ in found.fields if is_extra(name)])
        return found.differences(self.expected.with_extras(extras))


#: Before anything was agreed on.
NONE = Agreement({}, None, True, {})


def agreed(nodes: Sequence[Node], home: str, extras: tuple[str, ...], any_bits: bool) -> Agreement:
    """The agreement of these nodes. Raises FingerprintError if they cannot agree, ImportError if one lacks a package.

    Args:
        nodes: the nodes that can compute.
        home: the id of the node on this machine.
        extras: packages that all tasks of the session use, in addition to those of every session.
        any_bits: whether nodes that differ may compute as well.
    """
    try:
        env = cpus.chosen(_known_cpus(nodes, home)).env()
    except ValueError as e:
        if not any_bits:
            raise FingerprintError(
                f"Session: the cluster cannot compute the same bits everywhere: {e}. Use nodes of one architecture, or "
                f'open Session("ray", bits="any"), which makes no promise about bits.'
            ) from e
        env = cpus.Kernels().env()
    names = {node.id: _at(node) for node in nodes}
    found, ours = _fingerprints(nodes, env, extras), fingerprint(extras)
    native = has_native_code(names, found, ours)
    if any_bits:
        return Agreement(env, None, True, {}, native)
    if not native:
        found, ours = {id: x.without(NATIVE_CODE) for id, x in found.items()}, ours.without(NATIVE_CODE)
    return replace(settled(env, names, found, ours), native=native)


def has_native_code(nodes: Mapping[str, str], found: Mapping[str, Fingerprint], ours: Fingerprint) -> bool:
    """Whether all nodes have the native code of the driver, if that was asked for. Says so if one has not."""
    mine = dict(ours.fields).get(NATIVE_CODE)
    others = {id: dict(x.fields).get(NATIVE_CODE) for id, x in found.items()}
    lacking = [id for id, theirs in others.items() if theirs != mine]
    if lacking:
        log.warning(
            "distgrad: the session runs without native code, which is slower: %s has %r, this process has %r. Install "
            "the same llvmlite on every node, or start the script with `distgrad submit --install`.",
            nodes[lacking[0]], others[lacking[0]], mine,
        )  # fmt: skip
    return not lacking


def settled(
    env: Mapping[str, str], nodes: Mapping[str, str], found: Mapping[str, Fingerprint], ours: Fingerprint
) -> Agreement:
    """The agreement of nodes (ids and names) that have the fingerprints `found`, with a driver that has `ours`.

    Versions must equal the driver's, because it makes the plans. The agreed fingerprint is the driver's if one of
    these nodes has it, otherwise that of the first of them.
    """
    alike = [x for x in found.values() if x.versions == ours.versions]
    if not alike:
        raise FingerprintError(
            f"Session: no node of the cluster has the package versions of this process. "
            f"{_difference_text(nodes, found, ours)}. {REMEDY}."
        )
    expected = ours if ours in alike else alike[0]
    excluded = {id: x.differences(expected) for id, x in found.items() if x != expected}
    for id, why in excluded.items():
        log.warning("distgrad: %s gets no tasks, because its bits would differ: it has %s", nodes[id], why)
    if ours != expected:
        log.info("distgrad: constants are folded on the cluster: this process has %s", ours.differences(expected))
    base = Fingerprint(tuple([field for field in expected.fields if not is_extra(field[0])]))
    return Agreement(env, base, ours == expected, excluded)


def unfit(agreement: Agreement, nodes: Sequence[Node]) -> dict[str, str]:
    """Of the nodes that joined after the agreement, those that cannot run its tasks, with the reasons. A worker of such
    a node may die before it can report: its CPU cannot run the kernels, or it lacks a package."""
    kernels = agreement.env.get("OPENBLAS_CORETYPE", "")
    weak = {id for id, found in _cpus_of(nodes).items() if not cpus.can_run(kernels, found.flags)}
    reasons = dict.fromkeys(weak, f"a CPU that cannot run the kernels of {kernels}")
    for id, found in _asked(_reader(), [n for n in nodes if n.id not in weak], agreement.env, (), quick=True).items():
        why = found if isinstance(found, str) else agreement.differences(Fingerprint(found))
        if why:
            reasons[id] = why
    return reasons


def _cpus_of(nodes: Sequence[Node]) -> dict[str, cpus.Cpu]:
    text = inspect.getsource(node_report)
    return {id: cpus.cpu(found) for id, found in _asked(_reporter(), nodes, {}, text, quick=True).items()}


def _difference_text(nodes: Mapping[str, str], found: Mapping[str, Fingerprint], expected: Fingerprint) -> str:
    some = list(found)[:MAX_NAMED_NODES]
    more = [f"{len(found) - MAX_NAMED_NODES} more differ, too"] if len(found) > MAX_NAMED_NODES else []
    return "; ".join([f"{nodes[id]} has {found[id].differences(expected)}" for id in some] + more)


def refused(agreement: Agreement) -> FingerprintError:
    """The error for a task that only excluded nodes could run."""
    reasons = [f"node {id[:8]}: {why}" for id, why in list(agreement.excluded.items())[:MAX_NAMED_NODES]]
    return FingerprintError(
        f"all nodes that could run a task would compute different bits: {'; '.join(reasons)}. "
        f"{REMEDY}. Variables are unchanged."
    )


# -- asking nodes ------------------------------------------------------------------------------------------------


def _known_cpus(nodes: Sequence[Node], home: str) -> list[cpus.Cpu]:
    new = [node for node in nodes if node.id not in _cpus]
    text = inspect.getsource(node_report)
    if [node.id for node in new] == [home] and not _is_client():  # then it is this machine
        _cpus[home] = cpus.cpu(node_report.asked(text))
    elif new:
        _cpus.update({id: cpus.cpu(found) for id, found in _asked(_reporter(), new, {}, text).items()})
    return [_cpus[node.id] for node in nodes if node.id in _cpus]


def _is_client() -> bool:
    """Whether this process is connected through Ray's client, so that the node that Ray names is another machine."""
    from ray.util.client import ray as client

    return bool(client.is_connected())  # type: ignore[no-untyped-call]


def _fingerprints(nodes: Sequence[Node], env: Mapping[str, str], extras: tuple[str, ...]) -> dict[str, Fingerprint]:
    """The fingerprints that processes on the nodes report, in the order of the nodes."""
    how = tuple(sorted(env.items())), extras
    new = [node for node in nodes if (node.id, how) not in _read]
    for id, found in (_asked(_reader(), new, env, extras) if new else {}).items():
        if isinstance(found, str):
            raise ImportError(
                f"Session: {_at(next(node for node in nodes if node.id == id))} cannot run tasks: {found}. Install "
                f"distgrad and its dependencies on every node, or start the script with `distgrad submit --install`, "
                f"which lets Ray do so."
            )
        _read[id, how] = Fingerprint(found)
    return {node.id: _read[node.id, how] for node in nodes if (node.id, how) in _read}


def _at(node: Node) -> str:
    return f"node {node.id[:8]} at {node.address}"


def _asked(
    function: Any, nodes: Sequence[Node], env: Mapping[str, str], *args: Any, quick: bool = False
) -> dict[str, Any]:
    """The results of a function on the nodes that answer in time; ConnectionError if none does, unless `quick`."""
    options: dict[str, Any] = {"runtime_env": {"env_vars": dict(env)}} if env else {}
    refs = {}
    for node in nodes:
        where = NodeAffinitySchedulingStrategy(node.id, soft=False)
        refs[function.options(num_cpus=0, scheduling_strategy=where, **options).remote(*args)] = node
    if not refs:
        return {}
    timeout = NEW_NODES_TIMEOUT if quick else ALL_NODES_TIMEOUT
    ready, late = ray.wait(list(refs), num_returns=len(refs), timeout=timeout)
    if quick:
        return _answers({ref: refs[ref] for ref in ready})[0]
    if not ready:
        ready, late = ray.wait(late, num_returns=1, timeout=ANY_NODE_TIMEOUT)
    if not ready:
        raise ConnectionError(
            f"Session: none of the {len(refs)} nodes of the Ray cluster answered within "
            f"{ALL_NODES_TIMEOUT + ANY_NODE_TIMEOUT:.0f} s. Are they busy, or unable to start workers? See Ray's logs."
        )
    if late:
        log.warning("distgrad: %d nodes have not answered; they are checked by their first task", len(late))
    found, failed = _answers({ref: refs[ref] for ref in ready})
    if not found:
        reasons = "; ".join(failed[:MAX_NAMED_NODES])
        raise ConnectionError(f"Session: no node of the Ray cluster can start a worker: {reasons}")
    return found


def _answers(refs: Mapping[Any, Node]) -> tuple[dict[str, Any], list[str]]:
    """The answers by node, and the errors of the other nodes."""
    found, failed = {}, []
    for ref, node in refs.items():
        try:
            found[node.id] = ray.get(ref)
        except exceptions.RayError as e:  # a node that cannot start workers says so at its first task
            log.debug("distgrad: asking %s: %s", _at(node), e)
            failed.append(f"{_at(node)}: {str(e).strip().splitlines()[-1]}")
    return found, failed


@cache
def _reporter() -> Any:
    def cpu_of_node(text: str) -> Any:
        program: dict[str, Any] = {"__name__": "node_report"}
        exec(text, program)
        return program["asked"](text)

    return _travelling(cpu_of_node)


@cache
def _reader() -> Any:
    def fingerprint_of_node(extras: tuple[str, ...]) -> Any:
        try:
            from distgrad.workers.on_ray.task import settled_fingerprint
        except ImportError as e:
            return str(e)
        return settled_fingerprint(extras).fields

    return _travelling(fingerprint_of_node)


def _travelling(function: Callable[..., Any]) -> Any:
    """A remote function. A nested function is pickled by value: the node may not have distgrad."""
    return ray.remote(max_retries=1)(function)


# -- on workers --------------------------------------------------------------------------------------------------


def admitted(head: bytes, found: Callable[[tuple[str, ...]], Fingerprint]) -> None:
    """Raise Differs if this process does not have the fingerprint that a body requires."""
    if head:
        digest, *extras = head.decode().split()
        mine = found(tuple(extras))
        if mine.digest != digest:
            here = ray.get_runtime_context()
            raise Differs(here.get_node_id(), here.get_task_id() or "", mine.fields)


def extras_of(body: Body, backend: str) -> tuple[str, ...]:
    """Packages that this body uses in addition to those that every body uses. On GPUs the node's own version counts."""
    kinds = {spec.dtype.type.__module__ for spec in body.types}
    extras = ["ml_dtypes"] if "ml_dtypes" in kinds else []
    extras += [NATIVE_CODE] if body.native and BACKENDS[backend].is_numpy else []
    return tuple(extras if body.gpus else [*extras, *BACKENDS[backend].packages])
