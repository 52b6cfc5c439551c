"""Every registered model on every set, on frozen folds: ``python -m experiments.leaderboard``.

Five repetitions of ten folds by bag, the ones that ship with a set (``cv5x10_test_fold`` of
MIDatasets.jl) or, where none do, those frozen in ``leaderboard_folds.csv``. Models are built by the
registry with its defaults and fitted on the training bags of each fold alone. Each fit is a row of
``fits.csv``, which ``--summary`` moves into ``fits.parquet``; a stopped run continues where it
stopped, and a model whose settings change, or that is new, is the only one fitted again. Fits are
ordered repetition by repetition and fold by fold, so that a run stopped early still compares all
models on the same folds; models are ranked on the folds that all of them have. A fit that fails, or
takes longer than the limit, counts as the constant predictor (the share of positive training bags),
as automated benchmarks do (Gijsbers et al., 2024), and is counted in the notes. Bag probabilities
of a repetition are pooled for the calibration error.

Frozen before the run: the registry's defaults. Those of this library's own models were chosen on
the bundled sets and on newsgroups, with other (five-fold) splits of the same bags: their figures
here are not free of that choice. Twenty newsgroups are one kind of problem, and the ranks over all
sets give it that weight.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from bagwise import datasets
from bagwise.evaluate import (
    PublishedFolds,
    Split,
    corrected_resampled_t,
    expected_calibration_error,
    rank_models,
    score_predictions,
)
from bagwise.evaluate.cross_validation import fit_fold
from bagwise.evaluate.ranking import holm
from bagwise.evaluate.run import describe_model, fingerprint
from bagwise.files.writing import new_file
from bagwise.models.registry import MODELS, make_model

TITLE = "Leaderboard: every model on every set, frozen 5 x 10 folds"
PAPER = "none: all models under one protocol"
NEEDS = ("bundled", "newsgroups", "mnist")

FOLDS = Path(__file__).with_name("leaderboard_folds.csv")
CLASSICAL = ("musk1", "musk2", "elephant", "fox", "tiger")
SETS = (*CLASSICAL, "digits", "mnist", *(f"newsgroups/{name}" for name in datasets.NEWSGROUPS))
REPETITIONS, N_FOLDS = 5, 10
QUICK_MODELS = ("single-instance", "statistics")
QUICK_SETS = ("musk1", "tiger")
QUICK_FOLDS = 2

METRICS = ("auc", "accuracy", "log_loss", "brier")
LOWER = ("log_loss", "brier", "ece", "fit_seconds")
SPREAD = (*METRICS, "instance_auc")
COLUMNS = (
    *("model", "data", "repetition", "fold", "settings", *METRICS),
    *("instance_auc", "instance_auc_pr", "fit_seconds", "predict_seconds", "probabilities"),
    "error",
)
# Columns of text, also where all rows of a journal have none.
TEXT = {"settings": str, "error": str, "probabilities": str}
KEY = ["model", "data", "repetition", "fold", "settings"]

# Accuracy in % on MUSK1, MUSK2, Elephant, Fox, Tiger, and what is known of how it was had.
QUOTED = "ten-fold, quoted by the MI-CRF paper's Table 2; folds and choice of settings unknown"
OWN = "ten-fold, MI-CRF paper's Table 2, one draw of folds"
MIO_QUOTED = "quoted by the MIO paper's Table 1; folds and choice of settings unknown"
TRAINING = "five folds; possible for training folds only, see published_arithmetic"
PUBLISHED: dict[str, tuple[tuple[float | None, ...], str]] = {
    "em-dd": ((84.8, 84.9, 78.3, 56.1, 72.1), QUOTED),
    "misvm": ((77.9, 84.3, 73.1, 58.8, 66.6), QUOTED),
    "mica": ((84.4, 90.5, 82.5, 62.0, 82.0), QUOTED),
    "ppmm": ((95.6, 81.2, 82.4, 60.3, 80.2), QUOTED),
    "mi-graph": ((88.9, 90.3, 86.6, 61.6, 86.0), QUOTED),
    "mi-graph-edges": ((90.0, 90.0, 85.1, 61.2, 81.9), QUOTED),
    "apr": ((92.4, 89.2, None, None, None), MIO_QUOTED),
    "diverse-density": ((88.9, 82.5, None, None, None), MIO_QUOTED),
    "dd-svm": ((85.8, 91.3, None, None, None), MIO_QUOTED),
    "single-instance": ((78.3, 71.6, 73.0, 58.0, 75.5), OWN + "; an SVM there"),
    "micrf": ((88.0, 84.3, 85.0, 63.5, 82.5), OWN + "; C by cross-validation"),
    "mio": ((88.3, 87.7, None, None, None), "ten-fold, MIO paper's Table 1, settings unknown"),
    "miles": ((85.5, 87.1, None, None, None), "ten-fold, MIO paper's Table 1, settings unknown"),
    "vgpmil": ((88.9, 88.0, None, None, None), TRAINING),
    "g-vgpmil": ((90.5, 89.7, None, None, None), TRAINING),
}


class Fit(NamedTuple):
    """One cell of the leaderboard."""

    model: str
    data: str
    repetition: int
    fold: int
    settings: str  # of model, data and folds: a change asks for a new fit


@functools.cache
def load(name: str) -> Any:
    """Bags, labels and frozen folds of a set."""
    if name == "mnist":
        data = datasets.fetch_mnist_bags(n_bags=200, random_state=0)
    elif name == "digits":
        data = datasets.load_digit_bags()
    elif name.startswith("newsgroups/"):
        data = datasets.fetch_newsgroups(name.partition("/")[2])
    else:
        data = getattr(datasets, f"load_{name}")()
    if getattr(data, "published_folds", None) is None:
        data.published_folds = frozen_folds()[name]
    return data


@functools.cache
def frozen_folds() -> dict[str, np.ndarray]:
    """Test fold of every bag, shape (repetitions, bags), of the sets that ship none."""
    table = pd.read_csv(FOLDS, dtype={"folds": str})
    return {
        str(name): np.array([[int(digit) for digit in line] for line in part["folds"]])
        for name, part in table.groupby("data", sort=False)
    }


def make_folds(y: Any) -> np.ndarray:
    """Stratified folds, one repetition per seed: how the frozen ones were drawn."""
    from sklearn.model_selection import StratifiedKFold

    folds = np.zeros((REPETITIONS, len(y)), dtype=int)
    for repetition in range(REPETITIONS):
        splitter = StratifiedKFold(N_FOLDS, shuffle=True, random_state=repetition)
        for fold, (_, test) in enumerate(splitter.split(np.zeros(len(y)), y)):
            folds[repetition, test] = fold
    return folds


def splits(name: str) -> dict[tuple[int, int], Split]:
    """Every split of a set by repetition and fold."""
    data = load(name)
    return {
        (split.seed, split.fold): split
        for split in PublishedFolds().splits(data.bags, data.y, None, data.published_folds)
    }


def plan(models: Sequence[str], sets: Sequence[str], n_folds: int | None = None) -> list[Fit]:
    """Every fit, repetition by repetition and fold by fold; ``n_folds`` keeps the first so many."""
    content = {}
    for name in sets:
        data = load(name)
        parts = [data.bags.instances, data.bags.offsets, data.y, np.asarray(data.published_folds)]
        content[name] = fingerprint(parts)
    settings = {name: describe_model(make_model(name, random_state=None)) for name in models}
    cells = [(r, f) for r in range(REPETITIONS) for f in range(N_FOLDS)][:n_folds]
    return [
        Fit(model, name, r, f, fingerprint([settings[model], content[name]]))
        for r, f in cells
        for name in sets
        for model in models
    ]


def measure(fit: Fit, limit: float | None = None) -> dict[str, Any]:
    """Fit one model on one training fold and score its test fold; a failure becomes its row."""
    data = load(fit.data)
    split = splits(fit.data)[fit.repetition, fit.fold]
    model = make_model(fit.model, random_state=None)
    row: dict[str, Any] = fit._asdict()
    try:
        with _time_limit(limit):
            made = fit_fold(model, data.bags, np.asarray(data.y), split, PublishedFolds())
    except (ValueError, ArithmeticError, RuntimeError, MemoryError, TimeoutError) as error:
        return {**row, "error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    row |= made.bags.metrics(METRICS)
    if made.instances is not None:
        of_instances = made.instances.metrics(("auc", "auc_pr"))
        row |= {f"instance_{name}": value for name, value in of_instances.items()}
    if made.bags.proba is not None:
        row["probabilities"] = " ".join(f"{p:.5f}" for p in made.bags.proba)
    seconds = {"fit_seconds": made.fit_seconds, "predict_seconds": made.predict_seconds}
    return {**row, **{name: round(value, 4) for name, value in seconds.items()}}


@contextmanager
def _time_limit(seconds: float | None) -> Iterator[None]:
    """Raise TimeoutError after so many seconds, on systems with alarms."""
    if seconds is None or not hasattr(signal, "SIGALRM"):
        yield
        return

    def stop(*_: Any) -> None:
        raise TimeoutError(f"longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except SystemError as error:
        # Compiled code that the alarm interrupts wraps what it raises.
        if not isinstance(error.__cause__, TimeoutError):
            raise
        raise error.__cause__ from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Fits:
    """Finished fits in a folder: ``fits.parquet``, and a journal of those since it was written.

    Fits are appended to the journal, ``fits.csv``, as they come, which needs no pyarrow; `fold`
    moves them into the Parquet file. A process killed while writing leaves half a row at the end
    of the journal; it is dropped when read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.table, self.journal = folder, folder / "fits.parquet", folder / "fits.csv"
        self.rows = pd.DataFrame(columns=list(COLUMNS))
        if self.journal.exists():
            text = self.journal.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]
            if whole != text:
                self.journal.write_text(whole, encoding="utf-8")
            self.rows = pd.read_csv(io.StringIO(whole), dtype=TEXT)
            if list(self.rows.columns) != list(COLUMNS):
                raise ValueError(f"{self.journal} is not a table of fits; give another --out.")
        if self.table.exists():
            stored = pd.read_parquet(self.table)
            self.rows = pd.concat([stored, self.rows]) if len(self.rows) else stored

    def done(self) -> set[Fit]:
        """The fits that need not be done again."""
        return {Fit(*key) for key in self.rows[KEY].itertuples(index=False, name=None)}

    def add(self, row: dict[str, Any]) -> None:
        """Append one row to the journal."""
        self.folder.mkdir(parents=True, exist_ok=True)
        is_new = not self.journal.exists()
        line = pd.DataFrame([row], columns=list(COLUMNS))
        with self.journal.open("a", encoding="utf-8") as stream:
            line.to_csv(stream, header=is_new, index=False, float_format="%.6g")

    def read(self, fits: Iterable[Fit]) -> pd.DataFrame:
        """The rows of the given fits, in their order."""
        rows = Fits(self.folder).rows.drop_duplicates(KEY, keep="last")
        wanted = pd.DataFrame(fits, columns=KEY)
        return wanted.merge(rows, on=KEY, how="inner")

    def fold(self) -> None:
        """Move the rows of the journal into the Parquet file."""
        if self.journal.exists():
            rows = Fits(self.folder).rows.drop_duplicates(KEY, keep="last")
            with new_file(self.table) as draft:
                rows.to_parquet(draft, index=False, compression="zstd", compression_level=19)
            self.journal.unlink()


