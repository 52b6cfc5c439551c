"""From instance probabilities to a bag probability, under the standard MIL assumption."""

from __future__ import annotations

from typing import Any

import numpy as np

from bagwise.core import segments


def bag_log_odds(instance_log_odds: Any, offsets: Any, rule: str) -> Any:
    """Log-odds that a bag has a positive instance, from the log-odds of its instances.

    ``noisy-or`` is 1 - prod(1 - p) over independent instances; ``max`` is the most positive
    instance. Both are computed in the log domain, so a bag of 50,000 instances is safe.
    """
    if rule == "max":
        return segments.max(instance_log_odds, offsets)
    # log(1 - p) = -softplus(log-odds)
    log_none = -segments.sum(np.logaddexp(0.0, instance_log_odds), offsets)
    with np.errstate(divide="ignore"):
        return np.log(-np.expm1(log_none)) - log_none


def log_odds(p: Any) -> Any:
    """Log-odds of a probability, finite for p in {0, 1}."""
    eps = np.finfo(np.float64).tiny
    return np.log(np.maximum(p, eps)) - np.log1p(-np.minimum(p, 1 - np.finfo(np.float64).epsneg))
