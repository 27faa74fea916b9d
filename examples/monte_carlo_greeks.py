"""The price of an Asian basket call and all of its Greeks, by adjoint Monte Carlo over many scenarios.

Four assets follow correlated geometric Brownian motions; the option pays what their average, over all assets and twelve
months, ends above the strike. One backward pass gives every first derivative (deltas, vegas, rho, theta, and those of the
correlations, through the Cholesky factor); differentiating once more gives the gammas. Scenarios are cut into shards,
each with a random key of its own, so the numbers do not depend on where or how many at a time they run. The spread of
the shards gives standard errors.

The payoff is smoothed over a dollar around the strike, because second derivatives do not see a kink. With the geometric
average there is a formula, which checks all numbers; for the arithmetic one they are compared with bumping and revaluing.

    python examples/monte_carlo_greeks.py
    distgrad run examples/monte_carlo_greeks.py --workers 2
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import distgrad as dg

STRIKE, SMOOTHING, MONTHS = 100.0, 1.0, 12
MARKET = {
    "spot": np.array([95.0, 100.0, 105.0, 110.0]),
    "vol": np.array([0.35, 0.25, 0.2, 0.3]),
    "rate": np.array(0.03),
    "time": np.array(1.0),
    "correlation": np.full((4, 4), 0.4) + 0.6 * np.eye(4),
}


def normal_cdf(x):
    return 0.5 * (1 + dg.erf(x * 0.5**0.5))


def smooth_call(x, width):
    """What max(x - STRIKE, 0) is on average if x is spread normally by so much."""
    z = (x - STRIKE) / width
    return width * (z * normal_cdf(z) + np.exp(-0.5 * z * z) / (2 * np.pi) ** 0.5)


def simulated(market: dict, key, paths: int, geometric: bool):
    """The mean of the discounted payoff over so many scenarios."""
    dt = market["time"] / MONTHS
    root = dg.linalg.cholesky(market["correlation"])
    shocks = dg.random.normal(key, (paths, MONTHS, len(MARKET["spot"]))) @ root.T
    steps = (market["rate"] - 0.5 * market["vol"] ** 2) * dt + market["vol"] * np.sqrt(dt) * shocks
    logs = np.log(market["spot"]) + np.cumsum(steps, axis=1)
    average = np.exp(np.mean(logs, axis=(1, 2))) if geometric else np.mean(np.exp(logs), axis=(1, 2))
    return np.exp(-market["rate"] * market["time"]) * np.mean(smooth_call(average, SMOOTHING))


def formula(market: dict):
    """The exact price for the geometric average, whose logarithm is normal: Black and Scholes with its own drift."""
    months, vol, n = np.arange(1, MONTHS + 1) / MONTHS, market["vol"], len(MARKET["spot"])
    shared = np.mean(np.minimum(months[:, None], months)) * market["time"]
    variance = shared * np.sum(vol[:, None] * vol * market["correlation"]) / n**2
    mean = np.mean(np.log(market["spot"]) + (market["rate"] - 0.5 * vol**2) * market["time"] * np.mean(months))
    d = (mean - np.log(STRIKE)) / np.sqrt(variance)
    forward = np.exp(mean + variance / 2) * normal_cdf(d + np.sqrt(variance))
    return np.exp(-market["rate"] * market["time"]) * (forward - STRIKE * normal_cdf(d))


def greeks(price):
    """A function of the market (and of what else `price` takes) that gives all numbers of NAMES."""

    def all_of_them(market, *args):
        value, slopes = dg.value_and_grad(price)(market, *args)
        gamma = dg.hessian(lambda spot: price({**market, "spot": spot}, *args))(market["spot"])
        pairs = slopes["correlation"] + slopes["correlation"].T  # both places of a pair move together
        first = [slopes["spot"], slopes["vol"], slopes["rate"][None], -slopes["time"][None], pairs[PAIRS]]
        return np.concatenate([value[None], *first, gamma[SECOND]])

    return dg.function(all_of_them)


def monte_carlo(of_scenarios, shards: int, paths: int):
    """A function of the market that gives means over the shards, and their standard errors."""

    def of_shard(market, keys):
        found = of_scenarios(market, keys[0], paths)
        return found, found**2

    run, keys = dg.data_parallel(of_shard, shards, batch="keys"), dg.random.split(dg.random.key(0), shards)

    def estimate(market: dict) -> tuple[np.ndarray, np.ndarray]:
        mean, square = run(market, keys)
        return mean, np.sqrt((square - mean**2) / (shards - 1))

    return estimate


def bumped(price, size: float = 0.01) -> np.ndarray:
    """The same numbers by central differences of prices; `size` is relative for spots and vols."""
    unit = {name: np.eye(x.size).reshape(-1, *x.shape) * np.maximum(x, 0.1) for name, x in MARKET.items()}
    unit["correlation"] = [np.outer(a, b) + np.outer(b, a) for a, b in zip(*np.eye(4)[list(PAIRS)], strict=True)]
    moves = [(name, size * u) for name in MARKET for u in unit[name]]

    def at(*moved) -> float:
        market = dict(MARKET)
        for sign, name, move in moved:
            market[name] = market[name] + sign * move
        return float(price(market))

    first = [(at((1, *m)) - at((-1, *m))) / (2 * np.abs(m[1]).max()) for m in moves]
