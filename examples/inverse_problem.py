"""What is inside a plate? Reconstruct its heat conductivity from a few thermometers.

Heat spreads by du/dt = div(k grad u) + source. Each of 24 experiments heats the plate at one place, and thermometers at
36 of its 576 cells record temperatures. The unknown is the conductivity k of every cell. The misfit between simulated
and recorded temperatures is differentiated through all steps of the simulation and minimised by SciPy's L-BFGS.

    python examples/inverse_problem.py --plot plate.png
    distgrad run examples/inverse_problem.py --workers 2

Experiments are independent: they are the rows that `dg.data_parallel` splits into shards. With `dg.recompute_grad` only
the temperatures at the end of each section of the simulation are kept; the backward pass recomputes those in between.
The script prints the memory that the planner predicts with and without it.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.optimize import minimize

import distgrad as dg

STEP, STEPS_OF_SECTION = 0.1, 12
NOISE, SMOOTHNESS = 1e-3, 3.0


def truth(size: int) -> np.ndarray:
    """The log of the true conductivity: a plate with a good conductor and a bad one."""
    x, y = np.meshgrid(*[np.linspace(0, 1, size)] * 2)
    good, bad = (x - 0.3) ** 2 + (y - 0.35) ** 2, (x - 0.7) ** 2 + (y - 0.6) ** 2
    return 0.8 * np.exp(-40 * good) - 1.2 * np.exp(-30 * bad)


def sources(size: int) -> np.ndarray:
    """The heat source of each cell, one row per experiment."""
    heat = np.zeros((24, size, size))
    rows, columns = np.meshgrid(np.linspace(2, size - 3, 4).astype(int), np.linspace(2, size - 3, 6).astype(int))
    heat[np.arange(24), rows.ravel(), columns.ravel()] = 1.0
    return heat


def section(u, k, heat):
    """Several time steps. Heat flows between neighbours by the mean of their conductivities; none leaves the plate."""
    down, right = (k[1:] + k[:-1]) / 2, (k[:, 1:] + k[:, :-1]) / 2
    differences = np.diff(np.eye(len(k)), axis=0)  # differences of neighbours, as a matrix
    for _ in range(STEPS_OF_SECTION):
        flow_down, flow_right = down * (differences @ u), right * (u @ differences.T)
        u = u + STEP * (heat - differences.T @ flow_down - flow_right @ differences)
    return u


def readings(log_k, heat, sections: int, section=section):
    """The temperatures at every fourth cell after each section: [experiment, time, row, column]."""
    u, k, seen = np.zeros_like(heat), np.exp(log_k), []
    for _ in range(sections):
        u = section(u, k, heat)
        seen.append(u[:, 2::4, 2::4])
    return np.stack(seen, axis=1)


def misfit_of(sections: int, section):
    def misfit(log_k, heat, recorded):
        """The mean squared error in units of the noise, so 1 is a perfect fit, plus a penalty for roughness."""
        errors = (readings(log_k, heat, sections, section) - recorded) / NOISE
        roughness = np.mean(np.diff(log_k, axis=0) ** 2) + np.mean(np.diff(log_k, axis=1) ** 2)
        return np.mean(errors**2) + SMOOTHNESS * roughness

    return misfit


def draw(path: str, true: np.ndarray, found: np.ndarray, distances: list[float]) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return print("no plot without matplotlib: pip install matplotlib")
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    first, second, third = figure.subplots(1, 3)
    for axes, field, title in ((first, true, "conductivity"), (second, found, "found")):
        image = axes.imshow(np.exp(field), vmin=np.exp(true.min()), vmax=np.exp(true.max()))
        axes.set(title=title, xticks=[], yticks=[])
    figure.colorbar(image, ax=[first, second])
    third.semilogy(distances)
    third.set(title="relative error of log k", xlabel="iteration")
    figure.savefig(path)
    print(f"plot written to {path}")


def main(iterations: int = 60, size: int = 24, sections: int = 12, shards: int = 2, plot: str | None = None) -> float:
    """The error of the reconstructed field, relative to the norm of the true one."""
    true, heat = truth(size), sources(size)
    recorded = dg.function(lambda log_k, heat: readings(log_k, heat, sections))(true, heat)
    recorded = recorded + NOISE * np.random.default_rng(0).normal(size=recorded.shape)

    step, kept = (
        dg.data_parallel(dg.value_and_grad(misfit_of(sections, each)), shards)
        for each in (dg.recompute_grad(section), section)
    )
    for name, each in (("keeping every temperature", kept), ("recomputing within sections", step)):
        print(f"{name}: {each.plan(true, heat, recorded).predictions.peak_bytes / 1e6:.1f} MB")

    def cost(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = step(x.reshape(size, size), heat, recorded)
        return float(value), slope.ravel()

    distances = [1.0]

    def note(intermediate_result) -> None:
        x, value, i = intermediate_result.x, intermediate_result.fun, len(distances)
        distances.append(float(np.linalg.norm(x - true.ravel()) / np.linalg.norm(true)))
        if i % 10 == 0:
            print(f"iteration {i:3d}  misfit {value:9.3f}  error {distances[-1]:.3f}")

    start = np.zeros(size * size)
    found = minimize(cost, start, jac=True, method="L-BFGS-B", callback=note, options={"maxiter": iterations})
    print(f"after {len(distances) - 1} iterations log k is found up to {distances[-1]:.1%}")
    if plot:
        draw(plot, true, found.x.reshape(size, size), distances)
    return distances[-1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--size", type=int, default=24, help="cells along a side of the plate")
    parser.add_argument("--sections", type=int, default=12, help="sections of the simulation, twelve steps each")
    parser.add_argument("--shards", type=int, default=2, help="shards of the experiments")
    parser.add_argument("--plot", metavar="FILE", help="plot the true and reconstructed conductivity and the error")
    main(**vars(parser.parse_args()))
