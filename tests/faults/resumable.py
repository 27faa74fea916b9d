"""A training that saves each step, and goes on from the last one saved. Run by test_driver in a process of its own.

Arguments: the directory of the checkpoints, the address of the cluster, how many steps.
"""

from __future__ import annotations

import sys

import distgrad as dg

from .training import GRANULARITY, Training


def main(directory: str, address: str, steps: int) -> None:
    checkpoints = dg.Checkpoints(directory)
    with dg.Session("ray", address=address, granularity=GRANULARITY, timeout=120):
        training = Training()
        found = checkpoints.restore(training.weights)
        for i in range(found.step + 1 if found else 0, steps):
            training.step(i)
            checkpoints.save(i, training.weights)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
