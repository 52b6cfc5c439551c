import numpy as np
import pytest
from scipy.special import expit
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedShuffleSplit

from bagwise import AutoVGPMIL, Bags, Execution
from bagwise.core.gaussians import sigmoid_moments
from bagwise.core.platt import Platt, fit_platts
from bagwise.datasets import make_gaussian_bags
from bagwise.models.drivers import Serial
from bagwise.models.variational import search
from bagwise.models.variational.blocks import BagLabels, Block
from bagwise.models.variational.latent_map import Fraction, InstanceMap, LatentMap
from bagwise.models.variational.score import read_block, read_rules
from bagwise.models.variational.search import Voice, pooled_latent
from bagwise.models.variational.updates import InducingPosterior
from tests.checks import CHECKS, make_problem
from tests.checks.options import gathered


def make(**changes):
    options = {"n_inducing": 15, "cv": 2, "n_finalists": 2, "max_iter": 6, "random_state": 0}
    return AutoVGPMIL(**gathered(**{**options, **changes}))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check):
    check(make)


@pytest.fixture(scope="module")
def fitted():
    bags, y, labels = make_problem(n_bags=30)
    return make(n_finalists=5).fit(bags, y), bags, y, labels


def test_search_results_tell_what_won(fitted):
    model, bags, _, _ = fitted
    table = model.search_results_
    assert {len(column) for column in table.values()} == {len(search.grid()) + 5 * 3}
    assert table["weight"].sum() == pytest.approx(1.0)
    winner = table["weight"].argmax()
    assert table["stage"][winner] == "full"
    best = model.best_params_
    assert (table["scale"][winner], table["kernel"][winner]) == (best["scale"], best["kernel"])
    assert (table["likelihood"][winner], table["rule"][winner]) == (
        best["likelihood"],
        best["bag_rule"],
    )
    assert np.isfinite(table["log_loss"]).all()
    assert ((table["auc"] >= 0) & (table["auc"] <= 1)).all()
    assert model.held_out_decision_.shape == (len(bags),)


def test_no_instance_is_more_probable_than_its_bag(fitted):
    model, bags, _, _ = fitted
    bag = model.decision_function(bags)
    for b, scores in enumerate(bags.split(model.decision_function_instances(bags))):
        assert scores.max() <= bag[b] + 1e-9


def test_uncertainty(fitted):
    model, bags, _, _ = fitted
    for method in (model.predict_proba, model.predict_proba_instances):
        proba, std = method(bags, return_std=True)
        np.testing.assert_array_equal(proba, method(bags))
        assert (std > 0).all()
        assert (std < 0.5).all()
    mean, var = model.predict_latent(bags)
    # Instances are the latent function through their own map, times their bag.
    in_positive = expit(model.instance_map_.own.slope * mean + model.instance_map_.own.intercept)
    of_bag = np.repeat(model.predict_proba(bags)[:, 1], bags.sizes)
    p = model.predict_proba_instances(bags)[:, 1]
    np.testing.assert_allclose(p, in_positive * of_bag, rtol=1e-9)
    # Far from the data nothing is known.
    far = Bags(np.full((1, 3), 50.0), [0, 1])
    assert model.predict_latent(far)[1][0] > np.median(var)


def test_chunks_change_nothing(fitted):
    model, bags, y, _ = fitted
    other = make(n_finalists=5, chunk_size=3).fit(bags, y)
    np.testing.assert_allclose(
        other.decision_function(bags), model.decision_function(bags), rtol=1e-3, atol=1e-3
    )
    whole = model.decision_function(bags)
    try:
        model.execution = Execution(chunk_size=4)
        np.testing.assert_allclose(model.decision_function(bags), whole, rtol=1e-9)
    finally:
        model.execution = None


def test_threads_change_nothing(fitted):
    model, bags, y, _ = fitted
    other = make(n_finalists=5, n_jobs=2).fit(bags, y)
    np.testing.assert_allclose(
        other.decision_function(bags), model.decision_function(bags), rtol=1e-9, atol=1e-9
    )


