"""Scenes that are too many for every run of the tests: `python -m tests.faults.scenes_all` plays them and judges."""
