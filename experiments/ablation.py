"""What each rule buys: ``python -m experiments.ablation [--quick] [--jobs N]``.

`VGPMIL()` and `AutoVGPMIL()` are fitted as they are and with one rule of ``docs/methods.md``
switched off, to the same training bags, and scored on the same test bags: folds 0 and 1
of repetition 2 of the leaderboard's folds on eight sets. No rule was chosen on these splits, though
some were on other splits of the same bags. Further data, three folds of each, are only for the
rules that they concern:

- ``slides``: sixty simulated slides of 200 to 400 patches with 32 features,
- ``300 bags``: 300 Gaussian bags to fit and 300 to score; the search for a kernel sees all 300 by
  default,
- ``labels permuted``: the same folds with permuted labels, where there is nothing to learn,
- ``one positive in ten``: nine of ten positive training bags are left out, and the log-loss counts
  positive test bags as often as they occur among the training bags.

The table has mean differences, without the rule less with it, of the AUC of bags and of the
log-loss of bags and of instances (question *share*, where instance labels are known). The spread is
the standard error of the mean difference over paired fits, and the note says how many standard
errors it is from 0. Without a useful rule a log-loss rises and an AUC falls. Training bags of the
folds of one set overlap, so that standard errors are somewhat too small.
"""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pandas as pd
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold

from bagwise import VGPMIL, AutoVGPMIL, Bags, datasets
from bagwise.bags import check_bags
from bagwise.models import labels
from bagwise.models.calibration import fit as share
from bagwise.models.calibration.fit import fit_platt
from bagwise.models.variational import auto, blocks, engine, estimators, evidence, search
from bagwise.models.variational.inference import Settings
from bagwise.models.variational.likelihoods import Or
from experiments import leaderboard
from experiments._held_out import gather, main, quiet_fits

TITLE = "Ablation: what each rule that is in no paper buys"
PAPER = "none: the rules of this library"
NEEDS = ("bundled", "synthetic", "newsgroups")
REPETITION, FOLDS, MORE_FOLDS = 2, (0, 1), (0, 1, 2)
TABULAR = ("musk1", "elephant", "fox", "tiger", "digits")
NEWSGROUPS = ("sci_med", "comp_graphics", "talk_politics_misc")
SETS = (*TABULAR, *(f"newsgroups/{name}" for name in NEWSGROUPS))
PERMUTED, RARE = ", labels permuted", ", one positive in ten"
PERMUTED_SETS = tuple(name + PERMUTED for name in TABULAR)
RARE_SETS = tuple(name + RARE for name in ("elephant", "tiger", "digits"))
METRICS = ("bag AUC", "bag log-loss", "instance log-loss")
# What replaces a rule: object, name, and the new value.
Patches = tuple[tuple[Any, str, Any], ...]


def _plain_line(z: Any, y: Any, shrink: bool, weight: Any = None) -> Any:
    """Platt's line without shrinkage of its slope."""
    return fit_platt(z, y, weight=weight)


def _without_bias(kernel: Any) -> Any:
    return [k.left for k in _START_KERNELS(kernel)]


_START_KERNELS = engine.start_kernels


def _draws(n: int) -> Patches:
    """Another number of draws, of the fit and of learning the kernel."""
    return (
        (estimators, "Settings", functools.partial(Settings, n_draws=n)),
        (search, "_LEARN", search._LEARN._replace(n_draws=n)),
    )


def _searched(n: int) -> Patches:
    """A search over so many bags."""
    return ((engine, "_SEARCHED_BAGS", n), (engine, "_SEARCHED_ROWS", 1))


