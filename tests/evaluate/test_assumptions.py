from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from bagwise import VGPMIL, BagStatistics, SingleInstance, make_pipeline
from bagwise.core import segments
from bagwise.evaluate import check_mil
from bagwise.evaluate import make_assumption_bags as make

TESTS = ["single-concept", "multi-concept", "false-frequency"]


def near(bags, centre):
    """Whether each bag holds an instance of the cluster at ``centre``."""
    distance = np.abs(bags.instances - centre).max(axis=1)
    return segments.max((distance < 1).astype(float), bags.offsets) > 0


@pytest.mark.parametrize("test", TESTS)
def test_generators_are_seeded_and_balanced(test):
    a, b = make(test, 20, random_state=3), make(test, 20, random_state=3)
    for (bags, y), (again, _) in zip(a, b, strict=True):
        np.testing.assert_array_equal(bags.instances, again.instances)
        assert y.sum() == 10
        assert len(bags) == 20
    assert not np.array_equal(a.clean[0].instances[:3], a.trap[0].instances[:3])


def test_poison_is_where_it_should_be():
    for test in TESTS[:2]:
        problem = make(test, 60, random_state=0)
        poisoned = {kind: near(getattr(problem, kind)[0], -10) for kind in problem._fields}
        y = problem.train[1]
        np.testing.assert_array_equal(poisoned["train"], y == 0)
        assert not poisoned["clean"].any()
        np.testing.assert_array_equal(poisoned["trap"], y == 1)


def test_concepts_make_the_label():
    for bags, y in make("single-concept", 60, random_state=0):
        np.testing.assert_array_equal(near(bags, 3.0), y == 1)
    for bags, y in make("multi-concept", 60, random_state=0):
        np.testing.assert_array_equal(near(bags, 3.0) & near(bags, 4.5), y == 1)
        assert near(bags, 3.0)[y == 0].any()
        assert near(bags, 4.5)[y == 0].any()
    for bags, y in make("false-frequency", 60, random_state=0):
        np.testing.assert_array_equal(near(bags, 4.5), y == 1)
        assert near(bags, 3.0).all()


def test_a_model_that_avoids_the_traps_passes(capsys):
    verdicts = check_mil(SingleInstance(LogisticRegression()), n_bags=60)
    assert all(v.passed for v in verdicts[:3])
    # Without balanced classes the background of the large positive bags counts as positive.
    assert not verdicts[3].avoids
    printed = capsys.readouterr().out
    assert printed.count("passes") == 3
    assert "single-concept" in printed


def test_models_that_take_the_cue_are_caught(capsys):
    # Sees "no poison" as evidence for the positive class.
    statistics = make_pipeline(BagStatistics(), LogisticRegression())
    single, multi, *_ = check_mil(statistics, n_bags=60)
    assert single.trap_auc < 0.5
    assert multi.trap_auc < 0.5
    assert not single.passed
    assert "FAILS: took the forbidden cue" in capsys.readouterr().out

    # Adds up evidence over the bag, so that many harmless companions outweigh one witness.
    class Sum(SingleInstance):
        def decision_function(self, bags):
            return segments.sum(self.decision_function_instances(bags), bags.offsets)

    frequency = check_mil(
        Sum(LogisticRegression(C=0.01), calibrate=False), n_bags=60, verbose=False
    )[2]
    assert frequency.trap_auc < 0.5


def test_registry_names_are_accepted():
    assert check_mil("single-instance", n_bags=40, n_repeats=1, verbose=False)[0].passed


def test_several_classes_are_checked_too():
    """Bag statistics take the cue whatever the number of classes; VGPMIL does not."""
    options = {"n_classes": 4, "n_bags": 60, "n_repeats": 1, "verbose": False}
    model = VGPMIL(n_inducing=30, random_state=0)
    honest = {v.test: v for v in check_mil(model, **options)}
    assert all(v.passed for v in honest.values())
    cheat = {v.test: v for v in check_mil("statistics", **options)}
    assert not cheat["single-concept"].avoids


def test_two_classes_draw_as_ever_and_more_have_their_own_concepts():
    for test in TESTS:
        bags, _ = make(test, 12, random_state=0).train
        again, _ = make(test, 12, n_classes=2, random_state=0).train
        np.testing.assert_array_equal(bags.instances, again.instances)
        assert set(make(test, 12, n_classes=3, random_state=0).train[1]) == {0, 1, 2}
    with pytest.raises(ValueError, match="n_classes must be at least 2"):
        make("single-concept", n_classes=1)
    with pytest.raises(ValueError, match=r"test must be one of .*'size-trap'.*got 'size'"):
        make("size")


def test_the_size_of_a_bag_is_the_cue_and_the_concept_is_there():
    problem = make("size-trap", 60, random_state=0)
    for (bags, y), sign in zip(problem, (1, 0, -1), strict=True):
        large = bags.sizes > 15
        expected = {1: y == 1, 0: np.zeros(60, dtype=bool), -1: y == 0}[sign]
        np.testing.assert_array_equal(large, expected)
        assert near(bags, 1.5)[y == 1].all()


def test_counting_instances_falls_into_the_size_trap():
    class Count(SingleInstance):
        def decision_function(self, bags):
            return bags.sizes - 10.0

    simple, *_, verdict = check_mil(Count(calibrate=False), n_bags=20, n_repeats=1, verbose=False)
    assert verdict.test == "size-trap"
    assert verdict.trap_auc == 0.0
    assert 0.2 < simple.clean_auc < 0.95 and not simple.solves


def test_a_gaussian_process_that_takes_the_largest_instance_passes_the_size_trap():
    model = VGPMIL(n_inducing=30, calibrate=False, tol=1e-2, random_state=0)
    verdict = check_mil(model, n_bags=50, n_repeats=1, verbose=False)[3]
    assert verdict.passed
