"""Is the same thing on both sides of a split: a bag, a copy of one, an instance, a patient."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bagwise.bags import Bags
from bagwise.evaluate.audit.features import blocks, width
from bagwise.evaluate.audit.findings import Finding
from bagwise.evaluate.protocols import Split

if TYPE_CHECKING:
    from bagwise.core.arrays import Column, Ints


def row_codes(bags: Bags) -> NDArray[np.uint64]:
    """A 64-bit hash of every instance; equal rows have equal codes (and -0.0 equals 0.0)."""
    rng = np.random.default_rng(0)
    weights = rng.integers(1, 2**63, size=width(bags), dtype=np.uint64) | np.uint64(1)
    parts = []
    for _, rows in blocks(bags):
        bits = np.ascontiguousarray(rows + 0.0).view(np.uint64)
        # Mixed before weighting, because most bits of short decimals are zero.
        bits = (bits ^ (bits >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        parts.append((bits * weights).sum(axis=1, dtype=np.uint64))
    return np.concatenate(parts)


def duplicates(bags: Bags, splits: list[Split]) -> list[Finding]:
    """Bags, or instances, of which a copy is on the other side of a split."""
    codes = row_codes(bags)
    of_bag = [np.sort(part) for part in bags.split(codes)]
    keys = np.array([hash(part.tobytes()) for part in of_bag])
    findings = []
    same = [np.intersect1d(s.train, s.test) for s in splits]
    if any(len(part) for part in same):
        at = next(i for i, part in enumerate(same) if len(part))
        where = f"{_where(splits[at])}: {bags.describe_bag(int(same[at][0]))}"
        strength = f"{sum(map(len, same))} bags in {sum(len(p) > 0 for p in same)} splits"
        findings.append(Finding("duplicates", "a bag is in training and test", where, strength))
    copies, shared = _copies(keys, splits, same), _shared_rows(codes, bags, keys, splits)
    if copies:
        (bag, twin, split), count = copies[0], len({bag for bag, _, _ in copies})
        where = f"{_where(split)}: {bags.describe_bag(bag)} equals {bags.describe_bag(twin)}"
        strength = f"{count} of {len(bags)} bags have a copy in training"
        findings.append(Finding("duplicates", "identical bags across folds", where, strength))
    if shared is not None:
        share, split = shared
        strength = f"{share:.1%} of the test instances also stand in a training bag"
        what = "identical instances across folds"
        findings.append(Finding("duplicates", what, f"worst in {_where(split)}", strength))
    return findings


def _copies(keys: Ints, splits: list[Split], same: list[Ints]) -> list[tuple[int, int, Split]]:
    """Test bag, the training bag that equals it, and the split."""
    copies = []
    for split, both in zip(splits, same, strict=True):
        first: dict[int, int] = {}
        for i in split.train:
            first.setdefault(int(keys[i]), int(i))
        for i in np.setdiff1d(split.test, both):
            if int(keys[i]) in first:
                copies.append((int(i), first[int(keys[i])], split))
    return copies


def _shared_rows(
    codes: NDArray[np.number], bags: Bags, keys: Ints, splits: list[Split]
) -> tuple[float, Split] | None:
    """The largest share of test instances that also stand in a training bag that is no copy."""
    shares = []
    owner = np.asarray(bags.bag_index)
    for split in splits:
        copied = split.test[np.isin(keys[split.test], keys[split.train])]
        test = np.isin(owner, np.setdiff1d(split.test, copied))
        known = np.isin(codes[test], codes[np.isin(owner, split.train)])
        shares.append(float(known.mean()) if test.any() else 0.0)
    worst = int(np.argmax(shares)) if shares else 0
    return (shares[worst], splits[worst]) if shares and shares[worst] > 0 else None


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
            f"{_where(where[0])}: group {group!r}",
            f"{len(divided)} of {len(np.unique(groups))} groups",
        )
    ]


def _where(split: Split) -> str:
    return f"seed {split.seed}, fold {split.fold}"
