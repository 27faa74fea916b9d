"""Devices: where a step may run, as given to `dg.device`, and which workers match.

Graphs keep any device string, so that gradients are placed with their forward ops. It is interpreted here, at planning
time: `parse` reads it, the pass `canonical` gives each device one spelling, and `check_devices` rejects devices that
the cluster does not have, before anything runs.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from distgrad.errors import DeviceError
from distgrad.scheduler.cluster import Cluster

if TYPE_CHECKING:
    from distgrad.scheduler.program import Program, Step

ALLOWED = (
    "A device is 'cpu', 'gpu' (any GPU), 'gpu:1' (GPU 1 of the cluster), 'worker:2', a label of workers such as "
    "'zone=eu-1', or several of these with commas between them: 'gpu,zone=eu-1'."
)
#: Maximum number of labels listed in an error message.
MAX_NAMED_LABELS = 8


@dataclass(frozen=True, slots=True)
class Device:
    """What a step requires of its worker. The default accepts any worker.

    >>> str(Device(gpus=1, worker=2)), str(Device())
    ('worker:2,gpu', 'cpu')
    """

    #: Number of GPUs of a task on this device.
    gpus: int = 0
    #: Index of a GPU, counted over the workers that the other fields allow; None for any. It selects the worker that
    #: owns this GPU; the worker may then use any of its GPUs.
    gpu: int | None = None
    worker: int | None = None
    #: Required labels as (key, value), sorted by key.
    labels: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        parts = [] if self.worker is None else [f"worker:{self.worker}"]
        if self.gpus:
            parts.append("gpu" if self.gpu is None else f"gpu:{self.gpu}")
        return ",".join([*parts, *(f"{key}={value}" for key, value in self.labels)]) or "cpu"


ANYWHERE = Device()

# -- reading -----------------------------------------------------------------------------------------------------

#: One term of a device string. `task`, `job` and `replica` are TensorFlow's spelling.
_TERM = re.compile(
    r"(?P<nothing>|cpu(:0)?|job:(worker|localhost)|replica:0)"
    r"|(?P<gpu>gpu)(:(?P<index>\d+))?"
    r"|(worker|task):(?P<worker>\d+)",
    re.IGNORECASE | re.ASCII,
)


@lru_cache(maxsize=1024)
def parse(text: str | None) -> Device:
    """Parse a device string; ValueError if it is not a device.

    >>> parse("GPU") == parse("/device:GPU:*") == Device(gpus=1)
    True
    >>> parse("/job:worker/task:2") == parse("worker:2") == Device(worker=2)
    True
    >>> parse("zone=eu-1, accelerator=H100").labels
    (('accelerator', 'H100'), ('zone', 'eu-1'))
    """
    said: dict[str, str] = {}
    for term in _terms(text or ""):
        for key, value in _meaning(term, text):
            if said.setdefault(key, value) != value:
                raise ValueError(f"device {text!r} contradicts itself at {term!r}. {ALLOWED}")
    labels = sorted((key[1:], value) for key, value in said.items() if key.startswith("="))
    gpu, worker = (int(said[key]) if said.get(key) else None for key in ("index", "worker"))
    return Device(int(said.get("kind") == "gpu"), gpu, worker, tuple(labels))


def _terms(text: str) -> list[str]:
    """The terms between commas, or between slashes in TensorFlow's spelling."""
    if text.startswith("/"):
        text = re.sub(r"/device:", "/", text, flags=re.IGNORECASE).replace(":*", "").replace("/", ",")
    return [term.strip() for term in text.split(",")]


def _meaning(term: str, text: str | None) -> list[tuple[str, str]]:
    """The meaning of a term as (key, value) pairs, which must not contradict each other. Label keys begin with "="."""
    key, equals, value = (part.strip() for part in term.partition("="))
    if equals and key and value and "=" not in value:
        return [(f"={key}", value)]
    found = _TERM.fullmatch(term)
    if found is None:
        close = difflib.get_close_matches(term.lower(), ("cpu", "gpu", "worker:0"), 1, 0.6)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise ValueError(f"device {text!r} contains {term!r}, which is not a device{hint} {ALLOWED}")
    if found["nothing"] is not None:
        return [("kind", "cpu")] if term.lower().startswith("cpu") else []
    if found["gpu"]:
        return [("kind", "gpu"), ("index", found["index"] or "")]
    return [("worker", str(int(found["worker"])))]


