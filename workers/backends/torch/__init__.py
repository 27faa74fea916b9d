"""PyTorch, on CPUs and GPUs: steps run eagerly, with torch's fused kernels where `rules` finds groups for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from distgrad.scheduler.cluster import Machine
from distgrad.scheduler.execution import EAGER
from distgrad.workers.backends.backend import Backend, Gpus
from distgrad.workers.backends.base_extras import Array, Extras

if TYPE_CHECKING:
    from distgrad.scheduler.program import Step
    from distgrad.types import Spec
    from distgrad.workers.backends.eager import EagerStep

#: Seconds per step on small arrays relative to a call of NumPy: dispatch, allocation and the loop of the eager engine.
CALL_FACTOR = 5.0


def _load() -> tuple[Any, Extras]:
    import array_api_compat.torch as xp

    import distgrad.workers.backends.torch.conv
    import distgrad.workers.backends.torch.kernels  # noqa: F401 (both register kernels)
    from distgrad.workers.arena import keep_freed_memory
    from distgrad.workers.backends.torch.extras import TorchExtras

    keep_freed_memory(32 << 20, 1 << 30)  # torch has no arena: all arrays of a task come from malloc
    return xp, TorchExtras(xp)


def _version() -> str:
    """The version, and the instruction set that torch uses on CPUs, which its environment variable can change."""
    try:
        import torch
    except ModuleNotFoundError:
        return "not installed"
    capability: Any = torch.backends.cpu.get_cpu_capability()
    return f"{torch.__version__}, {capability}"


def _rewrite(
    steps: Sequence[Step], types: Sequence[Spec], constants: Mapping[int, Array], kept: set[int], backend: Backend
) -> list[EagerStep]:
    from distgrad.workers.backends.torch.rules import compiled

    return compiled(steps, types, constants, kept, backend)


def _device() -> AbstractContextManager[Any]:
    import torch

    return torch.device("cuda") if torch.cuda.is_available() else nullcontext()


def _memory() -> int | None:
    import torch

    return int(torch.cuda.mem_get_info()[1]) if torch.cuda.is_available() else None


def _diagnosis() -> tuple[str, str, str]:
    try:
        import torch
    except ModuleNotFoundError:
        return "warning", "torch is not installed", "pip install torch: it computes on them."
    if torch.cuda.is_available():
        return "ok", f"torch {torch.__version__}", ""
    remedy = "Install a torch that was built for this driver's CUDA: https://pytorch.org/get-started"
    return "problem", f"torch {torch.__version__} cannot use them", remedy


def _rates(machine: Machine) -> Machine:
    return replace(machine, kernel_seconds=CALL_FACTOR * machine.kernel_seconds)


TORCH = Backend(
    "torch",
    _load,
    remedy="install it as https://pytorch.org says for your GPU",
    packages={"torch": _version},
    rewrite=_rewrite,
    gpus=Gpus(_device, _memory, _diagnosis),
    execution=EAGER,
    rates=_rates,
)
