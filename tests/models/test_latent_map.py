"""Calibration: the map of the latent function, its moments and intervals, and fold refits."""

import itertools

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import beta
from sklearn.base import clone
from sklearn.metrics import log_loss

from bagwise import GVGPMIL, LMVGPMIL, VGPMIL, Bags
from bagwise.core import segments
from bagwise.core.gaussians import sigmoid_moments
from bagwise.core.platt import Platt, compress_beyond, fit_shrunk_platt, typical_range
from bagwise.datasets import make_gaussian_bags
from bagwise.models.drivers import Serial
from bagwise.models.variational import estimators, refits
from bagwise.models.variational.blocks import BagLabels
from bagwise.models.variational.densities import Sech
from bagwise.models.variational.latent_map import (
    Fraction,
    HeldOut,
    InstanceMap,
    LatentMap,
    MapFit,
    _Contrast,
    bag_folds,
    beta_interval,
    enough_folds,
    fit_instance_map,
    folds_of_large,
    held_out_draw,
    held_out_values,
    instance_interval,
    joined,
    level_with_bags,
    positive_fraction,
    rule_log_odds,
    select_bags,
)
from bagwise.models.variational.likelihoods import ExactOr, NoisyMax, SoftWitness
from bagwise.models.variational.parts import Part
from bagwise.models.variational.refits import refit_folds
from bagwise.models.variational.updates import fit_blocks, iterate, make_blocks, prior


def test_moments_are_those_of_the_mapped_function():
    rng = np.random.default_rng(0)
    mean, var = np.array([-2.0, 0.5, 3.0]), np.array([0.1, 4.0, 9.0])
    latent_map = LatentMap(0.4, -0.7)
    p = sigmoid_moments(*latent_map.moments(mean, var))
    log_odds = 0.4 * mean / np.sqrt(1 + np.pi * var / 8) - 0.7
    centre = log_odds * np.sqrt(1 + np.pi * 0.16 * var / 8)
    draws = expit(centre + 0.4 * np.sqrt(var) * rng.normal(size=(200_000, 3)))
    np.testing.assert_allclose(np.exp(p.log_positive), draws.mean(0), atol=3e-3)
    np.testing.assert_allclose(p.std, draws.std(0), atol=3e-3)
    np.testing.assert_allclose(np.exp(p.log_positive), expit(log_odds), atol=0.02)
    low, high = instance_interval(*latent_map.moments(mean, var), 0.9)
    np.testing.assert_allclose(((draws > low) & (draws < high)).mean(0), 0.9, atol=5e-3)


def test_the_identity_changes_nothing_and_a_steep_map_widens_by_a_third_root():
    mean, var = np.array([-2.0, 0.5]), np.array([0.1, 4.0])
    for found, expected in zip(LatentMap().moments(mean, var), (mean, var), strict=True):
        np.testing.assert_allclose(found, expected)
    np.testing.assert_allclose(LatentMap(27.0, 0.0).moments(mean, var)[1], 9 * var)
    np.testing.assert_allclose(LatentMap(0.5, 0.0).moments(mean, var)[1], var / 4)
    np.testing.assert_allclose(LatentMap(0.5, power=0.6).moments(mean, var)[1], var / 4)


def test_instances_follow_a_steep_map_further_than_bags_and_keep_to_it():
    rng = np.random.default_rng(0)
    y, offsets = np.arange(60) % 2, np.arange(0, 601, 10)
    mean = rng.normal(size=600)
    mean[offsets[:-1][y == 1]] += 4
    held_out = HeldOut(mean, np.full(600, 0.1), offsets)
    found = fit_instance_map(held_out, y, slope=3.0)
    assert found.own.slope > 1
    for own in (
        found.own,
        found.after(2.0, 1.0).own,
        level_with_bags(found, held_out, y, np.where(y == 1, 2.0, -2.0)).own,
    ):
        assert own.spread == pytest.approx(own.slope**0.6, rel=1e-12)


def test_beta_interval_has_the_moments_and_the_level():
    p, std = np.array([0.2, 0.9, 0.5]), np.array([0.1, 0.05, 0.4])
    low, high = beta_interval(p, std, 0.8)
    size = p * (1 - p) / std**2 - 1
    family = beta(p * size, (1 - p) * size)
    np.testing.assert_allclose(family.mean(), p)
    np.testing.assert_allclose(family.std(), std)
    np.testing.assert_allclose(family.cdf(high) - family.cdf(low), 0.8, rtol=1e-6)
    np.testing.assert_allclose(family.cdf(low), 0.1, rtol=1e-6)
    sure = beta_interval(np.array([0.0, 0.3, 1.0]), np.zeros(3), 0.9)
    np.testing.assert_array_equal(sure.low, [0.0, 0.3, 1.0])
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        beta_interval(p, std, 90)


def test_positive_fraction_equals_simulation():
    rng = np.random.default_rng(0)
    offsets = np.array([0, 3, 8])
    shared = rng.normal(size=(1, 4000))
    functions = np.linspace(-2, 1, 8)[:, None] + 1.5 * shared
    labels = rng.random((8, 4000)) < expit(functions)
    share = positive_fraction(np.linspace(-2, 1, 8), np.full(8, 2.25), functions, offsets)
    simulated = segments.mean(labels.astype(float), offsets)
    np.testing.assert_allclose(share.mean, simulated.mean(1), atol=0.01)
    np.testing.assert_allclose(share.std, simulated.std(1), atol=0.01)


