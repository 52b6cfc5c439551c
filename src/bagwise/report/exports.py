"""What else predictions are good for: fractions per bag, GeoJSON, a sheet of the top pictures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Floats
from bagwise.files import new_file, write_geojson
from bagwise.report.predictions import Predictions

# What ``bagwise predict`` may write into its folder.
WRITTEN = (
    "bags.csv",
    "slides.csv",
    "patients.csv",
    "top_instances.csv",
    "instances.parquet",
    "report.html",
    "geojson",
    "classes",
    "top_instances.png",
)
# Rows and columns of the sheet: a page that can be looked at.
_MAX_BAGS, _PER_BAG = 40, 8


class Fraction(NamedTuple):
    """Share of positive instances of every bag, with an interval."""

    mean: NDArray[np.float64]  # [B]
    low: NDArray[np.float64]  # [B]
    high: NDArray[np.float64]  # [B]


def positive_fraction(probability: ArrayLike, std: ArrayLike, offsets: ArrayLike) -> Fraction:
    """Estimated share of positive instances of each bag (in pathology: tumour purity).

    The mean is that of the instances' probabilities. Its variance has two parts: the labels are
    draws given the probabilities, independent of each other; and the probabilities are uncertain
    themselves, all in the same direction at worst, so that their mean is as uncertain as their
    mean standard deviation. A beta distribution with these moments gives the 90 % interval.

    Parameters
    ----------
    probability, std : arrays of shape (n_instances,)
        NaN in ``std`` counts as 0.
    offsets : array of shape (n_bags + 1,)

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.report import positive_fraction
    >>> p = np.r_[np.full(100, 0.3), np.full(10, 0.3)]
    >>> share = positive_fraction(p, np.zeros(110), [0, 100, 110])
    >>> share.mean.round(2).tolist(), bool(np.diff(share.high - share.low)[0] > 0)
    ([0.3, 0.3], True)
    """
    p, offsets = np.asarray(probability, dtype=np.float64), np.asarray(offsets)
    sizes = np.diff(offsets)
    mean = segments.mean(p, offsets)
    spread = segments.mean(np.nan_to_num(np.asarray(std, dtype=np.float64)), offsets)
    # Var = sum p (1 - p) / n^2 of the draws, plus that of their shared uncertainty.
    variance = segments.sum(p * (1 - p), offsets) / sizes**2 + spread**2
    # No distribution on [0, 1] has a larger variance than mean (1 - mean).
    most = mean * (1 - mean)
    certain = most < 1e-12
    strength = np.where(certain, 1.0, most / np.clip(variance, 1e-12, 0.999 * most + 1e-12) - 1)
    # Beta(a, b) with a + b = mean (1 - mean) / variance - 1.
    a, b = np.maximum(mean * strength, 1e-9), np.maximum((1 - mean) * strength, 1e-9)
    low, high = (np.asarray(beta.ppf(q, a, b)) for q in (0.05, 0.95))
    low, high = np.minimum(low, mean), np.maximum(high, mean)
    return Fraction(mean, np.where(certain, mean, low), np.where(certain, mean, high))


def with_fractions(predictions: Predictions, bags: Bags) -> Predictions:
    """Predictions whose table of bags has the ``fraction`` of each class and its 90 % interval.

    Unchanged where the model gives no probabilities of instances.

    Examples
    --------
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.models.registry import make_model
    >>> from bagwise.report import predict_tables, with_fractions
    >>> bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> tables = predict_tables(make_model("single-instance").fit(bags, y), bags)
    >>> list(with_fractions(tables, bags).bags.columns)[-3:]
    ['fraction', 'fraction_low', 'fraction_high']
    """
    table = predictions.instances
    if table is None or np.isnan(predictions.values(table)).any():
        return predictions
    p, std = predictions.values(table), predictions.values(table, "std")  # [N, F]
    columns = {}
    for f, column in enumerate(predictions.axis):
        fraction = positive_fraction(p[:, f], std[:, f], bags.offsets)
        for name, values in fraction._asdict().items():
            end = "" if name == "mean" else f"_{name}"
            columns[f"fraction{end}{column.suffix}"] = values
    return predictions._replace(bags=predictions.bags.assign(**columns))


def write_extras(
    predictions: Predictions, bags: Bags, folder: Path, geojson: bool, sheet: bool
) -> list[Path]:
    """What ``bagwise predict`` writes on request: GeoJSON for QuPath, a sheet of pictures.

    With more than two classes each has a folder of its own, ``classes/NAME``.
    """
    if not geojson and not sheet:
        return []
    written = []
    for f, column in enumerate(predictions.axis):
        of_class, place = predictions.of_class(f), folder
        if column.suffix:
            # Safe on every file system, and unlike the folder of any other class.
            name = str(column.positive)
            plain = re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-")[:60]
            place = folder / "classes" / (plain if plain == name else f"{plain}-{f + 1}".strip("-"))
            place.mkdir(parents=True)
        table = of_class.instances
        if table is None or table["probability"].isna().any():
            what = "GeoJSON" if geojson else "a sheet"
            raise ValueError(f"{what} needs probabilities of instances; this model gives none.")
        p, std = table["probability"].to_numpy(), table["std"].to_numpy()
        if geojson:
            write_geojson(place / "geojson", bags, p, std, classes=of_class.classes)
            written.append(place / "geojson")
        if sheet:
            written.append(place / "top_instances.png")
            _write_sheet(written[-1], bags, of_class.bags["probability"].to_numpy(), p, std)
    return written


def _write_sheet(path: Path, bags: Bags, of_bags: Floats, p: Floats, std: Floats) -> None:
    """One picture with the most probable instances of the most probable bags."""
    from matplotlib.figure import Figure

    images = bags.columns.get("images")
    if images is None:
        raise ValueError("a sheet needs pictures; name their dataset with --images.")
    chosen = np.argsort(-of_bags, kind="stable")[:_MAX_BAGS]
    figure = Figure(figsize=(1.15 * _PER_BAG + 1.6, 1.35 * len(chosen)), layout="constrained")
    grid = figure.subplots(len(chosen), _PER_BAG, squeeze=False)
    gray = None if np.asarray(images).ndim == 4 else "gray"
    for axes, i in zip(grid, chosen, strict=True):
        rows = np.arange(bags.offsets[i], bags.offsets[i + 1])
        top = rows[np.argsort(-p[rows], kind="stable")[:_PER_BAG]]
        for ax in axes:
            ax.set_axis_off()
        for ax, row in zip(axes, top, strict=False):
            image = np.squeeze(np.asarray(images[row]))
            ax.imshow(image, cmap=gray)
            doubt = "" if np.isnan(std[row]) else f" ± {std[row]:.2f}"
            ax.set_title(f"{p[row]:.2f}{doubt}", fontsize=7, pad=2)
        name = f"{str(bags.ids[i])[:24]}\n{of_bags[i]:.2f}"
        # Names are data, never markup for formulas.
        axes[0].text(
            -0.15, 0.5, name, transform=axes[0].transAxes, ha="right", va="center", fontsize=7,
            parse_math=False,
        )  # fmt: skip
    with new_file(path) as draft:
        figure.savefig(draft, format="png", dpi=110)
