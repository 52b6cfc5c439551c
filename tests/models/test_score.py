"""Reading bags off a posterior: against simulation, naive sums, and what must not matter."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import norm

from bagwise.core.gaussians import hermite, project, sigmoid_moments
from bagwise.core.kernels import RBF
from bagwise.core.platt import fit_noisy_or_platt, fit_platt
from bagwise.models.drivers import cut
from bagwise.models.scaling import FeatureScaling
from bagwise.models.variational import score
from bagwise.models.variational.blocks import BagLabels, Block
from bagwise.models.variational.calibration import fit_calibration
from bagwise.models.variational.latent_map import InstanceMap, LatentMap
from bagwise.models.variational.parts import Sites
from bagwise.models.variational.projection import make_projector
from bagwise.models.variational.score import (
    LeftOutScores,
    NotFiniteError,
    Reader,
    ReadRows,
    _joint,
    _negative_moments,
    _normal_points,
    _principal,
    bag_scores,
    joint_bag_scores,
    leave_bags_out,
    loo_scores,
    make_row_parts,
    on_host,
    read_block,
    read_rules,
)
from bagwise.models.variational.updates import update_posterior

M = 4
OFFSETS = np.array([0, 2, 9, 12, 13])  # bags smaller than, larger than, and as large as M


@pytest.fixture
def block(rng):
    n = int(OFFSETS[-1])
    labels = BagLabels(OFFSETS, np.array([0, 1, 1, 0]), np.full(n, -1, dtype=np.int8))
    A = np.asfortranarray(rng.normal(size=(M, n)))
    return Block((A,), 0.1 + rng.random(n), labels)


@pytest.fixture
def sites(rng):
    n = int(OFFSETS[-1])
    return Sites(0.05 + 0.2 * rng.random(n), rng.normal(size=n))


def posterior(block, sites, rows=slice(None)):
    A = block.A[0][:, rows]
    return update_posterior((A * sites.omega[rows]) @ A.T, A @ sites.rho[rows])


def simulated(mean, F, r, rng, n=200_000):
    """Mean and standard deviation of 1 - prod sigmoid(-f) over drawn functions."""
    z = rng.normal(size=(F.shape[1], n))
    f = mean[:, None] + F @ z + np.sqrt(r)[:, None] * rng.normal(size=(len(mean), n))
    some = 1 - np.prod(expit(-f), axis=0)
    return some.mean(), some.std()


@pytest.mark.parametrize("latent_map", [None, LatentMap(0.5, -0.7), LatentMap(1.8, 0.4)])
def test_joint_bags_are_those_of_drawn_functions(block, sites, rng, latent_map):
    q = posterior(block, sites)
    A, r = block.A[0], block.r
    scores = joint_bag_scores(block.A, r, OFFSETS, q, 4096, latent_map)
    mean, S = A.T @ q.m, q.W.T @ q.W
    covariance = A.T @ S @ A
    if latent_map is not None:
        var = np.diagonal(covariance) + r
        shrink = 0.5 if latent_map.slope == 0.5 else 1.8 ** (1 / 3)
        # The mapped mean is the one whose expected sigmoid has the log-odds asked for.
        wanted = latent_map.slope * sigmoid_moments(mean, var).log_odds + latent_map.intercept
        mean = latent_map.read(mean, var).mean
        np.testing.assert_allclose(
            sigmoid_moments(mean, shrink**2 * var).log_odds, wanted, atol=1e-6
        )
        covariance, r = shrink**2 * covariance, shrink**2 * r
    for b, (start, stop) in enumerate(itertools.pairwise(OFFSETS)):
        rows = slice(start, stop)
        values, U = np.linalg.eigh(covariance[rows, rows])
        F = U * np.sqrt(np.maximum(values, 0.0))
        p, std = simulated(mean[rows], F, r[rows], rng)
        assert expit(scores.log_odds[b]) == pytest.approx(p, abs=0.004)
        # Its noise is part of the model, not of what is uncertain about the bag's mean.
        assert scores.std[b] <= std + 0.004


def test_joint_standard_deviation_without_noise_is_that_of_drawn_functions(rng):
    mean, F = np.array([-1.0, 0.3, 0.5]), rng.normal(size=(3, 2))
    log_odds, std = _joint(mean, F.T, np.full(3, 1e-12), np.array([0, 3]), 8192)[:, 0]
    p, expected = simulated(mean, F, np.full(3, 1e-12), rng)
    assert (expit(log_odds), std) == pytest.approx((p, expected), abs=0.004)


def test_a_long_bag_is_read_in_pieces(rng, monkeypatch):
    mean, F, r = rng.normal(-6, 1, size=50), 0.3 * rng.normal(size=(50, 2)), rng.random(50)
    offsets = np.array([0, 50])
    whole = _joint(mean, F.T, r, offsets, 64)
    monkeypatch.setattr(score, "_ROWS", 7)
    assert _joint(mean, F.T, r, offsets, 64) == pytest.approx(whole, rel=1e-10)


def test_bags_of_several_sizes_are_read_as_each_alone(rng):
    """Bags are worked through size by size; bags larger than the projection among them."""
    offsets = np.array([0, 3, 4, 7, 12, 15])
    mean, V, r = rng.normal(size=15), rng.normal(size=(4, 15)), rng.random(15)
    together = _joint(mean, V, r, offsets, 64)
    for b, (a, z) in enumerate(itertools.pairwise(offsets)):
        alone = _joint(mean[a:z], V[:, a:z], r[a:z], np.array([0, z - a]), 64)
        np.testing.assert_allclose(together[:, b], alone[:, 0], rtol=1e-12)


def test_a_hopeless_bag_keeps_its_digits():
    """Where every probability is tiny a bag's is their sum."""
    offsets = np.array([0, 3])
    ends = _joint(np.full(3, -25.0), np.zeros((1, 3)), np.zeros(3), offsets, 16)
    log_odds, std = ends[:, 0]
    assert log_odds == pytest.approx(np.log(3) - 25, rel=1e-6)
    assert std == pytest.approx(0.0, abs=1e-7)


