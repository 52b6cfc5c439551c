"""Naive twins of core.segments: one Python loop over segments."""

from __future__ import annotations

import itertools

import numpy as np


def each(values, offsets):
    return [values[a:b] for a, b in itertools.pairwise(offsets)]


def sum_(values, offsets):
    return np.array([s.sum(axis=0) for s in each(values, offsets)])


def max_(values, offsets):
    empty = np.full(values.shape[1:], -np.inf)
    return np.array([s.max(axis=0) if len(s) else empty for s in each(values, offsets)])


def logsumexp(values, offsets):
    from scipy.special import logsumexp as lse

    return np.array([lse(s) if len(s) else -np.inf for s in each(values, offsets)])


def softmax(values, offsets):
    parts = [
        np.exp(s - s.max()) / np.exp(s - s.max()).sum() for s in each(values, offsets) if len(s)
    ]
    return np.concatenate(parts) if parts else np.empty(0)


def max_of_others(values, offsets, alone=0.0):
    out = []
    for s in each(values, offsets):
        for i in range(len(s)):
            others = np.delete(s, i)
            out.append(others.max() if len(others) else alone)
    return np.array(out)


def argmax(values, offsets):
    return np.array([a + np.argmax(values[a:b]) for a, b in itertools.pairwise(offsets)])


def take(offsets, chosen):
    rows = [np.arange(offsets[i], offsets[i + 1]) for i in chosen]
    sizes = [len(r) for r in rows]
    return np.concatenate([*rows, np.empty(0, int)]), np.concatenate([[0], np.cumsum(sizes)])
