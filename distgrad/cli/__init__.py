"""The command line `distgrad`, also as `python -m distgrad`. Nothing else imports this package.

Each command has a module of its own, which imports what it needs when it runs: `distgrad --help` shall be quick.
`console.py` has what all of them agree on: where text goes, exit codes, and errors of one line.
"""

from __future__ import annotations

from distgrad.cli import calibrate, demo, doctor, jobs, plan, report, run, submit
from distgrad.cli.console import app, main

__all__ = ["app", "calibrate", "demo", "doctor", "jobs", "main", "plan", "report", "run", "submit"]
