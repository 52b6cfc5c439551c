"""The learner against fitting again, against naive formulas, and against itself when restarted."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from scipy.special import expit
from sklearn.base import clone
from sklearn.metrics import log_loss, roc_auc_score

from bagwise import GVGPMIL, LMVGPMIL, VGPMIL, AutoVGPMIL, load, make_pipeline, save
from bagwise.label import Learner, project
from bagwise.label.answers import Answers, condition, left_out, sites, without
from bagwise.models.variational.inference import posteriors


def inverse(K):
    return np.linalg.solve(K, np.eye(len(K)))


def some_answers(data, n=8):
    """True labels where the model is least sure: those move it."""
    bags, y, truth = data
    inside = np.flatnonzero(np.repeat(y, bags.sizes))
    order = np.argsort(np.abs(np.linalg.norm(bags.instances[inside], axis=1) - 2.5), kind="stable")
    rows = inside[order[:n]]
    return rows, truth[rows]


def latent(learner):
    (view,) = learner.views()
    return view.m @ view.A


def answered(learner):
    """Answers as the only process of a learner sees them, in double precision."""
    (member,) = learner._members
    return member, member.answers(learner.known)


def test_starts_where_the_model_is(model, learner, data):
    p, std = model.predict_proba_instances(data[0], return_std=True)
    scores = learner.scores()
    np.testing.assert_allclose(scores.instance, p[:, 1], atol=0.01)
    np.testing.assert_allclose(scores.instance_std, std, atol=0.01)
    np.testing.assert_allclose(scores.bag, model.predict_proba(data[0])[:, 1], atol=0.02)


def test_learning_is_updating_the_model(model, data):
    bags, y, _ = data
    learner = Learner(model, bags, y, tol=1e-6, max_iter=100)
    rows, values = some_answers(data)
    learner.answer(rows, values)
    learner.learn()
    known = np.full(bags.n_instances, -1)
    known[rows] = values
    fitted = learner.fitted_model()
    own = fitted.predict_proba_instances(bags)[:, 1]
    np.testing.assert_allclose(learner.scores().instance, own, atol=0.005)
    updated = copy.deepcopy(model).set_params(tol=1e-6).update(bags, y, instance_labels=known)
    expected = updated.predict_proba_instances(bags)[:, 1]
    np.testing.assert_allclose(own, expected, atol=0.005)


def test_an_answer_at_once_goes_towards_where_learning_ends(model, data):
    bags, y, _ = data
    learner = Learner(model, bags, y)
    rows, values = some_answers(data)
    before = latent(learner)
    learner.answer(rows, values)
    at_once = latent(learner)
    learner.learn()
    learned = latent(learner)
    assert np.abs(at_once - learned).mean() < 0.65 * np.abs(before - learned).mean()
    assert np.corrcoef(at_once - before, learned - before)[0, 1] > 0.9


def test_an_answer_adds_its_site_and_nothing_else(learner, data):
    """Naively: the natural parameters before, and expectations over many draws of v."""
    rows, values = some_answers(data)
    learner.answer(rows, values)
    member, known = answered(learner)
    order = np.argsort(rows)
    np.testing.assert_array_equal(known.y, values[order])
    m, P = member.q.m[0], member.q.P[0]
    rng = np.random.default_rng(0)
    v = rng.multivariate_normal(m, inverse(P), 200_000).T
    f = known.A.T @ v + member.process.f0 + np.sqrt(known.r)[:, None] * rng.normal(size=(8, 1))
    p = expit(member.process.likelihood.alone(f))
    h, gradient = (p * (1 - p)).mean(1), known.y - p.mean(1)
    before = member.before
    np.testing.assert_allclose(P, before.P[0] + (known.A * h) @ known.A.T, rtol=0.01, atol=0.15)
    linear = before.P[0] @ before.m[0] + known.A @ (h * (known.A.T @ m) + gradient)
    np.testing.assert_allclose(P @ m, linear, rtol=0.01, atol=0.15)


@pytest.mark.parametrize("n_copies", [1, 30])
def test_surprising_answers_find_the_best_posterior(n_copies):
    """One dimension, by brute force; full Newton steps would swing to and fro."""
    before = posteriors(np.array([[-10.0]]), np.array([[[0.01]]]))
    one = np.ones(n_copies)
    known = Answers(one[None], 0 * one, 0 * one, one.astype(int))
    q = condition(before, known)
    nodes, weights = np.polynomial.hermite_e.hermegauss(150)
    m, s = np.meshgrid(np.linspace(-5, 15, 201), np.linspace(0.2, 10, 99), indexing="ij")
    f = m[..., None] + s[..., None] * nodes
    value = -n_copies * np.logaddexp(0, -f) @ weights / np.sqrt(2 * np.pi)
    kl = 0.5 * (s**2 / 100 + (m + 10) ** 2 / 100 - 1) - np.log(s / 10)
    best = np.unravel_index(np.argmax(value - kl), m.shape)
    assert q.m[0, 0] == pytest.approx(m[best], abs=0.15)
    assert q.W[0, 0, 0] == pytest.approx(s[best], abs=0.15)


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
    gap = learner.out_of_fold().log_odds - model.held_out_decision_
    assert np.median(np.abs(gap)) < 0.5
    assert learner.out_of_fold().y.tolist() == learner.y.tolist()


def test_bags_without_labels_start_from_the_model_and_learn_from_instances(model, data):
    bags, _, truth = data
    learner = Learner(model, bags)
    np.testing.assert_allclose(
        learner.scores().instance, model.predict_proba_instances(bags)[:, 1], atol=0.005
    )
    rows = np.arange(0, bags.n_instances, 9)
    learner.answer(rows, truth[rows])
    member, known = answered(learner)
    # Naively: the model's posterior times one Gaussian site per answer.
    own = sites(known, member.q)
    W = model.posterior_factor_
    prior = inverse(W.T @ W)
    precision = prior + (known.A * own.precision) @ known.A.T
    expected = np.linalg.solve(precision, prior @ model.posterior_mean_ + known.A @ own.linear)
    np.testing.assert_allclose(member.q.m[0], expected, atol=1e-4)
    found = learner.out_of_fold()
    assert found.y.tolist() == truth[rows].tolist()
    # Nothing was learned but the answers: learning again changes nothing.
    learner.learn()
    np.testing.assert_allclose(learner._members[0].q.m[0], expected, atol=1e-4)


def test_leaving_one_answer_out_is_conditioning_on_the_others(model, data):
    bags, _, truth = data
    rows = np.array([4, 30, 52, 71])
    learner = Learner(model, bags)
    learner.answer(rows, truth[rows])
    member, known = answered(learner)
    mean, var = left_out(member.q, known)
    own = sites(known, member.q)
    prior = inverse(model.posterior_factor_.T @ model.posterior_factor_)
    for k in range(len(rows)):
        others = np.delete(np.arange(len(rows)), k)
        A = known.A[:, others]
        S = inverse(prior + (A * own.precision[others]) @ A.T)
        m = S @ (prior @ model.posterior_mean_ + A @ own.linear[others])
        a = known.A[:, k]
        assert mean[k] == pytest.approx(member.level + a @ m, abs=1e-3)
        assert var[k] == pytest.approx(a @ S @ a + known.r[k], abs=1e-3)


def test_what_the_answers_added_can_be_taken_off(model, data):
    bags, _, truth = data
    rows = np.arange(0, bags.n_instances, 9)
    learner = Learner(model, bags)
    learner.answer(rows, truth[rows])
    member, known = answered(learner)
    back = without(member.q, known)
    np.testing.assert_allclose(back.m, member.before.m, atol=1e-3)
    np.testing.assert_allclose(back.P, member.before.P, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "model", [GVGPMIL(), LMVGPMIL(tol=0.01), VGPMIL(inference="paper", bag_rule="noisy-or")]
)
def test_models_of_the_papers_are_conditioned(model, data, tmp_path):
    bags, y, _ = data
    model = clone(model).set_params(n_inducing=20, random_state=0).fit(bags, y)
    learner = Learner(model, bags, y)
    start = learner.scores()
    np.testing.assert_allclose(start.bag, model.predict_proba(bags)[:, 1], atol=1e-3)
    expected = model.predict_proba_instances(bags)[:, 1]
    np.testing.assert_allclose(start.instance, expected, atol=1e-3)
    rows, values = some_answers(data)
    learner.answer(rows, values)
    learner.learn()
    after = learner.scores().instance
    assert log_loss(values, after[rows]) < log_loss(values, start.instance[rows])
    assert learner.out_of_fold().y.tolist() == values[np.argsort(rows)].tolist()
    save(learner.fitted_model(), tmp_path / "m.bagwise")
    again = load(tmp_path / "m.bagwise").predict_proba_instances(bags)[:, 1]
    np.testing.assert_allclose(again, after, atol=1e-3)


def test_bags_of_both_labels_are_needed_to_hold_some_out(model, data):
    bags, y, truth = data
    learner = Learner(model, bags[y == 1][:1], [1])
    learner.answer([0], [int(truth[bags.offsets[np.flatnonzero(y)[0]]])])
    learner.learn()
    assert "answered instances" in learner.out_of_fold().source


@pytest.fixture(scope="module")
def auto(data):
    bags, y, _ = data
    return AutoVGPMIL(n_inducing=20, random_state=0).fit(bags, y)


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
    share = model[-1].predictor_.shares[0].log_odds(mean)
    np.testing.assert_allclose(view.slope * (view.m @ view.A) + view.intercept, share, atol=1e-3)


def test_refusals_say_what_and_where(model, data):
    from sklearn.linear_model import LogisticRegression

    from bagwise import SingleInstance

    bags, y, _ = data
    with pytest.raises(ValueError, match="needs a model of the VGPMIL family"):
        Learner(SingleInstance(LogisticRegression()).fit(bags, y), bags, y)
    several = VGPMIL(n_inducing=5, max_iter=3, tol=1.0).fit(bags, np.arange(30) % 3)
    with pytest.raises(ValueError, match=r"a model of two classes; this one has \[0, 1, 2\]"):
        Learner(several, bags)
    with pytest.raises(ValueError, match="one label per bag: 30"):
        Learner(model, bags, y[:-1])
    with pytest.raises(ValueError, match=r"bag 0 .*has label 7; the model knows"):
        Learner(model, bags, np.where(np.arange(30) == 0, 7, y))
    learner = Learner(model, bags, y)
    with pytest.raises(ValueError, match="rows are numbers from 0 to"):
        learner.answer([10**6], [1])
    with pytest.raises(ValueError, match="an answer is 0, 1, or -1"):
        learner.answer([0], [2])
