"""Pooling networks over bags as estimators: mean, maximum, and DSMIL.

Mean and maximum pooling are MI-Net of Wang, Yan, Tang, Bai and Liu, "Revisiting multiple instance
neural networks" (2018); DSMIL is Li, Li and Eliceiri, "Dual-stream multiple instance learning
network for whole slide image classification with self-supervised contrastive learning" (2021).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from bagwise.deep.attention import _CONSTRAINTS, _AttentionBase
from bagwise.models.base import BagClassifier, Constraints, InstanceClassifier, two_probabilities
from bagwise.models.execution import Execution

if TYPE_CHECKING:
    import torch
    from numpy.typing import ArrayLike

    from bagwise.bags import BagsLike, InstanceLabels
    from bagwise.core.arrays import Floats, RandomState, Reals


class _PoolingBase(_AttentionBase, BagClassifier):
    """What the pooling networks share: training, and logits of bags and instances."""

    _allow_nd = True

    def fit(self, bags: BagsLike, y: ArrayLike, instance_labels: InstanceLabels = None) -> Self:
        """Train the network; it learns from bag labels only and checks instance labels."""
        self._train(self._validate_fit(bags, y, instance_labels))
        return self

    def decision_function(self, bags: BagsLike) -> Floats:
        """Log-odds of each bag."""
        return self._logits(bags)[0]

    def predict_proba(self, bags: BagsLike) -> Floats:
        """Class probabilities of each bag."""
        return two_probabilities(self.decision_function(bags))

    def _logits(self, bags: BagsLike) -> tuple[Floats, Floats]:
        from bagwise.deep.network import bag_logits

        bags = self._validate_predict(bags)
        network, h = self._features(bags)
        return bag_logits(network, h, bags.offsets)


class _FeaturePooling(_PoolingBase):
    """A network that pools features and needs no attention."""

    _how: ClassVar[str]
    _parameter_constraints: ClassVar[Constraints] = {
        name: rule for name, rule in _CONSTRAINTS.items() if name != "attention_size"
    }

    def __init__(
        self,
        backbone: str | torch.nn.Module = "auto",
        *,
        n_features: int = 32,
        image_shape: tuple[int, ...] | None = None,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-4,
        batch_size: int = 16,
        max_epochs: int = 40,
        validation_fraction: float = 0.15,
        patience: int = 6,
        execution: Execution | str | None = None,
        mixed_precision: bool = False,
        random_state: RandomState = None,
        verbose: int = 0,
    ) -> None:
        self.backbone = backbone
        self.n_features = n_features
        self.image_shape = image_shape
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.execution = execution
        self.mixed_precision = mixed_precision
        self.random_state = random_state
        self.verbose = verbose

    def _build(
        self, X: Reals, stats: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> torch.nn.Module:
        from bagwise.deep.network import build_backbone
        from bagwise.deep.pooling_network import PoolingNetwork

        body = build_backbone(X, self.backbone, self.n_features, stats)
        return PoolingNetwork(body, self.n_features, self._how)


class MeanPoolingMIL(_FeaturePooling):
    """Network that averages instance features over the bag (MI-Net with mean pooling).

    The average dilutes a rare positive instance, and it does not rank instances.

    Parameters
    ----------
    backbone, n_features, image_shape, learning_rate, weight_decay, batch_size, max_epochs,
    validation_fraction, patience, execution, mixed_precision, random_state, verbose
        As in `AttentionFeatures`.

    Attributes
    ----------
    weights_ : bytes, the weights in safetensors format
    held_out_ : mask of the training bags that were kept for early stopping
    loss_history_, validation_loss_history_ : arrays, one entry per epoch
    classes_ : the two bag classes
    n_iter_ : int, epochs run

    Examples
    --------
    >>> from bagwise.datasets import load_digit_bags
    >>> from bagwise.deep import MeanPoolingMIL
    >>> bags, y = load_digit_bags(n_bags=40, return_X_y=True)
    >>> model = MeanPoolingMIL(image_shape=(8, 8), max_epochs=2, random_state=0).fit(bags, y)
    >>> model.predict_proba(bags).shape
    (40, 2)
    """

    _how = "mean"


class MaxPoolingMIL(_FeaturePooling):
    """Network that takes the largest value of each feature over the bag (MI-Net, max pooling).

    Each feature may come from another instance, so it does not rank instances.

    Parameters
    ----------
    backbone, n_features, image_shape, learning_rate, weight_decay, batch_size, max_epochs,
    validation_fraction, patience, execution, mixed_precision, random_state, verbose
        As in `AttentionFeatures`.

    Attributes
    ----------
    weights_, held_out_, loss_history_, validation_loss_history_, classes_, n_iter_
        As in `MeanPoolingMIL`.

    Examples
    --------
    >>> from bagwise.datasets import load_digit_bags
    >>> from bagwise.deep import MaxPoolingMIL
    >>> bags, y = load_digit_bags(n_bags=40, return_X_y=True)
    >>> model = MaxPoolingMIL(image_shape=(8, 8), max_epochs=2, random_state=0).fit(bags, y)
    >>> model.decision_function(bags).shape
    (40,)
    """

    _how = "max"


class DSMIL(_PoolingBase, InstanceClassifier):
    """Dual-stream network: an instance classifier, and attention around its best instance.

    The first stream scores instances; the best of a bag is critical. The second averages all
    instances by their similarity to the critical one. The bag's log-odds are the mean of the best
    score and of the second stream. The instance scores are those of the first stream, trained
    only through the best instance of each bag.

    Parameters
    ----------
    backbone, n_features, attention_size, image_shape, learning_rate, weight_decay, batch_size,
    max_epochs, validation_fraction, patience, execution, mixed_precision, random_state, verbose
        As in `AttentionFeatures`.

    Attributes
    ----------
    weights_, held_out_, loss_history_, validation_loss_history_, classes_, n_iter_
        As in `MeanPoolingMIL`.

    Notes
    -----
    Features come from the bags themselves; the paper's self-supervised pretraining is left to
    the backbone you give.

    Examples
    --------
    >>> from bagwise.datasets import load_digit_bags
    >>> from bagwise.deep import DSMIL
    >>> bags, y = load_digit_bags(n_bags=40, return_X_y=True)
    >>> model = DSMIL(image_shape=(8, 8), max_epochs=2, random_state=0).fit(bags, y)
    >>> model.decision_function_instances(bags).shape == (bags.n_instances,)
    True
    """

    def _build(
        self, X: Reals, stats: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> torch.nn.Module:
        from bagwise.deep.network import build_backbone
        from bagwise.deep.pooling_network import DualStreamNetwork

        body = build_backbone(X, self.backbone, self.n_features, stats)
        return DualStreamNetwork(body, self.n_features, self.attention_size)

    def decision_function_instances(self, bags: BagsLike) -> Floats:
        """Score of each instance by the first stream."""
        return self._logits(bags)[1]

    def predict_proba_instances(self, bags: BagsLike) -> Floats:
        """Sigmoid of the first stream's scores; trained on bag labels only."""
        return two_probabilities(self.decision_function_instances(bags))
