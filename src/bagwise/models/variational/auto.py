"""AutoVGPMIL: a handful of candidates, weighed by held-out bags."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions

from bagwise.bags import BagsLike, InstanceLabels
from bagwise.core.arrays import Column, Floats, RandomState
from bagwise.models.execution import Execution, resolve
from bagwise.models.feature_checks import check_bag_weights
from bagwise.models.labels import ClassWeight
from bagwise.models.parameters import AT_LEAST_1, NOT_NEGATIVE, parameter
from bagwise.models.scaling import Scale
from bagwise.models.variational import engine
from bagwise.models.variational.engine import Fitted, HeldOutReadings, Problem
from bagwise.models.variational.inference import Settings
from bagwise.models.variational.likelihoods import SoftMax
from bagwise.models.variational.predicting import LatentClassifier, watched
from bagwise.models.variational.search import Trial

# Candidates that count for less than this are dropped: nobody would see them in a prediction.
_LEAST_WEIGHT = 0.01


class Candidate(NamedTuple):
    """One way to model the bags: units of the features, and how instances make a bag."""

    name: str
    scale: Scale
    mean: bool  # whether the mean of f makes the bag, which any instance may lower

    @property
    def standard(self) -> bool:
        """Whether no instance can lower the probability of its bag."""
        return not self.mean


# Those of one scaling follow each other.
CANDIDATES = (
    Candidate("soft maximum, features scaled", "feature", mean=False),
    Candidate("mean, features scaled", "feature", mean=True),
    Candidate("soft maximum, one scale", "global", mean=False),
    Candidate("mean, one scale", "global", mean=True),
)


@dataclass(kw_only=True, eq=False, repr=False)
class AutoVGPMIL(LatentClassifier):
    """Average of several `VGPMIL` models with weights from held-out bags: start here.

    Candidates differ in the units of the features and in how instances make a bag: by a soft
    maximum, the multiple-instance assumption, or by their mean. Each is fitted as `VGPMIL` is, with
    a kernel learned by its evidence; the log-odds of all are averaged with weights that are their
    likelihoods of held-out bags, and calibrated by one slope and one intercept.

    Parameters
    ----------
    n_inducing : int, default=100
        Inducing points of every candidate.
    assumption : {"data", "standard"}, default="data"
        ``"data"`` lets means take part as far as held-out bags ask for them, and
        ``whole_bag_weight_`` says how far that was. A mean can be lowered by any instance: such
        an ensemble does not keep the multiple-instance assumption. ``"standard"`` has only
        candidates that no instance can lower.
    max_iter, tol, execution, random_state : as in `VGPMIL`, default=200, 0.001, None, None
        As for `VGPMIL`.
    verbose : bool, default=False
        Show a progress bar.

    Attributes
    ----------
    classes_ : array
    weights_ : array of shape (n_members,)
        How much each member counts, the first most.
    whole_bag_weight_ : float
        How much those count that look at the bag as a whole.
    search_results_ : dict of arrays
        One row per candidate: ``candidate``, ``scale``, ``kernel``, ``likelihood``, ``whole_bag``,
        held-out ``log_loss``, and ``weight``. ``pandas.DataFrame(model.search_results_)`` makes a
        table of it.
    held_out_decision_ : array of shape (n_bags,)
        Calibrated log-odds of the training bags, each from fits that did not see it.
    bound_history_ : array
        Evidence bound of the member that counts most, after every iteration.
    n_iter_, converged_ : int, bool
        Most iterations of any member; whether all converged.

    See Also
    --------
    VGPMIL, bagwise.SingleInstance

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import AutoVGPMIL
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 5, 2))
    >>> y = np.arange(40) % 2
    >>> X[y == 1, 0] += 4  # one positive instance in each positive bag
    >>> model = AutoVGPMIL(n_inducing=20, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    """

    n_inducing: int = parameter(100, AT_LEAST_1)
    assumption: Literal["data", "standard"] = parameter("data", StrOptions({"data", "standard"}))
    max_iter: int = parameter(200, AT_LEAST_1)
    tol: float = parameter(1e-3, NOT_NEGATIVE)
    execution: Execution | str | None = parameter(None)
    random_state: RandomState = parameter(None, "random_state")
    verbose: bool = parameter(False, "verbose")

    def fit(
        self,
        bags: BagsLike,
        y: ArrayLike,
        instance_labels: InstanceLabels = None,
        background: Any = None,
        class_weight: ClassWeight | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> AutoVGPMIL:
        """Fit every candidate, compute their weights, calibrate.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays, or 3-d array
        y : array of shape (n_bags,) or (n_bags, n_classes)
        instance_labels, background, class_weight, sample_weight : as in `VGPMIL`, default=None
            As for `VGPMIL.fit`.
        """
        checked, labels = self._validate_labels(bags, y, instance_labels, background)
        counts = sample_weight
        if counts is not None:
            counts = check_bag_weights(counts, checked, self)
        targets = labels.weighted(class_weight, counts)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        execution = resolve(self.execution)
        offered = [c for c in CANDIDATES if self.assumption == "data" or c.standard]
        kernels, trials, fits = engine.start_kernels("rbf"), [], []
        for number, candidate in enumerate(offered):
            if number == 0 or candidate.scale != offered[number - 1].scale:
                rng, scale, M = np.random.RandomState(seed), candidate.scale, self.n_inducing
                problem = engine.plan(checked, targets, scale, "kmeans", M, execution, rng, True)
                soft = engine.default_likelihoods(problem)
                # Every start kernel from the mean to the soft maximum, for both candidates.
                tried = cache(partial(engine.paths, problem, kernels, soft))
            if number == 0:
                n = len(offered)
                engine.warn_if_slow(type(self).__name__, problem, n * engine.PASSES, n)
            likelihoods = (SoftMax(),) if candidate.mean else soft
            name = f"{number + 1} of {len(offered)}: {candidate.name}"
            numbered = execution.numbered(number)
            find = partial(engine.choose, problem, kernels, likelihoods, True, tried)
            with problem.settings(), watched([], self.verbose, self.max_iter, name) as tell:
                trial, fitted = engine.search_and_fit(
                    problem._replace(execution=numbered),
                    kernels,
                    likelihoods,
                    find,
                    Settings(max_iter=self.max_iter, tol=self.tol),
                    tell,
                    candidate,
                    self.tol,
                )
            trials.append(trial)
            fits.append(fitted)
        pairs = zip(trials, fits, strict=True)
        losses = np.array([_loss(problem, fitted, trial) for trial, fitted in pairs])
        weights = _weights(losses, len(checked))
        self._join(problem, offered, trials, fits, losses, weights)
        return self

    def _join(
        self,
        problem: Problem,
        offered: list[Candidate],
        trials: list[Trial],
        fits: list[Fitted],
        losses: Floats,
        weights: Floats,
    ) -> None:
        """Keep the members that count, the one that counts most first."""
        order = np.argsort(-weights, kind="stable")
        order = order[weights[order] >= _LEAST_WEIGHT]
        members = [fits[i] for i in order]
        self.weights_ = weights[order] / weights[order].sum()
        held_out = _blended([fitted.held_out for fitted in members], self.weights_)
        if held_out is not None:
            engine.warn_if_nothing_learned(type(self).__name__, held_out.bag, problem.tasks.y)
        processes = [fitted.process for fitted in members]
        self._keep(problem, processes, self.weights_.tolist(), held_out)
        whole = np.array([not candidate.standard for candidate in offered])
        self.whole_bag_weight_ = float(self.weights_[whole[order]].sum())
        self.search_results_: dict[str, Column] = {
            "candidate": np.array([c.name for c in offered]),
            "scale": np.array([c.scale for c in offered]),
            "kernel": np.array([repr(trial.kernel) for trial in trials]),
            "likelihood": np.array([repr(trial.likelihood) for trial in trials]),
            "whole_bag": whole,
            "log_loss": losses,
            "weight": weights,
        }
        self.bound_history_, self.cache_ = members[0].history, members[0].cache
        self.n_iter_ = max(fitted.n_iter for fitted in members)
        self.converged_ = all(fitted.converged for fitted in members)


def _loss(problem: Problem, fitted: Fitted, trial: Trial) -> float:
    """Log-loss per bag on held-out bags, calibrated; by the evidence where nothing is held out."""
    if fitted.held_out is None:
        return -trial.bound / len(problem.bags)
    return problem.tasks.loss(fitted.held_out.bag)


def _weights(losses: Floats, n_bags: int) -> Floats:
    """Each candidate's likelihood of all held-out bags, in proportion."""
    weights = np.exp(-n_bags * (losses - losses.min()))
    return weights / weights.sum()


def _blended(held_out: list[HeldOutReadings | None], weights: Floats) -> HeldOutReadings | None:
    """What the members together say of the held-out bags; None where there are none."""
    pairs = [(w, h) for w, h in zip(weights, held_out, strict=True) if h is not None]
    if not pairs:
        return None
    return HeldOutReadings(
        sum(w * h.bag for w, h in pairs),
        sum(w * h.mean for w, h in pairs),
        sum(w * w * h.var for w, h in pairs),
    )
