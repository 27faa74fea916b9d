"""The targets, as tables, and the verdicts on the measurements. Imports no framework."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

PEERS = ("jax", "torch", "torch-compile", "tf", "tf-xla")


@dataclass
class Row:
    """What was measured of one framework in one workload; `error` says why there is nothing."""

    seconds: float | None = None  # a step, the median of the rounds
    first: float | None = None  # the first step, with whatever is traced and compiled
    peak: int | None = None  # bytes over what the process had after its imports, and of a gradient step with its inputs
    peak_of_step: int | None = None  # the same without what tracing keeps
    predicted: dict[str, float] | None = None
    difference: float | None = None  # of loss and gradients from distgrad's, relative to the largest element of each
    error: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    rounds: list[float] = field(default_factory=list)

    @property
    def least(self) -> float | None:
        return min(self.rounds, default=None)

    def plain(self) -> dict[str, Any]:
        return asdict(self)


Table = Mapping[str, Row]
Tables = Mapping[str, Table]


class Bar(NamedTuple):
    """In `workload`, the row `of` may take at most `limit` times the best of `peers`."""

    workload: str
    of: str
    peers: tuple[str, ...]
    limit: float


PRODUCTS = ("numpy",)

TIME = (
    Bar("mlp", "distgrad", PEERS, 1.05),
    Bar("gpt", "distgrad", PEERS, 1.0),
    Bar("gpt", "distgrad", PRODUCTS, 1.25),
    Bar("gpt-numpy", "distgrad", PEERS, 1.0),
    Bar("gpt-numpy", "distgrad", PRODUCTS, 1.25),
    Bar("gpt2", "distgrad", ("torch",), 0.7),
    Bar("elementwise", "distgrad", PEERS, 0.8),
    Bar("conv", "distgrad", PEERS, 1.05),
    Bar("small", "distgrad", PEERS, 1.0),
    Bar("call", "distgrad", PEERS, 1.0),
    Bar("mlp", "distgrad-torch", ("torch",), 1.0),
    Bar("gpt", "distgrad-torch", ("torch",), 1.0),
    Bar("conv", "distgrad-torch", ("torch",), 1.0),
)
#: Not `small` and `call`: their arrays have 64 bytes, so memory there is code.
LARGE = ("mlp", "gpt", "gpt-numpy", "elementwise", "conv")
MEMORY = (
    *(Bar(workload, "distgrad", PEERS, 1.2) for workload in LARGE),
    Bar("gpt2", "distgrad", ("torch",), 1.0),
)
#: Of the first step: with tracing, planning and compiling, and an empty cache of compiled code.
FIRST = (
    Bar("gpt", "distgrad", ("jax",), 0.5),
    Bar("gpt-numpy", "distgrad", ("jax",), 0.5),
    Bar("small", "distgrad", ("jax",), 1.0),
)
#: Seconds of the first step of a process that finds its code in the cache.
FIRST_AGAIN = {"gpt": 1.0, "gpt-numpy": 1.0}
#: A session that records and has a timeout, beside one that does neither. Not `small` and `call`, which take
#: microseconds: what is recorded of a run takes as long.
WATCHED = tuple(Bar(workload, "distgrad-watched", ("distgrad",), 1.03) for workload in LARGE)
CALL_SECONDS = 100e-6
PREDICTED_SECONDS = 0.15
PREDICTED_BYTES = 0.10
#: Frameworks sum in different orders; a wrong gradient is off by far more.
DIFFERENCE = 1e-3


class Verdict(NamedTuple):
    what: str
    value: str
    limit: str
    reached: bool | None  # None: there is nothing to compare with


def judge(tables: Tables) -> list[Verdict]:
    return [
        *_same(tables),
        *_all_compared("time", (*TIME, *WATCHED), tables, "seconds"),
        *_all_compared("first step", FIRST, tables, "first"),
        *_again(tables),
        *_all_compared("peak memory", MEMORY, tables, "peak"),
        *_call(tables),
        *_predictions(tables),
    ]


def best(table: Table, what: str, names: tuple[str, ...] = PEERS) -> float | None:
    """The least of an attribute over those rows that have it."""
    found = [getattr(table[name], what) for name in names if name in table]
    return min((value for value in found if value is not None), default=None)


def ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _same(tables: Tables) -> Iterator[Verdict]:
    for workload, table in tables.items():
        for name, row in table.items():
            if row.difference is not None and not row.difference <= DIFFERENCE:  # NaN is not
                yield Verdict(f"{workload}: {name} gives distgrad's numbers", f"{row.difference:.1g}", "1e-03", False)


def _all_compared(what: str, bars: Iterable[Bar], tables: Tables, attribute: str) -> Iterator[Verdict]:
    for bar in bars:
        if bar.of in tables.get(bar.workload, {}):
            yield _compared(what, bar, tables[bar.workload], attribute)


def _again(tables: Tables) -> Iterator[Verdict]:
    for workload, limit in FIRST_AGAIN.items():
        first = tables.get(workload, {}).get("distgrad-watched", Row()).first
        if first is not None:
            yield Verdict(f"{workload}: first step, code cached", f"{first:.2f} s", f"{limit:g} s", first <= limit)


def _compared(what: str, bar: Bar, table: Table, attribute: str) -> Verdict:
    value = ratio(getattr(table[bar.of], attribute), best(table, attribute, bar.peers))
    against = {PEERS: "the best peer", PRODUCTS: "its products"}.get(bar.peers, bar.peers[0])
    reached = None if value is None else value <= bar.limit
    if table[bar.of].error:
        reached = False
    return Verdict(f"{bar.workload}: {what} of {bar.of} / {against}", _figure(value), f"{bar.limit:g}", reached)


def _call(tables: Tables) -> Iterator[Verdict]:
    table = tables.get("call", {})
    if "distgrad" not in table or "numpy" not in table:
        return
    ours, ufuncs = table["distgrad"].seconds, table["numpy"].seconds
    if ours is not None and ufuncs is not None:
        beyond = ours - ufuncs
        limit = f"{CALL_SECONDS * 1e6:.0f} us"
        yield Verdict("call: beyond its kernels", f"{beyond * 1e6:.0f} us", limit, beyond <= CALL_SECONDS)


def _predictions(tables: Tables) -> Iterator[Verdict]:
    """Of what fills memory and time with arrays; see MEMORY."""
    for workload in [bar.workload for bar in MEMORY if bar.workload in tables]:
        row = tables[workload].get("distgrad", Row())
        if row.predicted is not None:
            seconds, peak = row.predicted["seconds"], row.predicted["peak_bytes"]
            yield _near(f"{workload}: predicted / measured time", seconds, row.seconds, PREDICTED_SECONDS)
            yield _near(f"{workload}: predicted / measured memory", peak, row.peak_of_step, PREDICTED_BYTES)


def _near(what: str, predicted: float, measured: float | None, within: float) -> Verdict:
    value = ratio(predicted, measured)
    reached = None if value is None else abs(value - 1) <= within
    return Verdict(what, _figure(value), f"1 +- {within:g}", reached)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
