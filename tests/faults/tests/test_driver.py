"""A driver that is killed in the middle of a training, and started again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import distgrad as dg

from .. import scenes
from ..training import Training, same_bits, undisturbed

pytestmark = pytest.mark.ray

ROOT, STEPS = Path(__file__).parents[3], 40


def test_a_training_goes_on_from_its_last_checkpoint_with_the_same_bits(
    play: Callable[..., Any], tmp_path: Path
) -> None:
    arguments = [sys.executable, "-m", "tests.faults.resumable", str(tmp_path), play(scenes.address), str(STEPS)]
    checkpoints = dg.Checkpoints(tmp_path)
    with subprocess.Popen(arguments, cwd=ROOT) as first:
        while len(checkpoints.steps()) < 3 and first.poll() is None:
            time.sleep(0.01)
        first.kill()
    assert first.returncode == -signal.SIGKILL
    assert checkpoints.steps()[-1] < STEPS - 1
    subprocess.run(arguments, cwd=ROOT, check=True)
    training = Training()
    checkpoints.restore(training.weights)
    assert same_bits(training.values(), undisturbed(STEPS))