def test_points_are_normal_and_fixed():
    points = _normal_points(1024, 3)
    assert points.shape == (3, 1024)
    np.testing.assert_allclose(points.mean(1), 0, atol=0.01)
    np.testing.assert_allclose(points @ points.T / 1024, np.eye(3), atol=0.05)
    assert np.abs(points[:, 0]).max() < 6  # the origin of the sequence is shifted away
    np.testing.assert_array_equal(points, _normal_points.__wrapped__(1024, 3))


@pytest.mark.parametrize("shape", [(4, 3), (3, 3), (3, 7)])
def test_principal_factors_make_the_covariance(rng, shape):
    V = rng.normal(size=shape)

    def principal(V):
        return _principal(V.T[None])[0]

    F = principal(V)
    np.testing.assert_allclose(F @ F.T, V.T @ V, atol=1e-10)
    variance = (F**2).sum(0)
    assert (np.diff(variance) <= 1e-10).all()
    # Neither the signs nor the order of the instances is left to the eigenvectors.
    np.testing.assert_allclose(principal(-V), F, atol=1e-8)
    order = rng.permutation(shape[1])
    np.testing.assert_allclose(principal(V[:, order]), F[order], atol=1e-8)


@pytest.mark.parametrize("latent_map", [None, LatentMap(0.6, -0.3)])
def test_bags_by_their_largest_instance_need_no_other(block, sites, latent_map):
    q = posterior(block, sites)
    whole = read_block(block, q, "max", latent_map)
    alone = read_block(block, q, "max", latent_map, wants="bags")
    np.testing.assert_allclose(alone.bag, whole.bag, atol=1e-12)
    np.testing.assert_allclose(alone.bag_std, whole.bag_std, atol=1e-12)
    assert alone.instance.size == alone.latent_mean.size == 0
    # Any other rule, and the share of positives, need all of them.
    assert read_block(block, q, "noisy-or", latent_map, wants="bags").instance.size == OFFSETS[-1]
    read = read_block(block, q, "max", latent_map, fractions=True, wants="bags")
    assert read.fraction is not None
    assert whole.fraction is None


@pytest.mark.parametrize("latent", [True, False])
def test_rules_share_the_instances(block, sites, latent):
    q = posterior(block, sites)
    readouts = read_rules(block, q, ("max", "noisy-or", "joint"), latent=latent)
    A = block.A[0]
    mean, var = A.T @ q.m, ((q.W @ A) ** 2).sum(0) + block.r
    p = sigmoid_moments(mean, var)
    for readout in readouts:
        np.testing.assert_allclose(readout.instance, p.log_odds, atol=1e-12)
        np.testing.assert_allclose(readout.instance_std, p.std, atol=1e-12)
        np.testing.assert_allclose(readout.latent_mean, mean if latent else [], atol=1e-12)
        np.testing.assert_allclose(readout.latent_var, var if latent else [], atol=1e-12)
    largest, product, joint = readouts
    for b, (start, stop) in enumerate(itertools.pairwise(OFFSETS)):
        bag = expit(p.log_odds[start:stop])
        assert expit(largest.bag[b]) == pytest.approx(bag.max())
        assert expit(product.bag[b]) == pytest.approx(1 - np.prod(1 - bag))
        assert joint.bag[b] >= p.log_odds[start:stop].max() - 1e-12
        top = start + int(np.argmax(bag))
        assert largest.bag_std[b] == pytest.approx(p.std[top])


