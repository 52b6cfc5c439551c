"""What looking at the test bags is worth to an attention network: honest and oracle accuracy.

Published figures of attention networks on the small sets are often those of the best test epoch,
or of a threshold chosen on the test bags. Here one network (``AttentionMIL``, library defaults,
features standardised inside the fold) is scored in four ways on the same held-out bags:

- *early stopping inside the fold*: 15 per cent of the training bags choose the epoch, and a bag is
  positive above one half. This is honest, and what the class does by default;
- *last epoch*: all training bags, 40 epochs, no choice at all, above one half. Honest, too;
- *best test epoch*: of these 40 epochs the one with the highest accuracy on the test bags of the
  fold;
- *best test epoch and threshold*: the same, and for every epoch the threshold that suits the test
  bags of the fold best.

The last two are not results. They say how much of a published figure such a choice explains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

from bagwise import Bags, InstanceTransformer, datasets
from bagwise.deep import AttentionMIL, estimators
from experiments import _held_out
from experiments.attention import PUBLISHED

TITLE = "Attention networks: honest figures beside those of the best test epoch and threshold"
PAPER = "Ilse, Tomczak, Welling (ICML 2018), Table 1"
NEEDS = ("bundled",)
SEEDS = (0, 1, 2)
N_EPOCHS = 40

HONEST, LAST = "early stopping inside the fold", "last epoch"
BEST_EPOCH, BEST_BOTH = "best test epoch", "best test epoch and threshold"
NOTES = {
    HONEST: "honest: the epoch is chosen on training bags",
    LAST: "honest: nothing is chosen",
    BEST_EPOCH: "oracle: the epoch is chosen on the test bags of each fold",
    BEST_BOTH: "oracle: epoch and threshold are chosen on the test bags of each fold",
}


def best_threshold_accuracy(y: NDArray[np.int64], p: NDArray[np.float64]) -> float:
    """The highest accuracy that any threshold on the probabilities reaches."""
    values = np.unique(p)
    cuts = np.concatenate([[-np.inf], (values[1:] + values[:-1]) / 2, [np.inf]])
    return float(max(np.mean((p > cut) == (y == 1)) for cut in cuts))


class Watched(AttentionMIL):
    """An attention network that scores some bags after every epoch of its training."""

    def watch(self, bags: Bags, train_bags: Bags, y: NDArray[np.int64]) -> NDArray[np.float64]:
        """Train on bags, and give the probability of others after every epoch, [epochs, bags]."""
        self.watched_, self.after_ = bags, []
        with patch.object(estimators, "progress", self._looking):
            self.fit(train_bags, y)
        return np.array(self.after_)

    def _build(self, X: Any, stats: Any = None) -> Any:
        self.network_ = super()._build(X, stats)
        return self.network_

    @contextmanager
    def _looking(self, *_: object) -> Iterator[Callable[[int, str], None]]:
        from bagwise.deep.network import instance_features, pool

        X, offsets = self._images(self.watched_), self.watched_.offsets

        def look(epoch: int, words: str) -> None:
            h = instance_features(self.network_, X, "cpu")
            self.after_.append(expit(pool(self.network_, h, offsets)[0]))

        yield look


def one_fold(data: str, seed: int, fold: int, n_epochs: int) -> dict[str, Any]:
    """Accuracy on one test fold in the four ways."""
    bags, y = getattr(datasets, f"load_{data}")(return_X_y=True)
    train, test = list(StratifiedKFold(5, shuffle=True, random_state=seed).split(y, y))[fold]
    scaler = InstanceTransformer(StandardScaler()).fit(bags[train])
    fit, held_out = scaler.transform(bags[train]), scaler.transform(bags[test])

    def accuracy(p: NDArray[np.float64]) -> float:
        return float(np.mean((p > 0.5) == (y[test] == 1)))

    network = Watched(
        max_epochs=n_epochs, validation_fraction=0.0, patience=n_epochs, random_state=seed
    )
    after = network.watch(held_out, fit, y[train])
    stopped = AttentionMIL(random_state=seed).fit(fit, y[train]).predict_proba(held_out)[:, 1]
    return {
        "data": data,
        "seed": seed,
        HONEST: accuracy(stopped),
        LAST: accuracy(after[-1]),
        BEST_EPOCH: max(accuracy(p) for p in after),
        BEST_BOTH: max(best_threshold_accuracy(y[test], p) for p in after),
    }


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Five folds, three seeds, five sets; quick: two folds of MUSK1, three epochs."""
    sets = ("musk1",) if quick else tuple(PUBLISHED)
    n_epochs = 3 if quick else N_EPOCHS
    seeds = SEEDS[:1] if quick else SEEDS
    jobs = [(d, s, f, n_epochs) for d in sets for s in seeds for f in range(2 if quick else 5)]
    table = _held_out.gather(one_fold, jobs, out, n_jobs)
    rows = []
    for data in sets:
        per_seed = table[table["data"] == data].groupby("seed")[list(NOTES)].mean()
        for way, note in NOTES.items():
            accuracies = per_seed[[way]].set_axis(["accuracy"], axis=1)
            published = {"accuracy": PUBLISHED[data]}
            rows += _held_out.rows(f"attention network, {way}", data, accuracies, published, note)
    return pd.DataFrame(rows)


if __name__ == "__main__":
    _held_out.main(run)
