"""Where a fit starts: continuation, held-out bags, the draw of bags, and what the evidence adds."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, logit

from bagwise import VGPMIL, AutoVGPMIL, Bags
from bagwise.core.kernels import RBF, Constant
from bagwise.datasets import make_gaussian_bags
from bagwise.models.drivers import Serial
from bagwise.models.execution import resolve
from bagwise.models.labels import read_classes, read_labels
from bagwise.models.scaling import learn_scaling
from bagwise.models.variational import engine
from bagwise.models.variational.blocks import BagLabels
from bagwise.models.variational.engine import (
    draw_bags,
    plan,
    start_kernels,
    warn_if_nothing_learned,
)
from bagwise.models.variational.evidence import whole_bags
from bagwise.models.variational.inference import prior
from bagwise.models.variational.likelihoods import Gaussian, Or, Score, SoftMax
from bagwise.models.variational.search import (
    STARTS,
    Search,
    Tasks,
    Trial,
    base_levels,
    best,
    continuation,
    mean_log_odds,
)


def make_search(seed=0, n_bags=24, n_folds=3, separation=3.0, F=1):
    """Bags of two to six instances whose first one tells the label, and their tasks."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(2, 7, n_bags))])
    X = rng.normal(size=(offsets[-1], 2))
    y = np.column_stack([(np.arange(n_bags) + f) % 2 for f in range(F)])
    X[offsets[:-1], 0] += separation * y[:, 0]
    fold = (np.arange(n_bags) // 2) % n_folds
    tasks = Tasks(fold, y)
    labels = BagLabels(offsets, tasks.spread(y), None, tasks.weight()).dealt()
    Z = X[rng.choice(len(X), 8, replace=False)]
    return Search(
        whole_bags(X, np.arange(len(X)), labels, Z, learn_scaling(X, None), Serial()), tasks, 4.0
    )


# The tasks.


@pytest.mark.parametrize("F", [1, 2])
def test_every_bag_is_held_out_of_one_task_per_finding(F):
    fold, y = np.array([0, 1, 2, 0, 1, 2]), np.arange(6 * F).reshape(6, F) % 2
    tasks = Tasks(fold, y)
    weight = tasks.weight()
    assert tasks.n_folds == 3 and weight.shape == (6, tasks.n_tasks) == (6, 4 * F)
    np.testing.assert_array_equal(weight[:, :F], 1)
    np.testing.assert_array_equal(weight.sum(1), 3 * F)
    numbered = np.tile(np.arange(tasks.n_tasks), (6, 1))
    held_out = tasks.held_out(numbered)
    np.testing.assert_array_equal(weight[np.arange(6)[:, None], held_out], 0)
    np.testing.assert_array_equal(held_out % F, np.tile(np.arange(F), (6, 1)))
    given = np.arange(1.0, 7.0)[:, None] * np.ones((6, F))
    np.testing.assert_array_equal(tasks.weight(given), given[:, :1] * weight)


def test_without_folds_nothing_is_held_out():
    tasks = Tasks(np.zeros(4, np.int64), np.array([[0], [1], [0], [1]]))
    assert tasks.n_folds == 0 and tasks.n_tasks == 1
    np.testing.assert_array_equal(tasks.held_out(np.arange(4.0)[:, None]), np.arange(4.0)[:, None])


def test_loss_is_that_of_calibrated_log_odds():
    rng = np.random.default_rng(0)
    y = np.arange(400)[:, None] % 2
    z = 2 * y - 1 + 1.5 * rng.normal(size=(400, 1))
    tasks = Tasks(np.zeros(400, np.int64), y)
    right = expit(2 * z / 1.5**2)
    expected = -np.mean(np.log(np.where(y == 1, right, 1 - right)))
    assert tasks.loss(z) == pytest.approx(expected, abs=0.01)
    assert tasks.loss(7 * z - 3) == pytest.approx(tasks.loss(z), abs=1e-3)  # any line
    assert tasks.loss(np.zeros((400, 1))) == pytest.approx(np.log(2), abs=1e-6)
    assert tasks.loss(-z) > np.log(2) - 1e-6
    two = Tasks(np.zeros(400, np.int64), np.hstack([y, y]))
    assert two.loss(np.hstack([z, z])) == pytest.approx(2 * tasks.loss(z))


def test_bags_count_as_often_as_they_are_told_to():
    rng = np.random.default_rng(1)
    y, z = np.arange(60)[:, None] % 2, rng.normal(size=(60, 1)) + np.arange(60)[:, None] % 2
    counts = rng.integers(0, 3, 60)
    weighed = Tasks(np.zeros(60, np.int64), y, counts.astype(float))
    rows = np.repeat(np.arange(60), counts)
    repeated = Tasks(np.zeros(len(rows), np.int64), y[rows])
    assert weighed.loss(z) == pytest.approx(repeated.loss(z[rows]), abs=1e-6)


# Continuation.


def test_continuation_goes_from_the_mean_to_the_likelihood():
    stages = continuation(Or(0.5), 7.0)
    assert stages == [SoftMax(), *(SoftMax(tau, 7.0) for tau in (1.0, 3.0, 8.0)), Or(0.5)]
    assert continuation(SoftMax(3.0, 50.0), 7.0) == [
        SoftMax(),
        SoftMax(1.0, 7.0),
        SoftMax(3.0, 50.0),
    ]
    assert continuation(SoftMax(), 7.0) == [SoftMax()]
    assert continuation(SoftMax(0.5), 7.0) == [SoftMax(), SoftMax(0.5)]
    own = object()
    assert continuation(own, 7.0)[-1] is own
    assert continuation(Score(Gaussian()), 7.0)[-1] == Score(Gaussian())


def test_each_stage_starts_where_the_one_before_ended(monkeypatch):
    finder, starts = make_search(), []
    fitted = Search.fitted

    def watched(self, kernel, parts, likelihood, start, f0, *rest):
        starts.append(start)
        return fitted(self, kernel, parts, likelihood, start, f0, *rest)

    monkeypatch.setattr(Search, "fitted", watched)
    trials = finder.path(RBF(1.0, 16.0), Or())
    assert [type(t.likelihood) for t in trials] == [SoftMax] * 4 + [Or]
    np.testing.assert_array_equal(starts[0].m, 0)
    for start, trial in zip(starts[1:], trials[:-1], strict=True):
        assert start is trial.q
    assert all(np.isfinite([t.loss, t.bound]).all() for t in trials)
    assert trials[-1].loss < 0.5 < np.log(2)


def test_the_path_finds_rare_key_instances():
    """One key instance of 100 under a prior of variance 100."""
    rng = np.random.default_rng(0)
    n_bags, size, D = 40, 100, 6
    y = np.arange(n_bags) % 2
    X = rng.normal(size=(n_bags, size, D))
    X[y == 1, 0, :2] += 5
    tasks = Tasks(np.arange(n_bags) // 2 % 4, y[:, None])
    offsets = np.arange(0, n_bags * size + 1, size)
    labels = BagLabels(offsets, tasks.spread(y[:, None]), None, tasks.weight()).dealt()
    rows = X.reshape(-1, D)
    Z = np.concatenate([rows[rng.choice(len(rows), 20)], X[y == 1, 0][:4]])
    data = whole_bags(rows, np.arange(len(rows)), labels, Z, learn_scaling(rows, None), Serial())
    finder, kernel = Search(data, tasks, float(size)), RBF(4.0, 100.0)
    path = finder.path(kernel, Or())
    cold = finder.fitted(kernel, data.project(kernel), Or(), prior(5, 24), np.zeros(5))
    assert path[-1].loss < 0.2
    assert path[-1].bound > cold.bound


def test_levels_of_an_or_are_the_likeliest_of_a_grid():
    finder = make_search()
    trial = finder.path(RBF(1.0, 16.0), SoftMax(3.0, 4.0))[-1]
    parts = finder.data.project(RBF(1.0, 16.0))
    levels = finder.or_levels(parts, trial.q)
    assert len(set(levels)) == 1 and -2 * np.log(4.0) - 1e-9 <= levels[0] <= 0
    values = []
    for level in np.linspace(0.0, -2 * np.log(4.0), 7):
        odds = mean_log_odds(parts, trial.q, np.full(4, level), Or())[:, 0]
        y = finder.tasks.y[:, 0]
        values.append(-np.logaddexp(0, (1 - 2 * y) * odds).mean())
    # Of the mean over draws of the logarithm, not the logarithm of the mean: near it.
    assert abs(values.index(max(values)) - np.round(levels[0] / (-2 * np.log(4.0)) * 6)) <= 1


def test_levels_of_soft_maxima_are_the_base_rates():
    tasks = Tasks(np.arange(8) % 2, np.array([[1, 0]] * 2 + [[0, 0]] * 6))
    expected = logit([3 / 10, 1 / 10])
    np.testing.assert_allclose(base_levels(tasks), np.tile(expected, 3))


def test_held_out_log_odds_are_those_of_fits_without_the_bag():
    """Chosen by what was not seen: a fit to the other bags alone, with the same draws."""
    finder = make_search(n_bags=18)
    kernel = RBF(1.0, 16.0)
    parts = finder.data.project(kernel)
    trial = finder.path(kernel, SoftMax(3.0, 4.0))[-1]
    odds = mean_log_odds(parts, trial.q, trial.f0, trial.likelihood)
    held_out = finder.tasks.held_out(odds)
    assert trial.loss == pytest.approx(finder.tasks.loss(held_out))
    assert finder.tasks.loss(odds[:, :1]) < trial.loss  # those that were seen look better


# Which trial.


def a_trial(loss, bound):
    return Trial(RBF(), Or(), np.zeros(1), prior(1, 1), bound, loss)


def test_held_out_bags_decide_and_the_evidence_breaks_ties():
    worse, better, tie = a_trial(0.6, -10.0), a_trial(0.3, -50.0), a_trial(0.3002, -40.0)
    assert best([worse, better]) is better
    assert best([better, tie, worse]) is tie
    blind = [a_trial(np.nan, -10.0), a_trial(np.nan, -5.0)]
    assert best(blind) is blind[1]


@pytest.mark.parametrize(("loss", "kept"), [(0.5, "start"), (0.4, "found"), (np.nan, "found")])
def test_the_evidence_is_not_followed_where_held_out_bags_disagree(monkeypatch, loss, kept):
    finder, start = make_search(), a_trial(0.45, -40.0)
    found = a_trial(loss, -10.0)
    monkeypatch.setattr(Search, "learned", lambda self, trial: found)
    assert finder.refined(start) is {"start": start, "found": found}[kept]


def test_learning_raises_the_evidence_of_the_start():
    finder = make_search(n_bags=24)
    start = finder.path(RBF(1.0, 16.0) + Constant(4.0), SoftMax(3.0, 4.0))[-1]
    found = finder.learned(start)
    assert found.bound > start.bound + 0.5
    assert found.q.m.shape == start.q.m.shape
    assert len(set(found.f0.tolist())) == 1  # one per finding, for all folds
    assert finder.refined(start) is start or finder.refined(start).loss <= start.loss


@pytest.mark.parametrize("blunt_is_better", [True, False])
def test_held_out_bags_choose_the_stage(monkeypatch, blunt_is_better):
    """Of the stages that may win; the mean, which is not among them, would be best."""
    rng = np.random.default_rng(4)
    bags = Bags.from_list([rng.normal(size=(4, 2)) for _ in range(12)])
    problem = planned(bags, np.arange(12) % 2)
    likelihoods = engine.default_likelihoods(problem)
    losses = {SoftMax(): 0.1, likelihoods[0]: 0.3, likelihoods[1]: 0.5 if blunt_is_better else 0.2}
    path = [replace(a_trial(loss, -10.0), likelihood=stage) for stage, loss in losses.items()]
    monkeypatch.setattr(Search, "path", lambda self, kernel, likelihood: path)
    best_stage = likelihoods[0 if blunt_is_better else 1]
    assert engine.choose(problem, [RBF()], likelihoods, False).likelihood == best_stage
    assert engine.choose(problem, [RBF()], likelihoods[1:], False).likelihood == likelihoods[1]


# The bags that a search looks at.


def test_few_bags_are_all_looked_at():
    sizes, y = np.full(60, 50), np.arange(60)[:, None] % 2
    np.testing.assert_array_equal(draw_bags(sizes, y, 10), np.arange(60))


@pytest.mark.parametrize("size", [500, 4000])
def test_many_bags_are_drawn_whole_and_stratified(size):
    rng = np.random.default_rng(0)
    sizes = rng.integers(size // 2, 2 * size, 1000)
    y = (rng.random(1000) < 0.1).astype(int)[:, None]
    chosen = draw_bags(sizes, y, 8)
    assert (np.diff(chosen) > 0).all()
    rows = sizes[chosen].sum()
    assert rows <= engine._MOST_ROWS
    assert len(chosen) >= engine._SEARCHED_BAGS or rows > 0.9 * engine._MOST_ROWS - 2 * size
    assert y[chosen].mean() == pytest.approx(y.mean(), abs=0.03)
    np.testing.assert_array_equal(draw_bags(sizes, y, 8), chosen)


def test_wide_features_lower_the_limit():
    sizes, y = np.full(400, 1000), np.arange(400)[:, None] % 2
    wide = draw_bags(sizes, y, 4096)
    assert len(wide) * 1000 * 4096 <= engine._MOST_NUMBERS
    assert len(draw_bags(sizes, y, 8)) > len(wide)


def test_two_bags_of_different_labels_whatever_their_size():
    sizes, y = np.array([10**6] * 6), np.array([[0], [0], [0], [1], [1], [1]])
    chosen = draw_bags(sizes, y, 512)
    assert len(chosen) == 2 and set(y[chosen, 0]) == {0, 1}


def test_larger_draws_have_all_bags_of_smaller_ones():
    sizes, y = np.full(400, 1000), np.arange(400)[:, None] % 2
    once, twice, more = (draw_bags(sizes, y, 512, times) for times in (1, 2, 4))
    assert (len(once), len(twice), len(more)) == (128, 256, 400)
    assert set(once) < set(twice) < set(more)


def scored(n_bags, gain):
    """A search over so many bags, and trials that gain so many nats on them."""
    tasks = Tasks(np.arange(n_bags) % 4, np.arange(n_bags)[:, None] % 2)
    base = tasks.loss(np.zeros((n_bags, 1)))
    trials = [Trial(RBF(), Or(), np.zeros(1), None, 0.0, base - g / n_bags) for g in (0.0, gain)]
    return Search(None, tasks, 1.0), trials


@pytest.mark.parametrize("n_bags", [16, 160])
def test_luck_is_no_learning(n_bags):
    """The best of two trials must gain log 2 nats."""
    for gain, learned in ((0.0, False), (0.6, False), (0.8, True), (8.0, True)):
        finder, trials = scored(n_bags, gain)
        assert finder.has_learned(trials) == learned


@pytest.mark.parametrize("learned", [True, False])
def test_the_search_looks_at_more_bags_until_something_is_learned(learned, monkeypatch):
    rng = np.random.default_rng(0)
    bags = Bags(rng.normal(size=(30_000, 2)), np.arange(0, 30_001, 100))
    problem = planned(bags, np.arange(300) % 2)
    monkeypatch.setattr(Search, "path", lambda self, kernel, likelihood: scored(8, 0.0)[1])
    monkeypatch.setattr(Search, "has_learned", lambda self, trials: learned)
    finder, trials = engine.paths(problem, [RBF()], [Or()])
    assert finder.data.n_bags == (163 if learned else 300) and len(trials) == 2


def planned(bags, y, execution=None, n_inducing=8):
    targets = read_labels(y, bags, *read_classes(y))
    execution = resolve(execution)
    rng = np.random.RandomState(0)
    return plan(bags, targets, "feature", "kmeans", n_inducing, execution, rng, True)


def test_the_search_sees_what_the_fit_and_predictions_see():
    """The same coordinates of every bag, however its rows came to be projected."""
    rng = np.random.default_rng(3)
    bags = Bags.from_list([rng.normal(2.0, 3.0, (rng.integers(1, 6), 3)) for _ in range(12)])
    problem, kernel = planned(bags, np.arange(12) % 2), RBF(1.0, 16.0)
    ((ours,),) = (part.blocks for part in engine.searched(problem).data.project(kernel))
    projector = problem.projector(kernel)
    parts, _ = engine.ready_parts(problem, projector)
    (theirs,) = [block for part in parts for block in part.blocks]
    order = np.argsort(ours.labels.row), np.argsort(theirs.labels.row)
    np.testing.assert_allclose(ours.A[:, order[0]], theirs.A[:, order[1]], atol=1e-8)
    np.testing.assert_allclose(ours.r[order[0]], theirs.r[order[1]], atol=1e-8)
    np.testing.assert_array_equal(ours.labels.deal, theirs.labels.deal)
    for b, X in enumerate(bags):  # as predictions of single bags read them
        rows = slice(*bags.offsets[b : b + 2])
        np.testing.assert_allclose(projector(X)[0], ours.A[:, order[0]][:, rows], atol=1e-8)


def test_kernels_to_start_from():
    named = start_kernels("matern52")
    assert [(k.left.length_scale.factor, k.left.variance) for k in named] == list(STARTS)
    own = RBF(2.0, 3.0)
    assert start_kernels(own) == [own]
    assert len(start_kernels("linear")) == 1


# What is said where nothing was found.


def noise(seed, n=60):
    rng = np.random.default_rng(seed)
    return Bags(rng.normal(size=(5 * n, 3)), np.arange(0, 5 * n + 1, 5)), rng.permutation(n) % 2


def test_permuted_labels_are_told():
    """In about half of such sets: in the others held-out bags gain a nat or two by chance."""
    told, away = 0, []
    for seed in range(16):
        bags, y = noise(seed)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = VGPMIL(n_inducing=8, random_state=seed).fit(bags, y)
        messages = [str(w.message) for w in caught]
        said = [m for m in messages if m.startswith("VGPMIL found nothing in these bags")]
        told += bool(said)
        assert all("\n" not in m for m in said)
        away.append(np.abs(model.predict_proba(bags)[:, 1] - 0.5).mean())
    assert told >= 5
    # Told or not, probabilities stay near the base rate.
    assert max(away) < 0.2 and np.mean(away) < 0.03


def test_bags_that_are_told_apart_are_no_cause_for_a_warning():
    y = np.arange(40)[:, None] % 2
    z = 3.0 * y - 1.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_nothing_learned("VGPMIL", z, y)
        warn_if_nothing_learned("VGPMIL", np.hstack([0 * z, z]), np.hstack([y, y]))
    with pytest.warns(UserWarning, match="no better than by their base rate"):
        warn_if_nothing_learned("VGPMIL", 0 * z, y)


# Many inducing points, and fits that take long.


@pytest.fixture
def searched(monkeypatch):
    """With how many inducing points the searches end that fits begin with."""
    seen, fit_marginal = [], engine.fit_marginal

    def watched(problem, trial, *args):
        seen.append(trial.q.m.shape[1])
        return fit_marginal(problem, trial, *args)

    monkeypatch.setattr(engine, "fit_marginal", watched)
    return seen


@pytest.mark.parametrize(("n_inducing", "seen"), [(199, 199), (220, 200)])
def test_up_to_two_hundred_inducing_points_are_searched(n_inducing, seen, searched):
    bags, y = make_gaussian_bags(n_bags=40, separation=4, random_state=0, return_X_y=True)
    model = VGPMIL(n_inducing=n_inducing, learn_kernel=False, random_state=0).fit(bags, y)
    assert searched == [seen] and model.posterior_mean_.shape == (n_inducing,)


def test_a_search_looks_at_some_inducing_points_and_the_fit_at_all(monkeypatch, searched):
    monkeypatch.setattr(engine, "_SEARCHED_POINTS", 6)
    bags, y = make_gaussian_bags(n_bags=40, separation=4, random_state=0, return_X_y=True)
    model = VGPMIL(n_inducing=20, random_state=0).fit(bags, y)
    assert searched == [6]
    assert model.posterior_mean_.shape == (20,)
    assert np.abs(model.posterior_mean_[6:]).max() > 1e-3
    assert model.converged_ and model.score(bags, y) > 0.9


def slow_warnings(model, bags, y):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(bags, y)
    return [str(w.message) for w in caught if "minutes on this CPU" in str(w.message)]


@pytest.mark.parametrize(
    "model",
    [VGPMIL(n_inducing=7), VGPMIL(n_inducing=7, inference="paper"), AutoVGPMIL(n_inducing=7)],
    ids=["marginal", "paper", "auto"],
)
def test_what_will_take_minutes_is_said_once(model, monkeypatch):
    bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    model.set_params(random_state=0, max_iter=2, tol=0.0)
    assert slow_warnings(model, bags, y) == []
    monkeypatch.setattr(engine, "product_rate", lambda driver: 1.0)
    assert slow_warnings(model, bags, y) == []  # too little work to be measured
    monkeypatch.setattr(engine, "_SLOWEST_CORE", 1.0)
    (said,) = slow_warnings(model, bags, y)
    assert said.startswith(type(model).__name__)
    assert "Fewer than 7 inducing points (n_inducing), a GPU (execution='cuda')" in said
    monkeypatch.setattr(engine, "product_rate", lambda driver: 1e12)
    assert slow_warnings(model, bags, y) == []


def test_the_work_of_a_gpu_is_not_announced(monkeypatch):
    monkeypatch.setattr(engine, "_SLOWEST_CORE", 1.0)
    monkeypatch.setattr(engine, "product_rate", lambda driver: 1.0)
    bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    problem = planned(bags, y)
    with pytest.warns(UserWarning, match="about .* minutes on this CPU"):
        engine.warn_if_slow("VGPMIL", problem, 10, 1)
    monkeypatch.setattr(engine.Problem, "device", "cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.warn_if_slow("VGPMIL", problem, 10, 1)