def run_fits(
    fits: list[Fit],
    file: Fits,
    n_jobs: int = 1,
    deadline: float | None = None,
    limit: float | None = None,
    say: Callable[[str], None] | None = None,
) -> bool:
    """Do the fits that are not done; False where the deadline came first.

    Parameters
    ----------
    fits : list of Fit
    file : Fits
    n_jobs : int
        Processes, one fit and one thread in each.
    deadline : float, optional
        Seconds from now after which no fit starts and running ones are given up.
    limit : float, optional
        Seconds after which a single fit is given up; its model is not tried again on that set.
    say : callable, optional
        Gets a line of progress now and then.
    """
    start = time.monotonic()
    done = file.done()
    late = file.rows["error"].fillna("").str.startswith("TimeoutError")
    given_up = {(row.model, row.data) for row in file.rows[late].itertuples()}
    waiting = iter([fit for fit in fits if fit not in done])
    finished, said = sum(fit in done for fit in fits), start

    def left() -> float:
        return np.inf if deadline is None else start + deadline - time.monotonic()

    def next_fits() -> Iterator[Fit]:
        for fit in waiting:
            if left() <= 0:
                return
            if (fit.model, fit.data) not in given_up:
                yield fit

    for row in _rows(next_fits(), n_jobs, limit, left):
        file.add(row)
        finished += 1
        if str(row.get("error", "")).startswith("TimeoutError"):
            given_up.add((row["model"], row["data"]))
        if say is not None and time.monotonic() - said > 15:
            said = time.monotonic()
            where = f"repetition {row['repetition']}, fold {row['fold']}"
            say(f"{finished} of {len(fits)} fits, {where}, {said - start:.0f} s")
    done = Fits(file.folder).done()
    return all(fit in done or (fit.model, fit.data) in given_up for fit in fits)


