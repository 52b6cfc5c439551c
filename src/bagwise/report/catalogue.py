"""The data sets bagwise knows, as rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bagwise import datasets

if TYPE_CHECKING:
    pass


def catalogue() -> list[dict[str, object]]:
    """Name, counts, place and description of every data set.

    Examples
    --------
    >>> from bagwise.report.catalogue import catalogue
    >>> catalogue()[0]["name"], catalogue()[0]["bags"]
    ('musk1', 92)
    """
    bundled = {
        "musk1": ("molecules, musk or not", datasets.load_musk1),
        "musk2": ("more conformations", datasets.load_musk2),
        "elephant": ("images by segments", datasets.load_elephant),
        "fox": ("images by segments", datasets.load_fox),
        "tiger": ("images by segments", datasets.load_tiger),
        "digits": ("8 x 8 handwriting", datasets.load_digit_bags),
    }
    rows = [_counted(name, what, loader()) for name, (what, loader) in bundled.items()]
    fetched = [
        ("newsgroups/NAME", "posts, 20 sets", 100, 50),
        ("mnist", "28 x 28 handwriting", None, None),
        ("tracking/NAME", "david, girl: video", None, None),
        ("detection/bccd", "blood cells", None, None),
    ]
    for name, what, n, positive in fetched:
        rows.append(_row(name, n, positive, None, None, "fetched", what))
    return rows


def _counted(name: str, what: str, bunch: Any) -> dict[str, object]:
    bags = bunch.bags
    positive = int((bunch.y == bunch.y.max()).sum())
    return _row(name, len(bags), positive, bags.n_instances, bags.n_features, "bundled", what)


def _row(
    name: str, bags: int | None, positive: Any, instances: Any, features: Any, *rest: str
) -> dict[str, object]:
    where, what = rest
    return {
        "name": name,
        "bags": bags,
        "positive": positive,
        "instances": instances,
        "features": features,
        "where": where,
        "what": what,
    }
