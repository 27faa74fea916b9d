"""Calls with bad arguments: what distgrad raises for each, what TensorFlow raises, and why where they differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import distgrad as dg
from tests.conformance.questions import attempt


class BadCall(NamedTuple):
    """A call, given the library and a vector x of its own; what it raises."""

    what: str
    call: Callable[[Any, Any], Any]
    distgrad: str
    #: Where it is another one.
    tensorflow: str | None = None


def _f32(*values: float) -> Any:
    return np.array(values, np.float32)


def _custom(m: Any, x: Any, grad_fn: Any) -> Any:
    y = m.custom_gradient(lambda x: (x * x, grad_fn))(x)
    return m.gradients(y, x)


BAD_CALLS: list[BadCall] = [
    BadCall("too few grad_ys", lambda m, x: m.gradients([x * x, x], x, grad_ys=[x]), "ValueError"),
    BadCall("too many grad_ys", lambda m, x: m.gradients(x * x, x, grad_ys=[x, x]), "ValueError"),
    BadCall("empty grad_ys", lambda m, x: m.gradients(x * x, x, grad_ys=[]), "ValueError"),
    BadCall("bool grad_ys", lambda m, x: m.gradients(x * x, x, grad_ys=m.constant(True)), "TypeError"),
    BadCall("complex grad_ys", lambda m, x: m.gradients(x * x, x, grad_ys=m.constant(1j)), "TypeError"),
    BadCall("float64 grad_ys", lambda m, x: m.gradients(x * x, x, grad_ys=m.constant(np.ones(2))), "TypeError"),
    BadCall("grad_ys of 3", lambda m, x: m.gradients(x * x, x, grad_ys=m.constant(_f32(1, 1, 1))), "ValueError"),
    BadCall("unconnected", lambda m, x: m.gradients(x * x, x, unconnected_gradients="nonsense"), "ValueError"),
    BadCall("aggregation_method", lambda m, x: m.gradients(x * x, x, aggregation_method=17), "ValueError"),
    BadCall("an object as ys", lambda m, x: m.gradients(object(), x), "TypeError"),
    BadCall("a dict as xs", lambda m, x: m.gradients(x * x, {"x": x}), "TypeError"),
    BadCall("a nested list as xs", lambda m, x: m.gradients(x * x, [[x]]), "TypeError"),
    BadCall("None as ys", lambda m, x: m.gradients(None, x), "TypeError", "AttributeError"),
    BadCall("None in xs", lambda m, x: m.gradients(x * x, [x, None]), "TypeError", "AttributeError"),
    BadCall("a float to stop at", lambda m, x: m.gradients(x, x, stop_gradients=[1.0]), "TypeError", "AttributeError"),
    BadCall("None to stop at", lambda m, x: m.gradients(x, x, stop_gradients=[None]), "TypeError", "AttributeError"),
    BadCall("an invalid name", lambda m, x: m.gradients(x * x, x, name="no spaces"), "ValueError"),
    BadCall("colocate", lambda m, x: m.gradients(x * x, x, colocate_gradients_with_ops=True), "TypeError"),
    BadCall("a number as op type", lambda m, x: m.RegisterGradient(5), "TypeError"),
    BadCall("None as op type", lambda m, x: m.no_gradient(None), "TypeError"),
    BadCall("a type of the library", lambda m, x: m.RegisterGradient("Exp")(lambda op, g: g), "KeyError"),
    BadCall("and no gradient for it", lambda m, x: m.no_gradient("Exp"), "KeyError"),
    BadCall("None as argument", lambda m, x: m.custom_gradient(lambda x: (x, lambda dy: dy))(None), "ValueError"),
    BadCall("three results", lambda m, x: m.custom_gradient(lambda x: (x, x, lambda dy: dy))(x), "ValueError"),
    BadCall("grad_fn is a number", lambda m, x: m.custom_gradient(lambda x: (x, 3))(x), "TypeError"),
    BadCall("too many gradients", lambda m, x: _custom(m, x, lambda dy: (dy, dy)), "ValueError"),
    BadCall("a gradient of 3", lambda m, x: _custom(m, x, lambda dy: m.constant(_f32(1, 1, 1))), "ValueError"),
    BadCall("grad_fn of no arguments", lambda m, x: _custom(m, x, lambda: x), "TypeError"),
    BadCall("grad_fn fails", lambda m, x: _custom(m, x, lambda dy: {}["key"]), "KeyError"),
]


def bad_calls() -> tuple[int, list[str]]:
    """How many raise another exception on purpose, and a line for each that is not as the table says."""
    wrong = []
    for bad in BAD_CALLS:
        with dg.Graph():
            ours = attempt(lambda bad=bad: bad.call(dg, dg.constant(_f32(2, 3))))
        with tf.Graph().as_default():
            theirs = attempt(lambda bad=bad: bad.call(tf, tf.constant(_f32(2, 3))))
        if (ours, theirs) != (bad.distgrad, bad.tensorflow or bad.distgrad):
            wrong.append(f"{bad.what}: distgrad {ours}, TensorFlow {theirs}; expected {bad[2:]}")
    return sum(bad.tensorflow is not None for bad in BAD_CALLS), wrong
