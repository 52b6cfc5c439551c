"""Bags with structure inside, and known truth: instances with neighbours, patients with slides."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch, check_random_state

from bagwise.bags import Bags
from bagwise.datasets.bunch import as_result, first_line


def make_neighbour_bags(
    n_bags: int = 60,
    n_features: int = 5,
    *,
    shape: tuple[int, ...] = (12, 12),
    smooth: bool = True,
    n_positive: tuple[int, int] = (4, 12),
    separation: float = 2.0,
    random_state: Any = None,
    return_X_y: bool = False,
) -> Any:
    """Bags of instances on a chain or a grid; positives lie together, or scattered.

    Parameters
    ----------
    n_bags : int
        Half of them, rounded down, are positive.
    n_features : int
    shape : tuple of one to three int
        Instances along each axis; one axis is a chain.
    smooth : bool
        Whether the positive instances of a bag are the nearest to one place; else they are drawn
        anywhere.
    n_positive : (int, int)
        Fewest and most positive instances in a positive bag.
    separation : float
        Distance between the means of negative and positive instances, whose noise is standard
        normal and independent.
    random_state : int, RandomState or None
    return_X_y : bool
        Return ``(bags, y)`` instead of a Bunch.

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
    y = rng.permutation(np.arange(n_bags) < n_bags // 2).astype(np.int64)
    axes = np.meshgrid(*(np.arange(n, dtype=np.float64) for n in shape), indexing="ij")
    grid = np.stack(axes, axis=-1).reshape(-1, len(shape))
    truth = np.zeros((n_bags, len(grid)), dtype=np.int64)
    for i in np.flatnonzero(y):
        count = int(rng.randint(n_positive[0], n_positive[1] + 1))
        if smooth:
            centre = grid[rng.randint(len(grid))]
            # A little noise breaks ties between places at one distance.
            distance = ((grid - centre) ** 2).sum(axis=1) + rng.uniform(0, 0.5, len(grid))
            truth[i, np.argsort(distance)[:count]] = 1
        else:
            truth[i, rng.choice(len(grid), count, replace=False)] = 1
    flat = truth.ravel()
    X = rng.normal(size=(len(flat), n_features))
    X[flat == 1] += separation / np.sqrt(n_features)
    places = np.tile(grid, (n_bags, 1))
    bags = Bags(
        X,
        np.arange(n_bags + 1) * len(grid),
        columns={"instance_labels": flat},
        coords=places[:, 0] if len(shape) == 1 else places,
    )
    bunch = Bunch(bags=bags, y=y, instance_labels=flat, DESCR=first_line(make_neighbour_bags))
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
    random_state: Any = None,
    return_X_y: bool = False,
) -> Any:
    """Patients as bags, their slides as groups, with known truth at all three levels.

    A positive patient has few slides with positive patches; the others are like those of negative
    patients.

    Parameters
    ----------
    n_patients : int
        Half of them, rounded down, are positive.
    n_features : int
    n_slides : (int, int)
        Fewest and most slides of a patient.
    n_positive_slides : (int, int)
        Fewest and most slides of a positive patient that hold positive patches.
    n_patches : (int, int)
        Fewest and most patches of a slide.
    n_positive : (int, int)
        Fewest and most positive patches of a positive slide.
    separation : float
        Distance between the means of negative and positive patches.
    random_state : int, RandomState or None
    return_X_y : bool
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
    y = rng.permutation(np.arange(n_patients) < n_patients // 2).astype(np.int64)
    truth: list[NDArray[np.int64]] = []
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
    X = rng.normal(size=(len(flat), n_features))
    X[flat == 1] += separation / np.sqrt(n_features)
    bags = Bags(
        X,
        np.concatenate([[0], np.cumsum(sizes)]),
        ids=[f"patient_{i:03d}" for i in range(n_patients)],
        columns={"instance_labels": flat},
        groups=np.asarray(groups, dtype=object),
    )
    bunch = Bunch(
        bags=bags,
        y=y,
        slide_labels=np.asarray(slide_labels),
        instance_labels=flat,
        DESCR=first_line(make_patient_bags),
    )
    return as_result(bunch, return_X_y)