# -- who serves it -----------------------------------------------------------------------------------------------


def workers_of(device: Device, cluster: Cluster) -> Sequence[int]:
    """The workers that match a device, in ascending order; empty if the cluster has none."""
    workers = cluster.workers
    if device == ANYWHERE:
        return range(len(workers))
    found = range(len(workers)) if device.worker is None else [w for w in (device.worker,) if w < len(workers)]
    fit = [w for w in found if all(workers[w].labels.get(key) == value for key, value in device.labels)]
    if device.gpu is None:
        return [w for w in fit if workers[w].gpus >= device.gpus]
    owners = [w for w in fit for _ in range(workers[w].gpus)]
    return owners[device.gpu : device.gpu + 1]


def check_devices(program: Program, cluster: Cluster, cpus: int) -> None:
    """Raise DeviceError at the first step with a device that no worker with at least `cpus` cpus matches."""
    for text in dict.fromkeys([step.device for step in program.steps]):
        device = parse(text)
        found = workers_of(device, cluster)
        most = max([cluster.workers[w].cpus for w in found], default=0)
        if most >= cpus:
            continue
        step = next(step for step in program.steps if step.device == text)
        why = _why_not(device, cluster)
        if found:
            why = f"a task gets {counted(cpus, 'cpu')}, and no worker there has more than {most}: lower cpus_per_task"
        raise DeviceError(
            f"{op_text(step)} asks for device {str(device)!r}, but {why}. Cluster {cluster.name!r} has "
            f"{_has(cluster)}. Place the op elsewhere with distgrad.device, or give the session a cluster that can "
            f"serve it."
        )


def _why_not(device: Device, cluster: Cluster) -> str:
    """Why no worker matches: the first requirement that none meets, or that none meets all of them."""
    last = len(cluster.workers) - 1
    if device.worker is not None and device.worker > last:
        return f"the workers are worker:0 to worker:{last}" if last else "there is one worker, worker:0"
    if device.gpus and not cluster.gpus:
        return "no worker has a GPU"
    for key, value in device.labels:
        if not workers_of(Device(labels=((key, value),)), cluster):
            return f"no worker has the label '{key}={value}'{_nearest(f'{key}={value}', _labels(cluster))}"
    if device.gpu is not None and (there := workers_of(replace(device, gpu=None), cluster)):
        return f"there the GPUs are gpu:0 to gpu:{sum(cluster.workers[w].gpus for w in there) - 1}"
    return "no worker has all of these at once"


def _labels(cluster: Cluster) -> Counter[str]:
    """The labels of the cluster with the number of workers that have each."""
    return Counter([f"{key}={value}" for worker in cluster.workers for key, value in worker.labels.items()])


def _nearest(label: str, labels: Iterable[str]) -> str:
    close = difflib.get_close_matches(label, list(labels), 1, 0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _has(cluster: Cluster) -> str:
    labels = _labels(cluster)
    named = [f"{label} ({counted(n, 'worker')})" for label, n in sorted(labels.items())[:MAX_NAMED_LABELS]]
    named += [f"{len(labels) - MAX_NAMED_LABELS} more"] if len(labels) > MAX_NAMED_LABELS else []
    gpus = counted(cluster.gpus, "GPU") if cluster.gpus else "no GPUs"
    room = f"{counted(len(cluster.workers), 'worker')}, {counted(cluster.cpus, 'cpu')}, {gpus}"
    return f"{room} and {'the labels ' + ', '.join(named) if named else 'no labels'}"


def op_text(step: Step) -> str:
    """A step as named in error messages; for a group, its first step."""
    first = step.body[0] if step.body else step
    return f"op {first.name!r} (type {first.type}, at {first.source})"


def counted(n: int, what: str) -> str:
    """
    >>> counted(1, "cpu"), counted(2000, "GPU")
    ('1 cpu', '2,000 GPUs')
    """
    return f"{n:,} {what}" + ("" if n == 1 else "s")
