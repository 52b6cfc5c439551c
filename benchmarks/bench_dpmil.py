"""DPMIL beside scikit-learn's mixture on the same fixed labels, and its growth with the data."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import BayesianGaussianMixture
from threadpoolctl import threadpool_limits

from bagwise import DPMIL, Bags
from benchmarks.timing import best_of

N_COMPONENTS = 20


def make_data(n_instances: int, n_features: int) -> tuple[Bags, Any, Any]:
    """Bags of 50 from clusters that overlap; a third of a positive bag is positive."""
    rng = np.random.default_rng(0)
    n_bags = n_instances // 50
    y = np.arange(n_bags) % 2
    truth = np.repeat(y, 50) * (rng.random(n_bags * 50) < 1 / 3)
    truth[::50] = y
    centres = rng.normal(scale=0.5, size=(2, 30, n_features))
    X = centres[truth, rng.integers(0, 30, size=len(truth))]
    X = X + rng.normal(size=X.shape)
    return Bags(X, np.arange(n_bags + 1) * 50), y, truth


def bare_dpmil(n_iter: int) -> DPMIL:
    """Inference alone, on the features as they are."""
    return DPMIL(
        n_components=N_COMPONENTS,
        calibrate=False,
        scale=None,
        n_dimensions=None,
        max_iter=n_iter,
        tol=0,
        random_state=0,
    )


def fit_ours(bags: Bags, y: Any, truth: Any, n_iter: int) -> int:
    # The same work on both sides: theirs has no bags to calibrate on.
    model = DPMIL(
        n_components=N_COMPONENTS,
        calibrate=False,
        scale=None,
        n_dimensions=None,
        max_iter=n_iter,
        tol=0,
        random_state=0,
    )
    return model.fit(bags, y, instance_labels=truth).n_iter_


def fit_theirs(bags: Bags, truth: Any, n_iter: int) -> int:
    """One of their mixtures per class, with DPMIL's prior; both start from one k-means."""
    X = bags.instances
    for c in (0, 1):
        mixture = BayesianGaussianMixture(
            n_components=N_COMPONENTS,
            weight_concentration_prior_type="dirichlet_process",
            weight_concentration_prior=2.0,
            mean_prior=X.mean(axis=0),
            degrees_of_freedom_prior=X.shape[1] + 1,
            covariance_prior=np.cov(X.T) + np.mean(X.var(axis=0)) * np.eye(X.shape[1]),
            max_iter=n_iter,
            tol=0.0,
            random_state=0,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            mixture.fit(X[truth == c])
    return mixture.n_iter_


def against_scikit_learn(quick: bool) -> dict[str, Any]:
    n, d, n_iter, repeats = (1000, 20, 5, 2) if quick else (4500, 100, 15, 4)
    bags, y, truth = make_data(n, d)
    # Ours may stop sooner, where the bound cannot rise any more; theirs then does as many rounds.
    rounds = fit_ours(bags, y, truth, n_iter)
    a, b = best_of(
        [lambda: fit_ours(bags, y, truth, n_iter), lambda: fit_theirs(bags, truth, rounds)],
        repeats,
        time.process_time,
    )
    return {
        "what": f"speed against BayesianGaussianMixture, labels fixed, N={n}, D={d}",
        "value": b / a,
        "must": "runs" if quick else ">= 2.5",
        "ok": quick or b / a >= 2.5,
    }


def growth(quick: bool) -> dict[str, Any]:
    small, n_iter = (1000, 3) if quick else (10_000, 6)
    jobs = []
    for n in (small, 4 * small):
        bags, y, _ = make_data(n, 40)
        # Labels to infer; calibration is the same again, once per fold.
        model = DPMIL(
            n_components=N_COMPONENTS,
            calibrate=False,
            scale=None,
            n_dimensions=None,
            max_iter=n_iter,
            tol=0,
            random_state=0,
        )
        jobs.append(lambda bags=bags, y=y, model=model: model.fit(bags, y).n_iter_)
    rounds = [job() for job in jobs]
    times = best_of(jobs, 2 if quick else 3, time.process_time)
    ratio = (times[1] / rounds[1]) / (times[0] / rounds[0]) / 4
    return {
        "what": f"time for 4 x the instances over 4 x the time, N={small} to {4 * small}",
        "value": ratio,
        "must": "runs" if quick else "<= 1.25 (linear)",
        "ok": quick or ratio <= 1.25,
    }


def run(quick: bool) -> list[dict[str, Any]]:
    with threadpool_limits(1):
        return [against_scikit_learn(quick), growth(quick)]