def test_noisy_or_spread_is_that_of_independent_instances(rng):
    mean, var = rng.normal(size=5), rng.random(5)
    found = bag_scores(sigmoid_moments(mean, var), np.array([0, 3, 5]), "noisy-or")
    for b, rows in enumerate((slice(0, 3), slice(3, 5))):
        p, std = simulated(mean[rows], np.zeros((len(mean[rows]), 1)), var[rows], rng)
        assert expit(found.log_odds[b]) == pytest.approx(p, abs=0.003)
        assert found.std[b] == pytest.approx(std, abs=0.003)


def test_left_out_moments_are_those_of_a_fit_without_the_bag(block, sites):
    """The sites of all other bags, summed anew for each; with the noise, and with factors."""
    left = leave_bags_out(block, posterior(block, sites), sites, joint=True)
    A = block.A[0]
    for b, (start, stop) in enumerate(itertools.pairwise(OFFSETS)):
        others = np.r_[0:start, stop : OFFSETS[-1]]
        q, own = posterior(block, sites, others), A[:, start:stop]
        covariance = own.T @ (q.W.T @ q.W) @ own
        np.testing.assert_allclose(left.mean[start:stop], own.T @ q.m, atol=1e-9)
        np.testing.assert_allclose(
            left.var[start:stop], np.diagonal(covariance) + block.r[start:stop], atol=1e-9
        )
        factor = left.factors[b]
        np.testing.assert_allclose(factor.T @ factor, covariance, atol=1e-9)
    assert leave_bags_out(block, posterior(block, sites), sites).factors == {}


@pytest.mark.parametrize("rule", ["max", "noisy-or", "joint"])
def test_left_out_scores_read_the_left_out_moments(block, sites, rng, rule):
    q = posterior(block, sites)
    left = leave_bags_out(block, q, sites, joint=True)
    found = loo_scores(block, q, sites, rule)
    p = sigmoid_moments(left.mean, left.var)
    np.testing.assert_allclose(found.instances, p.log_odds, atol=1e-3)
    for b, (start, stop) in enumerate(itertools.pairwise(OFFSETS)):
        bag = expit(p.log_odds[start:stop])
        if rule == "joint":
            F = left.factors[b].T
            expected, _ = simulated(left.mean[start:stop], F, block.r[start:stop], rng)
            expected = max(expected, bag.max())
        else:
            expected = bag.max() if rule == "max" else 1 - np.prod(1 - bag)
        assert expit(found.bags[b]) == pytest.approx(expected, abs=0.01)
        assert found.bags[b] >= found.instances[start:stop].max() - 1e-12


def test_a_block_of_tensors_comes_to_the_host(block, sites):
    torch = pytest.importorskip("torch")
    there = Block(
        tuple(torch.as_tensor(np.ascontiguousarray(a)) for a in block.A),
        torch.as_tensor(block.r),
        block.labels.map(lambda x: torch.as_tensor(np.array(x))),
    )
    here = on_host(there)
    assert type(here.A[0]) is np.ndarray
    assert on_host(block) is block
    q = posterior(block, sites)
    for rule in ("max", "noisy-or", "joint"):
        ours, theirs = read_block(block, q, rule), read_block(there, q, rule)
        np.testing.assert_allclose(theirs.bag, ours.bag, atol=1e-8)
        np.testing.assert_allclose(theirs.instance_std, ours.instance_std, atol=1e-8)
        np.testing.assert_allclose(
            loo_scores(there, q, sites, rule).bags,
            loo_scores(block, q, sites, rule).bags,
            atol=1e-8,
        )


def test_parts_of_rows_hold_every_bag_once(rng):
    X, offsets = rng.normal(size=(23, 2)), np.array([0, 4, 9, 10, 17, 23])
    spans = cut(offsets, 4, 1)
    parts = make_row_parts(X, offsets, spans, 3)
    assert len(parts) <= 3
    np.testing.assert_array_equal(np.concatenate([part.X for part in parts]), X)
    assert [part.start for part in parts] == np.cumsum(
        [0, *(len(p.X) for p in parts[:-1])]
    ).tolist()


