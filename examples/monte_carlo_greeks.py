"""The price of an Asian basket call and all of its Greeks, by adjoint Monte Carlo over many scenarios.

Four assets follow correlated geometric Brownian motions; the option pays the excess of their average, over assets and
months, above the strike. One backward pass gives every first derivative (deltas, vegas, rho, theta, and those of the
correlations, through the Cholesky factor); differentiating again gives the gammas. Scenarios are split into shards,
each with its own random key, so results do not depend on where they run; the spread of the shards gives standard
errors. The payoff is smoothed around the strike, because the second derivative of a kink is zero almost everywhere. The
geometric average is compared with a formula, the arithmetic average with bumping and revaluing.

    python examples/monte_carlo_greeks.py
    distgrad run examples/monte_carlo_greeks.py --workers 2
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np

import distgrad as dg

STRIKE, SMOOTHING, MONTHS, EXPIRY = 100.0, 0.5, 12, 1.0
PAIRS, TRIANGLE = np.triu_indices(4, 1), np.triu_indices(4)
#: Four spots; four volatilities, the rate, the time now, and the correlation of each pair.
SPOT, REST = np.array([95.0, 100.0, 105.0, 110.0]), np.array([0.35, 0.25, 0.2, 0.3, 0.03, 0.0, *[0.4] * 6])
NAMES = ["price", *[f"{name} {i}" for name in ("delta", "vega") for i in range(1, 5)], "rho", "theta"]
NAMES += [f"{name} {i + 1}{j + 1}" for name, at in (("corr.", PAIRS), ("gamma", TRIANGLE)) for i, j in np.transpose(at)]


def unpacked(rest):
    """Volatilities, rate, years to expiry, and the matrix of correlations."""
    pairs = dg.scatter(rest[6:], PAIRS, (4, 4))
    return rest[:4], rest[4], EXPIRY - rest[5], pairs + pairs.T + np.eye(4)


def normal_cdf(x):
    return 0.5 * (1 + dg.erf(x * 0.5**0.5))


def smooth_call(x):
    """The expectation of max(x - STRIKE, 0) if x has normal noise of width SMOOTHING."""
    z = (x - STRIKE) / SMOOTHING
    return SMOOTHING * (z * normal_cdf(z) + np.exp(-0.5 * z * z) / (2 * np.pi) ** 0.5)


def simulated(spot, rest, key, paths: int, geometric: bool):
    """The mean of the discounted payoff over the scenarios."""
    vol, rate, years, correlation = unpacked(rest)
    shocks = dg.random.normal(key, (paths, MONTHS, 4)) @ dg.linalg.cholesky(correlation).T
    steps = (rate - 0.5 * vol**2) * (years / MONTHS) + vol * np.sqrt(years / MONTHS) * shocks
    logs = np.log(spot) + np.cumsum(steps, axis=1)
    average = np.exp(np.mean(logs, axis=(1, 2))) if geometric else np.mean(np.exp(logs), axis=(1, 2))
    return np.exp(-rate * years) * np.mean(smooth_call(average))


def formula(spot, rest):
    """The exact price for the geometric average, which is log-normal: Black-Scholes with an adjusted drift."""
    vol, rate, years, correlation = unpacked(rest)
    dates = np.arange(1, MONTHS + 1) / MONTHS
    mean = np.mean(np.log(spot) + (rate - 0.5 * vol**2) * years * np.mean(dates))
    spread = np.sqrt(vol @ correlation @ vol / 16 * years * np.mean(np.minimum(dates[:, None], dates)))
    d = (mean - np.log(STRIKE)) / spread
    return np.exp(-rate * years) * (np.exp(mean + spread**2 / 2) * normal_cdf(d + spread) - STRIKE * normal_cdf(d))


def greeks(price):
    """A function that computes all of NAMES: the price, its gradient, and its Hessian with respect to the spots."""

    def all_of_them(*args):
        value, slopes = dg.value_and_grad(price, argnums=(0, 1))(*args)
        return np.concatenate([value[None], *slopes, dg.hessian(price)(*args)[TRIANGLE]])

    return dg.function(all_of_them)


def monte_carlo(of_scenarios, shards: int):
    """A function of the market that computes means over shards and their standard errors."""

    @partial(dg.data_parallel, shards=shards, batch="keys")
    def run(spot, rest, keys):
        found = of_scenarios(spot, rest, keys[0])
        return found, found**2

    def estimate(spot: np.ndarray, rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, square = run(spot, rest, dg.random.split(dg.random.key(0), shards))
        return mean, np.sqrt((square - mean**2) / (shards - 1))

    return estimate


def bumped(price, size: float = 1e-3) -> np.ndarray:
    """All of NAMES by central differences: two prices for each first derivative, four for each gamma."""
    x, units = np.concatenate([SPOT, REST]), size * np.eye(16)
    slopes = [price(x + u) - price(x - u) for u in units]
    pairs = units[np.transpose(TRIANGLE)]
    bends = [price(x + u + v) - price(x + u - v) - price(x - u + v) + price(x - u - v) for u, v in pairs]
    return np.array([price(x), *np.divide(slopes, 2 * size), *np.divide(bends, 4 * size**2)])


def draw(path: str, estimate, exact) -> None:
    """Plot price, delta and gamma of the first asset over the level of all spots, with standard errors and formula."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return print("no plot without matplotlib: pip install matplotlib")
    levels, figure = np.linspace(0.7, 1.3, 13), Figure(figsize=(12, 4), layout="constrained")
    mean, error = np.moveaxis([estimate(SPOT * level, REST) for level in levels], 0, -1)
    line = np.transpose([exact(SPOT * level, REST) for level in levels])
    for axes, i in zip(figure.subplots(1, 3), map(NAMES.index, ("price", "delta 1", "gamma 11")), strict=True):
        axes.plot(levels, line[i], color="0.6", label="formula")
        axes.errorbar(levels, mean[i], 2 * error[i], fmt=".", label="adjoint, ± 2 errors")
        axes.set(title=NAMES[i], xlabel="level of the spots")
    axes.legend()
    figure.savefig(path)
    print(f"plot written to {path}")


