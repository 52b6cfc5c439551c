"""The Gamma density: fixed points against the updates themselves."""

import math

import numpy as np
import pytest

from bagwise.models.variational.densities import Gamma
from bagwise.models.variational.likelihoods import Inherited
from bagwise.models.variational.stability import (
    escape,
    fixed_points,
    instability,
    largest_variance,
)
from bagwise.models.variational.updates import fit_whitened


def fitted(alpha, beta, variance, n=20_000):
    """One place, many certain positive labels: one inducing point, A = sqrt(v)."""
    A = np.full((1, n), math.sqrt(variance))
    fit = fit_whitened(
        A,
        np.zeros(n),
        np.arange(n + 1),
        np.ones(n, dtype=int),
        np.full(n, -1),
        np.ones(n),
        Inherited(),
        Gamma(alpha, beta),
        max_iter=400,
        tol=1e-10,
    )
    return math.sqrt(variance) * float(fit.posterior.m[0]), float(fit.bound_history[-1])


@pytest.mark.parametrize("alpha, beta", [(1.0, 1.0), (2.0, 1.0), (2.0, 4.0), (4.0, 4.0)])
def test_updates_end_at_the_stable_root_or_run_away(alpha, beta):
    stable, unstable = fixed_points(alpha, beta)
    limit = largest_variance(alpha, beta)
    f, bound = fitted(alpha, beta, 0.9 * limit)
    assert f == pytest.approx(stable, rel=0.02)
    assert instability(alpha, beta, 0.9 * limit) is None
    assert escape(np.array([f]), 0.9 * limit, min(bound, 0.0)) is None
    f, bound = fitted(alpha, beta, 1.1 * limit)
    assert f > 10 * unstable
    assert f"variance of {limit:.3g}" in instability(alpha, beta, 1.1 * limit)
    assert "escaped" in escape(np.array([f]), 1.1 * limit, bound)


def test_without_a_fixed_point_every_variance_escapes():
    assert fixed_points(1.0, 4.0) is None and largest_variance(1.0, 4.0) == 0.0
    f, _ = fitted(1.0, 4.0, 0.5)
    assert f > 100
    assert "beta=4 exceeds 2 alpha^2=2" in instability(1.0, 4.0, 0.5)


def test_alarms_of_a_finished_fit():
    assert escape(np.array([9.0, -1.0]), 1.0, -3.0) is None
    assert "ten prior standard deviations" in escape(np.array([0.0, -11.0]), 1.0, -3.0)
    assert "escaped" in escape(np.array([np.nan]), 1.0, -3.0)
    assert "above 1" in escape(np.zeros(2), 1.0, 0.5)
