"""Is the same thing on both sides of a split: a bag, a copy of one, an instance, a patient."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from bagwise.bags import Bags
from bagwise.core.arrays import Column
from bagwise.evaluate.audit.features import blocks
from bagwise.evaluate.audit.findings import Finding
from bagwise.evaluate.protocols import Split


def row_hashes(rows: NDArray[np.float64]) -> NDArray[np.uint64]:
    """A 64-bit hash of every row; equal rows have equal hashes (and -0.0 equals 0.0), [N]."""
    rng = np.random.default_rng(0)
    weights = rng.integers(1, 2**63, size=rows.shape[1], dtype=np.uint64) | np.uint64(1)
    bits = np.ascontiguousarray(rows + 0.0).view(np.uint64)
    # Mixed before weighting, because most bits of short decimals are zero.
    bits = (bits ^ (bits >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.asarray((bits * weights).sum(axis=1, dtype=np.uint64))


def duplicates(bags: Bags, splits: list[Split]) -> list[Finding]:
    """Bags, or instances, of which a copy is on the other side of a split."""
    codes = np.concatenate([row_hashes(rows) for _, rows in blocks(bags)])
    of_bag = [np.sort(part) for part in bags.split(codes)]
    keys = np.array([hash(part.tobytes()) for part in of_bag])
    findings = []
    same = [np.intersect1d(s.train, s.test) for s in splits]
    if any(len(part) for part in same):
        at = next(i for i, part in enumerate(same) if len(part))
        where = f"{splits[at]}: {bags.describe_bag(int(same[at][0]))}"
        strength = f"{sum(map(len, same))} bags in {sum(len(p) > 0 for p in same)} splits"
        findings.append(Finding("duplicates", "a bag is in training and test", where, strength))
    copies, shares = [], []
    owner = np.asarray(bags.bag_index)
    for split, both in zip(splits, same, strict=True):
        test = np.setdiff1d(split.test, both)
        first = {int(keys[i]): int(i) for i in reversed(split.train)}
        copied = [int(i) for i in test if int(keys[i]) in first]
        copies += [(i, first[int(keys[i])], split) for i in copied]
        # Of the other test bags, the instances that also stand in a training bag.
        rows = np.isin(owner, np.setdiff1d(test, copied))
        known = np.isin(codes[rows], codes[np.isin(owner, split.train)])
        shares.append(float(known.mean()) if rows.any() else 0.0)
    if copies:
        (bag, equal, split), count = copies[0], len({bag for bag, _, _ in copies})
        where = f"{split}: {bags.describe_bag(bag)} equals {bags.describe_bag(equal)}"
        strength = f"{count} of {len(bags)} bags have a copy in training"
        findings.append(Finding("duplicates", "identical bags across folds", where, strength))
    if max(shares, default=0.0) > 0:
        worst = int(np.argmax(shares))
        strength = f"{shares[worst]:.1%} of the test instances also stand in a training bag"
        what = "identical instances across folds"
        findings.append(Finding("duplicates", what, f"worst in {splits[worst]}", strength))
    return findings


def divided_groups(groups: Column, splits: list[Split]) -> list[Finding]:
    """Patients (or sites) with bags on both sides of a split."""
    groups = np.asarray(groups)
    divided: dict[Hashable, list[Split]] = defaultdict(list)
    for split in splits:
        for group in np.intersect1d(groups[split.train], groups[split.test]).tolist():
            divided[group].append(split)
    if not divided:
        return []
    group, where = next(iter(divided.items()))
    return [
        Finding(
            "groups",
            "a group (patient) is in training and test",
            f"{where[0]}: group {group!r}",
            f"{len(divided)} of {len(np.unique(groups))} groups",
        )
    ]
