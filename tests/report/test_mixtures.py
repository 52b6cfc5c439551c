from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest

from bagwise import DPMIL, SingleInstance
from bagwise.report.mixtures import plot_mixture_weights
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
