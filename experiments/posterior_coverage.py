"""Posterior against an exact sampler: ``python -m experiments.posterior_coverage [--quick]``.

Bags of 2 to 30 instances are drawn from the model itself (latent function, instance labels, bag
labels), for kernel variances 1, 4 and 16. Half of them train; the kernel and the prior mean are
those that drew the data. The Gaussian posterior with the hidden instance labels summed out is
compared with draws from the exact one (`tests/reference/gibbs.py`):

- ``sd ratio``, ``sd correlation``: latent standard deviations against the exact ones,
- ``coverage``: share of the true latent values inside 90 % intervals; the note has the sampler's,
- ``mean``: mean distance of the latent mean from the exact one, in exact standard deviations,
- ``instances``: mean distance of p(y = 1 | labels) of training instances from the exact one,
- ``bags``: mean distance of the probability of new bags from the exact one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from scipy.special import expit

from bagwise.core import segments
from bagwise.models.drivers import Serial
from bagwise.models.variational import Or
from bagwise.models.variational.blocks import BagLabels, Block, Part, arranged
from bagwise.models.variational.inference import Posteriors, Settings, fit, prior
from bagwise.models.variational.readout import Process, read_block
from experiments._held_out import main

TITLE = "Posterior against an exact sampler"
PAPER = "none: the posterior of this library against exact inference"
NEEDS = ()
VARIANCES = (1.0, 4.0, 16.0)
ERROR = 0.01  # of the bags' labels
_FUNCTIONS, _RESIDUALS = 500, 20  # draws of v, and of residuals given v
METRICS = ("coverage", "sd ratio", "sd correlation", "mean", "instances", "bags")


def one_set(variance: float, seed: int, n_draws: int) -> dict[str, Any]:
    """The posterior of one data set against the exact one."""
    from tests.reference.gibbs import draw_problem, sample

    rng = np.random.default_rng([seed, int(variance)])
    sizes = np.round(np.exp(rng.uniform(np.log(1.5), np.log(30.49), size=60))).clip(2, 30)
    # Half of the sets have bags of neighbours, half have bags scattered over the whole space.
    spread = 0.5 if seed % 2 else 1.0
    problem = draw_problem(rng, variance, sizes.astype(int), error=ERROR, spread=spread)
    train, test = half(problem, 0, 30), half(problem, 30, 60)
    draws = sample(train.A, train.r, train.labels, ERROR, rng, n_draws, 60, slices=3)
    q = fitted(train)
    row = compare(q, train, problem.f[: len(train.r)], draws)
    process = Process(problem.projector, q.m, q.W, np.zeros(1), Or(error=ERROR))
    p = expit(read_block(test, process).bag[:, 0])
    row["bags"] = float(np.mean(np.abs(p - exact_bags(test, draws.v, rng))))
    return {"variance": variance, "seed": seed} | row


def half(problem: Any, first: int, last: int) -> Block:
    """Neighbouring bags of a problem."""
    labels = problem.labels
    rows = slice(int(labels.offsets[first]), int(labels.offsets[last]))
    own = labels.slice(first, last)
    return Block(np.asfortranarray(problem.A[:, rows]), problem.r[rows], own)


def fitted(block: Block) -> Posteriors:
    """The posterior of an or, under the prior that drew the data."""
    labels = block.labels
    offsets, y = labels.offsets, labels.y[:, None]
    ready = arranged(block._replace(labels=BagLabels(offsets, y).dealt()))
    settings = Settings(tol=1e-4)
    start, f0, parts = prior(1, len(block.A)), np.zeros(1), [Part((ready,))]
    return fit(parts, len(y), Or(error=ERROR), start, f0, Serial(), settings).q


def exact_bags(block: Block, v: Any, rng: np.random.Generator) -> Any:
    """Probabilities of new bags over the exact draws of v."""
    noise = rng.standard_normal((len(block.r), len(v)))
    f = block.A.T @ v.T + np.sqrt(block.r)[:, None] * noise
    return expit(Or(error=ERROR).log_odds(f[:, None], block.labels.offsets))[:, 0].mean(-1)


def labelled(f: Any, labels: BagLabels) -> tuple[Any, Any]:
    """p(T | f) of every bag and p(T, y = 1 | f) of every instance, a column per draw."""
    log_none = -segments.sum(np.logaddexp(0.0, f), labels.offsets)
    none, some = np.exp(log_none), -np.expm1(log_none)
    positive = (labels.y == 1)[:, None]
    right, wrong = np.where(positive, 1 - ERROR, ERROR), np.where(positive, ERROR, 1 - ERROR)
    # An instance with y = 1 makes its bag positive.
    return right * some + wrong * none, expit(f) * segments.spread(right, labels.offsets)


def label_posterior(block: Block, q: Posteriors, rng: np.random.Generator) -> Any:
    """p(y = 1 | labels) of training instances, [n].

    q is a posterior of v: given v, the residuals of a bag are weighed by its likelihood.
    """
    A, r, labels = block
    total = np.zeros(len(r))
    for z in rng.standard_normal((_FUNCTIONS, len(A))):
        noise = np.sqrt(r)[:, None] * rng.standard_normal((len(r), _RESIDUALS))
        f = (A.T @ (q.m[0] + q.W[0].T @ z))[:, None] + noise
        evidence, joint = (x.mean(-1) for x in labelled(f, labels))
        total += joint / segments.spread(evidence, labels.offsets)
    return total / _FUNCTIONS


def compare(q: Posteriors, block: Block, truth: Any, draws: Any) -> dict[str, float]:
    """Distances of the posterior from the draws."""
    mean = block.A.T @ q.m[0]
    sd = np.sqrt(((q.W[0] @ block.A) ** 2).sum(0) + block.r)
    exact_mean, exact_sd = draws.f.mean(0), draws.f.std(0)
    low, high = np.quantile(draws.f, [0.05, 0.95], axis=0)
    pi = label_posterior(block, q, np.random.default_rng(0))
    evidence, joint = labelled(draws.f.T, block.labels)
    exact_pi = (joint / segments.spread(evidence, block.labels.offsets)).mean(-1)
    return {
        "coverage": float(np.mean(np.abs(truth - mean) < 1.6449 * sd)),
        "coverage, exact": float(np.mean((low < truth) & (truth < high))),
        "sd ratio": float(np.mean(sd / exact_sd)),
        "sd correlation": float(np.corrcoef(sd, exact_sd)[0, 1]),
        "mean": float(np.mean(np.abs(mean - exact_mean) / exact_sd)),
        "instances": float(np.mean(np.abs(pi - exact_pi))),
    }


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Means over the sets of each variance; every set is kept in the output folder."""
    n_sets, n_draws = (2, 150) if quick else (24, 500)
    tasks = [(v, s, n_draws) for v in VARIANCES for s in range(n_sets)]
    frame = pd.DataFrame(Parallel(n_jobs=n_jobs)(delayed(one_set)(*task) for task in tasks))
    frame.to_csv(out / "posterior_coverage.csv", index=False)
    plot(frame, out)
    rows = []
    for variance, own in frame.groupby("variance"):
        for metric in METRICS:
            row = {"model": "marginal", "data": f"v = {variance:g}", "metric": metric}
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
        at = [VARIANCES.index(v) for v in frame["variance"]]
        axis.plot(at, frame[metric], "o", alpha=0.5, markersize=4)
        axis.set_xticks(range(len(VARIANCES)), [f"v = {v:g}" for v in VARIANCES])
        axis.set(title={"coverage": "share of true values in 90 % intervals"}.get(metric, metric))
    figure.savefig(out / "posterior_coverage.png", dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main(run)
