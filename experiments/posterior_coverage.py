"""Posterior against an exact sampler: ``python -m experiments.posterior_coverage [--quick]``.

Bags of 2 to 30 instances are drawn from the model itself (latent function, instance labels, bag
labels), for kernel variances 1, 4 and 16. The posterior of the updates and the posterior under the
marginal likelihood (`bagwise.models.variational.marginal`) are compared with draws from the exact
one (`tests/reference/gibbs.py`):

- ``sd ratio``, ``sd correlation``: latent standard deviations against the exact ones,
- ``coverage``: share of the true latent values inside 90 % intervals; ``exact`` is the sampler's,
- ``instances``: mean distance of p(y = 1 | labels) from the exact one,
- ``mean``: mean distance of the latent mean from the exact one, in exact standard deviations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

from bagwise.models.drivers import total
from bagwise.models.variational import ExactOr
from bagwise.models.variational.marginal import label_posterior, marginal_statistics, refine
from bagwise.models.variational.updates import InducingPosterior, fit_whitened, make_blocks
from experiments._held_out import main

TITLE = "Posterior against an exact sampler"
PAPER = "none: the posterior of this library against exact inference"
NEEDS = ()
VARIANCES = (1.0, 4.0, 16.0)
LIKELIHOOD = ExactOr()


def one_set(variance: float, seed: int, n_draws: int) -> list[dict[str, Any]]:
    """Both posteriors of one data set against the exact one."""
    from tests.reference.gibbs import draw_problem, sample

    rng = np.random.default_rng([seed, int(variance)])
    sizes = np.round(np.exp(rng.uniform(np.log(1.5), np.log(30.49), size=30))).clip(2, 30)
    # Half of the sets have bags of neighbours, half have bags scattered over the whole space.
    spread = 0.5 if seed % 2 else 1.0
    problem = draw_problem(rng, variance, sizes.astype(int), spread=spread)
    A, r, labels = problem.A, problem.r, problem.labels
    draws = sample(A, r, labels, LIKELIHOOD, rng, n_draws, 60, slices=3)
    fit = fit_whitened(A, r, *labels[:3], labels.of_bag / 2, LIKELIHOOD, max_iter=500, tol=1e-5)
    blocks = make_blocks(A, r, labels)
    refined = refine(
        lambda q: total([marginal_statistics(b, q, LIKELIHOOD) for b in blocks]), fit.posterior
    )
    pi = np.concatenate([label_posterior(b, refined.posterior, LIKELIHOOD) for b in blocks])
    low, high = np.quantile(draws.f, [0.05, 0.95], axis=0)
    exact = float(np.mean((low < problem.f) & (problem.f < high)))
    return [
        {"model": name, "variance": variance, "seed": seed, "coverage, exact": exact}
        | compare(q, own_pi, problem, draws)
        for name, q, own_pi in (
            ("updates", fit.posterior, fit.pi),
            ("marginal", refined.posterior, pi),
        )
    ]


def compare(q: InducingPosterior, pi: Any, problem: Any, draws: Any) -> dict[str, float]:
    """Distances of one posterior from the draws."""
    mean = problem.A.T @ q.m
    sd = np.sqrt(((q.W @ problem.A) ** 2).sum(0) + problem.r)
    exact_mean, exact_sd = draws.f.mean(0), draws.f.std(0)
    return {
        "sd ratio": float(np.mean(sd / exact_sd)),
        "sd correlation": float(np.corrcoef(sd, exact_sd)[0, 1]),
        "coverage": float(np.mean(np.abs(problem.f - mean) < 1.6449 * sd)),
        "instances": float(np.mean(np.abs(pi - draws.y))),
        "mean": float(np.mean(np.abs(mean - exact_mean) / exact_sd)),
    }


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Means over the sets of each variance; every set is kept in the output folder."""
    n_sets, n_draws = (2, 150) if quick else (24, 500)
    tasks = [(v, s, n_draws) for v in VARIANCES for s in range(n_sets)]
    parts = Parallel(n_jobs=n_jobs)(delayed(one_set)(*task) for task in tasks)
    frame = pd.DataFrame([row for part in parts for row in part])
    frame.to_csv(out / "posterior_coverage.csv", index=False)
    plot(frame, out)
    rows = []
    for (variance, model), own in frame.groupby(["variance", "model"]):
        for metric in ("coverage", "sd ratio", "sd correlation", "instances", "mean"):
            row = {"model": model, "data": f"v = {variance:g}", "metric": metric}
            row |= {"published": np.nan, "mean": own[metric].mean(), "spread": own[metric].std()}
            exact = f"the sampler's is {own['coverage, exact'].mean():.3f}"
            rows.append(row | {"n_seeds": n_sets, "note": exact if metric == "coverage" else ""})
    return pd.DataFrame(rows)


def plot(frame: pd.DataFrame, out: Path) -> None:
    """Coverage and ratio of the standard deviations, one dot per set."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for axis, metric, wanted in zip(axes, ("coverage", "sd ratio"), (0.9, 1.0), strict=True):
        axis.axhline(wanted, color="0.7", linewidth=1)
        for shift, (model, own) in zip((-0.12, 0.12), frame.groupby("model"), strict=True):
            at = np.array([VARIANCES.index(v) for v in own["variance"]]) + shift
            axis.plot(at, own[metric], "o", alpha=0.5, markersize=4, label=model)
        axis.set_xticks(range(len(VARIANCES)), [f"v = {v:g}" for v in VARIANCES])
        axis.set(title={"coverage": "share of true values in 90 % intervals"}.get(metric, metric))
    axes[0].legend()
    figure.savefig(out / "posterior_coverage.png", dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main(run)
