"""When the Gamma density of G-VGPMIL has a stable latent function, and when it escapes.

For a certain positive label the model multiplies ``e^{f/2} (1 + f^2 / (2 beta))^{-alpha}``, which
is unbounded in f: only the prior holds f back, and many labels in one place outweigh it. There one
update takes f to ``1 / (2 theta(f)) = (beta + f^2 / 2) / (2 alpha)``, whose fixed points are

``2 alpha ± sqrt(4 alpha^2 - 2 beta)``:

there are none if beta > 2 alpha^2, and otherwise the lower is stable and the upper is not. The
first theta sees E f^2 = v, so that a fit starts at sqrt(v): beyond the upper root it runs away.
"""

from __future__ import annotations

import math

import numpy as np

from bagwise.core.arrays import Floats, to_numpy


def fixed_points(alpha: float, beta: float) -> tuple[float, float] | None:
    """Stable and unstable latent value of a certain label under a wide prior, or None.

    Examples
    --------
    >>> from bagwise.models.variational.stability import fixed_points
    >>> [round(f, 2) for f in fixed_points(1.0, 1.0)], fixed_points(1.0, 4.0)
    ([0.59, 3.41], None)
    """
    inside = 4 * alpha**2 - 2 * beta
    if inside < 0:
        return None
    return 2 * alpha - math.sqrt(inside), 2 * alpha + math.sqrt(inside)


def largest_variance(alpha: float, beta: float) -> float:
    """The kernel variance up to which a fit is stable; 0 where none is.

    Examples
    --------
    >>> from bagwise.models.variational.stability import largest_variance
    >>> round(largest_variance(1.0, 1.0), 1), largest_variance(1.0, 4.0)
    (11.7, 0.0)
    """
    roots = fixed_points(alpha, beta)
    return 0.0 if roots is None else roots[1] ** 2


def instability(alpha: float, beta: float, variance: float) -> str | None:
    """Why a Gamma density with this prior variance has no stable fit; None where it has one.

    ``variance`` is k(x, x) of the kernel.

    Examples
    --------
    >>> from bagwise.models.variational.stability import instability
    >>> instability(1.0, 1.0, 1.0) is None, instability(1.0, 1.0, 16.0) is None
    (True, False)
    """
    if fixed_points(alpha, beta) is None:
        return (
            f"beta={beta:g} exceeds 2 alpha^2={2 * alpha**2:g}, so that nothing but the prior "
            "holds the latent function and labels drive it away; use a smaller beta or a larger "
            "alpha."
        )
    largest = largest_variance(alpha, beta)
    if variance <= largest:
        return None
    return (
        f"with alpha={alpha:g}, beta={beta:g} the latent function is stable up to a kernel "
        f"variance of {largest:.3g}; {variance:g} lets labels drive it away."
    )


def escape(mean: Floats, variance: float, bound: float) -> str | None:
    """Why a finished fit is not to be trusted: its latent function has left the prior.

    ``mean`` [n] are latent means of training instances. A logistic label moves f by a few prior
    standard deviations at most; ten of them are an escape. A bound above 0 would be a
    probability of the labels above 1.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.stability import escape
    >>> escape(np.array([1.0, -2.0]), 1.0, -20.0) is None
    True
    >>> escape(np.array([1.0, -2.0]), 1.0, 3.0)
    'the evidence bound is 3, but labels cannot have a probability above 1.'
    """
    largest = float(np.max(np.abs(to_numpy(mean)), initial=0.0))
    if not np.isfinite(largest) or largest > 10 * math.sqrt(variance):
        return (
            f"the latent function escaped to {largest:.3g}, more than ten prior standard "
            f"deviations ({math.sqrt(variance):.3g})."
        )
    if bound > 0:
        return f"the evidence bound is {bound:.3g}, but labels cannot have a probability above 1."
    return None
