"""Sets that come with the package: MUSK, Elephant, Fox, Tiger, and digit bags."""

from __future__ import annotations

from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch, check_random_state

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Ints, RandomState
from bagwise.datasets.generators import as_result, draw_plan, place_positives

_ABOUT = {
    "musk1": "Molecules (bags) and their conformations: does it smell of musk? UCI, 1994.",
    "musk2": "As musk1, with more and larger molecules. UCI, 1994.",
    "elephant": "Corel images (bags) and their segments: is there an elephant? Andrews, 2002.",
    "fox": "Corel images (bags) and their segments: is there a fox? Andrews, 2002.",
    "tiger": "Corel images (bags) and their segments: is there a tiger? Andrews, 2002.",
}


def _load(name: str, return_X_y: bool) -> Any:
    source = resources.files("bagwise.datasets") / "data" / f"{name}.npz"
    with source.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files}
    bags = Bags.from_groups(arrays["X"].astype(np.float64), arrays["bag"])
    names = arrays.get("names")
    if names is not None and len(names) == len(bags):
        bags = Bags(bags.instances, bags.offsets, names)
    bunch = Bunch(
        bags=bags,
        y=arrays["bag_label"].astype(np.int64),
        published_folds=arrays.get("cv5x10_test_fold"),
        target_names=np.array(["negative", "positive"]),
        DESCR=_ABOUT[name],
    )
    return as_result(bunch, return_X_y)


def load_musk1(*, return_X_y: bool = False) -> Any:
    """MUSK1: 92 molecules, 476 conformations, 166 features.

    Parameters
    ----------
    return_X_y : bool, default=False
        Return ``(bags, y)`` instead of a Bunch with ``bags``, ``y``, ``published_folds``
        (5 repetitions of 10 folds, the test fold of each bag) and ``DESCR``.

    Examples
    --------
    >>> from bagwise.datasets import load_musk1
    >>> load_musk1().bags
    Bags(92 bags, 476 instances, 166 features)
    """
    return _load("musk1", return_X_y)


def load_musk2(*, return_X_y: bool = False) -> Any:
    """MUSK2: 102 molecules, 6598 conformations, 166 features; see `load_musk1`.

    Examples
    --------
    >>> from bagwise.datasets import load_musk2
    >>> load_musk2().bags
    Bags(102 bags, 6598 instances, 166 features)
    """
    return _load("musk2", return_X_y)


def load_elephant(*, return_X_y: bool = False) -> Any:
    """Elephant: 200 images, 1391 segments, 230 features; see `load_musk1`.

    Examples
    --------
    >>> from bagwise.datasets import load_elephant
    >>> load_elephant().bags
    Bags(200 bags, 1391 instances, 230 features)
    """
    return _load("elephant", return_X_y)


def load_fox(*, return_X_y: bool = False) -> Any:
    """Fox: 200 images, 1320 segments, 230 features; see `load_musk1`.

    Examples
    --------
    >>> from bagwise.datasets import load_fox
    >>> load_fox().bags
    Bags(200 bags, 1320 instances, 230 features)
    """
    return _load("fox", return_X_y)


def load_tiger(*, return_X_y: bool = False) -> Any:
    """Tiger: 200 images, 1220 segments, 230 features; see `load_musk1`.

    Examples
    --------
    >>> from bagwise.datasets import load_tiger
    >>> load_tiger().bags
    Bags(200 bags, 1220 instances, 230 features)
    """
    return _load("tiger", return_X_y)


def load_digit_bags(
    *,
    positive: tuple[int, ...] = (9,),
    n_bags: int = 150,
    random_state: RandomState = 0,
    return_X_y: bool = False,
) -> Bunch:
    """Bags of scikit-learn's 8 x 8 digits with true instance labels and images.

    No digit is used twice, so a split by bag never shares an image. A bag of 5 to 12 digits is
    positive when it holds at least one of the ``positive`` ones, at most three.

    Parameters
    ----------
    positive : tuple of int, default=(9,)
        Digits that make a bag positive.
    n_bags : int, default=150
        Half of them, rounded down, are positive.
    random_state : int, RandomState or None, default=0
    return_X_y : bool, default=False
        Return ``(bags, y)`` instead of a Bunch with ``bags``, ``y``, ``instance_labels``,
        ``digits`` and ``images`` (both aligned with the instances) and ``DESCR``.

    Examples
    --------
    >>> from bagwise.datasets import load_digit_bags
    >>> data = load_digit_bags(n_bags=50)
    >>> data.bags.n_features, data.images.shape[1:], len(data.bags)
    (64, (8, 8), 50)
    """
    from sklearn.datasets import load_digits

    rng = check_random_state(random_state)
    digits = load_digits()
    bunch = bags_of_digits(
        digits.data / 16.0, digits.target, positive, n_bags, (5, 12), (1, 3), rng, reuse=False
    )
    bunch.images = bunch.bags.instances.reshape(-1, 8, 8)
    bunch.DESCR = f"Bags of 8 x 8 digits; positive when they hold one of {positive}."
    return as_result(bunch, return_X_y)


def bags_of_digits(
    X: NDArray[np.number],
    target: Ints,
    positive: tuple[int, ...],
    n_bags: int,
    bag_size: tuple[int, int],
    n_positive: tuple[int, int],
    rng: np.random.RandomState,
    *,
    reuse: bool,
) -> Bunch:
    """Deal images into bags. With ``reuse`` a pool that runs out is shuffled and dealt again."""
    y, sizes, counts = draw_plan(n_bags, bag_size, n_positive, rng)
    is_positive = np.isin(target, positive)
    dealt = {
        True: _deal(np.flatnonzero(is_positive), int(counts.sum()), rng, reuse, "positive"),
        False: _deal(
            np.flatnonzero(~is_positive), int((sizes - counts).sum()), rng, reuse, "other"
        ),
    }
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    truth = place_positives(sizes, counts, rng)
    rows = np.empty(len(truth), dtype=np.int64)
    rows[truth], rows[~truth] = dealt[True], dealt[False]
    labels = truth.astype(np.int64)
    assert np.array_equal(segments.max(labels, offsets), y)
    bags = Bags(X[rows], offsets, columns={"instance_labels": labels})
    return Bunch(bags=bags, y=y, instance_labels=labels, digits=target[rows])


def _deal(pool: Ints, n: int, rng: np.random.RandomState, reuse: bool, kind: str) -> Ints:
    if n > len(pool) and not reuse:
        raise ValueError(
            f"these bags need {n} {kind} digits but only {len(pool)} exist; "
            "ask for fewer or smaller bags."
        )
    rounds = [rng.permutation(pool) for _ in range(-(-n // len(pool)))]
    return np.concatenate([*rounds, np.empty(0, dtype=np.int64)])[:n].astype(np.int64)
