"""Several classes by a softmax: enumeration, a naive dense twin, the bound, and the model."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.special import logsumexp

import bagwise
from bagwise import GVGPMIL, VGPMIL, Bags
from bagwise.core.kernels import RBF
from bagwise.models.drivers import Serial
from bagwise.models.variational import Softmax
from bagwise.models.variational.blocks import BagLabels, Block
from bagwise.models.variational.parts import Part
from bagwise.models.variational.softmax import class_codes, class_shares, fit_softmax, soften
from tests.models.test_several_classes import make_classes
from tests.reference import vgpmil as naive


@pytest.mark.parametrize("label", [0, 1, 2])
@pytest.mark.parametrize("known", [None, (1, 2)])
def test_shares_equal_enumeration(label, known):
    """Over all classes of three instances; a label agrees if all are of it or none, and one is."""
    rng = np.random.default_rng(label)
    score, H = rng.normal(size=(3, 2)), 50.0
    codes = np.full(3, -1)
    if known is not None:
        codes[1] = label  # an instance of the class of its bag, or of none in the background
    labels = BagLabels(np.array([0, 3]), np.array([label]), codes)
    s = np.column_stack([np.zeros(3), score])
    Z, r = 0.0, np.zeros((3, 3))
    for z in itertools.product(range(3), repeat=3):
        if any(c >= 0 and c != k for c, k in zip(codes, z, strict=True)):
            continue
        found = set(z) - {0}
        agrees = found == ({label} if label else set())
        weight = np.exp(sum(s[n, k] for n, k in enumerate(z))) * (1.0 if agrees else 1 / H)
        Z += weight
        for n, k in enumerate(z):
            r[n, k] += weight
    shares = class_shares(score, labels, H)
    assert shares.log_evidence[0] == pytest.approx(np.log(Z), abs=1e-10)
    np.testing.assert_allclose(shares.r, r / Z, atol=1e-10)


def test_softened_value_is_a_bound_at_its_best():
    rng = np.random.default_rng(0)
    mean, var = rng.normal(size=(4, 2)), rng.uniform(0.1, 1.0, size=(4, 2))
    soft = soften(mean, var, np.zeros(4))
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    for n in range(4):
        f = [mean[n, k] + np.sqrt(var[n, k]) * nodes for k in (0, 1)]
        grid = np.stack([np.zeros((40, 40)), *np.meshgrid(*f, indexing="ij")])
        exact = -np.einsum("ij,i,j->", logsumexp(grid, axis=0), weights, weights)
        assert exact - 1.5 < soft.value[n] < exact

    def value(a):
        full_mean, full_var = (
            np.hstack([np.zeros((4, 1)), mean]),
            np.hstack([np.zeros((4, 1)), var]),
        )
        xi = np.sqrt(full_var + (full_mean - a[:, None]) ** 2)
        return -a - (full_mean - a[:, None]).sum(1) / 2 - np.log(2 * np.cosh(xi / 2)).sum(1)

    settled = soften(mean, var, soften(mean, var, soften(mean, var, soft.a).a).a)
    np.testing.assert_allclose(settled.value, value(settled.a), atol=1e-12)
    for step in (-0.05, 0.05):
        assert (value(settled.a + step) < settled.value).all()
    assert (settled.value >= soft.value - 1e-12).all()


def dense_twin(X, Z, offsets, y, n_iter, H=100.0):
    """All classes together, with dense matrices and loops over instances and classes."""
    K, KZX = naive.rbf(Z, Z, 1.0, 1.5), naive.rbf(Z, X, 1.0, 1.5)
    inverse = naive.INV(K)
    P = KZX.T @ inverse
    N, C = len(X), int(y.max())
    m, S = np.zeros((C, len(Z))), np.array([K] * C)
    a, history = np.zeros(N), []
    labels = BagLabels(offsets, y, np.full(N, -1))
    for iteration in range(n_iter + 1):
        mean = np.array([[P[n] @ m[k] for k in range(C)] for n in range(N)])
        var = np.array(
            [[1.0 - P[n] @ KZX[:, n] + P[n] @ S[k] @ P[n] for k in range(C)] for n in range(N)]
        )
        shares = class_shares(mean, labels, H)  # against enumeration above
        theta, bound = np.zeros((N, C)), shares.log_evidence.sum()
        for n in range(N):
            f, v = np.append(0.0, mean[n]), np.append(0.0, var[n])
            for _ in range(3):
                xi = np.sqrt(v + (f - a[n]) ** 2)
                t = np.tanh(xi / 2) / (2 * xi) if (xi > 1e-3).all() else None
                if t is None:
                    t = np.where(xi > 1e-3, np.tanh(xi / 2) / (2 * np.maximum(xi, 1e-9)), 0.25)
                a[n] = ((C + 1) / 2 - 1 + t @ f) / t.sum()
            xi = np.sqrt(v + (f - a[n]) ** 2)
            theta[n] = (np.tanh(xi / 2) / (2 * xi))[1:]
            bound += -a[n] - np.sum((f - a[n]) / 2 + np.log(2 * np.cosh(xi / 2)))
        if iteration:
            for k in range(C):
                trace = np.trace(inverse @ S[k]) + m[k] @ inverse @ m[k] - len(Z)
                log_det = np.linalg.slogdet(K)[1] - np.linalg.slogdet(S[k])[1]
                bound -= (trace + log_det) / 2
            history.append(bound)
        if iteration == n_iter:
            return m, S, np.array(history), P
        for k in range(C):
            rho = shares.r[:, k + 1] - 0.5 + theta[:, k] * a
            S[k] = naive.INV(inverse + P.T @ (theta[:, k, None] * P))
            m[k] = S[k] @ P.T @ rho
    return None


def test_fit_equals_a_naive_dense_twin():
    rng = np.random.default_rng(3)
    sizes, y = [3, 1, 4, 2, 3, 2], np.array([0, 1, 2, 0, 1, 2])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    X, Z = rng.normal(size=(15, 2)), np.unique(1.5 * rng.normal(size=(5, 2)), axis=0)
    model = VGPMIL(
        kernel=RBF(1.5, 1.0),
        likelihood="softmax",
        bag_rule="noisy-or",
        inducing=Z,
        n_inducing=len(Z),
        scale=None,
        calibrate=False,
        max_iter=6,
        tol=0.0,
    ).fit(Bags(X, offsets), y, background=0)
    m, _, history, P = dense_twin(X, Z, offsets, y, 6)
    np.testing.assert_allclose(model.bound_history_, history, atol=1e-8)
    mean, _ = model.predict_latent(Bags(X, offsets))
    np.testing.assert_allclose(mean[:, 1:], P @ m.T, atol=1e-8)
    # Read by noisy-or, a bag is of class c if all its instances are of c or of none, and one is.
    q = model.predict_proba_instances(Bags(X, offsets))
    expected = []
    for start, stop in itertools.pairwise(offsets):
        none = np.prod(q[start:stop, 0])
        some = [np.prod(q[start:stop, 0] + q[start:stop, c]) - none for c in (1, 2)]
        expected.append(np.array([none, *some]) / (none + sum(some)))
    np.testing.assert_allclose(model.predict_proba(Bags(X, offsets)), expected, atol=1e-8)


@pytest.mark.parametrize("seed", range(4))
def test_bound_never_falls(seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(4, size=25)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 5, size=25))])
    A = rng.normal(size=(6, offsets[-1])) * rng.uniform(0.2, 2.0)
    known = np.full(offsets[-1], -1)
    known[offsets[3]] = y[3]
    labels = BagLabels(offsets, y, known, rng.uniform(0.5, 2.0, size=25))
    part = Part((Block((A,), np.full(A.shape[1], 0.1), labels),), (np.zeros(A.shape[1]),))
    fit = fit_softmax([part], 6, 3, 100.0, max_iter=60, tol=0.0, driver=Serial())
    assert fit.n_iter == 60
    assert (np.diff(fit.bound_history) > -1e-9 * np.abs(fit.bound_history[-1])).all()
    np.testing.assert_allclose(fit.r.sum(axis=1), 1.0, atol=1e-12)


@pytest.fixture(scope="module")
def problem():
    return make_classes()


def test_three_classes_are_learnt_calibrated_and_saved(problem, tmp_path):
    bags, y, truth = problem
    names = np.array(["a", "b", "c"])[y]
    model = VGPMIL(likelihood=Softmax(), n_inducing=15, random_state=0)
    model.fit(bags, names, background="a")
    assert model.score(bags, names) > 0.9
    assert np.mean(model.predict_instances(bags) == np.array(["a", "b", "c"])[truth]) > 0.85
    p = model.predict_proba(bags)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)
    assert np.isfinite(model.held_out_decision_).all()
    assert all(member.calibration_ is not None for member in model.per_class_)
    swapped = np.array(["a", "c", "b"])[y]
    other = VGPMIL(likelihood="softmax", n_inducing=15, random_state=0)
    other.fit(bags, swapped, background="a")
    np.testing.assert_allclose(other.predict_proba(bags)[:, [0, 2, 1]], p, atol=1e-8)
    again = bagwise.load(bagwise.save(model, tmp_path / "m.bagwise"))
    np.testing.assert_array_equal(again.predict_proba(bags), p)
    threads = VGPMIL(
        likelihood="softmax",
        n_inducing=15,
        random_state=0,
        execution=bagwise.Execution(n_jobs=2, chunk_size=16),
    ).fit(bags, names, background="a")
    np.testing.assert_allclose(threads.predict_proba(bags), p, atol=1e-8)


def test_calibration_holds_bags_out_of_the_joint_fit(problem):
    """Labels that say nothing leave the base rate, which scores of bags seen would not."""
    bags, y, _ = problem
    shuffled = np.random.default_rng(0).permutation(y)
    model = VGPMIL(likelihood="softmax", n_inducing=15, random_state=0).fit(bags, shuffled)
    assert np.abs(model.predict_proba(bags) - 1 / 3).mean() < 0.15


def test_labels_of_instances_and_weights_count(problem):
    bags, y, truth = problem
    settings = {"likelihood": "softmax", "n_inducing": 15, "random_state": 0, "calibrate": False}
    plain = VGPMIL(**settings).fit(bags, y, background=0)
    strong = VGPMIL(**settings).fit(bags, y, truth, background=0)
    assert np.mean(strong.predict_instances(bags) == truth) >= np.mean(
        plain.predict_instances(bags) == truth
    )
    assert np.abs(strong.predict_proba(bags) - plain.predict_proba(bags)).max() > 1e-3
    weight = np.ones(36)
    weight[[2, 7]] = 2.0
    chosen = np.repeat(np.arange(36), weight.astype(int))
    Z = np.unique(np.asarray(bags.instances[:6]), axis=0)
    fixed = {"inducing": Z, "n_inducing": len(Z), "scale": None, "kernel": RBF(1.0, 4.0)}
    fixed |= {"likelihood": "softmax", "calibrate": False}
    weighed = VGPMIL(**fixed).fit(bags, y, sample_weight=weight)
    repeated = VGPMIL(**fixed).fit(bags[chosen], y[chosen])
    np.testing.assert_allclose(weighed.bound_history_, repeated.bound_history_, atol=1e-8)


def test_numbers_of_classes():
    np.testing.assert_array_equal(class_codes(np.array([[0, 0], [1, 0], [0, 1]])), [0, 1, 2])


def test_errors_are_one_line(problem):
    bags, y, _ = problem
    cases = [
        (VGPMIL(likelihood="softmax"), (y > 0).astype(int), "three classes or more"),
        (VGPMIL(likelihood=Softmax()), np.eye(3)[y].astype(int), "three classes or more"),
        (GVGPMIL(likelihood="softmax"), y, "density is not the hyperbolic secant"),
        (VGPMIL(likelihood="softmax", learn_kernel=True), y, "learn_kernel=True"),
        (VGPMIL(likelihood="softmax", init="label"), y, "cannot be used with init"),
    ]
    for model, labels, message in cases:
        with pytest.raises(ValueError, match=message) as caught:
            model.fit(bags, labels)
        assert "\n" not in str(caught.value)
    model = VGPMIL(likelihood="softmax", n_inducing=5, calibrate=False).fit(bags, y)
    with pytest.raises(ValueError, match="call fit again"):
        model.update(bags, y)
    with pytest.raises(ValueError, match="H must be finite and > 1"):
        Softmax(H=1.0)
