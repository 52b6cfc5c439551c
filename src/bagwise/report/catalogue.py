"""The data sets bagwise knows, as rows of a table."""

from __future__ import annotations

from bagwise import datasets

_BUNDLED = {
    "musk1": ("molecules, musk or not", datasets.load_musk1),
    "musk2": ("more conformations", datasets.load_musk2),
    "elephant": ("images by segments", datasets.load_elephant),
    "fox": ("images by segments", datasets.load_fox),
    "tiger": ("images by segments", datasets.load_tiger),
    "digits": ("8 x 8 handwriting", datasets.load_digit_bags),
}
# What it is, bags and positive bags.
_FETCHED = {
    "newsgroups/NAME": ("posts, 20 sets", 100, 50),
    "mnist": ("28 x 28 handwriting", None, None),
    "tracking/NAME": ("david, girl: video", None, None),
    "detection/bccd": ("blood cells", None, None),
}
_COLUMNS = ("name", "bags", "positive", "instances", "features", "where", "what")


def catalogue() -> list[dict[str, object]]:
    """Name, counts, place and description of every data set.

    Examples
    --------
    >>> from bagwise.report.catalogue import catalogue
    >>> catalogue()[0]["name"], catalogue()[0]["bags"]
    ('musk1', 92)
    """
    rows: list[tuple[object, ...]] = []
    for name, (what, load) in _BUNDLED.items():
        data = load()
        bags, positive = data.bags, int((data.y == data.y.max()).sum())
        sizes = (len(bags), positive, bags.n_instances, bags.n_features)
        rows.append((name, *sizes, "bundled", what))
    for name, (what, n_bags, n_positive) in _FETCHED.items():
        rows.append((name, n_bags, n_positive, None, None, "fetched", what))
    return [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
