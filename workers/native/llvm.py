"""LLVM, through llvmlite: modules compiled for this CPU, or for another one where bits are compared."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeVar

from distgrad.workers.native.object_cache import cached

T = TypeVar("T")
#: LLVM's CPU name and features; an empty name stands for the CPU of this machine.
Target = tuple[str, str]
HOST: Target = ("", "")

#: llvmlite's objects are not made for several threads at once.
_lock = threading.Lock()


@cache
def host() -> Target:
    """The name and the features of this CPU."""
    import llvmlite.binding as llvm

    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def _machine(target: Target) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    name, features = host() if target == HOST else target
    return llvm.Target.from_default_triple().create_target_machine(cpu=name, features=features, opt=3, jit=True)


_compiling_machine = cache(_machine)


def once(make: Callable[..., T]) -> Callable[..., T]:
    """Like functools.cache, but threads that ask at the same time get the same object."""
    known, lock = cache(make), threading.RLock()

    def get(*args: Any) -> T:
        with lock:
            return known(*args)

    return get


def compile_module(module: Any, target: Target = HOST) -> bytes:
    """A module as machine code."""
    text = str(module)
    return cached(text, host() if target == HOST else target, partial(_compile, text, target))


def _compile(text: str, target: Target) -> bytes:
    """Loops are vectors already: LLVM is not asked to find any."""
    import llvmlite.binding as llvm

    with _lock:
        machine = _compiling_machine(target)
        parsed = llvm.parse_assembly(text)
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(parsed, builder)
        return bytes(machine.emit_object(parsed))


#: Machine code is never freed: functions have no reference to what they are part of.
_engines: list[Any] = []


class Loaded:
    """Machine code in memory. Its addresses are valid as long as the process lives."""

    def __init__(self, code: bytes):
        import llvmlite.binding as llvm

        with _lock:
            # The engine owns its machine, so it has one of its own.
            self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(HOST))
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            self._engine.finalize_object()
            _engines.append(self._engine)

    def address(self, name: str) -> int:
        return int(self._engine.get_function_address(name))
