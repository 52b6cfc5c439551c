"""Calibration changes probabilities, not the order of bags: an AUC needs none."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.stats import rankdata

from bagwise.datasets import make_gaussian_bags
from bagwise.evaluate.cross_validation import seeded
from bagwise.models.registry import MODELS, make_model


@pytest.mark.parametrize("name", [name for name in MODELS if name != "auto"])
def test_the_order_of_bags_is_that_without_calibration(name):
    bags, y = make_gaussian_bags(60, 3, separation=1.5, random_state=0, return_X_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = seeded(make_model(name).set_params(calibrate=False), 0).fit(bags[:40], y[:40])
        calibrated = make_model(name, random_state=0).fit(bags[:40], y[:40])
    assert plain.get_params()["calibrate"] is False
    ranks = rankdata(calibrated.decision_function(bags[40:]).round(12))
    np.testing.assert_array_equal(ranks, rankdata(plain.decision_function(bags[40:]).round(12)))