# Rules of a fit: each asks for a fit of its own.
FITS: dict[str, Patches] = {
    "no continuation": ((search, "continuation", lambda likelihood, size: [likelihood]),),
    "one start of the kernel": ((engine, "STARTS", ((1.0, 16.0),)),),
    "learned kernel always kept": ((search.Search, "refined", search.Search.learned),),
    "kernel not learned": ((search.Search, "refined", lambda self, start: start),),
    "no prior of the kernel": ((evidence, "_PRIOR", 1e-6),),
    "one set of draws": ((blocks, "N_DEALS", 1),),
    "16 draws": _draws(16),
    "64 draws": _draws(64),
    "SoftMax(1)": ((engine, "_TAUS", (1.0,)),),
    "SoftMax(3)": ((engine, "_TAUS", (3.0,)),),
    "SoftMax(8)": ((engine, "_TAUS", (8.0,)),),
    "Or()": ((engine, "default_likelihoods", lambda problem: (Or(),)),),
    "start chosen by the evidence": ((search.Trial, "rank", property(lambda t: -t.bound)),),
    "no bias": ((engine, "start_kernels", _without_bias),),
}
# Rules of the calibration: the same fit, calibrated again.
SHRINKAGE, SHARE = "no shrinkage of the slope", "wide prior of the share map"
CALIBRATIONS: dict[str, Patches] = {
    SHRINKAGE: ((engine, "fit_platt", _plain_line),),
    SHARE: (
        (
            share,
            "_CROSSING",
            (share._CROSSING[0], 100 * share._CROSSING[1]),
        ),
        (
            share,
            "_LOG_SLOPE",
            (share._LOG_SLOPE[0], 100 * share._LOG_SLOPE[1]),
        ),
        (share, "_FLOOR_STD", 100 * share._FLOOR_STD),
    ),
}
# Rules of some sets.
SEARCHES: dict[str, Patches] = {f"search on {n} bags": _searched(n) for n in (128, 32)}
WEIGHTS: dict[str, Patches] = {
    "no weight of a rare class": ((labels, "rare_weights", lambda y, counts=None: None),)
}
PATCHES = FITS | CALIBRATIONS | SEARCHES | WEIGHTS
PATCHES["Or(), no continuation"] = FITS["Or()"] + FITS["no continuation"]
# The models as they are, and AutoVGPMIL's rules: the same candidates, put together again.
BASE, AUTO = "VGPMIL", "AutoVGPMIL"
UNIFORM, NO_MEANS = f"{AUTO}, uniform weights", f"{AUTO}, no means"
SLIDES = ("no continuation", "Or()", "Or(), no continuation", "one start of the kernel")
# Which rules are switched off on which data.
RULES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(SETS, (SHRINKAGE, SHARE, *FITS, AUTO, UNIFORM, NO_MEANS)),
    **dict.fromkeys(PERMUTED_SETS, (SHRINKAGE,)),
    **dict.fromkeys(RARE_SETS, tuple(WEIGHTS)),
    "300 bags": tuple(SEARCHES),
    "slides": SLIDES,
}
# Sets whose fits are also taken together.
TOGETHER = {
    f"{len(SETS)} sets": SETS,
    f"{len(PERMUTED_SETS)} sets{PERMUTED}": PERMUTED_SETS,
    f"{len(RARE_SETS)} sets{RARE}": RARE_SETS,
}


class Case(NamedTuple):
    """Bags to fit and bags to score."""

    train: Bags
    y_train: Any
    test: Bags
    y_test: Any
    truth: Any = None  # labels of the test instances


def load(name: str, fold: int) -> Case:
    """A set at one fold."""
    if name.endswith(PERMUTED):
        case = load(name.removesuffix(PERMUTED), fold)
        y = np.random.default_rng(fold).permutation(np.concatenate([case.y_train, case.y_test]))
        n = len(case.y_train)
        return case._replace(y_train=y[:n], y_test=y[n:], truth=None)
    if name.endswith(RARE):
        case = load(name.removesuffix(RARE), fold)
        positive = np.flatnonzero(case.y_train == 1)
        kept = np.sort([*np.flatnonzero(case.y_train == 0), *positive[::10]])
        return case._replace(train=case.train[kept], y_train=case.y_train[kept])
    if name == "300 bags":
        data = datasets.make_gaussian_bags(600, 10, separation=2.5, random_state=fold)
        order = np.random.default_rng(fold).permutation(600)
        return _case(data.bags, data.y, data.instance_labels, order[:300], order[300:])
    if name == "slides":
        bags, y, truth = slides()
        folds = list(StratifiedKFold(3, shuffle=True, random_state=0).split(y, y))
        return _case(bags, y, truth, *folds[fold])
    data = leaderboard.load(name)
    split = leaderboard.splits(name)[REPETITION, fold]
    truth = getattr(data, "instance_labels", None)
    truth = data.bags.instance_labels if truth is None else truth
    return _case(data.bags, np.asarray(data.y), truth, split.train, split.test)


def _case(bags: Bags, y: Any, truth: Any, train: Any, test: Any) -> Case:
    train, test = np.sort(train), np.sort(test)
    unseen = None if truth is None else np.asarray(truth)[np.isin(bags.bag_index, test)]
    return Case(bags[train], y[train], bags[test], y[test], unseen)


@functools.lru_cache(maxsize=1)
def slides() -> tuple[Bags, Any, Any]:
    """Sixty simulated slides, their labels and those of their patches."""
    import h5py

    with tempfile.TemporaryDirectory() as folder:
        made = datasets.make_slides(
            60, patches=(200, 400), n_features=32, to=folder, random_state=0
        )
        features = []
        for path in sorted(Path(folder).glob("*.h5")):
            with h5py.File(path) as file:
                features.append(np.asarray(file["features"], dtype=np.float64))
    return check_bags(features), made.y, made.instance_labels


@contextmanager
def switched_off(rule: str) -> Iterator[None]:
    """The library without a rule; as it is for "default"."""
    with ExitStack() as stack:
        for patched in PATCHES.get(rule, ()):
            stack.enter_context(patch.object(*patched))
        yield


@functools.lru_cache(maxsize=1)
def fitted(data: str, fold: int) -> tuple[VGPMIL, Any]:
    """`VGPMIL` as it is, and what its calibration was made of."""
    case = load(data, fold)
    with quiet_fits(), patch.object(engine, "calibrated", wraps=engine.calibrated) as spy:
        model = VGPMIL(random_state=0).fit(case.train, case.y_train)
    return model, spy.call_args.args


