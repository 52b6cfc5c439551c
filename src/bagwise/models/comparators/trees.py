"""Grown trees as plain arrays: scikit-learn grows them, and what is kept needs no trust to load.

A model file holds no compiled tree objects, so that loading one cannot run past its arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bagwise.core.arrays import Floats, Ints, Reals

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator


class Trees(NamedTuple):
    """Nodes of several binary trees in a row; a leaf is its own child."""

    roots: Ints  # [T]
    left: Ints  # [nodes] where x <= threshold
    right: Ints  # [nodes]
    feature: Ints  # [nodes]
    threshold: Floats  # [nodes]
    value: Floats  # [nodes]

    def leaves(self, X: Reals) -> Floats:
        """Value of the leaf that each row reaches in each tree, [N, T]."""
        from bagwise.core.baseline_passes import walk

        x = np.asfortranarray(X, dtype=np.float32)  # as scikit-learn compares
        values = np.empty((len(x), len(self.roots)))
        walk(x, self.roots, self.left, self.right, self.feature, self.threshold, self.value, values)
        return values


def keep(estimators: Sequence[BaseEstimator]) -> Trees:
    """The trees of a fitted ensemble; values are the second class's share, or the prediction."""
    trees = [estimator.tree_ for estimator in estimators]
    roots = np.concatenate([[0], np.cumsum([tree.node_count for tree in trees])])
    left, right, value = [], [], []
    for tree, root in zip(trees, roots, strict=False):
        nodes = np.arange(tree.node_count)  # a leaf is its own child
        is_leaf = tree.children_left < 0
        left.append(root + np.where(is_leaf, nodes, tree.children_left))
        right.append(root + np.where(is_leaf, nodes, tree.children_right))
        out = tree.value[:, 0, :]
        value.append(out[:, 0] if out.shape[1] == 1 else out[:, 1] / out.sum(axis=1))
    return Trees(
        roots[:-1].astype(np.int64),
        np.concatenate(left).astype(np.int64),
        np.concatenate(right).astype(np.int64),
        # A leaf compares any feature, and both ways lead back to it.
        np.concatenate([np.maximum(tree.feature, 0) for tree in trees]).astype(np.int64),
        np.concatenate([tree.threshold for tree in trees]),
        np.concatenate(value),
    )


def forest_log_odds(trees: Trees, X: Reals) -> Floats:
    """Log-odds of the mean share over the trees, [N].

    A forest may be unanimous; its log-odds are held within those of one vote in a thousand.
    """
    p = np.clip(trees.leaves(X).mean(axis=1), 1e-3, 1 - 1e-3)
    odds: Floats = np.log(p) - np.log1p(-p)
    return odds
