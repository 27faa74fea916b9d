"""Questions that a server of Ray answers by itself, and that end in time. The clients of Ray would wait much longer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def ask_raylet(address: str, timeout: float) -> None:
    """Ask for what a raylet knows by itself. Its statistics would not do: for those it waits for all of its workers,
    and one of them may be stopped."""
    with _service("node_manager", "NodeManagerServiceStub", address) as (messages, raylet):
        raylet.GetSystemConfig(messages.GetSystemConfigRequest(), timeout=timeout)


def ask_gcs(address: str, timeout: float) -> None:
    with _service("gcs_service", "NodeInfoGcsServiceStub", address) as (messages, gcs):
        gcs.GetClusterId(messages.GetClusterIdRequest(), timeout=timeout)


def silence(error: BaseException) -> str:
    """Why a question got no answer; "" if the error is an answer, such as a refusal."""
    import grpc  # type: ignore[import-untyped]

    code = error.code() if isinstance(error, grpc.RpcError) else None
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return "it is stopped, hangs or is overloaded"
    return "it cannot be reached" if code == grpc.StatusCode.UNAVAILABLE else ""


@contextmanager
def _service(module: str, stub: str, address: str) -> Iterator[tuple[Any, Any]]:
    """The messages of a service, and a client that calls it."""
    from ray._private.grpc_utils import init_grpc_channel
    from ray._private.ray_constants import GLOBAL_GRPC_OPTIONS

    messages, service = [import_module(f"ray.core.generated.{module}_pb2{part}") for part in ("", "_grpc")]
    channel = init_grpc_channel(address, options=GLOBAL_GRPC_OPTIONS)
    try:
        yield messages, getattr(service, stub)(channel)
    finally:
        channel.close()