@functools.lru_cache(maxsize=1)
def fitted_auto(data: str, fold: int) -> tuple[AutoVGPMIL, Any]:
    """`AutoVGPMIL` as it is, and what its candidates were put together with."""
    case, joined = load(data, fold), AutoVGPMIL._join
    with quiet_fits(), patch.object(AutoVGPMIL, "_join", autospec=True, side_effect=joined) as spy:
        model = AutoVGPMIL(random_state=0).fit(case.train, case.y_train)
    return model, spy.call_args.args[1:]


def fit_auto(rule: str, data: str, fold: int) -> AutoVGPMIL:
    """`AutoVGPMIL` without a rule: the same fits of candidates, put together in another way."""
    model, (problem, offered, trials, fits, losses, weights, *rest) = fitted_auto(data, fold)
    if rule == AUTO:
        return model
    model = copy.copy(model)
    if rule == NO_MEANS:
        kept = [k for k, candidate in enumerate(offered) if candidate.standard]
        offered, trials, fits = ([x[k] for k in kept] for x in (offered, trials, fits))
        losses, weights = losses[kept], auto._weights(losses[kept], len(problem.bags))
    else:
        weights = np.full(len(fits), 1 / len(fits))
    with quiet_fits():
        model._join(problem, offered, trials, fits, losses, weights, *rest)
    return model


def fit(rule: str, data: str, fold: int) -> Any:
    """A model without a rule, fitted to the training bags of a fold."""
    if rule.startswith(AUTO):
        return fit_auto(rule, data, fold)
    if rule == BASE:
        return fitted(data, fold)[0]
    if rule in CALIBRATIONS:
        model, arguments = fitted(data, fold)
        model = copy.copy(model)
        with switched_off(rule):
            model.predictor_ = engine.calibrated(*arguments)[0]
        return model
    case = load(data, fold)
    with quiet_fits(), switched_off(rule):
        return VGPMIL(random_state=0).fit(case.train, case.y_train)


def one_fit(rule: str, data: str, fold: int) -> dict[str, Any]:
    """Scores of a model without a rule on the test bags of a fold."""
    case, model = load(data, fold), fit(rule, data, fold)
    p, y = model.predict_proba(case.test)[:, 1], case.y_test
    # As many positives for each negative as among the training bags, where those were thinned.
    weight = np.ones(len(y))
    if data.endswith(RARE):
        weight[y == 1] = np.mean(case.y_train) / np.mean(1 - case.y_train)
        weight[y == 1] *= np.mean(1 - y) / np.mean(y)
    row: dict[str, Any] = {"rule": rule, "data": data, "fold": fold}
    row["bag AUC"] = roc_auc_score(y, p)
    row["bag log-loss"] = log_loss(y, p, labels=[0, 1], sample_weight=weight)
    row["instance log-loss"] = np.nan
    if case.truth is not None:
        of_instances = model.predict_proba_instances(case.test)[:, 1]
        row["instance log-loss"] = log_loss(case.truth, of_instances, labels=[0, 1])
    return row


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Every rule on the sets that it concerns; quick: a few of each kind on one fold of MUSK1."""
    if quick:
        rules = (BASE, *CALIBRATIONS, "one start of the kernel", AUTO, UNIFORM)
        tasks = [(rule, "musk1", 0) for rule in rules]
    else:
        tasks = [
            (rule, data, fold)
            for data, rules in RULES.items()
            for fold in (FOLDS if data in SETS else MORE_FOLDS)
            for rule in (BASE, *rules)
        ]
    fits = gather(one_fit, tasks, out, n_jobs)
    fits.to_csv(out / "fits.csv", index=False, float_format="%.6g")
    return table(fits)


def table(fits: pd.DataFrame) -> pd.DataFrame:
    """Scores of the models as they are, and mean differences without each rule."""
    fits = fits.assign(set=fits["data"])
    together = {name: fits[fits["data"].isin(sets)] for name, sets in TOGETHER.items()}
    parts = [
        part.assign(data=name) for name, part in together.items() if len(set(part["data"])) > 1
    ]
    fits = pd.concat([*parts, fits])
    scores = {
        key: part.set_index(["set", "fold"])[list(METRICS)]
        for key, part in fits.groupby(["data", "rule"], sort=False)
    }
    rows = []
    for (data, rule), own in scores.items():
        base = AUTO if rule.startswith(AUTO) else BASE
        if rule != base:
            own = own - scores[data, base]
        rows += [
            _row(rule, data, metric, own[metric].dropna(), rule != base)
            for metric in METRICS
            if own[metric].notna().any()
        ]
    return pd.DataFrame(rows)


def _row(
    rule: str, data: str, metric: str, values: pd.Series, is_difference: bool
) -> dict[str, Any]:
    """Mean and standard error over fits."""
    mean, n = float(values.mean()), len(values)
    error, note = float(values.std(ddof=1)) / np.sqrt(n), ""
    if is_difference:
        metric += ", difference"
        note = f"{mean / error:+.1f} standard errors" if error > 0 else ""
        note = note if values.any() else "no fit differs"
    row = {"model": rule, "data": data, "metric": metric, "published": np.nan}
    return row | {"mean": mean, "spread": error, "n_seeds": n, "note": note}


if __name__ == "__main__":
    main(run)
