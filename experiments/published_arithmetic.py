"""Which fold sizes can give the MUSK accuracies that Tables 6 and 7 of the psi-VGPMIL paper print.

An accuracy measured on a fold of n bags is a fraction k/n. The paper reports mean ± standard
deviation over five stratified splits to four decimals, so each printed pair can be checked: is
there any set of five counts that gives it? A five-fold split of MUSK1 (92 bags) tests on 18 or
19 bags and trains on 73 or 74; MUSK2 (102 bags) tests on 20 or 21 and trains on 81 or 82. All
mixes of the two sizes and both definitions of the standard deviation (over n and over n - 1) are
tried. The rows count the ways; the last rows of each set say how often a pair drawn at random
from the same range could be given at all.
"""

from __future__ import annotations

from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments._held_out import main

TITLE = "Arithmetic of the published MUSK accuracies (psi-VGPMIL, Tables 6 and 7)"
PAPER = "psi-VGPMIL, Tables 6 and 7"
NEEDS = ()
N_SPLITS = 5
# Bag accuracy, mean and standard deviation, as printed.
PUBLISHED = {
    "musk1": {
        "G-VGPMIL, M = 50": (0.8832, 0.0202),
        "VGPMIL, M = 50": (0.8832, 0.0180),
        "G-VGPMIL, M = 100": (0.9050, 0.0224),
        "VGPMIL, M = 100": (0.8886, 0.0178),
        "G-VGPMIL, M = 200": (0.9023, 0.0258),
        "VGPMIL, M = 200": (0.8806, 0.0271),
    },
    "musk2": {
        "G-VGPMIL, M = 50": (0.8308, 0.0298),
        "VGPMIL, M = 50": (0.8358, 0.0412),
        "G-VGPMIL, M = 100": (0.8603, 0.0210),
        "VGPMIL, M = 100": (0.8530, 0.0316),
        "G-VGPMIL, M = 200": (0.8971, 0.0293),
        "VGPMIL, M = 200": (0.8800, 0.0234),
    },
}
SIZES = {
    "musk1": {"test folds": (18, 19), "training folds": (73, 74)},
    "musk2": {"test folds": (20, 21), "training folds": (81, 82)},
}


def ways(mean: float, std: float, sizes: tuple[int, int], decimals: int = 4) -> int:
    """Number of sets of five fold accuracies that round to this mean and standard deviation."""
    return sum(_ways(mean, std, sizes, n_small, decimals) for n_small in range(N_SPLITS + 1))


def _ways(mean: float, std: float, sizes: tuple[int, int], n_small: int, decimals: int) -> int:
    """With ``n_small`` folds of the first size and the rest of the second."""
    small = _combinations(mean, std, sizes[0], n_small)  # [P, n_small]
    large = _combinations(mean, std, sizes[1], N_SPLITS - n_small)  # [Q, 5 - n_small]
    averages = (small.sum(axis=1)[:, None] + large.sum(axis=1)) / N_SPLITS  # [P, Q]
    squares = (small**2).sum(axis=1)[:, None] + (large**2).sum(axis=1)
    spread = np.sqrt(np.maximum(squares / N_SPLITS - averages**2, 0))
    right_std = _rounds_to(spread, std, decimals)
    right_std |= _rounds_to(spread * np.sqrt(N_SPLITS / (N_SPLITS - 1)), std, decimals)
    return int(np.sum(_rounds_to(averages, mean, decimals) & right_std))


def _combinations(mean: float, std: float, size: int, n: int) -> Any:
    """Every multiset of n accuracies on ``size`` bags that are not too far from the mean."""
    # Five squared deviations add up to 5 std², so no single one exceeds sqrt(5) std.
    reach = np.sqrt(N_SPLITS) * (std + 1e-4) + 1e-4
    accuracies = np.arange(size + 1) / size
    near = accuracies[np.abs(accuracies - mean) <= reach]
    chosen = list(combinations_with_replacement(near, n))
    return np.array(chosen, dtype=np.float64).reshape(len(chosen), n)


def _rounds_to(values: Any, printed: float, decimals: int) -> Any:
    return np.abs(values - printed) <= 0.5 * 10.0**-decimals + 1e-12


def chance(data: str, kind: str, n: int, seed: int = 0) -> float:
    """Share of random pairs from the range of the printed ones that the fold sizes can give."""
    rng = np.random.default_rng(seed)
    printed = np.array(list(PUBLISHED[data].values()))
    low, high = printed.min(axis=0), printed.max(axis=0)
    pairs = np.round(rng.uniform(low, high, (n, 2)), 4)
    return float(np.mean([ways(m, s, SIZES[data][kind]) > 0 for m, s in pairs]))


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Count the ways; deterministic, so there are no seeds."""
    rows = []

    def add(data: str, model: str, metric: str, published: Any, value: float, note: str) -> None:
        row = {"model": model, "data": data, "metric": metric, "published": published}
        rows.append({**row, "mean": value, "spread": np.nan, "n_seeds": np.nan, "note": note})

    for data, pairs in PUBLISHED.items():
        found = dict.fromkeys(SIZES[data], 0)
        for model, (mean, std) in pairs.items():
            for kind, sizes in SIZES[data].items():
                n = ways(mean, std, sizes)
                found[kind] += n > 0
                note = f"{sizes[0]} or {sizes[1]} bags: {'possible' if n else 'impossible'}"
                add(data, model, f"ways as {kind}", f"{mean:.4f} ± {std:.4f}", n, note)
        for kind in SIZES[data]:
            share = chance(data, kind, 50 if quick else 400)
            note = f"a random pair is possible with probability {share:.2f}"
            add(data, "all", f"pairs possible as {kind}", f"{len(pairs)} pairs", found[kind], note)
    _plot(found_rows=rows, out=out)
    return pd.DataFrame(rows)


def _plot(found_rows: list[dict[str, Any]], out: Path) -> None:
    import matplotlib.pyplot as plt

    totals = [row for row in found_rows if row["model"] == "all"]
    figure, axes = plt.subplots(figsize=(5, 2.6), layout="constrained")
    names = [f"{row['data']}, {row['metric'].removeprefix('pairs possible as ')}" for row in totals]
    axes.barh(names[::-1], [row["mean"] for row in totals][::-1])
    axes.set(xlim=(0, 6), xlabel="printed pairs (of 6) that some counts can give")
    figure.savefig(out / "pairs_possible.png", dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main(run)
