"""Results of a comparison: tidy rows, means with spread, and paired tests between models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from bagwise.core.arrays import Floats
from bagwise.evaluate.cross_validation import HeldOut
from bagwise.evaluate.metrics import METRIC_NAMES, METRICS

if TYPE_CHECKING:
    import pandas as pd


# Shown by default: with their names whole they fit a terminal of 80 columns.
USUAL_METRICS = ("accuracy", "auc", "log_loss", "ece")
Averaging = Literal["default", "fold-mean", "pooled"]


class Comparison:
    """Results of `compare`, computed from the out-of-fold predictions it kept.

    Parameters
    ----------
    records : list of dict
        One per fit.
    metrics : sequence of str, default=METRIC_NAMES

    Examples
    --------
    >>> from bagwise.evaluate import BagFolds, compare
    >>> from bagwise.datasets import make_gaussian_bags
    >>> data = {"toy": make_gaussian_bags(n_bags=30, random_state=0)}
    >>> folds = BagFolds(n_splits=3, seeds=(0, 1))
    >>> made = compare(["statistics", "single-instance"], data, folds, progress=False)
    >>> made.table(["accuracy", "auc"]).columns.tolist()
    ['model', 'data', 'accuracy', 'auc', 'fit s', 'peak MB', 'seeds']
    """

    def __init__(
        self, records: list[dict[str, Any]], metrics: Sequence[str] = METRIC_NAMES
    ) -> None:
        self.records = records
        self.metrics = tuple(metrics)

    @property
    def models(self) -> list[str]:
        """Names of the models, in the order given."""
        return list(dict.fromkeys(record["model"] for record in self.records))

    @property
    def datasets(self) -> list[str]:
        """Names of the data sets, in the order given."""
        return list(dict.fromkeys(record["data"] for record in self.records))

    @property
    def rows(self) -> pd.DataFrame:
        """A frame with one row per model, data, seed, fold, level and metric."""
        import pandas as pd

        rows = []
        shared = ("model", "data", "seed", "fold", "fit_seconds", "predict_seconds", "peak_mb")
        for record in self.records:
            about = {name: record[name] for name in shared}
            for level in ("bags", "instances"):
                for metric, value in record.get(f"{level}_metrics", {}).items():
                    rows.append({**about, "level": level, "metric": metric, "value": value})
        columns = [*shared[:4], "level", "metric", "value", *shared[4:]]
        return pd.DataFrame(rows, columns=columns)

    @property
    def warnings(self) -> dict[str, int]:
        """Messages of warnings raised during fits, with the number of fits that raised them."""
        return dict(
            Counter(f"{r['model']}: {text}" for r in self.records for text in r["warnings"])
        )

    def _records_of(self, model: str, data: str) -> list[dict[str, Any]]:
        return [r for r in self.records if r["model"] == model and r["data"] == data]

    def per_seed(
        self,
        model: str,
        data: str,
        metric: str,
        *,
        level: Literal["bags", "instances"] = "bags",
        averaging: Averaging = "default",
    ) -> Floats:
        """The metric of each repetition, shape (n_seeds,).

        Parameters
        ----------
        model, data, metric : str
        level : {"bags", "instances"}, default="bags"
        averaging : {"default", "fold-mean", "pooled"}, default="default"
            Mean over the folds of a repetition, or once over all its test predictions together.
            "default" is "fold-mean", but "pooled" for the calibration error.
        """
        if averaging == "default":
            averaging = "pooled" if METRICS[metric].pooled else "fold-mean"
        chosen = [r for r in self._records_of(model, data) if r.get(level) is not None]
        values = []
        for seed in dict.fromkeys(r["seed"] for r in chosen):
            of_seed = [r for r in chosen if r["seed"] == seed]
            if averaging == "pooled":
                parts = {k: [r[level][k] for r in of_seed] for k in HeldOut._fields}
                joined: dict[str, Any] = {
                    k: None if any(v is None for v in part) else np.concatenate(part)
                    for k, part in parts.items()
                }
                values.append(HeldOut(**joined).metrics([metric])[metric])
            else:
                folds = np.array([r[f"{level}_metrics"][metric] for r in of_seed])
                # A fold without both classes has no AUC and is left out.
                values.append(np.nanmean(folds) if np.isfinite(folds).any() else np.nan)
        return np.array(values)

    def summary(
        self,
        metrics: Sequence[str] | None = None,
        *,
        level: Literal["bags", "instances"] = "bags",
        averaging: Averaging = "default",
    ) -> pd.DataFrame:
        """Mean and spread (standard deviation over seeds) of each model on each data set."""
        import pandas as pd

        rows = []
        for data, model, metric in product(self.datasets, self.models, metrics or self.metrics):
            values = self.per_seed(model, data, metric, level=level, averaging=averaging)
            if len(values):
                spread = values.std(ddof=1) if len(values) > 1 else np.nan
                rows.append((model, data, metric, values.mean(), spread, len(values)))
        return pd.DataFrame(rows, columns=["model", "data", "metric", "mean", "spread", "n_seeds"])

    def table(self, metrics: Sequence[str] | None = None) -> Any:
        """Models beside each other: "mean ± spread" of each metric, fit time and peak memory.

        By default the usual four metrics, as far as they were measured.
        """
        import pandas as pd

        usual = [name for name in USUAL_METRICS if name in self.metrics]
        shown = metrics or usual or self.metrics
        summary: Any = self.summary(shown)
        rows = []
        for (data, model), part in summary.groupby(["data", "model"], sort=False):
            records = self._records_of(model, data)
            row: dict[str, Any] = {"model": model, "data": data}
            for cell in part.itertuples():
                row[str(cell.metric)] = format_mean(cell.mean, cell.spread)
            row["fit s"] = f"{np.mean([r['fit_seconds'] for r in records]):.2g}"
            row["peak MB"] = f"{max(r['peak_mb'] for r in records):.0f}"
            row["seeds"] = int(part["n_seeds"].max())
            rows.append(row)
        return pd.DataFrame(rows)

    def paired(self, metric: str = "auc") -> pd.DataFrame:
        """Corrected resampled t-test of each pair of models on each data set, fold by fold."""
        import pandas as pd

        rows = []
        for data, (a, b) in product(self.datasets, combinations(self.models, 2)):
            first, second = (
                {(r["seed"], r["fold"]): r for r in self._records_of(model, data)}
                for model in (a, b)
            )
            # Folds that both models were scored on, in one order.
            shared = [first[key] for key in first if key in second]
            others = [second[key] for key in first if key in second]
            values = np.array([r["bags_metrics"][metric] for r in shared])
            values -= np.array([r["bags_metrics"][metric] for r in others])
            ratio = float(np.mean([r["n_test"] / r["n_train"] for r in shared]))
            values = values[np.isfinite(values)]  # a fold of one class has no AUC
            t, p = corrected_resampled_t(values, ratio)
            difference, better = values.mean(), "-"
            if difference != 0:
                better = a if (difference > 0) != METRICS[metric].lower_is_better else b
            rows.append((data, a, b, difference, t, p, better))
        columns = ["data", "a", "b", "difference", "t", "p", "better"]
        return pd.DataFrame(rows, columns=columns)

    def over_datasets(self, metric: str = "auc") -> pd.DataFrame:
        """Wilcoxon signed-rank test of each pair of models over the data sets' means."""
        import pandas as pd

        means = {
            model: np.array([self.per_seed(model, data, metric).mean() for data in self.datasets])
            for model in self.models
        }
        rows = []
        for a, b in combinations(self.models, 2):
            differences = means[a] - means[b]
            differences = differences[np.isfinite(differences)]  # sets that both models have
            mean = differences.mean() if len(differences) else np.nan
            rows.append((a, b, len(differences), mean, wilcoxon_p(differences)))
        return pd.DataFrame(rows, columns=["a", "b", "n_datasets", "difference", "p"])


