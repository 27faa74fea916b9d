"""Filters, transforms, masks, particles and other programs."""

import numpy as np

from tests.programs.table import program


@program(lambda rng: (0.25, rng.normal(size=(4, 5))))
def deriche(alpha, image):
    k = (1.0 - np.exp(-alpha)) ** 2 / (1.0 + alpha * np.exp(-alpha) - np.exp(2.0 * alpha))
    a1, a2 = k, k * np.exp(-alpha) * (alpha - 1.0)
    b1, b2 = 2.0 ** (-alpha), -np.exp(-2.0 * alpha)
    y = np.empty_like(image)
    y[:, 0] = a1 * image[:, 0]
    y[:, 1] = a1 * image[:, 1] + a2 * image[:, 0] + b1 * y[:, 0]
    for j in range(2, image.shape[1]):
        y[:, j] = a1 * image[:, j] + a2 * image[:, j - 1] + b1 * y[:, j - 1] + b2 * y[:, j - 2]
    z = np.empty_like(image)
    z[:, -1] = 0.0
    z[:, -2] = a1 * image[:, -1]
    for j in range(image.shape[1] - 3, -1, -1):
        z[:, j] = a1 * image[:, j + 1] + b1 * z[:, j + 1] + b2 * z[:, j + 2]
    image[:] = y + z
    return image


@program(lambda rng: (rng.normal(size=8) + 1j * rng.normal(size=8),))
def stockham_fft(x):
    n, y = x.shape[0], x.copy()
    half, stride = n // 2, 1
    while half >= 1:
        w = np.exp(-1j * np.pi * np.arange(half) / half)
        z = np.empty_like(y)
        for p in range(half):
            a = y[stride * p : stride * (p + 1)]
            b = y[stride * (p + half) : stride * (p + half + 1)]
            z[stride * 2 * p : stride * (2 * p + 1)] = a + b
            z[stride * (2 * p + 1) : stride * (2 * p + 2)] = (a - b) * w[p]
        y = z
        half, stride = half // 2, stride * 2
    return y


@program(lambda rng: (rng.uniform(-1, 1, size=(3, 4)), rng.uniform(-1, 1, size=(3, 4))), second=False)
def escape_time(re, im):
    c = re + 1j * im
    z = np.zeros(c.shape, dtype=np.complex128)
    count = np.zeros(c.shape, dtype=np.int64)
    for n in range(4):
        inside = np.less(abs(z), 2.0)
        count[inside] = n
        z[inside] = z[inside] ** 2 + c[inside]
    count[count == 3] = 0
    return z, count


@program(lambda rng: (rng.uniform(1, 2, size=4), rng.normal(size=(4, 3)), rng.normal(size=(4, 3)), 2, 0.01))
def n_body(mass, position, velocity, steps, dt):
    def acceleration(pos):
        x, y, z = pos[:, 0:1], pos[:, 1:2], pos[:, 2:3]
        dx, dy, dz = x.T - x, y.T - y, z.T - z
        inverse = dx**2 + dy**2 + dz**2 + 0.1
        inverse[inverse > 0] = inverse[inverse > 0] ** (-1.5)
        return np.hstack(
            ((dx * inverse) @ mass[:, None], (dy * inverse) @ mass[:, None], (dz * inverse) @ mass[:, None])
        )

    energy = np.zeros(steps + 1)
    velocity -= np.mean(mass[:, None] * velocity, axis=0) / np.mean(mass)
    acc = acceleration(position)
    energy[0] = 0.5 * np.sum(mass[:, None] * velocity**2)
    for i in range(steps):
        velocity += acc * dt / 2.0
        position += velocity * dt
        acc = acceleration(position)
        velocity += acc * dt / 2.0
        energy[i + 1] = 0.5 * np.sum(mass[:, None] * velocity**2)
    return energy


@program(lambda rng: tuple(rng.uniform(0.1, 1.2, size=5) for _ in range(4)))
def arc_distance(theta_1, phi_1, theta_2, phi_2):
    t = np.sin((theta_2 - theta_1) / 2) ** 2 + np.cos(theta_1) * np.cos(theta_2) * np.sin((phi_2 - phi_1) / 2) ** 2
    return 2 * np.arctan2(np.sqrt(t), np.sqrt(1 - t))


@program(lambda rng: (rng.normal(size=(4, 4)),))
def go_fast(a):
    trace = 0.0
    for i in range(a.shape[0]):
        trace += np.tanh(a[i, i])
    return a + trace


@program(lambda rng: (rng.normal(size=(3, 3)), rng.normal(size=(3, 3)), 4, 3, 9))
def compute(x, y, a, b, c):
    return np.clip(x, -1, 1.5) * a + y * b + c


