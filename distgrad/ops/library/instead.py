"""What to write instead of a call that needs a tensor's value: for functions of Python, math, NumPy and SciPy.

A tensor is asked for its value deep inside the call. The line of the user's code says which call it is.
"""

from __future__ import annotations

import ast
import linecache
import math
import sys
from types import FrameType
from typing import Any

import numpy as np

from distgrad.errors import is_internal

#: Names of SciPy and math -> distgrad's function, where its name is another one, or in another place.
COUNTERPARTS = {
    "expit": "sigmoid", "gammaln": "lgamma", "loggamma": "lgamma", "psi": "digamma", "logsumexp": "logsumexp",
    "polygamma": "polygamma", "softmax": "nn.softmax", "log_softmax": "nn.log_softmax", "inv": "linalg.inv",
    "solve": "linalg.solve", "solve_triangular": "linalg.triangular_solve", "det": "linalg.det",
    "cholesky": "linalg.cholesky", "qr": "linalg.qr", "svd": "linalg.svd", "svdvals": "linalg.svdvals",
    "eigh": "linalg.eigh", "eigvalsh": "linalg.eigvalsh", "pinv": "linalg.pinv", "norm": "linalg.norm", "erf": "erf",
    "erfc": "erfc", "lgamma": "lgamma", "fsum": "sum", "prod": "prod", "dist": "linalg.norm", "trapezoid": "trapezoid",
    "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2", "log10": "log10", "log1p": "log1p",
    "sqrt": "sqrt", "cbrt": "cbrt", "pow": "power", "hypot": "hypot", "sin": "sin", "cos": "cos", "tan": "tan",
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2", "sinh": "sinh", "cosh": "cosh",
    "tanh": "tanh", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh", "degrees": "degrees",
    "radians": "radians", "fabs": "fabs", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "fmod": "fmod",
    "copysign": "copysign", "ldexp": "ldexp", "modf": "modf", "isnan": "isnan", "isinf": "isinf",
    "isfinite": "isfinite", "isclose": "isclose",
}  # fmt: skip

_LATER = "or return the tensor, and convert the result"


def advice() -> str:
    """A sentence about the call that asks for a value; empty if the call is not known."""
    frame, library = _caller()
    called = None if frame is None else _called(frame)
    if library and called is None:
        return _of_library(*library)
    return "" if called is None else _of(called)


def _caller() -> tuple[FrameType | None, tuple[str, str] | None]:
    """The user's frame, and the module and function of NumPy or SciPy that it called, if that is written in Python."""
    frame: FrameType | None = sys._getframe(2)
    library = None
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in ("scipy", "numpy"):
            if library is None or library[1] not in COUNTERPARTS or frame.f_code.co_name in COUNTERPARTS:
                library = module, frame.f_code.co_name
        elif not is_internal(frame.f_code.co_filename):
            return frame, library
        frame = frame.f_back
    return None, library


def _called(frame: FrameType) -> Any:
    """The function that the frame is calling, by the text of its line; None if that is not a call of a name."""
    try:
        line, end, start, stop = [*frame.f_code.co_positions()][frame.f_lasti // 2]
        if line is None or end != line:
            return None
        text = linecache.getline(frame.f_code.co_filename, line).encode()[start:stop].decode()
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, IndexError):
        return None
    return _found(node.func, frame) if isinstance(node, ast.Call) else None


def _found(node: ast.expr, frame: FrameType) -> Any:
    if isinstance(node, ast.Attribute):
        owner = _found(node.value, frame)
        return None if owner is None else getattr(owner, node.attr, None)
    if isinstance(node, ast.Call) and _found(node.func, frame) is np.random.default_rng:
        return np.random.default_rng(0)
    if not isinstance(node, ast.Name):
        return None
    spaces: tuple[Any, ...] = frame.f_locals, frame.f_globals, frame.f_builtins
    return next((space[node.id] for space in spaces if node.id in space), None)


def _of(called: Any) -> str:
    name = getattr(called, "__name__", "")
    module = str(getattr(called, "__module__", "") or "")
    if called is range:
        return "range(x) needs one: how often a loop runs is known while the graph is built, from ints and shapes."
    if called in (float, int, complex):
        return f"{name}(x) needs one. Keep the tensor, whose dtype x.astype changes, {_LATER}."
    if isinstance(called, type) and issubclass(called, np.generic):
        return f"np.{name}(x) needs one. Convert with x.astype(np.{name}), {_LATER}."
    owner = type(getattr(called, "__self__", None))
    if owner.__module__.startswith("numpy.random"):
        return (
            f"NumPy draws random numbers at once, while a function is traced. Draw them in the run, with "
            f"distgrad.random and a key: x + scale * distgrad.random.normal(key, shape) instead of {name}."
        )
    if module == math.__name__ or module.partition(".")[0] == "scipy":
        return _of_library(module, name)
    return ""


def _of_library(module: str, name: str) -> str:
    """`scipy.special._logsumexp` is `scipy.special` to its users."""
    public = ".".join(part for part in module.split(".") if not part.startswith("_"))
    if public.partition(".")[0] == "numpy":
        return ""
    remedy = f"Use distgrad.{COUNTERPARTS[name]}." if name in COUNTERPARTS else "distgrad has no counterpart of it."
    return f"{public}.{name} computes with values, and records no ops. {remedy}"
