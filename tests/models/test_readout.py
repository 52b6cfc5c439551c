"""The read-out: against loops and simulation, and what predictions must not depend on."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

from bagwise import VGPMIL, Bags
from bagwise.core.gaussians import sigmoid_moments
from bagwise.core.kernels import RBF
from bagwise.models.calibration.fit import Platt
from bagwise.models.drivers import cut
from bagwise.models.scaling import FeatureScaling
from bagwise.models.variational.blocks import BagLabels, Block
from bagwise.models.variational.inference import make_draws
from bagwise.models.variational.likelihoods import Or, SoftMax
from bagwise.models.variational.projection import (
    Projector,
    make_projector,
    rows_of,
    share_out,
)
from bagwise.models.variational.readout import (
    NotFiniteError,
    Predictor,
    Process,
    Reading,
    RowPart,
    _ranks,
    read_block,
)
from tests.checks import make_problem
from tests.models.test_several_classes import make_classes
from tests.reference import inference as naive

M, F = 5, 2
OFFSETS = np.array([0, 2, 9, 12, 13])
LIKELIHOODS = [Or(), Or(0.5, 0.05), SoftMax(), SoftMax(3.0, 4.0)]


def make_process(rng, likelihood, projector=None):
    """Two latent functions whose posteriors are narrower than the prior."""
    W = np.stack([naive.factor(4 * np.eye(M) + r @ r.T) for r in rng.normal(size=(F, M, M))])
    return Process(projector, rng.normal(size=(F, M)), W, np.array([-1.0, 0.5]), likelihood)


def make_block(rng):
    n = int(OFFSETS[-1])
    A = np.asfortranarray(rng.normal(size=(M, n)))
    return Block(A, 0.1 + rng.random(n), BagLabels(OFFSETS, OFFSETS[1:]))


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
def test_bags_are_means_over_draws(likelihood, rng):
    """Draw by draw and bag by bag; residuals go by the rank of an instance in its bag."""
    process, block = make_process(rng, likelihood), make_block(rng)
    latent, draws = read_block(block, process), make_draws(M, 128, 1)
    for f, b in itertools.product(range(F), range(4)):
        start, stop = OFFSETS[b : b + 2]
        own = block.A[:, start:stop]
        mean = own.T @ process.m[f]
        rank = np.argsort(np.argsort(mean))
        p = []
        for s in range(128):
            v = process.m[f] + process.W[f].T @ draws.U[0][:, s]
            values = process.f0[f] + own.T @ v + np.sqrt(block.r[start:stop]) * draws.E[rank, s]
            p.append(naive.probability(likelihood, values))
        np.testing.assert_allclose(expit(latent.draws[b, f]), p, atol=1e-10)
        assert expit(latent.bag[b, f]) == pytest.approx(np.mean(p), abs=1e-10)
        var = ((process.W[f] @ own) ** 2).sum(0) + block.r[start:stop]
        alone = naive.alone(likelihood, mean + process.f0[f])
        np.testing.assert_allclose(latent.mean[start:stop, f], alone, atol=1e-10)
        np.testing.assert_allclose(latent.var[start:stop, f], var, atol=1e-10)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
def test_bags_equal_simulation(likelihood, rng):
    """The draws are few; many others have the same mean and spread."""
    process, block = make_process(rng, likelihood), make_block(rng)
    latent = read_block(block, process)
    z, e = rng.normal(size=(M, 20_000)), rng.normal(size=(13, 20_000))
    for f in range(F):
        v = process.m[f][:, None] + process.W[f].T @ z
        values = process.f0[f] + block.A.T @ v + np.sqrt(block.r)[:, None] * e
        p = expit(likelihood.log_odds(values[:, None], OFFSETS))[:, 0]
        np.testing.assert_allclose(expit(latent.bag[:, f]), p.mean(-1), atol=0.03)
        np.testing.assert_allclose(expit(latent.draws[:, f]).std(-1), p.std(-1), atol=0.03)


def test_a_hopeless_bag_keeps_its_digits(rng):
    process = make_process(rng, SoftMax())
    process = process._replace(W=1e-9 * process.W, m=0 * process.m)
    block = make_block(rng)._replace(r=np.zeros(13))
    for level in (-300.0, 300.0):
        latent = read_block(block, process._replace(f0=np.full(F, level)))
        np.testing.assert_allclose(latent.bag, level, rtol=1e-9)


def test_tensors_are_read_like_arrays(rng):
    torch = pytest.importorskip("torch", reason="needs torch")
    process, block = make_process(rng, SoftMax(3.0, 4.0)), make_block(rng)
    there = Block(
        torch.as_tensor(np.array(block.A)),
        torch.as_tensor(block.r),
        block.labels.map(lambda x: torch.as_tensor(np.array(x))),
    )
    ours, theirs = (read_block(x, process, functions=True) for x in (block, there))
    for a, b in zip(ours[:4], theirs[:4], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)
    np.testing.assert_allclose(theirs.functions.numpy(), ours.functions, atol=1e-10)


def test_ranks_are_those_within_the_bag(rng):
    values = rng.normal(size=13)
    expected = [np.argsort(np.argsort(values[a:b])) for a, b in itertools.pairwise(OFFSETS)]
    np.testing.assert_array_equal(_ranks(values, OFFSETS), np.concatenate(expected))


def test_expectations_of_the_sigmoid(rng):
    mean, var = 4 * rng.normal(size=30), 3 * rng.random(30)
    found = sigmoid_moments(mean, var)
    grid = np.linspace(-9, 9, 4001)
    weights = norm.pdf(grid) / norm.pdf(grid).sum()
    p = expit(mean[:, None] + np.sqrt(var)[:, None] * grid)
    np.testing.assert_allclose(found.mean, p @ weights, atol=1e-6)
    np.testing.assert_allclose(found.mean**2 + found.std**2, p**2 @ weights, atol=1e-6)
    np.testing.assert_allclose(expit(found.log_odds), found.mean, atol=1e-10)


def predictor_of(processes, weights=None, **options):
    weights = tuple(1.0 for _ in processes) if weights is None else weights
    return Predictor(tuple(processes), weights, **options)


def test_members_add_their_log_odds(rng):
    process, other = make_process(rng, SoftMax()), make_process(rng, Or())
    block = make_block(rng)
    found = [read_block(block, p, functions=True) for p in (process, other)]
    blend = predictor_of((process, other), (0.7, 0.4)).blend(found)
    for name in ("bag", "draws", "mean", "functions"):
        a, b = (getattr(x, name) for x in found)
        np.testing.assert_allclose(getattr(blend, name), 0.7 * a + 0.4 * b)
    alone = predictor_of((process, other), (1.0, 0.0)).blend(found)
    for a, b in zip(alone, found[0], strict=True):
        np.testing.assert_allclose(a, b)


def one_finding(latent):
    return latent._replace(**{k: getattr(latent, k)[:, :1] for k in latent._fields})


def test_lines_move_every_draw_and_shares_multiply_with_their_bag(rng):
    process = make_process(rng, SoftMax(3.0, 4.0))
    latent = one_finding(read_block(make_block(rng), process, functions=True))
    line, share = Platt(1.7, -0.4), Platt(0.8, 0.3)
    predictor = predictor_of([process], lines=(line,), shares=(share,))
    bags = predictor.bags(latent, 0.8)
    p = expit(line.log_odds(latent.draws[:, 0]))
    np.testing.assert_allclose(bags.log_odds, line.log_odds(latent.bag[:, 0]))
    np.testing.assert_allclose(bags.std, p.std(-1))
    np.testing.assert_allclose([bags.low, bags.high], np.quantile(p, [0.1, 0.9], axis=-1))
    instances = predictor.instances(latent, OFFSETS, None, 0.8)
    z = rng.normal(size=40_000)
    owner = np.repeat(np.arange(4), np.diff(OFFSETS))
    for n in range(13):
        own = expit(share.log_odds(latent.mean[n, 0] + np.sqrt(latent.var[n, 0]) * z))
        P = expit(bags.log_odds[owner[n]])
        assert expit(instances.log_odds[n]) == pytest.approx(P * own.mean(), abs=0.005)
        second = (P**2 + bags.std[owner[n]] ** 2) * (own**2).mean()
        std = np.sqrt(second - (P * own.mean()) ** 2)
        assert instances.std[n] == pytest.approx(std, abs=0.005)
        ends = P * np.quantile(own, [0.1, 0.9])
        assert [instances.low[n], instances.high[n]] == pytest.approx(ends.tolist(), abs=0.01)
    alone = predictor.instances(latent, OFFSETS, "alone", 0.8)
    plain = predictor_of([process]).instances(latent, OFFSETS, None, 0.8)
    for a, b in zip(alone, plain, strict=True):
        np.testing.assert_array_equal(a, b)


# Fitted models.


@pytest.fixture(scope="module")
def problem():
    return make_problem(40)


@pytest.fixture(scope="module")
def model(problem):
    bags, y, _ = problem
    return VGPMIL(n_inducing=15, random_state=0).fit(bags, y)


@pytest.fixture(scope="module")
def fits(problem, model):
    """Every form of labels: with two classes, several, a background, an indicator matrix."""
    bags, y, _ = problem
    more, classes, _ = make_classes()
    options = {"n_inducing": 12, "random_state": 0}
    indicators = np.column_stack([classes == 1, classes == 2]).astype(int)
    return {
        "two": (model, bags),
        "uncalibrated": (VGPMIL(calibrate=False, **options).fit(bags, y), bags),
        "or": (VGPMIL(likelihood=Or(), **options).fit(bags, y), bags),
        "paper": (VGPMIL(inference="paper", **options).fit(bags, y), bags),
        "three": (VGPMIL(**options).fit(more, classes), more),
        "background": (VGPMIL(**options).fit(more, classes, background=0), more),
        "multilabel": (VGPMIL(**options).fit(more, indicators), more),
    }


NAMES = ["two", "uncalibrated", "or", "paper", "three", "background", "multilabel"]


def everything(model, bags):
    """All that a model says, an array with an axis of bags and one with an axis of instances."""
    of_bags = [
        *model.predict_proba(bags, return_std=True, return_interval=0.8),
        *model.predict_positive_fraction(bags, return_std=True, return_interval=0.8),
    ]
    of_instances = [
        *model.predict_proba_instances(bags, return_std=True, return_interval=0.8),
        *model.predict_proba_instances(bags, question="alone", return_std=True),
        *model.predict_latent(bags),
    ]
    return of_bags, of_instances


@pytest.mark.parametrize("name", NAMES)
def test_neither_order_nor_batch_change_a_prediction(fits, name):
    model, bags = fits[name]
    rng = np.random.default_rng(0)
    of_bags, of_instances = everything(model, bags)
    order = rng.permutation(len(bags))
    within = [rng.permutation(n) for n in bags.sizes]
    mixed = Bags.from_list([bags[b][within[b]] for b in order])
    other_bags, other_instances = everything(model, mixed)
    for a, b in zip(of_bags, other_bags, strict=True):
        np.testing.assert_allclose(b, a[order], atol=1e-8)
    for a, b in zip(of_instances, other_instances, strict=True):
        parts = bags.split(a)
        expected = np.concatenate([parts[i][within[i]] for i in order])
        np.testing.assert_allclose(b, expected, atol=1e-8)
    for i in (0, 7):
        alone, _ = everything(model, bags[[i]])
        for a, b in zip(of_bags, alone, strict=True):
            np.testing.assert_allclose(b[0], a[i], atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_shapes_and_finite_deviations(fits, name):
    model, bags = fits[name]
    C, B, N = len(model.classes_), len(bags), bags.n_instances
    several = () if C == 2 and name != "multilabel" else (C,)
    p, std, interval = model.predict_proba(bags, return_std=True, return_interval=0.9)
    assert p.shape == (B, C) and std.shape == (B, *several) and interval.shape == (B, *several, 2)
    q, own_std, own = model.predict_proba_instances(bags, return_std=True, return_interval=0.9)
    assert q.shape == (N, C) and own_std.shape == (N, *several) and own.shape == (N, *several, 2)
    share, spread, ends = model.predict_positive_fraction(
        bags, return_std=True, return_interval=0.9
    )
    assert share.shape == spread.shape == (B, *several) and ends.shape == (B, *several, 2)
    for x in (p, std, interval, q, own_std, own, share, spread, ends):
        assert np.isfinite(x).all() and (x >= 0).all() and (x <= 1).all()
    mean, var = model.predict_latent(bags)
    assert mean.shape == var.shape == (N, *several)
    background = model.class_rule_.background
    findings = np.delete(np.arange(C), background) if background is not None else slice(None)
    kept = (mean, var) if not several else (mean[:, findings], var[:, findings])
    assert all(np.isfinite(x).all() for x in kept) and (kept[1] > 0).all()
    scores = model.score_bags(bags)
    np.testing.assert_allclose(scores.bag, model.decision_function(bags))
    np.testing.assert_allclose(scores.instance, model.decision_function_instances(bags))
    positive = p if several else p[:, 1]
    np.testing.assert_allclose(expit(scores.bag), positive, atol=1e-9)
    np.testing.assert_allclose(scores.bag_std, std)
    if name != "multilabel":
        np.testing.assert_allclose(p.sum(1), 1.0, atol=1e-9)
    if name in ("two", "background"):
        np.testing.assert_allclose(q.sum(1), 1.0, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_intervals_are_nested(fits, name):
    model, bags = fits[name]
    for method in ("predict_proba", "predict_proba_instances", "predict_positive_fraction"):
        predict = getattr(model, method)
        value, std, wide = predict(bags, return_std=True, return_interval=0.95)
        plain, narrow = predict(bags, return_interval=0.5)
        np.testing.assert_array_equal(plain, value)
        np.testing.assert_array_equal(predict(bags), value)
        np.testing.assert_array_equal(predict(bags, return_std=True)[1], std)
        assert (wide[..., 0] <= narrow[..., 0] + 1e-12).all()
        assert (narrow[..., 1] <= wide[..., 1] + 1e-12).all()


@pytest.mark.parametrize(
    "method", ["predict_proba", "predict_proba_instances", "predict_positive_fraction"]
)
@pytest.mark.parametrize("name", NAMES)
def test_intervals_hold_the_probability(fits, name, method):
    model, bags = fits[name]
    value, interval = getattr(model, method)(bags, return_interval=0.9)
    own = value[:, 1] if value.ndim == interval.ndim else value
    assert (interval[..., 0] <= own + 1e-9).all() and (own <= interval[..., 1] + 1e-9).all()


@pytest.mark.parametrize("question", [None, "alone"])
@pytest.mark.parametrize("name", NAMES)
def test_fractions_are_means_of_instances(fits, name, question):
    model, bags = fits[name]
    q = model.predict_proba_instances(bags, question=question)
    q = q[:, 1] if q.shape[1] == 2 and name != "multilabel" else q
    expected = [part.mean(axis=0) for part in bags.split(q)]
    found = model.predict_positive_fraction(bags, question=question)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_no_instance_is_more_probable_than_its_bag(fits):
    for name in ("two", "or", "paper", "three", "background", "multilabel"):
        model, bags = fits[name]
        p, q = model.predict_proba(bags), model.predict_proba_instances(bags)
        rule = model.class_rule_
        findings = rule.findings
        spread = np.repeat(p, bags.sizes, axis=0)
        assert (q[:, findings] <= spread[:, findings] + 1e-9).all(), name


def test_alone_is_what_a_bag_of_one_would_be(fits):
    model, bags = fits["uncalibrated"]
    alone = model.predict_proba_instances(bags)[:, 1]
    ones = Bags(bags.instances, np.arange(bags.n_instances + 1))
    p, std = model.predict_proba(ones, return_std=True)  # over 128 draws
    assert (np.abs(p[:, 1] - alone) <= 4 * std / 128**0.5 + 1e-3).all()
    np.testing.assert_array_equal(
        model.predict_proba_instances(bags, question="alone")[:, 1], alone
    )


def test_questions_that_cannot_be_answered(fits):
    model, bags = fits["uncalibrated"]
    with pytest.raises(ValueError, match="needs a calibrated model"):
        model.predict_proba_instances(bags, question="share")
    with pytest.raises(ValueError, match="question must be 'share' or 'alone'"):
        model.predict_positive_fraction(bags, question="maybe")
    for level in (0, 1, 1.5, -0.1):
        with pytest.raises(ValueError, match=r"return_interval must be in \(0, 1\)"):
            model.predict_proba(bags, return_interval=level)


def test_bags_far_from_all_others_stay_finite(fits):
    for name in NAMES:
        model, bags = fits[name]
        far = Bags.from_list([np.full((3, bags.n_features), 1e3 * k) for k in (-1, 1)])
        for x in itertools.chain(*everything(model, far)):
            kept = x if model.class_rule_.binary else x[..., 1:]
            assert np.isfinite(kept).all() or name == "background"
        assert (np.abs(model.decision_function(far)) <= 36).all()


@pytest.mark.parametrize(
    "ask", ["predict_proba", "predict_proba_instances", "predict_positive_fraction", "latent"]
)
@pytest.mark.parametrize("field", ["m", "W", "f0"])
def test_what_is_not_finite_is_refused_and_names_its_bag(fits, ask, field):
    """A model file may hold any numbers, whatever its checksums say."""
    for model, bags in fits.values():
        process = model.predictor_.processes[0]
        damaged = process._replace(**{field: np.full_like(getattr(process, field), np.nan)})
        broken = copy.copy(model)
        broken.predictor_ = replace(model.predictor_, processes=(damaged,), weights=(1.0,))
        question = broken.predict_latent if ask == "latent" else getattr(broken, ask)
        with pytest.raises(ValueError, match=r"prediction for bag .* is not a finite number"):
            question(bags)


@pytest.mark.parametrize("size", [1e3, 1e100, 1e300])
def test_no_probability_is_0_or_1(fits, size):
    for model, bags in fits.values():
        predictor = model.predictor_
        process = predictor.processes[0]
        for sign in (-size, size):
            far = process._replace(f0=np.full_like(process.f0, sign))
            sure = copy.copy(model)
            sure.predictor_ = replace(predictor, processes=(far,), weights=(1.0,))
            for p in (sure.predict_proba(bags), sure.predict_proba_instances(bags)):
                assert ((p > 0) & (p < 1)).all()


def test_a_wide_prior_is_less_sure_than_data(problem, model):
    """Far from the data a bag is as the prior says; among the data it is surer than that."""
    bags, _, _ = problem
    far = Bags.from_list([np.full((3, bags.n_features), 50.0)])
    assert model.predict_latent(far)[1].min() > np.median(model.predict_latent(bags)[1])


# Rows.


def two_processes(rng):
    scaling = FeatureScaling(np.zeros(2), np.ones(2))
    made = []
    for length in (1.0, 3.0):
        projector = make_projector(RBF(length, 4.0), rng.normal(size=(M, 2)), scaling, "float64")
        made.append(make_process(rng, SoftMax(3.0, 4.0), projector))
    return [p._replace(m=p.m[:1], W=p.W[:1], f0=p.f0[:1]) for p in made]


def read_parts(predictor, X, offsets, chunk, n_parts, wanted="both"):
    parts = [RowPart(rows_of(X, g), g, offsets) for g in share_out(cut(offsets, chunk, 1), n_parts)]
    read = [Reading(predictor, wanted, check=True)(part) for part in parts]
    return [np.concatenate(column) for column in zip(*read, strict=True)]


@pytest.mark.parametrize(("chunk", "n_parts"), [(3, 1), (5, 3), (1, 9)])
@pytest.mark.parametrize("wanted", ["both", "fractions", "raw", "latent"])
def test_rows_are_read_alike_however_they_are_cut(rng, chunk, n_parts, wanted):
    X, offsets = rng.normal(size=(23, 2)), np.array([0, 4, 9, 10, 17, 23])
    predictor = predictor_of(two_processes(rng), (0.6, 0.5))
    whole = read_parts(predictor, X, offsets, 100, 1, wanted)
    cut_up = read_parts(predictor, X, offsets, chunk, n_parts, wanted)
    for a, b in zip(whole, cut_up, strict=True):
        np.testing.assert_allclose(b, a, atol=1e-9)


def test_rows_are_looked_at_once(rng):
    X, offsets = rng.normal(size=(23, 2)), np.array([0, 4, 9, 10, 17, 23])
    X[11, 1] = np.nan
    with pytest.raises(NotFiniteError):
        read_parts(predictor_of(two_processes(rng)), X, offsets, 5, 2)


def test_rows_are_projected_once_for_all_classes(fits, monkeypatch):
    model, bags = fits["three"]
    seen, project = [], Projector.__call__
    monkeypatch.setattr(
        Projector, "__call__", lambda self, X: seen.append(len(X)) or project(self, X)
    )
    model.predict_proba(bags)
    assert sum(seen) == bags.n_instances
