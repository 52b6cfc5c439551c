"""`compare`: every model on every data set under one protocol, resumable, with paired tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bagwise.bags import Bags, check_bags
from bagwise.evaluate.comparison import Comparison
from bagwise.evaluate.cross_validation import check_lengths, fit_fold
from bagwise.evaluate.metrics import METRIC_NAMES
from bagwise.evaluate.protocols import BagFolds, EvaluationProtocol, Split, check_model, check_split
from bagwise.evaluate.records import RecordFile, describe_model, fingerprint

if TYPE_CHECKING:
    from pathlib import Path

    from bagwise.core.arrays import Column
    from bagwise.models.base import Model


BUNDLED = ("musk1", "musk2", "elephant", "fox", "tiger")


class Dataset(NamedTuple):
    """What a protocol needs to know of a data set."""

    name: str
    bags: Bags
    y: Column
    groups: Column | None = None
    published_folds: Column | None = None


class _Job(NamedTuple):
    key: str
    name: str
    model: Model
    data: Dataset
    split: Split


def compare(
    models: Any,
    datasets: Any = BUNDLED,
    protocol: EvaluationProtocol | None = None,
    n_jobs: int = 1,
    *,
    results: str | Path | None = None,
    metrics: Sequence[str] = METRIC_NAMES,
    fit_params: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Comparison:
    """Fit every model on every training fold and score it on the test fold.

    Parameters
    ----------
    models : str, sequence of str, or mapping of str to estimator
        Names of the registry ("vgpmil", "misvm", ...), "all" of them, or unfitted estimators.
        Preprocessing belongs inside them, as a pipeline; anything fitted already is refused.
    datasets : str, sequence of str, or mapping of str to (bags, y) or Bunch
        Names as for `load_dataset`, "bundled" for the five bundled sets, or data. A Bunch may
        hold ``groups`` and ``published_folds``.
    protocol : protocol, default=BagFolds()
        How bags are split: `BagFolds`, `GroupFolds`, `PublishedFolds`, `Nested`.
    n_jobs, progress : int, bool
        Processes, each fit runs in one of them; whether to show a progress bar.
    results : path, optional
        File of finished fits. A run that was killed goes on where it stopped; fits of changed
        models, data or folds are done anew.
    metrics : sequence of str
        Bag metrics; they are also taken for instances where the bags carry instance labels.
    fit_params : mapping, optional
        Further arguments of every ``fit``, such as ``background``.

    Returns
    -------
    Comparison
        ``rows`` (one per model, data, seed, fold and metric, with fit seconds and peak memory),
        ``summary()``, ``table()``, ``paired()``, ``over_datasets()``.

    Notes
    -----
    Where a model's ``random_state`` is None it becomes the seed of the repetition, so that the
    spread over seeds covers both the folds and the model's own draws. Peak memory is the rise of
    the resident set during the fit, see `bagwise.evaluate.measure.Measure`.

    Examples
    --------
    >>> from bagwise.evaluate import BagFolds, compare
    >>> from bagwise.datasets import make_gaussian_bags
    >>> data = {"toy": make_gaussian_bags(n_bags=30, random_state=0)}
    >>> protocol = BagFolds(n_splits=3, seeds=(0,))
    >>> made = compare(["statistics"], data, protocol, progress=False)
    >>> bool(made.summary(["auc"])["mean"].iloc[0] > 0.8)
    True
    """
    protocol = BagFolds() if protocol is None else protocol
    given = dict(fit_params or {})
    jobs = list(_jobs(_as_models(models), _as_datasets(datasets), protocol, metrics, given))
    file = RecordFile(results)
    waiting = [job for job in jobs if job.key not in file]
    for record in _run(waiting, protocol, tuple(metrics), given, n_jobs, len(jobs), progress):
        file.add(record)
    return Comparison([file.get(job.key) for job in jobs], tuple(metrics))


def _jobs(
    models: Mapping[str, Model],
    datasets: list[Dataset],
    protocol: EvaluationProtocol,
    metrics: Sequence[str],
    fit_params: dict[str, Any],
) -> Iterator[_Job]:
    clean = {name: check_model(model) for name, model in models.items()}
    for data in datasets:
        splits = list(protocol.splits(data.bags, data.y, data.groups, data.published_folds))
        about = fingerprint([data.bags.instances, data.bags.offsets, np.asarray(data.y)])
        for split in splits:
            check_split(split, len(data.bags), data.y, data.groups)
        for name, model in clean.items():
            for split in splits:
                settings = describe_model(model) + repr(protocol) + repr(tuple(metrics))
                settings += repr(fit_params) if fit_params else ""
                content = [settings, about, np.asarray(split.train), np.asarray(split.test)]
                key = f"{name}/{data.name}/{split.seed}/{split.fold}/{fingerprint(content)}"
                yield _Job(key, name, model, data, split)


def _run(
    jobs: list[_Job],
    protocol: EvaluationProtocol,
    metrics: tuple[str, ...],
    fit_params: dict[str, Any],
    n_jobs: int,
    n_all: int,
    progress: bool,
) -> Iterator[dict[str, Any]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from sklearn.utils.parallel import Parallel, delayed

    parallel = Parallel(n_jobs=n_jobs, return_as="generator_unordered")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(
        *columns, TimeElapsedColumn(), console=Console(stderr=True), disable=not progress
    )
    with bar:
        task = bar.add_task("comparing", total=n_all, completed=n_all - len(jobs))
        work = (delayed(_fit_and_score)(job, protocol, metrics, fit_params) for job in jobs)
        for record in parallel(work):
            bar.update(task, advance=1, description=f"{record['model']} on {record['data']}")
            yield record


def _fit_and_score(
    job: _Job, protocol: EvaluationProtocol, metrics: tuple[str, ...], fit_params: dict[str, Any]
) -> dict[str, Any]:
    """One fit as a record of the results file."""
    data = job.data
    y = np.asarray(data.y)
    fold = fit_fold(
        job.model,
        data.bags,
        y,
        job.split,
        protocol,
        data.groups,
        name=job.name,
        data=data.name,
        fit_params=fit_params,
    )
    record = {
        "key": job.key,
        "model": job.name,
        "data": data.name,
        "seed": job.split.seed,
        "fold": job.split.fold,
        "n_train": len(job.split.train),
        "n_test": len(job.split.test),
        "fit_seconds": fold.fit_seconds,
        "predict_seconds": fold.predict_seconds,
        "peak_mb": fold.peak_mb,
        "warnings": fold.warnings,
        "test": np.asarray(job.split.test),
    }
    for level, made in (("bags", fold.bags), ("instances", fold.instances)):
        record[level] = None if made is None else made._asdict()
        if made is not None:
            record[f"{level}_metrics"] = made.metrics(metrics)
    return record


def _as_models(models: Any) -> dict[str, Model]:
    if isinstance(models, Mapping):
        named = dict(models)
    else:
        from bagwise.models.registry import MODELS, make_model

        names = [models] if isinstance(models, str) else list(models)
        names = list(MODELS) if names == ["all"] else names
        # No seed yet: the repetition's seed is filled in.
        named = {name: make_model(name) for name in names}
    if not named:
        raise ValueError("at least one model is needed; got none.")
    return named


def _as_datasets(datasets: Any) -> list[Dataset]:
    if isinstance(datasets, str):
        datasets = [datasets]
    if not isinstance(datasets, Mapping) and list(datasets) == ["bundled"]:
        datasets = BUNDLED
    pairs: Iterable[tuple[str, Any]] = (
        datasets.items()
        if isinstance(datasets, Mapping)
        else [(name, load_dataset(name)) for name in datasets]
    )
    made = [_as_dataset(name, data) for name, data in pairs]
    if not made:
        raise ValueError("at least one data set is needed; got none.")
    return made


def _as_dataset(name: str, data: Any) -> Dataset:
    if isinstance(data, Dataset):
        return data
    if isinstance(data, tuple):
        bags, y, groups, folds = data[0], data[1], (data[2] if len(data) > 2 else None), None
    else:
        bags, y = data.bags, data.y
        groups, folds = getattr(data, "groups", None), getattr(data, "published_folds", None)
    y = np.asarray(y)
    bags = check_bags(bags, accept_sparse=True, allow_nd=True, estimator="compare")
    check_lengths(f"data {name!r}", len(bags), y, groups)
    return Dataset(name, bags, y, groups, folds)


def load_dataset(name: str) -> Any:
    """A data set by name: a bundled one, "digits", or "newsgroups/NAME" from the data home.

    Examples
    --------
    >>> from bagwise.evaluate.run import load_dataset
    >>> load_dataset("musk1").bags
    Bags(92 bags, 476 instances, 166 features)
    """
    from bagwise import datasets

    if name.startswith("newsgroups/"):
        return datasets.fetch_newsgroups(name.partition("/")[2])
    if name == "digits":
        return datasets.load_digit_bags()
    if name not in BUNDLED:
        raise ValueError(
            f"there is no data set {name!r}; choose among {[*BUNDLED, 'digits']} or "
            "newsgroups/NAME, or pass a mapping of name to (bags, y)."
        )
    return getattr(datasets, f"load_{name}")()
