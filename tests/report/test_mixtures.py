from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest

from bagwise import DPMIL, SingleInstance
from bagwise.datasets import load_digit_bags
from bagwise.report.html import Report, render_report
from bagwise.report.mixtures import plot_cluster_examples, plot_mixture_weights, shown_clusters
from bagwise.report.predictions import predict_tables
from tests.checks import make_problem


@pytest.fixture(autouse=True)
def no_display():
    mpl.use("Agg")
    yield
    mpl.pyplot.close("all")


def test_bars_are_the_sorted_weights():
    bags, y, _ = make_problem(n_bags=12)
    model = DPMIL(n_components=3, random_state=0).fit(bags, y)
    ax = plot_mixture_weights(model)
    heights = np.array([bar.get_height() for bar in ax.patches]).reshape(2, 3)
    np.testing.assert_allclose(heights, np.sort(model.weights_, axis=1)[:, ::-1])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["class 0", "class 1"]
    assert plot_mixture_weights(model, ax=ax) is ax


def test_other_models_are_refused():
    from sklearn.linear_model import LogisticRegression

    bags, y, _ = make_problem(n_bags=12)
    model = SingleInstance(LogisticRegression()).fit(bags, y)
    with pytest.raises(ValueError, match="those of DPMIL; got SingleInstance"):
        plot_mixture_weights(model)


@pytest.fixture(scope="module")
def digits():
    data = load_digit_bags(random_state=0)
    model = DPMIL(n_components=6, n_init=1, calibrate=False, random_state=0)
    return data, model.fit(data.bags, data.y)


def test_examples_are_the_nearest_of_their_cluster_one_of_each_bag(digits):
    data, model = digits
    labels, clusters = model.predict_instances(data.bags), model.assign(data.bags)
    X = model.components_.transform(model._scaled(data.bags).instances)
    examples = model.nearest_instances(data.bags, 4)
    assert [e.label for e in examples] == sorted(e.label for e in examples)
    for label in (0, 1):
        weights = [e.weight for e in examples if e.label == label]
        assert weights == sorted(weights, reverse=True)
    for example in examples:
        c = int(example.label)
        assert example.weight == model.weights_[c, example.cluster]
        members = np.flatnonzero((labels == c) & (clusters == example.cluster))
        gap = X[members] - model.means_[c, example.cluster]
        precision = model.precisions_[c, example.cluster]
        distance = np.array(
            [g @ precision @ g if precision.ndim == 2 else g**2 @ precision for g in gap]
        )
        expected, seen = [], set()
        for row in members[np.argsort(distance, kind="stable")]:
            if data.bags.bag_index[row] not in seen and len(expected) < 4:
                seen.add(data.bags.bag_index[row])
                expected.append(row)
        assert example.rows.tolist() == expected


def test_pictures_of_the_heaviest_clusters(digits):
    data, model = digits
    shown = shown_clusters(model.nearest_instances(data.bags, 5), 2)
    assert [e.label for e in shown] == [0, 0, 1, 1]
    figure = plot_cluster_examples(model, data.bags, data.images, n_clusters=2, n_instances=5)
    assert len(figure.axes) == 20
    first = figure.axes[0].images[0].get_array()
    np.testing.assert_array_equal(first, data.images[shown[0].rows[0]])
    with pytest.raises(ValueError, match="pass images"):
        plot_cluster_examples(model, data.bags)
    with pytest.raises(ValueError, match="one picture per instance: got 3"):
        plot_cluster_examples(model, data.bags, data.images[:3])


def test_light_clusters_are_left_out_but_never_all_of_a_class(digits):
    data, model = digits
    examples = [e._replace(weight=0.001) for e in model.nearest_instances(data.bags, 2)]
    assert [e.label for e in shown_clusters(examples, 4)] == [0, 1]


def test_the_report_shows_the_clusters(digits):
    data, model = digits
    bags = data.bags.with_columns(images=data.images)
    report = Report(
        predict_tables(model, bags), bags, {}, clusters=model.nearest_instances(bags, 3)
    )
    page = render_report(report)
    assert "What the classes are made of" in page
    assert page.count("data:image/png;base64,") >= 6
    without = render_report(report._replace(bags=data.bags))
    assert "What the classes are made of" in without
    assert "data:image/png;base64," not in without
    assert "What the classes are made of" not in render_report(report._replace(clusters=()))
