"""What true boxes teach about proposals: a correction of their log-odds.

A classifier trained on image labels is content with a part of an object. The proposals of images
with true boxes tell whole objects from parts and from other things. A logistic regression on them
learns

    refined log-odds = log-odds + weights . clues,

where the clues are the log-odds themselves, what the box alone says for its image, how far it
stands out from the ring around it, its size, and its features. The weights have a normal prior
about zero: without boxes nothing changes, and few boxes change little.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from bagwise.core.arrays import Floats

# Prior precision of a weight, of standardised clues: the few that any box has, and the features.
_FEW, _FEATURE = 0.3, 100.0
# Proposals of one image are no independent witnesses: below about so many images, doubt them more.
_ENOUGH = 8
_MAX_ITER, _TOL = 100, 1e-12


class Clues(NamedTuple):
    """What is known of proposals before their class is."""

    log_odds: Floats  # [n] of the classifier
    evidence: Floats  # [n, E] log-odds that do not depend on the rest of the image, if it has them
    contrast: Floats  # [n, R] how far they stand out, for several rings
    log_size: Floats  # [n, 2] log width and height as shares of the image
    features: Floats  # [n, D]

    def take(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> Clues:
        """Those of some proposals."""
        return Clues(*(part[rows] for part in self))


class Refinement(NamedTuple):
    """A learned correction."""

    centre: Floats  # [1 + E + R + 2 + D] of the clues
    scale: Floats  # [1 + E + R + 2 + D]
    weights: Floats  # [F] as the columns of `design`

    def refine(self, clues: Clues) -> Floats:
        """Refined log-odds, [n]."""
        return clues.log_odds + design(clues, self.centre, self.scale) @ self.weights

    def slope(self, clues: Clues) -> float:
        """By how much refined log-odds rise when all log-odds of the classifier rise by one."""
        n = 1 + clues.evidence.shape[1]
        return float(1 + np.sum(self.weights[:n] / self.scale[:n]))


def log_sizes(boxes: ArrayLike, image_size: ArrayLike) -> Floats:
    """Log width and log height of boxes [n, 4] as shares of their image (height, width) [n, 2]."""
    boxes = np.asarray(boxes, dtype=np.float64)
    return np.log(np.maximum(boxes[:, 2:], 1.0) / np.asarray(image_size, dtype=np.float64)[:, ::-1])


def design(clues: Clues, centre: Floats, scale: Floats) -> Floats:
    """Standardised clues, with a constant and the products of the sizes, [n, F].

    The products let a weight say "neither small nor large". Features come last.
    """
    D = clues.features.shape[1]
    Z = (np.column_stack(clues) - centre) / scale  # [n, 1 + E + R + 2 + D]
    few, features = Z[:, : Z.shape[1] - D], Z[:, Z.shape[1] - D :]
    w, h = few[:, -2:].T
    return np.column_stack([few, w * w, h * h, w * h, np.ones(len(Z)), features])


def learn_refinement(clues: Clues, target: Floats, weight: Floats, n_images: int) -> Refinement:
    """Learn from proposals with a known target, 0 to 1; -1 is unknown.

    ``weight`` [n] says how much each proposal counts, ``n_images`` how many images have boxes.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision.refinement import Clues, learn_refinement
    >>> rng = np.random.default_rng(0)
    >>> size = rng.normal(-2, 1, (500, 2))
    >>> nothing = np.zeros((500, 1))
    >>> clues = Clues(np.zeros(500), nothing, nothing, size, nothing)
    >>> middling = (np.abs(size + 2) < 0.5).all(axis=1).astype(int)
    >>> refined = learn_refinement(clues, middling, np.ones(500), n_images=20).refine(clues)
    >>> bool(refined[middling == 1].min() > np.median(refined[middling == 0]))
    True
    """
    columns = np.column_stack(clues)
    centre, scale = columns.mean(axis=0), columns.std(axis=0)
    scale = np.where(scale > 1e-12 * (1 + np.abs(centre)), scale, 1.0)
    known = target >= 0
    some = clues.take(known)
    X = design(some, centre, scale)
    precision = np.full(X.shape[1], _FEW)
    precision[X.shape[1] - clues.features.shape[1] :] = _FEATURE
    precision *= 1 + (_ENOUGH / n_images) ** 3
    weights = fit_weights(X, some.log_odds, target[known], weight[known], precision)
    return Refinement(centre, scale, weights)


def fit_weights(
    X: Floats, offset: Floats, target: Floats, weight: Floats, precision: Floats
) -> Floats:
    """Most probable weights of a logistic regression with an offset, by Newton's method, [F]."""
    theta = np.zeros(X.shape[1])
    value = loss(theta, X, offset, target, weight, precision)
    for _ in range(_MAX_ITER):
        p = expit(offset + X @ theta)
        gradient = X.T @ (weight * (p - target)) + precision * theta
        hessian = (X * (weight * p * (1 - p))[:, None]).T @ X  # [F, F]
        hessian[np.diag_indices_from(hessian)] += precision
        step = cho_solve(cho_factor(hessian), gradient)
        if gradient @ step <= _TOL * value:  # twice what is left to gain
            break
        # The loss is convex, so a short enough step lowers it, down to rounding.
        for size in 0.5 ** np.arange(30):
            new = loss(theta - size * step, X, offset, target, weight, precision)
            if new <= value * (1 + 1e-14):
                break
        theta, value = theta - size * step, new
    return theta


def loss(
    theta: Floats, X: Floats, offset: Floats, target: Floats, weight: Floats, precision: Floats
) -> float:
    """Minus the log posterior of the weights, up to a constant."""
    z = offset + X @ theta
    fit = np.sum(weight * (np.logaddexp(0.0, z) - target * z))
    return float(fit + 0.5 * np.sum(precision * theta**2))
