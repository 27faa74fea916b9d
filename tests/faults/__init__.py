"""Faults: workers, nodes, tasks and drivers that end or hang in the middle of a training, which must not show in it."""
