"""Bags with known truth, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.utils import Bunch, check_random_state

from bagwise.bags import Bags
from bagwise.core.arrays import Bools, Floats, Ints, RandomState


def as_result(bunch: Bunch, return_X_y: bool) -> Any:
    """The Bunch itself, or its bags and labels."""
    return (bunch.bags, bunch.y) if return_X_y else bunch


def half_positive(n: int, rng: np.random.RandomState) -> Ints:
    """Labels of bags in random order, of which half, rounded down, are positive."""
    return rng.permutation(np.arange(n) < n // 2).astype(np.int64)


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
    n_bags : int, default=100
        Half of them, rounded down, are positive.
    n_features : int, default=2
    bag_size : (int, int), default=(4, 10)
        Smallest and largest number of instances in a bag.
    n_positive : (int, int), default=(1, 3)
        Smallest and largest number of positive instances in a positive bag.
    separation : float, default=3.0
        Distance between the two class means.
    random_state : int, RandomState or None, default=None
    return_X_y : bool, default=False
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
    X = _shifted(truth, n_features, separation, rng)
    return _result(X, sizes, y, truth, make_gaussian_bags, return_X_y)


def make_two_concept_bags(
    n_bags: int = 100,
    *,
    random_state: RandomState = None,
    return_X_y: bool = False,
) -> Any:
    """The two-dimensional set of the MIO paper (section 4.1).

    A bag has 1 to 8 instances, from five unit Gaussians at (5, 5), (5, -5), (0, 0), (-5, 5) and
    (-5, -5). It is positive when instances of at least two of the first three occur, so no single
    instance makes the label. ``instance_labels`` mark instances of those three inside positive
    bags.

    Parameters
    ----------
    n_bags : int, default=100
        Half of them, rounded down, are positive.
    random_state : int, RandomState or None, default=None
    return_X_y : bool, default=False
        Return ``(bags, y)`` instead of a Bunch.

    Examples
    --------
    >>> from bagwise.datasets import make_two_concept_bags
    >>> bags, y = make_two_concept_bags(20, random_state=0, return_X_y=True)
    >>> bool(bags.sizes.max() <= 8), int(y.sum())
    (True, 10)
    """
    rng = check_random_state(random_state)
    centres = np.array([[5, 5], [5, -5], [0, 0], [-5, 5], [-5, -5]], dtype=np.float64)
    y = half_positive(n_bags, rng)
    components = []
    for target in y:
        while True:  # drawn anew until the label is right
            drawn = rng.randint(5, size=rng.randint(1, 9))
            if (len(np.unique(drawn[drawn < 3])) >= 2) == target:
                break
        components.append(drawn)
    sizes = np.array([len(c) for c in components])
    flat = np.concatenate(components)
    X = centres[flat] + rng.normal(size=(len(flat), 2))
    truth = ((flat < 3) & (np.repeat(y, sizes) == 1)).astype(np.int64)
    more = {"components": flat}
    return _result(X, sizes, y, truth, make_two_concept_bags, return_X_y, **more)


def make_neighbour_bags(
    n_bags: int = 60,
    n_features: int = 5,
    *,
    shape: tuple[int, ...] = (12, 12),
    smooth: bool = True,
    separation: float = 2.0,
    random_state: RandomState = None,
    return_X_y: bool = False,
) -> Any:
    """Bags of instances on a chain or a grid; 4 to 12 positives lie together, or scattered.

    Parameters
    ----------
    shape : tuple of one to three int, default=(12, 12)
        Instances along each axis; one axis is a chain.
    smooth : bool, default=True
        Whether the positive instances of a bag are the nearest to one place; else they are drawn
        anywhere.
    n_bags, n_features : int, default=60, 5
    separation : float, default=2.0
    random_state : int, RandomState or None, default=None
    return_X_y : bool, default=False
        All as for `make_gaussian_bags`.

    Returns
    -------
    Bunch with ``bags`` (with ``coords``), ``y`` and ``instance_labels``

    Examples
    --------
    >>> from bagwise.datasets import make_neighbour_bags
    >>> data = make_neighbour_bags(n_bags=4, shape=(5, 5), random_state=0)
    >>> data.bags.coords.shape, int(data.y.sum())
    ((100, 2), 2)
    """
    rng = check_random_state(random_state)
    y = half_positive(n_bags, rng)
    axes = np.meshgrid(*(np.arange(n, dtype=np.float64) for n in shape), indexing="ij")
    grid = np.stack(axes, axis=-1).reshape(-1, len(shape))
    truth = np.zeros((n_bags, len(grid)), dtype=np.int64)
    for i in np.flatnonzero(y):
        count = int(rng.randint(4, 13))
        if smooth:
            centre = grid[rng.randint(len(grid))]
            # A little noise breaks ties between places at one distance.
            distance = ((grid - centre) ** 2).sum(axis=1) + rng.uniform(0, 0.5, len(grid))
            truth[i, np.argsort(distance)[:count]] = 1
        else:
            truth[i, rng.choice(len(grid), count, replace=False)] = 1
    flat = truth.ravel()
    X = _shifted(flat, n_features, separation, rng)
    places = np.tile(grid, (n_bags, 1))
    sizes = np.full(n_bags, len(grid))
    bunch = _result(X, sizes, y, flat, make_neighbour_bags, False)
    bunch.bags = bunch.bags.with_columns(coords=places[:, 0] if len(shape) == 1 else places)
    return as_result(bunch, return_X_y)


def make_patient_bags(
    n_patients: int = 60,
    n_features: int = 5,
    *,
    n_slides: tuple[int, int] = (3, 6),
    n_positive_slides: tuple[int, int] = (1, 2),
    n_patches: tuple[int, int] = (8, 16),
    n_positive: tuple[int, int] = (1, 4),
    separation: float = 3.0,
    random_state: RandomState = None,
    return_X_y: bool = False,
) -> Any:
    """Patients as bags, their slides as groups, with known truth at all three levels.

    A positive patient has few slides with positive patches; the others are like those of negative
    patients.

    Parameters
    ----------
    n_patients : int, default=60
        Half of them, rounded down, are positive.
    n_features : int, default=5
    n_slides : (int, int), default=(3, 6)
        Fewest and most slides of a patient.
    n_positive_slides : (int, int), default=(1, 2)
        Fewest and most slides of a positive patient that hold positive patches.
    n_patches : (int, int), default=(8, 16)
        Fewest and most patches of a slide.
    n_positive : (int, int), default=(1, 4)
        Fewest and most positive patches of a positive slide.
    separation : float, default=3.0
        Distance between the means of negative and positive patches.
    random_state : int, RandomState or None, default=None
    return_X_y : bool, default=False
        Return ``(bags, y)`` instead of a Bunch.

    Returns
    -------
    Bunch with ``bags`` (with ``groups``), ``y`` of the patients, ``slide_labels`` in the order of
    ``bags.by_group()``, and ``instance_labels``

    Examples
    --------
    >>> from bagwise.datasets import make_patient_bags
    >>> data = make_patient_bags(n_patients=4, random_state=0)
    >>> len(data.bags), len(data.bags.by_group()) == len(data.slide_labels)
    (4, True)
    """
    rng = check_random_state(random_state)
    y = half_positive(n_patients, rng)
    truth: list[Ints] = []
    groups: list[str] = []
    slide_labels, sizes = [], []
    for i, positive in enumerate(y):
        count = int(rng.randint(n_slides[0], n_slides[1] + 1))
        n_held = positive * rng.randint(n_positive_slides[0], n_positive_slides[1] + 1)
        held = rng.permutation(np.arange(count) < n_held)
        patches = rng.randint(n_patches[0], n_patches[1] + 1, size=count)
        for s, (has, n) in enumerate(zip(held, patches.tolist(), strict=True)):
            k = has * rng.randint(n_positive[0], n_positive[1] + 1)
            truth.append(rng.permutation(np.arange(n) < k).astype(np.int64))
            groups += [f"patient_{i:03d}_slide_{s}"] * n
            slide_labels.append(int(has))
        sizes.append(int(patches.sum()))
    flat = np.concatenate(truth)
    X = _shifted(flat, n_features, separation, rng)
    more = {"slide_labels": np.asarray(slide_labels)}
    bunch = _result(X, np.array(sizes), y, flat, make_patient_bags, False, **more)
    names = [f"patient_{i:03d}" for i in range(n_patients)]
    bags = bunch.bags
    bunch.bags = Bags(bags.instances, bags.offsets, names, columns=bags.columns, groups=groups)
    return as_result(bunch, return_X_y)


def draw_plan(
    n_bags: int, bag_size: tuple[int, int], n_positive: tuple[int, int], rng: np.random.RandomState
) -> tuple[Ints, Ints, Ints]:
    """Label, number of instances, and number of positive ones, of every bag, [B] each."""
    y = half_positive(n_bags, rng)
    sizes = rng.randint(bag_size[0], bag_size[1] + 1, size=n_bags)
    counts = rng.randint(n_positive[0], n_positive[1] + 1, size=n_bags)
    return y, sizes, np.minimum(counts, sizes) * y


def place_positives(sizes: Ints, counts: Ints, rng: np.random.RandomState) -> Bools:
    """Which instances are positive, anywhere in their bags, bool [N]."""
    return np.concatenate(
        [rng.permutation(np.arange(n) < k) for n, k in zip(sizes, counts, strict=True)]
    )


def _shifted(truth: Ints, n_features: int, separation: float, rng: np.random.RandomState) -> Floats:
    """Standard Gaussian instances, positive ones ``separation`` away, [N, D]."""
    X = rng.normal(size=(len(truth), n_features))
    X[truth == 1] += separation / np.sqrt(n_features)
    return X


def _result(
    X: Floats,
    sizes: Ints,
    y: Ints,
    truth: Ints,
    maker: Callable[..., object],
    return_X_y: bool,
    **more: object,
) -> Any:
    """What a generator returns; the first line of its docstring describes it."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    bags = Bags(X, offsets, columns={"instance_labels": truth})
    about = (maker.__doc__ or "").strip().splitlines()[0]
    bunch = Bunch(bags=bags, y=y, instance_labels=truth, DESCR=about, **more)
    return as_result(bunch, return_X_y)
