"""Sessions on Ray: their options, what they join, what they leave running, and what they say when closed."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import ray

import distgrad as dg
from distgrad.workers.on_ray.connect import opening

from ..helpers import driver

pytestmark = pytest.mark.ray

POSITIVE = "is a positive whole number, got"
SECONDS = "is a positive number of seconds, got"
MEMORY = "memory is a positive number of bytes or text such as '4 GiB', got"

#: Options that cannot be, and what is said of them.
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"workers": 0}, ValueError, f"workers {POSITIVE} 0"),
    ({"workers": 1.5}, ValueError, f"workers {POSITIVE} 1.5"),
    ({"workers": 3}, ValueError, "workers is 3, but the cluster has room for 2 of 1 cpus each (1 nodes with 2 cpus"),
    ({"cpus_per_task": 0}, ValueError, f"cpus_per_task {POSITIVE} 0"),
    ({"cpus_per_task": 3}, ValueError, "cpus_per_task is 3, but no node of the cluster has more than 2 cpus"),
    ({"gpus": 0}, ValueError, f"gpus {POSITIVE} 0"),
    ({"in_flight": -1}, ValueError, f"in_flight {POSITIVE} -1"),
    ({"attempts": True}, ValueError, f"attempts {POSITIVE} True"),
    ({"timeout": 0}, ValueError, f"timeout {SECONDS} 0"),
    ({"task_timeout": "1"}, ValueError, f"task_timeout {SECONDS} '1'"),
    ({"granularity": -1.0}, ValueError, f"granularity {SECONDS} -1.0"),
    ({"memory": "much"}, ValueError, f"{MEMORY} 'much'"),
    ({"object_store_memory": 0}, ValueError, f"object_store_{MEMORY} 0"),
    ({"check_numerics": 1}, TypeError, "check_numerics is True or False, got 1"),
    ({"backend": "nump"}, ValueError, "there is no array backend 'nump'"),
    ({"cluster": 5}, TypeError, "cluster is a Cluster or the path of a cluster file, got 5"),
    ({"address": 6379}, TypeError, "address is the address of a Ray cluster, such as 'auto', got 6379"),
    ({"address": "10.0.0.1:6379"}, ValueError, "this process is already connected to Ray (at "),
    ({"threads": 2}, ValueError, "threads is an option of Session('local'), not of 'ray'"),
    ({"in_order": True}, ValueError, "in_order is an option of Session('local'), not of 'ray'"),
]


@pytest.mark.parametrize(("options", "error", "text"), WRONG, ids=[str(options) for options, _, _ in WRONG])
def test_a_value_that_cannot_be_is_named(ray_session: dg.Session, options: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=f"^Session: {re.escape(text)}"):
        dg.Session("ray", **options)


def test_a_session_that_could_not_be_opened_leaves_ray_as_it_was(ray_session: dg.Session) -> None:
    with pytest.raises(ValueError, match="room for 2"):
        dg.Session("ray", workers=3)
    assert ray_session.run(None) is None
    with dg.Session("ray"):
        assert dg.function(lambda x: x + 1)(np.float64(1)) == 2


def test_a_ray_that_the_process_had_is_joined_and_goes_on_after_close(ray_session: dg.Session) -> None:
    import ray

    node = ray.get_runtime_context().get_node_id()
    with dg.Session("ray") as session:
        assert dg.function(lambda x: x + 1)(np.float64(1)) == 2
        assert {token.node for token in session.last_run.tokens.values()} == {node}  # type: ignore[union-attr]
    assert ray.is_initialized()
    assert ray.get(ray.put(1)) == 1


def test_a_closed_session_says_so(ray_session: dg.Session) -> None:
    with dg.Graph():
        x = dg.placeholder((2,))
        y = dg.exp(x)
    session = dg.Session("ray")
    session.run(y, {x: np.ones(2)})
    session.close()
    session.close()  # once is enough, twice is fine
    with pytest.raises(RuntimeError, match=r"the session is closed: its Ray is gone. Open another session"):
        session.run(y, {x: np.ones(2)})


UNKNOWN = """
import sys, time
import distgrad as dg
begun = time.monotonic()
for address in sys.argv[1:]:
    try:
        dg.Session("ray", address=address)
    except ConnectionError as e:
        print(e)
print(time.monotonic() - begun)
"""


def test_an_address_where_nobody_listens_is_told_in_seconds() -> None:
    begun = time.monotonic()
    *lines, seconds = driver("-c", UNKNOWN, "127.0.0.1:9", "127.0.0.1:99999", "nonsense")[0].splitlines()
    assert [line[:55] for line in lines] == [
        "Session: cannot join the Ray cluster at '127.0.0.1:9': ",
        "Session: cannot join the Ray cluster at '127.0.0.1:9999",
        "Session: cannot join the Ray cluster at 'nonsense': Inv",
    ]
    assert "nothing listens there" in lines[0]
    assert "ray start" in lines[0]
    assert float(seconds) < 60 > time.monotonic() - begun - 60


@contextmanager
def stopped_server() -> Iterator[str]:
    """The address of a server that accepts connections and says nothing, as one does whose process is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_head_that_does_not_answer_is_told_in_seconds() -> None:
    with stopped_server() as address:
        line, seconds = driver("-c", UNKNOWN, address)[0].splitlines()
    silent = f"the GCS (the head's server) at {address} does not answer within 8 s: it is stopped, hangs or"
    assert line.startswith(f"Session: cannot join the Ray cluster at '{address}': {silent}")
    assert float(seconds) < 15


def test_a_raylet_of_this_machine_that_does_not_answer_is_told_before_ray_would_end_the_process(
    ray_session: dg.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stopped_server() as address:
        monkeypatch.setattr(opening, "KNOCK", 1)
        monkeypatch.setattr(opening, "_raylet_here", lambda head: address)
        with pytest.raises(ConnectionError, match=f"raylet of this machine at {address} does not answer within 1 s"):
            opening._ask(ray.get_runtime_context().gcs_address)


def test_servers_that_answer_are_joined(ray_session: dg.Session) -> None:
    head = ray.get_runtime_context().gcs_address
    opening._ask(head)
    (node,) = ray.nodes()
    assert opening._raylet_here(head) == f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"


def test_a_session_that_two_threads_leave_is_closed_once(
    ray_session: dg.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distgrad.workers.on_ray import link

    forgotten: list[str] = []
    both = threading.Barrier(2)
    monkeypatch.setattr(link, "forget", forgotten.append)
    session = dg.Session("ray", workers=1)

    def leave() -> None:
        both.wait(30)
        session.close()

    threads = [threading.Thread(target=leave) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(forgotten) == 1
