"""Loads a user's module, by name or by file, and finds objects in it. Errors in user code are reported in one line."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from distgrad.cli.console import FAILED, MISUSED, fail
from distgrad.errors import is_internal

T = TypeVar("T")


@contextmanager
def guarded(doing: str, code: int = FAILED) -> Iterator[None]:
    """Context for user code: its output goes to standard error, and exceptions become one-line errors."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except KeyboardInterrupt:
        raise
    except SystemExit:
        fail(f"{doing}: it ended the program. Put the script's actions under `if __name__ == '__main__':`.", code)
    except BaseException as e:  # user code may raise anything
        fail(f"{doing}: {described(e)}{_place(e)}", code)


def described(e: BaseException) -> str:
    return f"{type(e).__name__}: {e}" if str(e) else type(e).__name__


def _place(e: BaseException) -> str:
    """The innermost line of user code in the traceback."""
    if isinstance(e, SyntaxError):
        return ""  # its message has the line
    frames = [f for f in traceback.extract_tb(e.__traceback__) if not _is_foreign(f.filename)]
    return f" (at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""


def _is_foreign(filename: str) -> bool:
    folders = {str(Path(os.__file__).parent), str(Path(importlib.__file__).parent)}
    return is_internal(filename) or "site-packages" in filename or any(filename.startswith(x) for x in folders)


def load_module(name: str) -> ModuleType:
    """Import a module by name or by file. As for a script, its imports are searched in the file's folder; a module is
    also searched in the current folder, as with `python -m`."""
    if name.endswith(".py") or os.sep in name:
        return load_file(Path(name))
    sys.path.insert(0, os.getcwd())
    if _is_missing(name):
        hint = f" There is a file {name}.py: give its path." if Path(f"{name}.py").exists() else ""
        fail(f"there is no module {name!r}, here or installed.{hint}", MISUSED)
    with guarded(f"the module {name!r} cannot be imported", MISUSED):
        return importlib.import_module(name)


def _is_missing(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is None
    except (ImportError, ValueError):  # the parent is missing or not a package, or the name is empty
        return True


def load_file(file: Path) -> ModuleType:
    if not file.is_file():
        fail(f"there is no file {str(file)!r}", MISUSED)
    sys.path.insert(0, str(file.resolve().parent))
    name = f"__{file.stem}__" if file.stem in sys.modules else file.stem  # do not replace another module of this name
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    if spec is None or spec.loader is None:
        fail(f"{str(file)!r} is not a Python file", MISUSED)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with guarded(f"{str(file)!r} cannot be imported", MISUSED):
        spec.loader.exec_module(module)
    return module


def called_at(place: Any, call: Callable[[], T]) -> T:
    """The result of `call`, as if called from the first line of the user's function `place`: ops record the line of
    user code that built them, and here there is none."""
    code = getattr(inspect.unwrap(place), "__code__", None)
    if code is None:
        return call()
    space: dict[str, Any] = {"call": call}
    exec(compile("\n" * (code.co_firstlineno - 1) + "made = call()", code.co_filename, "exec"), space)
    made: T = space["made"]
    return made


def find(module: ModuleType, name: str, where: str) -> Any:
    """Look up a dotted name in a module."""
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            fail(f"{where!r} has no {name!r}.{_nearest(part, found)}", MISUSED)
        found = getattr(found, part)
    return found


def _nearest(name: str, found: Any) -> str:
    names = [key for key, x in vars(found).items() if callable(x) and not key.startswith("_")]
    own = [key for key in names if getattr(getattr(found, key), "__module__", None) == getattr(found, "__name__", None)]
    close = difflib.get_close_matches(name, names, 1)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Its functions are {', '.join(own[:8])}{', ...' if len(own) > 8 else ''}." if own else ""
