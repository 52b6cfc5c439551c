"""What the models of the family share: validation, what watches a fit, and one read-out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags, BagsLike, check_bags
from bagwise.core.arrays import Floats, Ints
from bagwise.core.kernels import Kernel
from bagwise.core.progress import progress
from bagwise.files import read_plainly
from bagwise.models.base import InstanceClassifier, Scores, class_probabilities, squeezed
from bagwise.models.classes import ClassRule
from bagwise.models.execution import Execution, resolve
from bagwise.models.labels import check_column
from bagwise.models.placement import placed
from bagwise.models.variational import engine
from bagwise.models.variational.engine import HeldOutReadings, Problem
from bagwise.models.variational.inference import Iteration
from bagwise.models.variational.readout import Predictor, Process, Question, Wanted, read_bags

# Sets of at most so many numbers on disk, 128 MB, are read into memory at once.
_FEW_NUMBERS = 1 << 24

Validation = tuple[BagsLike, ArrayLike]


Monitor = Callable[[Iteration], object]


# How validation bags are scored, and the least rise that counts.
MONITORS = {"auc": 0.0, "log-loss": 1e-3}


@dataclass
class Patience:
    """Stops when validation bags are not predicted better for a while; remembers the best."""

    bags: Bags
    y: Ints
    execution: Execution
    patience: int
    monitor: str
    warmup: int  # iterations of which none counts against the patience
    top: float = -np.inf
    best: int = 0
    best_process: Process = field(init=False)

    def __call__(self, iteration: Iteration) -> bool:
        """Whether to stop."""
        from sklearn.metrics import roc_auc_score

        reader = Predictor((iteration.posterior,), (1.0,))
        scores, _, _ = read_bags(reader, self.bags, self.execution, "raw")
        z = scores[:, 0]
        if self.monitor == "auc":
            value = float(roc_auc_score(self.y, z))
        else:
            value = -float(np.logaddexp(0.0, np.where(self.y == 1, -z, z)).mean())
        if value > self.top + MONITORS[self.monitor]:
            self.top, self.best = value, iteration.n_iter
            self.best_process = iteration.posterior
        return iteration.n_iter - max(self.best, self.warmup) >= self.patience


@contextmanager
def watched(
    monitors: Sequence[Monitor | None], verbose: bool, max_iter: int, name: str
) -> Iterator[Callable[[Iteration], bool]]:
    """One callback from several and, if verbose, a progress bar; any monitor may stop the fit."""
    kept = [monitor for monitor in monitors if monitor is not None]
    with progress(name, max_iter, verbose, "search for a kernel") as show:

        def tell(at: Iteration) -> bool:
            text = f"iteration {at.n_iter}  bound {at.bound:.6g}  change {at.change:.1e}"
            show(at.n_iter, text)
            # All of them are called, also where one asks to stop.
            return max([bool(monitor(at)) for monitor in kept], default=False)

        yield tell


class LatentClassifier(InstanceClassifier):
    """A classifier that predicts by draws of a latent function, whatever made it."""

    predictor_: Predictor
    execution: Any

    _keeps_rows = True
    _multi_class = True
    _multi_label = True

    @property
    def kernel_(self) -> Kernel:
        """The kernel, as learned; of the first member where there are several."""
        return self.predictor_.processes[0].projector.kernel

    @property
    def inducing_points_(self) -> Floats:
        """Inducing points in the units of the instances, [M, D]."""
        projector = self.predictor_.processes[0].projector
        return projector.scaling.undo(projector.Z)

    @property
    def posterior_mean_(self) -> Floats:
        """Mean of the whitened inducing values, [M]; [F, M] with several classes."""
        return _squeezed(self.predictor_.processes[0].m)

    @property
    def posterior_factor_(self) -> Floats:
        """W of their covariance W^T W, [M, M]; [F, M, M] with several classes."""
        return _squeezed(self.predictor_.processes[0].W)

    @property
    def class_rule_(self) -> ClassRule:
        """How the classes go together."""
        return self.predictor_.rule

    def _check_bags(self, bags: BagsLike, n_features: int | None = None) -> Bags:
        name = type(self).__name__
        # Pages of a memory map would count as memory of this process.
        bags, on_disk = read_plainly(bags), False
        if isinstance(bags, Bags) and hasattr(bags.instances, "select_rows"):
            on_disk = bags.n_instances * bags.n_features > _FEW_NUMBERS
            if not on_disk:
                bags = bags.with_instances(np.array(bags.instances[:]))
        device = resolve(self.execution).torch_device(None)
        if isinstance(bags, Bags) and device is not None:
            check_bags(bags, n_features=n_features, estimator=name, finite=False)
            bags = placed(bags, device)
        if not on_disk:
            return super()._check_bags(bags, n_features)
        # Rows on disk are looked at for NaN where they are read anyway.
        return check_bags(bags, n_features=n_features, estimator=name, finite=False)

    def _watch(
        self, validation: Validation, patience: int, monitor: str, warmup: int = 0
    ) -> Patience:
        """What stops a fit on validation bags."""
        if not (isinstance(patience, Integral) and patience >= 1):
            raise ValueError(f"patience must be a whole number of at least 1; got {patience!r}.")
        if monitor not in MONITORS:
            raise ValueError(f"monitor must be one of {list(MONITORS)}; got {monitor!r}.")
        if len(self.classes_) > 2:
            raise ValueError("validation watches two classes; this fit has more.")
        bags = self._check_bags(validation[0], n_features=self.n_features_in_)
        y = check_column(validation[1], bags)
        if set(np.unique(y)) != set(self.classes_):
            raise ValueError(
                f"validation needs bags of both classes {self.classes_.tolist()}; got labels "
                f"{np.unique(y).tolist()}."
            )
        positive = (y == self.classes_[1]).astype(int)
        return Patience(bags, positive, resolve(self.execution), patience, monitor, warmup)

    def _keep(
        self,
        problem: Problem,
        processes: Sequence[Process],
        weights: Sequence[float],
        held_out: HeldOutReadings | None,
    ) -> None:
        """Calibrate what was fitted, and store all that predicts."""
        self.predictor_, odds = engine.calibrated(problem, processes, weights, held_out)
        self.__dict__.pop("held_out_decision_", None)
        if odds is not None:
            rule = self.predictor_.rule
            classes = odds if rule.binary else rule.of_bags(odds, np.zeros_like(odds)).log_odds
            self.held_out_decision_ = squeezed(classes)

    def _read(
        self,
        bags: BagsLike,
        wanted: Wanted,
        question: Question | None = None,
        interval: float | None = None,
    ) -> tuple[Floats, ...]:
        """Columns about the bags; one pass over their rows."""
        check_is_fitted(self)
        if question not in (None, "share", "alone"):
            raise ValueError(f"question must be 'share' or 'alone'; got {question!r}.")
        if interval is not None and not 0 < interval < 1:
            raise ValueError(f"return_interval must be in (0, 1); got {interval!r}.")
        checked = self._validate_predict(bags)
        execution: Execution = resolve(self.execution)
        return read_bags(self.predictor_, checked, execution, wanted, question, interval)

    def _proba(
        self,
        bags: BagsLike,
        wanted: Wanted,
        question: Question | None,
        return_std: bool,
        return_interval: float | None,
    ) -> Floats | tuple[Floats, ...]:
        """Probabilities or shares alone, or with their standard deviations and intervals."""
        value, std, low, high = self._read(bags, wanted, question, return_interval)
        if wanted != "fractions":
            value = class_probabilities(value)
        values = [value, *([std] if return_std else [])]
        if return_interval is not None:
            values.append(np.stack([low, high], axis=-1))
        return tuple(values) if len(values) > 1 else value

    def predict_latent(self, bags: BagsLike) -> tuple[Floats, Floats]:
        """Mean and variance of the latent function at every instance.

        Shape (n_instances,); with several classes (n_instances, n_classes), NaN for the background.

        Returns
        -------
        mean, var : arrays of shape (n_instances,), or (n_instances, n_classes)
        """
        mean, var = self._read(bags, "latent")
        return mean, var

    def score_bags(self, bags: BagsLike) -> Scores:
        """Everything the model says about bags, from one pass over their rows.

        Returns
        -------
        Scores
            ``bag`` and ``instance`` are log-odds, of shapes (n_bags,) and (n_instances,);
            ``bag_std`` and ``instance_std`` are standard deviations of the probabilities.
            With several classes all have a column per class.
        """
        bag, bag_std, _, _, instance, instance_std, _, _ = self._read(bags, "both")
        return Scores(bag, bag_std, instance, instance_std)

    def decision_function(self, bags: BagsLike) -> Floats:
        """Log-odds of each bag, shape (n_bags,); (n_bags, n_classes) with several classes.

        Returns
        -------
        scores : array of shape (n_bags,), or (n_bags, n_classes)
        """
        return self._read(bags, "bags")[0]

    def decision_function_instances(self, bags: BagsLike) -> Floats:
        """Log-odds of each instance, aligned with ``bags.instances``; shaped as for bags.

        Returns
        -------
        scores : array of shape (n_instances,), or (n_instances, n_classes)
        """
        return self._read(bags, "instances")[0]

    def predict_proba(
        self, bags: BagsLike, return_std: bool = False, return_interval: float | None = None
    ) -> Floats | tuple[Floats, ...]:
        """Probability of the classes for each bag, and its uncertainty on request.

        The classes of a bag sum to one, unless the model was fitted to an indicator matrix: then
        each column is the probability that the bag has this class, whatever else it has.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays, or 3-d array
        return_std : bool, default=False
            Also return the standard deviation of the positive probability over draws of the
            latent function; with several classes, of every class's.
        return_interval : float in (0, 1) or None, default=None
            Also return the central interval that holds this share of the draws.

        Returns
        -------
        proba : array of shape (n_bags, n_classes)
        std : array of shape (n_bags,), if ``return_std``
        interval : array of shape (n_bags, 2), if ``return_interval``
            Lower and upper end. With several classes ``std`` and ``interval`` have an axis for
            the classes after that for the bags.
        """
        return self._proba(bags, "bags", None, return_std, return_interval)

    def predict_proba_instances(
        self,
        bags: BagsLike,
        return_std: bool = False,
        return_interval: float | None = None,
        question: Question | None = None,
    ) -> Floats | tuple[Floats, ...]:
        """Probability of the classes for each instance; uncertainty as for `predict_proba`.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays, or 3-d array
        return_std : bool, default=False
        return_interval : float or None, default=None
            As for `predict_proba`.
        question : {"share", "alone"} or None, default=None
            What is asked of an instance. ``share``, the default of a calibrated model: is it one
            of those that made its bag positive? That takes the bag into account, and what
            held-out positive and negative bags have in common. ``alone``: would a bag of this
            instance alone be positive?

        Returns
        -------
        p : array of shape (n_instances, n_classes)
        std : array of shape (n_instances,) or (n_instances, n_classes)
            With ``return_std``.
        interval : array of shape (n_instances, 2) or (n_instances, n_classes, 2)
            With ``return_interval``.
        """
        return self._proba(bags, "instances", question, return_std, return_interval)

    def predict_positive_fraction(
        self,
        bags: BagsLike,
        return_std: bool = False,
        return_interval: float | None = None,
        question: Question | None = None,
    ) -> Floats | tuple[Floats, ...]:
        """Expected share of positive instances in each bag, of every class with several.

        The mean of `predict_proba_instances` over a bag; its standard deviation and interval are
        those of the share over draws of the latent function.

        Returns
        -------
        share : array of shape (n_bags,), or (n_bags, n_classes)
        """
        return self._proba(bags, "fractions", question, return_std, return_interval)


def _squeezed(x: Floats) -> Floats:
    """Without the axis of classes, the first, where two classes have one function."""
    return x[0] if len(x) == 1 else x
