"""A test that writes into the real home, into the folder that the user keeps rates in, and where Ray has its files."""

from __future__ import annotations

import os
from pathlib import Path


def test_that_touches_the_home() -> None:
    Path(os.environ["TELL"], "cache").mkdir()
    Path(os.environ["TELL"], "cache", "rates").touch()
    Path(os.environ["TELL"], "ray", f"session_{os.getpid()}").mkdir(parents=True)
    token = Path(os.environ["USER_HOME"]) / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("mine")
