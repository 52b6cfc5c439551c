"""Matplotlib pictures as ``Display`` objects in scikit-learn's style.

Each has ``from_estimator`` or ``from_predictions``, ``plot(ax=None)``, and afterwards ``ax_`` and
``figure_``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags
from bagwise.core.arrays import Column, Floats
from bagwise.evaluate import Ranking, reliability_curve
from bagwise.files.geojson import common_gap
from bagwise.models.base import Model
from bagwise.models.pipeline import last_step

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_POSITIVE, _NEGATIVE, _ACCENT = "#b83a0e", "#2456a6", "#0f6b62"

# The colours of probabilities in `report.html` (HEAT of report.js), from 0 to 1.
HEAT = ((255, 244, 214), (250, 196, 112), (232, 120, 56), (186, 44, 60), (92, 16, 72))


def probability_colours() -> Any:
    """The report's colours of probabilities, as a matplotlib colour map."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("probability", np.array(HEAT) / 255)


class _AxesDisplay(ABC):
    """A display that draws into given axes, or into a figure of its own."""

    ax_: Any
    figure_: Any

    @classmethod
    def from_predictions(cls, *values: ArrayLike, ax: Axes | None = None, **options: Any) -> Self:
        """Draw the arrays that the display is made of; ``options`` are its other parameters."""
        return cls(*values, **options).plot(ax)

    @abstractmethod
    def plot(self, ax: Axes | None = None) -> Self:
        """Draw into ``ax``, or into a new figure."""

    def _open(self, ax: Axes | None) -> Any:
        import matplotlib.pyplot as plt

        self.ax_ = plt.subplots()[1] if ax is None else ax
        self.figure_ = self.ax_.figure
        return self.ax_


def _instances_of(
    model: Model, bags: Bags, bag: int | str
) -> tuple[int, slice, Floats, Floats | None]:
    """Number and rows of a bag given by number or name, and its instances' probability and std."""
    from bagwise.report.predictions import predict_tables

    i = bags.index_of(bag) if isinstance(bag, str) else range(len(bags))[bag]
    table = predict_tables(model, bags[i : i + 1]).instances
    if table is None:
        raise ValueError(f"{type(model).__name__} cannot rank instances.")
    if table["probability"].isna().any():
        raise ValueError(f"{type(model).__name__} gives no instance probabilities.")
    std = table["std"].to_numpy()
    rows = slice(int(bags.offsets[i]), int(bags.offsets[i + 1]))
    return i, rows, table["probability"].to_numpy(), None if np.isnan(std).any() else std


def fitted_last(model: Any, bags: Bags, needs: str, what: str) -> tuple[Any, Bags]:
    """The fitted model at the end of a pipeline, and the bags as it sees them."""
    final = last_step(model)
    check_is_fitted(final)
    if not hasattr(final, needs):
        raise ValueError(f"{what}; got {type(final).__name__}.")
    return final, bags if final is model else model[:-1].transform(bags)


def _bag_probabilities(model: Model, bags: Bags, y: Any) -> tuple[Any, Floats]:
    """Labels as 0 and 1 where they are given, and the probability of the positive class."""
    codes = None if y is None else (np.asarray(y) == model.classes_[1]).astype(int)
    return codes, model.predict_proba(bags)[:, 1]


