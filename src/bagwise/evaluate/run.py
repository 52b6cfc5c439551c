"""`compare`: every model on every data set under one scheme, resumable, with paired tests."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bagwise.bags import Bags, check_bags
from bagwise.core.arrays import Column, is_sparse
from bagwise.core.progress import tracked
from bagwise.evaluate.comparison import Comparison
from bagwise.evaluate.cross_validation import check_lengths, fit_fold
from bagwise.evaluate.metrics import METRIC_NAMES
from bagwise.evaluate.protocols import BagFolds, Scheme, Split, check_model, checked_splits
from bagwise.files.writing import plain_json, write_text
from bagwise.models.base import Model

BUNDLED = ("musk1", "musk2", "elephant", "fox", "tiger")


class Dataset(NamedTuple):
    """What a cross-validation scheme needs to know of a data set."""

    name: str
    bags: Bags
    y: Column
    groups: Column | None = None
    published_folds: Column | None = None


def compare(
    models: Any,
    datasets: Any = BUNDLED,
    scheme: Scheme | None = None,
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
        Names of the registry ("vgpmil", "misvm", ...), or unfitted estimators.
        Preprocessing belongs inside them, as a pipeline; anything fitted already is refused.
    datasets : sequence of str, or mapping, default=("musk1", "musk2", "elephant", "fox", "tiger")
        Names as for ``load_dataset``, or data by name, as (bags, y) or a Bunch, which may hold
        ``groups`` and ``published_folds``.
    scheme : cross-validation scheme or None, default=None
        How bags are split: `BagFolds`, `GroupFolds`, `PublishedFolds` or `Nested`. None is
        ``BagFolds()``.
    n_jobs, progress : int, bool, default=1, True
        Processes, each fit runs in one of them; whether to show a progress bar.
    results : path or None, default=None
        File of finished fits. A run that was killed goes on where it stopped; fits of changed
        models, data or folds are done anew.
    metrics : sequence of str, default=METRIC_NAMES
        Bag metrics; they are also taken for instances where the bags carry instance labels.
    fit_params : mapping or None, default=None
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
    the resident set during the fit, see ``bagwise.evaluate.measure.Measure``.

    Examples
    --------
    >>> from bagwise.evaluate import BagFolds, compare
    >>> from bagwise.datasets import make_gaussian_bags
    >>> data = {"toy": make_gaussian_bags(n_bags=30, random_state=0)}
    >>> folds = BagFolds(n_splits=3, seeds=(0,))
    >>> made = compare(["statistics"], data, folds, progress=False)
    >>> bool(made.summary(["auc"])["mean"].iloc[0] > 0.8)
    True
    """
    from rich.console import Console
    from sklearn.utils.parallel import Parallel, delayed

    from bagwise.models.registry import make_model

    scheme = BagFolds() if scheme is None else scheme
    if not isinstance(models, Mapping):
        chosen = [models] if isinstance(models, str) else list(models)
        # No seed yet: that of the repetition is filled in.
        models = {name: make_model(name) for name in chosen}
    if not models:
        raise ValueError("at least one model is needed; got none.")
    named = {name: check_model(model) for name, model in models.items()}
    settings = repr(scheme) + repr(tuple(metrics)) + (repr(dict(fit_params)) if fit_params else "")
    jobs: dict[str, Any] = {}  # in the order of the result; a key changes with what changes a fit
    for data in _as_datasets(datasets):
        splits = checked_splits(scheme, *data[1:])
        # Of the data once, not once per fit.
        content = fingerprint([data.bags.instances, data.bags.offsets, np.asarray(data.y)])
        for (name, model), split in product(named.items(), splits):
            parts = [describe_model(model) + settings, content]
            digest = fingerprint([*parts, np.asarray(split.train), np.asarray(split.test)])
            key = f"{name}/{data.name}/{split.seed}/{split.fold}/{digest}"
            jobs[key] = name, model, data, split
    file = RecordFile(results)
    waiting = [key for key in jobs if key not in file]
    work = (
        delayed(_fit_and_score)(key, *jobs[key], scheme, metrics, fit_params) for key in waiting
    )
    fitted = Parallel(n_jobs=n_jobs, return_as="generator_unordered")(work)
    console = Console(stderr=True)
    for record in tracked(fitted, len(waiting), "comparing", shown=progress, console=console):
        file.add(record)
    return Comparison([file.get(key) for key in jobs], metrics)


