from __future__ import annotations

from math import comb

import numpy as np
import pytest
import scipy.sparse as sp
from experiments import audit as planted
from experiments.audit import CLEAN, PLANTED, linear, noise
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import KFold

from bagwise import Bags
from bagwise.evaluate import BagFolds, Split, audit, best_epoch_gain
from bagwise.evaluate.audit import features, folds, procedures


@pytest.mark.parametrize("plant", list(PLANTED), ids=[plant.__name__ for plant in PLANTED])
def test_planted_leak_is_found(plant):
    made = audit(**plant(0), n_permutations=3)
    assert PLANTED[plant] in {finding.check for finding in made}
    for finding in made:
        assert all((finding.what, finding.where, finding.strength))


@pytest.mark.parametrize("clean", CLEAN, ids=[clean.__name__ for clean in CLEAN])
def test_clean_data_pass_in_silence(clean):
    made = audit(**clean(1), n_permutations=3)
    assert made.findings == []
    assert str(made).startswith("nothing found by")


def test_findings_name_what_where_and_how_strong():
    (finding,) = audit(**planted.bag_label(0), feature_names=[*"abcdefghij", "outcome"])
    assert finding.where == "feature 10 ('outcome'), one value per bag"
    assert finding.strength == "AUC 0.950"
    (finding,) = audit(**planted.divided_patients(0))
    assert finding.where.startswith("seed 0, fold 0: group ")
    (finding,) = audit(**planted.copied_bags(0))
    assert "have a copy in training" in finding.strength


def test_aucs_equal_scikit_learn_and_chance_is_exact_where_classes_separate():
    rng = np.random.default_rng(0)
    y, values = rng.integers(0, 2, 50), rng.integers(0, 6, (50, 4))
    expected = [roc_auc_score(y, values[:, j]) for j in range(4)]
    np.testing.assert_allclose(features.aucs(y, values), expected)
    assert features.chance(1.0, 3, 4) == 2 / comb(7, 3)
    assert features.chance(0.5, 30, 30) == pytest.approx(1.0)
    shuffled = np.array([features.aucs(rng.permutation(y), values[:, :1])[0] for _ in range(2000)])
    threshold = np.quantile(np.abs(shuffled - 0.5), 0.95)
    n1 = int(y.sum())
    assert features.chance(0.5 + threshold, n1, 50 - n1) == pytest.approx(0.05, abs=0.02)


def test_a_noisy_label_needs_to_be_one_value_per_bag():
    """A feature that varies inside bags may rank them well; a column of the label may not."""
    bags, y = noise(3)
    rng = np.random.default_rng(3)
    per_bag = y + 0.5 * rng.normal(size=len(y))
    auc = roc_auc_score(y, per_bag)
    assert 0.9 < auc < 0.98
    column = per_bag[bags.bag_index]
    (finding,) = features.bag_label_features(planted.add_feature(bags, column), y, None)
    assert finding.what == "a feature alone nearly determines the bag label"
    # The same ranking of bags, but from values that differ inside them.
    varying = column + 1e-9 * rng.normal(size=len(column))
    assert features.bag_label_features(planted.add_feature(bags, varying), y, None) == []


def test_blocks_cover_every_bag_once(rng):
    """Of 160,000 rows, eight bags of 8,000 at a time."""
    bags = Bags(rng.normal(size=(160_000, 2)), np.arange(21) * 8000)
    y = np.arange(20) % 2
    parts = list(features.blocks(bags))
    assert [len(rows) for _, rows in parts] == [64_000, 64_000, 32_000]
    assert [p.start for p, _ in parts] == [0, *[p.stop for p, _ in parts[:-1]]]
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in parts]), bags.instances)
    lengths = np.sqrt(bags.instances[:, 0] ** 2 + bags.instances[:, 1] ** 2)
    np.testing.assert_allclose(features.lengths_of(bags), lengths)
    leaky = planted.add_feature(bags, y[bags.bag_index])
    (finding,) = features.bag_label_features(leaky, y, None)
    assert finding.where.startswith("feature 2,")


def test_sparse_rows_give_the_same_findings():
    given = planted.bag_label(0)
    dense = given["bags"]
    rows = sp.csr_array(dense.instances)
    sparse = Bags(rows, dense.offsets)
    assert [str(f) for f in features.bag_label_features(sparse, given["y"], None)] == [
        str(f) for f in features.bag_label_features(dense, given["y"], None)
    ]


