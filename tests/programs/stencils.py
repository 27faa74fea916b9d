"""Stencils in one, two and three dimensions, and other explicit schemes on grids."""

import numpy as np

from tests.programs.table import program


@program(lambda rng: (3, rng.normal(size=8), rng.normal(size=8)))
def jacobi_1d(steps, a, b):
    for _ in range(steps):
        b[1:-1] = 0.33333 * (a[:-2] + a[1:-1] + a[2:])
        a[1:-1] = 0.33333 * (b[:-2] + b[1:-1] + b[2:])


@program(lambda rng: (2, rng.normal(size=(5, 6)), rng.normal(size=(5, 6))))
def jacobi_2d(steps, a, b):
    for _ in range(steps):
        b[1:-1, 1:-1] = 0.2 * (a[1:-1, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:] + a[2:, 1:-1] + a[:-2, 1:-1])
        a[1:-1, 1:-1] = 0.2 * (b[1:-1, 1:-1] + b[1:-1, :-2] + b[1:-1, 2:] + b[2:, 1:-1] + b[:-2, 1:-1])


@program(lambda rng: (2, rng.normal(size=(5, 5))))
def seidel_2d(steps, a):
    n = a.shape[0]
    for _ in range(steps):
        for i in range(1, n - 1):
            a[i, 1:-1] += a[i - 1, :-2] + a[i - 1, 1:-1] + a[i - 1, 2:] + a[i, 2:] + a[i + 1, :-2] + a[i + 1, 2:]
            for j in range(1, n - 1):
                a[i, j] += a[i, j - 1]
                a[i, j] /= 9.0


@program(lambda rng: (1, rng.normal(size=(4, 4, 4)), rng.normal(size=(4, 4, 4))))
def heat_3d(steps, a, b):
    def sweep(x, y):
        y[1:-1, 1:-1, 1:-1] = (
            0.125 * (x[2:, 1:-1, 1:-1] - 2.0 * x[1:-1, 1:-1, 1:-1] + x[:-2, 1:-1, 1:-1])
            + 0.125 * (x[1:-1, 2:, 1:-1] - 2.0 * x[1:-1, 1:-1, 1:-1] + x[1:-1, :-2, 1:-1])
            + 0.125 * (x[1:-1, 1:-1, 2:] - 2.0 * x[1:-1, 1:-1, 1:-1] + x[1:-1, 1:-1, :-2])
            + x[1:-1, 1:-1, 1:-1]
        )

    for _ in range(steps):
        sweep(a, b)
        sweep(b, a)


@program(lambda rng: (2, *(rng.normal(size=(4, 5)) for _ in range(3)), rng.normal(size=2)))
def fdtd_2d(steps, ex, ey, hz, source):
    for t in range(steps):
        ey[0, :] = source[t]
        ey[1:, :] -= 0.5 * (hz[1:, :] - hz[:-1, :])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])


@program(lambda rng: (rng.normal(size=(8, 7, 2)), rng.uniform(0.5, 1, size=(4, 3, 2))))
def horizontal_diffusion(field, weight):
    out = np.empty_like(weight)
    nx, ny = out.shape[:2]
    lap = 4.0 * field[1 : nx + 3, 1 : ny + 3, :] - (
        field[2 : nx + 4, 1 : ny + 3, :]
        + field[0 : nx + 2, 1 : ny + 3, :]
        + field[1 : nx + 3, 2 : ny + 4, :]
        + field[1 : nx + 3, 0 : ny + 2, :]
    )
    res = lap[1:, 1 : ny + 1, :] - lap[:-1, 1 : ny + 1, :]
    flx = np.where(res * (field[2 : nx + 3, 2 : ny + 2, :] - field[1 : nx + 2, 2 : ny + 2, :]) > 0, 0, res)
    res = lap[1 : nx + 1, 1:, :] - lap[1 : nx + 1, :-1, :]
    fly = np.where(res * (field[2 : nx + 2, 2 : ny + 3, :] - field[2 : nx + 2, 1 : ny + 2, :]) > 0, 0, res)
    out[:, :, :] = field[2 : nx + 2, 2 : ny + 2, :] - weight * (
        flx[1:, :, :] - flx[:-1, :, :] + fly[:, 1:, :] - fly[:, :-1, :]
    )
    return out


@program(lambda rng: (rng.normal(size=(3, 2, 4)), rng.normal(size=(4, 2, 4)), rng.normal(size=(3, 2, 4)), 0.3))
def vertical_advection(flow, wind, tendency, dt):
    nk = flow.shape[2]
    upper = np.ndarray(flow.shape, dtype=flow.dtype)
    right = np.ndarray(flow.shape, dtype=flow.dtype)
    inverse = 1.0 / dt
    for k in range(nk):
        mean = 0.25 * (wind[1:, :, k] + wind[:-1, :, k])
        below = mean * 0.5
        diagonal = 3 * inverse - below
        if k == 0:
            upper[:, :, k] = below / diagonal
            right[:, :, k] = (inverse * flow[:, :, k] + tendency[:, :, k]) / diagonal
        else:
            factor = 1.0 / (diagonal - upper[:, :, k - 1] * below)
            upper[:, :, k] = below * factor
            right[:, :, k] = (inverse * flow[:, :, k] + tendency[:, :, k] - right[:, :, k - 1] * below) * factor
    result = np.zeros_like(flow)
    data = right[:, :, nk - 1]
    result[:, :, nk - 1] = data
    for k in range(nk - 2, -1, -1):
        data = right[:, :, k] - upper[:, :, k] * data
        result[:, :, k] = inverse * (data - flow[:, :, k])
    return result


