"""Bags with known truth, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils import Bunch, check_random_state

from bagwise.bags import Bags
from bagwise.datasets.bunch import as_result, first_line

if TYPE_CHECKING:
    from bagwise.core.arrays import Bools, Floats, Ints, RandomState


def make_gaussian_bags(
    n_bags: int = 100,
    n_features: int = 2,
    *,
    bag_size: tuple[int, int] = (4, 10),
    n_positive: tuple[int, int] = (1, 3),
    separation: float = 3.0,
    random_state: RandomState = None,
    return_X_y: bool = False,
) -> Any:
    """Bags of standard Gaussian instances; positive bags hold a few shifted ones.

    Parameters
    ----------
    n_bags : int
        Half of them, rounded down, are positive.
    n_features : int
    bag_size : (int, int)
        Smallest and largest number of instances in a bag.
    n_positive : (int, int)
        Smallest and largest number of positive instances in a positive bag.
    separation : float
        Distance between the two class means.
    random_state : int, RandomState or None
    return_X_y : bool
        Return ``(bags, y)`` instead of a Bunch.

    Examples
    --------
    >>> from bagwise.datasets import make_gaussian_bags
    >>> data = make_gaussian_bags(n_bags=10, random_state=0)
    >>> data.bags.shape, int(data.y.sum()), data.instance_labels.max()
    ((10,), 5, np.int64(1))
    """
    rng = check_random_state(random_state)
    y, sizes, counts = draw_plan(n_bags, bag_size, n_positive, rng)
    truth = place_positives(sizes, counts, rng).astype(np.int64)
    X = rng.normal(size=(len(truth), n_features))
    X[truth == 1] += separation / np.sqrt(n_features)
    return as_result(_bunch(X, sizes, y, truth, make_gaussian_bags), return_X_y)


def make_two_concept_bags(
    n_bags: int = 100,
    *,
    max_size: int = 8,
    random_state: RandomState = None,
    return_X_y: bool = False,
) -> Any:
    """The two-dimensional set of the MIO paper (section 4.1).

    Instances come from five unit Gaussians at (5, 5), (5, -5), (0, 0), (-5, 5), (-5, -5). A bag
    is positive when instances of at least two of the first three occur, so no single instance
    makes the label. ``instance_labels`` mark instances of those three inside positive bags.

    Parameters
    ----------
    n_bags : int
        Half of them, rounded down, are positive.
    max_size : int
        Largest number of instances in a bag, at least 2.
    random_state : int, RandomState or None
    return_X_y : bool
        Return ``(bags, y)`` instead of a Bunch.

    Examples
    --------
    >>> from bagwise.datasets import make_two_concept_bags
    >>> bags, y = make_two_concept_bags(20, random_state=0, return_X_y=True)
    >>> bool(bags.sizes.max() <= 8), int(y.sum())
    (True, 10)
    """
    if max_size < 2:
        raise ValueError(f"max_size must be at least 2, or no bag can be positive; got {max_size}.")
    rng = check_random_state(random_state)
    centres = np.array([[5, 5], [5, -5], [0, 0], [-5, 5], [-5, -5]], dtype=np.float64)
    y = rng.permutation(np.arange(n_bags) < n_bags // 2).astype(np.int64)
    components = [_draw_components(rng, bool(target), max_size) for target in y]
    sizes = np.array([len(c) for c in components])
    flat = np.concatenate(components)
    X = centres[flat] + rng.normal(size=(len(flat), 2))
    truth = ((flat < 3) & (np.repeat(y, sizes) == 1)).astype(np.int64)
    bunch = _bunch(X, sizes, y, truth, make_two_concept_bags)
    bunch.components = flat
    return as_result(bunch, return_X_y)


def draw_plan(
    n_bags: int, bag_size: tuple[int, int], n_positive: tuple[int, int], rng: np.random.RandomState
) -> tuple[Ints, Ints, Ints]:
    """Label, number of instances, and number of positive ones, of every bag, [B] each."""
    y = rng.permutation(np.arange(n_bags) < n_bags // 2).astype(np.int64)
    sizes = rng.randint(bag_size[0], bag_size[1] + 1, size=n_bags)
    counts = rng.randint(n_positive[0], n_positive[1] + 1, size=n_bags)
    return y, sizes, np.minimum(counts, sizes) * y


def place_positives(sizes: Ints, counts: Ints, rng: np.random.RandomState) -> Bools:
    """Which instances are positive, anywhere in their bags, bool [N]."""
    return np.concatenate(
        [rng.permutation(np.arange(n) < k) for n, k in zip(sizes, counts, strict=True)]
    )


def _draw_components(rng: np.random.RandomState, positive: bool, max_size: int) -> Ints:
    """Component numbers of one bag, by rejection until the label is right."""
    while True:
        drawn = rng.randint(5, size=rng.randint(1, max_size + 1))
        if (len(np.unique(drawn[drawn < 3])) >= 2) == positive:
            return drawn


def _bunch(X: Floats, sizes: Ints, y: Ints, truth: Ints, maker: Callable[..., object]) -> Bunch:
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    bags = Bags(X, offsets, columns={"instance_labels": truth})
    return Bunch(bags=bags, y=y, instance_labels=truth, DESCR=first_line(maker))
