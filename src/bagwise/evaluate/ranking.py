"""Which of several models is better over several data sets: ranks, and tests that count them all.

Friedman's test asks whether any model differs. Pairs are then compared by Wilcoxon's signed-rank
test on the data sets' scores, and Holm's correction accounts for the number of pairs (Garcia and
Herrera, 2008; Benavoli, Corani and Mangili, 2016, on why not mean ranks: the verdict on two models
would depend on the others).
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from bagwise.evaluate.comparison import wilcoxon_p


class Ranking(NamedTuple):
    """Models from best to worst.

    Examples
    --------
    >>> from bagwise.evaluate import rank_models
    >>> made = rank_models(["a", "b"], [[0.5, 0.9], [0.6, 0.8], [0.5, 0.7]])
    >>> made.models, made.mean_rank.tolist(), made.friedman_p
    (['b', 'a'], [1.0, 2.0], 0.25)
    """

    models: list[str]
    mean_rank: NDArray[np.float64]  # 1 is best; tied models share the mean of their ranks
    n_datasets: int
    friedman_p: float
    p: NDArray[np.float64]  # [models, models] Holm-adjusted p of each pair, 1 on the diagonal
    groups: list[tuple[int, int]]  # first and last position of models that cannot be told apart


def rank_models(models: list[str], scores: ArrayLike, *, greater_is_better: bool = True) -> Ranking:
    """Rank models by their scores on several data sets; an adjusted p below 0.05 tells two apart.

    Parameters
    ----------
    models : list of str
    scores : array of shape (n_datasets, n_models)
        No NaN: models are compared on the data sets that all of them have.
    greater_is_better : bool, default=True

    Examples
    --------
    >>> from bagwise.evaluate import rank_models
    >>> scores = [[0.9, 0.7, 0.5], [0.8, 0.6, 0.5], [0.9, 0.8, 0.4]]
    >>> made = rank_models(["a", "b", "c"], scores)
    >>> made.models, made.mean_rank.tolist(), made.groups  # three sets tell nothing apart
    (['a', 'b', 'c'], [1.0, 2.0, 3.0], [(0, 2)])
    """
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 2 or scores.shape[1] != len(models) or len(models) < 2 or len(scores) < 2:
        raise ValueError(
            f"ranking needs scores of at least 2 data sets and 2 models, one column per model; got "
            f"shape {scores.shape} for {len(models)} models."
        )
    if not np.isfinite(scores).all():
        row, column = np.argwhere(~np.isfinite(scores))[0]
        raise ValueError(f"model {models[column]!r} has no score on data set {row}.")
    signed = -scores if greater_is_better else scores  # [data sets, models], least is best
    mean_rank = stats.rankdata(signed, axis=1).mean(axis=0)
    order = np.argsort(mean_rank, kind="stable")
    signed, mean_rank = signed[:, order], mean_rank[order]
    pairs = list(combinations(range(len(models)), 2))
    adjusted = holm([wilcoxon_p(signed[:, a] - signed[:, b]) for a, b in pairs])
    p = np.ones((len(models), len(models)))
    for (a, b), value in zip(pairs, adjusted, strict=True):
        p[a, b] = p[b, a] = value
    if len(models) == 2:
        friedman_p = adjusted[0]  # of two models the test is Wilcoxon's
    elif (signed == signed[:, :1]).all():
        friedman_p = 1.0
    else:
        friedman_p = stats.friedmanchisquare(*signed.T).pvalue
    # The longest runs of ranked models in which no pair is told apart.
    alike, groups = p >= 0.05, list[tuple[int, int]]()
    for first in range(len(models)):
        last = first
        while last + 1 < len(models) and alike[first : last + 2, first : last + 2].all():
            last += 1
        if last > first and not any(a <= first and last <= b for a, b in groups):
            groups.append((first, last))
    names = [models[i] for i in order]
    return Ranking(names, mean_rank, len(scores), float(friedman_p), p, groups)


def holm(p: ArrayLike) -> NDArray[np.float64]:
    """P-values adjusted for their number by Holm's step-down method."""
    p = np.asarray(p, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    # The i-th smallest of m is multiplied by m - i + 1, and no later one may fall below it.
    steps = p[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted
