"""The clusters of a `DPMIL` model, drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bagwise.models.pipeline import last_step

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_mixture_weights(model: Any, ax: Axes | None = None) -> Axes:
    """Bars of the mixture weights of each class, heaviest cluster first.

    One heavy bar means that the class looks alike everywhere; several of like height mean that
    it comes in kinds.

    Parameters
    ----------
    model : DPMIL
        Fitted. A pipeline that ends in one is accepted.
    ax : matplotlib Axes, optional
        Drawn into; a new figure otherwise.

    Returns
    -------
    ax : matplotlib Axes

    Examples
    --------
    >>> from bagwise import DPMIL
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.report.mixtures import plot_mixture_weights
    >>> bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
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
    width = 0.8 / n_classes
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
