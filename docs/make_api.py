"""Writes docs/api/*.md, the reference of the public API, from signatures and docstrings: `make docs-api`.

Docstrings are in Google's style: paragraphs, sections such as `Args:` and `Raises:`, and examples with `>>>`.
"""

from __future__ import annotations

import argparse
import enum
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import distgrad as dg  # noqa: E402
from distgrad.ops import methods  # noqa: E402

API = ROOT / "docs" / "api"
MARK = "<!-- Written by docs/make_api.py from docstrings: change those, then run `make docs-api`. -->"
WIDTH = 100  # columns of a signature on one line; longer ones have one parameter per line
#: Methods of public classes that only distgrad itself calls.
INTERNAL = {"add", "admit", "clean", "in_place", "local", "memo", "stand_in"}


class Section(NamedTuple):
    """Public names of a module under one heading; no heading if it is empty."""

    title: str
    names: Iterable[str]
    module: str = ""
    text: str = ""


class Page(NamedTuple):
    title: str
    text: str
    sections: list[Section]


def names(text: str) -> list[str]:
    return text.split()


PAGES = {
    "building": Page(
        "Building graphs",
        "Functions that are traced, graphs that are built by hand, and what they consist of.",
        [
            Section("Functions and graphs", names("function Graph Operation Tensor check_graph")),
            Section("State", ["Variable"]),
            Section(
                "Inputs and order",
                names(
                    "constant convert_to_tensor placeholder identity identity_n group tuple no_op control_dependencies"
                ),
            ),
            Section("Names and devices", names("name_scope device")),
            Section("Functions kept as one op, and your own ops", names("Defun op")),
            Section("Sparse values", names("IndexedSlices IndexedSlicesValue")),
        ],
    ),
    "gradients": Page(
        "Gradients",
        "TensorFlow's `gradients` on graphs, derivatives of functions, and your own gradient rules.",
        [
            Section("On graphs", names("gradients AggregationMethod UnconnectedGradients")),
            Section(
                "Of functions",
                names("grad value_and_grad vjp jvp jacobian hessian hessians hvp hessian_vector_product"),
            ),
            Section("Why a gradient is None", ["explain_gradient"]),
            Section(
                "Rules",
                names(
                    "RegisterGradient no_gradient NoGradient NotDifferentiable custom_gradient recompute_grad "
                    "grad_pass_through stop_gradient prevent_gradient"
                ),
            ),
        ],
    ),
    "running": Page(
        "Running and saving",
        "Sessions, plans, checkpoints, and the errors of a run.",
        [
            Section("Sessions and plans", names("Session Plan data_parallel Handle")),
            Section(
                "Checkpoints and files",
                names("Checkpoints save_checkpoint restore_checkpoint from_checkpoint latest_checkpoint load_tensor"),
            ),
            Section(
                "Errors",
                names(
                    "BudgetError DeviceError FingerprintError NumericsError TaskFailed StoreFull ClusterLost "
                    "CheckpointError"
                ),
            ),
        ],
    ),
    "functions": Page(
        "NumPy's functions",
        "Functions with NumPy's names and arguments. On tensors they record ops; on arrays they compute immediately. "
        "NumPy's own functions\ndo the same when they are called with tensors: see [the table](../numpy.md). The "
        "elementwise functions are in `dg.math`, too.",
        [
            Section(
                "Creating arrays",
                names(
                    "cast add_n full ones ones_like rank shape size zeros zeros_like arange eye full_like linspace "
                    "meshgrid"
                ),
            ),
            Section(
                "Changing shapes",
                names(
                    "array_split atleast_1d atleast_2d broadcast_arrays broadcast_to column_stack concatenate diag "
                    "diagonal dstack expand_dims flip fliplr flipud hstack moveaxis pad permute_dims ravel repeat "
                    "reshape roll rot90 split squeeze stack swapaxes tile trace transpose tril triu unstack vstack "
                    "append atleast_3d block delete diagflat dsplit hsplit insert rollaxis vander vsplit"
                ),
            ),
            Section(
                "Indexing",
                names(
                    "gather gather_nd getitem one_hot scatter scatter_add scatter_nd take take_along_axis "
                    "unsorted_segment_sum"
                ),
            ),
            Section(
                "Elementwise functions",
                names(
                    "acos acosh angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan atan2 "
                    "atanh cbrt cos cosh deg2rad degrees digamma erf erfc exp exp2 expm1 hypot lgamma log log10 log1p "
                    "log2 logaddexp polygamma pow power rad2deg radians rsqrt sigmoid sin sinc sinh sqrt tan tanh abs "
                    "absolute add bitwise_and bitwise_invert bitwise_not bitwise_or bitwise_xor ceil clip conj "
                    "conjugate divide equal fabs fix floor floor_divide greater greater_equal imag invert isclose "
                    "isfinite isinf isnan less less_equal logical_and logical_not logical_or logical_xor maximum "
                    "minimum mod multiply nan_to_num negative not_equal positive real reciprocal remainder rint round "
                    "sign square subtract true_divide trunc where"
                ),
            ),
            Section(
                "More elementwise functions",
                names(
                    "copysign float_power fmax fmin fmod heaviside iscomplex isneginf isposinf isreal ldexp logaddexp2 "
                    "modf piecewise select signbit"
                ),
            ),
            Section("Products", names("cross dot einsum inner kron matmul outer tensordot vdot vecdot")),
            Section(
                "Reductions, sorting and scans",
                names(
                    "all allclose amax amin any argmax argmin argsort average count_nonzero cumprod cumsum diff "
                    "linear_scan logsumexp max mean median min nanmean nansum prod ptp sort std sum top_k trapezoid "
                    "var partition argpartition"
                ),
            ),
            Section(
                "Samples and sorted values",
                names("bincount corrcoef cov digitize histogram histogram_bin_edges interp searchsorted"),
            ),
        ],
    ),
    "nn": Page("dg.nn", "Layers, losses and convolutions.", [Section("", dg.nn.__all__, "nn")]),
    "linalg": Page("dg.linalg", "Decompositions, solvers and norms.", [Section("", dg.linalg.__all__, "linalg")]),
    "fft": Page("dg.fft", "Discrete Fourier transforms.", [Section("", dg.fft.__all__, "fft")]),
    "random": Page("dg.random", "Random numbers from keys.", [Section("", dg.random.__all__, "random")]),
    "more": Page(
        "More modules",
        "Tests of gradients, TensorFlow's raw ops, progress bars, and the planner.",
        [
            Section("dg.testing", ["check_grads"], "testing"),
            Section("dg.raw_ops", dg.raw_ops.__all__, "raw_ops"),
            Section("dg.progress", ["track"], "progress"),
            Section(
                "dg.scheduler",
                names("Cluster Worker Machine load_cluster local_cluster Task"),
                "scheduler",
                "Clusters and plans. The rest of this module is for those who change how plans are made.",
            ),
        ],
    ),
}