def test_search_on_a_part_of_many_bags():
    bags, y, _ = make_problem(n_bags=140)
    model = make(max_search_instances=bags.n_instances // 2).fit(bags, y)
    assert len(model.held_out_decision_) == pytest.approx(70, abs=1)
    assert model.score(bags, y) >= 0.8


def test_few_large_bags_are_compared_by_some_instances_and_weighed_whole(monkeypatch):
    """At least 25 bags of each class, thinned; three designs then see them whole."""
    bags, y, _ = make_problem(n_bags=140)
    seen = []
    real = AutoVGPMIL._held_out

    def watched(self, work, designs, *rest):
        seen.append((len(designs), len(work.bags), work.bags.n_instances))
        return real(self, work, designs, *rest)

    monkeypatch.setattr(AutoVGPMIL, "_held_out", watched)
    model = make(max_search_instances=60, n_finalists=5).fit(bags, y)
    (_, n, few), (n_finalists, _, fewer), (n_weighed, _, whole) = seen
    assert n == len(model.held_out_decision_) == 50
    assert np.bincount(y[model._searched]).tolist() == [25, 25]
    assert few == fewer == pytest.approx(60, rel=0.2)
    assert whole == bags[model._searched].n_instances
    assert n_finalists == 5 and 1 <= n_weighed <= 3
    assert len(model.members_) <= 3 * len(search.RULES)
    assert model.score(bags, y) >= 0.8
    # Bags less than twice too large are compared as they are.
    seen.clear()
    make(max_search_instances=int(0.6 * whole)).fit(bags[model._searched], y[model._searched])
    assert [n_instances for _, _, n_instances in seen] == [whole, whole]


def test_few_large_bags_on_disk_are_thinned_alike(tmp_path):
    bags, y, _ = make_problem(n_bags=60)
    lazy = Bags.load(bags.save(tmp_path / "bags.h5"), lazy=True)
    inside, outside = (make(max_search_instances=60).fit(b, y) for b in (bags, lazy))
    np.testing.assert_array_equal(inside.held_out_decision_, outside.held_out_decision_)


def test_too_few_bags_to_cross_validate():
    X = np.random.default_rng(0).normal(size=(5, 4, 2))
    with pytest.raises(ValueError, match="at least 2 bags of each class"):
        make().fit(X, [0, 0, 0, 0, 1])


@pytest.mark.parametrize(
    "bad", [{"n_inducing": 0}, {"cv": 1}, {"temperature": 0.0}, {"n_finalists": 0}]
)
def test_bad_parameters(bad):
    bags, y, _ = make_problem()
    with pytest.raises(ValueError, match=next(iter(bad))):
        make(**bad).fit(bags, y)


def test_hard_data_is_finite():
    """Repeated rows, a constant feature, bags of one: finite and quiet."""
    rng = np.random.default_rng(0)
    X = np.round(rng.normal(size=(40, 3)))
    X[:, 1] = 7.0
    X[20:] = X[:20]
    bags = Bags(X, np.r_[np.arange(20), 30, 40])
    model = make().fit(bags, np.arange(21) % 2)
    assert np.isfinite(model.decision_function(bags)).all()
    same = Bags(np.ones((8, 2)), np.arange(0, 9, 2))
    assert np.isfinite(make().fit(same, [0, 1, 0, 1]).decision_function(same)).all()


@pytest.fixture(scope="module")
def posterior():
    rng = np.random.default_rng(3)
    M, n = 6, 11
    A = rng.normal(size=(M, n)) * 0.6
    W = np.asfortranarray(np.tril(rng.normal(size=(M, M))) * 0.3 + np.eye(M) * 0.5)
    return np.asfortranarray(A), rng.uniform(0, 0.3, n), InducingPosterior(rng.normal(size=M), W)


def block_of(A, r, offsets):
    n = A.shape[1]
    labels = BagLabels(offsets, np.zeros(len(offsets) - 1, dtype=int), np.full(n, -1))
    return Block((A,), r, labels)


def test_rules_agree_with_their_definition(posterior):
    A, r, q = posterior
    offsets = np.array([0, 1, 5, 11])
    mean, var = A.T @ q.m, np.einsum("mn,mk,kn->n", A, q.S, A) + r
    top, noisy, joint = read_rules(block_of(A, r, offsets), q, search.RULES)
    p = np.exp(sigmoid_moments(mean, var).log_positive)
    np.testing.assert_allclose(top.latent_mean, mean, rtol=1e-10)
    np.testing.assert_allclose(top.latent_var, var, rtol=1e-10)
    np.testing.assert_allclose(expit(top.bag), [p[0], p[1:5].max(), p[5:].max()], rtol=1e-8)
    expected = [1 - np.prod(1 - p[a:b]) for a, b in ((0, 1), (1, 5), (5, 11))]
    np.testing.assert_allclose(expit(noisy.bag), expected, rtol=1e-8)
    draws = np.random.default_rng(0).normal(size=(len(q.m), 20_000))
    f = A.T @ (q.m[:, None] + q.W.T @ draws)
    f += np.sqrt(r)[:, None] * np.random.default_rng(1).normal(size=f.shape)
    by_draws = [(1 - np.prod(expit(-f[a:b]), axis=0)).mean() for a, b in ((0, 1), (1, 5), (5, 11))]
    np.testing.assert_allclose(expit(joint.bag), by_draws, atol=0.01)
    for readout in (top, noisy, joint):
        np.testing.assert_allclose(readout.instance, np.log(p / (1 - p)), rtol=1e-6, atol=1e-9)


def test_pooling_is_the_mean_of_the_members_and_their_disagreement(posterior):
    """Moments of the ensemble's log-odds against draws of members that err a third together."""
    A, r, q = posterior
    offsets = np.array([0, 1, 5, 11])
    block = block_of(A, r, offsets)
    readouts = [read_rules(block, q, ("max",))[0], read_rules(block, q, ("noisy-or",))[0]]
    voices = (Voice(0.3, Platt(0.5, 0.2)), Voice(0.7, Platt(2.0, -1.0)))
    pooled = pooled_latent(readouts, voices)
    rng = np.random.default_rng(0)
    n_draws = 200_000
    which = rng.random(n_draws) < 0.3
    for i in range(A.shape[1]):
        centres = [v.platt.log_odds(ro.instance[i]) for ro, v in zip(readouts, voices, strict=True)]
        mean = 0.3 * centres[0] + 0.7 * centres[1]
        draws, shared = np.where(which, *centres), rng.normal(size=n_draws)
        for v, ro in zip(voices, readouts, strict=True):
            # Values half as large deviate half as much, values twice as large by a power.
            factor = 0.5 if v.platt.slope == 0.5 else 2.0**0.6
            std = np.sqrt(ro.latent_var[i])
            error = (1 / 3) ** 0.5 * shared + (2 / 3) ** 0.5 * rng.normal(size=n_draws)
            draws = draws + v.weight * factor * std * error
        assert pooled.instance[i] == pytest.approx(mean)
        assert pooled.instance_std[i] == pytest.approx(draws.std(), abs=0.03)
    other = pooled_latent(readouts, [v._replace(top=Platt(3.0, 1.0)) for v in voices])
    np.testing.assert_array_equal(other.bag, pooled.bag)
    np.testing.assert_allclose(other.instance, 3 * readouts[0].instance + 1)  # the same in both
    alone = pooled_latent(readouts[:1], (Voice(1.0, Platt(8.0, 0.0)),))
    p = expit(readouts[0].bag)
    own = np.minimum(readouts[0].bag_std / (p * (1 - p)), 10)
    np.testing.assert_allclose(alone.bag_std, 2 * own)  # bags follow by a third root
    alone = pooled_latent(readouts[:1], (Voice(1.0, Platt(1.0, 0.0)),))
    np.testing.assert_allclose(alone.instance_std, np.sqrt(readouts[0].latent_var))
    p = expit(readouts[0].bag)
    np.testing.assert_allclose(alone.bag_std, np.minimum(readouts[0].bag_std / (p * (1 - p)), 10))


def test_held_out_scores_are_held_out():
    """A bag's score comes from models that never saw its label."""
    bags, y, _ = make_problem(n_bags=16)
    space = search.make_spaces(bags, 10, np.random.RandomState(0), Serial())["global"]
    folds = search.make_folds(y, 4, 0)
    known = np.full(bags.n_instances, -1)

    def scores(labels):
        work = search.HeldOut(bags, BagLabels(bags.offsets, labels, known), search.RULES, folds, 4)
        projector = space.projector("multi-scale", "float32")
        return work(search.Task(projector, tuple(search.LIKELIHOODS)))

    before = scores(y)
    test = folds[0][1]
    flipped = y.copy()
    flipped[test[0]] = 1 - flipped[test[0]]
    after = scores(flipped)
    rows = np.isin(bags.bag_index, test)
    np.testing.assert_array_equal(before.bags[:, :, test], after.bags[:, :, test])
    np.testing.assert_array_equal(before.instances[:, rows], after.instances[:, rows])
    assert not np.allclose(before.bags, after.bags)
    assert not np.allclose(before.instances, after.instances)
    # Under "max" the score of a bag is that of its largest instance.
    largest = [one.max(axis=1) for one in np.split(before.instances, bags.offsets[1:-1], axis=1)]
    np.testing.assert_allclose(before.bags[:, 0], np.transpose(largest))


def test_shares_of_positives_are_as_wide_as_their_instances(posterior):
    A, r, q = posterior
    offsets = np.array([0, 1, 5, 11])
    readout = read_block(block_of(A, r, offsets), q, "max", fractions=True)
    voice = Voice(1.0, Platt(8.0, 0.0), top=Platt(1.5, 0.0))
    share, std = search.pooled_fractions([readout], offsets, [voice])
    each = np.split(expit(1.5 * readout.instance), offsets[1:-1])
    np.testing.assert_allclose(share, [p.mean() for p in each])
    np.testing.assert_allclose(std, np.minimum(1.5**0.6 * readout.fraction.std, 0.5))
    own = InstanceMap(LatentMap(1.2, -1.0, power=0.6), 0.3)
    _, within = search.pooled_fractions([readout], offsets, [voice], own)
    inside = [expit(1.2 * 1.5 * z - 1.0).mean() for z in np.split(readout.instance, offsets[1:-1])]
    wide = np.minimum(1.8**0.6 * readout.fraction.std, 0.5)
    expected = own.fraction(Fraction(np.array(inside), wide), 8.0 * readout.bag)
    np.testing.assert_allclose(within, expected.std)


def test_weights_prefer_the_better_design():
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    good, poor = y + 0.3 * rng.normal(size=40), rng.normal(size=40)
    scores = np.array([[poor, good], [poor, poor]])
    members = search.weigh(scores, y, [0, 0], 1.0)
    assert [m.design for m in members] == [0]
    assert members[0].rule == 1
    even = search.weigh(scores, y, [0, 0], 1e6)
    np.testing.assert_allclose([m.weight for m in even], 0.5, atol=1e-3)
    pair = search.HeldOutScores(scores, np.stack([good, poor]))
    of_bags, of_instances = search.combine(members, pair)
    np.testing.assert_allclose(of_bags, members[0].platt.log_odds(good), rtol=1e-12)
    # Instances go through the map of the first rule, the largest one, whichever the bags have.
    (plain,) = search.weigh(scores[:1, :1], y, [0], 1.0)
    assert members[0].top == plain.platt != members[0].platt
    np.testing.assert_allclose(of_instances, plain.platt.log_odds(good), rtol=1e-12)


def test_an_ensemble_is_weighed_without_the_bags_it_scores():
    """Bags and instances of a fold, each from the weights of the other folds, by hand."""
    rng = np.random.default_rng(0)
    y, sizes = np.arange(24) % 2, rng.integers(1, 4, size=24)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    instances = rng.normal(size=(3, offsets[-1]))
    of_bags = np.stack([[s.max() for s in np.split(z, offsets[1:-1])] for z in instances])
    scores = search.HeldOutScores((of_bags + y)[:, None], instances)
    folds = search.make_folds(y, 4, 0)
    ours = search.held_out_ensemble(scores, y, offsets, [0.0] * 3, 4.0, folds)
    for train, test in folds:
        members = search.weigh(scores.bags[:, :, train], y[train], [0.0] * 3, 4.0)
        for b in test:
            own = slice(offsets[b], offsets[b + 1])
            pairs = [(m.weight, m.platt, m.design) for m in members]
            bag = sum(w * p.log_odds(scores.bags[d, 0, b]) for w, p, d in pairs)
            inside = sum(w * p.log_odds(instances[d, own]) for w, p, d in pairs)
            assert ours[0][b] == pytest.approx(bag)
            np.testing.assert_allclose(ours[1][own], inside)


def test_instances_keep_their_level_where_bags_add_them_up():
    """The joint rule has a map of its own; instances read through it were called .02 of .075."""
    data = make_gaussian_bags(
        120, 5, bag_size=(20, 20), n_positive=(3, 3), separation=3.0, random_state=100
    )
    train, test = next(
        StratifiedShuffleSplit(1, test_size=0.3, random_state=100).split(data.y, data.y)
    )
    model = AutoVGPMIL(random_state=100).fit(data.bags[train], data.y[train])
    assert model.best_params_["bag_rule"] == "joint"
    assert model.instance_maps_[0] != model.maps_[0]
    truth = np.asarray(data.instance_labels)[np.isin(data.bags.bag_index, test)]
    p = model.predict_proba_instances(data.bags[np.sort(test)])[:, 1]
    assert p.mean() == pytest.approx(truth.mean(), abs=0.02)


def test_instances_have_the_level_of_the_truth():
    """Ten of twenty are positive; on the scale of the bags most of them would be called none."""
    data = make_gaussian_bags(
        60, 3, bag_size=(20, 20), n_positive=(10, 10), separation=3.0, random_state=5
    )
    model = make(n_inducing=40, cv=4, n_finalists=4).fit(data.bags, data.y)
    unseen = make_gaussian_bags(
        60, 3, bag_size=(20, 20), n_positive=(10, 10), separation=3.0, random_state=6
    )
    p = model.predict_proba_instances(unseen.bags)[:, 1]
    assert p.mean() == pytest.approx(0.25, abs=0.04)
    assert model.instance_map_.positive_rate == pytest.approx(0.5, abs=0.1)
    mean, _ = model.predict_latent(unseen.bags)
    assert expit(mean).mean() < 0.2
    share, std = model.predict_positive_fraction(unseen.bags, return_std=True)
    np.testing.assert_allclose(share, [own.mean() for own in unseen.bags.split(p)])
    # Bags that may be of either class have the widest spread of their share.
    sure = np.abs(model.predict_proba(unseen.bags)[:, 1] - 0.5) > 0.45
    assert std[~sure].mean() > 1.2 * std[sure].mean()


def test_departures_from_the_plain_choice_must_pay_their_price():
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    score = y + rng.normal(size=40)
    same = np.array([[score, score], [score, score]])
    members = search.weigh(same, y, [search.PRICE, 0], temperature=1.0)
    assert [(m.design, m.rule) for m in members] == [(1, 0), (0, 0)]
    assert members[1].weight / members[0].weight == pytest.approx(np.exp(-search.PRICE))
    prices = {design.likelihood: design.price(50) for design in search.grid()}
    assert [name for name, price in prices.items() if price] == ["or", "inherited"]


def test_candidates_are_compared_with_platts_own_targets():
    """Of many maps chance favours the steep ones; a rare class would be smoothed less else."""
    rng = np.random.default_rng(0)
    y = (np.arange(60) % 15 == 0).astype(int)
    scores = rng.normal(size=(3, 60)) + np.outer([1.0, 3.0, 9.0], y)
    maps, losses = search.calibrated_losses(scores, y)
    own = fit_platts(scores, y)
    assert maps == fit_platts(scores, y, 1.0)
    assert all(mild.slope < steep.slope for mild, steep in zip(maps, own, strict=True))
    for platt, row, loss in zip(maps, scores, losses, strict=True):
        p = expit(platt.log_odds(row))
        assert loss == pytest.approx(-np.mean(np.where(y == 1, np.log(p), np.log(1 - p))))


def test_odd_designs_cost_more_the_fewer_bags_a_class_has():
    def price(kernel, likelihood, n):
        return search.Design("global", kernel, likelihood).price(n)

    assert price("medium, rough", "witness, g=0", 2) == 0
    for odd in (("wide, v=4", "witness, g=0"), ("narrow, v=4", "witness, g=1")):
        assert [price(*odd, n) for n in (5, 10, 20, 100)] == [6.0, 4.0, 0.0, 0.0]
    assert price("medium, rough", "witness, h=0.5", 10) == 4.0
    assert price("wide, v=4", "or", 10) == 4.0 + search.PRICE
    assert price("set, wide", "whole bags, v=16", 10) == search.PRICE


def test_few_positive_bags_leave_odd_designs_out(monkeypatch):
    """The price decides who reaches the final, and who has weight."""
    bags, y, _ = make_problem(n_bags=40)
    chosen = np.sort(np.r_[np.flatnonzero(y == 0), np.flatnonzero(y == 1)[:4]])

    def odd_weight():
        table = make(n_finalists=8, cv=2).fit(bags[chosen], y[chosen]).search_results_
        odd = np.isin(table["kernel"], ["wide, v=4", "narrow, v=4"])
        odd |= table["likelihood"] == "witness, h=0.5"
        full = table["stage"] == "full"
        return table["weight"][odd].sum(), (odd & full).sum()

    priced = odd_weight()
    monkeypatch.setattr(search, "FEW_PRICE", 0.0)
    free = odd_weight()
    assert priced[0] <= free[0] and priced[1] < free[1]


def test_auc_of_many():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, size=30)
    scores = np.round(rng.normal(size=(2, 3, 30)), 1)  # with ties
    expected = [[roc_auc_score(y, s) for s in row] for row in scores]
    np.testing.assert_allclose(search.auc(scores, y), expected)


