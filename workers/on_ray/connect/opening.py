"""Opens Ray: starts it on this machine, or joins a cluster, with one-line errors that say what to do."""

from __future__ import annotations

import logging
import os
import shutil
import socket
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import ray
from ray import exceptions
from ray._private import services

from distgrad.printing import bytes_text
from distgrad.workers.on_ray.connect import connection, probes
from distgrad.workers.on_ray.connect.loopback import is_on_loopback, names_loopback, on_loopback
from distgrad.workers.on_ray.connect.tls import check_tls
from distgrad.workers.on_ray.connect.tokens import check_token, make_token
from distgrad.workers.on_ray.settings import folder

log = logging.getLogger("distgrad")

#: Seconds for a cluster to accept a connection, and for each of its servers to answer a question.
KNOCK = 8
#: Bytes of free disk that Ray needs to start, for its logs and sockets.
MIN_FREE_BYTES = 32 << 20


def open_ray(joins: str | None, cpus: int | None, gpus: int | None, object_store_memory: int | None) -> None:
    """Join the cluster at an address, or start Ray here. Raises ConnectionError with a one-line reason."""
    options: dict[str, Any] = {"logging_level": logging.WARNING, "log_to_driver": True}
    try:
        if joins:
            _knock(joins)
            show_token(joins)
            with on_loopback() if is_on_loopback(joins) else nullcontext():
                _ask(joins)
                ray.init(address=joins, **options)
        else:
            options |= {"include_dashboard": False, "num_cpus": cpus, "num_gpus": gpus}
            options["_system_config"] = {"gcs_rpc_server_reconnect_timeout_s": connection.GCS_RECONNECT_TIMEOUT}
            _check_disk()
            make_token()
            with on_loopback():
                ray.init(address="local", object_store_memory=object_store_memory, **options)
    except Exception as e:  # Ray raises all kinds, plain Exception among them
        raise ConnectionError(f"Session: cannot {_doing(joins)}: {_first_line(e)}{_token(e)}") from e


def _check_disk() -> None:
    """Raise RuntimeError if there is no room for Ray's own files: Ray would wait for half a minute and not say why."""
    with suppress(OSError):  # Ray reports other problems itself
        free = shutil.disk_usage(folder()).free
        if free < MIN_FREE_BYTES:
            text = f"Ray's files need {bytes_text(MIN_FREE_BYTES)} in {folder()}, which has {bytes_text(free)} left"
            raise RuntimeError(f"{text}. Free some space there, or set RAY_TMPDIR to a folder on another disk")


def _knock(address: str) -> None:
    """Raise ConnectionError if nothing listens at an address with a port: Ray itself would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK).close()
    except (OSError, OverflowError) as e:
        raise ConnectionError(
            f"nothing listens there ({e}). Check that the cluster is up (`ray start`), that this is the port of its "
            f"head (6379 by default), and that this machine can reach it"
        ) from e
    check_tls(host.strip("[]"), int(port))


def show_token(address: str) -> None:
    """Make Ray present its token to the cluster that is joined, unless RAY_AUTH_MODE decides that. A token from the
    environment is presented to any cluster, that of the user's file only to one on this machine or "auto". Ray itself
    does so for "auto" alone, and otherwise retries at length without a token."""
    named = any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    shown = named or address == "auto" or names_loopback(address.removeprefix("ray://"))
    if shown or os.environ.get("RAY_AUTH_MODE"):
        check_token()
    if not shown:
        return
    with suppress(ImportError):  # a version of Ray without tokens
        from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def _ask(address: str) -> None:
    """Raise ConnectionError if the head or the raylet of this machine does not answer, and AuthenticationError if the
    head rejects this machine's token: Ray itself would retry at length, and end this process in the raylet's case. It
    reports any other problem well enough when it joins."""
    if address.startswith("ray://"):
        return
    try:
        head = services.canonicalize_bootstrap_address(address) or address
        _is_answered(probes.ask_gcs, connection.GCS, head)
        raylet = _raylet_here(head)
        if raylet:
            _is_answered(probes.ask_raylet, connection.RAYLET, raylet)
    except (exceptions.AuthenticationError, _Silent):
        raise
    except Exception as e:
        log.debug("distgrad: asking the cluster at %s: %s", address, e)


class _Silent(ConnectionError):
    """A server does not answer."""


def _is_answered(question: Callable[[str, float], None], name: str, address: str) -> None:
    try:
        question(address, KNOCK)
    except Exception as e:
        if not (reason := probes.silence(e)):
            return
        text = f"{name} at {address} does not answer within {KNOCK:g} s: {reason}"
        raise _Silent(f"{text}. If it does not recover, restart Ray there: `ray stop`, then `ray start`") from e


def _raylet_here(head: str) -> str:
    """The address of the raylet of this machine that Ray would connect to, as the head knows it; "" without one."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    gcs = GcsClient(address=head)
    if not services.find_node_ids():  # type: ignore[no-untyped-call]
        return ""
    node = services.get_node_to_connect_for_driver(gcs, timeout_seconds=KNOCK)
    return f"{node.node_manager_address}:{node.node_manager_port}"


def _doing(joins: str | None) -> str:
    return f"join the Ray cluster at {joins!r}" if joins else "start Ray on this machine"


def _first_line(e: BaseException) -> str:
    return (str(e).strip().splitlines() or [type(e).__name__])[0]


def _token(e: BaseException) -> str:
    """The remedy if the cluster requires a token, which Ray mentions in the middle of a traceback."""
    texts = f"{e} {e.__cause__} {e.__context__}"
    if "AuthToken" not in texts:
        return ""
    return ". It requires an authentication token: set RAY_AUTH_MODE=token, and give this machine the cluster's token"


def hush() -> None:
    """Silence needless log messages of Ray: errors of tasks, which their run raises, and the note at every start that
    token authentication is on."""
    logging.getLogger("ray._private.worker").addFilter(_is_not_ours)
    logging.getLogger("ray._private.authentication.authentication_token_setup").addFilter(_is_no_token)


def _is_not_ours(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    if text.startswith("SIGTERM handler is not set"):  # `connection` sets it
        return False
    return not (text.startswith("Unhandled error") and "ray::run_task()" in text)


def _is_no_token(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Token authentication is enabled")
