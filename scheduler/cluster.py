"""Clusters: the hardware that a plan is made for, as plain numbers.

A `Machine` holds rates, a `Worker` holds capacities, a `Cluster` is workers with their rates. `local_cluster` describes
this process; `load_cluster` reads a file such as those in `cluster-configs/`. Nothing here measures: workers do, once
per machine.
"""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from distgrad.printing import UNITS, bytes_from
from distgrad.types import brief

ENGINES = ("local", "ray")

#: Seconds of overhead per Ray task: submitting it, starting it, and storing its results.
RAY_TASK_SECONDS = 2e-3
#: Bytes per second into the object store with several concurrent writers. Much of that memory is newly allocated.
RAY_STORE_BANDWIDTH = 1e9

#: Maximum number of workers. More is a typo, and planning for it would run out of memory.
MOST_WORKERS = 100_000
#: Minimum and maximum of each capacity of a worker.
LIMITS = {"cpus": (1, 65_536), "gpus": (0, 4_096), "memory": (1, 1 << 60), "node": (0, MOST_WORKERS)}

#: Rates of the engine and the network, which calibrating a single machine cannot measure.
UNMEASURED = ("task_seconds", "store_bandwidth", "link_bandwidth", "link_seconds")


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates of one kind of worker, per cpu (per GPU for GPU rates) unless noted otherwise.

    The defaults describe a typical shared server core with AVX2 and a 10 Gbit/s network. They are good enough to
    compare two plans, but rarely to predict seconds. `distgrad calibrate` measures the real rates.
    """

    #: Flops per second of a large matrix product, in float32 and in float64.
    gemm_flops: float = 9e10
    gemm_flops64: float = 4.5e10
    #: Smallest dimension at which a product reaches half of that rate.
    gemm_half: float = 10.0
    #: Speedup per additional cpu for a large product, relative to the first cpu.
    gemm_parallel: float = 0.65
    #: Bytes per second to and from main memory: all cpus together, and one cpu alone.
    memory_bandwidth: float = 2e10
    memory_bandwidth_one: float = 1.2e10
    #: Bytes that stay in cache between two steps, and bytes per second from cache, per cpu.
    cache_bytes: float = 16 << 20
    cache_bandwidth: float = 5e10
    #: Bytes per second into newly allocated memory, which the system has to map and clear.
    fresh_bandwidth: float = 6e9
    #: float32 elements per second in cache: simple arithmetic (add, multiply, compare), and transcendental functions.
    elementwise: float = 5e9
    transcendental: float = 7.5e8
    #: The same inside a fused step, which native code computes in registers.
    native_elementwise: float = 1.2e10
    native_transcendental: float = 1e9
    #: Random accesses per second: starts of short rows, gathered elements, random draws.
    irregular: float = 5e7
    #: Overhead in seconds: of one array function call; of one step of native code; of a call in addition when threads
    #: share a step and contend for the interpreter lock; and of one task.
    kernel_seconds: float = 7e-7
    native_seconds: float = 6e-8
    spread_seconds: float = 7e-6
    task_seconds: float = 5e-5
    #: Bytes per second between workers of one node (shared memory) and between nodes; network latency in seconds.
    store_bandwidth: float = 3e9
    link_bandwidth: float = 1.25e9
    link_seconds: float = 1e-3

    def to_json(self) -> dict[str, float]:
        """The rates by name, as in the `[machine]` table of a cluster file and in calibration files."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Worker:
    """Capacity for tasks on one node. Tasks run concurrently as long as their cpus, GPUs and memory fit."""

    cpus: int
    gpus: int = 0
    memory: int = 8 << 30
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    node: int = 0


@dataclass(frozen=True, slots=True)
class Cluster:
    """Workers and their rates. `gpu` has the rates of one GPU; required if any worker has GPUs."""

    workers: tuple[Worker, ...]
    machine: Machine = Machine()
    name: str = "cluster"
    engine: str = "local"
    gpu: Machine | None = None

    @property
    def cpus(self) -> int:
        return sum(w.cpus for w in self.workers)

    @property
    def gpus(self) -> int:
        return sum(w.gpus for w in self.workers)

    @property
    def nodes(self) -> int:
        return len({w.node for w in self.workers})

    def move_seconds(self, nbytes: float, source: int, target: int) -> float:
        """Predicted seconds to move one object from worker `source` to `target`; 0 with the local engine."""
        if self.engine == "local":
            return 0.0
        if self.workers[source].node == self.workers[target].node:
            return nbytes / self.machine.store_bandwidth
        return self.machine.link_seconds + nbytes / self.machine.link_bandwidth

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def local_cluster(
    threads: int | None = None, memory: int | None = None, machine: Machine | None = None, gpus: int = 0
) -> Cluster:
    """This process as a cluster of one worker, by default with all cpus and memory available to it and no GPUs.

    >>> local_cluster(threads=4, memory=1 << 30).workers
    (Worker(cpus=4, gpus=0, memory=1073741824, labels={}, node=0),)
    """
    for what, given in (("threads", threads), ("memory", memory), ("gpus", gpus)):
        if given is not None and not isinstance(given, int):
            raise ValueError(f"local_cluster: {what} must be a whole number, got {brief(given)}")
    cpus = usable_cpus() if threads is None else threads
    worker = Worker(cpus, gpus, usable_memory() if memory is None else memory)
    rates = machine or Machine()
    if not isinstance(rates, Machine):
        raise TypeError(f"local_cluster: machine must be a Machine, got {brief(machine)}")
    return check_cluster(Cluster((worker,), rates, "local", "local", rates if gpus else None))


