from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from bagwise.evaluate import rank_models, wilcoxon_p
from bagwise.evaluate.ranking import holm
from bagwise.report import plot_ranks


@pytest.fixture
def scores():
    rng = np.random.default_rng(0)
    level = np.array([0.5, 0.9, 0.52, 0.88])
    return level + 0.02 * rng.standard_normal((20, 4))


def test_ranks_and_tests_equal_their_definitions(scores):
    made = rank_models(["low", "top", "low2", "top2"], scores)
    ranks = np.array([[1 + sum(other > own for other in row) for own in row] for row in scores])
    expected = dict(zip(["low", "top", "low2", "top2"], ranks.mean(axis=0), strict=True))
    assert dict(zip(made.models, made.mean_rank, strict=True)) == expected
    assert made.models[:2] == ["top", "top2"]
    assert made.friedman_p == pytest.approx(stats.friedmanchisquare(*scores.T).pvalue)
    plain = {
        (a, b): wilcoxon_p(scores[:, a] - scores[:, b]) for a in range(4) for b in range(a + 1, 4)
    }
    # Holm: p times the number of hypotheses not yet rejected, never falling.
    smallest = min(plain.values())
    assert made.p.min() == pytest.approx(6 * smallest)
    assert made.p[0, 2] < 0.01


def test_groups_are_the_runs_that_no_test_separates(scores):
    close = scores[:, [1, 0]]
    close = np.column_stack([close, close + 1e-4 * np.where(np.arange(20) % 2, 1, -1)[:, None]])
    made = rank_models(["a", "b", "a2", "b2"], close)
    assert set(made.models[:2]) == {"a", "a2"}
    assert made.groups == [(0, 1), (2, 3)]
    assert rank_models(["a", "b"], close[:, :2]).groups == []


def test_lower_may_be_better_and_ties_share(scores):
    made = rank_models(["x", "y", "z"], [[1, 1, 2], [1, 1, 2]], greater_is_better=False)
    assert made.mean_rank.tolist() == [1.5, 1.5, 3.0]
    assert rank_models(["x", "y", "z"], [[1, 1, 1], [2, 2, 2]]).friedman_p == 1.0


def naive_holm(p):
    left, adjusted, highest = sorted(range(len(p)), key=lambda i: p[i]), {}, 0.0
    for step, i in enumerate(left):
        highest = max(highest, (len(p) - step) * p[i])
        adjusted[i] = min(highest, 1.0)
    return [adjusted[i] for i in range(len(p))]


def test_holm_equals_the_plain_loop():
    p = np.random.default_rng(1).random(9) ** 3
    np.testing.assert_allclose(holm(p), naive_holm(p))
    assert holm([0.5, 0.9]).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([[1, 2]], "at least 2 data sets"),
        ([[1, 2, 3], [1, 2, 3]], r"shape \(2, 3\) for 2 models"),
        ([[1, 2], [1, np.nan]], "model 'b' has no score on data set 1"),
    ],
)
def test_bad_scores(scores, message):
    with pytest.raises(ValueError, match=message):
        rank_models(["a", "b"], scores)


def test_diagram_names_every_model_and_group(scores):
    made = rank_models(["low", "top", "low2", "top2"], scores)
    axes = plot_ranks(made).axes[0]
    assert {text.get_text().split()[0] for text in axes.texts[:2]} == {"top", "top2"}
    assert {text.get_text().split()[-1] for text in axes.texts[2:]} == {"low", "low2"}
    bars = [line for line in axes.lines if line.get_linewidth() == 3]
    assert len(bars) == len(made.groups)
