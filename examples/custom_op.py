"""Fit a distribution of directions with functions that distgrad does not have: Bessel functions, from SciPy.

A compass reads 40 degrees, plus or minus one. The directions follow a von Mises distribution. Its density
exp(k cos(angle - mean)) / (2 pi I0(k)) contains a Bessel function, and its concentration k is about 3,000 for such a
steady compass. The example shows three things:

1. `@dg.op` turns a NumPy function into an op, and `@dg.RegisterGradient` defines its gradient.
2. The gradient of log(I0(k)) by the chain rule is NaN from k = 714 on: I0 overflows, and inf / inf is NaN. A session
   with `check_numerics=True` names the line. `@dg.custom_gradient` gives the function a form that never overflows.
3. `dg.testing.check_grads` compares both with finite differences, to second order.

    python examples/custom_op.py
    distgrad run examples/custom_op.py --workers 2

Nothing has to be installed on the workers: the kernel is sent with the plan.
"""

from __future__ import annotations

import argparse

import numpy as np

import distgrad as dg


@dg.op("BesselI", override=True)  # so that a notebook cell can run again
def bessel_i(x, *, order: int, scaled: bool = False):
    """The modified Bessel function I of an order, for x > 0; scaled, times exp(-x). A kernel: arrays in, arrays out."""
    import scipy.special

    return scipy.special.ive(order, x) if scaled else scipy.special.iv(order, x)


@dg.RegisterGradient("BesselI", override=True)
def _bessel_i_grad(op, g):
    """Written with ops that have gradients themselves, so there are gradients of any order."""
    (x,), order, scaled = op.inputs, op.attrs["order"], op.attrs["scaled"]
    slope = (bessel_i(x, order=order - 1, scaled=scaled) + bessel_i(x, order=order + 1, scaled=scaled)) / 2
    return g * (slope - op.outputs[0] if scaled else slope)


def naive_log_i0(x):
    """Correct, but useless for large x: the value is inf and the gradient NaN."""
    return np.log(bessel_i(x, order=0))


@dg.custom_gradient
def log_i0(x):
    """The same function, with the factor that would overflow cancelled in the value and in the gradient."""
    i0, i1 = bessel_i(x, order=0, scaled=True), bessel_i(x, order=1, scaled=True)
    return x + np.log(i0), lambda g: g * i1 / i0


def surprise(params, angles, log_i0=log_i0):
    """The mean of -log(density) over the angles. The parameters are the mean direction and the log of k."""
    mean, k = params[0], np.exp(params[1])
    return log_i0(k) + np.log(2 * np.pi) - np.mean(k * np.cos(angles - mean))


def derivatives(params, angles):
    """The value, the gradient, and the Hessian, which differentiates the custom gradient again."""
    return *dg.value_and_grad(surprise)(params, angles), dg.hessian(surprise)(params, angles)


def fit(angles: np.ndarray, steps: int) -> np.ndarray:
    """Maximum likelihood by Newton's method. The angles are split into four shards, which run in parallel."""
    step = dg.data_parallel(derivatives, shards=4, batch="angles")
    params = np.array([np.mean(angles[:100]), 7.0])
    for i in range(steps):
        value, slope, bend = step(params, angles)
        params = params - np.linalg.solve(bend, slope)
        print(f"step {i}  surprise {float(value):8.5f}  |gradient| {np.linalg.norm(slope):.1e}")
    return params


def show_nan(angles: np.ndarray) -> None:
    params = np.array([np.radians(40), np.log(3000.0)])
    naive = dg.grad(lambda params, angles: surprise(params, angles, naive_log_i0))
    print("gradient by the chain rule:   ", naive(params, angles))
    print("gradient by a custom gradient:", dg.grad(surprise)(params, angles))
    try:
        with dg.Session(check_numerics=True):
            naive(params, angles)
    except dg.NumericsError as e:
        print(f"with check_numerics: {e}\n")


def main(readings: int = 100_000, steps: int = 8) -> np.ndarray:
    """The mean, in degrees, and the concentration."""
    for function in (naive_log_i0, log_i0):
        dg.testing.check_grads(function, [np.array([0.5, 3.0, 40.0])], order=2)
    print("the gradients agree with finite differences, to second order")
    angles = np.random.default_rng(0).vonmises(np.radians(40), 3000.0, readings)
    show_nan(angles)
    mean, log_k = fit(angles, steps)
    found = np.array([np.degrees(mean), np.exp(log_k)])
    print(f"\nmean {found[0]:.3f} degrees (40), concentration {found[1]:,.0f} (3,000)")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readings", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=8, help="steps of Newton's method")
    main(**vars(parser.parse_args()))