def _pressure(p, dx, dy, b, sweeps):
    pn = np.empty_like(p)
    for _ in range(sweeps):
        pn[:] = p
        p[1:-1, 1:-1] = ((pn[1:-1, 2:] + pn[1:-1, :-2]) * dy**2 + (pn[2:, 1:-1] + pn[:-2, 1:-1]) * dx**2) / (
            2 * (dx**2 + dy**2)
        ) - dx**2 * dy**2 / (2 * (dx**2 + dy**2)) * b[1:-1, 1:-1]
        p[:, -1] = p[:, -2]
        p[0, :] = p[1, :]
        p[:, 0] = p[:, 1]
        p[-1, :] = 0


@program(lambda rng: (2, 0.01, 0.5, 0.5, *(0.1 * rng.normal(size=(5, 5)) for _ in range(3)), 1.1, 0.1))
def cavity_flow(steps, dt, dx, dy, u, v, p, rho, nu):
    b = np.zeros(u.shape)
    for _ in range(steps):
        un, vn = u.copy(), v.copy()
        b[1:-1, 1:-1] = rho * (
            1 / dt * ((u[1:-1, 2:] - u[1:-1, :-2]) / (2 * dx) + (v[2:, 1:-1] - v[:-2, 1:-1]) / (2 * dy))
            - ((u[1:-1, 2:] - u[1:-1, :-2]) / (2 * dx)) ** 2
        )
        _pressure(p, dx, dy, b, 2)
        u[1:-1, 1:-1] = (
            un[1:-1, 1:-1]
            - un[1:-1, 1:-1] * dt / dx * (un[1:-1, 1:-1] - un[1:-1, :-2])
            - dt / (2 * rho * dx) * (p[1:-1, 2:] - p[1:-1, :-2])
            + nu * (dt / dx**2 * (un[1:-1, 2:] - 2 * un[1:-1, 1:-1] + un[1:-1, :-2]))
        )
        v[1:-1, 1:-1] = vn[1:-1, 1:-1] - dt / (2 * rho * dy) * (p[2:, 1:-1] - p[:-2, 1:-1])
        u[0, :] = 0
        u[:, 0] = 0
        u[-1, :] = 1
        v[0, :] = v[-1, :] = 0


@program(lambda rng: (0.01, 0.4, 0.4, *(0.1 * rng.normal(size=(4, 5)) for _ in range(2)), 0.7))
def channel_flow(dt, dx, dy, u, p, force):
    difference = 1
    for _ in range(3):
        un = u.copy()
        pn = p.copy()
        p[1:-1, 1:-1] = 0.25 * (pn[1:-1, 2:] + pn[1:-1, :-2] + pn[2:, 1:-1] + pn[:-2, 1:-1])
        p[1:-1, -1] = 0.5 * (pn[1:-1, 0] + pn[1:-1, -2])  # periodic
        p[1:-1, 0] = 0.5 * (pn[1:-1, 1] + pn[1:-1, -1])
        u[1:-1, 1:-1] = un[1:-1, 1:-1] - dt / dx * un[1:-1, 1:-1] * (un[1:-1, 1:-1] - un[1:-1, :-2]) + force * dt
        u[1:-1, -1] = un[1:-1, -1] + force * dt - dt / dy * (p[2:, -1] - p[:-2, -1])
        u[0, :], u[-1, :] = 0, 0
        difference = (np.sum(u) - np.sum(un)) / np.sum(u)
    return difference


@program(lambda rng: (rng.normal(size=9), rng.uniform(0.5, 1, size=9), 3))
def wave_1d(u, speed, steps):
    history = np.zeros((steps + 2, len(u)))
    history[0] = u
    history[1] = u
    for t in range(1, steps + 1):
        now = history[t]
        history[t + 1, 1:-1] = 2 * now[1:-1] - history[t - 1, 1:-1] + speed[1:-1] * np.diff(now, 2)
        history[t + 1, [0, -1]] = history[t + 1, [1, -2]]
    return history


@program(lambda rng: (rng.normal(size=(6, 6)), 0.2))
def periodic_laplacian(u, k):
    for _ in range(2):
        u += k * (np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1) - 4 * u)
    return u


@program(lambda rng: (rng.uniform(1, 2, size=(5, 5)), rng.uniform(0, 1, size=(5, 5))))
def gray_scott(u, v):
    interior_u, interior_v = u[1:-1, 1:-1], v[1:-1, 1:-1]
    for _ in range(2):
        lap = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * interior_u
        reaction = interior_u * interior_v**2
        interior_u += 0.1 * lap - reaction + 0.03 * (1 - interior_u)
        interior_v += reaction - 0.09 * interior_v
        for z in (u, v):
            z[0, :] = z[-2, :]
            z[-1, :] = z[1, :]
            z[:, 0] = z[:, -2]
            z[:, -1] = z[:, 1]