@dataclass(eq=False)
class InstanceMapDisplay(_AxesDisplay):
    """The instances of a bag where they lie, coloured by probability, as in the report.

    Parameters
    ----------
    coords : array of shape (n, 2)
        Upper left corner of each patch.
    values : array of shape (n,)
        What to colour by.
    patch_size : float or None, default=None
        Side of a patch; the commonest gap between neighbours by default.
    name : str or None, default=None
        Title.
    what : str, default="probability"
        What the colours are of: probabilities from 0 to 1, or anything else from 0 up.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.report import InstanceMapDisplay
    >>> coords = np.array([[0, 0], [256, 0], [0, 256]])
    >>> display = InstanceMapDisplay(coords, [0.1, 0.9, 0.4]).plot()
    >>> display.patch_size_
    256.0
    """

    coords: Any
    values: Any
    patch_size: float | None = None
    name: str | None = None
    what: str = "probability"

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
        i, rows, p, std = _instances_of(model, bags, bag)
        if what == "std" and std is None:
            raise ValueError(f"{type(model).__name__} gives no standard deviations.")
        values = p if std is None or what == "probability" else std
        size = bags.columns.get("patch_size")
        patch_size = None if size is None else float(size[rows.start])
        return cls(bags.columns["coords"][rows], values, patch_size, str(bags.ids[i]), what).plot(
            ax
        )

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw a square for each instance, and a colour bar."""
        from matplotlib.collections import PatchCollection
        from matplotlib.patches import Rectangle

        ax = self._open(ax)
        coords = np.asarray(self.coords)
        self.patch_size_ = self.patch_size or common_gap(coords)
        squares = [Rectangle((x, y), self.patch_size_, self.patch_size_) for x, y in coords[:, :2]]
        drawn = PatchCollection(squares, cmap=probability_colours(), linewidth=0)
        drawn.set_array(np.asarray(self.values, dtype=float))
        drawn.set_clim(0, 1 if self.what == "probability" else None)
        ax.add_collection(drawn)
        ax.autoscale()
        ax.invert_yaxis()  # slides count from the top
        ax.set(aspect="equal", xticks=[], yticks=[], title=self.name or "")
        self.colorbar_ = self.figure_.colorbar(drawn, ax=ax, label=self.what)
        return self


@dataclass(eq=False)
class BagImagesDisplay:
    """A bag of images, positives framed, each with its probability ± standard deviation.

    After Figures 2 and 10 of the psi-VGPMIL paper.

    Parameters
    ----------
    images : array of shape (n, height, width) or (n, height, width, 3)
    probability : array of shape (n,)
        Those above 0.5 are coloured and, without ``truth``, framed.
    std : array of shape (n,) or None, default=None
    truth : array of shape (n,) or None, default=None
        Known labels, 1 for positive: these are framed, whatever is predicted.
    name : str or None, default=None

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.report import BagImagesDisplay
    >>> display = BagImagesDisplay(np.zeros((3, 8, 8)), [0.9, 0.2, 0.6], [0.1, 0.1, 0.2]).plot()
    >>> [axes.get_title() for axes in display.axes_]
    ['0.90 ± 0.10', '0.20 ± 0.10', '0.60 ± 0.20']
    """

    images: Any
    probability: Any
    std: Any = None
    truth: Any = None
    name: str | None = None

    @classmethod
    def from_estimator(
        cls, model: Model, bags: Bags, bag: int | str, images: Column | None = None
    ) -> BagImagesDisplay:
        """Plot a bag; ``images`` is aligned with the instances, or is a column of the bags."""
        images = bags.columns.get("images") if images is None else images
        if images is None:
            raise ValueError("pass images, one per instance, or bags with a column 'images'.")
        i, rows, p, std = _instances_of(model, bags, bag)
        return cls(images[rows], p, std, name=str(bags.ids[i])).plot()

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
        positive = np.asarray(self.probability) > 0.5
        framed = positive if self.truth is None else np.asarray(self.truth) > 0
        for k, axes in enumerate(self.axes_):
            axes.imshow(self.images[k], cmap=cmap)
            axes.set(xticks=[], yticks=[])
            for spine in axes.spines.values():
                spine.set(
                    color=_POSITIVE if framed[k] else "#cccccc", linewidth=3 if framed[k] else 1
                )
            text = f"{self.probability[k]:.2f}"
            text += "" if self.std is None else f" ± {self.std[k]:.2f}"
            axes.set_title(text, fontsize=9, color=_POSITIVE if positive[k] else "black")
        if self.name:
            self.figure_.suptitle(self.name)
        return self


@dataclass(eq=False)
class ProbabilityHistogramDisplay(_AxesDisplay):
    """How certain a model is: a histogram of probabilities, by true class where it is known.

    Parameters
    ----------
    probability : array of shape (n,)
    y : array of 0/1 of shape (n,) or None, default=None
    bins : int, default=20

    Examples
    --------
    >>> from bagwise.report import ProbabilityHistogramDisplay
    >>> display = ProbabilityHistogramDisplay.from_predictions([0.1, 0.8, 0.9], [0, 1, 1])
    >>> display.ax_.get_xlabel()
    'probability'
    """

    probability: ArrayLike
    y: ArrayLike | None = None
    bins: int = 20

    @classmethod
    def from_estimator(
        cls, model: Model, bags: Bags, y: ArrayLike | None = None, *, ax: Axes | None = None
    ) -> ProbabilityHistogramDisplay:
        """Plot the bag probabilities of a model of two classes."""
        codes, p = _bag_probabilities(model, bags, y)
        return cls(p, codes).plot(ax)

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw stacked bars."""
        ax = self._open(ax)
        p = np.asarray(self.probability, dtype=float)
        edges = np.linspace(0, 1, self.bins + 1).tolist()
        if self.y is None:
            ax.hist(p, edges, color=_ACCENT)
        else:
            parts = [p[np.asarray(self.y) == code] for code in (0, 1)]
            colors, names = [_NEGATIVE, _POSITIVE], ["negative", "positive"]
            ax.hist(parts, edges, stacked=True, color=colors, label=names)
            ax.legend()
        ax.set(xlabel="probability", ylabel="bags", xlim=(0, 1))
        return self


