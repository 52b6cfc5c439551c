"""The row *VGPMIL & kPCA* of the VGPMIL paper's Table 1: 20 Newsgroups after kernel PCA.

The model and its settings are those of ``vgpmil_newsgroups``; the features are 100 components of
a kernel PCA, as DPMIL's paper has them. The paper does not say whether the components see held-out
posts. Both are measured: components of all posts, without any label, and components of the
training posts of each fold alone. Posts on topic have larger norms, so ranking by |x| without
training stands beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
from joblib import Parallel, delayed

from bagwise import InstanceTransformer, make_pipeline
from bagwise.datasets import NEWSGROUPS, fetch_newsgroups
from bagwise.models.base import Model
from bagwise.models.presets import preset
from experiments._held_out import folds, main, measure
from experiments.dpmil_newsgroups import GreedyKernelPCA, transform_all
from experiments.published import figures
from experiments.vgpmil_newsgroups import RANKING, one_set, set_rows

TITLE = "VGPMIL after kernel PCA on 20 Newsgroups (VGPMIL paper, Table 1)"
PAPER = "VGPMIL, Table 1, row VGPMIL & kPCA"
NEEDS = ("newsgroups",)

OF_ALL, IN_FOLD = "VGPMIL & kPCA, all posts", "VGPMIL & kPCA, in fold"
NOTES = {
    RANKING: "no training",
    OF_ALL: "kernel PCA of all posts, held-out ones too, labels unseen",
    IN_FOLD: "kernel PCA to 100 on the training posts of the fold",
}


def plain(seed: int) -> Model:
    """VGPMIL with the paper's settings."""
    return preset("vgpmil-paper", random_state=seed)


def after_kpca(seed: int) -> Model:
    """The same behind a kernel PCA that sees the training posts alone."""
    return make_pipeline(InstanceTransformer(GreedyKernelPCA(100)), plain(seed))


def one_newsgroup(name: str, model: str, seeds: range, n_splits: int) -> list[list[float]]:
    """Instance AP of every test fold of one set, one list per seed."""
    if model == RANKING:
        return one_set(name, None, False, seeds, n_splits)
    data = fetch_newsgroups(name)
    bags = transform_all(data.bags) if model == OF_ALL else data.bags
    make: Callable[[int], Model] = plain if model == OF_ALL else after_kpca
    values: dict[int, list[float]] = {}
    for seed, a, b in folds(data.y, seeds, n_splits):
        scored = measure(make(seed), bags[a], data.y[a], bags[b], data.y[b])
        values.setdefault(seed, []).append(scored["instance AP"])
    return list(values.values())


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Ten folds by bag on all sets, two seeds; quick: one set, three folds, one seed."""
    sets = NEWSGROUPS[:1] if quick else NEWSGROUPS
    seeds, n_splits = (range(1), 3) if quick else (range(2), 10)
    jobs = [(name, model) for model in NOTES for name in sets]
    found = Parallel(n_jobs)(delayed(one_newsgroup)(*job, seeds, n_splits) for job in jobs)
    table = []
    for k, (model, note) in enumerate(NOTES.items()):
        per_fold = found[k * len(sets) : (k + 1) * len(sets)]
        (mean,) = set_rows(model, sets, per_fold, {}, note=note)[-1:]
        if model != RANKING:
            (mean["published"],) = figures("VGPMIL", "Table 1", "VGPMIL & kPCA").values()
        table.append(mean)
    return pd.DataFrame(table)


if __name__ == "__main__":
    main(run)