def main(paths: int = 2048, shards: int = 32, bumping: bool = True, plot: str | None = None) -> np.ndarray:
    """Greeks, errors and formula for the geometric average; Greeks, errors and bumped values for the arithmetic one."""
    exact, usual = greeks(formula), partial(simulated, paths=paths, geometric=False)
    geometric = monte_carlo(greeks(partial(simulated, paths=paths, geometric=True)), shards)
    adjoint, price = monte_carlo(greeks(usual), shards), monte_carlo(dg.function(usual), shards)
    found = [*geometric(SPOT, REST), exact(SPOT, REST), *adjoint(SPOT, REST)]
    begun = time.perf_counter()  # after the first call, which includes planning
    adjoint(SPOT, REST)
    between = time.perf_counter()
    if bumping:
        found.append(bumped(lambda x: price(x[:4], x[4:])[0]))
        print(f"adjoint: {between - begun:.2f} s; bumping, for 73 prices: {time.perf_counter() - between:.2f} s")

    print(f"{paths * shards:,} scenarios, with the geometric average, then with the arithmetic one\n")
    print("             adjoint     ± error     formula     adjoint     ± error" + "      bumped" * bumping)
    for name, *row in zip(NAMES, *found, strict=True):
        print(f"{name:8s}" + "".join(f"{x:12.5f}" for x in row))
    print(f"\nfurthest from the formula: {np.abs((found[0] - found[2]) / found[1]).max():.1f} standard errors")
    if plot:
        draw(plot, geometric, exact)
    return np.array(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paths", type=int, default=2048, help="scenarios per shard")
    parser.add_argument("--shards", type=int, default=32)
    parser.add_argument("--bumping", action=argparse.BooleanOptionalAction, default=True, help="compare with bumping")
    parser.add_argument("--plot", metavar="FILE", help="plot price, delta and gamma over the level of the spots")
    main(**vars(parser.parse_args()))
