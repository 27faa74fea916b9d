"""Factorisations, solvers and products that fill matrices element by element or row by row."""

import numpy as np

from tests.programs.table import program


def _definite(rng, n=4):
    a = rng.normal(size=(n, n))
    return a @ a.T + n * np.eye(n)


@program(lambda rng: (_definite(rng),))
def lu(a):
    n = a.shape[0]
    for i in range(n):
        for j in range(i):
            a[i, j] -= a[i, :j] @ a[:j, j]
            a[i, j] /= a[j, j]
        for j in range(i, n):
            a[i, j] -= a[i, :i] @ a[:i, j]


@program(lambda rng: (_definite(rng),))
def cholesky(a):
    n = a.shape[0]
    a[0, 0] = np.sqrt(a[0, 0])
    for i in range(1, n):
        for j in range(i):
            a[i, j] -= np.dot(a[i, :j], a[j, :j])
            a[i, j] /= a[j, j]
        a[i, i] -= np.dot(a[i, :i], a[i, :i])
        a[i, i] = np.sqrt(a[i, i])


@program(lambda rng: (_definite(rng), rng.normal(size=4)))
def lu_solve(a, b):
    n = a.shape[0]
    x, y = np.zeros_like(b), np.zeros_like(b)
    for k in range(n - 1):
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    for i in range(n):
        y[i] = b[i] - a[i, :i] @ y[:i]
    for i in range(n - 1, -1, -1):
        x[i] = (y[i] - a[i, i + 1 :] @ x[i + 1 :]) / a[i, i]
    return x


@program(lambda rng: (rng.normal(size=(5, 3)),))
def gram_schmidt(a):
    q, r = np.zeros_like(a), np.zeros((a.shape[1], a.shape[1]), dtype=a.dtype)
    for k in range(a.shape[1]):
        r[k, k] = np.sqrt(np.dot(a[:, k], a[:, k]))
        q[:, k] = a[:, k] / r[k, k]
        for j in range(k + 1, a.shape[1]):
            r[k, j] = np.dot(q[:, k], a[:, j])
            a[:, j] -= q[:, k] * r[k, j]
    return q, r


@program(lambda rng: (0.1 * rng.normal(size=5),))
def durbin(r):
    y = np.empty_like(r)
    alpha, beta = -r[0], 1.0
    y[0] = -r[0]
    for k in range(1, r.shape[0]):
        beta *= 1.0 - alpha * alpha
        alpha = -(r[k] + np.dot(np.flip(r[:k]), y[:k])) / beta
        y[:k] += alpha * np.flip(y[:k])
        y[k] = alpha
    return y


@program(lambda rng: (_definite(rng), rng.normal(size=4)))
def triangular_solve(lower, b):
    x = np.zeros(4)
    for i in range(x.shape[0]):
        x[i] = (b[i] - lower[i, :i] @ x[:i]) / lower[i, i]
    return x


@program(lambda rng: (1.5, 1.2, rng.normal(size=(3, 4)), rng.normal(size=(3, 3)), rng.normal(size=(3, 4))))
def symm(alpha, beta, c, a, b):
    work = np.empty((c.shape[1],), dtype=c.dtype)
    c *= beta
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            c[:i, j] += alpha * b[i, j] * a[i, :i]
            work[j] = b[:i, j] @ a[i, :i]
        c[i, :] += alpha * b[i, :] * a[i, i] + alpha * work


@program(lambda rng: (1.5, 1.2, rng.normal(size=(4, 4)), rng.normal(size=(4, 3))))
def syrk(alpha, beta, c, a):
    for i in range(a.shape[0]):
        c[i, : i + 1] *= beta
        for k in range(a.shape[1]):
            c[i, : i + 1] += alpha * a[i, k] * a[: i + 1, k]


@program(lambda rng: (1.5, 1.2, rng.normal(size=(4, 4)), rng.normal(size=(4, 3)), rng.normal(size=(4, 3))))
def syr2k(alpha, beta, c, a, b):
    for i in range(a.shape[0]):
        c[i, : i + 1] *= beta
        for k in range(a.shape[1]):
            c[i, : i + 1] += a[: i + 1, k] * alpha * b[i, k] + b[: i + 1, k] * alpha * a[i, k]


@program(lambda rng: (1.5, rng.normal(size=(4, 4)), rng.normal(size=(4, 3))))
def trmm(alpha, a, b):
    for i in range(b.shape[0]):
        for j in range(b.shape[1]):
            b[i, j] += np.dot(a[i + 1 :, i], b[i + 1 :, j])
    b *= alpha