def simulated(rng, rule, n_bags, slope, intercept):
    """Latent functions, and labels of bags that a rule makes of them after a known map."""
    sizes = rng.integers(1, 6, size=n_bags)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    functions = 2 * rng.normal(size=(offsets[-1], 1)) + 0.5 * rng.normal(size=(offsets[-1], 16))
    mean = functions.mean(1) if rule == "joint" else functions[:, 0]
    held_out = HeldOut(mean, np.full(offsets[-1], 0.25), offsets, functions, np.ones(len(mean)))
    z = rule_log_odds(held_out, rule, LatentMap(slope, intercept))
    return held_out, (rng.random(n_bags) < expit(z)).astype(int)


@pytest.mark.parametrize("rule", ["max", "noisy-or", "joint"])
def test_a_known_map_is_found(rule):
    held_out, y = simulated(np.random.default_rng(1), rule, 3000, 0.6, -1.5)
    found = MapFit(held_out, y, rule).shrunk()
    assert found.slope == pytest.approx(0.6, abs=0.08)
    assert found.intercept == pytest.approx(-1.5, abs=0.15)


def test_rules_agree_for_bags_of_one_sure_instance():
    rng = np.random.default_rng(0)
    f = rng.normal(size=(20, 1))
    held_out = HeldOut(f[:, 0], np.zeros(20), np.arange(21), np.repeat(f, 4, axis=1), np.ones(20))
    scores = [
        rule_log_odds(held_out, rule, LatentMap(0.5, 1.0)) for rule in ("max", "noisy-or", "joint")
    ]
    np.testing.assert_allclose(scores, [0.5 * f[:, 0] + 1.0] * 3, atol=1e-12)


def test_scores_that_say_nothing_give_the_base_rate():
    losses, means, flat = [], [], 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        f, y = 2 * rng.normal(size=80), np.repeat([0, 1], 40)
        latent_map = MapFit(HeldOut(f, np.ones(80), np.arange(81)), y, "max").shrunk()
        fresh = latent_map.read(2 * rng.normal(size=80), np.ones(80)).probabilities
        p = np.exp(fresh.log_positive)
        losses.append(log_loss(y, p))
        means.append(p.mean())
        flat += latent_map.slope < 0.001
    assert np.mean(losses) <= 0.70
    assert abs(np.mean(means) - 0.5) < 0.02
    # A slope that gains less than half a nat is taken for noise; three quarters are, or reversed.
    assert 28 <= flat <= 39


def test_a_sure_slope_is_hardly_shrunk():
    rng = np.random.default_rng(0)
    f = 4 * rng.normal(size=300)
    y = (rng.random(300) < expit(f)).astype(int)
    assert MapFit(HeldOut(f, np.zeros(300), np.arange(301)), y, "max").shrunk().slope > 0.8


def test_known_instances_move_the_intercept():
    rng = np.random.default_rng(0)
    held_out, y = simulated(rng, "max", 200, 1.0, 0.0)
    known = np.full(len(held_out.mean), -1)
    known[::2] = 0
    plain, informed = (
        MapFit(held_out, y, "max").shrunk(),
        MapFit(held_out, y, "max", known).shrunk(),
    )
    assert informed.intercept < plain.intercept - 0.5


def test_thinning_keeps_the_map(monkeypatch):
    from bagwise.models.variational import latent_map as calibration

    rng = np.random.default_rng(3)
    held_out, y = simulated(rng, "noisy-or", 4000, 0.6, -1.5)
    monkeypatch.setattr(calibration, "_MOST_INSTANCES", 6000)
    thinned, fewer, _, _ = calibration._thinned(held_out, y, None, 0, None)
    assert len(thinned.mean) <= 6000 and len(fewer) > 1500
    assert MapFit(held_out, y, "noisy-or").shrunk().slope == pytest.approx(0.6, abs=0.1)
    # However large the bags are, fifty are looked at, and all where only their tops count.
    monkeypatch.setattr(calibration, "_MOST_INSTANCES", 10)
    assert len(calibration._thinned(held_out, y, None, 0, None)[1]) == 50
    few = MapFit(held_out, y, "max").shrunk()
    monkeypatch.undo()
    assert few == MapFit(held_out, y, "max").shrunk()


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    sizes = np.array([3, 1, 7, 2, 5, 4])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    labels = BagLabels(offsets, np.array([0, 1, 0, 1, 1, 0]), np.full(offsets[-1], -1))
    return rng.normal(size=(4, offsets[-1])), rng.uniform(size=offsets[-1]), labels


def test_selected_bags_are_those_of_the_whole(problem):
    A, r, labels = problem
    chosen = np.array([True, False, True, True, False, True])
    rows = np.concatenate([np.arange(*labels.offsets[b : b + 2]) for b in np.flatnonzero(chosen)])
    for chunk_size in (1, 2, 100):
        blocks = list(select_bags(make_blocks(A, r, labels, chunk_size), chosen))
        np.testing.assert_array_equal(np.hstack([a for b in blocks for a in b.A]), A[:, rows])
        np.testing.assert_array_equal(np.concatenate([b.r for b in blocks]), r[rows])
        np.testing.assert_array_equal(
            np.concatenate([b.labels.y for b in blocks]), labels.y[chosen]
        )
        sizes = np.concatenate([np.diff(b.labels.offsets) for b in blocks])
        np.testing.assert_array_equal(sizes, np.diff(labels.offsets)[chosen])