@program(lambda rng: (rng.uniform(0, 1, size=12), rng.normal(size=12), 4))
def radial_bins(radius, data, bins):
    result = np.zeros(bins)
    top = radius.max()
    for i in range(bins):
        low, high = top * i / bins, top * (i + 1) / bins
        inside = np.logical_and((low <= radius), (radius < high))
        result[i] = data[inside].sum() / (1.0 + np.sum(inside))
    return result


@program(lambda rng: (3, rng.normal(size=(3, 3)) / 4, rng.normal(size=(3, 2))))
def contour_integral(points, matrix, y):
    total = np.zeros((3, 2), dtype=np.complex128)
    for k in range(points):
        z = 3.0 * np.exp(2j * np.pi * (k + 0.5) / points)
        total += np.linalg.solve(z * np.eye(3) - matrix, y) * z
    return np.real(total), np.imag(total)


@program(lambda rng: (rng.normal(size=(2, 3, 2, 2)), rng.normal(size=(2, 2, 2, 2)), rng.normal(size=(2, 2))))
def self_energies(g, d, dh):
    sigma = np.zeros_like(g)
    for k in range(g.shape[0]):
        for e in range(g.shape[1]):
            for q in range(d.shape[0]):
                for w in range(d.shape[1]):
                    if e - w >= 0:
                        dhg = g[k, e - w] @ dh
                        sigma[k, e] += dhg @ (dh * d[q, w])
    return sigma


@program(lambda rng: (rng.normal(size=7), rng.normal(size=3)))
def convolution(x, taps):
    y = np.zeros(len(x) - len(taps) + 1)
    for i in range(len(y)):
        y[i] = x[i : i + len(taps)] @ taps[::-1]
    return y


@program(lambda rng: (rng.normal(size=6), 0.4))
def exponential_smoothing(x, alpha):
    y = np.zeros_like(x)
    y[0] = x[0]
    for t in range(1, len(x)):
        y[t] = alpha * x[t] + (1 - alpha) * y[t - 1]
    return y


@program(lambda rng: (rng.normal(size=6), rng.normal(size=(3, 3)), rng.normal(size=3)))
def forward_algorithm(emissions, transitions, start):
    score = np.zeros((len(emissions), 3))
    score[0] = start + emissions[0]
    for t in range(1, len(emissions)):
        for j in range(3):
            reached = score[t - 1] + transitions[:, j]
            score[t, j] = np.logaddexp.reduce(reached) + emissions[t] * j
    return score


@program(lambda rng: (rng.uniform(0, 3, size=5),))
def pairing_table(weights):
    n = len(weights)
    table = np.zeros((n, n))
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            table[i, j] = np.maximum(table[i, j - 1], table[i + 1, j])
            table[i, j] = np.maximum(table[i, j], table[i + 1, j - 1] + weights[i] * weights[j])
            for k in range(i + 1, j):
                table[i, j] = np.maximum(table[i, j], table[i, k] + table[k + 1, j])
    return table


@program(lambda rng: (rng.uniform(0.5, 1.5, size=(6, 2)), 0.1, 4))
def option_lattice(spot, rate, steps):
    payoff = np.maximum(spot - 0.9, 0.0)
    for _ in range(steps):
        payoff[:-1] = np.exp(-rate) * (0.5 * payoff[1:] + 0.5 * payoff[:-1])
        payoff[0] = 0
    return payoff


@program(lambda rng: (rng.normal(size=(4, 4)), rng.uniform(0.5, 2, size=4)))
def scatter_forces(bonds, charge):
    force = np.zeros(4)
    i, j = np.triu_indices(4, 1)
    pull = bonds[i, j] * charge[i] * charge[j]
    np.add.at(force, i, pull)
    np.subtract.at(force, j, pull)
    force[[0, 0, 2]] += charge[:3]
    return force


@program(lambda rng: (rng.normal(size=(5, 3)),))
def running_views(x):
    top, bottom = np.split(x, [2])
    top *= 2.0
    bottom[0] = top[1]
    flat = x.reshape(-1)
    flat[::4] += 1.0
    for row in x:
        row[1] = np.sin(row[0]) + row[2]
    x.T[2] -= x[:, 0]
    return top.sum(), bottom, flat


@program(lambda rng: (rng.normal(size=5) + 1j * rng.normal(size=5),))
def complex_parts(z):
    z.real *= 2
    z.imag[1:] = z.real[:-1]
    w = z.conj()
    w[0] = 1j
    return w * z


@program(lambda rng: (rng.normal(size=(3, 3)), rng.normal(size=3)))
def integrate(matrix, y):
    path = np.empty((4, 3))
    path[0] = y
    for t in range(3):
        k1 = np.tanh(matrix @ path[t])
        k2 = np.tanh(matrix @ (path[t] + 0.05 * k1))
        np.add(path[t], 0.1 * k2, out=path[t + 1])
    return path
