"""Instance classifiers for the unary terms (sec. 3.1): three SVMs on inherited bag labels.

Machines are plain arrays, scored without a kernel matrix: the linear one is a vector, the
histogram-intersection one a sum of piecewise linear functions of single features, and the RBF
one works through blocks of rows. Scores here are positive for positive instances; the energy
uses their negatives.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from sklearn.svm import SVC

from bagwise.core.arrays import Floats, Ints, Reals
from bagwise.core.interrupts import interruptible
from bagwise.core.squared import row_blocks
from bagwise.core.working_set import solve_on_working_set

Kernel = Literal["rbf", "linear", "intersection"]
KERNELS: tuple[Kernel, ...] = ("rbf", "linear", "intersection")
# Up to this many rows libsvm gets them all; beyond, a working set.
_DIRECT_ROWS = 1500
# Up to this many rows libsvm gets their kernel matrix, which matrix products make faster than it
# does; it would fill the 200 MB that libsvm may use for its own.
_GRAM_ROWS = 5000


class Scaling(NamedTuple):
    """An affine map of the features, ``(x - shift) * factor``."""

    shift: Floats  # [D]
    factor: Floats  # [D]

    def apply(self, X: Reals) -> Floats:
        """Scaled copy of rows."""
        scaled = np.subtract(np.asarray(X), self.shift, dtype=np.float64)
        scaled *= self.factor
        return scaled


class Machine(NamedTuple):
    """A trained SVM."""

    kernel: Kernel
    support: Floats  # [S, D]; for the linear kernel the weight vector [1, D]
    coef: Floats  # [S]
    intercept: float
    gamma: float


def fit_scaling(X: Reals, how: str | None) -> Scaling:
    """Scaling to [0, 1], to mean 0 and variance 1, or none, from training instances."""
    X = np.asarray(X)
    if how is None:
        return Scaling(np.zeros(X.shape[1]), np.ones(X.shape[1]))
    if how == "minmax":
        shift = X.min(axis=0).astype(np.float64)
        width = X.max(axis=0) - shift
    else:
        shift = X.mean(axis=0, dtype=np.float64)
        width = X.std(axis=0, dtype=np.float64)
    return Scaling(shift, np.where(width > 0, 1 / np.where(width > 0, width, 1.0), 1.0))


def thin(offsets: Ints, max_rows: int, rng: Any) -> Ints:
    """At most ``max_rows`` rows: small bags whole, large ones cut to one common size."""
    sizes = np.diff(offsets)
    if sizes.sum() <= max_rows:
        return np.arange(offsets[-1])
    low, high = 1, int(sizes.max())
    while low < high:  # the largest common size that fits
        middle = (low + high + 1) // 2
        fits = np.minimum(sizes, middle).sum() <= max_rows
        low, high = (middle, high) if fits else (low, middle - 1)
    parts = [
        a + (np.arange(n) if n <= low else np.sort(rng.choice(n, low, replace=False)))
        for a, n in zip(offsets[:-1], sizes, strict=True)
    ]
    return np.concatenate(parts)


def train(kernel: Kernel, X: Floats, t: Ints, C: float, gamma: float) -> Machine:
    """An SVM on rows X with labels t in {0, 1}.

    On many rows libsvm gets a working set; the kernel matrix of the intersection kernel then
    only covers rows near the margin.
    """
    active = np.ones(len(X), dtype=bool)
    if len(X) > _DIRECT_ROWS:
        active[:] = False
        for label in (0, 1):
            rows = np.flatnonzero(t == label)
            active[rows[:: max(1, 2 * len(rows) // _DIRECT_ROWS)]] = True
    machine, _ = solve_on_working_set(
        t,
        active,
        lambda rows: _solve(kernel, X[rows], t[rows], C, gamma),
        lambda machine, rows: score(machine, X[rows]),
    )
    return machine


def _solve(kernel: Kernel, X: Floats, t: Ints, C: float, gamma: float) -> Machine:
    if kernel == "intersection" or len(X) <= _GRAM_ROWS:
        svc, rows = SVC(C=C, kernel="precomputed"), gram(kernel, X, gamma)
    else:
        svc, rows = SVC(C=C, kernel=kernel, gamma=gamma), X
    interruptible(svc.fit, rows, t)
    coef = svc.dual_coef_
    a = (coef if isinstance(coef, np.ndarray) else coef.toarray()).ravel()
    support = svc.support_
    bias = float(svc.intercept_[0])
    if kernel == "linear":
        return Machine(kernel, (a @ X[support])[None], np.ones(1), bias, gamma)
    return Machine(kernel, X[support], a, bias, gamma)


def gram(kernel: Kernel, X: Floats, gamma: float) -> Floats:
    """Kernel between all rows, [n, n]."""
    from bagwise.models.micrf.distances import intersection_gram

    if kernel == "intersection":
        return intersection_gram(X)
    K: Floats = X @ np.ascontiguousarray(X.T)
    if kernel == "rbf":
        lengths = K.diagonal().copy()
        for rows in row_blocks(len(K), len(K), K):
            _products_to_rbf(K[rows], lengths[rows], lengths, gamma)
    return K


def _products_to_rbf(K: Floats, x2: Floats, v2: Floats, gamma: float) -> None:
    """Turn inner products [n, S] into RBF kernels, in place, given the squared lengths."""
    K *= 2 * gamma
    K -= gamma * x2[:, None]
    K -= gamma * v2
    np.exp(np.minimum(K, 0.0, out=K), out=K)


def score(machine: Machine, X: Floats) -> Floats:
    """Decision function of each row, > 0 = positive."""
    if machine.kernel == "linear":
        return X @ machine.support[0] + machine.intercept
    if machine.kernel == "intersection":
        return _intersection_scores(machine, X)
    return _rbf_scores(machine, X)


def _rbf_scores(machine: Machine, X: Floats) -> Floats:
    V = machine.support
    x2, v2 = (X * X).sum(axis=1), (V * V).sum(axis=1)
    Vt = np.ascontiguousarray(V.T)
    scores = np.empty(len(X))
    for rows in row_blocks(len(X), len(V), X):
        K = X[rows] @ Vt  # [rows, S]
        _products_to_rbf(K, x2[rows], v2, machine.gamma)
        scores[rows] = K @ machine.coef
    return scores + machine.intercept


def _intersection_scores(machine: Machine, X: Floats) -> Floats:
    """Exact in O(N D log S): sum_s a_s min(x_d, s_d) is piecewise linear in x_d."""
    scores = np.full(len(X), machine.intercept)
    for sign in (1.0, -1.0):  # the kernel of signed features is that of both halves
        V = np.maximum(sign * machine.support, 0.0)
        for d in np.flatnonzero(V.any(axis=0)):
            knots, values = _piecewise(V[:, d], machine.coef)
            scores += np.interp(sign * X[:, d], knots, values)
    return scores


def _piecewise(s: Floats, a: Floats) -> tuple[Floats, Floats]:
    """Knots, from 0 up, of ``sum_s a_s min(x, s)``; it is 0 below and constant above."""
    order = np.argsort(s, kind="stable")
    s, a = s[order], a[order]
    values = np.cumsum(a * s) + s * (a.sum() - np.cumsum(a))
    last = np.append(np.diff(s) > 0, True) & (s > 0)
    return np.append(0.0, s[last]), np.append(0.0, values[last])
