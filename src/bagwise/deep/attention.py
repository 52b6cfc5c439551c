"""Attention networks over bags as scikit-learn estimators.

`AttentionFeatures` hands the learned instance features to any model downstream, so
``make_pipeline(AttentionFeatures(), VGPMIL())`` is the architecture of section 6.3 of the
psi-VGPMIL paper; `AttentionMIL` is the network's own classifier (AttCNN, ABMIL).
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags, BagsLike, InstanceLabels, check_bags
from bagwise.core import segments
from bagwise.models.base import BagClassifier, Constraints, TrainingData, two_probabilities
from bagwise.models.execution import Execution, resolve

if TYPE_CHECKING:
    from types import ModuleType

    import torch

    from bagwise.core.arrays import Bools, Floats, Ints, RandomState, Reals
    from bagwise.deep.network import TrainingOptions


_CONSTRAINTS: Constraints = {
    "backbone": [
        StrOptions({"small-cnn", "mlp", "auto"}),
        HasMethods(["forward", "state_dict"]),
    ],
    "n_features": [Interval(Integral, 1, None, closed="left")],
    "attention_size": [Interval(Integral, 1, None, closed="left")],
    "image_shape": [tuple, list, None],
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "weight_decay": [Interval(Real, 0, None, closed="left")],
    "batch_size": [Interval(Integral, 1, None, closed="left")],
    "max_epochs": [Interval(Integral, 1, None, closed="left")],
    "validation_fraction": [Interval(Real, 0, 1, closed="left")],
    "patience": [Interval(Integral, 1, None, closed="left")],
    "execution": "no_validation",  # `resolve` says what is wrong
    "mixed_precision": ["boolean"],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
}


class _AttentionBase(BaseEstimator):
    """Parameters, training and weights that the transformer and the classifier share."""

    _parameter_constraints: ClassVar[Constraints] = _CONSTRAINTS

    def __init__(
        self,
        backbone: str | torch.nn.Module = "auto",
        *,
        n_features: int = 32,
        attention_size: int = 64,
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
        self.attention_size = attention_size
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

    def _train(self, data: TrainingData) -> None:
        """Train the network on validated bags and keep its weights as safetensors bytes."""
        import torch
        from safetensors.torch import save

        from bagwise.deep import network as net

        self._device()
        X = self._images(data.bags)
        rng = check_random_state(self.random_state)
        seed = int(rng.randint(2**31 - 1))
        held_out = _hold_out(data.y, self.validation_fraction, rng)
        # The caller's random stream is left as it was.
        with torch.random.fork_rng(devices=[]), _Progress(self) as report:
            torch.manual_seed(seed)
            network = self._build(X, net.input_stats(X))
            network, history = net.train(
                network, X, data.bags.offsets, data.y, held_out, self._options(net, seed, report)
            )
        self.weights_ = save({k: v.contiguous().cpu() for k, v in network.state_dict().items()})
        self.instance_shape_ = X.shape[1:]
        self.held_out_ = held_out
        self.loss_history_ = np.array([h[0] for h in history])
        self.validation_loss_history_ = np.array([h[1] for h in history])
        self.n_iter_ = len(history)

    def _options(self, net: ModuleType, seed: int, report: Any) -> TrainingOptions:
        return net.TrainingOptions(
            self.learning_rate,
            self.weight_decay,
            self.batch_size,
            self.max_epochs,
            self.patience,
            self._device(),
            self.mixed_precision,
            seed,
            report,
        )

    def _device(self) -> str:
        """The torch device to work on; a missing GPU is an error."""
        execution = resolve(self.execution).restricted(("device",), type(self).__name__)
        return execution.torch_device(None) or "cpu"

    def _images(self, bags: Bags) -> Reals:
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
        if self.backbone == "mlp" and X.ndim == 4:
            X = X.reshape(len(X), -1)
        return X

    def _build(
        self, X: Reals, stats: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> torch.nn.Module:
        """An untrained network for instances like ``X``, which standardises by ``stats``."""
        from bagwise.deep.network import build

        return build(X, self.backbone, self.n_features, self.attention_size, stats)

    def _network(self, X: Reals) -> torch.nn.Module:
        """The trained network, rebuilt from its weights."""
        from safetensors.torch import load

        if X.shape[1:] != tuple(self.instance_shape_):
            raise ValueError(
                f"instances have shape {X.shape[1:]}; the network was trained on "
                f"{tuple(self.instance_shape_)}."
            )
        network = self._build(X[:1])
        network.load_state_dict(load(self.weights_))
        return network.eval()

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

    def _features(self, bags: Bags) -> tuple[torch.nn.Module, torch.Tensor]:
        """The network and the features of the instances."""
        from bagwise.deep.network import instance_features

        X = self._images(bags)
        network = self._network(X)
        return network, instance_features(network, X, self._device())


class AttentionFeatures(_AttentionBase, TransformerMixin):
    """Instance features from an attention network trained on bag labels.

    Parameters
    ----------
    backbone : {"auto", "small-cnn", "mlp"} or torch module
        What turns an instance into features; "auto" is a small CNN for images and an MLP for
        vectors. A module of your own is copied, and trained with the rest.
    n_features : int
        Features per instance handed on.
    attention_size : int
        Width of the gated attention.
    image_shape : tuple, optional
        (H, W) or (C, H, W): reshape flat features into images. Bags of images need none.
    learning_rate, weight_decay, batch_size, max_epochs
        Of AdamW; a batch is so many bags, of any sizes.
    validation_fraction, patience
        Share of the training bags held out for early stopping, and epochs to wait. These bags
        also keep models that come after in a pipeline from being too sure; see `fit_transform`.
    execution : Execution or {"cpu", "cuda"}, optional
        Where the network runs; see `Execution`, of which ``device`` counts here. A missing GPU is
        an error.
    mixed_precision : bool
        bfloat16 in the backbone.
    random_state : int, RandomState or None
        On the CPU a seed gives the same network again.
    verbose : int
        Show a progress bar with the losses.

    Attributes
    ----------
    weights_ : bytes, the weights in safetensors format
    held_out_ : mask of the training bags that were kept for early stopping
    loss_history_, validation_loss_history_ : arrays, one entry per epoch
    n_iter_ : int, epochs run

    Examples
    --------
    >>> from bagwise.datasets import load_digit_bags
    >>> from bagwise.deep import AttentionFeatures
    >>> bags, y = load_digit_bags(n_bags=40, return_X_y=True)
    >>> features = AttentionFeatures(n_features=8, image_shape=(8, 8), max_epochs=2, random_state=0)
    >>> features.fit_transform(bags, y).n_features
    8
    """

    def fit(self, bags: BagsLike, y: ArrayLike) -> AttentionFeatures:
        """Train the network on bag labels."""
        data = _Validator(self).validated(bags, y)
        self.n_features_in_ = data.bags.n_features
        self._train(data)
        return self

    def fit_transform(self, bags: BagsLike, y: ArrayLike) -> Bags:
        """Train the network, and the features of the bags it was trained with.

        The network tells the bags it learned from apart better than new ones, and a model that
        calibrates itself on them would be too sure. The column ``held_out`` marks the instances
        of the others, which tell it (`VGPMIL` and its relatives) by how much.
        """
        features = self.fit(bags, y).transform(bags)
        return features.with_columns(held_out=segments.spread(self.held_out_, features.offsets))

    def transform(self, bags: BagsLike) -> Bags:
        """Instance features, as Bags with the same names and columns."""
        check_is_fitted(self)
        bags = check_bags(
            bags, n_features=self.n_features_in_, allow_nd=True, estimator="AttentionFeatures"
        )
        _, h = self._features(bags)
        return bags.map(lambda _: h.numpy().astype(np.float64))


class _Validator(BagClassifier):
    """Borrows the classifiers' validation for a transformer that trains on bag labels."""

    _allow_nd = True

    def __init__(self, owner: AttentionFeatures | None = None) -> None:
        self.owner = owner

    def validated(self, bags: BagsLike, y: ArrayLike) -> TrainingData:
        assert self.owner is not None  # None only in a clone
        self.owner._validate_params()
        return self._validate_fit(bags, y)