def usable_cpus() -> int:
    """The number of cpus this process may use, which `taskset` or a container quota can limit."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # not on macOS
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(min(cpus, math.ceil(int(quota) / int(period))), 1)
    except (OSError, ValueError):  # no such group, or "max"
        return cpus


def usable_memory() -> int:
    """The bytes of memory this process may use: the machine's, or the control group's limit if lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(path).read_text()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return total


# -- checking ----------------------------------------------------------------------------------------------------


def check_machine(machine: Machine, place: str = "machine") -> Machine:
    """Return the machine; raise ValueError at the first invalid rate."""
    for name, value in machine.to_json().items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{place}: {name} is {value!r}, but must be a number")
        zero = name.endswith("_seconds") or name in ("gemm_half", "gemm_parallel")  # nothing is divided by these
        if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            raise ValueError(f"{place}: {name} is {value!r}, but must be finite and {'>= 0' if zero else '> 0'}")
    return machine


def check_cluster(cluster: Cluster) -> Cluster:
    """Return the cluster; raise ValueError at the first invalid field."""
    place = f"cluster {cluster.name!r}"
    if cluster.engine not in ENGINES:
        raise ValueError(f"{place}: engine is {cluster.engine!r}, but must be one of {', '.join(map(repr, ENGINES))}")
    if not cluster.workers:
        raise ValueError(f"{place} has no workers; give at least one")
    if len(cluster.workers) > MOST_WORKERS:
        raise ValueError(f"{place} has {len(cluster.workers):,} workers; the maximum is {MOST_WORKERS:,}")
    if cluster.engine == "local" and len(cluster.workers) > 1:
        raise ValueError(f"{place} has {len(cluster.workers)} workers, but the local engine has one process: give one")
    for i, worker in enumerate(cluster.workers):
        _check_worker(worker, f"{place}, worker {i}")
    check_machine(cluster.machine, f"{place}, machine")
    if cluster.gpu is not None:
        check_machine(cluster.gpu, f"{place}, gpu")
    elif cluster.gpus:
        raise ValueError(f"{place}: workers have GPUs, but there are no rates for them: give [gpu]")
    return cluster


def _check_worker(worker: Worker, place: str) -> None:
    for name, (least, most) in LIMITS.items():
        value = getattr(worker, name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"{place}: {name} is {_shown(value)}, but must be {_range(least, most, value)}")


def _range(least: int, most: int, value: Any) -> str:
    """The allowed range; names the maximum only for a value above it."""
    beyond = isinstance(value, int | float) and value > most
    return f"an integer from {least} to {most}" if beyond else f"an integer >= {least}"