def test_selection_on_torch_equals_numpy(problem):
    torch = pytest.importorskip("torch", reason="needs torch")
    A, r, labels = problem
    labels = labels._replace(weight=np.arange(1.0, 7.0))
    chosen = np.array([True, False, True, True, False, True])
    (plain,) = select_bags(make_blocks(A, r, labels), chosen)
    (block,) = make_blocks(A, r, labels)
    tensors = block._replace(
        A=tuple(torch.as_tensor(np.array(a)) for a in block.A),
        r=torch.as_tensor(r),
        labels=labels.map(lambda x: torch.as_tensor(np.array(x))),
    )
    (placed,) = select_bags([tensors], chosen)
    np.testing.assert_array_equal(placed.A[0].numpy(), plain.A[0])
    for a, b in zip(placed.labels, plain.labels, strict=True):
        np.testing.assert_array_equal(a.numpy(), b)


def parts_of(blocks, labels, cuts):
    """The blocks as parts that begin at these blocks."""
    first = np.cumsum([0] + [len(b.labels.offsets) - 1 for b in blocks])
    edges = [*cuts, len(blocks)]
    return [
        Part(
            tuple(blocks[a:b]),
            (),
            first_bag=int(first[a]),
            offsets=tuple(block.labels.offsets for block in blocks[a:b]),
        )
        for a, b in itertools.pairwise(edges)
    ]