class AttentionMIL(_AttentionBase, BagClassifier):
    """Attention-based MIL (AttCNN, ABMIL): a strong bag classifier.

    It has no ``_instances`` methods on purpose: attention weights say what the network looked
    at, they are not probabilities of being positive, and in a negative bag they still sum to
    one. `attention_weights` gives them under their own name.

    Parameters are those of `AttentionFeatures`.

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
    >>> from bagwise.deep import AttentionMIL
    >>> bags, y = load_digit_bags(n_bags=40, return_X_y=True)
    >>> model = AttentionMIL(image_shape=(8, 8), max_epochs=2, random_state=0).fit(bags, y)
    >>> model.predict_proba(bags).shape
    (40, 2)
    """

    _allow_nd = True

    def fit(
        self, bags: BagsLike, y: ArrayLike, instance_labels: InstanceLabels = None
    ) -> AttentionMIL:
        """Train the network; it learns from bag labels only and checks instance labels."""
        self._train(self._validate_fit(bags, y, instance_labels))
        return self

    def decision_function(self, bags: BagsLike) -> Floats:
        """Log-odds of each bag."""
        return self._pool(bags)[0]

    def predict_proba(self, bags: BagsLike) -> Floats:
        """Class probabilities of each bag."""
        return two_probabilities(self.decision_function(bags))

    def attention_weights(self, bags: BagsLike) -> Floats:
        """Attention of each instance; sums to one in every bag. Not a probability."""
        return self._pool(bags)[1]

    def _pool(self, bags: BagsLike) -> tuple[Floats, Floats]:
        from bagwise.deep.network import bag_logits

        bags = self._validate_predict(bags)
        network, h = self._features(bags)
        return bag_logits(network, h, bags.offsets)


def _hold_out(y: Ints, fraction: float, rng: np.random.RandomState) -> Bools:
    """Mask of bags for early stopping: a share of each class, none where a class would empty."""
    mask = np.zeros(len(y), dtype=bool)
    for code in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == code))
        mask[members[: min(int(fraction * len(members)), len(members) - 1)]] = True
    return mask


class _Progress:
    """A progress bar with the losses when verbose, else nothing."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __enter__(self) -> Any:
        if not self.model.verbose:
            return lambda epoch, loss, valid: None
        from rich.progress import Progress

        self.bar = Progress(transient=True)
        self.bar.start()
        task = self.bar.add_task("training", total=self.model.max_epochs)

        def report(epoch: int, loss: float, valid: float) -> None:
            text = f"loss {loss:.3f}, held out {valid:.3f}"
            self.bar.update(task, completed=epoch + 1, description=text)

        return report

    def __exit__(self, *exc: object) -> None:
        if self.model.verbose:
            self.bar.stop()
