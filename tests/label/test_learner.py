"""The learner against fitting again, against naive formulas, and against itself when restarted."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from sklearn.metrics import log_loss, roc_auc_score

from bagwise import VGPMIL, AutoVGPMIL, load, make_pipeline, save
from bagwise.label import Learner, project


def some_answers(data, n=8):
    """True labels where the model is least sure: those move it."""
    bags, y, truth = data
    inside = np.flatnonzero(np.repeat(y, bags.sizes))
    order = np.argsort(np.abs(np.linalg.norm(bags.instances[inside], axis=1) - 2.5), kind="stable")
    rows = inside[order[:n]]
    return rows, truth[rows]


def inverse(K):
    return np.linalg.solve(K, np.eye(len(K)))


def latent(learner):
    (view,) = learner.views()
    return view.m @ view.A


def test_starts_where_the_model_is(model, learner, data):
    p, std = model.predict_proba_instances(data[0], return_std=True)
    scores = learner.scores()
    np.testing.assert_allclose(scores.instance, p[:, 1], atol=0.01)
    np.testing.assert_allclose(scores.instance_std, std, atol=0.01)
    np.testing.assert_allclose(scores.bag, model.predict_proba(data[0])[:, 1], atol=0.02)


def test_learning_is_fitting_again_with_the_same_inducing_points(model, learner, data):
    bags, y, _ = data
    rows, values = some_answers(data)
    learner.answer(rows, values)
    learner.learn()
    known = np.full(bags.n_instances, -1)
    known[rows] = values
    fresh = VGPMIL(inducing=model.inducing_points_, tol=1e-6).fit(bags, y, instance_labels=known)
    fitted = learner.fitted_model()
    own = fitted.predict_proba_instances(bags)[:, 1]
    np.testing.assert_allclose(learner.scores().instance, own, atol=0.005)
    # A fit holds folds out for its calibration and the learner does not: compare what is learned.
    for one in (fresh, fitted):
        one.calibration_ = one.instance_map_ = None
    expected = fresh.predict_proba_instances(bags)[:, 1]
    np.testing.assert_allclose(fitted.predict_proba_instances(bags)[:, 1], expected, atol=0.02)


def test_an_answer_at_once_goes_towards_where_learning_ends(data):
    bags, y, _ = data
    papers = {"kernel": "rbf", "likelihood": "noisy-max", "bag_rule": "noisy-or"}
    learner = Learner(VGPMIL(n_inducing=20, random_state=0, **papers).fit(bags, y), bags, y)
    rows, values = some_answers(data)
    before = latent(learner)
    learner.answer(rows, values)
    at_once = latent(learner)
    learner.learn()
    learned = latent(learner)
    assert np.abs(at_once - learned).mean() < 0.65 * np.abs(before - learned).mean()
    assert np.corrcoef(at_once - before, learned - before)[0, 1] > 0.9


def test_the_posterior_of_a_local_update_is_that_of_its_sites(learner, data):
    """``S = (I + A diag(omega) A^T)^-1`` and ``m = S A rho``, summed over all instances."""
    rows, values = some_answers(data)
    learner.answer(rows, values)
    (member,) = learner._members
    A = member.A.astype(np.float64)
    precision = np.eye(len(A)) + (A * member.omega) @ A.T
    np.testing.assert_allclose(member.q.m, np.linalg.solve(precision, A @ member.rho), atol=1e-4)
    S = member.q.W.T @ member.q.W
    np.testing.assert_allclose(S @ precision, np.eye(len(A)), atol=1e-3)


def test_taking_back_an_answer_restores_the_scores(model, data):
    learner = Learner(model, data[0], data[1], max_iter=300, tol=1e-6)
    rows, values = some_answers(data)
    before = learner.scores().instance
    learner.answer(rows, values)
    learner.answer(rows, [-1] * len(rows))
    learner.learn()
    np.testing.assert_allclose(learner.scores().instance, before, atol=1e-3)


def test_scores_of_some_instances_are_those_of_all(learner):
    rows = np.array([3, 40, 77])
    p, std = learner.instance_scores(rows)
    scores = learner.scores()
    np.testing.assert_allclose(p, scores.instance[rows], rtol=1e-5)
    np.testing.assert_allclose(std, scores.instance_std[rows], rtol=1e-5)


def test_held_out_bags_are_scored_as_fit_scores_them(model, learner):
    gap = learner.held_out().log_odds - model.held_out_decision_
    assert np.median(np.abs(gap)) < 0.5
    assert learner.held_out().y.tolist() == learner.y.tolist()


def test_bags_without_labels_start_from_the_model_and_learn_from_instances(model, data):
    bags, _, truth = data
    learner = Learner(model, bags)
    np.testing.assert_allclose(
        learner.scores().instance, model.predict_proba_instances(bags)[:, 1], atol=0.005
    )
    rows = np.arange(0, bags.n_instances, 9)
    learner.answer(rows, truth[rows])
    (member,) = learner._members
    # Naively: the model's posterior times one Gaussian site per answer.
    A = member.A[:, rows].astype(np.float64)
    W = np.asarray(model.posterior_factor_)
    prior = inverse(W.T @ W)
    precision = prior + (A * member.omega[rows]) @ A.T
    linear = prior @ model.posterior_mean_ + A @ (truth[rows] - 0.5)
    np.testing.assert_allclose(member.q.m, np.linalg.solve(precision, linear), atol=1e-4)
    found = learner.held_out()
    assert found.y.tolist() == truth[rows].tolist()


def test_leaving_one_answer_out_is_conditioning_on_the_others(model, data):
    bags, _, truth = data
    rows = np.array([4, 30, 52, 71])
    learner = Learner(model, bags)
    learner.answer(rows, truth[rows])
    (member,) = learner._members
    mean, var = member.without_own_site(rows)
    prior = inverse(model.posterior_factor_.T @ model.posterior_factor_)
    for k in range(len(rows)):
        others = np.delete(rows, k)
        A = member.A[:, others].astype(np.float64)
        S = inverse(prior + (A * member.omega[others]) @ A.T)
        m = S @ (prior @ model.posterior_mean_ + A @ member.rho[others])
        a = member.A[:, rows[k]].astype(np.float64)
        assert mean[k] == pytest.approx(a @ m, abs=1e-3)
        assert var[k] == pytest.approx(a @ S @ a + member.r[rows[k]], abs=1e-3)


@pytest.fixture(scope="module")
def auto(data):
    bags, y, _ = data
    return AutoVGPMIL(n_inducing=20, n_finalists=3, max_iter=10, random_state=0).fit(bags, y)


def test_auto_starts_where_it_is_and_learns(auto, data, tmp_path):
    bags, y, _ = data
    learner = Learner(auto, bags)
    p, std = auto.predict_proba_instances(bags, return_std=True)
    scores = learner.scores()
    np.testing.assert_allclose(scores.instance, p[:, 1], atol=1e-3)
    np.testing.assert_allclose(scores.instance_std, std, atol=1e-3)
    np.testing.assert_allclose(scores.bag, auto.predict_proba(bags)[:, 1], atol=1e-3)
    learner = Learner(auto, bags, y)
    rows, values = some_answers(data, 12)
    before = learner.scores().instance
    learner.answer(rows, values)
    learner.learn()
    after = learner.scores().instance
    auc_before, auc_after = (roc_auc_score(values, p[rows]) for p in (before, after))
    assert auc_after >= auc_before
    loss_before, loss_after = (log_loss(values, p[rows]) for p in (before, after))
    assert loss_after < loss_before
    # The scale of the scores moved, the probabilities on average did not.
    assert abs(np.mean(learner.scores().bag) - y.mean()) < 0.1
    model = learner.fitted_model()
    np.testing.assert_allclose(model.predict_proba_instances(bags)[:, 1], after, atol=1e-3)
    save(model, tmp_path / "m.bagwise")
    again = load(tmp_path / "m.bagwise")
    np.testing.assert_allclose(again.predict_proba_instances(bags)[:, 1], after, atol=1e-3)


def test_a_pipeline_is_seen_through(data):
    from sklearn.preprocessing import StandardScaler

    from bagwise import InstanceTransformer

    bags, y, _ = data
    steps = InstanceTransformer(StandardScaler()), VGPMIL(n_inducing=20, random_state=0)
    model = make_pipeline(*steps).fit(bags, y)
    learner = Learner(model, bags)
    np.testing.assert_allclose(
        learner.scores().instance, model.predict_proba_instances(bags)[:, 1], atol=0.005
    )
    (view,) = project(model, bags)
    mean, _ = model.predict_latent(bags)
    np.testing.assert_allclose(view.m @ view.A, mean, atol=1e-3)
    assert np.isfinite(expit(view.slope * mean + view.intercept)).all()


def test_refusals_say_what_and_where(model, data):
    from sklearn.linear_model import LogisticRegression

    from bagwise import SingleInstance

    bags, y, _ = data
    with pytest.raises(ValueError, match="needs a Gaussian process model"):
        Learner(SingleInstance(LogisticRegression()).fit(bags, y), bags, y)
    with pytest.raises(ValueError, match="one label per bag: 30"):
        Learner(model, bags, y[:-1])
    with pytest.raises(ValueError, match=r"bag 0 .*has label 7; the model knows"):
        Learner(model, bags, np.where(np.arange(30) == 0, 7, y))
    learner = Learner(model, bags, y)
    with pytest.raises(ValueError, match="rows are numbers from 0 to"):
        learner.answer([10**6], [1])
    with pytest.raises(ValueError, match="an answer is 0, 1, or -1"):
        learner.answer([0], [2])