def test_log_odds_and_probability_agree_at_a_half():
    """A bag of one instance with mean 0 has probability 1/2 under every rule."""
    labels = BagLabels(np.array([0, 1]), np.array([1]), np.array([-1], dtype=np.int8))
    one = Block((np.zeros((M, 1), order="F"),), np.array([0.7]), labels)
    q = update_posterior(np.zeros((M, M)), np.zeros(M))
    for rule in ("max", "noisy-or", "joint"):
        assert read_block(one, q, rule).bag == pytest.approx([logit(0.5)], abs=1e-8)


def two_projectors(rng):
    """Two posteriors on projections of the same rows, and a reader of each; not in their order."""
    scaling = FeatureScaling(np.zeros(2), np.ones(2))
    Z = rng.normal(size=(M, 2))
    projectors = tuple(make_projector(RBF(s), Z, scaling, "float64") for s in (1.0, 3.0))
    q = [
        update_posterior(np.eye(M) * (1.0 + i), rng.normal(size=M)) for i in range(len(projectors))
    ]
    readers = (Reader(1, q[1], "noisy-or"), Reader(0, q[0], "max"), Reader(0, q[0], "joint"))
    return projectors, readers


def columns(readouts, offsets):
    assert offsets[0] == 0
    return *(r.bag for r in readouts), *(r.instance for r in readouts)


@pytest.mark.parametrize(("chunk", "n_parts"), [(100, 1), (3, 1), (5, 3), (1, 9)])
def test_rows_are_read_alike_however_they_are_cut(rng, chunk, n_parts):
    X, offsets = rng.normal(size=(23, 2)), np.array([0, 4, 9, 10, 17, 23])
    projectors, readers = two_projectors(rng)
    read = ReadRows(projectors, readers, columns, check=True)
    parts = make_row_parts(X, offsets, cut(offsets, chunk, 1), n_parts)
    found = [np.concatenate(column) for column in zip(*map(read, parts), strict=True)]
    labels = BagLabels(offsets, np.zeros(5, dtype=int), np.full(23, -1, dtype=np.int8))
    for i, reader in enumerate(readers):
        projector = projectors[reader.projector]
        A, r = project(projector.kernel, X, projector.Z, projector.L)
        expected = read_block(Block((A,), r, labels), reader.q, reader.rule)
        np.testing.assert_allclose(found[i], expected.bag, atol=1e-9)
        np.testing.assert_allclose(found[3 + i], expected.instance, atol=1e-9)


def test_rows_that_were_not_looked_at_are_checked_once(rng):
    X, offsets = rng.normal(size=(6, 2)), np.array([0, 2, 6])
    projectors, readers = two_projectors(rng)
    parts = make_row_parts(X, offsets, cut(offsets, 10, 1), 1)
    seen, unseen = (ReadRows(projectors, readers[:1], columns, check) for check in (False, True))
    assert len(seen(parts[0])) == len(unseen(parts[0])) == 2
    X[3, 1] = np.nan
    with pytest.raises(NotFiniteError):
        unseen(parts[0])
    with np.errstate(invalid="ignore"):
        assert np.isnan(seen(parts[0])[1][3])


@pytest.mark.parametrize("rule", ["max", "noisy-or"])
def test_instances_with_a_map_of_their_own_are_products_with_their_bag(block, sites, rule):
    """An instance is positive if its bag is and if it is one of its positives."""
    q, bag_map = posterior(block, sites), LatentMap(0.8, -0.2)
    own = InstanceMap(LatentMap(0.5, -1.0), 0.3)
    whole = read_block(block, q, rule, bag_map, instance_map=own, fractions=True)
    few = read_block(block, q, rule, bag_map, instance_map=own, wants="probabilities")
    plain = read_block(block, q, rule, bag_map)
    np.testing.assert_allclose(whole.bag, plain.bag, atol=1e-9)
    np.testing.assert_allclose(whole.latent_mean, plain.latent_mean, atol=1e-12)
    np.testing.assert_allclose(whole.latent_var, plain.latent_var, atol=1e-12)
    np.testing.assert_allclose(few.instance, whole.instance, atol=1e-12)
    assert few.latent_mean.size == few.latent_var.size == 0
    alone = expit(own.own.read(whole.latent_mean, whole.latent_var).probabilities.log_odds)
    product = alone * np.repeat(expit(whole.bag), np.diff(OFFSETS))
    np.testing.assert_allclose(expit(whole.instance), product, atol=1e-9)
    shares = [product[a:b].mean() for a, b in itertools.pairwise(OFFSETS)]
    np.testing.assert_allclose(whole.fraction.mean, shares, atol=1e-9)


