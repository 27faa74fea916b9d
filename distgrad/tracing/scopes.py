"""Context managers for the ops of the current graph: name scopes, devices and control dependencies.

Outside any graph ops run immediately, in this process and in program order, so these have no effect there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from distgrad.graph import current_graph


@contextmanager
def name_scope(name: str | None) -> Iterator[str]:
    """Prefix the names of ops. A name in use is made unique; a name that ends in '/' enters that scope again.

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
    """Place ops on a device. The gradient of an op runs on the same device; None clears the placement.

    A device is 'cpu' (any worker; the default), 'gpu' (a GPU of any worker), 'gpu:1' (the worker with GPU 1, counted
    over all workers), 'worker:2', a worker label such as 'zone=eu-1', or several of these separated by commas, such as
    'gpu,zone=eu-1'. TensorFlow's '/gpu:0' and '/job:worker/task:2' are accepted too. If the cluster has no such device,
    the run raises DeviceError before it starts.

    >>> import distgrad as dg
    >>> with dg.Graph(), dg.device("worker:2"):
    ...     x = dg.constant(1.0)
    >>> dg.gradients(x * x, x)[0].device
    'worker:2'
    """
    graph = current_graph()
    return nullcontext() if graph is None else graph.device(device)


def control_dependencies(dependencies: Iterable[Any] | None) -> AbstractContextManager[None]:
    """Make the ops built in this context run after these tensors and operations, without reading them.

    >>> import distgrad as dg
    >>> with dg.Graph():
    ...     first = dg.constant(1.0)
    ...     with dg.control_dependencies([first]):
    ...         print([op.name for op in dg.constant(2.0).op.control_inputs])
    ['Const']
    """
    graph = current_graph()
    return nullcontext() if graph is None else graph.control_dependencies(dependencies)
