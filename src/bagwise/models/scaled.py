"""Models that scale the features themselves, as the first thing they do with checked bags."""

from __future__ import annotations

from dataclasses import dataclass

from numpy.typing import ArrayLike

from bagwise.bags import Bags, BagsLike, InstanceLabels
from bagwise.models.base import BagClassifier, TrainingData
from bagwise.models.parameters import SCALES, parameter
from bagwise.models.scaling import Scale, learn_scaling


@dataclass(kw_only=True, eq=False, repr=False)
class ScalesFeatures(BagClassifier):
    """A bag classifier with a ``scale`` parameter, learnt from the training bags.

    Attributes
    ----------
    scaling_ : FeatureScaling
        What the features go through; ``scaling_(X)`` scales rows, ``scaling_.undo`` goes back.
    """

    scale: Scale = parameter("feature", *SCALES)

    def _validate_fit(
        self, bags: BagsLike, y: ArrayLike, instance_labels: InstanceLabels = None
    ) -> TrainingData:
        """Check parameters and data, learn the scaling, and apply it."""
        data = super()._validate_fit(bags, y, instance_labels)
        self.scaling_ = learn_scaling(data.bags.instances, self.scale)
        return data._replace(bags=self._scaled(data.bags))

    def _validate_predict(self, bags: BagsLike) -> Bags:
        """Check that the model is fitted and the bags fit it, and scale them."""
        return self._scaled(super()._validate_predict(bags))

    def _scaled(self, bags: Bags) -> Bags:
        return bags if self.scale is None else bags.map(self.scaling_.__call__)

    def _check_stream_scale(self) -> None:
        if self.scale is not None:
            raise ValueError(
                f"a stream needs scale=None: scale={self.scale!r} is taken from all training bags "
                "at once, in fit. Scale the features before they enter the stream."
            )
