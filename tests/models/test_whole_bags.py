"""Members that look at whole bags: the set kernel by its definition, and what they are for."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from bagwise import AutoVGPMIL, Bags, load, save
from bagwise.core.kernels import RBF
from bagwise.core.set_kernel import set_kernel, set_self_kernel
from bagwise.datasets import make_gaussian_bags
from bagwise.label import Learner
from bagwise.models.drivers import Serial
from bagwise.models.scaling import FeatureScaling
from bagwise.models.variational import search
from bagwise.models.variational.blocks import BagLabels, Block
from bagwise.models.variational.projection import make_projector
from bagwise.models.variational.whole_bags import (
    fit_points,
    pooled,
    pooled_bags,
    read_points,
    take_points,
)
from tests.checks import CHECKS, make_problem
from tests.checks.options import gathered

KERNEL = RBF(1.5, 1.0)


def make(**changes):
    options = {"n_inducing": 15, "cv": 2, "n_finalists": 2, "max_iter": 6, "random_state": 0}
    return AutoVGPMIL(**gathered(**{"assumption": "any", **options, **changes}))


@pytest.mark.parametrize("check", CHECKS[:3], ids=lambda check: check.__name__)
def test_contract(check):
    check(make)


def ragged(rng, n_bags=9):
    bags = Bags.from_list([rng.normal(size=(rng.integers(1, 6), 2)) for _ in range(n_bags)])
    return bags, BagLabels(bags.offsets, np.arange(n_bags) % 2, np.full(bags.n_instances, -1))


def test_points_have_the_normalised_set_kernel():
    """With an inducing point at every instance nothing is left out of the kernel."""
    bags, labels = ragged(np.random.default_rng(0))
    X = bags.instances
    projector = make_projector(KERNEL, X, FeatureScaling(np.zeros(2), np.ones(2)), "float64")
    A, r = projector(X)
    points = pooled(Block((A[:, :4], A[:, 4:]), r, labels), variance=7.0)
    K = set_kernel(X, bags.offsets, X, bags.offsets, KERNEL)
    lengths = np.sqrt(set_self_kernel(X, bags.offsets, KERNEL))
    columns = points.A[0][:-1]
    np.testing.assert_allclose(columns.T @ columns, 7.0 * K / np.outer(lengths, lengths), atol=1e-4)
    np.testing.assert_allclose(points.r, 0.0, atol=1e-3)
    # The last coordinate is the level that all bags share.
    assert len(set(points.A[0][-1])) == 1


def test_a_bag_unlike_any_inducing_point_has_the_prior_variance():
    scaling = FeatureScaling(np.zeros(2), np.ones(2))
    projector = make_projector(KERNEL, np.zeros((1, 2)), scaling, "float64")
    bags = Bags(np.array([[0.0, 0.0], [30.0, 30.0], [31.0, 30.0]]), [0, 1, 3])
    labels = BagLabels(bags.offsets, np.array([0, 1]), np.full(3, -1))
    points = pooled_bags(bags, labels, projector, 5.0, chunk_size=2)
    np.testing.assert_allclose(points.A[0][0], [np.sqrt(5.0), 0.0], atol=1e-4)
    np.testing.assert_allclose(points.r, [0.0, 5.0], atol=1e-4)
    np.testing.assert_array_equal(points.labels.y, [0, 1])


def test_chunks_of_rows_change_no_point():
    bags, labels = ragged(np.random.default_rng(1), 20)
    scaling = FeatureScaling(np.zeros(2), np.ones(2))
    projector = make_projector(KERNEL, bags.instances[::3], scaling, "float64")
    whole = pooled_bags(bags, labels, projector, 4.0, chunk_size=1000)
    cut = pooled_bags(bags, labels, projector, 4.0, chunk_size=2)
    np.testing.assert_allclose(cut.A[0], whole.A[0], atol=1e-12)
    np.testing.assert_allclose(cut.r, whole.r, atol=1e-12)


def test_held_out_scores_are_those_of_fits_without_the_bag():
    bags, y, _ = make_problem(n_bags=16)
    space = search.make_spaces(bags, 10, np.random.RandomState(0), Serial())["global"]
    labels = BagLabels(bags.offsets, y, np.full(bags.n_instances, -1), np.arange(1.0, 17.0))
    folds, projector = search.make_folds(y, 4, 0), space.projector("set, wide", "float64")
    work = search.HeldOutWhole(bags, labels, folds, 8)
    scores = work(search.Task(projector, tuple(search.WHOLE_BAGS)))
    points = pooled_bags(bags, labels, projector, 256.0, 100)
    for train, test in folds:
        q = fit_points(take_points(points, train), 8, search.TOL)
        alone = read_points(take_points(points, test), q).bag
        np.testing.assert_allclose(scores[1, test], alone, atol=1e-8)


def made_by_the_whole(seed, n_bags=80):
    """Negative bags hold something that positive ones lack: no instance makes a bag positive."""
    rng = np.random.default_rng(seed)
    y = np.arange(n_bags) % 2
    bags = [rng.normal(size=(rng.integers(4, 8), 2)) for _ in y]
    for b in np.flatnonzero(y == 0):
        bags[b][0] += 5.0
    return Bags.from_list(bags), y


def test_any_assumption_learns_what_the_standard_one_cannot():
    bags, y = made_by_the_whole(0)
    unseen, truth = made_by_the_whole(1)
    plain = make(assumption="standard", n_inducing=30).fit(bags, y)
    free = make(n_inducing=30).fit(bags, y)
    aucs = [roc_auc_score(truth, model.decision_function(unseen)) for model in (plain, free)]
    assert aucs[1] > 0.9
    assert aucs[1] > aucs[0] + 0.2
    assert not plain.whole_members_
    assert sum(free.whole_weights_) > 0.9
    assert sum(free.whole_weights_) + free.weights_.sum() == pytest.approx(1.0)
    assert free.best_params_["bag_rule"] == "whole"
    table = free.search_results_
    assert (table["rule"] == "whole").sum() == len(search.whole_grid())
    assert table["weight"].sum() == pytest.approx(1.0)
    assert table["rule"][table["weight"].argmax()] == "whole"
    # The best member that scores instances stays, so that instances have probabilities.
    assert len(free.members_) >= 1
    p, std = free.predict_proba_instances(unseen, return_std=True)
    of_bag = np.repeat(free.predict_proba(unseen)[:, 1], unseen.sizes)
    assert (p[:, 1] <= of_bag + 1e-12).all() and (std > 0).all()
    share = free.predict_positive_fraction(unseen)
    np.testing.assert_allclose(share, [own.mean() for own in unseen.split(p[:, 1])])


def test_whole_bags_must_earn_their_weight():
    """Where one instance makes a bag positive, the members that find it keep theirs."""
    data = make_gaussian_bags(80, 3, bag_size=(15, 15), separation=5.0, random_state=0)
    model = make(n_inducing=40, cv=3).fit(data.bags, data.y)
    assert model.weights_.sum() > 0.8


def test_a_model_with_whole_members_is_saved_with_them(tmp_path):
    bags, y = made_by_the_whole(0, 30)
    model = make().fit(bags, y)
    assert model.whole_members_
    save(model, tmp_path / "model.bagwise")
    copy = load(tmp_path / "model.bagwise")
    np.testing.assert_allclose(copy.decision_function(bags), model.decision_function(bags))
    np.testing.assert_allclose(
        copy.predict_proba_instances(bags), model.predict_proba_instances(bags)
    )


def test_labelling_refuses_members_that_score_no_instances():
    bags, y = made_by_the_whole(0, 30)
    with pytest.raises(ValueError, match="assumption='standard'"):
        Learner(make().fit(bags, y), bags, y)


def test_an_unknown_assumption_is_named():
    bags, y, _ = make_problem()
    with pytest.raises(ValueError, match="assumption"):
        make(assumption="none").fit(bags, y)
