"""Unit tests of the multiple-instance assumption, run on a model.

After the algorithmic unit tests of Raff and Holt ("Reproducibility in Multiple Instance Learning:
A Case For Algorithmic Unit Tests", NeurIPS 2023). Each generator makes training bags with an easy
cue that the assumption forbids, and test bags in which the cue points the wrong way. A model that
took the cue scores an AUC below 0.5 on them, however good it looks on ordinary held-out bags.

Background instances are standard Gaussian. "Poison" is a tight cluster far away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.metrics import roc_auc_score
from sklearn.utils import check_random_state

from bagwise.bags import Bags
from bagwise.core.arrays import Ints, RandomState
from bagwise.evaluate.metrics import class_columns, model_outputs
from bagwise.models.base import Model
from bagwise.models.one_vs_rest import for_labels

_CONCEPTS = (3.0, 4.5)  # mean of every feature
_APART = 3.0  # between the concepts of one class and the next
_POISON = -10.0
_TIGHT = 0.1
_NEAR_CONCEPT = 1.5
# Least AUC on clean bags that counts as solved. Not asked of the multi-concept test, which the
# standard assumption cannot express, nor of the size trap, whose concept is hard to see.
_SOLVED = 0.95
# Instances of background in a bag, and in a large one.
_SMALL, _LARGE = (3, 10), (20, 31)


class AssumptionProblem(NamedTuple):
    """A training set and two test sets, as (bags, y)."""

    train: tuple[Bags, Ints]
    clean: tuple[Bags, Ints]
    trap: tuple[Bags, Ints]


def make_assumption_bags(
    test: str,
    n_bags: int = 100,
    n_features: int = 4,
    *,
    n_classes: int = 2,
    random_state: RandomState = None,
) -> AssumptionProblem:
    """Bags of one test of the multiple-instance assumption.

    Parameters
    ----------
    test : {"single-concept", "multi-concept", "false-frequency", "size-trap"}
        Single concept: positive bags hold a concept; training negatives hold poison instead, so
        that "no poison, hence positive" separates the training bags perfectly. In the clean test
        set there is no poison; in the trap it sits in the positive bags, beside the concept.

        Multi concept: a bag is positive when two concepts meet in it; training negatives hold
        poison, and one of the two concepts or none. This is the threshold assumption, one step
        beyond the standard one: a model under the standard assumption cannot solve it, but it
        must not fall below chance on the trap either, where poison sits in the positive bags.

        False frequency: the key instance comes with a harmless companion, whose count must not
        matter. In training, positive bags hold the companion once and the key instance once,
        negative bags the companion once: counting instances near both would do. In the trap the
        negative bags hold the companion 30 to 40 times, so that a model which counts, averages or
        adds up weak evidence ranks them above the positive ones.

        Size trap: positive training bags hold the concept and 20 to 30 instances of background,
        negative bags 3 to 9: counting instances would do, and the concept lies nearer than in the
        other tests. In the clean test set all bags have 3 to 9; in the trap the negative bags are
        the large ones.
    n_bags : int, default=100
        In each of the three sets, as many of each class.
    n_features : int, default=4
    n_classes : int, default=2
        With more than two, class 0 is the background and every other class has a concept of its
        own.
    random_state : int, RandomState or None, default=None

    Returns
    -------
    AssumptionProblem
        ``train``, ``clean`` and ``trap``, each a pair of bags and labels.

    Examples
    --------
    >>> from bagwise.evaluate import make_assumption_bags
    >>> problem = make_assumption_bags("single-concept", n_bags=20, random_state=0)
    >>> len(problem.train[0]), int(problem.trap[1].sum())
    (20, 10)
    """
    if test not in TESTS:
        raise ValueError(f"test must be one of {list(TESTS)}; got {test!r}.")
    if n_classes < 2:
        raise ValueError(f"n_classes must be at least 2; got {n_classes}.")
    rng = check_random_state(random_state)
    labels = np.arange(n_bags) % n_classes
    clusters, _ = TESTS[test]

    def draw(kind: str) -> tuple[Bags, Ints]:
        arrays = []
        for y in labels.tolist():
            large = test == "size-trap" and (y > 0 if kind == "train" else kind == "trap" and not y)
            n_background = rng.randint(*(_LARGE if large else _SMALL))
            parts = [rng.standard_normal((n_background, n_features))]
            for centre, count in clusters(rng, y, kind, n_classes):
                parts.append(centre + _TIGHT * rng.standard_normal((count, n_features)))
            arrays.append(rng.permutation(np.concatenate(parts)))
        return Bags.from_list(arrays), labels.copy()

    return AssumptionProblem(draw("train"), draw("clean"), draw("trap"))


# What a bag of class y holds beside background: centre and count of every cluster.


def _single_concept(rng: Any, y: int, kind: str, n_classes: int) -> list[tuple[float, int]]:
    concept = [(_concept(0, y), rng.randint(1, 4))] if y else []
    return concept + _poison(rng, y, kind)


def _multi_concept(rng: Any, y: int, kind: str, n_classes: int) -> list[tuple[float, int]]:
    counts = [rng.randint(1, 4), rng.randint(1, 4)]
    kept = (0, 1) if y else ((), (0,), (1,))[rng.randint(3)]
    whose = y or (1 if n_classes == 2 else rng.randint(1, n_classes))
    return [(_concept(k, whose), counts[k]) for k in kept] + _poison(rng, y, kind)


def _false_frequency(rng: Any, y: int, kind: str, n_classes: int) -> list[tuple[float, int]]:
    companion = (_CONCEPTS[0], rng.randint(30, 41) if kind == "trap" and not y else 1)
    return [companion, (_concept(1, y), 1)] if y else [companion]


def _size_trap(rng: Any, y: int, kind: str, n_classes: int) -> list[tuple[float, int]]:
    return [(_NEAR_CONCEPT + _APART * (y - 1), 1)] if y else []


def _concept(number: int, y: int) -> float:
    """Mean of every feature in a concept of class ``y``."""
    return _CONCEPTS[number] + _APART * (y - 1)


def _poison(rng: Any, y: int, kind: str) -> list[tuple[float, int]]:
    """Poison is in the negative bags for training and in the positive ones of the trap."""
    poisoned = (kind == "train" and not y) or (kind == "trap" and y)
    return [(_POISON, rng.randint(1, 4))] if poisoned else []


# Test name -> clusters of a bag, and whether a standard model is expected to solve the clean bags.
TESTS: dict[str, tuple[Any, bool]] = {
    "single-concept": (_single_concept, True),
    "multi-concept": (_multi_concept, False),
    "false-frequency": (_false_frequency, True),
    "size-trap": (_size_trap, False),
}


@dataclass(frozen=True)
class Verdict:
    """Outcome of one test."""

    test: str
    clean_auc: float
    trap_auc: float
    avoids: bool  # trap AUC above 0.5
    solves: bool  # clean AUC near 1, where the standard assumption suffices

    @property
    def passed(self) -> bool:
        """Whether the model avoids the trap and solves what it should."""
        return self.avoids and self.solves

    def __str__(self) -> str:
        word = "passes" if self.passed else "FAILS"
        why = ""
        if not self.avoids:
            why = ": took the forbidden cue"
        elif not self.solves:
            why = ": does not find the concept"
        return (
            f"{self.test:<16} {word}{why} "
            f"(AUC {self.clean_auc:.2f} clean, {self.trap_auc:.2f} trap)"
        )


def check_mil(
    model: Model,
    *,
    n_bags: int = 100,
    n_classes: int = 2,
    n_repeats: int = 3,
    random_state: int = 0,
    verbose: bool = True,
) -> list[Verdict]:
    """Test whether a model keeps the multiple-instance assumption, and print a verdict per test.

    Parameters
    ----------
    model : unfitted bag classifier, or str
        An estimator, or a name of the registry.
    n_bags : int, default=100
        Size of the training set and of each test set.
    n_classes : int, default=2
        With more than two, class 0 is the background, and AUCs are means over the other classes:
        on clean bags each against all others, on the trap against the background. A model of two
        classes is fitted once per class.
    n_repeats : int, default=3
        Data sets per test; AUCs are averaged.
    random_state : int, default=0
    verbose : bool, default=True
        Print the verdicts.

    Returns
    -------
    list of Verdict
        With ``test``, ``clean_auc``, ``trap_auc``, ``avoids``, ``solves`` and ``passed``.

    References
    ----------
    [Raff2023]_

    Examples
    --------
    >>> from bagwise.evaluate import check_mil
    >>> verdicts = check_mil("single-instance", n_bags=40, n_repeats=1, verbose=False)
    >>> print(verdicts[0])
    single-concept   passes (AUC 1.00 clean, 1.00 trap)
    """
    if isinstance(model, str):
        from bagwise.models.registry import make_model

        model = make_model(model, random_state=random_state)
    verdicts = []
    for test, (_, solvable) in TESTS.items():
        problems = (
            make_assumption_bags(
                test, n_bags, n_classes=n_classes, random_state=random_state + repeat
            )
            for repeat in range(n_repeats)
        )
        aucs = np.array([_aucs(model, problem) for problem in problems])
        clean, trap = (float(v) for v in aucs.mean(axis=0))
        verdicts.append(Verdict(test, clean, trap, trap > 0.5, not solvable or clean >= _SOLVED))
        if verbose:
            print(verdicts[-1])
    return verdicts


def _aucs(model: Model, problem: AssumptionProblem) -> tuple[float, float]:
    """AUC on the clean bags and on the trap of a model fitted to the training bags."""
    bags, y = problem.train
    background = {"background": 0} if len(np.unique(y)) > 2 else {}
    # With two classes the background is class 0 in any case.
    fitted = for_labels(clone(model), y).fit(bags, y, **background)
    classes = class_columns(fitted)  # [F], labels are their positions

    def auc(bags: Bags, y: Ints, against_all: bool) -> float:
        scores = model_outputs(fitted, bags, wanted=("score",))["score"]  # [B, F]
        if classes[0] == 0 and not against_all:
            # Against the background alone, the question is that class or the background.
            scores = scores - scores[:, :1]
        each = []
        for c, score in zip(classes, scores.T, strict=True):
            rows = (y == c) | (y == 0) | against_all
            if c > 0:
                each.append(roc_auc_score(y[rows] == c, score[rows]))
        return float(np.mean(each))

    # The cue of a trap sets background bags apart from all others, whatever their class.
    return auc(*problem.clean, against_all=True), auc(*problem.trap, against_all=False)