def _shown(value: Any) -> str:
    """A value for an error message. Python refuses to print integers with thousands of digits."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    return repr(value)


# -- files -------------------------------------------------------------------------------------------------------


def on_ray(machine: Machine) -> Machine:
    """The machine with the task overhead and store bandwidth of Ray."""
    return replace(machine, task_seconds=RAY_TASK_SECONDS, store_bandwidth=RAY_STORE_BANDWIDTH)


def load_cluster(path: str | os.PathLike[str]) -> Cluster:
    """Read a cluster from a TOML file; `cluster-configs/README.md` documents the format.

    An invalid file raises ValueError naming the file, the field, and what is allowed there.
    """
    file = Path(path)
    data = _parsed(file)
    _known(data, ("name", "engine", "nodes", "machine", "gpu"), f"{file}")
    engine = _engine(data.get("engine", "ray"), file)
    name = _typed(data.get("name", file.stem), str, f"{file}: name")
    machine = on_ray(Machine()) if engine == "ray" else Machine()
    machine = _machine(data.get("machine", {}), machine, file, "machine")
    gpu = _machine(data["gpu"], machine, file, "gpu") if "gpu" in data else None
    try:
        return check_cluster(Cluster(_workers(data.get("nodes"), file), machine, name, engine, gpu))
    except ValueError as e:
        raise e if str(e).startswith(str(file)) else ValueError(f"{file}: {e}") from None


def read_machine(data: Any, base: Machine, place: str) -> Machine:
    """`base` with the rates of a table from a file; ValueError for an unknown name or an invalid value."""
    table = _typed(data, dict, place)
    _known(table, [f.name for f in fields(Machine)], place)
    try:
        given = {key: float(value) if type(value) is int else value for key, value in table.items()}
    except OverflowError:
        raise ValueError(f"{place}: a rate has more than 300 digits, but must be finite") from None
    return check_machine(replace(base, **given), place)


def _parsed(file: Path) -> dict[str, Any]:
    import tomllib  # late: few sessions read a file

    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as e:
        raise ValueError(f"{file}: cannot be read: {e.strerror}") from None
    except (ValueError, RecursionError) as e:  # not TOML, not text; numbers too long or tables too deep for Python
        raise ValueError(f"{file}: is not TOML: {e}") from None


def _engine(value: Any, file: Path) -> str:
    if value not in ENGINES:
        hint = _nearest(value, ENGINES) if isinstance(value, str) else ""
        raise ValueError(f"{file}: engine is {value!r}, but must be one of {', '.join(map(repr, ENGINES))}{hint}")
    return str(value)


def _machine(data: Any, base: Machine, file: Path, key: str) -> Machine:
    """A table of rates. `calibration` names a file from `distgrad calibrate --json`; other entries override it."""
    table = dict(_typed(data, dict, f"{file}: [{key}]"))
    calibration = table.pop("calibration", None)
    if calibration is not None:
        measured = file.parent / _typed(calibration, str, f"{file}: [{key}] calibration")
        known = {name: getattr(base, name) for name in UNMEASURED}
        base = replace(_calibrated(measured, base), **known)
    return read_machine(table, base, f"{file}: [{key}]")


def _calibrated(file: Path, base: Machine) -> Machine:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as e:
        raise ValueError(f"{file}: cannot be read: {e.strerror}") from None
    except ValueError as e:
        raise ValueError(f"{file}: is not JSON: {e}") from None
    if not isinstance(data, dict) or "machine" not in data:
        raise ValueError(f"{file}: not a calibration file; create one with `distgrad calibrate --json`")
    return read_machine(data["machine"], base, f"{file}: machine")


#: Fields of a [[nodes]] table: `count` nodes with `workers` workers each; the rest describes each worker.
NODE_FIELDS = ("count", "workers", "cpus", "gpus", "memory", "labels")


def _workers(data: Any, file: Path) -> tuple[Worker, ...]:
    if not isinstance(data, list) or not data:
        raise ValueError(f"{file}: nodes is missing; give at least one [[nodes]] table with cpus = ...")
    made: list[Worker] = []
    node = 0
    for i, table in enumerate(data):
        place = f"{file}: [[nodes]] {i + 1}"
        _known(_typed(table, dict, place), NODE_FIELDS, place)
        worker = _worker(table, place)
        count, each = (
            _count(table.get(name, 1), f"{place}: {name}", most=MOST_WORKERS) for name in ("count", "workers")
        )
        if len(made) + count * each > MOST_WORKERS:
            raise ValueError(
                f"{place}: count {count} × workers {each} brings the total above {MOST_WORKERS:,} workers, the maximum"
            )
        made += [replace(worker, node=n) for n in range(node, node + count) for _ in range(each)]
        node += count
    return tuple(made)


def _worker(table: Mapping[str, Any], place: str) -> Worker:
    if "cpus" not in table:
        raise ValueError(f"{place}: cpus is missing; give the cpus of each worker")
    labels = _typed(table.get("labels", {}), dict, f"{place}: labels")
    for key, value in labels.items():
        _typed(value, str, f"{place}: labels: {key}")
    worker = Worker(
        cpus=_count(table["cpus"], f"{place}: cpus", *LIMITS["cpus"]),
        gpus=_count(table.get("gpus", 0), f"{place}: gpus", *LIMITS["gpus"]),
        labels=labels,
    )
    return replace(worker, memory=_bytes(table["memory"], f"{place}: memory")) if "memory" in table else worker


def _count(value: Any, place: str, least: int = 1, most: int = MOST_WORKERS) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{place} is {_shown(value)}, but must be {_range(least, most, value)}")
    return value


def _bytes(value: Any, place: str) -> int:
    """A number of bytes: an integer, or text such as "64 GiB"."""
    most = LIMITS["memory"][1]
    if isinstance(value, str) and (size := bytes_from(value)) is not None:
        value = int(min(size, 2 * most))
    if type(value) is not int or value < 1:
        units = ", ".join(UNITS)
        raise ValueError(f'{place} is {_shown(value)}, but must be bytes: an integer, or "64 GiB" (units: {units})')
    if value > most:
        raise ValueError(f"{place} is too large; the maximum is {most} bytes (1 EiB)")
    return value


_KINDS: dict[type, str] = {str: "text", dict: "a table"}


def _typed(value: Any, kind: type, place: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{place} is {value!r}, but must be {_KINDS[kind]}")
    return value


def _known(table: Mapping[str, Any], allowed: Iterable[str], place: str) -> None:
    names = list(allowed)
    for key in table:
        if key not in names:
            _unknown(key, names, place)


def _unknown(key: str, names: list[str], place: str) -> NoReturn:
    raise ValueError(f"{place}: there is no field {key!r}{_nearest(key, names)} Allowed: {', '.join(names)}.")


def _nearest(key: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(names), 1, 0.6)
    return f"; did you mean {close[0]!r}?" if close else "."
