"""The parent of a script on Ray, without Ray: exit codes, signals, and an end without a word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

START = "import os, signal, sys, time, atexit\nfrom distgrad.cli import parent\nparent.fork()\n"


def started(text: str) -> subprocess.Popen[str]:
    """A program that goes on as a child of the process that is given."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", START + text]
    return subprocess.Popen(command, text=True, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("print('done')", (0, "done\n", "")),
        ("sys.exit(5)", (5, "", "")),
        ("sys.exit(1)", (1, "", "")),
        ("sys.exit('bye')", (1, "", "bye\n")),
        ("atexit.register(print, 'late')", (0, "late\n", "")),
        ("os._exit(7)", (7, "", "")),
    ],
)
def test_the_exit_code_and_the_output_are_the_scripts(text: str, expected: tuple[int, str, str]) -> None:
    assert ended(started(text)) == expected


def test_an_end_from_inside_without_a_word_is_told_with_a_code_of_its_own() -> None:
    code, out, err = ended(started("print('half', flush=True); os._exit(1)"))
    assert (code, out) == (75, "half\n")
    assert err.startswith("error: the script's process was ended by Ray, which happens if the raylet")
    assert "Checkpoints.restore" in err
    assert err.count("\n") == 1


def test_an_end_by_a_signal_is_told() -> None:
    code, _, err = ended(started("os.kill(os.getpid(), signal.SIGKILL)"))
    assert code == 137
    assert err.startswith("error: the script was ended by signal SIGKILL.")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_script_which_may_answer_it(number: signal.Signals) -> None:
    answer = f"signal.signal({int(number)}, lambda *_: (print('saved', flush=True), sys.exit(3)))\n"
    process = started(f"{answer}print('ready', flush=True)\ntime.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert ended(process) == (3, "saved\n", "")


def test_a_script_ends_with_its_parent() -> None:
    process = started("print(os.getpid(), flush=True)\ntime.sleep(60)")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.communicate()
    assert _in_time(lambda: not os.path.exists(f"/proc/{child}") or _ended(child))


def _ended(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] in "ZX"


def _in_time(condition: Callable[[], bool]) -> bool:
    ends = time.monotonic() + 30
    while not condition() and time.monotonic() < ends:
        time.sleep(0.05)
    return condition()