def test_an_ensemble_of_designs_without_merit_keeps_a_hint_of_their_ranking():
    """Held-out bags may speak against every design: then the bags hardly differ, but they do."""
    y = np.arange(40) % 2
    scores = np.random.default_rng(0).normal(size=(3, 2, 40)) - 2.0 * y
    held_out = search.HeldOutScores(scores, scores[:, 0])
    log_odds, _ = search.combine(search.weigh(scores, y, [0.0] * 3, 4.0), held_out)
    assert 1e-5 < np.std(log_odds) < 1e-2
    np.testing.assert_allclose(log_odds, 0.0, atol=0.01)
    left_out, _ = search.held_out_ensemble(
        held_out, y, np.arange(41), [0.0] * 3, 4.0, search.make_folds(y, 5, 0)
    )
    assert len(np.unique(left_out)) == 40


def test_a_rule_that_counts_pays_what_the_sizes_alone_gain():
    y = np.arange(60) % 2
    sizes = np.where(y == 1, 25, 5)
    rng = np.random.default_rng(0)
    plain = rng.normal(size=60) + y
    counting = 10.0 * y + rng.normal(size=60)
    scores = np.stack([np.stack([plain, counting])])
    free = search.weigh(scores, y, [0.0], 4.0)
    price = search.PRICE + search.size_gain(sizes, y)
    charged = search.weigh(scores, y, [0.0], 4.0, price)
    assert (free[0].rule, charged[0].rule) == (1, 0)
    # Smaller positive bags cannot be counted for; then there is nothing to pay.
    assert search.size_gain(np.where(y == 1, 5, 25), y) == pytest.approx(0.0, abs=0.1)


def test_a_probability_and_its_deviation_are_of_one_distribution():
    """The std is that of sigmoid(f) around the reported mean, by quantiles and bisection."""
    from scipy.optimize import brentq
    from scipy.special import expit, logit, ndtri

    from bagwise.models.variational.search import _probability_std

    z = ndtri((np.arange(20_000) + 0.5) / 20_000)
    for log_odds in (-6.0, -1.0, 0.0, 2.5):
        for std in (0.1, 1.0, 4.0):
            centre = brentq(
                lambda m, s=std, t=log_odds: logit(expit(m + s * z).mean()) - t, -90, 90
            )
            expected = expit(centre + std * z).std()
            ours = _probability_std(np.array([log_odds]), np.array([std]))[0]
            assert ours == pytest.approx(expected, rel=0.02, abs=1e-4)
            p = expit(log_odds)
            assert ours <= np.sqrt(p * (1 - p))
