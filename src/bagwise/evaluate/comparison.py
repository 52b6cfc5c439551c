"""What a comparison says: tidy rows, means with spread, and paired tests between models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from bagwise.evaluate.metrics import METRIC_NAMES, METRICS, score_predictions

if TYPE_CHECKING:
    import pandas as pd

    from bagwise.core.arrays import Floats


# Shown by default: with their names whole they fit a terminal of 80 columns.
USUAL_METRICS = ("accuracy", "auc", "log_loss", "ece")
Averaging = Literal["default", "fold-mean", "pooled"]


class Comparison:
    """Results of `compare`, computed from the out-of-fold predictions it kept.

    Parameters
    ----------
    records : list of dict
        One per fit.
    metrics : sequence of str

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
        counts: dict[str, int] = {}
        for record in self.records:
            for message in record["warnings"]:
                text = f"{record['model']}: {message}"
                counts[text] = counts.get(text, 0) + 1
        return counts

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
        level : {"bags", "instances"}
        averaging : {"default", "fold-mean", "pooled"}
            Mean over the folds of a repetition, or once over all its test predictions together.
            The default is "fold-mean", but "pooled" for the calibration error.
        """
        if averaging == "default":
            averaging = "pooled" if METRICS[metric].pooled else "fold-mean"
        chosen = [r for r in self.records if r["model"] == model and r["data"] == data]
        chosen = [r for r in chosen if r.get(level) is not None]
        values = []
        for seed in dict.fromkeys(r["seed"] for r in chosen):
            of_seed = [r for r in chosen if r["seed"] == seed]
            if averaging == "pooled":
                values.append(_pooled(of_seed, level, metric))
            else:
                folds = np.array([r[f"{level}_metrics"][metric] for r in of_seed])
                # A fold without both classes has no AUC and says nothing.
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
        for data in self.datasets:
            for model in self.models:
                for metric in metrics or self.metrics:
                    values = self.per_seed(model, data, metric, level=level, averaging=averaging)
                    if len(values) == 0:
                        continue
                    spread = values.std(ddof=1) if len(values) > 1 else np.nan
                    row = {"model": model, "data": data, "metric": metric, "mean": values.mean()}
                    rows.append({**row, "spread": spread, "n_seeds": len(values)})
        return pd.DataFrame(rows, columns=["model", "data", "metric", "mean", "spread", "n_seeds"])

    def table(
        self,
        metrics: Sequence[str] | None = None,
        *,
        level: Literal["bags", "instances"] = "bags",
        averaging: Averaging = "default",
    ) -> Any:
        """Models beside each other: "mean ± spread" of each metric, fit time and peak memory.

        By default the usual four metrics, as far as they were measured.
        """
        import pandas as pd

        usual = [name for name in USUAL_METRICS if name in self.metrics]
        metrics = metrics or usual or self.metrics
        summary = self.summary(metrics, level=level, averaging=averaging)
        rows = []
        for (data, model), part in summary.groupby(["data", "model"], sort=False):
            cells = {
                metric: format_mean(mean, spread)
                for metric, mean, spread in zip(
                    part["metric"], part["mean"], part["spread"], strict=True
                )
            }
            chosen = [r for r in self.records if r["model"] == model and r["data"] == data]
            seconds = np.mean([r["fit_seconds"] for r in chosen])
            peak = np.max([r["peak_mb"] for r in chosen])
            rows.append(
                {
                    "model": model,
                    "data": data,
                    **cells,
                    "fit s": f"{seconds:.2g}",
                    "peak MB": f"{peak:.0f}",
                    "seeds": int(part["n_seeds"].max()),
                }
            )
        return pd.DataFrame(rows)

    def paired(self, metric: str = "auc") -> pd.DataFrame:
        """Corrected resampled t-test of each pair of models on each data set, fold by fold."""
        import pandas as pd

        rows = []
        for data in self.datasets:
            for a, b in combinations(self.models, 2):
                difference, ratio = self._differences(a, b, data, metric)
                t, p = corrected_resampled_t(difference, ratio)
                better = _better(difference.mean(), metric, a, b)
                row = {"data": data, "a": a, "b": b, "difference": difference.mean()}
                rows.append({**row, "t": t, "p": p, "better": better})
        columns = ["data", "a", "b", "difference", "t", "p", "better"]
        return pd.DataFrame(rows, columns=columns)

    def over_datasets(self, metric: str = "auc") -> pd.DataFrame:
        """Wilcoxon signed-rank test of each pair of models over the data sets' means."""
        import pandas as pd

        rows = []
        for a, b in combinations(self.models, 2):
            means = np.array(
                [
                    self.per_seed(a, data, metric).mean() - self.per_seed(b, data, metric).mean()
                    for data in self.datasets
                ]
            )
            means = means[np.isfinite(means)]
            row = {"a": a, "b": b, "n_datasets": len(means)}
            row["difference"] = means.mean() if len(means) else np.nan
            rows.append({**row, "p": wilcoxon_p(means)})
        return pd.DataFrame(rows, columns=["a", "b", "n_datasets", "difference", "p"])

    def _differences(self, a: str, b: str, data: str, metric: str) -> tuple[Floats, float]:
        def by_fold(model: str) -> dict[tuple[int, int], dict[str, Any]]:
            return {
                (r["seed"], r["fold"]): r
                for r in self.records
                if r["model"] == model and r["data"] == data
            }

        first, second = by_fold(a), by_fold(b)
        shared = [key for key in first if key in second]
        values = np.array(
            [first[k]["bags_metrics"][metric] - second[k]["bags_metrics"][metric] for k in shared]
        )
        ratio = np.mean([first[k]["n_test"] / first[k]["n_train"] for k in shared])
        return values[np.isfinite(values)], float(ratio)


def corrected_resampled_t(difference: ArrayLike, test_to_train: float) -> tuple[float, float]:
    """T and two-sided p of the mean of paired fold differences (Nadeau and Bengio, 2003).

    Training sets of different folds overlap, so the plain t-test is far too sure of itself; the
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
    few = stats.PermutationMethod(n_resamples=np.inf) if len(difference) <= 13 else "asymptotic"
    method = "exact" if exact else few
    return float(stats.wilcoxon(difference, zero_method="pratt", method=method).pvalue)


def format_mean(mean: float, spread: float, digits: int = 3) -> str:
    """``0.853 ± 0.012``, or without the spread where there is none.

    Examples
    --------
    >>> from bagwise.evaluate.comparison import format_mean
    >>> format_mean(0.8531, 0.0119), format_mean(0.5, float("nan"))
    ('0.853 ± 0.012', '0.500')
    """
    if not np.isfinite(mean):
        return "-"
    text = f"{mean:.{digits}f}"
    return f"{text} ± {spread:.{digits}f}" if np.isfinite(spread) else text


def _pooled(records: list[dict[str, Any]], level: str, metric: str) -> float:
    """The metric over the test predictions of all folds together."""

    def join(what: str) -> Any:
        parts = [r[level][what] for r in records]
        return None if any(p is None for p in parts) else np.concatenate(parts)

    made = {what: join(what) for what in ("label", "score", "proba")}
    return score_predictions(join("y"), **made, metrics=[metric])[metric]


def _better(difference: float, metric: str, a: str, b: str) -> str:
    if difference == 0:
        return "-"
    return a if (difference > 0) != METRICS[metric].lower_is_better else b
