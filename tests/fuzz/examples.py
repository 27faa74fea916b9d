"""Valid calls that the fuzz test corrupts: those of the rows of the op table, and some of everything else."""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

import distgrad as dg
from distgrad.scheduler.cluster import local_cluster
from distgrad.scheduler.program import lower

from ..cases import all_cases, composed


class Example(NamedTuple):
    """A call that works. What is not an array is made anew for each call by `make`, which gives function and args."""

    name: str
    make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]
    #: Whether it belongs into a graph, outside any, or either.
    where: str = "either"


SPACES = {"": dg, "nn.": dg.nn, "linalg.": dg.linalg, "random.": dg.random}


def builders() -> dict[str, FunctionType]:
    """The functions of distgrad/ops under the names by which a user calls them."""
    named = {prefix + name: getattr(space, name) for prefix, space in SPACES.items() for name in space.__all__}
    return {k: f for k, f in named.items() if isinstance(f, FunctionType) and f.__module__.startswith("distgrad.ops.")}


@contextlib.contextmanager
def recording(found: dict[str, list[Any]]) -> Iterator[None]:
    """Notes every call of a public function that goes through its module."""
    before = builders()

    def recorder(name: str, f: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            found.setdefault(name, []).append((args, kwargs))
            return f(*args, **kwargs)

        return call

    for name, f in before.items():
        space, _, short = name.rpartition(".")
        setattr(SPACES[space + "." if space else ""], short, recorder(name, f))
    try:
        yield
    finally:
        for name, f in before.items():
            space, _, short = name.rpartition(".")
            setattr(SPACES[space + "." if space else ""], short, f)


def recorded() -> list[Example]:
    """One example for each way in which the rows of the op table call a function."""
    found: dict[str, list[Any]] = {}
    with recording(found):
        for cases in (all_cases() | composed.CASES).values():
            for case in cases:
                with contextlib.suppress(Exception):
                    case.build(*case.inputs)
    known = builders()
    made = [
        Example(name, lambda name=name, args=args, kwargs=kwargs: (known[name], args, kwargs))
        for name, calls in found.items()
        for args, kwargs in calls[:12]
    ]
    missing = known.keys() - found.keys()
    return made + [Example(name, lambda name=name: (known[name], (X, X), {})) for name in sorted(missing)]


@functools.cache
def sandbox() -> str:
    """Where everything is written; relative paths among the junk lead here, and not out of it."""
    root = tempfile.mkdtemp(prefix="distgrad-fuzz-")
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    inner = os.path.join(root, "a", "b")
    os.makedirs(inner)
    return inner


def folder() -> str:
    return tempfile.mkdtemp(dir=sandbox())


X = np.array([1.0, 2.0, 3.0])
M = np.array([[2.0, 0.5], [0.5, 1.0]])


def square(x: Any) -> Any:
    return dg.sum(dg.square(x))


def identity(x: Any) -> Any:
    return x


def pair(x: Any) -> Any:
    return dg.square(x), lambda dy: dy


def methods(name: str, make: Callable[[], Any], where: str = "either", **calls: tuple[Any, ...]) -> list[Example]:
    """Examples of methods: by keyword, the arguments of each."""

    def example(method: str, args: tuple[Any, ...]) -> Example:
        return Example(f"{name}.{method}", lambda: (getattr(make(), method), args, {}), where)

    return [example(method, args) for method, args in calls.items()]


def plain(called: str, f: Any, /, *args: Any, where: str = "either", **kwargs: Any) -> Example:
    return Example(called, lambda: (f, args, kwargs), where)


def graph() -> Any:
    with dg.Graph() as made:
        x = dg.placeholder(3, name="x")
        dg.exp(x, name="y")
    return made


def tensor() -> Any:
    with graph() as made:
        return made.ops[-1].outputs[0]


def slices() -> Any:
    return dg.IndexedSlices(np.ones((2, 3)), np.array([0, 2]), (4, 3))


def run(session: Any = None) -> Callable[..., Any]:
    def call(fetches: Any, feed_dict: Any = None, **options: Any) -> Any:
        return (session or dg.Session()).run(fetches, feed_dict, **options)

    return call


def fed() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    made = graph()
    return run(), ([made.ops[-1].outputs[0], {"a": made.ops[0].outputs[0]}], {made.ops[0].outputs[0]: X}), {}


def differentiated() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    made = graph()
    y, x = made.ops[-1].outputs[0], made.ops[0].outputs[0]
    return dg.gradients, ([y], [x]), {"grad_ys": [X], "stop_gradients": [x], "name": "g", "gate_gradients": True}


def second() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    made = graph()
    return dg.hessians, (made.ops[-1].outputs[0], made.ops[0].outputs[0]), {}


def product() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    made = graph()
    return dg.hessian_vector_product, (made.ops[-1].outputs[0], made.ops[0].outputs[0], X), {}


def explained() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    made = graph()
    return dg.explain_gradient, (made.ops[-1].outputs[0], made.ops[0].outputs[0]), {}


def scope(f: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with f(*args, **kwargs):
            return dg.constant(1.0)

    return call


def saved() -> str:
    path = folder()
    dg.save_checkpoint(path, {"w": dg.Variable(X)}, step=1)
    return path


def tensor_file() -> str:
    import glob

    return glob.glob(f"{saved()}/data-*/*.safetensors")[0]


def series() -> Any:
    made = dg.Checkpoints(folder())
    made.save(1, {"w": dg.Variable(X)})
    return made


@dg.Defun()
def defined(x: Any) -> Any:
    return x * 2.0


def user_op(op_type: str, **options: Any) -> Any:
    return dg.op(op_type, override=True, **options)(lambda x, scale=2.0: x * scale)(X)


SCOPES = [dg.name_scope, dg.device, dg.control_dependencies]


def others() -> list[Example]:
    """What is not a function of arrays."""
    functions = [dg.grad, dg.value_and_grad, dg.jacobian, dg.hessian]
    return [
        *[plain(f.__name__, lambda f, *a, _f=f, **k: _f(f, **k)(*a), square, X, argnums=0) for f in functions],
        *[plain(f.__name__, f, square, argnums=0) for f in functions],
        plain("vjp", dg.vjp, square, X),
        plain("vjp", lambda g: dg.vjp(identity, X)[1](g), X),
        plain("jvp", dg.jvp, square, (X,), (X,)),
        plain("hvp", dg.hvp, square, (X,), (X,)),
        plain("function", dg.function, square, name="f"),
        plain("function", lambda *a, **k: dg.function(identity)(*a, **k), X),
        plain("function.plan", dg.function(square).plan, X, where="outside"),
        plain("function.body", dg.function(square).body, X, where="outside"),
        plain("Defun", lambda *types, **k: dg.Defun(*types, **k)(identity)(X), np.float64, func_name="f"),
        plain("Defun", defined, X),
        plain("Defun", lambda f: dg.Defun()(f), identity),
        plain("custom_gradient", lambda f, *a: dg.custom_gradient(f)(*a), pair, X),
        plain("recompute_grad", lambda f, *a: dg.recompute_grad(f)(*a), square, X),
        plain("grad_pass_through", lambda f, *a: dg.grad_pass_through(f)(*a), identity, X),
        plain(
            "data_parallel",
            lambda f, n, x, **k: dg.data_parallel(f, n, **k)(x),
            square,
            2,
            np.ones((4, 2)),
            reduction="sum",
        ),
        plain("data_parallel", dg.data_parallel, square, 2, batch=(0,), reduction="mean"),
        plain("raw_ops.SymbolicGradient", dg.raw_ops.SymbolicGradient, input=[X, X], Tout=[np.float64], f=defined),
        plain("RegisterGradient", lambda t, f, **k: dg.RegisterGradient(t, **k)(f), "FuzzOp", identity, override=True),
        plain("no_gradient", dg.no_gradient, "FuzzOther", override=True),
        plain("op", user_op, "FuzzUser"),
        plain("op", lambda *a, **k: dg.op("FuzzMine", override=True)(square)(*a, **k), X),
        plain("check_graph", lambda g: dg.check_graph(g), graph()),
        plain("IndexedSlices", dg.IndexedSlices, np.ones((2, 3)), np.array([0, 2]), (4, 3)),
        plain("IndexedSlicesValue", dg.IndexedSlicesValue, np.ones((2, 3)), np.array([0, 2]), (4, 3)),
        plain("Variable", dg.Variable, X, name="v", trainable=True, dtype="float64"),
        plain("Variable", dg.Variable, lambda: X, name="v"),
        plain("testing.check_grads", dg.testing.check_grads, square, [X], 1, step=1e-3),
        plain(
            "Session",
            lambda **k: dg.Session(**k).run(None),
            threads=1,
            memory="1 GiB",
            check_numerics=True,
            where="outside",
        ),
        Example("Session.run", fed, "outside"),
        Example("gradients", differentiated),
        Example("hessians", second),
        Example("hessian_vector_product", product),
        Example("explain_gradient", explained),
        Example("Session.plan", lambda: (dg.Session().plan, ([tensor()],), {}), "outside"),
        Example("Session.run closed", lambda: (run(closed()), ([tensor()],), {}), "outside"),
        plain("Session.submit", lambda f, *a: dg.Session().submit(f, *a), dg.function(identity), X, where="outside"),
        *[plain(f.__name__, scope(f), arg) for f, arg in zip(SCOPES, ("layer", "cpu", []), strict=True)],
        *methods("Graph", graph, get_operation_by_name=("y",), get_tensor_by_name=("y:0",), as_default=()),
        *[
            plain(f"Graph.{f}", lambda *a, _f=f: scope(getattr(graph(), _f))(*a), arg)
            for f, arg in (
                ("name_scope", "a"),
                ("device", "cpu"),
                ("control_dependencies", []),
                ("gradient_override_map", {"Exp": "Exp"}),
            )
        ],
        *methods(
            "Tensor",
            tensor,
            sum=(0,),
            reshape=(3, 1),
            transpose=(0,),
            astype=("float32",),
            clip=(0.0, 1.0),
            dot=(X,),
            take=(0,),
            repeat=(2,),
            argsort=(0,),
            cumsum=(0,),
            std=(0,),
            squeeze=(None,),
            round=(1,),
            __getitem__=(0,),
            __add__=(X,),
            __matmul__=(X,),
            __pow__=(2,),
            __rsub__=(X,),
            __lt__=(0,),
            __and__=(X,),
            item=(),
            tolist=(),
            swapaxes=(0, 0),
            diagonal=(0,),
            trace=(0,),
            max=(0,),
            flatten=("C",),
            sort=(),
            __setitem__=(0, 1.0),
            __contains__=(1.0,),
            __bool__=(),
        ),
        *methods(
            "Variable",
            lambda: dg.Variable(X, name="v"),
            assign=(X,),
            assign_add=(X,),
            assign_sub=(X,),
            sum=(0,),
            __getitem__=(0,),
            __add__=(X,),
            __matmul__=(X,),
            read=(),
            numpy=(),
            __array__=("float64",),
            item=(),
            reshape=(3, 1),
        ),
        *methods(
            "IndexedSlices",
            slices,
            with_values=(np.ones((2, 3)),),
            fits=((4, 3),),
            __add__=(M,),
            sum=(0,),
            __getitem__=(0,),
        ),
        *methods(
            "Handle",
            lambda: dg.Session().submit(dg.function(identity), X),
            "outside",
            numpy=(),
            value=(),
            __array__=("float32",),
        ),
        *methods(
            "Checkpoints",
            series,
            "outside",
            save=(2, {"w": dg.Variable(X)}),
            restore=({"w": dg.Variable(X)},),
            path=(1,),
            steps=(),
        ),
        plain("Checkpoints", lambda *a, **k: dg.Checkpoints(*a, **k).steps(), saved(), keep=2, where="outside"),
        plain(
            "save_checkpoint",
            dg.save_checkpoint,
            folder(),
            {"w": dg.Variable(X)},
            step=1,
            metadata={"a": 1},
            where="outside",
        ),
        plain("restore_checkpoint", dg.restore_checkpoint, saved(), {"w": dg.Variable(X)}, where="outside"),
        plain("from_checkpoint", lambda *a: dg.from_checkpoint(*a)(), saved(), "w", where="outside"),
        plain("latest_checkpoint", dg.latest_checkpoint, saved(), where="outside"),
        plain("load_tensor", dg.load_tensor, tensor_file(), "w", shape=(3,), dtype="float64"),
        plain("local_cluster", local_cluster, 2, 1 << 30),
        plain("lower", lower, [tensor()], [], where="outside"),
        plain("Plan.explain", lambda top: dg.function(square).plan(X).explain(top), 3, where="outside"),
        plain("numpy", np.sum, X, axis=0),
        plain("numpy", np.concatenate, [X, X], axis=0),
        plain("numpy", np.einsum, "i,i", X, X),
        plain("numpy", np.clip, X, 0.0, 1.0),
        plain("numpy", np.where, X > 1, X, X),
        plain("numpy", np.tensordot, M, M, axes=1),
    ]


def closed() -> Any:
    session = dg.Session()
    session.close()
    return session


def parameters(f: Any) -> list[str]:
    """The names by which arguments may be given."""
    try:
        found = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in found if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name[0] != "_"]
