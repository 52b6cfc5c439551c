"""Displays: what they draw, and what they refuse."""

from __future__ import annotations

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex
from sklearn.svm import SVC

from bagwise import Bags, SingleInstance
from bagwise.files.geojson import common_gap
from bagwise.models.registry import make_model
from bagwise.report import (
    BagImagesDisplay,
    BoundDisplay,
    InstanceMapDisplay,
    ProbabilityHistogramDisplay,
    ReliabilityDisplay,
)
from tests.filing import arrays


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def fitted():
    made = arrays()
    coords = np.concatenate([c for _, _, c, _ in made])
    bags = Bags.from_list([x for _, x, _, _ in made], ids=[name for name, *_ in made])
    images = np.random.default_rng(0).uniform(size=(bags.n_instances, 8, 8))
    bags = bags.with_columns(coords=coords, images=images)
    y = np.array([t for *_, t in made])
    return make_model("vgpmil", n_inducing=15).fit(bags, y), bags, y


def test_instance_map(fitted):
    model, bags, _ = fitted
    display = InstanceMapDisplay.from_estimator(model, bags, "003")
    squares = display.ax_.collections[0]
    p = model.predict_proba_instances(bags[3:4])[:, 1]
    np.testing.assert_array_equal(squares.get_array(), p)
    assert len(squares.get_paths()) == bags.sizes[3]
    assert display.patch_size_ == 256
    assert display.ax_.get_title() == "003"
    assert display.ax_.yaxis_inverted()
    assert squares.get_clim() == (0, 1)
    std = InstanceMapDisplay.from_estimator(model, bags, -1, what="std")
    assert std.colorbar_.ax.get_ylabel() == "std"
    sized = bags.with_columns(patch_size=np.full(bags.n_instances, 512.0))
    assert InstanceMapDisplay.from_estimator(model, sized, 0).patch_size_ == 512


def test_instance_map_refuses(fitted):
    model, bags, y = fitted
    with pytest.raises(KeyError, match="no bag is called 'x'"):
        InstanceMapDisplay.from_estimator(model, bags, "x")
    with pytest.raises(ValueError, match="carry no 'coords'"):
        InstanceMapDisplay.from_estimator(model, Bags(bags.instances, bags.offsets), 0)
    with pytest.raises(ValueError, match="cannot rank instances"):
        InstanceMapDisplay.from_estimator(make_model("statistics").fit(bags, y), bags, 0)
    with pytest.raises(ValueError, match="gives no probabilities"):
        svc = SingleInstance(SVC(), calibrate=False)
        InstanceMapDisplay.from_estimator(svc.fit(bags, y), bags, 0)
    single = make_model("single-instance").fit(bags, y)
    with pytest.raises(ValueError, match="no standard deviations"):
        InstanceMapDisplay.from_estimator(single, bags, 0, what="std")


def test_common_gap():
    assert common_gap([[0, 0], [256, 0], [512, 300]]) == 256
    assert common_gap([[5, 5]]) == 1


def test_bag_of_images(fitted):
    model, bags, _ = fitted
    display = BagImagesDisplay.from_estimator(model, bags, 3)
    p, std = model.predict_proba_instances(bags[3:4], return_std=True)
    for k, axes in enumerate(display.axes_):
        assert axes.get_title() == f"{p[k, 1]:.2f} ± {std[k]:.2f}"
        framed = to_hex(axes.spines["left"].get_edgecolor()) == "#b83a0e"
        assert framed == (p[k, 1] > 0.5)
    images = np.zeros((bags.n_instances, 4, 4, 3))
    assert len(BagImagesDisplay.from_estimator(model, bags, 0, images).axes_) == bags.sizes[0]
    with pytest.raises(ValueError, match="pass images"):
        BagImagesDisplay.from_estimator(model, Bags(bags.instances, bags.offsets), 0)


def test_histogram(fitted):
    model, bags, y = fitted
    _, ax = plt.subplots()
    display = ProbabilityHistogramDisplay.from_estimator(model, bags, y, ax=ax)
    assert display.ax_ is ax
    heights = sum(bar.get_height() for bar in ax.patches)
    assert heights == len(bags)
    plain = ProbabilityHistogramDisplay.from_predictions([0.1, 0.9], bins=10)
    assert len(plain.ax_.patches) == 10


def test_bound(fitted):
    model, bags, y = fitted
    display = BoundDisplay.from_estimator(model)
    np.testing.assert_array_equal(display.line_.get_ydata(), model.bound_history_)
    with pytest.raises(ValueError, match="StatisticsClassifier has no bound_history_"):
        BoundDisplay.from_estimator(make_model("statistics").fit(bags, y))


def test_reliability(fitted):
    model, bags, y = fitted
    display = ReliabilityDisplay.from_estimator(model, bags, y)
    assert display.curve_.count.sum() == len(bags)
    assert display.name == "VGPMIL"
    named = ReliabilityDisplay.from_predictions(y, np.full(len(y), 0.3))
    np.testing.assert_allclose(named.line_.get_xdata(), [0.3])