def _fit_and_score(
    key: str,
    name: str,
    model: Model,
    data: Dataset,
    split: Split,
    scheme: Scheme,
    metrics: Sequence[str],
    fit_params: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """One fit as a record of the results file."""
    y, groups = np.asarray(data.y), data.groups
    fold = fit_fold(model, data.bags, y, split, scheme, groups, None, name, data.name, fit_params)
    record = {
        "key": key,
        "model": name,
        "data": data.name,
        "seed": split.seed,
        "fold": split.fold,
        "n_train": len(split.train),
        "n_test": len(split.test),
        "fit_seconds": fold.fit_seconds,
        "predict_seconds": fold.predict_seconds,
        "peak_mb": fold.peak_mb,
        "warnings": fold.warnings,
        "test": np.asarray(split.test),
    }
    for level, held_out in (("bags", fold.bags), ("instances", fold.instances)):
        record[level] = None if held_out is None else held_out._asdict()
        if held_out is not None:
            record[f"{level}_metrics"] = held_out.metrics(metrics)
    return record


def _as_datasets(datasets: Any) -> list[Dataset]:
    if not isinstance(datasets, Mapping):
        names = [datasets] if isinstance(datasets, str) else list(datasets)
        datasets = {name: load_dataset(name) for name in names}
    if not datasets:
        raise ValueError("at least one data set is needed; got none.")
    checked = []
    for name, data in datasets.items():
        groups, folds = getattr(data, "groups", None), getattr(data, "published_folds", None)
        bags, y = data if isinstance(data, tuple) else (data.bags, data.y)
        y = np.asarray(y)
        bags = check_bags(bags, accept_sparse=True, allow_nd=True, estimator="compare")
        check_lengths(f"data {name!r}", len(bags), y, groups)
        checked.append(Dataset(name, bags, y, groups, folds))
    return checked


def load_dataset(name: str) -> Any:
    """A data set by name: a bundled one, "digits", or "newsgroups/NAME" from the data home."""
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


class RecordFile:
    """Finished fits by key, kept in a JSON-lines file that a restarted run reads first.

    Every change writes a new file beside the old one and renames it over, so that a killed
    process leaves either the old file or the new one.

    Parameters
    ----------
    path : path or None, default=None
        With None the records live in memory only.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._lines: dict[str, str] = {}
        if self.path is None or not self.path.exists():
            return
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                self._lines[json.loads(line)["key"]] = line
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(
                    f"{self.path}: line {number} is not a result of compare; "
                    "give another results file, or delete this one."
                ) from error

    def __contains__(self, key: str) -> bool:
        return key in self._lines

    def get(self, key: str) -> Any:
        """The record of a key."""
        return json.loads(self._lines[key])

    def add(self, record: dict[str, Any]) -> None:
        """Keep one record (with its ``key``) and write the file."""
        self._lines[record["key"]] = json.dumps(record, default=plain_json)
        if self.path is not None:
            write_text(self.path, "\n".join(self._lines.values()) + "\n")


def fingerprint(parts: Iterable[object]) -> str:
    """A short digest of settings and arrays; equal content gives equal digests across runs."""
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype}{part.shape}".encode())
            if part.dtype == object:
                digest.update(repr(part.tolist()).encode())
            else:
                digest.update(np.ascontiguousarray(part).tobytes())
        elif is_sparse(part):
            digest.update(fingerprint([part.data, part.indices, part.indptr]).encode())
        else:
            # Memory addresses in default reprs differ from run to run.
            digest.update(re.sub(r" at 0x[0-9a-f]+", "", str(part)).encode())
    return digest.hexdigest()


def describe_model(model: Model) -> str:
    """Class and every parameter of an estimator, nested ones included, in a fixed order."""

    def described(value: object) -> str:
        if hasattr(value, "get_params") and not isinstance(value, type):
            return type(value).__qualname__  # its own parameters are listed by their own keys
        return fingerprint([value]) if isinstance(value, np.ndarray) else repr(value)

    params = model.get_params(deep=True)
    listed = ", ".join(f"{k}={described(params[k])}" for k in sorted(params))
    return f"{type(model).__module__}.{type(model).__qualname__}({listed})"
