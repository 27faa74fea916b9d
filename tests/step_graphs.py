"""Programs built directly from steps, without a graph: small drawn ones, and large ones that are fast to build."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgrad.errors import Source
from distgrad.scheduler.cluster import Cluster, Machine, Worker, local_cluster
from distgrad.scheduler.program import Program, Step, check_program
from distgrad.types import Shape, Spec

from .random_graphs import Choose

F = np.dtype("float32")
PRODUCT = {"transpose_a": False, "transpose_b": False}
#: A product of two such matrices takes about 35 ms on one cpu of `ray_cluster`: long enough for a task on Ray.
LONG: Shape = (1024, 1024)
#: A product of two such matrices takes about 20 µs.
SHORT: Shape = (64, 64)


class Steps:
    """A builder of float32 steps; `given` and `add` return value ids."""

    def __init__(self, shape: Shape = SHORT):
        self.shape = shape
        self.types: list[Spec] = []
        self.steps: list[Step] = []
        self.feeds: list[int] = []

    def value(self, shape: Shape | None = None) -> int:
        self.types.append(Spec(self.shape if shape is None else shape, F))
        return len(self.types) - 1

    def given(self, shape: Shape | None = None) -> int:
        self.feeds.append(self.value(shape))
        return self.feeds[-1]

    def add(self, type: str, *inputs: int, after: Sequence[int] = (), device: str | None = None, **options: Any) -> int:
        out = self.value(options.get("shape"))
        attrs = PRODUCT if type == "MatMul" else options.get("attrs", {})
        source = Source("/home/me/train.py", len(self.steps) + 1, "loss")
        name = f"{type}_{len(self.steps)}"
        self.steps.append(Step(type, inputs, (out,), attrs, tuple(after), source, name, device))
        return out

    def work(self, *inputs: int, **options: Any) -> int:
        """A product: of the one input with itself, or of the first two."""
        return self.add("MatMul", *(inputs * 2)[:2], **options)

    def tree(self, terms: Sequence[int], fan_in: int = 4) -> int:
        """A reduce tree, as lowering makes it."""
        level = list(terms)
        while len(level) > 1:
            parts = [level[i : i + fan_in] for i in range(0, len(level), fan_in)]
            level = [self.add("AddN", *part) if len(part) > 1 else part[0] for part in parts]
        return level[0]

    def program(self, *fetches: int) -> Program:
        return check_program(Program(tuple(self.steps), tuple(self.types), tuple(self.feeds), fetches))


def chain(length: int, shape: Shape = SHORT) -> Program:
    """x -> work -> work -> ... -> y"""
    s = Steps(shape)
    v = s.given()
    for _ in range(length):
        v = s.work(v)
    return s.program(v)


def towers(count: int, length: int, shape: Shape = LONG) -> Program:
    """`count` times x_i -> work -> ... -> work, added by a reduce tree."""
    s = Steps(shape)
    ends = []
    for _ in range(count):
        v = s.given()
        for _ in range(length):
            v = s.work(v)
        ends.append(v)
    return s.program(s.tree(ends))


def random_steps(n: int, choose: Choose, span: int = 12, devices: Sequence[str | None] = (None,)) -> Program:
    """n steps of random types on random earlier values, some of them with waits."""
    s = Steps()
    s.given()
    for i in range(n):
        kind = choose(("MatMul", "Tanh", "AddN", "Const", "Transpose"))
        count = {"MatMul": 2, "AddN": choose((1, 2, 3)), "Const": 0}.get(kind, 1)
        near = range(max(0, len(s.types) - span), len(s.types))
        inputs = [choose(near) for _ in range(count)]
        after = [choose(range(i))] if i and choose(range(6)) == 0 else []
        attrs = {"value": np.zeros(SHORT, F)} if kind == "Const" else {"axes": (1, 0)} if kind == "Transpose" else {}
        s.add(kind, *inputs, after=after, device=choose(devices), attrs=attrs)
    return s.program(*{len(s.types) - 1, choose(range(len(s.types)))})


def ray_cluster(workers: int, cpus: int = 1, nodes: int = 1, **options: Any) -> Cluster:
    """A Ray cluster with these workers, distributed over nodes."""
    machine = Machine(gemm_flops=6e10, task_seconds=2e-3)
    made = tuple([Worker(cpus, node=i % nodes, **options) for i in range(workers)])
    return Cluster(made, machine, "test", "ray")


def this_process(cpus: int = 2) -> Cluster:
    """This process with fixed rates instead of measured ones, for tests that count tasks."""
    return local_cluster(cpus, 8 << 30, Machine())
