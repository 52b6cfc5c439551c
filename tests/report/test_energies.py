"""The energy figure: what is framed, what is refused."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from bagwise import MICRF, InstanceTransformer, SingleInstance, make_pipeline
from bagwise.report.energies import plot_energies
from tests.checks import make_problem


@pytest.fixture(scope="module")
def fitted():
    bags, y, _ = make_problem()
    return MICRF().fit(bags, y), bags, y


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def frames(ax):
    return sorted(p.get_xy() for p in ax.patches)


def test_frames_are_the_selected_states(fitted):
    model, bags, _ = fitted
    few = bags[:4]
    top, left, blocks = plot_energies(model, few)
    selected = model.select(few)
    states = few.offsets + np.arange(5)
    expected = [
        states[b + 1] - 1 if i < 0 else states[b] + i - few.offsets[b]
        for b, i in enumerate(selected)
    ]
    assert frames(top) == [(i - 0.5, -0.5) for i in expected]
    assert len(left.patches) == 4
    assert len(blocks.patches) == 4 * 3
    picture = blocks.images[0].get_array()
    non = states[1:] - 1
    assert np.ma.allequal(picture[np.ix_(non[:1], non[1:])], 0)  # non-instances cost no pair
    np.testing.assert_allclose(picture.data, picture.data.T)


def test_given_selection_axes_and_pipeline(fitted):
    _, bags, y = fitted
    pipeline = make_pipeline(InstanceTransformer(StandardScaler()), MICRF(scale=None))
    pipeline.fit(bags, y)
    _, axes = plt.subplots(1, 3)
    top, _, _ = plot_energies(pipeline, bags[:2], selected=[-1, -1], axes=axes)
    assert top is axes[0]
    n = bags[:2].sizes
    assert frames(top) == [(n[0] - 0.5, -0.5), (n[0] + n[1] + 0.5, -0.5)]


def test_refusals_name_what_is_wrong(fitted):
    model, bags, y = fitted
    with pytest.raises(ValueError, match="at most 30 bags"):
        plot_energies(model, bags[np.arange(24).repeat(2)])
    with pytest.raises(ValueError, match="one row per bag"):
        plot_energies(model, bags[:3], selected=[0])
    other = SingleInstance(SVC()).fit(bags, y)
    with pytest.raises(ValueError, match="energies are those of MICRF; got SingleInstance"):
        plot_energies(other, bags[:3])
