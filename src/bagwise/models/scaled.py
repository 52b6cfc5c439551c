"""Models that scale the features themselves, as the first thing they do with checked bags."""

from __future__ import annotations

from dataclasses import dataclass

from bagwise.bags import Bags, BagsLike
from bagwise.models.base import BagClassifier
from bagwise.models.parameters import SCALES, parameter
from bagwise.models.scaling import Scale, learn_scaling


@dataclass(kw_only=True, eq=False, repr=False)
class ScalesFeatures(BagClassifier):
    """A bag classifier with a ``scale`` parameter, learned from the training bags.

    Attributes
    ----------
    scaling_ : FeatureScaling
        What the features go through; ``scaling_(X)`` scales rows, ``scaling_.undo`` goes back.
    """

    scale: Scale = parameter("feature", *SCALES)

    def _learn_preparation(self, bags: Bags) -> Bags:
        self.scaling_ = learn_scaling(bags.instances, self.scale)
        return self._scaled(bags)

    def _validate_predict(self, bags: BagsLike) -> Bags:
        """Check that the model is fitted and the bags fit it, and scale them."""
        return self._scaled(super()._validate_predict(bags))

    def _scaled(self, bags: Bags) -> Bags:
        return bags if self.scale is None else bags.map(self.scaling_.__call__)
