"""partial_fit of the VGPMIL family."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

from bagwise import LMVGPMIL, VGPMIL, Bags, PsiVGPMIL
from bagwise.core.kernels import RBF
from bagwise.datasets import load_digit_bags, load_musk1
from bagwise.models.execution import Execution
from bagwise.models.labels import read_classes, read_labels
from bagwise.models.variational import Or, SoftMax, engine
from bagwise.models.variational.inference import Settings, Sums, fit, posteriors, prior
from bagwise.models.variational.stochastic import Seen, count_bags, default_step, stepped
from tests.checks import make_problem


@pytest.mark.parametrize("likelihood", [Or(), SoftMax()], ids=repr)
def test_full_batches_and_unit_steps_equal_batch(likelihood):
    """As long as every whole step raises the bound, which is then what a fit takes."""
    bags, y = load_musk1(return_X_y=True)
    kernel = RBF("median", 4.0)
    stream = VGPMIL(kernel=kernel, likelihood=likelihood, n_inducing=30, random_state=0)
    for _ in range(2):
        stream.partial_fit(bags, y, step=1.0, total_bags=len(bags))
    (own,) = stream.predictor_.processes
    targets = read_labels(y, bags, *read_classes(y))
    problem = stream._plan(bags, targets, held_out=False)
    parts, _ = engine.ready_parts(problem, problem.projector(own.projector.kernel))
    options, start = Settings(max_iter=3, tol=0.0), prior(1, len(problem.Z))
    fits = fit(parts, len(bags), likelihood, start, own.f0, problem.driver, options)
    assert (np.diff(fits.history[:, 0]) > 0).all()  # no step was halved
    np.testing.assert_allclose(own.m, fits.q.m, atol=1e-8)
    np.testing.assert_allclose(own.W, fits.q.W, atol=1e-8)


def test_a_stream_learns():
    data = load_digit_bags(n_bags=150)
    train, test = data.bags[:110], data.bags[110:]
    model = VGPMIL(n_inducing=60, random_state=0)
    for _ in range(4):
        for start in range(0, 110, 22):
            part = slice(start, start + 22)
            model.partial_fit(train[part], data.y[part], classes=[0, 1], total_bags=110)
    assert model.n_iter_ == 20
    assert roc_auc_score(data.y[110:], model.decision_function(test)) > 0.9
    ours = model.decision_function_instances(test)
    assert roc_auc_score(test.instance_labels, ours) > 0.9


def test_one_class_batches_and_known_labels():
    bags, y, labels = make_problem()
    model = VGPMIL(n_inducing=10, random_state=0)
    for code in (0, 1):
        chosen = y == code
        known = [part for part, keep in zip(bags.split(labels), chosen, strict=True) if keep]
        options = {"classes": [0, 1], "instance_labels": known, "total_bags": len(bags)}
        model.partial_fit(bags[chosen], y[chosen], **options)
    assert model.score(bags, y) > 0.7


def test_bad_batches_leave_the_model_as_it_was():
    bags, y, _ = make_problem()
    model = VGPMIL(n_inducing=10, random_state=0)
    with pytest.raises(ValueError, match="first partial_fit needs the two classes"):
        model.partial_fit(bags[y == 0], y[y == 0])
    model.partial_fit(bags, y)
    before = model.decision_function(bags)
    for data, labels, options, message in [
        (Bags(np.ones((4, 2)), [0, 4]), [1], {}, "expecting 3 features"),
        (bags, np.full(len(bags), 7), {}, "label 7 is not one of"),
        (bags, y, {"classes": [0, 5]}, "must stay those of the first call"),
        (bags, y, {"step": 1.5}, "step must be in"),
        (bags, y, {}, "give them ids, or say with total_bags"),
        (Bags(np.ones((4, 3)), [0, 4, 4]), [0, 1], {}, "bag 1 has 0 instances"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.partial_fit(data, labels, **options)
        np.testing.assert_array_equal(model.decision_function(bags), before)


def test_named_bags_are_counted_once():
    bags, y, _ = make_problem()
    named = Bags(bags.instances, bags.offsets, ids=[f"bag {i}" for i in range(len(bags))])
    a, b = (VGPMIL(n_inducing=10, random_state=0) for _ in range(2))
    for _ in range(3):
        for half in (slice(0, None, 2), slice(1, None, 2)):
            a.partial_fit(named[half], y[half], classes=[0, 1])
            seen = len(named[half]) if b.__dict__.get("seen_") is None else len(named)
            b.partial_fit(bags[half], y[half], classes=[0, 1], total_bags=seen)
    assert a.seen_.n_bags == len(named)
    np.testing.assert_allclose(a.posterior_mean_, b.posterior_mean_, atol=1e-12)


@pytest.mark.parametrize("model", [VGPMIL(inference="paper"), PsiVGPMIL(), LMVGPMIL()], ids=repr)
def test_what_remembers_beliefs_is_not_streamed(model):
    bags, y, _ = make_problem()
    with pytest.raises(ValueError, match="cannot be streamed; use VGPMIL"):
        clone(model).partial_fit(bags, y)


def bags_called(*names):
    """A bag of one instance for every name; without names for a number."""
    n = names[0] if isinstance(names[0], int) else len(names)
    ids = None if isinstance(names[0], int) else list(names)
    return Bags(np.ones((n, 2)), np.arange(n + 1), ids=ids)


def after(n_bags, *ids):
    """A stream that has seen so many bags, those of them with names under these."""
    return Seen(n_bags, frozenset(ids))


def test_steps_shrink_as_robbins_and_monro_ask():
    assert [default_step(t) for t in (0, 1, 9)] == pytest.approx([1.0, 0.65975, 0.25119], rel=1e-4)


@pytest.mark.parametrize(
    ("old", "bags", "total", "expected"),
    [
        (None, bags_called("a", "b", "a"), None, (2, {"a", "b"})),
        (None, bags_called(3), None, (3, set())),
        (after(2, "a", "b"), bags_called("b", "c"), None, (3, {"a", "b", "c"})),
        # Some came without a name: none can be told from those any more.
        (after(5, "a", "b"), bags_called("b", "c"), 9, (7, {"a", "b", "c"})),
        (after(2, "a", "b"), bags_called(3), 9, (5, {"a", "b"})),
    ],
)
def test_bags_are_counted_by_name_where_all_have_one(old, bags, total, expected):
    assert count_bags(old, bags, total) == Seen(expected[0], frozenset(expected[1]))


@pytest.mark.parametrize("old", [after(5, "a", "b"), after(2, "a", "b"), after(2)])
def test_bags_that_may_have_come_before_are_asked_about(old):
    bags = bags_called(3) if len(old.ids) == old.n_bags else bags_called("a", "c")
    with pytest.raises(ValueError, match="cannot tell whether these bags came before"):
        count_bags(old, bags, None)


def test_a_step_goes_towards_the_sums_of_the_whole(rng):
    """Precision and mean by the formulas of a natural gradient; a batch stands for seven."""
    R = rng.normal(size=(2, 2))
    q = posteriors(rng.normal(size=(1, 2)), (np.eye(2) + R @ R.T)[None])
    R = rng.normal(size=(2, 2))
    batch = Sums(np.zeros(1), rng.normal(size=(1, 2)), (R @ R.T)[None])
    new = stepped(q, batch, 7.0, 0.25)
    P = 0.75 * q.P[0] + 0.25 * (np.eye(2) + 7 * batch.curvature[0])
    np.testing.assert_allclose(new.P[0], P)
    m = q.m[0] + 0.25 * np.linalg.solve(P, 7 * batch.linear[0] - q.m[0])
    np.testing.assert_allclose(new.m[0], m)
    first = stepped(prior(1, 2), batch, 7.0, 1.0)
    np.testing.assert_allclose(first.P[0], np.eye(2) + 7 * batch.curvature[0])


def test_the_second_call_takes_a_step_of_its_own_size():
    """The size goes by the calls before; the precision of the blocks by ``execution``."""
    bags, y, _ = make_problem()
    options = {"n_inducing": 10, "random_state": 0}
    default, told, single = (VGPMIL(**options) for _ in range(3))
    single.set_params(execution=Execution(dtype="float32"))
    for size in (1.0, 2**-0.6, 3**-0.6):
        for model, step in ((default, None), (told, size), (single, None)):
            model.partial_fit(bags, y, total_bags=len(bags), step=step)
    np.testing.assert_allclose(default.posterior_mean_, told.posterior_mean_, atol=1e-12)
    difference = np.abs(single.posterior_mean_ - default.posterior_mean_).max()
    assert 1e-12 < difference < 1e-3
