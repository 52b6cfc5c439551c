"""Where a fit starts: kernel and likelihood chosen by held-out bags, refined by the evidence.

Where key instances are rare the objective has a flat optimum that has learned nothing, and a cold
start can end there. *Continuation* does not: soft maxima of f that begin at its mean and become
sharper, each started from the one before. Every stage is fitted to all bags and without those of
each fold, side by side; the calibrated log-loss of the held-out bags chooses among the stages and
a handful of kernels. The evidence then maximises itself over the winner's kernel and prior mean,
and its kernel is kept where the held-out bags do not disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

from bagwise.core.arrays import Array, Floats, Ints, as_array, to_numpy
from bagwise.core.kernels import Kernel
from bagwise.models.calibration.fit import fit_platt
from bagwise.models.variational import evidence
from bagwise.models.variational.blocks import Block, Part
from bagwise.models.variational.evidence import WholeBags
from bagwise.models.variational.inference import (
    Posteriors,
    Settings,
    block_sums,
    directions,
    fit,
    latent_draws,
    make_draws,
    prior,
)
from bagwise.models.variational.likelihoods import BagLikelihood, Or, SoftMax

# Kernels to start from: length scales over the median distance, and variances.
STARTS = ((0.5, 16.0), (1.0, 16.0), (1.0, 100.0), (2.0, 100.0))
# Folds that choose and calibrate.
N_FOLDS = 4
# Sharpness of the stages of a continuation, up to that of the likelihood it leads to.
_STAGES = (1.0, 3.0, 8.0)
_SCREEN = Settings(n_draws=16, max_iter=10, tol=1e-2)
# A stage on the way need not converge.
_ON_THE_WAY = _SCREEN._replace(max_iter=5)
_LEARN = Settings(n_draws=32, max_iter=30, tol=1e-3)
# Log-losses nearer than this tell nothing apart; the evidence then decides.
_TIE = 1e-3
# Prior levels that the step to an or tries, from 0 to -2 log of the size of a bag.
_LEVELS = 7


class Tasks(NamedTuple):
    """Which fit is which: task ``j F + f`` has class f, with all bags (j = 0) or without fold j.

    ``fold`` and ``y`` are of the bags in the order of their numbers.
    """

    fold: Ints  # [b]
    y: Ints  # [b, F]
    counts: Floats | None = None  # [b] how often a bag counts

    @property
    def n_classes(self) -> int:
        """F."""
        return self.y.shape[1]

    @property
    def n_folds(self) -> int:
        """Folds that are held out in turn; none where there is one of them only."""
        n = int(self.fold.max()) + 1
        return n if n > 1 else 0

    @property
    def n_tasks(self) -> int:
        """T."""
        return self.n_classes * (1 + self.n_folds)

    def take(self, bags: Ints) -> Tasks:
        """Those of the bags with these numbers, in this order."""
        counts = None if self.counts is None else self.counts[bags]
        return Tasks(self.fold[bags], self.y[bags], counts)

    def weight(self, of_bags: Floats | None = None) -> Floats:
        """How often a bag counts in each task, [b, T]; ``of_bags`` [b, F] in the fit to all."""
        weights = np.ones(self.y.shape) if of_bags is None else of_bags
        seen = [np.ones(len(self.fold))] + [self.fold != j for j in range(self.n_folds)]
        return np.concatenate([weights * kept[:, None] for kept in seen], axis=1)

    def spread(self, x: Any) -> Any:
        """Columns of classes [.., F] for every task, [.., T]."""
        return np.concatenate([x] * (1 + self.n_folds), axis=-1)

    def held_out(self, values: Floats) -> Floats:
        """Of values of all tasks [b, T] those of the task that did not see the bag, [b, F]."""
        by_fold = values.reshape(len(values), 1 + self.n_folds, self.n_classes)
        return by_fold[np.arange(len(values)), (1 + self.fold) if self.n_folds else 0 * self.fold]

    def loss(self, log_odds: Floats) -> float:
        """Mean log-loss of held-out log-odds [b, F], calibrated, summed over the classes."""
        total = 0.0
        for z, y in zip(log_odds.T, self.y.T, strict=True):
            line = fit_platt(z, y, shrink=True, weight=self.counts)
            p = line.log_odds(z)
            total += float(np.average(np.logaddexp(0, (1 - 2 * y) * p), weights=self.counts))
        return total


@dataclass(frozen=True)
class Trial:
    """One kernel and likelihood, fitted to all tasks."""

    kernel: Kernel
    likelihood: BagLikelihood
    f0: Floats  # [T]
    q: Posteriors  # [T]
    bound: float  # of the tasks that see all bags
    loss: float  # of held-out bags; nan without any

    @property
    def rank(self) -> tuple[float, float]:
        """Sorts trials, the best first: by held-out loss, ties by the evidence."""
        return (0.0 if np.isnan(self.loss) else round(self.loss / _TIE)), -self.bound


def continuation(likelihood: BagLikelihood, size: float) -> list[BagLikelihood]:
    """From the mean of f to a likelihood, by soft maxima that become sharper.

    Examples
    --------
    >>> from bagwise.models.variational import SoftMax
    >>> from bagwise.models.variational.search import continuation
    >>> [stage.tau for stage in continuation(SoftMax(3.0, 10.0), 10.0)]
    [0.0, 1.0, 3.0]
    """
    mean: BagLikelihood = SoftMax(0.0)
    if likelihood == mean:
        return [mean]
    sharpest = getattr(likelihood, "tau", _STAGES[-1] + 1)
    soft: list[BagLikelihood] = [SoftMax(tau, size) for tau in _STAGES if tau < sharpest]
    return [mean, *soft, likelihood]


def _screening_draws(block: Block, q: Posteriors, f0: Floats) -> Array:
    """The draws of f [n, T, S] that the screening sees, the same for all trials."""
    draws = make_draws(q.m.shape[1], _SCREEN.n_draws, _SCREEN.seed)
    return latent_draws(block, directions(q, draws.U), f0, draws.E)


def mean_log_odds(
    parts: Sequence[Part], q: Posteriors, f0: Floats, likelihood: BagLikelihood
) -> Floats:
    """Log-odds of the mean probability, over draws, of every bag under every task, [b, T].

    Bags are in the order of their numbers.
    """
    odds = []
    blocks = [block for part in parts for block in part.blocks]
    for block in blocks:
        draws = likelihood.log_odds(_screening_draws(block, q, f0), block.labels.offsets)
        p = np.clip(expit(to_numpy(draws).astype(np.float64)).mean(-1), 1e-12, 1 - 1e-12)
        odds.append(np.log(p) - np.log1p(-p))
    numbers = np.concatenate([as_array(block.labels.bag) for block in blocks])
    return np.concatenate(odds)[np.argsort(numbers)]


def base_levels(tasks: Tasks) -> Floats:
    """Log-odds of a positive bag, by Laplace's rule, [T]: the prior mean of a soft maximum."""
    y = tasks.y
    share = (np.sum(y, 0) + 1) / (len(y) + 2)
    return tasks.spread(np.log(share / (1 - share)))


