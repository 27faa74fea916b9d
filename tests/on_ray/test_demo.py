"""`distgrad demo` with a Ray of its own, as a user who tries distgrad calls it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray


def test_the_demo_takes_less_than_a_minute_and_has_the_same_bits_on_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTGRAD_CACHE", str(tmp_path / "cache"))  # it calibrates
    began = time.monotonic()
    command = [sys.executable, "-m", "distgrad", "demo"]
    made = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=120)
    assert made.returncode == 0, made.stderr
    assert time.monotonic() - began < 60
    here, there = re.findall(r"digest ([0-9a-f]{16})", made.stdout)
    assert here == there
    assert "that run as Ray tasks: the same bits" in made.stdout
    assert "Traceback" not in made.stderr
    first, last = re.findall(r"loss ([\d.]+) at the start, ([\d.]+) at the end", made.stdout)[0]
    assert float(last) < float(first) - 1
    assert (tmp_path / "distgrad-demo" / "report.html").exists()
    trace = json.loads((tmp_path / "distgrad-demo" / "trace.json").read_text(encoding="utf-8"))
    assert (trace["distgrad"]["engine"], trace["distgrad"]["plans"][0]["runs"]["count"]) == ("ray", 33)