def _rows(
    fits: Iterator[Fit], n_jobs: int, limit: float | None, left: Callable[[], float]
) -> Iterator[dict[str, Any]]:
    """Results as they come; workers still busy at the deadline are ended."""
    if n_jobs == 1:
        for fit in fits:
            # A fit that would outlast the deadline is given up there, without a row.
            row = measure(fit, _shorter(limit, left()))
            if left() <= 0 and str(row.get("error", "")).startswith("TimeoutError"):
                return
            yield row
        return
    # One thread per worker: set before they import numpy, which spawned processes do anew.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(n_jobs, mp_context=context)
    running = set()
    try:
        while left() > 0:
            while len(running) < 2 * n_jobs and (fit := next(fits, None)) is not None:
                running.add(pool.submit(measure, fit, limit))
            if not running:
                return
            timeout = None if np.isinf(left()) else max(left(), 0.0)
            ended, running = wait(running, timeout, FIRST_COMPLETED)
            for future in ended:
                yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        if left() <= 0:
            for worker in multiprocessing.active_children():
                worker.terminate()


def _shorter(limit: float | None, left: float) -> float | None:
    shortest = min(np.inf if limit is None else limit, left)
    return None if np.isinf(shortest) else max(shortest, 1e-3)


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per model and set: means over folds, spread over repetitions, pooled ECE."""
    table = []
    for (model, data), part in rows.groupby(["model", "data"], sort=False):
        values: dict[str, Any] = {"model": model, "data": data, "fits": len(part)}
        for metric in (*METRICS, "instance_auc", "instance_auc_pr"):
            per_repetition = part.groupby("repetition")[metric].mean()
            values[metric] = per_repetition.mean()
            values[f"{metric}_spread"] = per_repetition.std(ddof=1)
        if part["probabilities"].notna().all():
            pooled = [pool(data, p) for _, p in part.groupby("repetition")]
            values["ece"] = np.mean([expected_calibration_error(y, p) for y, p in pooled])
            values["ece_if_right"] = np.mean([ece_if_right(p) for _, p in pooled])
        values["fit_seconds"] = part["fit_seconds"].median()  # the first fit of a worker compiles
        table.append(values)
    return pd.DataFrame(table)


def pool(data: str, part: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Labels and probabilities of the test bags of all folds of a repetition."""
    y, p, where = np.asarray(load(data).y), [], []
    for row in part.itertuples():
        p += [float(word) for word in str(row.probabilities).split()]
        where += [*splits(data)[row.repetition, row.fold].test]
    return (y[where] == np.unique(y)[1]).astype(int), np.array(p)


