"""Matplotlib pictures as ``Display`` objects in scikit-learn's style.

Each has ``from_estimator`` or ``from_predictions``, ``plot(ax=None)``, and afterwards ``ax_`` and
``figure_``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bagwise.bags import Bags
from bagwise.evaluate import reliability_curve
from bagwise.files.geojson import common_gap
from bagwise.models.pipeline import last_step

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bagwise.core.arrays import Column, Floats
    from bagwise.models.base import Model


_POSITIVE, _NEGATIVE, _ACCENT = "#b83a0e", "#2456a6", "#0f6b62"


def _axes(ax: Axes | None) -> Axes:
    import matplotlib.pyplot as plt

    return plt.subplots()[1] if ax is None else ax


def _instance_probabilities(model: Model, bags: Bags, bag: int) -> tuple[Floats, Floats | None]:
    """Probability and, where the model has one, standard deviation of a bag's instances."""
    from bagwise.report.predictions import predict_tables

    table = predict_tables(model, bags[bag : bag + 1]).instances
    if table is None:
        raise ValueError(f"{type(model).__name__} cannot rank instances.")
    if table["probability"].isna().any():
        raise ValueError(f"{type(model).__name__} gives no instance probabilities.")
    std = table["std"].to_numpy()
    return table["probability"].to_numpy(), None if np.isnan(std).any() else std


def _number(bags: Bags, bag: int | str) -> int:
    """Position of a bag given by number or by name."""
    if not isinstance(bag, str):
        return range(len(bags))[bag]
    positions = np.flatnonzero(bags.ids == bag)
    if len(positions) == 0:
        raise ValueError(f"there is no bag {bag!r}; the first is {bags.ids[0]!r}.")
    return int(positions[0])


class InstanceMapDisplay:
    """The instances of a bag where they lie, coloured by probability.

    Parameters
    ----------
    coords : array of shape (n, 2)
        Upper left corner of each patch.
    values : array of shape (n,)
        What to colour by.
    patch_size : float, optional
        Side of a patch; the commonest gap between neighbours by default.
    name : str, optional
        Title.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.report import InstanceMapDisplay
    >>> coords = np.array([[0, 0], [256, 0], [0, 256]])
    >>> display = InstanceMapDisplay(coords, [0.1, 0.9, 0.4]).plot()
    >>> display.patch_size_
    256.0
    """

    def __init__(
        self,
        coords: ArrayLike,
        values: ArrayLike,
        *,
        patch_size: float | None = None,
        name: str | None = None,
    ) -> None:
        self.coords = np.asarray(coords)
        self.values = np.asarray(values, dtype=float)
        self.patch_size = patch_size
        self.name = name

    @classmethod
    def from_estimator(
        cls,
        model: Model,
        bags: Bags,
        bag: int | str,
        *,
        ax: Axes | None = None,
        what: str = "probability",
    ) -> InstanceMapDisplay:
        """Plot a bag that carries ``coords``; ``what`` is "probability" or "std"."""
        if "coords" not in bags.columns:
            raise ValueError("the bags carry no 'coords'; add them with bags.with_columns.")
        i = _number(bags, bag)
        p, std = _instance_probabilities(model, bags, i)
        if what == "std" and std is None:
            raise ValueError(f"{type(model).__name__} gives no standard deviations.")
        rows = slice(int(bags.offsets[i]), int(bags.offsets[i + 1]))
        size = bags.columns.get("patch_size")
        display = cls(
            bags.columns["coords"][rows],
            p if std is None or what == "probability" else std,
            patch_size=None if size is None else float(size[rows.start]),
            name=str(bags.ids[i]),
        )
        top = 1.0 if what == "probability" else None
        return display.plot(ax, vmin=0.0, vmax=top, label=what)

    def plot(
        self, ax: Axes | None = None, *, cmap: str = "inferno_r", **options: Any
    ) -> InstanceMapDisplay:
        """Draw squares; ``vmin``, ``vmax`` and ``label`` set the colour bar."""
        from matplotlib.collections import PatchCollection
        from matplotlib.patches import Rectangle

        self.ax_ = _axes(ax)
        self.figure_ = self.ax_.figure
        self.patch_size_ = self.patch_size or common_gap(self.coords)
        squares = [
            Rectangle((x, y), self.patch_size_, self.patch_size_) for x, y in self.coords[:, :2]
        ]
        label = options.pop("label", "probability")
        drawn = PatchCollection(squares, cmap=cmap, linewidth=0)
        drawn.set_array(self.values)
        drawn.set_clim(options.pop("vmin", None), options.pop("vmax", None))
        self.ax_.add_collection(drawn)
        self.ax_.autoscale()
        self.ax_.invert_yaxis()  # slides count from the top
        self.ax_.set_aspect("equal")
        self.ax_.set_xticks([])
        self.ax_.set_yticks([])
        self.ax_.set_title(self.name or "")
        self.colorbar_ = self.figure_.colorbar(drawn, ax=self.ax_, label=label)
        return self


