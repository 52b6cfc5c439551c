"""Networks over bags as scikit-learn estimators: attention, pooling, and two streams.

`AttentionFeatures` hands the learned instance features to any model downstream, so
``make_pipeline(AttentionFeatures(), VGPMIL())`` is the architecture of section 6.3 of
[CastroMacias2024]; `AttentionMIL` is the network's own classifier (AttCNN, ABMIL). Mean and maximum
pooling are MI-Net of Wang, Yan, Tang, Bai and Liu, "Revisiting multiple instance neural networks"
(2018); DSMIL is Li, Li and Eliceiri, "Dual-stream multiple instance learning network for whole
slide image classification with self-supervised contrastive learning" (2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags, BagsLike, InstanceLabels, check_bags
from bagwise.core import segments
from bagwise.core.arrays import Floats, RandomState, Reals
from bagwise.core.progress import progress
from bagwise.models.base import BagClassifier, InstanceClassifier, TrainingData, two_probabilities
from bagwise.models.execution import Execution, resolve
from bagwise.models.held_out import leave_out
from bagwise.models.parameters import (
    AT_LEAST_1,
    NOT_NEGATIVE,
    POSITIVE,
    HasParameters,
    parameter,
)

if TYPE_CHECKING:
    import torch

    from bagwise.deep.network import BagNetwork


@dataclass(kw_only=True, eq=False, repr=False)
class _TrainsNetwork(HasParameters):
    """Parameters, training and weights that the transformer and the classifiers share."""

    backbone: str | torch.nn.Module = parameter(
        "auto",
        StrOptions({"small-cnn", "mlp", "auto"}),
        HasMethods(["forward", "state_dict"]),
    )
    n_features: int = parameter(32, AT_LEAST_1)
    image_shape: tuple[int, ...] | None = parameter(None, tuple, list, None)
    learning_rate: float = parameter(1e-3, POSITIVE)
    weight_decay: float = parameter(1e-4, NOT_NEGATIVE)
    batch_size: int = parameter(16, AT_LEAST_1)
    max_epochs: int = parameter(40, AT_LEAST_1)
    validation_fraction: float = parameter(0.15, Interval(Real, 0, 1, closed="left"))
    patience: int = parameter(6, AT_LEAST_1)
    execution: Execution | str | None = parameter(None)  # validated by `resolve`
    mixed_precision: bool = parameter(False, "boolean")
    random_state: RandomState = parameter(None, "random_state")
    verbose: int = parameter(0, "verbose")

    # The class of the network in `network`, and the parameter beside ``n_features`` that it takes.
    _network: ClassVar[tuple[str, str]]

    def _train(self, data: TrainingData) -> None:
        """Train the network on validated bags and keep its weights as safetensors bytes."""
        import torch
        from safetensors.torch import save

        from bagwise.deep import network as net

        device = self._device()
        X = self._images(data.bags)
        rng = check_random_state(self.random_state)
        seed = int(rng.randint(2**31 - 1))
        self.held_out_ = leave_out(data.y, self.validation_fraction, rng)
        # The caller's random stream is left as it was.
        name = type(self).__name__
        with (
            torch.random.fork_rng(devices=[]),
            progress(name, self.max_epochs, self.verbose) as show,
        ):
            torch.manual_seed(seed)
            network = self._build(X, net.input_stats(X))
            training = net.NetworkTraining(
                network,
                X,
                data.bags.offsets,
                data.y,
                self.held_out_,
                device,
                self.get_params(deep=False),
            )
            history = training.run(seed, show)
        self.weights_ = save({k: v.contiguous().cpu() for k, v in network.state_dict().items()})
        self.instance_shape_ = X.shape[1:]
        self.loss_history_, self.validation_loss_history_ = np.array(history).T
        self.n_iter_ = len(history)

    def _device(self) -> str:
        """The torch device to work on; a missing GPU is an error."""
        execution = resolve(self.execution).restricted(("device",), type(self).__name__)
        return execution.torch_device(None) or "cpu"

    def _images(self, bags: Bags) -> Reals:
        """Instances as the network sees them: vectors [N, D] or images [N, C, H, W]."""
        from bagwise.deep.network import as_images

        shape = None if self.image_shape is None else tuple(self.image_shape)
        if shape is not None and int(np.prod(shape)) != bags.n_features:
            raise ValueError(
                f"image_shape={shape} needs {int(np.prod(shape))} features per instance; the "
                f"bags have {bags.n_features}."
            )
        X = as_images(bags.instances[:], shape)
        if X.ndim not in (2, 4):
            raise ValueError(
                "instances must be vectors, gray images (H, W) or images (C, H, W); got shape "
                f"{tuple(bags.instances.shape[1:])}."
            )
        if X.ndim == 2 and self.backbone == "small-cnn":
            raise ValueError(
                "backbone='small-cnn' needs images; give image_shape=(height, width), or "
                "use backbone='mlp' for vectors."
            )
        return X.reshape(len(X), -1) if self.backbone == "mlp" else X

    def _build(
        self, X: Reals, stats: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> BagNetwork:
        """An untrained network for instances like ``X``, which standardises by ``stats``."""
        from bagwise.deep import network as net

        name, last = self._network
        backbone = net.build_backbone(X, self.backbone, self.n_features, stats)
        return getattr(net, name)(backbone, self.n_features, getattr(self, last))

    def _features(self, bags: Bags) -> tuple[BagNetwork, torch.Tensor]:
        """The trained network, rebuilt from its weights, and the features of the instances."""
        from safetensors.torch import load

        from bagwise.deep.network import instance_features

        X = self._images(bags)
        if X.shape[1:] != tuple(self.instance_shape_):
            raise ValueError(
                f"instances have shape {X.shape[1:]}; the network was trained on "
                f"{tuple(self.instance_shape_)}."
            )
        network = self._build(X[:1])
        network.load_state_dict(load(self.weights_))
        return network, instance_features(network, X, self._device())

    def __bagwise_state__(self) -> dict[str, object]:
        """What `bagwise.save` stores; a named backbone is rebuilt from its weights."""
        if not isinstance(self.backbone, str):
            raise ValueError(
                f"{type(self).__name__} cannot be saved: its backbone is a torch module "
                f"({type(self.backbone).__name__}), whose code a model file cannot hold. Use a "
                "named backbone, or keep `weights_` (safetensors) beside your own code."
            )
        return dict(vars(self))

    @classmethod
    def __bagwise_restore__(cls, state: dict[str, Any]) -> Self:
        model = cls()
        model.__dict__.update(state)
        return model


class _NetworkClassifier(_TrainsNetwork, BagClassifier):
    """A network as a classifier of bags."""

    _allow_nd = True

    def fit(self, bags: BagsLike, y: ArrayLike, instance_labels: InstanceLabels = None) -> Self:
        """Train the network; it learns from bag labels only and checks instance labels."""
        self._train(self._validate_fit(bags, y, instance_labels))
        return self

    def decision_function(self, bags: BagsLike) -> Floats:
        """Log-odds of each bag.

        Returns
        -------
        scores : array of shape (n_bags,), or (n_bags, n_classes)
        """
        return self._pooled(bags)[0]

    def predict_proba(self, bags: BagsLike) -> Floats:
        """Class probabilities of each bag.

        Returns
        -------
        p : array of shape (n_bags, n_classes)
        """
        return two_probabilities(self.decision_function(bags))

    def _pooled(self, bags: BagsLike) -> tuple[Floats, Floats]:
        """Logits of the bags [B], and one number per instance [N]."""
        from bagwise.deep.network import pool

        bags = self._validate_predict(bags)
        network, h = self._features(bags)
        return pool(network, h, bags.offsets)


@dataclass(kw_only=True, eq=False, repr=False)
class _Attends(_TrainsNetwork):
    """A network with gated attention."""

    attention_size: int = parameter(64, AT_LEAST_1)

    _network = "AttentionNetwork", "attention_size"


class AttentionMIL(_Attends, _NetworkClassifier):
    """Attention-based MIL (AttCNN, ABMIL): a strong bag classifier.

    It has no ``_instances`` methods on purpose: attention weights say what the network looked
    at, they are not probabilities of being positive, and in a negative bag they still sum to
    one. `attention_weights` gives them under their own name.

    Parameters and attributes are those of `AttentionFeatures`, and it has ``classes_``.

    See Also
    --------
    AttentionFeatures, DSMIL

    References
    ----------
    [Ilse2018]_

    Examples
    --------
    >>> from bagwise import datasets, deep
    >>> bags, y = datasets.load_digit_bags(n_bags=40, return_X_y=True)
    >>> model = deep.AttentionMIL(image_shape=(8, 8), max_epochs=2, random_state=0).fit(bags, y)
    >>> float(model.attention_weights(bags).sum().round(3))  # one per bag
    40.0
    """

    def attention_weights(self, bags: BagsLike) -> Floats:
        """Attention of each instance; sums to one in every bag. Not a probability.

        Returns
        -------
        weights : array of shape (n_instances,)
        """
        return self._pooled(bags)[1]


class AttentionFeatures(_Attends, TransformerMixin):
    """Instance features from an attention network trained on bag labels.

    Parameters
    ----------
    backbone : {"auto", "small-cnn", "mlp"} or torch module, default="auto"
        What turns an instance into features; "auto" is a small CNN for images and an MLP for
        vectors. A module of your own is copied, and trained with the rest.
    n_features : int, default=32
        Features per instance handed on.
    attention_size : int, default=64
        Width of the gated attention.
    image_shape : tuple or None, default=None
        (H, W) or (C, H, W): reshape flat features into images. Bags of images need none.
    learning_rate, weight_decay : float, default=0.001, 0.0001
    batch_size, max_epochs : int, default=16, 40
        Of AdamW; a batch is so many bags, of any sizes.
    validation_fraction, patience : float, int, default=0.15, 6
        Share of the training bags held out for early stopping, and epochs to wait. These bags
        also keep models that come after in a pipeline from being over-confident; see
        `fit_transform`.
    execution : Execution or {"cpu", "cuda"} or None, default=None
        Where the network runs; see `Execution`, of which ``device`` counts here. A missing GPU is
        an error.
    mixed_precision : bool, default=False
        bfloat16 in the backbone.
    random_state : int, RandomState or None, default=None
        On the CPU a seed gives the same network again.
    verbose : int, default=0
        Show a progress bar with the losses.

    Attributes
    ----------
    weights_ : bytes, the weights in safetensors format
    held_out_ : mask of the training bags that were kept for early stopping
    loss_history_, validation_loss_history_ : arrays, one entry per epoch
    n_iter_ : int, epochs run

    See Also
    --------
    AttentionMIL, bagwise.make_pipeline

    References
    ----------
    [Ilse2018]_, [CastroMacias2024]_

    Examples
    --------
    >>> from bagwise import datasets, deep
    >>> bags, y = datasets.load_digit_bags(n_bags=40, return_X_y=True)
    >>> features = deep.AttentionFeatures(n_features=8, image_shape=(8, 8), max_epochs=2)
    >>> features.fit_transform(bags, y).n_features
    8
    """

    def fit(self, bags: BagsLike, y: ArrayLike) -> AttentionFeatures:
        """Train the network on bag labels."""
        classifier = AttentionMIL(**self.get_params(deep=False)).fit(bags, y)
        # The weights, their history and the number of features; a transformer has no classes.
        self.__dict__.update({k: v for k, v in vars(classifier).items() if k.endswith("_")})
        del self.classes_
        return self

    def fit_transform(self, bags: BagsLike, y: ArrayLike) -> Bags:
        """Train the network, and the features of the bags it was trained with.

        The network separates the bags it learned from better than new ones, and a model that
        calibrates itself on them would be over-confident. The column ``held_out`` marks the
        instances of the other bags, by which the VGPMIL family corrects its slope.
        """
        features = self.fit(bags, y).transform(bags)
        return features.with_columns(held_out=segments.spread(self.held_out_, features.offsets))

    def transform(self, bags: BagsLike) -> Bags:
        """Instance features, as Bags with the same names and columns.

        Returns
        -------
        bags : Bags with instances of shape (n_instances, n_features)
        """
        check_is_fitted(self)
        bags = check_bags(
            bags, n_features=self.n_features_in_, allow_nd=True, estimator="AttentionFeatures"
        )
        _, h = self._features(bags)
        return bags.map(lambda _: h.numpy().astype(np.float64))


class _FeaturePooling(_NetworkClassifier):
    """A network that pools each feature over the bag."""

    _statistic: ClassVar[str]

    _network = "PoolingNetwork", "_statistic"


class MeanPoolingMIL(_FeaturePooling):
    """Network that averages instance features over the bag (MI-Net with mean pooling).

    The average dilutes a rare positive instance, and it does not rank instances.

    Parameters are those of `AttentionFeatures` without ``attention_size``, attributes those of
    `AttentionMIL`.

    See Also
    --------
    MaxPoolingMIL, AttentionMIL

    References
    ----------
    [Wang2018]_

    Examples
    --------
    >>> from bagwise import datasets, deep
    >>> bags, y = datasets.load_digit_bags(n_bags=40, return_X_y=True)
    >>> model = deep.MeanPoolingMIL(image_shape=(8, 8), max_epochs=2, random_state=0).fit(bags, y)
    >>> model.predict_proba(bags).shape
    (40, 2)
    """

    _statistic = "mean"


class MaxPoolingMIL(_FeaturePooling):
    """Network that takes the largest value of each feature over the bag (MI-Net, max pooling).

    Each feature may come from another instance, so it does not rank instances.

    Parameters and attributes are those of `MeanPoolingMIL`.

    See Also
    --------
    MeanPoolingMIL, AttentionMIL

    References
    ----------
    [Wang2018]_

    Examples
    --------
    >>> from bagwise import datasets, deep
    >>> bags, y = datasets.load_digit_bags(n_bags=40, return_X_y=True)
    >>> model = deep.MaxPoolingMIL(image_shape=(8, 8), max_epochs=2)
    >>> model.fit(bags, y).decision_function(bags).shape
    (40,)
    """

    _statistic = "max"


@dataclass(kw_only=True, eq=False, repr=False)
class DSMIL(_NetworkClassifier, InstanceClassifier):
    """Dual-stream network: an instance classifier, and attention around its best instance.

    The first stream scores instances; the best of a bag is critical. The second averages all
    instances by their similarity to the critical one. The bag's log-odds are the mean of the best
    score and of the second stream. The instance scores are those of the first stream, trained
    only through the best instance of each bag.

    Parameters are those of `AttentionFeatures`, attributes those of `AttentionMIL`.

    See Also
    --------
    AttentionMIL

    References
    ----------
    [LiLiEliceiri2021]_

    Notes
    -----
    Features come from the bags themselves; the paper's self-supervised pretraining is left to
    the backbone you give.

    Examples
    --------
    >>> from bagwise import datasets, deep
    >>> bags, y = datasets.load_digit_bags(n_bags=40, return_X_y=True)
    >>> model = deep.DSMIL(image_shape=(8, 8), max_epochs=2, random_state=0).fit(bags, y)
    >>> model.decision_function_instances(bags).shape == (bags.n_instances,)
    True
    """

    attention_size: int = parameter(64, AT_LEAST_1)

    _network = "DualStreamNetwork", "attention_size"

    def decision_function_instances(self, bags: BagsLike) -> Floats:
        """Score of each instance by the first stream.

        Returns
        -------
        scores : array of shape (n_instances,), or (n_instances, n_classes)
        """
        return self._pooled(bags)[1]

    def predict_proba_instances(self, bags: BagsLike) -> Floats:
        """Sigmoid of the first stream's scores; trained on bag labels only.

        Returns
        -------
        p : array of shape (n_instances, n_classes)
        """
        return two_probabilities(self.decision_function_instances(bags))
