"""The critical-difference diagram: models on a line of mean ranks, bars over those alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bagwise.evaluate.ranking import Ranking

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