INDEX = f"""\
{MARK}

# API

`import distgrad as dg` is all that a user imports.

| page | contents |
|---|---|
| [Building graphs](building.md) | `function`, `Graph`, `Variable`, `placeholder`, `Defun`, `op`, `device` |
| [Gradients](gradients.md) | `gradients`, `grad`, `vjp`, `jacobian`, `hessian`, `RegisterGradient`, `custom_gradient` |
| [Running and saving](running.md) | `Session`, `Plan`, `data_parallel`, `Checkpoints`, errors |
| [NumPy's functions](functions.md) | `exp`, `sum`, `concatenate`, `where`, `einsum`, … |
| [dg.nn](nn.md) | layers, losses, convolutions |
| [dg.linalg](linalg.md) | decompositions, solvers, norms |
| [dg.fft](fft.md) | discrete Fourier transforms |
| [dg.random](random.md) | random numbers from keys |
| [More modules](more.md) | `dg.testing`, `dg.raw_ops`, `dg.progress`, `dg.scheduler` |

Every name has an example, and the tests run every example. In signatures, `Tensor` is a tensor while a graph is
built and a NumPy array otherwise; `Any` is anything that can be converted to one.
"""


# -- pages -------------------------------------------------------------------------------------------------------


def pages() -> dict[str, str]:
    """The text of each page by the name of its file."""
    return {"index.md": INDEX} | {f"{name}.md": "\n".join(lines(page)) + "\n" for name, page in PAGES.items()}


def lines(page: Page) -> Iterator[str]:
    yield f"{MARK}\n\n# {page.title}\n\n{page.text}"
    for section in page.sections:
        if section.title:
            yield f"\n## {section.title}"
        if section.text:
            yield f"\n{section.text}"
        space = getattr(dg, section.module) if section.module else dg
        prefix = f"dg.{section.module}." if section.module else "dg."
        for name in section.names:
            yield from entry(prefix + name, getattr(space, name), "###" if section.title else "##")


def entry(name: str, it: Any, level: str) -> Iterator[str]:
    yield f"\n{level} {name}"
    yield f"\n```py\n{signature(name, it)}\n```"
    yield f"\n{markdown(inspect.getdoc(it) or '')}"
    if inspect.isclass(it):
        shown = {key: value for key, value in vars(it).items() if is_shown(key, value)}
        same = [key for key in shown if key in methods.METHODS or key in methods.PROPERTIES]
        if same:
            yield "\nMethods and attributes of arrays: see [NumPy on tensors](../numpy.md#methods)."
        for key in (key for key in shown if key not in same):
            yield from member(name, key, shown[key], level + "#")


def is_shown(key: str, value: Any) -> bool:
    kinds = (property, classmethod, staticmethod)
    is_member = inspect.isfunction(value) or isinstance(value, kinds)
    return is_member and bool(value.__doc__) and not key.startswith("_") and key not in INTERNAL


