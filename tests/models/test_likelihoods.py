"""Bag likelihoods: derivatives, probabilities by enumeration, the conjugate case, a user's own."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import expit

from bagwise import VGPMIL, Bags
from bagwise.core import segments
from bagwise.core.gaussians import hermite
from bagwise.core.kernels import RBF
from bagwise.models.drivers import Serial
from bagwise.models.variational import BagLikelihood, Gaussian, NoisyMax, Or, Score, SoftMax
from bagwise.models.variational.blocks import BagLabels, Block, Part
from bagwise.models.variational.inference import Settings, fit, prior
from bagwise.models.variational.likelihoods import LogLog, Noisy, Terms
from tests.checks import make_problem
from tests.reference import inference as naive
from tests.reference.kernels import finite_differences

LIKELIHOODS = [
    Or(),
    Or(0.5),
    Or(1.0),
    Or(0.3, 0.05),
    SoftMax(),
    SoftMax(error=0.1),
    SoftMax(0.7),
    SoftMax(4.0),
    SoftMax(3.0, 2.0),
    SoftMax(3.0, 2.0, 0.05),
]
SCORES = [Score(Gaussian(0.5)), Score(Gaussian(0.5), tau=2.0)]
OFFSETS = np.array([0, 3, 5, 8, 10])
Y = np.array([[1], [0], [1], [1]])
KNOWN = np.array([-1] * 5 + [-1, 1, -1, 0, -1], dtype=np.int8)[:, None]
WEIGHT = np.array([[1.0], [2.0], [0.5], [3.0]])


def value(likelihood, f, labels):
    return float(likelihood.terms(f[:, None, None], labels).value.sum())


def dense_hessian(terms, offsets):
    """The negative Hessian that the terms of one draw stand for."""
    n = int(offsets[-1])
    H = np.zeros((n, n)) if terms.diagonal is None else np.diag(terms.diagonal[:, 0])
    w = np.broadcast_to(terms.direction, (n, 1, 1))[:, 0, 0]
    for b, (start, stop) in enumerate(itertools.pairwise(offsets)):
        own = w[start:stop]
        H[start:stop, start:stop] += terms.strength[b, 0, 0] * np.outer(own, own)
    return H


def check_derivatives(likelihood, f, labels):
    terms = likelihood.terms(f[:, None, None], labels)

    def gradient(x):
        return likelihood.terms(x[:, None, None], labels).gradient[:, 0, 0]

    # Central differences at two steps: their fourth-order combination.
    def extrapolated(function):
        fine, coarse = (finite_differences(function, f, h) for h in (1e-3, 2e-3))
        return (4 * fine - coarse) / 3

    by_value = extrapolated(lambda x: value(likelihood, x, labels))
    np.testing.assert_allclose(terms.gradient[:, 0, 0], by_value, atol=1e-8)
    rows = [extrapolated(lambda x, i=i: gradient(x)[i]) for i in range(len(f))]
    np.testing.assert_allclose(dense_hessian(terms, labels.offsets), -np.array(rows), atol=1e-8)


@pytest.mark.parametrize("shift", [-3.0, 0.0, 3.0])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["once", "weighed"])
@pytest.mark.parametrize("known", [None, KNOWN], ids=["hidden", "known"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
def test_derivatives_meet_finite_differences(likelihood, known, weight, shift):
    f = shift + np.random.default_rng(0).normal(size=10)
    check_derivatives(likelihood, f, BagLabels(OFFSETS, Y, known, weight))


@pytest.mark.parametrize("likelihood", SCORES, ids=repr)
def test_derivatives_of_scores_meet_finite_differences(likelihood):
    f, y = np.random.default_rng(0).normal(size=10), np.array([[1.3], [-0.2], [0.0], [4.0]])
    check_derivatives(likelihood, f, BagLabels(OFFSETS, y, None, WEIGHT))


@pytest.mark.parametrize("likelihood", [*LIKELIHOODS, *SCORES], ids=repr)
def test_values_equal_the_reference(likelihood):
    f, labels = np.random.default_rng(1).normal(size=10), BagLabels(OFFSETS, Y, KNOWN, WEIGHT)
    if likelihood in SCORES:
        labels = labels._replace(known=None)
    values = likelihood.terms(f[:, None, None], labels).value[:, 0, 0]
    for b, (start, stop) in enumerate(itertools.pairwise(OFFSETS)):
        known = [-1] * (stop - start) if labels.known is None else KNOWN[start:stop, 0].tolist()
        expected = naive.log_p(likelihood, f[start:stop], Y[b, 0], known, WEIGHT[b, 0])
        assert values[b] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
def test_values_far_out_are_finite(likelihood, dtype):
    for size in (50.0, 500.0, 5000.0):
        f = (np.array([1, -1, -1, 1, 1, -1, -1, -1, 1, -1]) * size)[:, None, None].astype(dtype)
        labels = BagLabels(OFFSETS, Y, KNOWN)
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            terms = likelihood.terms(f, labels)
            odds = likelihood.log_odds(f, OFFSETS)
        for x in (terms.value, terms.gradient, terms.strength, odds):
            assert np.isfinite(x).all()


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
def test_log_odds_are_those_of_the_label(likelihood):
    rng = np.random.default_rng(2)
    f = 3 * rng.normal(size=(10, 2, 5))
    odds = likelihood.log_odds(f, OFFSETS)
    for label, sign in ((1, 1), (0, -1)):
        labels = BagLabels(OFFSETS, np.full((4, 2), label))
        terms = likelihood.terms(f, labels)
        np.testing.assert_allclose(terms.value, -np.logaddexp(0, -sign * odds), atol=1e-10)
    single = np.arange(11)
    if likelihood in (Or(), SoftMax(), SoftMax(0.7), SoftMax(4.0), SoftMax(3.0, 2.0)):
        np.testing.assert_allclose(likelihood.alone(f), likelihood.log_odds(f, single), atol=1e-10)


@pytest.mark.parametrize("error", [0.0, 0.05])
def test_an_or_is_the_sum_over_hidden_labels(error):
    """Every pattern of instance labels of bags of one to four, at 10,000 draws."""
    rng = np.random.default_rng(3)
    mean, std = rng.normal(-1, 1.5, size=10), rng.uniform(0.5, 2.0, size=10)
    offsets, S = np.array([0, 1, 3, 6, 10]), 10_000
    f = mean[:, None] + std[:, None] * rng.normal(size=(10, S))
    p = expit(Or(error=error).log_odds(f[:, None], offsets))[:, 0]
    x, w = hermite(40)
    alone = expit(mean[:, None] + std[:, None] * x) @ w
    for b, (start, stop) in enumerate(itertools.pairwise(offsets)):
        some, exact = np.zeros(S), 0.0
        for y in itertools.product((0, 1), repeat=int(stop - start)):
            one = np.array(y)[:, None] == 1
            agrees = 1 - error if any(y) else error
            some += agrees * np.prod(np.where(one, expit(f[start:stop]), expit(-f[start:stop])), 0)
            exact += agrees * np.prod(np.where(one[:, 0], alone[start:stop], 1 - alone[start:stop]))
        np.testing.assert_allclose(p[b], some, atol=1e-12)
        assert p[b].mean() == pytest.approx(exact, abs=4 * p[b].std() / S**0.5)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
def test_only_standard_likelihoods_are_never_lowered_by_an_instance(likelihood):
    rng = np.random.default_rng(4)
    f = 3 * rng.normal(size=(5, 1, 200))
    f[4] = -8.0
    more, fewer = (likelihood.log_odds(x, np.array([0, len(x)])) for x in (f, f[:4]))
    assert (more >= fewer - 1e-9).all() == likelihood.standard


def test_a_soft_maximum_lies_between_mean_and_maximum():
    f, offsets = np.random.default_rng(5).normal(size=(7, 1, 50)), np.array([0, 3, 7])
    mean, soft, sharp = (SoftMax(tau).log_odds(f, offsets) for tau in (0.0, 2.0, 200.0))
    assert (mean < soft).all() and (soft < sharp).all()
    np.testing.assert_allclose(SoftMax(1e-6).log_odds(f, offsets), mean, atol=1e-4)
    np.testing.assert_allclose(sharp, segments.max(f, offsets), atol=0.02)
    # A bag of n_0 instances is the same under either; twice the bag has log(2) / tau more.
    np.testing.assert_allclose(
        SoftMax(2.0, 3.0).log_odds(f[:3], np.array([0, 3]))[0], soft[0], atol=1e-12
    )
    twice = SoftMax(2.0, 3.0).log_odds(np.concatenate([f[:3], f[:3]]), np.array([0, 6]))
    np.testing.assert_allclose(twice[0], soft[0] + np.log(2) / 2, atol=1e-12)


def test_a_known_positive_instance_settles_an_or():
    f, known = np.array([2.0, -1.0, 0.5]), np.array([[1], [-1], [0]], dtype=np.int8)
    labels = BagLabels(np.array([0, 3]), np.array([[1]]), known)
    expected = -np.log1p(np.exp(-2.0)) - np.log1p(np.exp(0.5))
    assert value(Or(), f, labels) == pytest.approx(expected)
    unsettled = labels._replace(known=np.array([[-1], [-1], [0]], dtype=np.int8))
    some = 1 - expit(-2.0) * expit(1.0)
    assert value(Or(), f, unsettled) == pytest.approx(np.log(some) - np.log1p(np.exp(0.5)))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Or(-0.1),
        lambda: Or(1.5),
        lambda: Or(error=0.5),
        lambda: SoftMax(-1.0),
        lambda: SoftMax(np.inf),
        lambda: SoftMax(0.0, size=5.0),
        lambda: SoftMax(2.0, size=0.0),
        lambda: SoftMax(2.0, error=-0.1),
        lambda: Noisy(LogLog(), 0.7),
    ],
)
def test_bad_parameters_are_named(wrong):
    with pytest.raises(ValueError, match=r"must be|needs tau"):
        wrong()


def test_a_gaussian_score_has_the_conjugate_posterior():
    """Regression on the mean of f: one step, and no other changes it."""
    rng = np.random.default_rng(6)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 6, 25))])
    M, f0, std = 6, 0.4, 0.6
    A, y = np.asfortranarray(rng.normal(size=(M, offsets[-1]))), rng.normal(size=(25, 1))
    block = Block(A, np.zeros(A.shape[1]), BagLabels(offsets, y).dealt())
    likelihood, start = Score(Gaussian(std)), prior(1, M)
    options = Settings(n_draws=16, max_iter=6, tol=0.0)
    parts = [Part((block,), ())]
    fits = fit(parts, 25, likelihood, start, np.array([f0]), Serial(), options)
    means = np.array([A[:, a:b].mean(1) for a, b in itertools.pairwise(offsets)])
    P = np.eye(M) + means.T @ means / std**2
    m = np.linalg.solve(P, means.T @ (y[:, 0] - f0) / std**2)
    np.testing.assert_allclose(fits.q.P[0], P, atol=1e-8)
    np.testing.assert_allclose(fits.q.m[0], m, atol=1e-8)
    one = fit(parts, 25, likelihood, start, np.array([f0]), Serial(), options._replace(max_iter=2))
    np.testing.assert_allclose(one.q.m[0], m, atol=1e-8)
    # The bound at the exact posterior is the evidence, up to the draws of the quadratic term.
    C = std**2 * np.eye(25) + means @ means.T
    gap = y[:, 0] - f0
    evidence = -(gap @ np.linalg.solve(C, gap) + np.linalg.slogdet(2 * np.pi * C)[1]) / 2
    assert fits.bound[0] == pytest.approx(evidence, abs=1.5)


@dataclass(frozen=True)
class Largest:
    """A user's own: the log-odds of a bag are the largest f of its instances."""

    standard = True

    def log_odds(self, F, offsets):
        return segments.max(F, offsets)

    def alone(self, f):
        return f

    def terms(self, F, labels):
        g, offsets = segments.max(F, labels.offsets), labels.offsets
        w = (segments.spread(g, offsets) == F).astype(F.dtype)
        y, p = labels.y[..., None], expit(g)
        weight = 1.0 if labels.weight is None else labels.weight[..., None]
        value = -weight * np.logaddexp(0, (1 - 2 * y) * g)
        gradient = w * segments.spread(weight * (y - p), offsets)
        return Terms(value, gradient, None, w, weight * p * (1 - p))


