"""The energies of a `MICRF` model, drawn: the figure 5 of its paper."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bagwise.bags import Bags
from bagwise.core.arrays import Column, Floats, Ints
from bagwise.report.plots import fitted_last

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# A frame per pair of bags: more than this and nothing can be read.
_MAX_BAGS = 30
# States are cells of one picture, so their number is its size.
_MAX_STATES = 1500


def plot_energies(
    model: Any,
    bags: Bags,
    selected: ArrayLike | None = None,
    axes: NDArray[np.object_] | None = None,
) -> NDArray[np.object_]:
    """Unary and pairwise energies of a few bags, with the selected states framed.

    The strips above and left of the picture are unary energies (4) of the states, bag after
    bag, the non-instance last; the block of a pair of bags holds the pairwise energies (7) of
    their states, zero for the non-instance. A trained model has low unaries for the instances of
    positive bags and for the non-instances of negative ones, and low blocks where the instances
    that positive bags select meet.

    Parameters
    ----------
    model : MICRF
        Fitted. A pipeline that ends in one is accepted.
    bags : Bags, list of 2-d arrays or 3-d array
        At most 30 bags; features as the model was fitted on.
    selected : array of shape (n_bags,) or None, default=None
        Row of the instance each bag selects, -1 for none. Defaults to ``model.select(bags)``,
        each bag decided given the training bags.
    axes : sequence of three matplotlib Axes or None, default=None
        For the upper strip, the left strip and the blocks; a new figure otherwise.

    Returns
    -------
    axes : array of three matplotlib Axes

    Examples
    --------
    >>> from bagwise import MICRF, datasets
    >>> from bagwise.report import plot_energies
    >>> bags, y = datasets.make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> model = MICRF().fit(bags, y)
    >>> top, left, blocks = plot_energies(model, bags[:6])
    >>> len(top.patches), len(blocks.patches)  # one frame per bag, one per ordered pair
    (6, 30)
    """
    model, bags = fitted_last(model, bags, "pairwise_energies", "energies are those of MICRF")
    bags = model._validate_predict(bags)
    n_states = bags.n_instances + len(bags)
    if len(bags) > _MAX_BAGS or n_states > _MAX_STATES:
        raise ValueError(
            f"plot_energies draws at most {_MAX_BAGS} bags and {_MAX_STATES} states; got "
            f"{len(bags)} bags with {n_states}. Choose a few: bags[:10]."
        )
    unary, non = model.unary_energies(bags)
    pairwise = model.pairwise_energies(bags)
    selected = model.select(bags) if selected is None else np.asarray(selected)
    if selected.shape != (len(bags),):
        raise ValueError(
            f"selected needs one row per bag: got shape {selected.shape} for {len(bags)} bags."
        )
    strip, picture, edges, chosen = _states(bags, unary, non, pairwise, selected)
    if axes is None:
        import matplotlib.pyplot as plt

        side = float(np.clip(len(strip) * 0.09, 5, 11))
        size = {"figsize": (side + 1.5, side), "layout": "constrained"}
        figure, grid = plt.subplots(2, 2, width_ratios=[1, 24], height_ratios=[1, 24], **size)
        grid[0, 0].axis("off")
        figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02)
        axes = np.array([grid[0, 1], grid[1, 0], grid[1, 1]], dtype=object)
    top, left, blocks = axes
    limit = float(np.percentile(np.abs(strip), 95)) or 1.0  # one outlier must not bleach the rest
    colours = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit, "aspect": "auto"}
    unaries = top.imshow(strip[None, :], **colours)
    left.imshow(strip[:, None], **colours)
    pairs = blocks.imshow(picture, cmap="viridis", aspect="auto", interpolation="nearest")
    _decorate(top, left, blocks, edges, bags.ids, chosen)
    figure = blocks.figure
    figure.colorbar(unaries, ax=[top, blocks], label="unary energy", fraction=0.04, pad=0.02)
    figure.colorbar(pairs, ax=[top, blocks], label="pairwise energy", fraction=0.04, pad=0.02)
    return np.array([top, left, blocks], dtype=object)


def _states(
    bags: Bags, unary: Floats, non: Floats, pairwise: Floats, selected: Ints
) -> tuple[Floats, Floats, Ints, Ints]:
    """Unaries [S] and pairwise energies [S, S] of all states, bag borders, selected states."""
    edges = bags.offsets + np.arange(len(bags) + 1)  # one more state per bag
    place = np.arange(bags.n_instances) + bags.bag_index
    strip = np.empty(edges[-1])
    strip[place] = unary
    strip[edges[1:] - 1] = non
    picture = np.zeros((edges[-1], edges[-1]))
    picture[np.ix_(place, place)] = pairwise
    for a, b in itertools.pairwise(edges):
        picture[a:b, a:b] = np.nan  # a bag is not paired with itself
    chosen = np.where(selected >= 0, place[selected], edges[1:] - 1)
    return strip, picture, edges, chosen


def _decorate(top: Axes, left: Axes, blocks: Axes, edges: Ints, ids: Column, chosen: Ints) -> None:
    """Names of the bags, lines between them, and frames around the chosen states."""
    from matplotlib.patches import Rectangle

    def frame(ax: Axes, x: float, y: float, colour: str) -> None:
        corner = (x - 0.5, y - 0.5)
        ax.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=colour, linewidth=1.5))

    for edge in edges[1:-1] - 0.5:
        for ax in (top, blocks):
            ax.axvline(edge, color="white", linewidth=1)
        for ax in (left, blocks):
            ax.axhline(edge, color="white", linewidth=1)
    centres = (edges[:-1] + edges[1:] - 1) / 2
    for ax in (top, left, blocks):
        ax.set(xticks=[], yticks=[])
    top.set_xticks(centres, ids, rotation=90, fontsize=7)
    top.xaxis.tick_top()
    left.set_yticks(centres, ids, fontsize=7)
    for i in chosen:
        frame(top, i, 0, "black")
        frame(left, 0, i, "black")
        for j in chosen[chosen != i]:
            frame(blocks, i, j, "red")
