"""Programs, the passes over them, and plans. Knows no kernels and no array backend.

The names below are imported lazily: workers need few of them and start faster without the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distgrad.scheduler.cluster import Cluster, Machine, Worker, load_cluster, local_cluster
    from distgrad.scheduler.plan import Bundle, Options, Plan, Predictions, Task, check_plan
    from distgrad.scheduler.program import Program, Step, check_program, lower

_FOUND_IN = {
    "cluster": ("Cluster", "Machine", "Worker", "load_cluster", "local_cluster"),
    "plan": ("Bundle", "Options", "Plan", "Predictions", "Task", "check_plan"),
    "program": ("Program", "Step", "check_program", "lower"),
}
_MODULE_OF = {name: module for module, names in _FOUND_IN.items() for name in names}

__all__ = [
    "Bundle", "Cluster", "Machine", "Options", "Plan", "Predictions", "Program", "Step", "Task", "Worker", "check_plan",
    "check_program", "load_cluster", "local_cluster", "lower",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