def test_duplicates_equal_a_plain_search():
    rng = np.random.default_rng(0)
    parts = [rng.integers(0, 3, (n, 2)).astype(float) for n in rng.integers(1, 4, 60)]
    bags = Bags.from_list(parts)
    splits = list(BagFolds(3, (0,)).splits(bags, np.arange(60) % 2))
    same = {
        i
        for s in splits
        for i in s.test
        for j in s.train
        if sorted(map(tuple, bags[int(i)])) == sorted(map(tuple, bags[int(j)]))
    }
    shares = []
    for s in splits:
        rows = {tuple(row) for j in s.train for row in bags[int(j)]}
        twins = [sorted(map(tuple, bags[int(j)])) for j in s.train]
        kept = [i for i in s.test if sorted(map(tuple, bags[int(i)])) not in twins]
        inside = [tuple(row) in rows for i in kept for row in bags[int(i)]]
        shares.append(np.mean(inside))
    copies, instances = folds.duplicates(bags, splits)
    assert copies.strength == f"{len(same)} of 60 bags have a copy in training"
    assert instances.strength.startswith(f"{max(shares):.1%} of the test instances")


def test_a_bag_on_both_sides_is_named():
    bags, y = noise(0)
    splits = [(np.arange(40), np.arange(38, 60)), (np.arange(20, 60), np.arange(20))]
    (finding,) = audit(bags, y, splitter=splits)
    assert finding.what == "a bag is in training and test"
    assert "bag 38" in finding.where
    assert finding.strength == "2 bags in 1 splits"


def test_splitters_of_scikit_learn_are_taken():
    bags, y = noise(0)
    made = audit(bags, y, splitter=KFold(3), groups=np.arange(60) // 40)
    assert [f.check for f in made] == ["groups"]


def test_an_estimator_that_looks_at_other_test_bags_is_found():
    class Transductive(type(linear())):
        def decision_function(self, bags):
            scores = super().decision_function(bags)
            return scores - scores.mean()

    bags, y = noise(0)
    made = audit(bags, y, estimator=Transductive(linear().steps), n_permutations=1)
    assert [f.check for f in made] == ["test-bags"]


def test_random_procedures_are_judged_by_their_own_noise():
    rng = np.random.default_rng(0)

    def procedure(bags, y, train, test):
        return rng.normal(size=len(test))

    bags, y = noise(0)
    splits = [Split(s.seed, s.fold, s.train, s.test) for s in BagFolds(3, (0,)).splits(bags, y)]
    assert procedures.sees_test_labels(procedure, bags, y, splits) == []
    assert procedures.sees_test_bags(procedure, bags, y, splits) == []


def test_length_of_vectors_is_compared_with_the_model():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    truth = np.zeros(300, dtype=int)
    truth[::5] = y
    direction = rng.normal(size=(300, 20))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    X = direction * np.where(truth == 1, 3.0, 1 + 0.1 * rng.random(300))[:, None]
    bags = Bags(X, np.arange(0, 301, 5), columns={"instance_labels": truth})
    made = [f for f in audit(bags, y) if f.check == "length"]
    assert len(made) == 2
    assert made[0].where.endswith("length |x| in the bag")
    assert made[1].where == "the length |x| of an instance"
    assert made[1].strength.startswith("instance AUC 1.000, the model's 0.")


def test_epoch_chosen_on_test_bags():
    history = np.array([[0.7, 0.9, 0.8], [0.6, 0.7, 0.8]])
    assert best_epoch_gain(history) == pytest.approx((0.8, 0.05))
    bags, y = noise(0)
    (finding,) = audit(bags, y, epoch_scores=history, reported=0.85)
    assert finding.check == "epochs"
    assert finding.strength == "reported 0.850; best test epoch 0.850, last epoch 0.800"
    assert procedures.chosen_epochs(history, 0.80) == []
    assert procedures.chosen_epochs(history, None) == []
    flat = np.array([[0.80, 0.80], [0.80, 0.801]])
    assert procedures.chosen_epochs(flat, 0.8005) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.zeros(60)}, "two classes; got 1"),
        ({"y": [0, 1]}, "got 2 labels for 60 bags"),
        ({"groups": [1]}, "got 1 groups for 60 bags"),
        ({"instance_labels": [0]}, "one entry per instance: got 1 for"),
        ({"epoch_scores": [[0.5]]}, "at least 2 epochs"),
        ({"procedure": lambda *_: [1.0]}, "one finite score per test bag"),
    ],
)
def test_bad_input(change, message):
    bags, y = noise(0)
    with pytest.raises(ValueError, match=message):
        audit(**{"bags": bags, "y": y, **change})
