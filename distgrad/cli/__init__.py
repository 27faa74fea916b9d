"""The command line `distgrad`, also available as `python -m distgrad`. Nothing else imports this package.

Each command has its own module, which imports its dependencies when it runs, so that `distgrad --help` is fast.
`console.py` has what all commands share: where text goes, exit codes, and one-line errors.
"""

from __future__ import annotations

from distgrad.cli import calibrate, demo, doctor, jobs, plan, report, run, submit
from distgrad.cli.console import app, main

__all__ = ["app", "calibrate", "demo", "doctor", "jobs", "main", "plan", "report", "run", "submit"]
