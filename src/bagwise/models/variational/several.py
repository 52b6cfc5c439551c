"""More than two classes in the VGPMIL family: one posterior per class on one projection.

Scaling, inducing points, kernel and the projected instances are those of all classes. Each class
asks whether a bag holds something of it, with the bags of the other classes as negatives: under
independent indicators that is the exact likelihood of the labels. What is fitted is one two-class
model per class; prediction reads every row once and projects it once, whatever the number of
classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from scipy.special import expit, log_expit

from bagwise.core import segments
from bagwise.core.arrays import Array, Floats, Ints
from bagwise.core.platt import WHOLE_BAG
from bagwise.models.classes import ClassLabels, ClassRule, ClassScores, fit_temperature
from bagwise.models.variational.latent_map import Fraction, bag_folds
from bagwise.models.variational.score import Scores

# The fits without a fold of bags, on which the classes are calibrated, stop at this change of q:
# held-out rankings have settled by then, and ten classes need thirty of these fits.
REFIT_TOL = 0.015
# Folds of that calibration; from so many bags of the rarest class on, all classes share them.
N_FOLDS = 3


def class_folds(labels: ClassLabels, finding: int) -> Ints | None:
    """Folds with bags of every class, or of this one where some class is rare; None where it is."""
    if labels.codes is not None and np.bincount(labels.codes).min() >= N_FOLDS:
        return bag_folds(labels.codes, N_FOLDS)
    present = labels.present[:, finding]
    return bag_folds(present, N_FOLDS) if np.bincount(present, minlength=2).min() >= 2 else None


def class_smoothing(labels: ClassLabels) -> float | None:
    """How much smoothing the map of one class has: Platt's own where a bag has one class only.

    How sure these classes are in common is left to a temperature (`fitted_rule`); what the maps
    decide is how the classes compare, and smoothing keeps their slopes alike.
    """
    return None if labels.multilabel else WHOLE_BAG


def base_rates(labels: ClassLabels) -> Floats:
    """Log-odds of how many bags have each finding, [F]; finite where none has, or all."""
    n = labels.present.sum(axis=0) + 0.5
    return np.log(n / (len(labels.present) + 1 - n))


def warn_of_rare(labels: ClassLabels) -> list[int]:
    """Findings with too few bags to hold any out; a warning names those that can be learnt."""
    n = labels.present.sum(axis=0)
    fewer = np.minimum(n, len(labels.present) - n)
    if (fewer == 1).any():
        names = labels.classes[labels.findings][fewer == 1].tolist()
        warnings.warn(
            f"only one bag tells the classes {names} from the others, so that none can be held "
            "out; they are calibrated like the other classes, by how rare they are.",
            stacklevel=4,
        )
    return np.flatnonzero(fewer < 2).tolist()


def fitted_rule(labels: ClassLabels, held_out: Sequence[Floats | None]) -> ClassRule:
    """How the classes go together, at the temperature that held-out log-odds ask for.

    ``held_out`` has the log-odds of each finding [B], NaN where a bag was not held out, or None
    where the finding was not calibrated.
    """
    columns = [column for column in held_out if column is not None]
    if labels.codes is None or len(columns) < len(held_out):
        return labels.rule
    return fit_temperature(labels.rule, np.column_stack(columns), labels.codes)


def held_out_classes(rule: ClassRule, log_odds: Floats) -> Floats:
    """Held-out log-odds of the classes from those of the findings, [B, C].

    NaN for bags that some finding, which had enough of the others, did not hold out; findings that
    do not exclude each other have NaN of their own only.
    """
    if rule.multilabel:
        return rule.of_bags(log_odds, np.zeros_like(log_odds)).log_odds
    classes = np.full((len(log_odds), rule.n_classes), np.nan)
    all_of_them = np.isfinite(log_odds).all(axis=1)
    known = log_odds[all_of_them]
    classes[all_of_them] = rule.of_bags(known, np.zeros_like(known)).log_odds
    return classes


def joint_bound(histories: Sequence[Floats]) -> Floats:
    """Bound of all classes together after every iteration; a class that has ended stays there."""
    longest = max(map(len, histories))
    return np.sum([np.pad(h, (0, longest - len(h)), mode="edge") for h in histories], axis=0)


def class_columns(columns: Sequence[Array], rule: ClassRule) -> Floats:
    """Columns of the findings among those of all classes, NaN for the background, [n, C]."""
    out = np.full((len(columns[0]), rule.n_classes), np.nan)
    out[:, rule.findings] = np.column_stack(columns)
    return out


def combined(scores: Sequence[Scores], rule: ClassRule, offsets: Ints | None = None) -> Scores:
    """Scores of the classes, [n, C] each, from those of the findings, [n] each.

    ``offsets`` of the bags say that what the findings say of an instance has its bag in it.
    """
    bag, bag_std, instance, instance_std = (
        np.column_stack(column) for column in zip(*scores, strict=True)
    )
    classes = rule.of_bags(bag, bag_std)
    own = ClassScores(instance, instance_std)
    if offsets is None or len(instance) == 0:  # instances that nobody asked for
        return Scores(*classes, *rule.of_instances(*own))
    spread = [
        ClassScores(*(segments.spread(column, offsets) for column in level))
        for level in ((bag, bag_std), classes)
    ]
    return Scores(*classes, *rule.inside_bags(own, *spread))


def class_fractions(
    stds: Sequence[Floats], rule: ClassRule, instance: Floats, offsets: Ints
) -> tuple[Floats, Floats]:
    """Share of each class in every bag [b, C], and its standard deviation."""
    share = segments.mean(expit(instance), offsets)
    # A share moves with its own question; the background with all of them.
    std = class_columns(stds, rule)
    if rule.background is not None:
        std[:, rule.background] = np.sqrt(np.sum(np.square(np.column_stack(stds)), axis=1))
    return share, np.minimum(std, 0.5)


def fraction_stds(
    shares: Sequence[Fraction], bags: Sequence[Floats], classes: Floats
) -> list[Floats]:
    """Standard deviation of each finding's share, once its bag's class is settled, [b] each.

    A share is 0 or, given that the bag has the finding, varies about its mean. ``bags`` are the
    log-odds of that under each finding's question, ``classes`` [b, F] those among all classes.
    """
    stds = []
    for f, (share, bag) in enumerate(zip(shares, bags, strict=True)):
        ratio = np.exp(log_expit(classes[:, f]) - log_expit(bag))
        square = ratio * (share.mean**2 + share.std**2)
        stds.append(np.sqrt(np.maximum(square - (ratio * share.mean) ** 2, 0.0)))
    return stds