@dataclass(frozen=True)
class Search:
    """The training bags that choose, and their tasks."""

    data: WholeBags
    tasks: Tasks
    size: float  # median size of the bags, the n_0 of the soft maxima

    def fitted(
        self,
        kernel: Kernel,
        parts: list[Part],
        likelihood: BagLikelihood,
        start: Posteriors,
        f0: Floats,
        settings: Settings = _SCREEN,
    ) -> Trial:
        """A fit of all tasks from ``start``, and what it says of the held-out bags."""
        n_bags, driver, loss = self.data.n_bags, self.data.driver, np.nan
        fits = fit(parts, n_bags, likelihood, start, f0, driver, settings)
        if self.tasks.n_folds:
            odds = mean_log_odds(parts, fits.q, f0, likelihood)
            loss = self.tasks.loss(self.tasks.held_out(odds))
        whole = float(np.sum(fits.bound[: self.tasks.n_classes]))
        return Trial(kernel, likelihood, f0, fits.q, whole, loss)

    def path(self, kernel: Kernel, likelihood: BagLikelihood) -> list[Trial]:
        """The continuation to a likelihood, each stage started from the one before."""
        parts = self.data.project(kernel)
        q, trials = prior(self.tasks.n_tasks, len(self.data.Z)), []
        for stage in continuation(likelihood, self.size):
            f0 = self.or_levels(parts, q) if isinstance(stage, Or) else base_levels(self.tasks)
            settings = _SCREEN if stage == likelihood else _ON_THE_WAY
            trials.append(self.fitted(kernel, parts, stage, q, f0, settings))
            q = trials[-1].q
        return trials

    def or_levels(self, parts: list[Part], q: Posteriors) -> Floats:
        """Prior means of an or, [T]: of a grid, those that make the bags likeliest at once.

        A grid of levels is one pass over as many tasks.
        """
        grid = np.linspace(0.0, -2 * np.log(max(self.size, 2.0)), _LEVELS)
        whole, value = np.arange(self.tasks.n_classes), np.zeros((_LEVELS, self.tasks.n_classes))
        tasks, levels = np.tile(whole, _LEVELS), np.repeat(grid, len(whole))
        for block in (block for part in parts for block in part.blocks):
            there = block._replace(labels=block.labels.of_tasks(tasks))
            F = _screening_draws(there, q.take(tasks), levels)
            value += to_numpy(block_sums(there, F, Or()).value).reshape(_LEVELS, -1)
        return self.tasks.spread(grid[value.argmax(0)])

    def has_learned(self, trials: Sequence[Trial]) -> bool:
        """Whether the best trial gains more on held-out bags than luck: log K nats for K trials.

        Where nothing can be learned, a gain of g nats has a probability of about exp(-g) in each.
        """
        if not self.tasks.n_folds:
            return True
        gain = self.tasks.loss(np.zeros(self.tasks.y.shape)) - best(trials).loss
        return len(self.tasks.y) * gain > np.log(len(trials))

    def learned(self, trial: Trial) -> Trial:
        """The trial with the kernel and prior means that maximise the evidence from there.

        Held-out tasks are fitted under them, each from where it was.
        """
        whole, likelihood = np.arange(self.tasks.n_classes), trial.likelihood
        data, start, f0 = self.data.of_tasks(whole), trial.q.take(whole), trial.f0[whole]
        kernel, f0, _ = evidence.learn(data, trial.kernel, likelihood, start, f0, _LEARN)
        parts, f0 = self.data.project(kernel), self.tasks.spread(f0)
        return self.fitted(kernel, parts, likelihood, trial.q, f0, _LEARN)

    def refined(self, start: Trial) -> Trial:
        """`learned`, unless the held-out bags are predicted worse with it."""
        learned = self.learned(start)
        return start if learned.loss > start.loss else learned


def best(trials: Sequence[Trial]) -> Trial:
    """The trial that predicts the held-out bags best."""
    return min(trials, key=attrgetter("rank"))