@pytest.mark.parametrize("copied", [True, False])
def test_folds_are_fitted_without_their_bags(problem, copied, monkeypatch):
    if not copied:
        monkeypatch.setattr(refits, "_COPIED", 0)
    A, r, labels = problem
    blocks = make_blocks(A, r, labels, chunk_size=2)
    parts = parts_of(blocks, labels, [0, len(blocks) // 2])
    folds = np.array([0, 0, 1, 1, 2, 2])
    start = np.arange(22.0)
    seen, starts = [], []

    def fit(own):
        kept = [block for part in own for block in part.blocks]
        seen.append(np.concatenate([np.ones(len(b.r)) if copied else b.labels.each for b in kept]))
        assert [len(b.r) for b in kept] == [len(pi) for part in own for pi in part.pis]
        assert [b.labels.offsets.tolist() for b in kept] == [
            offsets.tolist() for part in own for offsets in part.offsets
        ]
        starts.append(np.concatenate([pi for part in own for pi in part.pis]))
        assert all(part.beliefs is None for part in own)
        return prior(4)._replace(m=np.full(4, float(len(seen))))

    held_out = refit_folds(parts, start, labels.offsets, folds, 3, fit, Serial(), joint=True)
    sizes = np.diff(labels.offsets)
    for k in range(3):
        rows = np.repeat(folds, sizes) == k
        there = starts[k].astype(int)  # the number of each instance, where its block was kept
        np.testing.assert_array_equal(seen[k], ~rows[there])  # the others count for nothing
        assert set(np.flatnonzero(~rows)) <= set(there)
        assert not copied or len(there) == (~rows).sum()
        assert len(there) < 22  # blocks of left-out bags alone are passed over
        np.testing.assert_allclose(held_out.mean[rows], (k + 1) * A.sum(0)[rows])
    np.testing.assert_allclose(held_out.var, (A**2).sum(0) + r)
    np.testing.assert_array_equal(held_out.offsets, labels.offsets)
    assert held_out.functions.shape == (22, 64)
    some = refit_folds(parts, start, labels.offsets, folds, 1, fit, Serial())
    np.testing.assert_allclose(some.mean, 4 * A.sum(0)[: sizes[:2].sum()])


def test_between_large_bags_that_are_left_out_nothing_is_weighed(problem, monkeypatch):
    """Long runs of other bags are views of their block, with their labels and starts."""
    A, r, labels = problem
    monkeypatch.setattr(refits, "_COPIED", 0)
    labels = labels._replace(weight=np.arange(1.0, 7.0))
    (block,) = make_blocks(np.asfortranarray(A), r, labels, chunk_size=100)
    part = Part((block,), (), offsets=(labels.offsets,))
    start, folds = np.arange(22.0), np.array([1, 0, 1, 1, 0, 1])
    kept = []

    def fit(own):
        kept.append(own[0])
        return prior(4)

    def left_out():
        refit_folds([part], start, labels.offsets, folds, 1, fit, Serial())
        return kept.pop()

    # Bags 0, 2 and 3, and 5: 3, 9 and 4 instances, 16/3 on average.
    monkeypatch.setattr(refits, "_LONG_RUN", 6)
    assert len(left_out().blocks) == 1
    monkeypatch.setattr(refits, "_LONG_RUN", 5)
    pieces = left_out()
    rows = [np.arange(3), np.arange(4, 13), np.arange(18, 22)]
    for own, piece, pi, offsets in zip(
        rows, pieces.blocks, pieces.pis, pieces.offsets, strict=True
    ):
        np.testing.assert_array_equal(piece.A[0], A[:, own])
        assert np.shares_memory(piece.A[0], block.A[0])
        np.testing.assert_array_equal(piece.r, r[own])
        np.testing.assert_array_equal(pi, own)
        np.testing.assert_array_equal(piece.labels.offsets, offsets)
    middle = pieces.blocks[1].labels
    assert middle.offsets.tolist() == [0, 7, 9] and middle.y.tolist() == [0, 1]
    assert middle.weight.tolist() == [3.0, 4.0]


def test_values_of_fits_that_drift_are_moved_to_the_level_of_the_fit_to_all_bags(problem):
    A, r, labels = problem
    parts = parts_of(make_blocks(A, r, labels, chunk_size=2), labels, [0, 1])
    folds, sizes = np.array([0, 0, 1, 1, 2, 2]), np.diff(labels.offsets)
    every = prior(4)._replace(m=np.array([0.5, -1.0, 2.0, 0.0]))
    own = [prior(4)._replace(m=np.full(4, k - 1.0)) for k in range(3)]

    def read(drifting):
        fits = iter(own)
        args = parts, np.zeros(22), labels.offsets, folds, 3, lambda _: next(fits), Serial()
        return refit_folds(*args, drifting=drifting).mean

    def level(q, bags):
        """Mean of the largest value of each bag."""
        return np.mean([np.split(A.T @ q.m, labels.offsets[1:-1])[b].max() for b in bags])

    moved = read(every) - read(None)
    for k in range(3):
        rise = level(every, range(6)) - level(own[k], np.flatnonzero(folds != k))
        np.testing.assert_allclose(moved[np.repeat(folds, sizes) == k], rise)
        assert abs(rise) > 0.05


def spied(monkeypatch):
    """A list of what the next fits are calibrated on."""
    found, refit = [], estimators.refit_folds

    def spy(*args, **kwargs):
        found.append(refit(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(estimators, "refit_folds", spy)
    return found


def test_only_the_large_margin_drifts(monkeypatch):
    """Its updates go round in a circle: where they stop, its level is by chance."""
    seen = []
    refit = estimators.refit_folds

    def spy(*args, drifting, **kwargs):
        seen.append(drifting)
        return refit(*args, drifting=drifting, **kwargs)

    monkeypatch.setattr(estimators, "refit_folds", spy)
    bags, y = make_gaussian_bags(20, 2, random_state=0, return_X_y=True)
    fitted = [
        model(n_inducing=5, max_iter=5, tol=0.0, random_state=0).fit(bags, y)
        for model in (LMVGPMIL, VGPMIL)
    ]
    assert seen[1] is None
    np.testing.assert_allclose(seen[0].m, fitted[0].posterior_mean_)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": "feature", "inducing": "class-kmeans"},
        {"inducing": "subset", "posterior": "marginal"},
        {"inducing": np.arange(12.0).reshape(4, 3) / 4},
    ],
)
@pytest.mark.parametrize("model", [VGPMIL, GVGPMIL])
def test_bags_are_held_out_of_everything(model, options, monkeypatch):
    """Calibration reads the models that `fit` makes of the other bags, nothing shared."""
    if model is GVGPMIL:
        options = {k: v for k, v in options.items() if k != "posterior"}
    found = spied(monkeypatch)
    bags, y = make_gaussian_bags(30, 3, random_state=1, return_X_y=True)
    made = model(max_iter=20, tol=0.0, random_state=0, **options).fit(bags, y)
    (held_out,) = found
    folds = bag_folds(y)
    for k in range(folds.max() + 1):
        seen = folds != k
        alone = clone(made).set_params(calibrate=False).fit(bags[seen], y[seen])
        mean, var = alone.predict_latent(bags[~seen])
        rows, _ = segments.take(bags.offsets, np.flatnonzero(~seen))
        np.testing.assert_allclose(held_out.mean[rows], mean, atol=1e-7)
        np.testing.assert_allclose(held_out.var[rows], var, atol=1e-7)


def test_many_bags_share_their_projection(monkeypatch):
    """Beyond so many numbers no fold is projected again, whether they are features or points."""
    bags, y = make_gaussian_bags(30, 3, random_state=1, return_X_y=True)
    projected = []
    choose = estimators.choose_projector
    monkeypatch.setattr(
        estimators, "choose_projector", lambda *args: projected.append(0) or choose(*args)
    )

    def fits(n_inducing):
        projected.clear()
        VGPMIL(n_inducing=n_inducing, max_iter=3, tol=0.0, random_state=0).fit(bags, y)
        return len(projected)

    monkeypatch.setattr(estimators, "_FEW_NUMBERS", 3 * bags.n_instances)
    assert (fits(3), fits(4)) == (1 + bag_folds(y).max() + 1, 1)
    monkeypatch.setattr(estimators, "_FEW_NUMBERS", 3 * bags.n_instances - 1)
    assert fits(2) == 1


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("likelihood", [NoisyMax(), ExactOr(), SoftWitness()])
def test_a_fit_without_a_fold_is_that_to_the_other_bags(likelihood, copied, monkeypatch):
    """A fold left out of the blocks, or weighed 0: the fit to the other bags, gathered by hand."""
    if not copied:
        monkeypatch.setattr(refits, "_COPIED", 0)
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 5, 12)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    A, r = rng.normal(size=(4, offsets[-1])), np.full(offsets[-1], 0.1)
    y, known, start = np.arange(12) % 2, np.full(offsets[-1], -1), np.full(offsets[-1], 0.5)
    own = rng.integers(1, 4, 12).astype(float)  # weights that the bags have anyway
    folds = np.arange(12) // 4
    blocks = make_blocks(A, r, BagLabels(offsets, y, known, own), chunk_size=3)
    parts = parts_of(blocks, BagLabels(offsets, y, known), [0, 1])

    def fit(kept):
        return iterate(kept, 4, likelihood, Sech(), max_iter=7, tol=0.0, driver=Serial())[0].q

    held_out = refit_folds(parts, start, offsets, folds, 3, fit, Serial())
    for k in range(3):
        bags = np.flatnonzero(folds != k)
        rows, new = segments.take(offsets, bags)
        labels = BagLabels(new, y[bags], known[rows], own[bags])
        alone = fit_blocks(
            make_blocks(A[:, rows], r[rows], labels), start[rows], likelihood, max_iter=7, tol=0.0
        ).posterior
        out = np.repeat(folds, sizes) == k
        np.testing.assert_allclose(held_out.mean[out], A[:, out].T @ alone.m, atol=1e-10)


def test_held_out_draw_takes_the_same_share_of_each_class():
    y, sizes = np.repeat([0, 1], [9000, 1000]), np.full(10_000, 100)
    drawn = held_out_draw(y, sizes)
    # A million instances, of which 100,000 are held out.
    assert drawn[y == 0].sum() == 900
    assert drawn[y == 1].sum() == 100
    assert not (drawn[:4500].mean() == 0 or drawn[4500:9000].mean() == 0)
    few = held_out_draw(np.repeat([0, 1], [10, 2]), np.full(12, 5))
    assert few[:10].sum() == 2  # never more than a fifth
    assert few[10:].sum() == 1
    # Bags of 5,000: two numbers need bags, not instances.
    assert held_out_draw(y, np.full(10_000, 5000)).sum() == 1000


def test_few_large_bags_are_held_out_in_several_folds():
    rare = np.repeat([0, 1], [950, 50])
    folds = folds_of_large(rare, np.full(1000, 1000))
    assert [int(rare[folds == k].sum()) for k in range(5)] == [10] * 5
    assert enough_folds(folds, rare) == 3  # ten positive bags in each: three have 25
    balanced = np.repeat([0, 1], [250, 125])
    folds = folds_of_large(balanced, np.full(375, 1000))
    assert np.sum(folds == 0) == 75 and enough_folds(folds, balanced) == 1
    # Fewer than 25 bags in all: every fold.
    assert enough_folds(np.arange(30) % 3, np.arange(30) // 3 % 2) == 3


def test_a_large_set_of_several_classes_holds_out_enough_of_each(monkeypatch):
    """Classes of 20, 20 and 80 bags: the rare ones need all three folds, the other two."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [20, 20, 80])
    X = rng.normal(size=(240, 3)) + 2 * np.eye(3)[np.repeat(y, 2)]
    monkeypatch.setattr(estimators, "_ONE_FOLD", 100)
    bags = Bags(X, np.arange(0, 241, 2))
    model = VGPMIL(n_inducing=10, max_iter=5, tol=0.0, random_state=0).fit(bags, y)
    held_out = [int(np.isfinite(m.held_out_decision_).sum()) for m in model.per_class_]
    assert held_out == [120, 120, 80]
    # Of the classes together only those bags are told that all of them held out.
    assert np.isfinite(model.held_out_decision_).all(axis=1).sum() == 80


def test_the_largest_log_odds_are_read_with_the_values(problem):
    A, r, labels = problem
    q = prior(4)._replace(m=np.array([1.0, -2.0, 0.5, 3.0]))
    values = held_out_values(make_blocks(A, r, labels, 2), q, top=True)
    np.testing.assert_allclose(values.top, values._replace(top=None).largest(), atol=1e-12)
    both = joined([values.take(np.array([0, 2])), values.take(np.array([1]))], np.array([0, 1, 0]))
    np.testing.assert_array_equal(both.top, values.top[:3])


def test_the_map_of_the_largest_instance_keeps_its_order():
    """Under the rule "max" a map moves the bags' log-odds linearly, whoever reads them."""
    rng = np.random.default_rng(0)
    mean, var = 2 * rng.normal(size=60), rng.gamma(2.0, size=60)
    held_out = HeldOut(mean, var, np.arange(0, 61, 3))
    latent_map = LatentMap(0.6, -0.4)
    p = latent_map.read(mean, var).probabilities
    np.testing.assert_allclose(
        rule_log_odds(held_out, "max", latent_map),
        segments.max(p.log_odds, held_out.offsets),
        atol=1e-6,
    )


def test_the_left_out_label_is_not_seen():
    """Swapping the label of a bag does not move its own held-out values."""
    rng = np.random.default_rng(0)
    offsets = np.arange(0, 61, 3)
    A, r = rng.normal(size=(5, 60)), np.full(60, 0.1)
    folds = np.arange(20) % 4

    def values(y):
        def fit(own):
            blocks = [block for part in own for block in part.blocks]
            pi = np.concatenate([pi for part in own for pi in part.pis])
            return fit_blocks(blocks, pi, ExactOr(), max_iter=10).posterior

        labels = BagLabels(offsets, y, np.full(60, -1))
        blocks = make_blocks(A, r, labels)
        start = labels.of_bag / 2
        parts = parts_of(blocks, labels, [0])
        return refit_folds(parts, start, offsets, folds, 4, fit, Serial()).mean

    y = np.arange(20) // 10
    swapped = y.copy()
    swapped[3] = 1 - y[3]
    moved = values(y) != values(swapped)
    assert not moved[9:12].any() and moved[:9].any()


def test_folds_hold_both_classes():
    y = np.array([0] * 12 + [1] * 3)
    folds = bag_folds(y)
    assert folds.max() == 2 and all(y[folds == k].sum() == 1 for k in range(3))
    with pytest.raises(ValueError, match="at least 2 bags of each class; got 1"):
        bag_folds(np.array([0, 0, 0, 1]))


@pytest.mark.parametrize(("rarer", "n_folds"), [(2, 2), (8, 8), (12, 10), (19, 10), (20, 5)])
def test_fits_without_a_fold_keep_most_bags_of_a_class_that_has_few(rarer, n_folds):
    for label in (0, 1):
        y = np.where(np.arange(60) < rarer, label, 1 - label)
        folds = bag_folds(y)
        assert folds.max() + 1 == n_folds
        lost = np.bincount(folds[y == label])
        assert lost.max() - lost.min() <= 1
    assert bag_folds(y, 3).max() + 1 == min(3, rarer)


def test_held_out_values_of_the_prior(problem):
    A, r, labels = problem
    values = held_out_values(make_blocks(A, r, labels), prior(4))
    np.testing.assert_allclose(values.mean, 0.0)
    assert values.functions is None
    with pytest.raises(ValueError, match="joint rule needs functions"):
        rule_log_odds(values, "joint", LatentMap())


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("rate", [0.05, 0.15, 0.5])
def test_contrast_finds_the_level_of_the_instances(rate, together):
    """Bags of 20; the positives are spread evenly, or each bag has its own rate."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 100)
    own = rng.choice([0.2, 1.8], size=200) * rate if together else np.full(200, rate)
    truth = np.repeat(y * own, 20) > rng.random(4000)
    f = np.where(truth, 1.5, -1.5) + rng.normal(size=4000)
    held_out = HeldOut(f, np.zeros(4000), np.arange(0, 4001, 20))
    # Log-odds of the truth have slope 3; the map is told a little less.
    found = fit_instance_map(held_out, y, 2.8)
    assert found.positive_rate == pytest.approx(truth[2000:].mean(), abs=0.04)
    bag = np.repeat(np.where(y == 1, 40.0, -40.0), 20)
    p = expit(found.probabilities(f, np.zeros(4000), bag, 0.0 * bag).log_odds)
    assert p.mean() == pytest.approx(truth.mean(), abs=0.02)
    assert log_loss(truth, p) < 0.5 * log_loss(truth, np.full(4000, truth.mean()))


def test_times_their_bags_instances_keep_their_level():
    rng = np.random.default_rng(0)
    held_out, y = contrast_problem(rng, 9.0)
    contrast = fit_instance_map(held_out, y, 9.0)
    bag = np.where(y == 1, 1.5, -1.5) + rng.normal(size=200)  # far from sure
    levelled = level_with_bags(contrast, held_out, y, bag)
    wanted = contrast.positive_rate / 2  # half of the instances are in positive bags
    of_bag, nothing = np.repeat(bag, 20), np.zeros(4000)
    before, after = (
        expit(m.probabilities(held_out.mean, nothing, of_bag, nothing).log_odds).mean()
        for m in (contrast, levelled)
    )
    assert after == pytest.approx(wanted, abs=1e-6)
    assert before < 0.95 * wanted
    assert levelled.own.slope == contrast.own.slope
    # Bags that are all but negative have nothing to share out.
    hopeless = level_with_bags(contrast, held_out, y, np.full(200, -20.0))
    assert hopeless == contrast


def test_known_instances_join_the_contrast():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 10)
    truth = np.repeat(y, 10) * (np.arange(200) % 5 == 0)
    f = 2.0 * truth - 1 + rng.normal(size=200)
    held_out = HeldOut(f, np.zeros(200), np.arange(0, 201, 10))
    free = fit_instance_map(held_out, y, 2.0)
    told = fit_instance_map(held_out, y, 2.0, np.where(truth == 1, 1, 0))
    sure, hidden = (m.own.intercept for m in (told, free))
    assert sure != hidden
    negatives = fit_instance_map(held_out, y, 2.0, np.zeros(200))
    assert negatives.own.intercept < min(sure, hidden) - 2


def test_an_instance_never_exceeds_its_bag_and_both_are_wrong_together():
    rng = np.random.default_rng(0)
    found = InstanceMap(LatentMap(0.7, 0.1), 0.3)
    mean, var = rng.normal(size=5), rng.uniform(1, 2, size=5)
    bag, bag_std = np.full(5, 0.6), np.full(5, 0.2)
    p = found.probabilities(mean, var, np.log(bag / (1 - bag)), bag_std)
    own_mean = expit(p.log_odds)
    assert np.all(own_mean < bag)
    centre, spread, _ = found.own.read(mean, var)
    own = expit(centre + np.sqrt(spread) * rng.normal(size=(100_000, 5)))
    np.testing.assert_allclose(own_mean, own.mean(0) * bag, atol=3e-3)
    # One standard deviation e moves both factors, each by its share of the mean.
    e = rng.normal(size=(100_000, 5))
    draws = own_mean * (1 + (own.std(0) / own.mean(0) + bag_std / bag) * e)
    np.testing.assert_allclose(draws.mean(0), own_mean, atol=3e-3)
    np.testing.assert_allclose(p.std, draws.std(0), atol=3e-3)
    # No probability deviates more than that of a coin with its mean.
    wide = found.probabilities(mean, 400.0 + var, np.zeros(5), np.full(5, 0.5))
    limit = np.sqrt(expit(wide.log_odds) * expit(-wide.log_odds))
    np.testing.assert_allclose(wide.std, limit)


def contrast_problem(rng, slope):
    """Bags of 20, three in ten positive in positive bags; log-odds of the truth have the slope."""
    y = np.repeat([0, 1], 100)
    truth = np.repeat(y, 20) * (rng.random(4000) < 0.3)
    f = slope**0.5 * (truth - 0.5) + rng.normal(size=4000)
    f = f / slope**0.5  # f given the truth is normal with distance 1 and variance 1 / slope
    return HeldOut(f, np.zeros(4000), np.arange(0, 4001, 20)), y


def test_the_slope_of_instances_is_between_the_bags_and_the_contrast():
    held_out, y = contrast_problem(np.random.default_rng(0), 9.0)
    sure = fit_instance_map(held_out, y, 3.0).own.slope
    unsure = fit_instance_map(held_out, y, 3.0, gain=0.5).own.slope
    # The contrast sees a slope of 9; bags that are sure of theirs give way a little only.
    assert 3.0 < sure < unsure < 12.0
    assert unsure > 7.0
    assert fit_instance_map(held_out, y, 9.0).own.slope == pytest.approx(9.0, rel=0.15)


def test_a_slope_that_neither_bags_nor_instances_gained_by_is_noise():
    rng = np.random.default_rng(1)
    held_out = HeldOut(rng.normal(size=400), np.zeros(400), np.arange(0, 401, 10))
    y = np.arange(40) % 2
    assert fit_instance_map(held_out, y, 1.0, gain=0.0).own.slope < 0.3
    # What the bags have gained counts, too.
    assert fit_instance_map(held_out, y, 1.0, gain=50.0).own.slope > 0.6


def test_values_that_say_nothing_leave_one_positive_to_a_bag():
    """Any share of positives fits them; without the prior it ends at all or none."""
    rng = np.random.default_rng(0)
    held_out = HeldOut(rng.normal(size=400), np.ones(400), np.arange(0, 401, 10))
    flat = fit_instance_map(held_out, np.arange(40) % 2, 1e-3)
    assert flat.positive_rate == pytest.approx(0.1, abs=0.03)


def test_the_share_of_a_bag_that_may_be_negative_equals_simulation():
    rng = np.random.default_rng(0)
    share = Fraction(np.array([0.3, 0.6]), np.array([0.1, 0.2]))
    found = InstanceMap(LatentMap(), 0.3).fraction(share, np.array([0.5, -1.0]))
    positive = rng.random((400_000, 2)) < expit(np.array([0.5, -1.0]))
    draws = positive * (share.mean + share.std * rng.normal(size=(400_000, 2)))
    np.testing.assert_allclose(found.mean, draws.mean(0), atol=3e-3)
    np.testing.assert_allclose(found.std, draws.std(0), atol=3e-3)


def test_a_map_of_rescaled_values_reads_as_before():
    rng = np.random.default_rng(0)
    mean, bag = rng.normal(size=(2, 5))
    found = InstanceMap(LatentMap(0.5, -1.0), 0.3)
    before = found.probabilities(2 * mean + 0.5, np.zeros(5), bag, np.zeros(5))
    after = found.after(2.0, 0.5).probabilities(mean, np.zeros(5), bag, np.zeros(5))
    np.testing.assert_allclose(after.log_odds, before.log_odds)


def test_reading_keeps_the_order_and_meets_the_log_odds():
    rng = np.random.default_rng(0)
    mean, var = 4 * rng.normal(size=500), 6 * rng.random(500)
    before = sigmoid_moments(mean, var).log_odds
    for slope, intercept in ((0.3, -1.0), (2.0, 1.0)):
        mapped = LatentMap(slope, intercept).read(mean, var)
        np.testing.assert_array_equal(np.argsort(mapped.probabilities.log_odds), np.argsort(before))
        near = np.abs(slope * before + intercept) < 10
        reached = sigmoid_moments(mapped.mean, mapped.var).log_odds
        np.testing.assert_allclose(reached[near], (slope * before + intercept)[near], atol=1e-6)


def test_the_contrast_knows_its_gradient(rng):
    mean, known = rng.normal(size=60), np.where(rng.random(60) < 0.3, rng.integers(0, 2, 60), -1)
    held_out = HeldOut(mean, rng.random(60), np.arange(0, 61, 5))
    contrast = _Contrast(held_out, np.arange(12) % 2 * 1.0, 1.3, known)
    points = [[1.2, 0.3, 0.4, 0.0], [0.5, -2.0, 2.0, 1.5], [0.0, 1.0, -1.0, -0.7]]
    for point in np.array(points):
        gradient = contrast.loss(*point)[1]
        for i, step in enumerate(1e-5 * np.eye(4)):
            rise = contrast.loss(*(point + step))[0] - contrast.loss(*(point - step))[0]
            assert gradient[i] == pytest.approx(rise / 2e-5, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("size", "share"), [(20, 0.05), (200, 0.3), (20, 0.6)])
def test_groups_of_neighbouring_scores_stand_for_all(rng, monkeypatch, size, share):
    n_bags = 6000 // size
    y = np.arange(n_bags) % 2
    truth = np.repeat(y, size) * (rng.random(6000) < share)
    mean = 3 * truth + rng.normal(size=6000) + np.repeat(0.3 * rng.normal(size=n_bags), size)
    held_out = HeldOut(mean, np.full(6000, 0.1), np.arange(0, 6001, size))
    known = np.where(rng.random(6000) < 0.01, truth, -1)
    whole = _Contrast(held_out, y * 1.0, 1.0, known)
    monkeypatch.setattr("bagwise.models.variational.latent_map._GROUPS", 600)
    groups = _Contrast(held_out, y * 1.0, 1.0, known)
    for ours, theirs in zip(groups._by_kind, whole._by_kind, strict=True):
        assert ours.counts.sum() == len(theirs.scores) == theirs.counts.sum()
        assert ours.counts @ ours.scores == pytest.approx(theirs.scores.sum())
        assert len(ours.scores) <= max(700, len(theirs.scores) / 2)
        highest = np.sort(theirs.scores)[-300:]
        np.testing.assert_array_equal(np.sort(ours.scores)[-len(highest) :], highest)
    for point in ([1.0, 0.0, 0.0, 0.0], [2.0, -3.0, 1.0, 0.5]):
        for ours, theirs in zip(groups.loss(*point), whole.loss(*point), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=0.3)
    found, exact = groups.fitted(1.5), whole.fitted(1.5)
    assert found.loss == pytest.approx(exact.loss, abs=0.3)
    np.testing.assert_allclose(found[1:], exact[1:], atol=0.02)


def test_a_map_with_ends_bends_what_lies_beyond_them(rng):
    latent_map, first = LatentMap(2.0, 1.0, -1.0, 3.0), Platt(0.5, -0.25)
    z = rng.normal(scale=8.0, size=200)

    def beyond(x):
        return x / np.hypot(1, x / 4)  # 4 is the width of the range

    expected = [
        x if -1 <= x <= 3 else 3 + beyond(x - 3) if x > 3 else -1 - beyond(-1 - x) for x in z
    ]
    np.testing.assert_allclose(latent_map.log_odds(z), 2 * np.array(expected) + 1)
    np.testing.assert_allclose(
        latent_map.after(first).log_odds(z), latent_map.log_odds(first.log_odds(z))
    )
    # All that is read off the function follows: its probabilities, and bags by their largest.
    read = latent_map.read(z, np.full(200, 0.5))
    before = sigmoid_moments(z, np.full(200, 0.5)).log_odds
    np.testing.assert_allclose(read.probabilities.log_odds, latent_map.log_odds(before))
    held_out = HeldOut(z, np.full(200, 0.5), np.arange(0, 201, 10))
    np.testing.assert_allclose(
        rule_log_odds(held_out, "max", latent_map),
        latent_map.log_odds(before.reshape(-1, 10).max(1)),
    )


def test_only_bags_read_off_their_largest_instance_are_compressed(rng):
    f = rng.standard_t(2, size=300)
    y = (rng.random(100) < 1 / (1 + np.exp(-f.reshape(100, 3).max(1)))).astype(int)
    held_out = HeldOut(f, np.full(300, 0.1), np.arange(0, 301, 3))
    found = MapFit(held_out, y, "max", compress=True).shrunk()
    assert found[2:4] == typical_range(held_out.largest(), y)
    for rule, compress in (("max", False), ("noisy-or", True)):
        assert MapFit(held_out, y, rule, compress=compress).shrunk()[2:4] == (-np.inf, np.inf)
    # The slope is that of the compressed values, by the plain fit of two numbers.
    plain = fit_shrunk_platt(compress_beyond(held_out.largest(), *found[2:4], order=2), y)
    assert found.slope == pytest.approx(plain.slope, rel=0.02)
    assert found.intercept == pytest.approx(plain.intercept, abs=0.02)
    # Instances are measured against the line through all bags, as if none were compressed.
    line = MapFit(held_out, y, "max", compress=True).without_ends()
    as_it_was = MapFit(held_out, y, "max")
    assert (line.slope, line.gain) == (as_it_was.slope, as_it_was.gain)
    assert as_it_was.without_ends() is as_it_was  # nothing to fit again
    assert line.slope < MapFit(held_out, y, "max", compress=True).slope


def test_bags_are_compressed_where_that_makes_their_labels_likelier(rng):
    """Bags far out that are as sure as the line says keep it; chance out there bends it."""
    f = np.concatenate([rng.normal(size=2000), 4 * rng.normal(size=600)])
    held_out = HeldOut(f, np.zeros(2600), np.arange(2601))
    sure = (rng.random(2600) < expit(f)).astype(int)
    unsure = sure.copy()
    unsure[2000:] = rng.random(600) < expit(np.sign(f[2000:]))
    straight, bending = (MapFit(held_out, y, "max", compress=True) for y in (sure, unsure))
    as_it_was = MapFit(held_out, sure, "max")
    assert straight.shrunk() == as_it_was.shrunk()
    assert straight.shrunk()[2:4] == (-np.inf, np.inf)
    assert bending.shrunk()[2:4] == typical_range(held_out.largest(), unsure)
