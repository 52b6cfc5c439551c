"""The data that the script of the page works on: per bag as numbers, per instance as base64.

Numbers per instance travel as base64 of small integers, so that a hundred thousand instances take
about a megabyte. Whatever is predicted has a class axis, F first: the script shows one class of
the instances at a time.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Floats, Ints

if TYPE_CHECKING:
    from bagwise.report.evaluation import Evaluation
    from bagwise.report.predictions import Predictions

# Instances put into the page, and of one bag once that is too few for all; instances.parquet
# has every one of them.
MAX_INSTANCES = 150_000
MAX_OF_BAG = 30_000
_MAX_PIXELS = 6_000_000


def page_data(
    predictions: Predictions, bags: Bags, truth: Ints | None, evaluation: Evaluation | None
) -> dict[str, object]:
    """Everything that the script shows, as plain lists, numbers and strings.

    Parameters
    ----------
    predictions : Predictions
    bags : Bags
    truth : array of shape (n_bags, F), optional
        0, 1, or -1 for unknown.
    evaluation : Evaluation, optional
        What the threshold of the page is tried on.
    """
    table = predictions.bags
    return {
        "classes": [str(column.positive) for column in predictions.axis],
        "negatives": [str(column.negative) for column in predictions.axis],
        "threshold": predictions.threshold,
        "ids": [str(v) for v in table["id"]],
        "p": _rounded_rows(predictions.values(table)),
        "std": _rounded_rows(predictions.values(table, "std")),
        "called": predictions.called.T.tolist(),
        "truth": None if truth is None else truth.T.tolist(),
        "n": bags.sizes.tolist(),
        "evaluation": None
        if evaluation is None
        else {"y": evaluation.y.T.tolist(), "p": _rounded_rows(evaluation.probability)},
        "instances": None if predictions.instances is None else _instances(predictions, bags),
    }


def shown_bags(predictions: Predictions, bags: Bags) -> Ints:
    """The most probable bags of every class whose instances fit the page: at least one."""
    order = np.argsort(_best_rank(predictions.values(predictions.bags)), kind="stable")
    used = np.cumsum(np.minimum(bags.sizes[order], _cap(bags)))  # instances up to each bag
    return order[: max(1, int((used <= MAX_INSTANCES).sum()))]


def _cap(bags: Bags) -> int:
    """How many instances of one bag the page shows: all, unless that leaves no room."""
    return MAX_INSTANCES if bags.n_instances <= MAX_INSTANCES else MAX_OF_BAG


def _best_rank(values: Floats) -> Floats:
    """Rank of rows [n, F] under the class that puts them first, 1 for the largest value, [n]."""
    return rankdata(-values, method="ordinal", axis=0).min(axis=1)


def _instances(predictions: Predictions, bags: Bags) -> dict[str, Any]:
    """Instances of the most probable bags, as many as fit the page."""
    table = predictions.instances
    assert table is not None  # asked only of models that rank instances
    values = predictions.values(table)  # [N, F]
    if np.isnan(values).any():  # scores only: their rank is all there is to show
        values = predictions.values(table, "score")
        values = rankdata(values, axis=0) / len(values)
    shown = shown_bags(predictions, bags)
    parts = [_sample(values, bags.offsets[i], bags.offsets[i + 1], _cap(bags)) for i in shown]
    rows, sizes = np.concatenate(parts), np.array([len(part) for part in parts])
    above = np.asarray(segments.sum((values > 0.5).astype(np.float64), bags.offsets))  # [B, F]
    std = predictions.values(table, "std")[rows]
    data: dict[str, Any] = {
        "bags": shown.tolist(),
        "sizes": sizes.tolist(),
        "p": [_packed(column) for column in values[rows].T],
        "std": [_packed(column) for column in std.T] if np.isfinite(std).all() else None,
        "above": above[shown].T.astype(int).tolist(),
    }
    if (sizes < bags.sizes[shown]).any():
        numbers = rows - np.repeat(bags.offsets[:-1][shown], sizes)
        data["numbers"] = _base64(numbers.astype("<u4"))
    coords = bags.columns.get("coords")
    if coords is not None and coords.ndim == 2 and coords.shape[1] > 1:  # an order is no map
        data["xy"] = _base64(np.asarray(coords)[rows, :2].astype("<f4"))
        size = bags.columns.get("patch_size")
        data["patch"] = None if size is None else size[bags.offsets[:-1][shown]].tolist()
    images = pictures(bags)
    if images is not None:
        data["images"] = _pixels(images, rows)
    return data


def _sample(values: Floats, start: int, stop: int, cap: int) -> Ints:
    """Rows of a bag; of a large one, the most probable half of ``cap`` and an even spread."""
    if stop - start <= cap:
        return np.arange(start, stop)
    order = np.argsort(_best_rank(values[start:stop]), kind="stable")
    top, rest = order[: cap // 2], np.sort(order[cap // 2 :])
    spread = rest[np.linspace(0, len(rest) - 1, cap - len(top)).astype(int)]
    return start + np.sort(np.concatenate([top, spread]))


def pictures(bags: Bags) -> NDArray[Any] | None:
    """The column of pictures, gray or RGB, where the bags have one that a browser can show."""
    images = bags.columns.get("images")
    if images is None:
        return None
    images = np.asarray(images)
    has_channels = images.ndim == 4 and images.shape[3] in (1, 3, 4)
    return images if images.ndim == 3 or has_channels else None


def as_bytes(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Pixels of any type as bytes, the darkest black and the brightest white."""
    if pixels.dtype == np.uint8:
        return pixels
    low, high = float(pixels.min()), float(pixels.max())
    return np.asarray((pixels - low) / ((high - low) or 1.0) * 255).astype(np.uint8)


def _pixels(images: NDArray[Any], rows: Ints) -> dict[str, object]:
    """Raw pixels, gray or RGB, thinned until they fit."""
    step = 1  # every so many rows and columns are kept
    while len(rows) * (images.shape[1] // step) * (images.shape[2] // step) > _MAX_PIXELS:
        step += 1
    small = as_bytes(images[rows][:, ::step, ::step])
    small = small[..., None] if small.ndim == 3 else small[..., :3]
    return {
        "height": small.shape[1],
        "width": small.shape[2],
        "channels": small.shape[3],
        "pixels": _base64(small),
    }


def _packed(values: Floats) -> str:
    return _base64(np.round(np.clip(values, 0, 1) * 65535).astype("<u2"))


def _base64(array: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


def _rounded_rows(values: Floats) -> list[list[float | None]]:
    """A list per class of numbers to five places, None where there are none."""
    return [[round(float(v), 5) if np.isfinite(v) else None for v in part] for part in values.T]
