"""Calibration: measures the rates of this machine once, and keeps them as JSON in the user's cache folder.

`machine()` never measures: it returns earlier measurements, or the defaults. `calibrate()` measures if necessary.
A file belongs to one combination of processor, cpus, NumPy, BLAS and number of threads.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from distgrad.errors import UNKNOWN
from distgrad.files import check_writable, write_text
from distgrad.scheduler.cluster import Machine, read_machine, usable_cpus
from distgrad.scheduler.cost.cutting import BLOCK
from distgrad.scheduler.program import FUSED, Step
from distgrad.types import Spec
from distgrad.workers import native
from distgrad.workers.cache_folder import cache_folder
from distgrad.workers.kernels.products import product
from distgrad.workers.kernels.sharing import shared
from distgrad.workers.numpy_engine.tape import Tape
from distgrad.workers.thread_pool import thread_pool

#: Version of the file format. It changes with the meaning of a rate, and machines are then measured again.
FORMAT = 4
#: Approximate seconds of a calibration.
SECONDS = 4.0
#: Shape (m, k, n) of a product at full speed that takes a few milliseconds: longer ones are often disturbed.
LARGE = 512, 512, 512
#: Shape (m, k, n) of a product that threads share, a few milliseconds each.
SHARED = 1024, 512, 512
#: Gain per further thread, relative to the first, below which the measurement is discarded: the machine is busy.
BUSY = 0.1
#: The weight of tanh among mathematical functions, of which exp is one.
TANH = 1.5
#: Bytes of an allocation that the allocator returns to the system immediately, so that each new one has fresh pages.
FRESH_BYTES = 64 << 20

Progress = Callable[[str], None]


def machine(threads: int | None = None) -> Machine:
    """The rates measured on this machine earlier, or the defaults; it measures nothing. The rates for all cpus also
    serve for fewer threads, because most are rates of one cpu."""
    counts = dict.fromkeys((threads or usable_cpus(), usable_cpus()))
    return next((found for found in map(_kept, counts) if found is not None), Machine())


def calibrate(
    threads: int | None = None, *, force: bool = False, seconds: float = SECONDS, progress: Progress | None = None
) -> Machine:
    """The rates of this machine; measured and cached if they were not before, or with `force`.

    `threads` is the number of threads that a task may use, by default all cpus. `progress` is called with a text about
    each measurement.
    """
    count = check_threads(usable_cpus() if threads is None else threads)
    found = None if force else _kept(count)
    if found is None:
        path = _writable(cache_file(count))  # before measuring
        found = measure(count, seconds, progress)
        _keep(document(found, count), path)
    return found


def check_threads(threads: int) -> int:
    if not 1 <= threads <= usable_cpus():
        raise ValueError(f"calibrate: threads is {threads}, but this process may use 1 to {usable_cpus()}")
    return threads


# -- the file ----------------------------------------------------------------------------------------------------


def cache_file(threads: int | None = None) -> Path:
    """The file with the rates of this machine. Each format has its own file, so that versions can share a folder."""
    text = json.dumps({"format": FORMAT, **identity(threads or usable_cpus())}, sort_keys=True)
    return cache_folder() / f"machine-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def identity(threads: int) -> dict[str, Any]:
    """What the rates depend on: they are measured again after a change of processor, NumPy or BLAS."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]  # type: ignore[call-arg, index, unused-ignore]
    return {
        "processor": _processor(),
        "cpus": usable_cpus(),
        "numpy": np.__version__,
        "blas": f"{blas.get('name')} {blas.get('version')}",
        "threads": threads,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return f"{platform.machine()} {platform.processor()}"
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return f"{platform.machine()} {model}"


def document(measured: Machine, threads: int | None = None) -> dict[str, Any]:
    """The content of the file, which `calibration = "..."` of a cluster file also accepts."""
    return {"format": FORMAT, "identity": identity(threads or usable_cpus()), "machine": measured.to_json()}


def _writable(path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return check_writable(path)
    except OSError as e:
        raise _unkept(e, path) from None


def _keep(data: dict[str, Any], path: Path) -> None:
    """Write the file atomically."""
    try:
        write_text(path, json.dumps(data, indent=2))
    except OSError as e:
        raise _unkept(e, path) from None


def _unkept(e: OSError, path: Path) -> OSError:
    why = os.strerror(e.errno) if e.errno else str(e)
    remedy = "Set DISTGRAD_CACHE to a writable folder with free space."
    return OSError(e.errno, f"the calibration cannot be saved in {path}: {why}. {remedy}")


def _kept(threads: int) -> Machine | None:
    path = cache_file(threads)
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as e:
        _ignored(path, e)
        return None
    try:
        return _read(json.loads(text), threads, path)
    except (ValueError, RecursionError) as e:
        _ignored(path, e)
        return None


def _read(data: Any, threads: int, path: Path) -> Machine:
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("identity") != identity(threads):
        raise ValueError("it is from another version of distgrad, or from another machine")
    rates = data.get("machine")
    if not isinstance(rates, dict) or rates.keys() != {f.name for f in fields(Machine)}:
        raise ValueError("it does not have the rates that this version of distgrad uses")
    return read_machine(rates, Machine(), f"{path}: machine")


def _ignored(path: Path, reason: Exception) -> None:
    text = f"distgrad: ignoring the calibration {path}: {reason}. `distgrad calibrate --force` replaces it."
    warnings.warn(text, RuntimeWarning, stacklevel=4)


# -- measuring ---------------------------------------------------------------------------------------------------


def measure(threads: int, seconds: float = SECONDS, progress: Progress | None = None) -> Machine:
    """The rates, as medians of repeated short runs: the usual speed of this machine under its usual load, rather than
    the best."""
    from threadpoolctl import threadpool_limits  # late: it looks through all loaded libraries

    tell = progress or (lambda text: None)
    each = seconds / 14
    rates: dict[str, float] = {}
    with threadpool_limits(1, user_api="blas"):
        tell("measuring matrix products on one thread")
        rates |= _products(each)
        tell("measuring memory and cache")
        rates |= _memory(threads, each)
        tell("measuring elementwise functions")
        rates |= _elements(each)
        rates |= _native_loops(each)
        tell("measuring overheads")
        rates |= _overheads(each)
        if threads > 1:
            tell(f"measuring {threads} threads together")
            gained = _gained(threads, each)
            if gained > BUSY:
                rates |= {"gemm_parallel": min(gained, 1.0), "spread_seconds": _handing_over(threads, each)}
            else:
                tell("other programs keep the cpus busy: the gain of further threads is assumed, not measured")
    return read_machine(rates, Machine(), "calibration")


def usual(run: Callable[[], object], seconds: float) -> float:
    """The median seconds of repeated runs."""
    return statistics.median(times(run, seconds))


def times(run: Callable[[], object], seconds: float, least: int = 3) -> list[float]:
    """Seconds of repeated runs, after a warm-up run."""
    run()
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < least or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return found


def _products(each: float) -> dict[str, float]:
    """The rate of a large product, and its decline with the smallest dimension d: rate(d) = large * d / (d + half)."""
    large = _product_rate(*LARGE, np.float32, each)
    halves = []
    for d in (4, 10, 32):
        for m, k, n in ((d, 512, 512), (512, d, 512), (512, 512, d)):
            halves.append(d * max(large / _product_rate(m, k, n, np.float32, each / 9) - 1, 0.0))
    double = _product_rate(*LARGE, np.float64, each)
    return {"gemm_flops": large, "gemm_flops64": double, "gemm_half": float(np.median(halves))}


def _product_rate(m: int, k: int, n: int, dtype: Any, seconds: float) -> float:
    a, b, out = np.ones((m, k), dtype), np.ones((k, n), dtype), np.empty((m, n), dtype)
    return 2.0 * m * k * n / usual(lambda: np.matmul(a, b, out=out), seconds)


def _memory(threads: int, each: float) -> dict[str, float]:
    """Bandwidth of copies, counting reads and writes: within the cache, and far beyond it."""
    from concurrent.futures import ThreadPoolExecutor

    cache = _cache_bytes()
    near = np.ones(int(cache) // 16, np.float32)  # half of the cache together with its copy
    target = np.empty_like(near)
    rates = {"cache_bytes": cache, "cache_bandwidth": 2 * near.nbytes / usual(lambda: np.copyto(target, near), each)}
    far = np.ones(int(min(max(32 << 20, 2 * cache), 256 << 20)) // 4, np.float32)
    target = np.ones_like(far)  # not np.empty: its pages must be mapped
    rates["memory_bandwidth_one"] = 2 * far.nbytes / usual(lambda: np.copyto(target, far), each)
    parts = list(zip(np.array_split(target, threads), np.array_split(far, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        together = usual(lambda: list(pool.map(lambda pair: np.copyto(*pair), parts)), each)
    rates["memory_bandwidth"] = max(2 * far.nbytes / together, rates["memory_bandwidth_one"])
    kept = np.ones(FRESH_BYTES, np.uint8)
    cleared = usual(lambda: np.empty(FRESH_BYTES, np.uint8).fill(1), each) - usual(lambda: kept.fill(1), each / 4)
    rates["fresh_bandwidth"] = FRESH_BYTES / max(cleared, 1e-6)
    return rates


def _cache_bytes() -> float:
    """Half of the last-level cache, as other values and programs need the rest; the default if it is unknown."""
    sizes = [0]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):  # Linux
        text = file.read_text().strip()
        if text.endswith("K") and text[:-1].isdigit():
            sizes.append(int(text[:-1]) << 10)
    return max(sizes) / 2 or Machine().cache_bytes


def _elements(each: float) -> dict[str, float]:
    """Elements per second in blocks of the size that groups use, without the overhead of the call."""
    n = BLOCK
    rng = np.random.default_rng(0)
    x, y, out = rng.random(n, np.float32), rng.random(n, np.float32), np.empty(n, np.float32)
    rows, sums = x[: 1 << 15].reshape(-1, 8), np.empty(1 << 12, np.float32)
    call = usual(lambda: np.multiply(x[:1], y[:1], out=out[:1]), each / 4)

    def rate(count: int, run: Callable[[], object]) -> float:
        return count / max(usual(run, each) - call, 1e-9)

    return {
        "elementwise": rate(n, lambda: np.multiply(x, y, out=out)),
        "transcendental": rate(n, lambda: np.exp(x, out=out)),
        "irregular": rate(len(rows), lambda: np.add.reduce(rows, axis=1, out=sums)),
    }


def _native_loops(each: float) -> dict[str, float]:
    """Elements per second inside a group that native code runs on one thread, and seconds of a step on a few elements.
    Nothing where native code cannot run."""
    if native.unusable():
        return {}
    x, few = np.linspace(0.1, 0.9, BLOCK, dtype=np.float32), np.ones(16, np.float32)
    tapes = [_group(_chain(type, count), BLOCK) for type, count in (("Sub", 1), ("Sub", 32), ("Tanh", 8))]
    base, arithmetic, functions = (usual(partial(tape.run, [x, x]), each / 3) for tape in tapes)
    small = _tape(_chain("Sub", 1000), few.size, native=True)
    return {
        "native_elementwise": 31 * BLOCK / max(arithmetic - base, 1e-9),
        "native_transcendental": 8 * TANH * BLOCK / max(functions - base, 1e-9),
        "native_seconds": usual(lambda: small.run([few, few]), each) / 1000,
    }


def _overheads(each: float) -> dict[str, float]:
    """Seconds of a step on a few elements within a task of many steps, and of a round trip to another thread."""
    from concurrent.futures import ThreadPoolExecutor

    x = np.ones(16, np.float32)
    tape = _tape(_chain("Mul", 1000), x.size, native=False)
    with ThreadPoolExecutor(1) as pool:
        trip = usual(lambda: pool.submit(int).result(), each)
    return {"kernel_seconds": usual(lambda: tape.run([x, x]), each) / 1000, "task_seconds": trip}


def _chain(type: str, count: int) -> list[Step]:
    """Steps of one type that each read the result of the one before; those with two inputs read value 0 too."""
    others = () if type == "Tanh" else (0,)
    return [Step(type, (i + 1, *others), (i + 2,), {}, (), UNKNOWN, "calibration") for i in range(count)]


def _group(body: Sequence[Step], n: int) -> Tape:
    """The steps as one group."""
    last, attrs = body[-1].outputs, {"space": (n,), "split": 1}
    group = Step(FUSED, (1, 0), last, attrs, (), UNKNOWN, "calibration", None, tuple(body))
    return _tape([group], n, native=True)


def _tape(steps: Sequence[Step], n: int, native: bool) -> Tape:
    (last,) = steps[-1].outputs
    return Tape(steps, [Spec((n,), np.dtype(np.float32))] * (last + 1), (0, 1), (last,), thread_pool(1), native)


# -- threads together --------------------------------------------------------------------------------------------


def _gained(threads: int, each: float) -> float:
    """The gain of each further thread for a shared product, as a fraction of the first thread."""
    m, k, n = SHARED
    a, b, out = np.ones((m, k), np.float32), np.ones((k, n), np.float32), np.empty((m, n), np.float32)
    alone = usual(lambda: np.matmul(a, b, out=out), 2 * each)
    with shared(threads, thread_pool(threads).each):
        together = usual(lambda: product(a, b, out), 3 * each)
    return (alone / together - 1) / (threads - 1)


def _handing_over(threads: int, each: float) -> float:
    """Overhead in seconds per call when threads share the blocks of a group."""
    calls, blocks = 8, 4 * threads
    arrays = [[np.ones(BLOCK, np.float32) for _ in range(3)] for _ in range(blocks)]

    def work(numbers: Iterator[int]) -> None:
        for i in numbers:
            x, y, out = arrays[i]
            for _ in range(calls):
                np.multiply(x, y, out)

    alone = usual(lambda: work(iter(range(blocks))), each)
    together = usual(lambda: thread_pool(threads).each(blocks, work), each)
    return max(together - alone / threads, 0.0) / (blocks * calls)