def test_a_likelihood_of_your_own():
    bags, y, _ = make_problem(40)
    assert isinstance(Largest(), BagLikelihood)
    model = VGPMIL(likelihood=Largest(), n_inducing=15, random_state=0).fit(bags, y)
    assert model.likelihood_ == Largest()
    assert model.score(bags, y) > 0.8
    assert np.isfinite(model.predict_proba_instances(bags)).all()
    # As one with a sharp soft maximum.
    kernel = RBF("median", 16.0)
    options = {"kernel": kernel, "learn_kernel": False, "calibrate": False, "random_state": 0}
    own, sharp = (
        VGPMIL(likelihood=x, n_inducing=15, **options).fit(bags, y).predict_proba(bags)[:, 1]
        for x in (Largest(), SoftMax(50.0))
    )
    np.testing.assert_allclose(own, sharp, atol=0.05)


@pytest.mark.parametrize("wrong", ["or", NoisyMax(), 3, Gaussian(1.0)])
def test_what_is_no_likelihood_is_refused(wrong):
    bags, y, _ = make_problem()
    with pytest.raises(ValueError, match="likelihood") as caught:
        VGPMIL(likelihood=wrong).fit(bags, y)
    assert "\n" not in str(caught.value)


def test_bags_of_one_are_gaussian_process_classification():
    """Or and soft maximum alike: a bag of one instance is that instance."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(40, 2))
    y = (rng.random(40) < expit(2 * X[:, 0])).astype(int)
    options = {"kernel": RBF(1.0, 4.0), "learn_kernel": False, "calibrate": False, "scale": None}
    fits = [
        VGPMIL(likelihood=x, inducing=X[:15], n_inducing=15, tol=1e-6, **options)
        .fit(Bags(X, np.arange(41)), y)
        .predict_latent(Bags(X, np.arange(41)))
        for x in (SoftMax(), SoftMax(3.0), SoftMax(3.0, 1.0))
    ]
    for mean, var in fits[1:]:
        np.testing.assert_allclose(mean, fits[0][0], atol=0.02)
        np.testing.assert_allclose(var, fits[0][1], rtol=0.05)
    assert np.corrcoef(expit(fits[0][0]), expit(2 * X[:, 0]))[0, 1] > 0.8