class BagImagesDisplay:
    """A bag of images, positives framed, each with its probability ± standard deviation.

    After Figures 2 and 10 of the psi-VGPMIL paper.

    Parameters
    ----------
    images : array of shape (n, height, width) or (n, height, width, 3)
    probability : array of shape (n,)
    std : array of shape (n,), optional
    threshold : float
        Probabilities above it are coloured and, without ``truth``, framed.
    truth : array of shape (n,), optional
        Known labels, 1 for positive: these are framed, whatever the model says.
    name : str, optional

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.report import BagImagesDisplay
    >>> display = BagImagesDisplay(np.zeros((3, 8, 8)), [0.9, 0.2, 0.6], [0.1, 0.1, 0.2]).plot()
    >>> [axes.get_title() for axes in display.axes_]
    ['0.90 ± 0.10', '0.20 ± 0.10', '0.60 ± 0.20']
    """

    def __init__(
        self,
        images: Column,
        probability: Floats,
        std: Floats | None = None,
        *,
        threshold: float = 0.5,
        truth: Column | None = None,
        name: str | None = None,
    ) -> None:
        self.images = np.asarray(images)
        self.probability = np.asarray(probability, dtype=float)
        self.std = None if std is None else np.asarray(std, dtype=float)
        self.threshold = threshold
        self.truth = None if truth is None else np.asarray(truth) > 0
        self.name = name

    @classmethod
    def from_estimator(
        cls,
        model: Model,
        bags: Bags,
        bag: int | str,
        images: Column | None = None,
        *,
        threshold: float = 0.5,
    ) -> BagImagesDisplay:
        """Plot a bag; ``images`` is aligned with the instances, or is a column of the bags."""
        images = bags.columns.get("images") if images is None else images
        if images is None:
            raise ValueError("pass images, one per instance, or bags with a column 'images'.")
        i = _number(bags, bag)
        p, std = _instance_probabilities(model, bags, i)
        rows = slice(int(bags.offsets[i]), int(bags.offsets[i + 1]))
        return cls(images[rows], p, std, threshold=threshold, name=str(bags.ids[i])).plot()

    def plot(self, *, columns: int = 6, cmap: str = "gray") -> BagImagesDisplay:
        """Draw a grid of images in a figure of its own."""
        import matplotlib.pyplot as plt

        n = len(self.images)
        columns = min(columns, n)
        rows = -(-n // columns)
        self.figure_, grid = plt.subplots(
            rows, columns, figsize=(1.5 * columns, 1.75 * rows), squeeze=False, layout="constrained"
        )
        self.axes_ = list(grid.ravel()[:n])
        for axes in grid.ravel()[n:]:
            axes.set_axis_off()
        for k, axes in enumerate(self.axes_):
            axes.imshow(self.images[k], cmap=cmap)
            axes.set_xticks([])
            axes.set_yticks([])
            positive = self.probability[k] > self.threshold
            framed = positive if self.truth is None else self.truth[k]
            for spine in axes.spines.values():
                spine.set(color=_POSITIVE if framed else "#cccccc", linewidth=3 if framed else 1)
            text = f"{self.probability[k]:.2f}"
            text += "" if self.std is None else f" ± {self.std[k]:.2f}"
            axes.set_title(text, fontsize=9, color=_POSITIVE if positive else "black")
        if self.name:
            self.figure_.suptitle(self.name)
        return self


class ProbabilityHistogramDisplay:
    """How sure a model is: a histogram of probabilities, by true class where it is known.

    Parameters
    ----------
    probability : array of shape (n,)
    y : array of 0/1 of shape (n,), optional

    Examples
    --------
    >>> from bagwise.report import ProbabilityHistogramDisplay
    >>> display = ProbabilityHistogramDisplay.from_predictions([0.1, 0.8, 0.9], [0, 1, 1])
    >>> display.ax_.get_xlabel()
    'probability'
    """

    def __init__(self, probability: ArrayLike, y: ArrayLike | None = None) -> None:
        self.probability = np.asarray(probability, dtype=float)
        self.y = None if y is None else np.asarray(y)

    @classmethod
    def from_predictions(
        cls,
        probability: ArrayLike,
        y: ArrayLike | None = None,
        *,
        ax: Axes | None = None,
        **options: Any,
    ) -> ProbabilityHistogramDisplay:
        """Plot given probabilities."""
        return cls(probability, y).plot(ax, **options)

    @classmethod
    def from_estimator(
        cls,
        model: Model,
        bags: Bags,
        y: ArrayLike | None = None,
        *,
        ax: Axes | None = None,
        **options: Any,
    ) -> ProbabilityHistogramDisplay:
        """Plot the bag probabilities of a model."""
        codes = None if y is None else (np.asarray(y) == model.classes_[1]).astype(int)
        return cls(model.predict_proba(bags)[:, 1], codes).plot(ax, **options)

    def plot(self, ax: Axes | None = None, *, bins: int = 20) -> ProbabilityHistogramDisplay:
        """Draw stacked bars."""
        self.ax_ = _axes(ax)
        self.figure_ = self.ax_.figure
        edges = np.linspace(0, 1, bins + 1).tolist()
        if self.y is None:
            self.ax_.hist(self.probability, edges, color=_ACCENT)
        else:
            parts = [self.probability[self.y == code] for code in (0, 1)]
            colors, names = [_NEGATIVE, _POSITIVE], ["negative", "positive"]
            self.ax_.hist(parts, edges, stacked=True, color=colors, label=names)
            self.ax_.legend()
        self.ax_.set(xlabel="probability", ylabel="bags", xlim=(0, 1))
        return self


class BoundDisplay:
    """The evidence bound of a variational fit, iteration by iteration.

    Parameters
    ----------
    history : array of shape (n_iter,)

    Examples
    --------
    >>> from bagwise.report import BoundDisplay
    >>> BoundDisplay([-30.0, -20.0, -18.0]).plot().ax_.get_ylabel()
    'evidence bound'
    """

    def __init__(self, history: ArrayLike, name: str | None = None) -> None:
        self.history = np.asarray(history, dtype=float)
        self.name = name

    @classmethod
    def from_estimator(cls, model: Model, *, ax: Axes | None = None) -> BoundDisplay:
        """Plot ``bound_history_`` of a fitted model, or of a pipeline's last step."""
        last = last_step(model)
        if not hasattr(last, "bound_history_"):
            raise ValueError(f"{type(last).__name__} has no bound_history_: nothing to plot.")
        return cls(last.bound_history_, type(last).__name__).plot(ax)

    def plot(self, ax: Axes | None = None) -> BoundDisplay:
        """Draw a line."""
        self.ax_ = _axes(ax)
        self.figure_ = self.ax_.figure
        steps = np.arange(1, len(self.history) + 1)
        (self.line_,) = self.ax_.plot(steps, self.history, color=_ACCENT, label=self.name)
        self.ax_.set(xlabel="iteration", ylabel="evidence bound")
        if self.name:
            self.ax_.legend()
        return self


class ReliabilityDisplay:
    """Whether probabilities can be believed: predicted against observed, with bin counts.

    Parameters
    ----------
    y : array of 0/1 of shape (n,)
    probability : array of shape (n,)
    n_bins : int
    name : str, optional

    Examples
    --------
    >>> from bagwise.report import ReliabilityDisplay
    >>> display = ReliabilityDisplay.from_predictions([0, 0, 1, 1], [0.1, 0.2, 0.8, 0.9], n_bins=2)
    >>> display.curve_.count.tolist()
    [2, 2]
    """

    def __init__(
        self, y: ArrayLike, probability: ArrayLike, *, n_bins: int = 10, name: str | None = None
    ) -> None:
        self.y = y
        self.probability = probability
        self.n_bins = n_bins
        self.name = name

    @classmethod
    def from_predictions(
        cls,
        y: ArrayLike,
        probability: ArrayLike,
        *,
        n_bins: int = 10,
        name: str | None = None,
        ax: Axes | None = None,
    ) -> ReliabilityDisplay:
        """Plot given labels and probabilities."""
        return cls(y, probability, n_bins=n_bins, name=name).plot(ax)

    @classmethod
    def from_estimator(
        cls, model: Model, bags: Bags, y: ArrayLike, *, n_bins: int = 10, ax: Axes | None = None
    ) -> ReliabilityDisplay:
        """Plot the bag probabilities of a model on labelled bags."""
        codes = (np.asarray(y) == model.classes_[1]).astype(int)
        p = model.predict_proba(bags)[:, 1]
        return cls(codes, p, n_bins=n_bins, name=type(model).__name__).plot(ax)

    def plot(self, ax: Axes | None = None) -> ReliabilityDisplay:
        """Draw the curve; the area of a dot grows with the bags in its bin."""
        self.ax_ = _axes(ax)
        self.figure_ = self.ax_.figure
        self.curve_ = reliability_curve(self.y, self.probability, n_bins=self.n_bins)
        self.ax_.plot([0, 1], [0, 1], linestyle="--", color="gray", linewidth=1)
        predicted, observed = self.curve_.predicted, self.curve_.observed
        (self.line_,) = self.ax_.plot(predicted, observed, color=_ACCENT, label=self.name)
        area = 20 + 180 * self.curve_.count / self.curve_.count.max()
        self.ax_.scatter(predicted, observed, s=area, color=_ACCENT, alpha=0.7)
        self.ax_.set(xlabel="predicted probability", ylabel="share that is positive")
        self.ax_.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        if self.name:
            self.ax_.legend(loc="upper left")
        return self
