"""Cluster: the hardware that a plan is made for, as plain numbers.

A `Machine` is rates, a `Worker` is room for tasks, a `Cluster` is workers and their rates. `local_cluster` is this
process; `load_cluster` reads a file of `cluster-configs/`. Nothing here measures: the workers do, once per machine.
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

#: Overhead of one task where the engine is Ray: submitting it, starting it, handing on what it made.
RAY_TASK_SECONDS = 2e-3
#: Bytes per second into its store, by workers that write side by side: much of that memory is touched the first time.
RAY_STORE_BANDWIDTH = 1e9

#: More than any cluster has: beyond it a number is a mistake, and a plan for it would take all memory.
MOST_WORKERS = 100_000
#: What a worker can have, from the least to the most.
LIMITS = {"cpus": (1, 65_536), "gpus": (0, 4_096), "memory": (1, 1 << 60), "node": (0, MOST_WORKERS)}

#: Rates of the engine and the network, which a calibration of one machine does not know.
UNMEASURED = ("task_seconds", "store_bandwidth", "link_bandwidth", "link_seconds")


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates of one kind of worker: per cpu (or per GPU, for the machine of GPUs) where not said otherwise.

    The defaults are those of a common server core with AVX2, shared with other programs, and of a 10 Gbit/s network:
    good enough to compare two plans, seldom to predict seconds. `distgrad calibrate` measures the real ones.
    """

    #: Flops per second of a large matrix product, in float32 and in float64.
    gemm_flops: float = 9e10
    gemm_flops64: float = 4.5e10
    #: A product whose smallest dimension is this has half of that rate.
    gemm_half: float = 10.0
    #: What each further cpu adds to a large product, as a share of the first.
    gemm_parallel: float = 0.65
    #: Bytes per second to and from main memory, read and written: of all cpus together, and of one alone.
    memory_bandwidth: float = 2e10
    memory_bandwidth_one: float = 1.2e10
    #: Bytes that stay in cache between two steps, and bytes per second of one cpu from there.
    cache_bytes: float = 16 << 20
    cache_bandwidth: float = 5e10
    #: Bytes per second of memory that is touched for the first time: the system has to find and clear it.
    fresh_bandwidth: float = 6e9
    #: Elements per second of float32, block by block: of cheap functions (add, multiply, compare); of exp and such.
    elementwise: float = 5e9
    transcendental: float = 7.5e8
    #: Places per second that are visited one by one: the starts of short rows, and all that is gathered or drawn.
    irregular: float = 5e7
    #: Seconds before the first element: of one call of an array function; what it takes longer where threads work
    #: together, which hand the interpreter's lock to each other; and of one task.
    kernel_seconds: float = 7e-7
    spread_seconds: float = 7e-6
    task_seconds: float = 5e-5
    #: Between two workers of one node (shared memory), and between nodes: bytes per second; seconds before the first.
    store_bandwidth: float = 3e9
    link_bandwidth: float = 1.25e9
    link_seconds: float = 1e-3

    def to_json(self) -> dict[str, float]:
        """The rates by name, as `[machine]` of a cluster file and the calibration's file have them."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Worker:
    """Room for tasks on one node: tasks run side by side in it as long as their cpus, GPUs and bytes fit."""

    cpus: int
    gpus: int = 0
    memory: int = 8 << 30
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    node: int = 0


@dataclass(frozen=True, slots=True)
class Cluster:
    """Workers and their rates. `gpu` has the rates of one GPU, where workers have any."""

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
        """Predicted time for one object from worker `source` to worker `target`; in one process nothing moves."""
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
    """This process as a cluster of one worker; by default with all cpus and bytes that it may use, and no GPUs.

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
        raise TypeError(f"local_cluster: machine is a Machine with the rates of one, got {brief(machine)}")
    return check_cluster(Cluster((worker,), rates, "local", "local", rates if gpus else None))


def usable_cpus() -> int:
    """The cpus this process may run on, which `taskset` or the quota of a container makes fewer than there are."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # not on macOS
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(min(cpus, math.ceil(int(quota) / int(period))), 1)
    except (OSError, ValueError):  # no such group, or "max"
        return cpus


def usable_memory() -> int:
    """The bytes this process may use: the machine's, or the control group's where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(path).read_text()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return total


