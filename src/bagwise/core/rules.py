"""Between bags and instances: probabilities up, under the MIL assumption, and labels down."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import ArrayLike

from bagwise.core import segments
from bagwise.core.arrays import namespace, softplus

if TYPE_CHECKING:
    from bagwise.core.arrays import ArrayT, Codes, Floats, Ints


def bag_log_odds(instance_log_odds: ArrayT, offsets: segments.Offsets, rule: str) -> ArrayT:
    """Log-odds that a bag has a positive instance, from the log-odds of its instances.

    ``noisy-or`` is 1 - prod(1 - p) over independent instances; ``max`` is the most positive
    instance. Both are computed in the log domain, so a bag of 50,000 instances is safe.
    """
    if rule == "max":
        return segments.max(instance_log_odds, offsets)
    xp = namespace(instance_log_odds)
    # log(1 - p) = -softplus(log-odds)
    log_none = -segments.sum(softplus(instance_log_odds), offsets)
    with np.errstate(divide="ignore"):
        log_some = xp.log(-xp.expm1(log_none))
    # Where every p underflows, 1 - prod(1 - p) is their sum: the score stays finite.
    tiny = log_none > -1e-200
    if tiny.any():
        log_some = xp.where(tiny, segments.logsumexp(instance_log_odds, offsets), log_some)
    return cast("ArrayT", log_some - log_none)


def inherited_labels(y: Ints, known: Codes, offsets: Ints) -> Ints:
    """Label of each instance: its own where known (not -1), else its bag's, [N]."""
    return np.where(known >= 0, known, segments.spread(y, offsets))


def log_odds(p: ArrayLike) -> Floats:
    """Log-odds of a probability, finite for p in {0, 1}."""
    eps = np.finfo(np.float64).tiny
    return np.log(np.maximum(p, eps)) - np.log1p(-np.minimum(p, 1 - np.finfo(np.float64).epsneg))
