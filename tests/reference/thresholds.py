"""Thresholds by trying every cut, one bag at a time."""

from __future__ import annotations

from itertools import pairwise


def counts(y, scores, threshold):
    tp = sum(1 for t, s in zip(y, scores, strict=True) if t == 1 and s > threshold)
    tn = sum(1 for t, s in zip(y, scores, strict=True) if t == 0 and not s > threshold)
    return tp, tn


def candidates(scores):
    levels = sorted(set(scores))
    return [levels[0] - 1e-9, *((a + b) / 2 for a, b in pairwise(levels)), levels[-1]]


def best_cost(y, scores, miss, alarm):
    """The smallest sum of costs over every cut."""
    n, m = sum(y), len(y) - sum(y)
    return min(
        miss * (n - tp) + alarm * (m - tn)
        for tp, tn in (counts(y, scores, t) for t in candidates(scores))
    )


def best_specificity(y, scores, sensitivity):
    """The largest count of spared negatives among cuts that reach the sensitivity."""
    found = [counts(y, scores, t) for t in candidates(scores)]
    return max(tn for tp, tn in found if tp >= sensitivity * sum(y) - 1e-9)


def best_sensitivity(y, scores, specificity):
    found = [counts(y, scores, t) for t in candidates(scores)]
    return max(tp for tp, tn in found if tn >= specificity * (len(y) - sum(y)) - 1e-9)
