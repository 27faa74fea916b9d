"""A small run of the fuzz of public functions, in a process of its own; `make fuzz` is a large one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from distgrad.workers import native

from .fuzz.examples import builders, others, recorded
from .fuzz.run import verdict

ROOT = Path(__file__).parent.parent


def test_two_thousand_spoilt_calls_end_in_a_result_or_a_clear_error() -> None:
    command = [sys.executable, "-m", "tests.fuzz.run", "--calls", "2000", "--seed", "7"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "2,000 calls, 0 findings" in done.stdout


@pytest.mark.skipif(bool(native.unusable()), reason="native code")
def test_random_groups_run_as_native_code_with_the_same_bits_on_any_number_of_threads() -> None:
    from .fuzz.groups import check

    assert sum(check(seed) for seed in range(60)) > 60


def test_the_fuzz_knows_every_public_function_of_arrays() -> None:
    assert {example.name for example in recorded()} == builders().keys()
    assert len(others()) > 100


@pytest.mark.parametrize(
    ("error", "wrong"),
    [
        (AttributeError("'NoneType' object has no attribute 'shape'"), "AttributeError"),
        (IndexError("tuple index out of range"), "IndexError"),
        (KeyError("x"), "KeyError"),
        (RecursionError("maximum recursion depth exceeded"), "RecursionError"),
        (UnboundLocalError("x"), "UnboundLocalError"),
        (AssertionError(), "AssertionError"),
        (TypeError("'int' object is not iterable"), "bare words"),
        (ValueError(""), "without a text"),
    ],
)
def test_the_fuzz_tells_unclear_errors(error: Exception, wrong: str) -> None:
    assert wrong in str(verdict("tile", error))


@pytest.mark.parametrize("error", [TypeError("tile: reps must be an int, got 'x'"), MemoryError(), OSError(2, "x")])
def test_the_fuzz_accepts_clear_errors(error: Exception) -> None:
    assert verdict("tile", error) is None
