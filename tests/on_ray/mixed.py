"""Scenes of clusters with different nodes. They run in a process that has its own cluster."""

from __future__ import annotations

import contextlib
import os
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import distgrad as dg
from distgrad.scheduler import cluster as clusters

from ..faults.training import GRANULARITY, Training, batch

STEPS = 4
STORE = 100 << 20

_cluster: list[Any] = []

#: Nodes whose environments would give other bits, each by something else.
ENVIRONMENTS: dict[str, dict[str, str]] = {
    "some": {"OPENBLAS_CORETYPE": "Prescott", "NPY_ENABLE_CPU_FEATURES": "X86_V3"},
    "others": {
        "OPENBLAS_CORETYPE": "Nehalem",
        "NPY_DISABLE_CPU_FEATURES": "X86_V3,X86_V4,AVX512_ICL",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA",
        "OPENBLAS_NUM_THREADS": "2",
        "OMP_NUM_THREADS": "2",
    },
}


def open_cluster() -> None:
    """A head with the driver and no cpu: what computes comes and goes."""
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    _cluster.append(cluster)


def close_cluster() -> None:
    import ray

    ray.shutdown()
    _cluster.pop().shutdown()


@contextlib.contextmanager
def nodes(*environments: Mapping[str, str], cpus: int = 1, **more: Any) -> Iterator[list[str]]:
    """Nodes with these environments; gives their ids."""
    cluster, more = _cluster[0], {"num_cpus": cpus, "object_store_memory": STORE, **more}
    added = [cluster.add_node(wait=False, env_vars=dict(env), **more) for env in environments]
    cluster.wait_for_nodes()
    try:
        yield [node.node_id for node in added]
    finally:
        for node in added:
            cluster.remove_node(node)


def session(**options: Any) -> dg.Session:
    return dg.Session("ray", timeout=120, granularity=GRANULARITY, **options)


class Trained(NamedTuple):
    bits: bytes
    #: The nodes that ran tasks.
    nodes: set[str]


def trained(session: dg.Session | None = None) -> Trained:
    """Some steps in a session, or in this process."""
    used: set[str] = set()
    with session or dg.Session(threads=1):
        training = Training()
        for i in range(STEPS):
            training.step(i)
            if session is not None and session.last_run is not None:
                used |= {token.node for token in session.last_run.tokens.values()}
        bits = b"".join([w.tobytes() for w in training.values()])
    return Trained(bits, used)


def other_version(folder: Path) -> dict[str, str]:
    """The environment of a node whose NumPy calls itself by another version."""
    (folder / "sitecustomize.py").write_text(
        textwrap.dedent("""
        import importlib.abc, sys

        class Finder(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name != "numpy.version":
                    return None
                sys.meta_path.remove(self)
                import importlib.util
                spec = importlib.util.find_spec(name)
                run = spec.loader.exec_module
                def exec_module(module):
                    run(module)
                    module.version = module.__version__ = "2.0.99"
                spec.loader.exec_module = exec_module
                return spec

        sys.meta_path.insert(0, Finder())
        """)
    )
    return {"PYTHONPATH": str(folder)}


def without_cloudpickle(folder: Path) -> dict[str, str]:
    """The environment of a node that cannot import cloudpickle."""
    (folder / "cloudpickle.py").write_text("raise ModuleNotFoundError(\"No module named 'cloudpickle'\")\n")
    return {"PYTHONPATH": str(folder)}


# -- the scenes --------------------------------------------------------------------------------------------------


class Differing(NamedTuple):
    """Trainings on nodes with three environments: three of them, one that agreed on nothing, and one in this process;
    what the plan says of its bits, and the excluded nodes."""

    runs: list[Trained]
    careless: Trained
    here: Trained
    bits: dict[str, str]
    excluded: dict[str, str]


def environments_differ() -> Differing:
    from distgrad.workers.on_ray.link import Link

    with nodes({}, *ENVIRONMENTS.values()):
        runs = [trained(session()) for _ in range(3)]
        with session() as opened:
            bits = Training()._step.plan(*batch(0)).bits
            excluded = dict(opened._planner.link.bits.excluded)  # type: ignore[union-attr]
        agree, Link.agree = Link.agree, lambda *_: None  # type: ignore[method-assign]
        try:
            careless = trained(session())
        finally:
            Link.agree = agree  # type: ignore[method-assign]
        return Differing(runs, careless, trained(), bits, excluded)