def test_the_first_point_is_the_shift_alone():
    """A Sobol sequence begins at the origin, which has no normal quantile."""
    shift = np.random.default_rng(0).random(3)
    np.testing.assert_allclose(norm.cdf(_normal_points(16, 3)[:, 0]), shift, atol=1e-9)


@pytest.mark.parametrize("rule", ["max", "joint", "noisy-or"])
def test_left_out_maps_go_by_what_the_rule_makes_a_bag_of(rng, rule):
    """By the product of the instances under noisy-or, else by the score of the bag."""
    offsets, y = np.arange(0, 121, 3), np.arange(40) % 2
    left_out = LeftOutScores(rng.normal(size=40) + y, rng.normal(size=120) + np.repeat(y, 3))
    found = fit_calibration(left_out, offsets, y, rule)
    if rule == "noisy-or":
        assert found == fit_noisy_or_platt(left_out.instances, offsets, y)
    else:
        assert found == fit_platt(left_out.bags, y)
    backwards = fit_calibration(LeftOutScores(-3.0 * y, -left_out.instances), offsets, y, rule)
    assert 0 < backwards.slope < 0.01  # a hint that keeps the ranking


def test_joint_bags_do_not_depend_on_how_they_are_cut(block, sites, monkeypatch):
    q = posterior(block, sites)
    whole = joint_bag_scores(block.A, block.r, OFFSETS, q, 256)
    monkeypatch.setattr(score, "_ROWS", 3)
    pieces = joint_bag_scores(block.A, block.r, OFFSETS, q, 256)
    np.testing.assert_allclose(pieces.log_odds, whole.log_odds, rtol=1e-10)
    np.testing.assert_allclose(pieces.std, whole.std, rtol=1e-10)


def test_no_row_is_read_for_another_span(rng):
    """Each row leaves its file once, and each span is given the labels of its own bags."""
    X, offsets = rng.normal(size=(23, 2)), np.array([0, 4, 9, 10, 17, 23])
    projectors, readers = two_projectors(rng)
    asked, told = [], []

    class Rows:
        def __init__(self, rows):
            self.rows = rows

        def __getitem__(self, which):
            asked.append(len(self.rows[which]))
            return self.rows[which]

    def watch(readouts, own):
        told.append(len(readouts[0].bag))
        return columns(readouts, own)

    read = ReadRows(projectors, readers[:1], watch, check=False)
    parts = make_row_parts(X, offsets, cut(offsets, 5, 1), 3)
    for part in parts:
        read(part._replace(X=Rows(part.X)))
    assert sum(asked) == 23
    assert sum(told) == 5


@pytest.mark.parametrize("where", ["host", "tensor"])
def test_joint_samples_are_worked_through_where_the_block_is(block, sites, where, monkeypatch):
    seen, joint = [], score._joint

    def spy(*arguments):
        seen.append(arguments[-1])
        return joint(*arguments[:-1], None)

    monkeypatch.setattr(score, "_joint", spy)
    q = posterior(block, sites)
    if where == "tensor":
        torch = pytest.importorskip("torch")
        labels = block.labels.map(lambda x: None if x is None else torch.as_tensor(x))
        A = tuple(torch.as_tensor(a) for a in block.A)
        block = Block(A, torch.as_tensor(block.r), labels)
    read_block(block, q, "joint")
    assert [None if d is None else str(d) for d in seen] == [None if where == "host" else "cpu"]


def test_labels_keep_their_type_on_the_host(block):
    torch = pytest.importorskip("torch")
    there = block._replace(
        A=tuple(torch.as_tensor(a) for a in block.A),
        r=torch.as_tensor(block.r),
        labels=block.labels.map(lambda x: None if x is None else torch.as_tensor(x)),
    )
    labels = on_host(there).labels
    assert isinstance(labels.known, np.ndarray) and labels.known.dtype == np.int8
    assert score._own_type(labels.known) is labels.known


def test_noise_is_integrated_out_as_node_by_node():
    """One exponential per value gives what a sigmoid per node does, and no value overflows."""
    rng = np.random.default_rng(0)
    f, r = 5 * rng.normal(size=(3, 4, 6)), rng.random((3, 4, 1))
    f[0, 0, :4], r[0, 1:3, 0] = [-2000.0, -500.0, 500.0, 2000.0], [0.0, 1e6]
    nodes, weights = hermite(9)
    negative = expit(-f[..., None] - np.sqrt(r[..., None]) * nodes)
    tiny = np.finfo(np.float64).tiny
    for found, power in zip(_negative_moments(f, r), (1, 2), strict=True):
        expected = np.log(np.maximum(negative**power @ weights, tiny))
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
