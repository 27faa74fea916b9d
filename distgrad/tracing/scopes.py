"""Where and in what order the ops of the current graph are built: scopes of names, devices and control dependencies.

Outside any graph ops compute at once, in this process and in program order, so these do nothing there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from distgrad.graph import current_graph


@contextmanager
def name_scope(name: str | None) -> Iterator[str]:
    """Prefix the names of ops; a scope of the same name is made unique, one that ends in '/' is entered again.

    >>> import distgrad as dg
    >>> with dg.Graph(), dg.name_scope("layer"):
    ...     print(dg.constant(1.0, name="w").name)
    layer/w:0
    """
    graph = current_graph()
    if graph is None:
        yield name or ""
    else:
        with graph.name_scope(name) as scope:
            yield scope


def device(device: str | None) -> AbstractContextManager[None]:
    """Place ops. The gradient of an op goes where the op is; None clears it.

    What may be asked for: 'cpu' (any worker, as without a device), 'gpu' (a GPU of any worker), 'gpu:1' (on the worker
    that has GPU 1, counted over the workers), 'worker:2', a label of workers such as 'zone=eu-1', and several of these
    with commas between them ('gpu,zone=eu-1'). TensorFlow's '/gpu:0' and '/job:worker/task:2' are read as well. A run
    is refused with DeviceError, before it begins, where the cluster has no such device.

    >>> import distgrad as dg
    >>> with dg.Graph(), dg.device("worker:2"):
    ...     x = dg.constant(1.0)
    >>> dg.gradients(x * x, x)[0].device
    'worker:2'
    """
    graph = current_graph()
    return nullcontext() if graph is None else graph.device(device)


def control_dependencies(dependencies: Iterable[Any] | None) -> AbstractContextManager[None]:
    """Ops built inside run after these tensors and operations, though they read nothing from them.

    >>> import distgrad as dg
    >>> with dg.Graph():
    ...     first = dg.constant(1.0)
    ...     with dg.control_dependencies([first]):
    ...         print([op.name for op in dg.constant(2.0).op.control_inputs])
    ['Const']
    """
    graph = current_graph()
    return nullcontext() if graph is None else graph.control_dependencies(dependencies)