class Joined(NamedTuple):
    bits: bytes
    #: Nodes that ran tasks, and the reasons for which nodes got none.
    used: set[str]
    excluded: dict[str, str]
    late: str
    reasons: list[str]


def a_node_joins_late(make: Callable[[Path], dict[str, str]], folder: Path) -> tuple[Joined, bytes]:
    """A training on one node, which another one that cannot give the same bits joins after the first step."""
    with nodes({}):
        opened = session()
        used: set[str] = set()
        reasons: list[str] = []
        with opened:
            training = Training()
            training.step(0)
            with nodes(make(folder), cpus=3) as (late,):
                for i in range(1, STEPS):
                    training.step(i)
                    assert opened.last_run is not None
                    used |= {token.node for token in opened.last_run.tokens.values()}
                    reasons += opened.last_run.reasons
                bits = b"".join([w.tobytes() for w in training.values()])
                link, ends = opened._planner.link, time.monotonic() + 60
                assert link is not None
                while late not in link.bits.excluded and time.monotonic() < ends:  # its first task may come late
                    training.step(0)
                    reasons += opened.last_run.reasons
                excluded = dict(link.bits.excluded)
    return Joined(bits, used, excluded, late, reasons), trained().bits


def another_version(folder: Path) -> tuple[set[str], str, str, str, str, float]:
    """With a node of another version beside one like this process: the nodes that ran tasks, and the other one; the
    error where only that one has the label that an op asks for. Alone: the error, and what a session for any bits
    computes there."""
    env = other_version(folder)
    with nodes(env, labels={"zone": "far"}) as (other,):
        with nodes({}):
            used = trained(session()).nodes
            labelled = _refusal(_in_the_far_zone)
        error = _refusal(lambda: session().close())
        with session(bits="any"):
            found = float(dg.function(lambda x: dg.sum(x * 2.0))(np.ones(3)))
    return used, other, labelled, error, np.__version__, found


def _refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except dg.FingerprintError as e:
        return str(e)
    return ""


def _in_the_far_zone() -> None:
    """Runs an op that asks for a label, in a session whose cluster file says that a worker has it."""
    worker = clusters.Worker(1, 0, 1 << 30, {"zone": "far"}, 0)

    @dg.function
    def far(x: Any) -> Any:
        with dg.device("zone=far"):
            return dg.exp(x)

    with session(cluster=clusters.Cluster((worker,), name="ray", engine="ray")):
        far(np.ones(3))


def no_cloudpickle(folder: Path) -> str:
    with nodes({}, without_cloudpickle(folder)):
        try:
            session(bits="any").close()
        except ImportError as e:
            return str(e)
    return ""


def the_driver_differs() -> dict[str, Any]:
    """In a process whose own kernels are Haswell's: what a session computes of constants, and of the same numbers as
    arguments; what this process makes of them itself; and whether an op of the user's own can be folded."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 70, 300)).astype(np.float32)
    b = np.ascontiguousarray(b.T)

    @dg.op("HalfOf")
    def half(x: Any) -> Any:
        return x * np.float32(0.5)

    with dg.Session("ray", workers=1, object_store_memory=STORE, timeout=120) as opened:
        constants = dg.function(lambda: half(dg.constant(a) @ dg.constant(b)))
        folded, plan = constants(), constants.plan()
        computed = dg.function(lambda x, y: half(x @ y))(a, b)
        link = opened._planner.link
        assert link is not None
        found = {
            "folded": folded.tobytes(),
            "computed": computed.tobytes(),
            "own": (a @ b * np.float32(0.5)).tobytes(),
            "products": [step.type for step in plan.program.steps if step.type == "MatMul"],
            "folds here": link.bits.folds,
            "kernels": plan.bits["blas kernels"],
            "told": os.environ["OPENBLAS_CORETYPE"],
            "machine": plan.bits["machine"],
        }
        return found | {"flushed": _flushed(a)}


def _flushed(x: Any) -> str:
    """The error after a kernel of the user's has switched on that its process flushes denormals to zero."""

    @dg.op("FastMath")
    def fast_math(x: Any) -> Any:
        import ctypes

        libm, state = ctypes.CDLL("libm.so.6"), (ctypes.c_uint32 * 8)()
        libm.fegetenv(state)
        state[7] |= 0x8040
        libm.fesetenv(state)
        return x

    double = dg.function(lambda x: x + x)
    double(x)
    dg.function(lambda x: fast_math(x))(x)
    try:
        double(x)
    except dg.FingerprintError as e:
        return str(e)
    return ""