# -- checking ----------------------------------------------------------------------------------------------------


def check_machine(machine: Machine, place: str = "machine") -> Machine:
    """The same machine; ValueError at the first rate that no hardware has."""
    for name, value in machine.to_json().items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{place}: {name} is {value!r}, but must be a number")
        zero = name.endswith("_seconds") or name in ("gemm_half", "gemm_parallel")  # nothing is divided by these
        if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            raise ValueError(f"{place}: {name} is {value!r}, but must be finite and {'>= 0' if zero else '> 0'}")
    return machine


def check_cluster(cluster: Cluster) -> Cluster:
    """The same cluster; ValueError at the first thing that does not hold."""
    place = f"cluster {cluster.name!r}"
    if cluster.engine not in ENGINES:
        raise ValueError(f"{place}: engine is {cluster.engine!r}, but must be one of {', '.join(map(repr, ENGINES))}")
    if not cluster.workers:
        raise ValueError(f"{place} has no workers: nothing could run")
    if len(cluster.workers) > MOST_WORKERS:
        raise ValueError(f"{place} has {len(cluster.workers):,} workers, but {MOST_WORKERS:,} are the most")
    if cluster.engine == "local" and len(cluster.workers) > 1:
        raise ValueError(f"{place} has {len(cluster.workers)} workers, but the local engine is one process: give one")
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
    """What a number may be; the most only for one that is beyond it."""
    beyond = isinstance(value, int | float) and value > most
    return f"an integer from {least} to {most}" if beyond else f"an integer >= {least}"


def _shown(value: Any) -> str:
    """A value for an error: Python refuses to print integers of thousands of digits."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    return repr(value)


# -- files -------------------------------------------------------------------------------------------------------


def on_ray(machine: Machine) -> Machine:
    """The same machine where Ray runs the tasks."""
    return replace(machine, task_seconds=RAY_TASK_SECONDS, store_bandwidth=RAY_STORE_BANDWIDTH)


def load_cluster(path: str | os.PathLike[str]) -> Cluster:
    """The cluster that a TOML file describes; `cluster-configs/README.md` says what may stand in it.

    A wrong file is one ValueError that names the file, the field, and what is allowed there.
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
    """`base` with the rates that a table of a file gives; ValueError for a name or a value that is none."""
    table = _typed(data, dict, place)
    _known(table, [f.name for f in fields(Machine)], place)
    try:
        given = {key: float(value) if type(value) is int else value for key, value in table.items()}
    except OverflowError:
        raise ValueError(f"{place}: a rate is a number of more than 300 digits, but must be finite") from None
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
    """A table of rates; `calibration` names a file of `distgrad calibrate --json`, whose rates the others replace."""
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
        raise ValueError(f"{file}: is no calibration: make one with `distgrad calibrate --json`")
    return read_machine(data["machine"], base, f"{file}: machine")


#: What a [[nodes]] table may say. `count` nodes with `workers` workers each; the rest is what each worker has.
NODE_FIELDS = ("count", "workers", "cpus", "gpus", "memory", "labels")


def _workers(data: Any, file: Path) -> tuple[Worker, ...]:
    if not isinstance(data, list) or not data:
        raise ValueError(f"{file}: nodes is missing: give at least one [[nodes]] table with cpus = ...")
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
                f"{place}: count {count} × workers {each} makes more than {MOST_WORKERS:,} workers in all, which are "
                f"the most that can be planned for"
            )
        made += [replace(worker, node=n) for n in range(node, node + count) for _ in range(each)]
        node += count
    return tuple(made)


def _worker(table: Mapping[str, Any], place: str) -> Worker:
    if "cpus" not in table:
        raise ValueError(f"{place}: cpus is missing: give the cpus of each worker")
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
        raise ValueError(f"{place} is more than any machine has: {most} bytes (1 EiB) are the most")
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
    raise ValueError(f"{place}: there is no field {key!r}{_nearest(key, names)} Allowed are {', '.join(names)}.")


def _nearest(key: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(names), 1, 0.6)
    return f"; did you mean {close[0]!r}?" if close else "."
