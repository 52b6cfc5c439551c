"""Patient, slide, patch: one model's probabilities at all three levels, in agreement.

A model is trained on patients as bags, whose instances are the patches of all their slides. A slide
is a bag, too: the same rule that reads a patient off all its patches reads a slide off its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import expit

from bagwise.bags import Bags
from bagwise.bags.layout import group_rows
from bagwise.core import segments
from bagwise.core.arrays import Floats, Ints
from bagwise.models.drivers import cut
from bagwise.models.pipeline import positive_proba, read_scores

if TYPE_CHECKING:
    from bagwise.models.base import Model


# Numbers of rows on disk that are in memory at a time, 0.3 GB.
_MOST_NUMBERS = 1 << 26


class Level(NamedTuple):
    """Probabilities of the positive class; ``std`` is NaN where the model gives none."""

    probability: Floats
    std: Floats


class Levels(NamedTuple):
    """What a model says about bags, their groups and their instances."""

    bags: Level  # [B]
    groups: Level  # [G] in the order of ``group_bags``
    instances: Level  # [N] aligned with ``group_bags.instances``
    group_bags: Bags  # the groups as bags
    owner: Ints  # [G] number of the bag that a group belongs to


def predict_levels(model: Model, bags: Bags) -> Levels:
    """Probability and standard deviation of bags, groups and instances, from one model.

    With patients as bags and slides as groups: a patient is at least as probable as each slide, and
    a slide as each patch. Under the standard assumption the model's own answers are so; where one
    is not, because the model judges bags as a whole or samples, it is raised to what it holds.

    Parameters
    ----------
    model : fitted model
        With ``predict_proba`` and ``predict_proba_instances``.
    bags : Bags with ``groups``

    Returns
    -------
    Levels

    Examples
    --------
    >>> from bagwise import VGPMIL, predict_levels
    >>> from bagwise.datasets import make_patient_bags
    >>> patients, y = make_patient_bags(n_patients=20, random_state=0, return_X_y=True)
    >>> levels = predict_levels(VGPMIL(n_inducing=20, random_state=0).fit(patients, y), patients)
    >>> len(levels.bags.probability), len(levels.groups.probability) == len(levels.group_bags)
    (20, True)
    """
    for method in ("predict_proba", "predict_proba_instances"):
        if not hasattr(model, method):
            raise ValueError(f"predict_levels needs a model with {method}; this one has none.")
    if not hasattr(bags.instances, "select_rows"):
        return _predict(model, bags)
    # Rows on disk are read once for patients and slides: what is said of one depends on no other.
    spans = cut(bags.offsets, max(1, _MOST_NUMBERS // bags.n_features), n_chunks=1)
    parts = []
    for span in spans:
        run = bags[span.first_bag : span.last_bag]
        X, names = run.instances[:], run.feature_names
        loaded = Bags(X, run.offsets, run.ids, columns=run.columns, feature_names=names)
        part = _predict(model, loaded)
        parts.append(part._replace(owner=part.owner + span.first_bag))

    def joined(levels: Iterable[Level]) -> Level:
        return Level(*(np.concatenate(values) for values in zip(*levels, strict=True)))

    return Levels(
        joined(part.bags for part in parts),
        joined(part.groups for part in parts),
        joined(part.instances for part in parts),
        bags.by_group(),
        np.concatenate([part.owner for part in parts]),
    )


def _predict(model: Model, bags: Bags) -> Levels:
    """Bags, groups and instances of rows in memory."""
    inner = bags.by_group()
    owner = group_rows(np.asarray(bags.groups), bags.bag_index).owner
    scores = read_scores(model, inner)
    instances = Level(expit(scores.instance), scores.instance_std)
    groups = _raised(Level(expit(scores.bag), scores.bag_std), instances, inner.offsets)
    ends = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(bags)))])
    p, std = positive_proba(model, bags)
    outer = _raised(Level(np.asarray(p, dtype=np.float64), std), groups, ends)
    return Levels(outer, groups, instances, inner, owner)


def _raised(whole: Level, parts: Level, offsets: Ints) -> Level:
    """The whole, or its most probable part where that is more probable."""
    top = segments.argmax(parts.probability, offsets)
    more = parts.probability[top] > whole.probability
    return Level(
        np.where(more, parts.probability[top], whole.probability),
        np.where(more, parts.std[top], whole.std),
    )
