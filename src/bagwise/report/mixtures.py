"""The clusters of a `DPMIL` model, drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags
from bagwise.models.pipeline import last_step
from bagwise.report.plots import fitted_last

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bagwise.models.dpmil import ClusterExamples

# Clusters lighter than this share of their class are left out of pictures.
_LEAST_WEIGHT = 0.02


def plot_mixture_weights(model: Any, ax: Axes | None = None) -> Axes:
    """Bars of the mixture weights of each class, heaviest cluster first.

    One heavy bar means that the class looks alike everywhere; several of like height mean that
    it comes in kinds.

    Parameters
    ----------
    model : DPMIL
        Fitted. A pipeline that ends in one is accepted.
    ax : matplotlib Axes or None, default=None
        Drawn into; a new figure otherwise.

    Returns
    -------
    ax : matplotlib Axes

    Examples
    --------
    >>> from bagwise import DPMIL, datasets
    >>> from bagwise.report import plot_mixture_weights
    >>> bags, y = datasets.make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> model = DPMIL(n_components=4, random_state=0).fit(bags, y)
    >>> ax = plot_mixture_weights(model)
    >>> len(ax.patches)
    8
    """
    model = last_step(model)
    check_is_fitted(model)
    if not hasattr(model, "weights_"):
        raise ValueError(f"mixture weights are those of DPMIL; got {type(model).__name__}.")
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
    n_classes, n_components = model.weights_.shape
    width = 0.8 / n_classes  # bars of all classes side by side
    for c, (name, weights) in enumerate(zip(model.classes_, model.weights_, strict=True)):
        place = np.arange(1, n_components + 1) + (c - (n_classes - 1) / 2) * width
        ax.bar(place, np.sort(weights)[::-1], width, label=f"class {name}")
    ax.set(
        xlabel="cluster, heaviest first", ylabel="mixture weight", xlim=(0.4, n_components + 0.6)
    )
    ax.set_xticks(np.unique(np.linspace(1, n_components, min(n_components, 10)).astype(int)))
    ax.legend(frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def shown_clusters(examples: list[ClusterExamples], n_clusters: int) -> list[ClusterExamples]:
    """The heaviest clusters of every class, at most ``n_clusters`` of each."""
    shown: list[ClusterExamples] = []
    for one in examples:
        of_class = sum(other.label == one.label for other in shown)
        if of_class < n_clusters and (one.weight >= _LEAST_WEIGHT or of_class == 0):
            shown.append(one)
    return shown


def plot_cluster_examples(
    model: Any,
    bags: Bags,
    images: NDArray[np.number] | None = None,
    *,
    n_clusters: int = 3,
    n_instances: int = 8,
) -> Figure:
    """Pictures of the instances nearest to each cluster, one row per cluster.

    After Figure 5 of the DPMIL paper: every instance of a row is of another bag.

    Parameters
    ----------
    model : DPMIL
        Fitted. A pipeline that ends in one is accepted.
    bags : Bags
    images : array of shape (n_instances, height, width) or with channels last or None, default=None
        One picture per instance; by default the column "images" of the bags.
    n_clusters : int, default=3
        Most clusters of each class, the heaviest ones.
    n_instances : int, default=8
        Most instances of a cluster.

    Returns
    -------
    figure : matplotlib Figure

    Examples
    --------
    >>> from bagwise import DPMIL, datasets, report
    >>> data = datasets.load_digit_bags(random_state=0)
    >>> model = DPMIL(n_components=4, random_state=0).fit(data.bags, data.y)
    >>> figure = report.plot_cluster_examples(model, data.bags, data.images, n_clusters=2)
    >>> len(figure.axes) > 8
    True
    """
    images = bags.columns.get("images") if images is None else images
    if images is None:
        raise ValueError("pass images, one per instance, or bags with a column 'images'.")
    if len(images) != bags.n_instances:
        raise ValueError(
            f"images needs one picture per instance: got {len(images)} for {bags.n_instances}."
        )
    what = "clusters are those of DPMIL"
    final, inner = fitted_last(model, bags, "nearest_instances", what)
    shown = shown_clusters(final.nearest_instances(inner, n_instances), n_clusters)
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(
        len(shown),
        n_instances,
        figsize=(n_instances, 1.15 * len(shown)),
        squeeze=False,
        layout="constrained",
    )
    for axes, one in zip(grid, shown, strict=True):
        for ax in axes:
            ax.axis("off")
        for ax, row in zip(axes, one.rows, strict=False):
            ax.imshow(images[row], cmap="gray")
        title = f"class {one.label}, cluster {one.cluster}: {100 * one.weight:.0f} % of the class"
        # A title wider than its picture must not push the columns apart.
        axes[0].set_title(title, loc="left", fontsize=9).set_in_layout(False)
    return figure