def corrected_resampled_t(difference: ArrayLike, test_to_train: float) -> tuple[float, float]:
    """T and two-sided p of the mean of paired fold differences (Nadeau and Bengio, 2003).

    Training sets of different folds overlap, so the plain t-test is over-confident; the
    variance is multiplied by ``1/n + n_test/n_train`` instead of ``1/n``.

    Parameters
    ----------
    difference : array of shape (n,)
        Score of one model minus that of the other, per seed and fold.
    test_to_train : float
        Test bags divided by training bags of a split.

    Examples
    --------
    >>> from bagwise.evaluate import corrected_resampled_t
    >>> t, p = corrected_resampled_t([0.1, 0.2, 0.15, 0.12], test_to_train=0.25)
    >>> round(t, 2), round(p, 3)
    (4.63, 0.019)
    """
    from scipy import stats

    difference = np.asarray(difference, dtype=np.float64)
    n = len(difference)
    if n < 2:
        return float("nan"), float("nan")
    variance = difference.var(ddof=1)
    if variance == 0:
        same = difference[0] == 0
        return (0.0, 1.0) if same else (float(np.sign(difference[0]) * np.inf), 0.0)
    # t = mean(d) / sqrt((1/n + n_test/n_train) s^2), with n - 1 degrees of freedom.
    t = difference.mean() / np.sqrt((1 / n + test_to_train) * variance)
    return float(t), float(2 * stats.t.sf(abs(t), n - 1))


def wilcoxon_p(difference: ArrayLike) -> float:
    """Two-sided p of the signed-rank test; zeros are ranked and split (Pratt's treatment).

    With n data sets p cannot be below ``2 ** (1 - n)``: five sets can never show more than
    0.0625.

    Examples
    --------
    >>> from bagwise.evaluate import wilcoxon_p
    >>> wilcoxon_p([0.01, 0.02, 0.03, 0.04, 0.05])
    0.0625
    """
    from scipy import stats

    difference = np.asarray(difference, dtype=np.float64)
    if len(difference) == 0:
        return float("nan")
    if not difference.any():
        return 1.0
    exact = (difference != 0).all() and len(np.unique(np.abs(difference))) == len(difference)
    # Ties and zeros: every sign pattern while they can be listed, then the normal law.
    method: Any = "exact"
    if not exact:
        listed = len(difference) <= 13
        method = stats.PermutationMethod(n_resamples=np.inf) if listed else "asymptotic"
    return float(stats.wilcoxon(difference, zero_method="pratt", method=method).pvalue)


def format_mean(mean: float, spread: float, digits: int = 3) -> str:
    """``0.853 ± 0.012``, or without the spread where there is none."""
    if not np.isfinite(mean):
        return "-"
    text = f"{mean:.{digits}f}"
    return f"{text} ± {spread:.{digits}f}" if np.isfinite(spread) else text
