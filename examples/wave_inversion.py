"""What is between two boreholes? The speed of waves in a section of rock, from records of sound that went through it.

A wave equation d2p/dt2 = c^2 laplace(p) is stepped in time on a grid, as seismic codes do: three arrays, slices that
are assigned, a source that is added in, a sponge at the edges. Each shot excites one place in the left borehole, and
the microphones in the right one record the pressure. The misfit of the records is differentiated by the speed of every
cell, through all time steps, and minimised by SciPy's L-BFGS ("full waveform inversion").

    python examples/wave_inversion.py --plot waves.png
    distgrad run examples/wave_inversion.py --workers 2

`simulate` is a NumPy program: only the import says distgrad. Shots are independent, so `dg.data_parallel` splits them
into shards, which run as tasks of a cluster, with the same result.
"""

from __future__ import annotations

import argparse

from scipy.optimize import minimize

import distgrad as dg
import distgrad.numpy as np

STEP = 0.4  # of time, in units of the time that a wave of speed 1 needs for one cell
NOISE = 1e-2


def truth(size):
    """The true speed: layers, and an anomaly."""
    depth, along = np.mgrid[:size, :size] / size
    return 0.9 + 0.2 * depth + 0.25 * np.exp(-60 * ((depth - 0.5) ** 2 + (along - 0.55) ** 2))


def simulate(speed, places, steps):
    """The pressure in the right borehole after each step, for shots at these places: [shot, step, microphone]."""
    size = speed.shape[0]
    before, now = np.zeros((len(places), size, size)), np.zeros((len(places), size, size))
    records = np.zeros((len(places), steps, size))
    sponge = np.ones((size, size))
    sponge[:2], sponge[-2:], sponge[:, :2], sponge[:, -2:] = 0.9, 0.9, 0.9, 0.9
    for t in range(steps):
        after = 2 * now - before
        laplace = now[:, :-2, 1:-1] + now[:, 2:, 1:-1] + now[:, 1:-1, :-2] + now[:, 1:-1, 2:] - 4 * now[:, 1:-1, 1:-1]
        after[:, 1:-1, 1:-1] += (STEP * speed[1:-1, 1:-1]) ** 2 * laplace
        phase = (0.4 * (t - 6)) ** 2
        after[:, :, 2] += places * (1 - 2 * phase) * np.exp(-phase)  # Ricker's wavelet
        before, now = now * sponge, after * sponge
        records[:, t] = now[:, :, -3]
    return records


def misfit(speed, places, recorded, steps):
    """The squared error of the records, in units of the noise of a microphone."""
    return np.mean(((simulate(speed, places, steps) - recorded) / NOISE) ** 2)


def draw(path, true, start, found):
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return print("no plot without matplotlib: pip install matplotlib")
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    axes = figure.subplots(1, 3)
    for each, field, title in zip(axes, (true, start, found), ("speed", "start", "found"), strict=True):
        image = each.imshow(field, vmin=true.min(), vmax=true.max())
        each.set(title=title, xticks=[], yticks=[])
    figure.colorbar(image, ax=axes)
    figure.savefig(path)
    print(f"plot written to {path}")


def main(
    iterations: int = 25, size: int = 24, shots: int = 6, steps: int = 110, shards: int = 2, plot: str | None = None
) -> float:
    """The error that is left in the interior, relative to that of the start."""
    true = truth(size)
    places = np.eye(size)[np.linspace(4, size - 5, shots).astype(int)]
    recorded = dg.function(simulate)(true, places, steps)
    start = np.full_like(true, true.mean())

    step = dg.data_parallel(dg.value_and_grad(lambda c, places, recorded: misfit(c, places, recorded, steps)), shards)
    print(f"predicted: {step.plan(start, places, recorded).predictions.peak_bytes / 1e6:.1f} MB")

    def cost(x):
        value, slope = step(x.reshape(size, size), places, recorded)
        return float(value), slope.ravel()

    def error(field):
        return float(np.linalg.norm((field - true)[3:-3, 3:-3]))

    found = minimize(cost, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": iterations})
    left = error(found.x.reshape(size, size)) / error(start)
    print(f"misfit {cost(start.ravel())[0]:.1f} -> {found.fun:.2f}; {left:.0%} of the error of the speed is left")
    if plot:
        draw(plot, true, start, found.x.reshape(size, size))
    return left


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=25)
    parser.add_argument("--size", type=int, default=24, help="cells along a side of the section")
    parser.add_argument("--shots", type=int, default=6)
    parser.add_argument("--steps", type=int, default=110, help="time steps")
    parser.add_argument("--shards", type=int, default=2, help="shards of the shots")
    parser.add_argument("--plot", metavar="FILE", help="plot the true, the first and the found speed")
    main(**vars(parser.parse_args()))
