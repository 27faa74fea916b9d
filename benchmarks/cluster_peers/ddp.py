"""The gpt step in torch's DistributedDataParallel: two processes with a thread each, gradients averaged over gloo.

This process has rank 0 and answers the benchmark; it starts rank 1 and sends it a line for each step.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
from typing import Any

import torch
import torch.distributed as dist
from steps import in_torch, inputs
from steps.timing import Step

RANKS = 2


class Model(torch.nn.Module):
    """The loss of the steps' gpt as a module, which is what DistributedDataParallel takes."""

    def __init__(self, params: Any):
        super().__init__()
        self.params = inputs.map_leaves(torch.nn.Parameter, params)
        for i, each in enumerate(inputs.leaves(self.params)):
            self.register_parameter(f"p{i}", each)

    def forward(self, tokens: Any, targets: Any) -> Any:
        return in_torch.gpt(self.params, tokens, targets)


class Rank:
    """One of the processes, with its share of the batch."""

    def __init__(self, rank: int, port: int, workload: str):
        torch.set_num_threads(1)
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
        params, data = inputs.map_leaves(in_torch.tensor, tuple(inputs.make(workload)))
        self.data = [x.chunk(RANKS)[rank] for x in data]
        self.module = Model(params)
        self.model = torch.nn.parallel.DistributedDataParallel(self.module, gradient_as_bucket_view=True)

    def step(self) -> Any:
        """The loss of this share, and the gradients that all ranks have when it returns."""
        self.model.zero_grad(set_to_none=True)
        loss = self.model(*self.data)
        loss.backward()
        dist.barrier()
        return loss.detach(), [x.grad for x in inputs.leaves(self.module.params)]


# -- for the server ----------------------------------------------------------------------------------------------


def load(workload: str, variant: str, threads: int) -> Step:
    port = _free_port()
    command = [sys.executable, __file__, str(port), workload]
    path = os.pathsep.join(filter(None, [os.path.dirname(os.path.dirname(__file__)), os.environ.get("PYTHONPATH")]))
    other = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
    assert other.stdin is not None
    orders = other.stdin
    atexit.register(other.wait)
    atexit.register(orders.close)  # the other rank's loop ends; runs before the wait
    rank = Rank(0, port, workload)

    def run() -> Any:
        print(file=orders, flush=True)
        return rank.step()

    return Step(run, lambda made: _arrays(rank, made, workload))


def _arrays(rank: Rank, made: Any, workload: str) -> list[Any]:
    """The loss is that of the whole batch, computed here: the ranks exchange gradients alone."""
    _, gradients = made
    data = inputs.map_leaves(in_torch.tensor, tuple(inputs.make(workload)))[1]
    with torch.no_grad():
        loss = rank.module(*data)
    return [loss.numpy(), *[x.numpy() for x in gradients]]


def warm() -> None:
    """Nothing: the first step is timed by itself."""


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def main() -> None:
    """Rank 1: a step for each line."""
    rank = Rank(1, int(sys.argv[1]), sys.argv[2])
    for _ in sys.stdin:
        rank.step()


if __name__ == "__main__":
    main()
