"""Calibration: the map from scores to probabilities that held-out bags confirm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bagwise.core.arrays import Array, Floats, Ints
from bagwise.core.gaussians import SigmoidMoments
from bagwise.core.platt import Platt, cool, fit_noisy_or_platt, fit_platt, keep_ranking
from bagwise.models.variational.score import (
    BagRule,
    LeftOutScores,
    Readout,
    Scores,
    bag_scores,
)


def fit_calibration(
    left_out: LeftOutScores, offsets: Ints, y: Ints, rule: BagRule, held_out: Sequence[int] = ()
) -> Platt:
    """Platt's map for instance scores, such that calibrated instances still make their bag.

    Under ``max`` it is the map of the bag score. Under ``noisy-or`` it is fitted through the
    product. Under ``joint`` it is that of the bag score, an instance counting as a bag of one.
    Where the left-out scores say nothing the best slope is 0; a hint of one keeps the ranking.
    Features that were learned from the labels make left-out scores optimistic; bags whose labels
    they did not see (``held_out``, indices) say how much.
    """
    if rule == "noisy-or":
        scores, platt = left_out.instances, fit_noisy_or_platt(left_out.instances, offsets, y)
    else:
        scores, platt = left_out.bags, fit_platt(left_out.bags, y)
    platt = keep_ranking(platt, scores)
    units = offsets if rule == "noisy-or" else np.arange(len(y) + 1)
    return cool(platt, scores, units, y, held_out)


def calibrated(readout: Readout, offsets: Ints, rule: BagRule, platt: Platt | None) -> Scores:
    """Scores of a block, by a map where there is one.

    Mapped instances make their bag again by the rule; under ``joint`` the bag is mapped itself.
    """
    if platt is None:
        return Scores(*readout[:4])
    instance, instance_std = _mapped(readout.instance, readout.instance_std, platt)
    if rule == "joint":
        bag = _mapped(readout.bag, readout.bag_std, platt)
    else:
        bag = bag_scores(_as_moments(instance, instance_std), offsets, rule)
    return Scores(*bag, instance, instance_std)


def _as_moments(log_odds: Floats, std: Floats) -> SigmoidMoments:
    """Moments of probabilities with these log-odds and standard deviations."""
    log_negative = -np.logaddexp(0.0, log_odds)
    with np.errstate(divide="ignore"):
        square = np.logaddexp(2 * log_negative, 2 * np.log(std))
    return SigmoidMoments(log_negative + log_odds, log_negative, square)


def _mapped(log_odds: Array, std: Array, platt: Platt) -> tuple[Array, Array]:
    """Mapped log-odds, and std times d p' / d p = slope p'(1 - p') / (p (1 - p)), in logs."""
    mapped = platt.log_odds(log_odds)
    gain = np.minimum(_log_variance(mapped) - _log_variance(log_odds), 50.0)
    # A probability spreads by at most sqrt(p (1 - p)).
    return mapped, np.minimum(std * platt.slope * np.exp(gain), np.exp(_log_variance(mapped) / 2))


def _log_variance(log_odds: Array) -> Array:
    """``log(p (1 - p))``."""
    return -np.logaddexp(0.0, log_odds) - np.logaddexp(0.0, -np.asarray(log_odds))
