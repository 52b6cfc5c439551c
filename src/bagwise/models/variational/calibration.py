"""The map of leave-one-out scores, by which labelling tells how their scale has changed."""

from __future__ import annotations

from bagwise.core.arrays import Ints
from bagwise.core.platt import Platt, fit_noisy_or_platt, fit_platt, keep_ranking
from bagwise.models.variational.score import BagRule, LeftOutScores


def fit_calibration(left_out: LeftOutScores, offsets: Ints, y: Ints, rule: BagRule) -> Platt:
    """Platt's map for instance scores, such that mapped instances still make their bag.

    Under ``max`` it is the map of the bag score. Under ``noisy-or`` it is fitted through the
    product. Under ``joint`` it is that of the bag score, an instance counting as a bag of one.
    Where the left-out scores say nothing the best slope is 0; a hint of one keeps the ranking.
    Sites of the other bags know a left-out label a little, so that only two such maps are
    compared, never one used by itself: probabilities come from `latent_map.MapFit`.
    """
    if rule == "noisy-or":
        scores, platt = left_out.instances, fit_noisy_or_platt(left_out.instances, offsets, y)
    else:
        scores, platt = left_out.bags, fit_platt(left_out.bags, y)
    return keep_ranking(platt, scores)
