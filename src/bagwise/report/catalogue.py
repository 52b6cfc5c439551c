"""The data sets bagwise knows, as rows of a table."""

from __future__ import annotations

from typing import Any

from bagwise import datasets


def catalogue() -> list[dict[str, Any]]:
    """Name, counts, place and description of every data set.

    Examples
    --------
    >>> from bagwise.report.catalogue import catalogue
    >>> catalogue()[0]["name"], catalogue()[0]["bags"]
    ('musk1', 92)
    """
    bundled = {
        "musk1": (
            "molecules, by their conformations: does one smell of musk?",
            datasets.load_musk1,
        ),
        "musk2": ("the same, with many more conformations", datasets.load_musk2),
        "elephant": ("images, by their segments: is there an elephant?", datasets.load_elephant),
        "fox": ("images, by their segments: is there a fox?", datasets.load_fox),
        "tiger": ("images, by their segments: is there a tiger?", datasets.load_tiger),
        "digits": ("bags of 8 x 8 digits, with true instance labels", datasets.load_digit_bags),
    }
    rows = [_counted(name, what, loader()) for name, (what, loader) in bundled.items()]
    home = datasets.data_home()
    fetched = [
        ("newsgroups/NAME", "posts, 20 sets: bagwise.datasets.NEWSGROUPS", 100, 50),
        ("mnist", "bags of MNIST digits: fetch_mnist_bags", None, None),
        ("tracking/NAME", "david, girl: video with boxes, fetch_tracking", None, None),
        ("detection/bccd", "blood cells with boxes, fetch_detection", None, None),
    ]
    for name, what, n, positive in fetched:
        rows.append(_row(name, n, positive, None, None, f"data home {home}", what))
    return rows


def _counted(name: str, what: str, bunch: Any) -> dict[str, Any]:
    bags = bunch.bags
    positive = int((bunch.y == bunch.y.max()).sum())
    return _row(name, len(bags), positive, bags.n_instances, bags.n_features, "bundled", what)


def _row(name: str, bags: Any, positive: Any, instances: Any, features: Any, *rest: str) -> Any:
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