def ece_if_right(p: np.ndarray, n_draws: int = 5) -> float:
    """Calibration error that these probabilities have when they are right, by drawing labels.

    A hundred bags do not bring it near 0, and the nearer all probabilities are to each other, the
    lower it is: a model that says the base rate to everything has the least.
    """
    drawn = np.random.default_rng(0).random((n_draws, len(p))) < p
    return float(np.mean([expected_calibration_error(y.astype(int), p) for y in drawn]))


def constant_row(model: str, data: str, repetition: int, fold: int) -> dict[str, Any]:
    """What predicting the share of positive training bags for everything scores."""
    split = splits(data)[repetition, fold]
    y = np.unique(load(data).y, return_inverse=True)[1]
    share = np.mean(y[split.train])
    n = len(split.test)
    constant = {
        "label": np.full(n, int(share > 0.5)),
        "score": np.zeros(n),
        "proba": np.full(n, share),
    }
    made = score_predictions(y[split.test], **constant, metrics=METRICS)
    cell = {"model": model, "data": data, "repetition": repetition, "fold": fold}
    return {**cell, **made, "probabilities": " ".join([f"{share:.5f}"] * n)}


def fill_failures(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with every failed fit, and every fold of a set given up, as the constant one."""
    failed = rows[rows["error"].notna()]
    late = failed[failed["error"].str.startswith("TimeoutError")]
    cells = rows[["data", "repetition", "fold"]].drop_duplicates()
    wanted = failed[["model", "data", "repetition", "fold"]]
    given_up = late[["model", "data"]].drop_duplicates().merge(cells, on="data")
    wanted = pd.concat([wanted, given_up], ignore_index=True).drop_duplicates()
    good = rows[rows["error"].isna()]
    measured = set(good[["model", "data", "repetition", "fold"]].itertuples(index=False, name=None))
    filled = [
        constant_row(*cell)
        for cell in wanted.itertuples(index=False, name=None)
        if cell not in measured
    ]
    return pd.concat([good, pd.DataFrame(filled, columns=rows.columns)]) if filled else good


def shared_folds(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of folds that every model has, so that all are compared on the same bags."""
    good = fill_failures(rows)
    counts = good.groupby(["data", "repetition", "fold"])["model"].nunique()
    everywhere = counts[counts == rows["model"].nunique()].index
    keys = pd.MultiIndex.from_frame(good[["data", "repetition", "fold"]])
    return good[keys.isin(everywhere)]


def worse_than_best(rows: pd.DataFrame, metric: str = "auc") -> dict[str, int]:
    """On how many sets a model is below the set's best (corrected resampled t, Holm, 0.05)."""
    counts = dict.fromkeys(rows["model"].unique(), 0)
    for _, part in rows.groupby("data", sort=False):
        wide = part.pivot_table(index=["repetition", "fold"], columns="model", values=metric)
        best = wide.mean().idxmax()
        others = [name for name in wide.columns if name != best]
        ratio = 1 / (N_FOLDS - 1)  # test bags for each training bag
        p = [corrected_resampled_t(wide[best] - wide[name], ratio)[1] for name in others]
        for name, value in zip(others, holm(np.nan_to_num(p, nan=1.0)), strict=True):
            counts[name] += int(value < 0.05)
    return counts


def result_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The table of the page of results: each model over all sets, and what was published."""
    shared = shared_folds(rows)
    per_set = summarise(shared)
    table: list[dict[str, Any]] = []
    n_folds = shared.drop_duplicates(["data", "repetition", "fold"]).groupby("data").size()
    few, most = int(n_folds.min()), int(n_folds.max())
    failed = shared[shared["settings"].isna()].groupby("model").size()
    n = whole_repetitions(shared)["repetition"].nunique()
    over = f"{most if few == most else f'{few} to {most}'} folds of each set"
    for metric in (*METRICS, "ece", "instance_auc", "fit_seconds"):
        wide = per_set.pivot_table(index="data", columns="model", values=metric).dropna(axis=1)
        if not len(wide.columns):
            continue
        ranks = wide.rank(axis=1, ascending=metric in LOWER).mean()
        where = f"{len(wide)} sets"  # instances are labelled in some of them
        # Of fit times the median counts, and the calibration error is pooled: neither has a spread.
        spread = spread_over_sets(shared, metric) if metric in SPREAD else {}
        worse = worse_than_best(shared) if metric == "auc" else {}
        for model in ranks.sort_values().index:
            note = f"mean rank {ranks[model]:.2f} of {len(ranks)}; {over}"
            if metric == "auc":
                note += f"; below the best on {worse[model]} set{'s' * (worse[model] != 1)}"
                n_failed = failed.get(model, 0)
                note += f"; {n_failed} fits failed and count as constant" if n_failed else ""
            if metric == "ece":
                right = per_set.loc[per_set["model"] == model, "ece_if_right"].mean()
                note += f"; {right:.3f} if its probabilities were right"
            ours = wide[model].mean(), spread.get(model, np.nan)
            table.append(_row(model, where, metric, np.nan, ours, n, note))
    for model, (figures, protocol) in PUBLISHED.items():
        for name, figure in zip(CLASSICAL, figures, strict=True):
            cell = per_set[(per_set["model"] == model) & (per_set["data"] == name)]
            if len(cell) and figure is not None:
                ours = 100 * cell["accuracy"].item(), 100 * cell["accuracy_spread"].item()
                table.append(_row(model, name, "accuracy, %", figure, ours, n, protocol))
    return pd.DataFrame(table)


def whole_repetitions(shared: pd.DataFrame) -> pd.DataFrame:
    """The rows of repetitions that have all their folds: one of fewer folds spreads more."""
    cells = shared.drop_duplicates(["data", "repetition", "fold"]).groupby("repetition").size()
    return shared[shared["repetition"].isin(cells.index[cells == cells.max()])]


def spread_over_sets(shared: pd.DataFrame, metric: str) -> dict[str, float]:
    """Standard deviation of each model's mean over the sets, from one repetition to another."""
    per_set = whole_repetitions(shared).groupby(["model", "repetition", "data"])[metric].mean()
    means = per_set.groupby(["model", "repetition"]).mean()
    return means.groupby("model").std(ddof=1).to_dict()


def _row(
    model: str,
    data: str,
    metric: str,
    published: float,
    ours: tuple[float, float],
    n_repetitions: int,
    note: str,
) -> dict[str, Any]:
    row = {"model": model, "data": data, "metric": metric, "published": published}
    mean, spread = ours
    return {**row, "mean": mean, "spread": spread, "n_seeds": n_repetitions, "note": note}


def write_results(rows: pd.DataFrame, out: Path) -> pd.DataFrame:
    """Write the table per set, the ranks with their tests and the diagrams; return the table."""
    from experiments._tables import to_markdown

    per_set = summarise(shared_folds(rows))
    if per_set.empty:
        raise ValueError("no fold has been fitted by every model yet; run longer.")
    per_set.to_csv(out / "per_set.csv", index=False, float_format="%.5g")
    shown = []
    for metric in ("auc", "log_loss"):
        wide = per_set.pivot_table(index="data", columns="model", values=metric).dropna(axis=1)
        if wide.shape[0] < 2 or wide.shape[1] < 2:
            continue
        ranking = rank_models(
            list(wide.columns), wide.to_numpy(), greater_is_better=metric not in LOWER
        )
        p = pd.DataFrame(ranking.p, index=ranking.models, columns=ranking.models)
        p.to_csv(out / f"pairs_{metric}.csv", float_format="%.4g")
        _draw(ranking, metric, out)
        shown.append(f"## {metric}\n\nFriedman p = {ranking.friedman_p:.2g}.\n")
        best = wide[ranking.models].sort_index(key=lambda names: names.map(SETS.index))
        shown.append(to_markdown(best.round(3).reset_index()) + "\n")
    (out / "per_set.md").write_text("\n".join(shown), encoding="utf-8")
    return result_rows(rows)


def _draw(ranking: Any, metric: str, out: Path) -> None:
    from bagwise.report import plot_ranks

    name = {"auc": "AUC", "log_loss": "log-loss"}[metric]
    words = f"mean rank by {name} over {ranking.n_datasets} sets (1 is best)"
    figure = plot_ranks(ranking, f"{words}; bars: Wilcoxon, Holm, p ≥ 0.05")
    figure.savefig(out / f"ranks_{metric}.png", dpi=150)


def chosen_fits(quick: bool, models: Sequence[str] = (), sets: Sequence[str] = ()) -> list[Fit]:
    """All fits, or a few of two quick models."""
    from experiments._held_out import present

    names = list(models) or list(QUICK_MODELS if quick else MODELS)
    unknown = [n for n in names if n not in MODELS] + [s for s in sets if s not in SETS]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is neither a model of the registry nor one of {SETS}.")
    usable, absent = present(list(sets) or (QUICK_SETS if quick else SETS), load)
    for row in absent:
        print(f"{row['data']}: {row['note']}", file=sys.stderr)
    return plan(names, usable, QUICK_FOLDS if quick else None)


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """All models on all sets; quick: two models, two sets, two folds."""
    fits, file = chosen_fits(quick), Fits(out)
    run_fits(fits, file, n_jobs, say=lambda line: print(line, file=sys.stderr, flush=True))
    file.fold()
    return write_results(file.read(fits), out)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.leaderboard",
        description="Fits need numpy, scipy, scikit-learn, numba, pandas and array-api-compat; "
        "tables and diagrams also rich, matplotlib and pyarrow (--summary).",
    )
    parser.add_argument("--quick", action="store_true", help="two models, two sets, two folds")
    parser.add_argument("--out", type=Path, default=Path("reproduction/leaderboard"))
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--deadline", type=float, metavar="SECONDS", help="stop cleanly then")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="give up a longer fit")
    parser.add_argument("--models", nargs="*", default=(), help="only these (default: all)")
    parser.add_argument("--sets", nargs="*", default=(), help="only these (default: all)")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="only the first ones")
    parser.add_argument("--summary", action="store_true", help="no fit: tables of what there is")
    arguments = parser.parse_args(argv)
    fits = chosen_fits(arguments.quick, arguments.models, arguments.sets)
    fits = [fit for fit in fits if fit.repetition < arguments.repetitions]
    file = Fits(arguments.out)
    if arguments.summary:
        _summarise(fits, file, arguments)
        return 0
    options = {"deadline": arguments.deadline, "limit": arguments.limit}
    say = functools.partial(print, flush=True)
    complete = run_fits(fits, file, arguments.jobs, **options, say=say)
    n_done = len(file.read(fits))
    print(
        f"{n_done} of {len(fits)} fits are in {arguments.out}" + ("" if complete else "; run again")
    )
    return 0 if complete else 3


def _summarise(fits: list[Fit], file: Fits, arguments: argparse.Namespace) -> None:
    """Tables, diagrams and ``run.json`` from the fits that are there."""
    from experiments._runner import describe_run
    from experiments._tables import write_table

    file.fold()
    rows = file.read(fits)
    table = write_results(rows, arguments.out)
    write_table(table, arguments.out, "table")
    about = describe_run("leaderboard", arguments.quick, float(rows["fit_seconds"].sum()))
    about["assembled"] = (
        f"Assembled from {len(rows)} of {len(fits)} fits (seconds: their sum), several runs."
    )
    (arguments.out / "run.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    print(table.drop(columns=["published", "spread", "n_seeds"]).to_string(index=False))


if __name__ == "__main__":
    sys.exit(main())
