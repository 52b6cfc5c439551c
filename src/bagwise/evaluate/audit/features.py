"""Does a single number give the label away: a feature, the bag's size, the length of a vector."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Column, Ints
from bagwise.evaluate.audit.findings import Finding

Floats = NDArray[np.float64]

# A feature with one value per bag should not predict the label, not even with a tenth of noise.
CONSTANT_AUC = 0.9
# Smallest, mean or largest value in the bag: strong features exist, so nearly perfect is asked.
DETERMINING_AUC = 0.98
# Nearly perfect, also where one instance in thirty is positive.
INSTANCE_AUC = 0.99
# Chance that the largest of all these AUCs is this large without any relation.
LEVEL = 0.001
# A number that needs no learning is "as good" within this much of the model's AUC.
MARGIN = 0.02
# Below this, a number is not worth a finding.
USEFUL_AUC = 0.65
_CHUNK = 65_536
_SUMMARIES = ("smallest", "mean", "largest")


def blocks(bags: Bags) -> Iterator[tuple[slice, Floats]]:
    """Ranges of bags with their instances as a dense array, about 65,536 rows at a time."""
    first = 0
    while first < len(bags):
        wanted = bags.offsets[first] + _CHUNK
        last = max(first + 1, int(np.searchsorted(bags.offsets, wanted, side="right")) - 1)
        rows = bags.instances[int(bags.offsets[first]) : int(bags.offsets[last])]
        dense = rows.toarray() if hasattr(rows, "toarray") else rows
        yield slice(first, last), np.asarray(dense, dtype=np.float64).reshape(len(dense), -1)
        first = last


def aucs(y: Column, values: NDArray[np.number]) -> Floats:
    """Area under the ROC curve of every column, ties counted half."""
    y, ranks = np.asarray(y, dtype=bool), stats.rankdata(values, axis=0)
    n1, n0 = int(y.sum()), int((~y).sum())
    # Mann-Whitney: AUC = (R_1 - n_1 (n_1 + 1) / 2) / (n_1 n_0), R_1 the ranks of the positives.
    return np.asarray((ranks[y].sum(axis=0) - n1 * (n1 + 1) / 2) / (n1 * n0))


def chance(auc: float, n1: int, n0: int) -> float:
    """Two-sided p of an AUC under no relation; exact where the classes separate."""
    if auc in (0.0, 1.0):
        return 2 / math.comb(n1 + n0, n1)
    # Without any relation the variance of an AUC is (n_1 + n_0 + 1) / (12 n_1 n_0).
    z = abs(auc - 0.5) / math.sqrt((n1 + n0 + 1) / (12 * n1 * n0))
    return float(2 * stats.norm.sf(z))


def bag_label_features(bags: Bags, y: Column, names: Sequence[str] | None) -> list[Finding]:
    """Features that equal or nearly determine the label of their bag.

    A feature with one value per bag (a column copied from a table of bags) is held to a lower bar
    than one that varies inside bags.
    """
    n_numbers = int(np.prod(bags.instances.shape[1:]))  # also of pictures
    tables = [np.empty((len(bags), n_numbers)) for _ in _SUMMARIES]
    for where, rows in blocks(bags):
        offsets = np.asarray(bags.offsets[where.start : where.stop + 1])
        offsets = offsets - offsets[0]
        for table, reduce in zip(tables, (segments.min, segments.mean, segments.max), strict=True):
            table[where] = reduce(rows, offsets)
    low, _, high = tables
    n1, n0 = int(np.sum(y)), int(np.sum(y == 0))
    varies = low.min(axis=0) < high.max(axis=0)  # [features]
    constant = varies & (low == high).all(axis=0) & bool((bags.sizes > 1).any())
    strength = np.stack([aucs(y, table) for table in tables])  # [summaries, features]
    strength = np.maximum(strength, 1 - strength)  # a feature may also fall with the label
    findings = []
    for j in np.flatnonzero(varies):
        auc = float(strength[:, j].max())
        if constant[j]:
            bar, tests, way = CONSTANT_AUC, int(constant.sum()), "one value per bag"
        else:
            bar, tests = DETERMINING_AUC, 3 * int(varies.sum())
            way = f"by its {_SUMMARIES[int(strength[:, j].argmax())]} value"
        # Bonferroni's correction: as many tests as summaries of features were tried.
        if auc < bar or chance(auc, n1, n0) * tests > LEVEL:
            continue
        verb = "determines" if auc == 1 else "nearly determines"
        what = f"a feature alone {verb} the bag label"
        findings.append(
            Finding("bag-label", what, f"{_name(int(j), names)}, {way}", f"AUC {auc:.3f}")
        )
    return findings


def instance_label_features(
    bags: Bags, truth: Column, names: Sequence[str] | None
) -> list[Finding]:
    """Features that equal or nearly determine the label of an instance; -1 is unknown."""
    known = truth >= 0
    n1, n0 = int((truth == 1).sum()), int((truth == 0).sum())
    if min(n1, n0) == 0:
        return []
    columns = [rows for _, rows in blocks(bags)]
    X = np.concatenate(columns)[known] if len(columns) > 1 else columns[0][known]
    both = aucs(truth[known] == 1, X)
    strength = np.maximum(both, 1 - both)
    findings = []
    for j in np.flatnonzero(strength >= INSTANCE_AUC):
        if chance(float(strength[j]), n1, n0) * len(strength) <= LEVEL:
            verb = "determines" if strength[j] == 1 else "nearly determines"
            what = f"a feature alone {verb} the instance label"
            score = f"instance AUC {strength[j]:.3f}"
            findings.append(Finding("instance-label", what, _name(int(j), names), score))
    return findings


def lengths_of(bags: Bags) -> Floats:
    """Euclidean length of every instance."""
    return np.concatenate([np.linalg.norm(rows, axis=1) for _, rows in blocks(bags)])


def length_baseline(
    bags: Bags, y: Column, truth: Column | None, model_auc: float, model_instance_auc: float
) -> list[Finding]:
    """Whether the length of vectors ranks bags, or instances, as well as the model."""
    lengths = lengths_of(bags)
    of_bags = {
        f"the {word} length |x| in the bag": reduce(lengths, bags.offsets)
        for word, reduce in (("mean", segments.mean), ("largest", segments.max))
    }
    findings = baselines("length", of_bags, y, model_auc)
    if truth is not None and np.isfinite(model_instance_auc):
        known = truth >= 0
        values = {"the length |x| of an instance": lengths[known]}
        findings += baselines("length", values, truth[known], model_instance_auc, "instance AUC")
    return findings


def baselines(
    check: str,
    values: Mapping[str, NDArray[np.number]],
    y: Ints,
    model_auc: float,
    metric: str = "AUC",
) -> list[Finding]:
    """Whether one of these numbers ranks as well as the model, whose AUC is given."""
    y = np.asarray(y)
    n1, n0 = int((y == 1).sum()), int((y == 0).sum())
    best = []
    for where, value in values.items():
        auc = float(aucs(y == 1, np.asarray(value)[:, None])[0])
        auc = max(auc, 1 - auc)
        useful = auc >= USEFUL_AUC and chance(auc, n1, n0) * len(values) <= LEVEL
        if useful and auc >= model_auc - MARGIN:
            words = f"{metric} {auc:.3f}, the model's {model_auc:.3f}"
            what = "a number that needs no learning is as good as the model"
            best.append((auc, Finding(check, what, where, words)))
    return [max(best, key=lambda pair: pair[0])[1]] if best else []


def _name(j: int, names: Sequence[str] | None) -> str:
    return f"feature {j}" if names is None else f"feature {j} ({names[j]!r})"