@dataclass(eq=False)
class BoundDisplay(_AxesDisplay):
    """The evidence bound of a variational fit, iteration by iteration.

    Parameters
    ----------
    history : array of shape (n_iter,)
    name : str or None, default=None

    Examples
    --------
    >>> from bagwise.report import BoundDisplay
    >>> BoundDisplay([-30.0, -20.0, -18.0]).plot().ax_.get_ylabel()
    'evidence bound'
    """

    history: Any
    name: str | None = None

    @classmethod
    def from_estimator(cls, model: Model, *, ax: Axes | None = None) -> BoundDisplay:
        """Plot ``bound_history_`` of a fitted model, or of a pipeline's last step."""
        last = last_step(model)
        if not hasattr(last, "bound_history_"):
            raise ValueError(f"{type(last).__name__} has no bound_history_: nothing to plot.")
        return cls(last.bound_history_, type(last).__name__).plot(ax)

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw a line."""
        ax = self._open(ax)
        steps = np.arange(1, len(self.history) + 1)
        self.line_ = ax.plot(steps, self.history, color=_ACCENT, label=self.name)[0]
        ax.set(xlabel="iteration", ylabel="evidence bound")
        if self.name:
            ax.legend()
        return self


@dataclass(eq=False)
class ReliabilityDisplay(_AxesDisplay):
    """Whether probabilities are calibrated: predicted against observed, with bin counts.

    Parameters
    ----------
    y : array of 0/1 of shape (n,)
    probability : array of shape (n,)
    n_bins : int, default=10
    name : str or None, default=None

    Examples
    --------
    >>> from bagwise.report import ReliabilityDisplay
    >>> display = ReliabilityDisplay.from_predictions([0, 0, 1, 1], [0.1, 0.2, 0.8, 0.9], n_bins=2)
    >>> display.curve_.count.tolist()
    [2, 2]
    """

    y: ArrayLike
    probability: ArrayLike
    n_bins: int = 10
    name: str | None = None

    @classmethod
    def from_estimator(
        cls, model: Model, bags: Bags, y: ArrayLike, *, n_bins: int = 10, ax: Axes | None = None
    ) -> ReliabilityDisplay:
        """Plot the bag probabilities of a model of two classes on labelled bags."""
        return cls(*_bag_probabilities(model, bags, y), n_bins, type(model).__name__).plot(ax)

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw the curve; the area of a dot grows with the bags in its bin."""
        ax = self._open(ax)
        self.curve_ = reliability_curve(self.y, self.probability, n_bins=self.n_bins)
        predicted, observed, count = self.curve_
        ax.plot([0, 1], [0, 1], linestyle="--", color="gray", linewidth=1)
        self.line_ = ax.plot(predicted, observed, color=_ACCENT, label=self.name)[0]
        ax.scatter(predicted, observed, s=20 + 180 * count / count.max(), color=_ACCENT, alpha=0.7)
        ax.set(xlabel="predicted probability", ylabel="share that is positive")
        ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        if self.name:
            ax.legend(loc="upper left")
        return self


def plot_ranks(ranking: Ranking, title: str = "") -> Figure:
    """Draw mean ranks, best at the left; a bar joins models that no test tells apart.

    Parameters
    ----------
    ranking : Ranking
        From `bagwise.evaluate.rank_models`.
    title : str, default=""

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> from bagwise.evaluate import rank_models
    >>> from bagwise.report import plot_ranks
    >>> made = rank_models(["a", "b", "c"], [[0.9, 0.7, 0.5], [0.8, 0.6, 0.5]])
    >>> len(plot_ranks(made).axes[0].texts)  # the names of the models
    3
    """
    from matplotlib.figure import Figure

    n = len(ranking.models)
    half = (n + 1) // 2  # names in a column on either side
    height = 1.0 + 0.24 * (half + len(ranking.groups))
    figure = Figure(figsize=(8, height), layout="constrained")
    axes = figure.subplots()
    for k, (first, last) in enumerate(ranking.groups):
        ends = [ranking.mean_rank[first] - 0.05, ranking.mean_rank[last] + 0.05]
        axes.plot(ends, [0.5 + k] * 2, color="tab:red", linewidth=3, solid_capstyle="butt")
    below = 0.5 + len(ranking.groups)
    low, high = ranking.mean_rank[0], ranking.mean_rank[-1]
    margin = 0.06 * (high - low) + 0.1
    for i, (name, rank) in enumerate(zip(ranking.models, ranking.mean_rank, strict=True)):
        # The better half is written on the left, best on top, the other on the right, worst on top.
        left = i < half
        y = below + (i if left else n - 1 - i)
        x = low - margin if left else high + margin
        axes.plot([rank, rank, x], [0, y, y], color="0.4", linewidth=0.8)
        words = f"{name} {rank:.2f} " if left else f" {rank:.2f} {name}"
        axes.text(x, y, words, ha="right" if left else "left", va="center", fontsize=9)
    axes.set_ylim(below + half - 0.3, 0)
    axes.set_xlim(low - margin, high + margin)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(title or f"mean rank over {ranking.n_datasets} data sets (1 is best)")
    axes.set_yticks([])
    for side in ("left", "right", "bottom"):
        axes.spines[side].set_visible(False)
    return figure