@program(lambda rng: (1.5, 0.5, *(rng.normal(size=s) for s in ((3, 3), (3, 3), (3,)))))
def gesummv(alpha, beta, a, b, x):
    return alpha * a @ x + beta * b @ x


@program(lambda rng: (1.5, 1.2, *(rng.normal(size=s) for s in ((3, 3), 3, 3, 3, 3, 3, 3, 3, 3))))
def gemver(alpha, beta, a, u1, v1, u2, v2, w, x, y, z):
    a += np.outer(u1, v1) + np.outer(u2, v2)
    x += beta * y @ a + z
    w += alpha * a @ x


@program(lambda rng: (rng.normal(size=(2, 3, 4)), rng.normal(size=(4, 4))))
def doitgen(a, c):
    nr, nq, np_ = a.shape
    for r in range(nr):
        a[r, :, :] = np.reshape(np.reshape(a[r], (nq, 1, np_)) @ c, (nq, np_))


@program(lambda rng: (5.0, rng.normal(size=(5, 4))))
def correlation(n, data):
    mean = np.mean(data, axis=0)
    deviation = np.std(data, axis=0)
    deviation[deviation <= 0.1] = 1.0
    data -= mean
    data /= np.sqrt(n) * deviation
    corr = np.eye(data.shape[1], dtype=data.dtype)
    for i in range(data.shape[1] - 1):
        corr[i + 1 :, i] = corr[i, i + 1 :] = data[:, i] @ data[:, i + 1 :]
    return corr


@program(lambda rng: (5.0, rng.normal(size=(5, 4))))
def covariance(n, data):
    data -= np.mean(data, axis=0)
    cov = np.zeros((data.shape[1], data.shape[1]), dtype=data.dtype)
    for i in range(data.shape[1]):
        cov[i:, i] = cov[i, i:] = data[:, i] @ data[:, i:] / (n - 1.0)
    return cov


@program(lambda rng: (rng.uniform(1, 9, size=(5, 5)),))
def floyd_warshall(path):
    for k in range(path.shape[0]):
        path[:] = np.minimum(path[:], np.add.outer(path[:, k], path[k, :]))


@program(lambda rng: (2, rng.normal(size=(5, 5))))
def adi(steps, u):
    n = u.shape[0]
    v, p, q = np.empty_like(u), np.empty_like(u), np.empty_like(u)
    a, b, c = -0.2, 1.4, -0.2
    for _ in range(steps):
        v[0, 1:-1] = 1.0
        p[1:-1, 0] = 0.0
        q[1:-1, 0] = v[0, 1:-1]
        for j in range(1, n - 1):
            p[1:-1, j] = -c / (a * p[1:-1, j - 1] + b)
            q[1:-1, j] = (0.1 * u[j, :-2] + 0.8 * u[j, 1:-1] + 0.1 * u[j, 2:] - a * q[1:-1, j - 1]) / (
                a * p[1:-1, j - 1] + b
            )
        v[-1, 1:-1] = 1.0
        for j in range(n - 2, -1, -1):
            v[j, 1:-1] = p[1:-1, j] * v[j + 1, 1:-1] + q[1:-1, j]
        u[1:-1, 0] = 1.0
        u[1:-1, 1:-1] = v[1:-1, 1:-1].T


@program(lambda rng: (np.array([0, 2, 3, 5]), np.array([0, 2, 1, 0, 2]), rng.normal(size=5), rng.normal(size=3)))
def sparse_rows(starts, columns, values, x):
    y = np.empty(starts.size - 1, values.dtype)
    for i in range(starts.size - 1):
        cols = columns[starts[i] : starts[i + 1]]
        y[i] = values[starts[i] : starts[i + 1]] @ x[cols]
    return y


@program(lambda rng: (_definite(rng, 3), rng.normal(size=3)))
def conjugate_gradient(a, b):
    x = np.zeros_like(b)
    r = b - a @ x
    p = r.copy()
    for _ in range(3):
        ap = a @ p
        rr = r @ r
        alpha = rr / (p @ ap)
        x += alpha * p
        r -= alpha * ap
        p *= r @ r / rr
        p += r
    return x


@program(lambda rng: (rng.normal(size=(4, 3)),))
def householder(a):
    n = a.shape[1]
    for k in range(n):
        v = a[k:, k].copy()
        v[0] += np.sign(v[0]) * np.sqrt(np.sum(v**2))
        v /= np.linalg.norm(v)
        a[k:, k:] -= 2.0 * np.outer(v, v @ a[k:, k:])
    return a[:n]
