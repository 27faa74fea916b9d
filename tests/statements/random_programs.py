"""Random programs of assignments, views, scalars, masks and aliases: the same text runs with NumPy and with distgrad.

A program is written statement by statement, and each statement is tried with NumPy first, so that every program is
valid there. It returns all of its variables.

    .venv/bin/python -m tests.statements.random_programs --programs 10000
"""

from __future__ import annotations

import argparse
import random
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import distgrad as dg
import distgrad.numpy

#: Errors that say what is not supported. Anything else is a failure.
REFUSALS = (TypeError, ValueError, IndexError)
SHAPES: list[tuple[int, ...]] = [(3, 4), (4,), (2, 3, 2)]
LIMIT = 1e4


class Program(NamedTuple):
    lines: list[str]
    names: list[str]

    def text(self) -> str:
        body = "\n".join(f"    {line}" for line in [*self.lines, f"return ({', '.join(self.names)},)"])
        return f"def program(np, x, y, z):\n{body}\n"

    def function(self) -> Callable[..., Any]:
        space: dict[str, Any] = {}
        exec(compile(self.text(), "<program>", "exec"), space)
        made: Callable[..., Any] = space["program"]
        return made


def inputs(seed: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    return tuple(rng.uniform(-2, 2, shape) for shape in SHAPES)


class Writer:
    """Writes a program, and keeps the state that NumPy has after each line."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.state: dict[str, Any] = dict(zip("xyz", inputs(0), strict=True))
        self.lines: list[str] = []
        self.count = 0

    def program(self, length: int) -> Program:
        for _ in range(length * 3):
            if len(self.lines) >= length:
                break
            self.attempt(self.rng.choice(STATEMENTS)(self))
        return Program(self.lines, [*self.state])

    def attempt(self, line: str | None) -> None:
        """Keep a line if NumPy can run it; a failed one leaves no trace."""
        if line is None:
            return
        state = _run(self.lines + [line], self.rng)
        if state is not None:
            self.lines.append(line)
            self.state = state

    # -- names and expressions; thresholds are odd numbers, so that no comparison is decided by the rounding of a sum

    def new(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def pick(self, wanted: Callable[[Any], bool] = lambda value: True) -> str | None:
        names = [name for name, value in self.state.items() if wanted(value)]
        return self.rng.choice(names) if names else None

    def array(self) -> str:
        return self.pick(lambda value: isinstance(value, np.ndarray)) or "x"

    def key(self, name: str, fancy: bool = True) -> str:
        shape = self.state[name].shape
        if not shape:
            return self.rng.choice(["...", "()"])
        if fancy and self.rng.random() < 0.25:
            return self.fancy(shape)
        parts = [self.part(n) for n in shape[: self.rng.randint(1, len(shape))]]
        if self.rng.random() < 0.2:
            parts.insert(self.rng.randint(0, len(parts)), self.rng.choice(["...", "None"]))
        return ", ".join(parts)

    def part(self, n: int) -> str:
        pick = self.rng.random()
        if pick < 0.45:
            return str(self.rng.randint(-n, n - 1)) if n else ":"
        a, b = self.rng.randint(0, n), self.rng.randint(0, n)
        return self.rng.choice([":", f"{a}:", f":{b}", f"{min(a, b)}:{max(a, b)}", "::2", "::-1", f"{a}::-1", "1:-1"])

    def fancy(self, shape: tuple[int, ...]) -> str:
        n = shape[0]
        picks = [self.rng.randint(-n, n - 1) for _ in range(self.rng.randint(1, 3))] if n else []
        form = self.rng.choice(["[{}]", "np.array([{}], dtype=int)", "[{}], ...", "..., [{}]"])
        if form.startswith("..."):
            n = shape[-1]
            picks = [self.rng.randint(-n, n - 1) for _ in picks] if n else []
        return form.format(", ".join(map(str, picks)))

    def value(self, fits: str | None = None) -> str:
        """An expression: a number, an element, or an array."""
        a = self.array()
        options = [
            str(self.rng.randint(-2, 2)), f"{self.rng.uniform(-2, 2):.2f}", a, f"np.sin({a})", f"{a} * 0.5",
            f"{a}[{self.key(a)}]", f"np.sum({a})", f"{a}.mean()", f"-{a}", f"{a} + {self.array()}",
        ]  # fmt: skip
        if fits is not None:
            b = fits
            options += [f"{b} * 0.5", f"{b}[{self.key(b)}]", f"np.cos({b})", f"{b}.T", f"{b}[::-1]"] * 2
        scalar = self.pick(lambda value: isinstance(value, np.generic))
        return self.rng.choice([*options, scalar] if scalar else options)

    def number(self) -> str:
        a = self.array()
        return self.rng.choice(["1", "0.5", "-1.5", f"np.sum({a})", f"{a}.max()"])


def _run(lines: list[str], rng: random.Random) -> dict[str, Any] | None:
    """The variables after these lines in NumPy; None if they fail, or grow too large."""
    state: dict[str, Any] = {"np": np, **dict(zip("xyz", inputs(0), strict=True))}
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("error", np.exceptions.ComplexWarning)
            warnings.simplefilter("error", DeprecationWarning)
            for line in lines:
                exec(line, state)
    except Exception:
        return None
    made = {name: value for name, value in state.items() if name not in ("np", "__builtins__", "row", "i")}
    for value in made.values():
        if not isinstance(value, np.ndarray | np.generic | int | float) or np.size(value) > 200:
            return None
        if np.asarray(value).dtype.kind not in "biufc" or not np.all(np.abs(np.asarray(value, complex)) < LIMIT):
            return None
    return made


# -- statements --------------------------------------------------------------------------------------------------


def view(w: Writer) -> str:
    a = w.array()
    n = w.state[a].ndim
    forms = [
        f"{a}[{w.key(a, fancy=False)}]", f"{a}.T", f"{a}.reshape(-1)", f"{a}.ravel()", f"np.swapaxes({a}, 0, -1)",
        f"{a}[None]", f"np.squeeze({a})", f"np.flip({a})", f"np.expand_dims({a}, 0)", f"np.atleast_2d({a})",
        f"{a}.real", f"np.asarray({a})", f"np.transpose({a})", f"{a}.reshape({a}.size, 1)", f"np.moveaxis({a}, 0, -1)",
        f"np.split({a}, 2)[1]", f"np.array_split({a}, 2)[0]", a, f"{a}[...]", f"np.diagonal({a})", f"np.ravel({a})",
        f"np.broadcast_to({a}, (2, *{a}.shape))", f"np.rot90({a})", f"{a}[:]", f"np.diag({a})", f"{a}.squeeze()",
        f"np.reshape({a}, (2, -1))", f"{a}.swapaxes(0, 1)", f"np.fliplr({a})", f"np.atleast_1d({a})",
    ]  # fmt: skip
    return f"{w.new()} = {w.rng.choice(forms if n else forms[:6])}"


def copied(w: Writer) -> str:
    a, b = w.array(), w.array()
    forms = [
        f"{a}.copy()", f"np.array({a})", f"{a}.flatten()", f"{a}.astype(float)", f"{a}.astype(int)", f"np.sin({a})",
        f"{a} * {b}", f"np.concatenate([{a}, {a}])", f"np.where({a} > 0.0123, {a}, 0.5)", f"np.sum({a}, axis=0)",
        f"np.tile({a}, 1)", f"np.repeat({a}, 1)", f"np.roll({a}, 1)", f"np.cumsum({a})", f"np.zeros_like({a})",
        f"np.full_like({a}, 1.5)", f"np.copy({a})", f"+{a}", f"np.positive({a})", f"np.stack([{a}, {a}])",
        f"np.meshgrid({a}, [1.0, 2.0])[0]", f"np.diff({a})", f"{a}[{w.key(a)}] * 1", f"np.round({a}, 1)",
        f"np.maximum({a}, 0.1)", f"np.clip({a}, -1, 1)", f"np.conj({a})", f"np.nan_to_num({a})", f"np.abs({a})",
        f"np.take({a}, [0, 0], axis=0)", f"{a}[{w.fancy(w.state[a].shape)}]" if w.state[a].ndim else a,
        f"np.outer({a}, {b})",
        f"np.triu({a})", f"{a} @ {a}.T", f"np.einsum('ij->ji', {a})", "np.ones(3)", "np.zeros((3, 4))", "np.arange(4)",
        "np.array([1, 2, 3])", "np.empty((2, 2)) * 0", "np.zeros(())", "np.eye(3)", "np.linspace(0, 1, 4)",
        f"np.vstack([{a}, {a}])", f"np.hstack([{a}])", f"np.append({a}, 1.0)", f"np.pad({a}, 0)", f"np.sort({a})",
        f"np.add({a}, {b})", f"np.ascontiguousarray({a})", f"np.squeeze({a}) + 0", f"np.full(3, {a}.sum())",
        f"np.array([{a}.sum(), 1.0])", f"({a} > 0.0123)", f"{a} * 1j", f"np.r_[{a}, 1.0]", f"np.c_[{a}, {a}]",
    ]  # fmt: skip
    return f"{w.new()} = {w.rng.choice(forms)}"


def scalar(w: Writer) -> str:
    a = w.array()
    shape = w.state[a].shape
    full = ", ".join(str(w.rng.randint(0, n - 1)) for n in shape if n) or "()"
    forms = [f"{a}[{full}]", f"np.sum({a})", f"{a}.mean()", f"np.dot({a}.ravel(), {a}.ravel())"]
    return f"{w.new()} = {w.rng.choice(forms)}"


def operator(w: Writer) -> str:
    name = w.pick() or "x"
    sign = w.rng.choice(["+", "-", "*", "/", "+", "-", "*", "//", "%", "**"])
    value = w.value(name if isinstance(w.state[name], np.ndarray) else None)
    return f"{name} {sign}= {value if sign not in ('//', '%', '**') else w.rng.choice(['2', '1.5'])}"


def set_item(w: Writer) -> str:
    a = w.array()
    key = w.key(a)
    sign = w.rng.choice(["", "", "", "+", "-", "*", "/"])
    value = w.value(a)
    if w.rng.random() < 0.3:
        value = f"{w.rng.choice(['2 * ', '', '-'])}{a}[{w.key(a)}]"
    return f"{a}[{key}] {sign}= {value}"


def masked(w: Writer) -> str:
    a = w.array()
    mask = w.rng.choice([f"{a} > 0.0123", f"{a} < {a}.mean() + 0.0123", f"np.abs({a}) > 0.5123"])
    name = w.pick(lambda v: isinstance(v, np.ndarray) and v.dtype == bool and v.shape == w.state[a].shape)
    mask = name if name and w.rng.random() < 0.5 else mask
    forms = ["{a}[{m}] = {n}", "{a}[{m}] += {n}", "{a}[{m}] *= {n}", "{a}[{m}] = {a}[{m}] ** 2", "{t} = {a}[{m}].sum()"]
    return w.rng.choice(forms).format(a=a, m=mask, n=w.number(), t=w.new())


def function(w: Writer) -> str:
    a, b = w.array(), w.array()
    shape = w.state[a].shape
    forms = [
        f"np.add.at({a}, {w.rng.choice(['[0, 0]', '0', '[-1, 0, -1]'])}, {w.value(a)})",
        f"np.copyto({a}, {w.value(a)})",
        f"np.sin({b}, out={a})", f"np.add({a}, {w.value(a)}, out={b})", f"{a}.fill({w.number()})",
        f"np.multiply({a}, {b}, {b})", f"np.fill_diagonal({a}, {w.number()})", f"np.sum({a}, axis=0, out={b})",
        f"{a}.sort()", f"np.put({a}, [0, -1], {w.value()})", f"np.putmask({a}, {a} > 0.0123, {w.number()})",
        f"np.subtract.at({a}, [0, 1, 0], 1.0)", f"np.maximum({a}, 0, out={a})", f"{a}.real = {w.number()}",
        f"np.cumsum({a}, axis=0, out={b})",
        f"{a}.imag = {w.number()}" if w.state[a].dtype.kind == "c" else f"{a}.T[0] = 1",
        f"np.copyto({a}, {w.number()}, where={a} > 0.0123)", f"np.matmul({a}, {b}, out={w.array()})",
    ]  # fmt: skip
    return w.rng.choice(forms) if shape else forms[1]


def loop(w: Writer) -> str:
    a = w.array()
    forms = [
        f"for row in {a}: row += {w.number()}", f"for row in {a}: row[0] = {w.number()}",
        f"for i in range(1, len({a})): {a}[i] = 0.5 * {a}[i - 1] + {a}[i]", f"for row in {a}: row[...] = row[::-1]",
        f"for i in range(len({a}) - 1): {a}[i + 1] -= 0.5 * {a}[i]", f"for i, row in enumerate({a}.T): row *= i",
        f"for i in np.arange(2): {a}[i] += i",
    ]  # fmt: skip
    return w.rng.choice(forms)


STATEMENTS: list[Callable[[Writer], str | None]] = [
    view, view, view, copied, copied, scalar, operator, operator, set_item, set_item, set_item, masked, function, loop,
]  # fmt: skip


def write_program(rng: random.Random) -> Program:
    return Writer(rng).program(rng.randint(3, 12))


# -- checking ----------------------------------------------------------------------------------------------------


class Difference(AssertionError):
    """A result that is not NumPy's."""


def check(program: Program, seed: int = 0) -> str:
    """Compare values and a directional derivative; says 'equal' or why the program is refused. Difference otherwise."""
    f, arrays = program.function(), inputs(seed)
    with np.errstate(all="ignore"):
        expected = f(np, *[x.copy() for x in arrays])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = dg.function(lambda x, y, z: f(distgrad.numpy, x, y, z))(*arrays)
        except REFUSALS as e:
            if not str(e) or isinstance(e, UnicodeError):
                raise
            return f"{type(e).__name__}: {e}"
        for name, a, b in zip(program.names, found, expected, strict=True):
            _same(program, name, a, b)
        return _check_slope(program, f, arrays, expected)


def _same(program: Program, name: str, found: Any, expected: Any) -> None:
    a, b = np.asarray(found), np.asarray(expected)
    if a.shape != b.shape or a.dtype != b.dtype or not np.allclose(a, b, rtol=1e-7, atol=1e-9, equal_nan=True):
        raise Difference(f"{name} is\n{a!r}\nand in NumPy\n{b!r}\n{program.text()}")


def _total(results: Any) -> Any:
    terms = [np.sum(np.real(r) * (0.3 + 0.1 * i)) for i, r in enumerate(results) if np.asarray(r).dtype.kind in "fc"]
    return sum(terms)


def _check_slope(program: Program, f: Callable[..., Any], arrays: Any, expected: Any) -> str:
    rng = np.random.default_rng(1)
    towards = [rng.uniform(-1, 1, x.shape) for x in arrays]

    def total(*xs: Any) -> Any:
        results = f(distgrad.numpy, *xs)
        kept = [r for r, e in zip(results, expected, strict=True)]
        terms = [
            distgrad.numpy.sum(distgrad.numpy.real(r) * (0.3 + 0.1 * i))
            for i, (r, e) in enumerate(zip(kept, expected, strict=True))
            if np.asarray(e).dtype.kind in "fc"
        ]
        return dg.cast(sum(terms) + 0.0 * distgrad.numpy.sum(xs[0]), float)

    try:
        grads = dg.grad(total, argnums=(0, 1, 2))(*arrays)
    except LookupError:
        return "no gradient"
    slope = sum(np.sum(g * t) for g, t in zip(grads, towards, strict=True))

    def at(step: float) -> float:
        return float(np.real(_total(f(np, *[x + step * t for x, t in zip(arrays, towards, strict=True)]))))

    with np.errstate(all="ignore"):
        found = [(at(h) - at(-h)) / (2 * h) for h in (1e-5, 1e-6)]
    if not all(np.isfinite(found)) or abs(found[0] - found[1]) > 1e-3 * (1 + abs(found[0])):
        return "not smooth"
    if not np.isclose(slope, found[0], rtol=2e-3, atol=2e-3 * max(1.0, abs(found[0]))):
        ours = [float(np.real(dg.function(total)(*[x + h * t for x, t in zip(arrays, towards, strict=True)])))
                for h in (1e-5, -1e-5)]  # fmt: skip
        if np.isclose(slope, (ours[0] - ours[1]) / 2e-5, rtol=2e-3):
            return "not smooth"  # a tie that rounding decides, otherwise than in NumPy
        raise Difference(f"the slope is {slope}, by differences {found}\n{program.text()}")
    return "equal"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=3, help="how many failures to print in full")
    parser.add_argument("--refused", help="print programs that are refused with this text")
    given = parser.parse_args()
    outcomes: Counter[str] = Counter()
    failures = 0
    for i in range(given.programs):
        program = write_program(random.Random(f"{given.seed}/{i}"))
        try:
            outcome = check(program)
            if given.refused and given.refused in outcome:
                print(outcome, program.text(), sep="\n")
            outcomes[outcome if outcome in ("equal", "not smooth", "no gradient") else "refused: " + outcome[:110]] += 1
        except Exception:
            failures += 1
            outcomes["FAILED"] += 1
            if failures <= given.show:
                print(f"program {given.seed}/{i}:\n{program.text()}")
                traceback.print_exc(limit=-4)
    for outcome, count in outcomes.most_common(40):
        print(f"{count:6d} {outcome}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
