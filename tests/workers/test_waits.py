"""Waits for a cluster, bare: what ends them, and what does not. The servers are plain functions here."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import distgrad as dg
from distgrad.workers.on_ray.connect import waits


class Servers:
    """A connection whose servers answer or do not."""

    def __init__(self, answers: bool = True) -> None:
        self.lost: str | None = None
        self.answers, self.asked = answers, 0
        self.end, self.stop = "", ""

    def questions(self) -> dict[str, Callable[[], Any]]:
        return {"the server": self._question}

    def _question(self) -> None:
        self.asked += 1
        while not self.answers:
            time.sleep(0.01)

    def ended(self) -> str:
        return self.end

    def stopped(self) -> str:
        return self.stop

    def held(self) -> bool:
        return bool(self.stop)

    def give_up(self, reason: str) -> None:
        self.lost = self.lost or reason


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"SILENCE_TIMEOUT": 0.6, "PROBE_INTERVAL": 0.2, "POLL_INTERVAL": 0.05, "LAST_PROBE_TIMEOUT": 0.2}
    for name, seconds in limits.items():
        monkeypatch.setattr(waits, name, seconds)


def test_what_arrives_is_given_and_what_is_raised_is_raised() -> None:
    monitor = waits.ServerMonitor(Servers())
    assert monitor.answered(divmod, 7, 2, what="dividing") == (3, 1)
    with pytest.raises(ZeroDivisionError):
        monitor.answered(divmod, 7, 0, what="dividing")


def test_a_call_may_take_long_as_long_as_the_servers_answer() -> None:
    servers = Servers()
    waits.ServerMonitor(servers).answered(time.sleep, 1.5, what="sleeping")
    assert servers.asked >= 3
    assert servers.lost is None


def test_a_wait_ends_when_a_server_has_been_silent_and_the_connection_is_lost() -> None:
    servers = Servers(answers=False)
    monitor, begun, over = waits.ServerMonitor(servers), time.monotonic(), threading.Event()
    with pytest.raises(dg.ClusterLost, match=r"^reading 'w': .* lost: the server has not answered for 1 s"):
        monitor.answered(over.wait, what="reading 'w'")
    assert 0.5 < time.monotonic() - begun < 5
    with pytest.raises(dg.ClusterLost, match=r"^again: "):
        monitor.answered(int, what="again")
    servers.answers = True
    over.set()


def test_a_server_that_answers_in_time_is_waited_for() -> None:
    servers = Servers(answers=False)
    threading.Timer(0.4, setattr, [servers, "answers", True]).start()
    waits.ServerMonitor(servers).answered(time.sleep, 1.2, what="sleeping")
    assert servers.lost is None


def test_a_server_that_has_ended_is_told_at_once() -> None:
    servers = Servers()
    threading.Timer(0.1, setattr, [servers, "end", "the server (process 7) has ended"]).start()
    begun, over = time.monotonic(), threading.Event()
    with pytest.raises(dg.ClusterLost, match="process 7"):
        waits.ServerMonitor(servers).answered(over.wait, what="waiting")
    assert time.monotonic() - begun < 0.5
    over.set()


def test_nothing_is_called_while_the_raylet_is_stopped() -> None:
    servers, called = Servers(), threading.Event()
    servers.stop = "stopped"
    threading.Timer(0.3, setattr, [servers, "stop", ""]).start()
    threading.Timer(0.2, lambda: seen.append(called.is_set())).start()
    seen: list[bool] = []
    waits.ServerMonitor(servers).answered(called.set, what="calling")
    assert (seen, called.is_set()) == ([False], True)


def test_a_timeout_says_whether_the_cluster_answers() -> None:
    servers, over = Servers(), threading.Event()
    with pytest.raises(TimeoutError, match=r"^reading was stopped after the session's timeout of 0\.3 s, though the"):
        waits.ServerMonitor(servers).answered(over.wait, what="reading", timeout=0.3)
    assert servers.lost is None
    servers.stop = "the server (process 7) is stopped"
    with pytest.raises(dg.ClusterLost, match="process 7"):
        waits.ServerMonitor(servers).answered(over.wait, what="reading", timeout=0.3)
    over.set()


def test_a_timeout_does_not_wait_for_an_answer_that_could_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "PROBE_INTERVAL", 30.0)
    monkeypatch.setattr(waits, "LAST_PROBE_TIMEOUT", 10.0)
    servers, over, begun = Servers(answers=False), threading.Event(), time.monotonic()
    with pytest.raises(TimeoutError):
        waits.ServerMonitor(servers).answered(over.wait, what="reading", timeout=0.3)
    assert time.monotonic() - begun < 5
    servers.answers = True
    over.set()


def test_an_interrupt_ends_a_wait_at_once() -> None:
    over = threading.Event()
    threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        waits.ServerMonitor(Servers()).answered(over.wait, what="waiting")
    assert time.monotonic() - begun < 2
    over.set()


def test_side_threads_are_used_again() -> None:
    monitor = waits.ServerMonitor(Servers())
    monitor.answered(int, what="once")
    before = threading.active_count()
    for _ in range(100):
        monitor.answered(int, what="again")
    assert threading.active_count() <= before
