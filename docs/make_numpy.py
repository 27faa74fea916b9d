"""Writes docs/numpy.md, the NumPy functions that work on tensors, from the table of the tests: `make docs-numpy`."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from distgrad.ops import methods, numpy_api  # noqa: E402
from tests.numpy_table import ROWS, Row  # noqa: E402

HEAD = """\
<!-- Written by docs/make_numpy.py from tests/numpy_table.py: change those. -->

# NumPy on tensors

NumPy's own functions work on tensors and variables, also mixed with arrays and numbers. In a graph they record
distgrad's ops; called with arrays only, they are NumPy's as usual.

    @dg.function
    def layer(x, w, b):
        return np.tanh(x @ w + b)

- Argument names, defaults, axis rules and result dtypes are NumPy's (NumPy 2 promotion: Python numbers adapt to the
  dtype of the tensor).
- An argument that is not listed, such as `out=`, `where=` or `casting=`, is a TypeError that names it.
- Any other NumPy function is a TypeError that names the nearest supported one. Tensors never become object arrays.
- `np.asarray(tensor)`, `float(tensor)` and methods of arrays (`array.dot(tensor)`) need a value, which a tensor does
  not have while the graph is built: they are TypeErrors. `array * tensor` and `np.dot(array, tensor)` record.
- Outside any graph a variable is its value: the same calls compute immediately. An IndexedSlices becomes dense.

Each example below is a test: its value, shape and dtype equal NumPy's, and its gradients, up to the given order, equal
finite differences.
"""

SYMBOLS = {
    "add": "x + y", "sub": "x - y", "mul": "x * y", "truediv": "x / y", "floordiv": "x // y", "mod": "x % y",
    "divmod": "divmod(x, y)", "pow": "x ** y", "matmul": "x @ y", "and": "x & y", "or": "x | y", "xor": "x ^ y",
    "lt": "x < y", "le": "x <= y", "gt": "x > y", "ge": "x >= y", "eq": "x == y", "ne": "x != y", "neg": "-x",
    "pos": "+x", "abs": "abs(x)", "invert": "~x", "round": "round(x)",
}  # fmt: skip


def functions() -> Iterable[str]:
    yield "## Functions\n"
    yield "| function | supported arguments | gradient | example | remarks |"
    yield "|---|---|---|---|---|"
    for row in sorted(ROWS, key=lambda row: (row.path.count("."), row.path)):
        cells = (f"`np.{row.path}`", arguments(row), gradient(row), f"`{row.example}`", remarks(row))
        yield f"| {' | '.join(cells)} |"


def arguments(row: Row) -> str:
    """The arguments that are taken; for a ufunc, whose operands have no names, nothing but them."""
    f = numpy_api.numpy_function(row.path)
    if hasattr(f, "nin"):
        return "its operands"
    parameters = inspect.signature(numpy_api.NAMES[row.path]).parameters.values()
    return ", ".join(f"`{p.name}`" for p in parameters if p.name != "name")


def gradient(row: Row) -> str:
    return f"orders 1–{row.order}" if row.order else "none"


def remarks(row: Row) -> str:
    f = numpy_api.numpy_function(row.path)
    aliases = [f"`np.{name}`" for name in sorted(numpy_api.NAMES) if numpy_api.numpy_function(name) == f]
    others = [name for name in aliases if name != f"`np.{row.path}`"]
    return "; ".join(part for part in (row.remark, others and f"also {', '.join(others)}") if part)


def listing(title: str, text: str, names: Iterable[str]) -> Iterable[str]:
    yield f"\n## {title}\n"
    yield f"{text}\n"
    yield ", ".join(f"`{name}`" for name in names) + "."


def operators() -> list[str]:
    names = (*methods.BINARY, *methods.COMPARISONS, *methods.UNARY)
    return [*[SYMBOLS[name] for name in names], "x[key]", "len(x)", "iter(x)"]


def page() -> str:
    lines: list[Any] = [HEAD, *functions()]
    lines += listing("Operators", "On either side of an array; `==` of a variable is identity.", operators())
    lines += listing("Methods", "With the arguments of the functions of the same name.", sorted(methods.METHODS))
    lines += listing("Attributes", "In addition to `shape` and `dtype`.", sorted(methods.PROPERTIES))
    refused = [name for name in (*methods.VALUES, *methods.WRITES) if not name.startswith("_")]
    text = "TypeErrors, because a tensor has no value while the graph is built, and never changes; so is `x[key] = y`."
    lines += listing("Refused", text, refused)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="print the page instead of writing docs/numpy.md")
    if parser.parse_args().print:
        sys.stdout.write(page())
    else:
        (ROOT / "docs" / "numpy.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