def member(owner: str, key: str, value: Any, level: str) -> Iterator[str]:
    short = owner.rpartition(".")[2]
    yield f"\n{level} {short}.{key}"
    if isinstance(value, property):
        returned = inspect.signature(value.fget).return_annotation if value.fget else inspect.Signature.empty
        shown = f"{key}: {annotation(returned)}" if returned is not inspect.Signature.empty else key
        yield f"\n```py\n{shown}\n```"
    else:
        function = getattr(value, "__func__", value)
        yield f"\n```py\n{signature(key, function, is_method=not isinstance(value, staticmethod))}\n```"
    yield f"\n{markdown(inspect.cleandoc(value.__doc__))}"


# -- signatures --------------------------------------------------------------------------------------------------


class Plain(str):
    """An annotation or a default that is shown as it is written."""

    def __repr__(self) -> str:
        return str(self)


def signature(name: str, it: Any, is_method: bool = False) -> str:
    head = f"class {name}" if inspect.isclass(it) else name
    if inspect.isclass(it) and (constants := constants_of(it)):
        return f"{head}: {', '.join(constants)}"
    try:
        found = inspect.signature(it)
    except ValueError:
        return f"{head}(*args, **kwargs)"
    parameters = [
        p.replace(annotation=annotation(p.annotation), default=default(p.default)) for p in found.parameters.values()
    ]
    parameters = parameters[1:] if is_method else parameters
    returned = annotation(found.return_annotation) if not inspect.isclass(it) else inspect.Signature.empty
    text = str(found.replace(parameters=parameters, return_annotation=returned))
    if inspect.isclass(it) and not parameters:
        return head
    return head + text if len(head + text) <= WIDTH else head + wrapped(parameters, returned)


def constants_of(it: type) -> list[str]:
    """The names that an enumeration, or a class of constants, consists of."""
    return [key for key, value in vars(it).items() if key.isupper() and isinstance(value, enum.Enum | int | str)]


def wrapped(parameters: list[inspect.Parameter], returned: Any) -> str:
    """One parameter per line."""
    whole = str(inspect.Signature(parameters, return_annotation=returned))
    rows = []
    for i, p in enumerate(parameters):
        keyword = p.kind is p.KEYWORD_ONLY
        if keyword and (i == 0 or parameters[i - 1].kind not in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)):
            rows.append("*")
        rows.append(str(p))
        if p.kind is p.POSITIONAL_ONLY and parameters[i + 1 : i + 2] and parameters[i + 1].kind is not p.kind:
            rows.append("/")
    end = whole.rpartition(") -> ")[2] if ") -> " in whole else ""
    return "(\n" + "".join(f"    {row},\n" for row in rows) + ")" + (f" -> {end}" if end else "")


def annotation(it: Any) -> Any:
    return Plain(it) if isinstance(it, str) else it


def default(it: Any) -> Any:
    """Types and members of enumerations by name; three dots for an object that has no short text."""
    if it is inspect.Parameter.empty:
        return it
    if isinstance(it, type):
        return Plain(it.__name__)
    if isinstance(it, enum.Enum):
        return Plain(f"{type(it).__name__}.{it.name}")
    if isinstance(it, float) and it >= 1e6:
        return Plain(f"{it:g}")
    return Plain(repr(it) if "<" not in repr(it) and len(repr(it)) < WIDTH // 2 else "...")


# -- docstrings --------------------------------------------------------------------------------------------------

TITLES = {"Args": "Parameters"}
SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes):\n((?:(?: .*)?\n?)+)", re.M)


def markdown(text: str) -> str:
    """A docstring as Markdown: its sections as lists, its examples as blocks of code."""
    return fenced(SECTION.sub(lambda found: listed(found[1], found[2]), text + "\n")).strip("\n")


def listed(title: str, body: str) -> str:
    heading = f"**{TITLES.get(title, title)}**\n\n"
    return heading + "".join(item(row) for row in rows(body)) + "\n"


def rows(body: str) -> Iterator[str]:
    """The items of a section: lines that are indented further belong to the one before."""
    text = inspect.cleandoc(body)
    for row in re.split(r"\n(?! |$)", text):
        if row.strip():
            yield re.sub(r"\s*\n\s*", " ", row.strip())


def item(row: str) -> str:
    found = re.match(r"([\w*, ]+): (.*)", row)
    if not found:
        return f"- {row}\n"
    shown = ", ".join(f"`{name}`" for name in found[1].split(", "))
    return f"- {shown}: {found[2]}\n"


def fenced(text: str) -> str:
    """Examples as blocks of code: Markdown takes their prompts for quotations."""
    return re.sub(r"(?m)^( *)>>> (?:.+\n?)+", _fence, text)


def _fence(found: re.Match[str]) -> str:
    space, shown = found[1], found[0].rstrip("\n")
    return f"{space}```pycon\n{shown}\n{space}```\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say which pages are out of date")
    found = pages()
    stale = [n for n, text in found.items() if not (API / n).exists() or (API / n).read_text(encoding="utf-8") != text]
    if parser.parse_args().check:
        sys.exit(f"out of date: {', '.join(stale)}; run `make docs-api`" if stale else 0)
    for name in stale:
        (API / name).write_text(found[name], encoding="utf-8")


if __name__ == "__main__":
    main()
