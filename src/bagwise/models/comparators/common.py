"""What the comparators share: scaling inside the model, one ``fit``, calibrated scores.

A comparator learns from scaled bags in ``_learn`` and scores scaled bags. Scaling, validation,
known instance labels and calibration are done here, once for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.optimize import minimize

from bagwise.bags import Bags
from bagwise.core.arrays import Floats, Ints, to_numpy
from bagwise.models.base import TrainingData
from bagwise.models.calibration.calibrated import BestInstanceClassifier, CalibratedClassifier
from bagwise.models.embedded import make_examples
from bagwise.models.held_out import splits
from bagwise.models.scaling import ScalesFeatures

# The baseline methods by the names that their classes declare.
BASELINES: dict[str, type[Comparator]] = {}


def minimised(
    loss: Callable[..., tuple[float, Floats]], start: Floats, max_iter: int, *given: object
) -> tuple[Floats, float, int]:
    """Where L-BFGS ends on a loss with its gradient, the loss there, and the steps."""
    options = {"maxiter": max_iter}
    end = minimize(loss, start, args=given, jac=True, method="L-BFGS-B", options=options)
    return end.x, float(end.fun), max(1, int(end.nit))


@dataclass(kw_only=True, eq=False, repr=False)
class Comparator(ScalesFeatures, CalibratedClassifier):
    """A baseline method with ``scale``, ``calibrate``, ``calibration`` and ``cv``.

    A subclass implements ``_learn(bags, y)`` and ``_raw_scores(bags)``, both on scaled bags, and
    declares its name: ``class APR(InstanceComparator, name="apr")``.
    """

    # What a method claims, as in `bagwise.models.registry.Entry`.
    assumption: ClassVar[Literal["standard", "embedding"]] = "embedding"

    def __init_subclass__(cls, name: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if name is not None:
            BASELINES[name] = cls

    def _fit(self, data: TrainingData) -> None:
        self._learn(data.bags, data.y)

    def _learn(self, bags: Bags, y: Ints) -> None:
        """Learn from scaled bags and their codes 0 and 1."""
        raise AttributeError(f"{type(self).__name__} does not learn")

    def _scaled(self, bags: Bags) -> Bags:
        """Scaled instances as one array in memory, in float64."""
        scaled = super()._scaled(bags)
        return Bags(to_numpy(scaled.instances[:]), scaled.offsets)


class InstanceComparator(BestInstanceClassifier, Comparator):
    """A comparator that scores instances; a bag scores as its best one.

    A subclass implements ``_learn(bags, y)`` and ``_instance_scores(X)`` on scaled instances.
    """

    assumption = "standard"

    def _instance_scores(self, X: Floats) -> Floats:
        """Score of each scaled instance; > 0 means positive."""
        raise AttributeError(f"{type(self).__name__} has no scores of instances")

    def _raw_instance_scores(self, bags: Bags) -> Floats:
        return self._instance_scores(bags.instances)

    def _fit(self, data: TrainingData) -> None:
        """Learn from the bags, and from every labelled instance of a positive bag as one more."""
        examples = make_examples(data)
        rows = data.bags.instances
        if len(examples) > len(data.bags):
            rows = rows[examples.rows]
        self._learn(Bags(rows, examples.offsets), (examples.signs > 0).astype(np.int64))


class PairwiseComparator(Comparator):
    """A comparator that needs only a matrix between bags: distances or a kernel.

    A subclass implements ``_remember(bags)``, which keeps what later comparisons need,
    ``_compare(bags)``, the matrix of bags by training bags, ``_learn_from(matrix, y)`` and
    ``_score(matrix)``. The inner cross-validation of the calibration then takes rows and
    columns of one matrix instead of making a new one per fold.
    """

    def _remember(self, bags: Bags) -> None:
        """Keep the training bags in the form that `_compare` needs."""
        raise AttributeError(f"{type(self).__name__} remembers no bags")

    def _compare(self, bags: Bags) -> Floats:
        """Matrix of scaled bags by training bags."""
        raise AttributeError(f"{type(self).__name__} compares no bags")

    def _learn_from(self, matrix: Floats, y: Ints) -> Any:
        """A rule learned from the square matrix of training bags."""
        raise AttributeError(f"{type(self).__name__} does not learn")

    def _score(self, rule: Any, matrix: Floats) -> Floats:
        """Scores by the rule, of rows that hold a bag's values to the bags of the rule."""
        raise AttributeError(f"{type(self).__name__} has no scores")

    def _learn(self, bags: Bags, y: Ints) -> None:
        self._remember(bags)
        self._training_matrix = self._compare(bags)
        self.rule_ = self._learn_from(self._training_matrix, y)

    def _calibrate(self, data: TrainingData, bag_weights: Floats | None = None) -> None:
        super()._calibrate(data, bag_weights)
        del self._training_matrix  # only the calibration needs it again

    def _held_out_scores(self, data: TrainingData, bag_weights: Floats | None = None) -> Floats:
        scores = np.empty(len(data.y))
        for train, test in splits(data.y, self.cv):
            # A fold's matrix is a part of the matrix of all training bags.
            rule = self._learn_from(self._training_matrix[np.ix_(train, train)], data.y[train])
            scores[test] = self._score(rule, self._training_matrix[np.ix_(test, train)])
        return scores

    def _raw_scores(self, bags: Bags) -> Floats:
        return self._score(self.rule_, self._compare(bags))
