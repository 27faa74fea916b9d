"""Devices: where a step may run. The text that a user gives to `dg.device`, what it asks for, and who can serve it.

Graphs keep any text, as gradients go beside their forward ops by it. Its meaning is settled here, where plans are made:
`parse` reads it, the pass `canonical` gives a program one spelling for each device, and `check_devices` refuses what a
cluster does not have, before anything runs.
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
#: So many labels of a cluster are named in an error.
MAX_NAMED_LABELS = 8


@dataclass(frozen=True, slots=True)
class Device:
    """What a step asks of its worker; by default nothing, so that any worker will do.

    >>> str(Device(gpus=1, worker=2)), str(Device())
    ('worker:2,gpu', 'cpu')
    """

    #: GPUs that a task there gets.
    gpus: int = 0
    #: Which GPU, of those of the workers that the rest allows, counted in their order; None: any. The task runs on the
    #: worker that has it; which of its GPUs a worker then takes is left to the worker.
    gpu: int | None = None
    worker: int | None = None
    #: (key, value), by key.
    labels: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        parts = [] if self.worker is None else [f"worker:{self.worker}"]
        if self.gpus:
            parts.append("gpu" if self.gpu is None else f"gpu:{self.gpu}")
        return ",".join([*parts, *(f"{key}={value}" for key, value in self.labels)]) or "cpu"


ANYWHERE = Device()

# -- reading -----------------------------------------------------------------------------------------------------

#: A term of a device and what it says. `task` and what says nothing here are TensorFlow's.
_TERM = re.compile(
    r"(?P<nothing>|cpu(:0)?|job:(worker|localhost)|replica:0)"
    r"|(?P<gpu>gpu)(:(?P<index>\d+))?"
    r"|(worker|task):(?P<worker>\d+)",
    re.IGNORECASE | re.ASCII,
)


@lru_cache(maxsize=1024)
def parse(text: str | None) -> Device:
    """The device that a text names; ValueError for one that names none.

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
                raise ValueError(f"device {text!r} asks for two things at once ({term!r} is one). {ALLOWED}")
    labels = sorted((key[1:], value) for key, value in said.items() if key.startswith("="))
    gpu, worker = (int(said[key]) if said.get(key) else None for key in ("index", "worker"))
    return Device(int(said.get("kind") == "gpu"), gpu, worker, tuple(labels))


def _terms(text: str) -> list[str]:
    """Those between commas, or between the slashes of TensorFlow's spelling."""
    if text.startswith("/"):
        text = re.sub(r"/device:", "/", text, flags=re.IGNORECASE).replace(":*", "").replace("/", ",")
    return [term.strip() for term in text.split(",")]


def _meaning(term: str, text: str | None) -> list[tuple[str, str]]:
    """What a term says, as pairs of which no two may contradict each other; those of labels begin with "="."""
    key, equals, value = (part.strip() for part in term.partition("="))
    if equals and key and value and "=" not in value:
        return [(f"={key}", value)]
    found = _TERM.fullmatch(term)
    if found is None:
        close = difflib.get_close_matches(term.lower(), ("cpu", "gpu", "worker:0"), 1, 0.6)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise ValueError(f"device {text!r} has {term!r} in it, which names no device{hint} {ALLOWED}")
    if found["nothing"] is not None:
        return [("kind", "cpu")] if term.lower().startswith("cpu") else []
    if found["gpu"]:
        return [("kind", "gpu"), ("index", found["index"] or "")]
    return [("worker", str(int(found["worker"])))]


# -- who serves it -----------------------------------------------------------------------------------------------


def workers_of(device: Device, cluster: Cluster) -> Sequence[int]:
    """The workers that a device allows, ascending; none where the cluster has no such device."""
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
    """DeviceError at the first step whose device no worker of the cluster can serve with so many cpus."""
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
    """What of it is missing: the first part that no worker has, or a worker that has all parts."""
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
    return "no worker has all of that at once"


def _labels(cluster: Cluster) -> Counter[str]:
    """The labels of the cluster, and how many workers have each."""
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
    """A step as errors name it; of a group, the first in it."""
    first = step.body[0] if step.body else step
    return f"op {first.name!r} (type {first.type}, at {first.source})"


def counted(n: int, what: str) -> str:
    """
    >>> counted(1, "cpu"), counted(2000, "GPU")
    ('1 cpu', '2,000 GPUs')
    """
    return f"{n:,} {what}" + ("" if n == 1 else "s")
