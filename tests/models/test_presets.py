"""The presets are the objects their table says, and every one of them fits."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score

from bagwise.datasets import load_musk1, make_gaussian_bags
from bagwise.models.presets import PRESETS, preset


@pytest.mark.parametrize("name", PRESETS)
def test_the_table_and_the_object_agree(name):
    parameters = preset(name).get_params(deep=False)
    for key, (value, source) in PRESETS[name].settings.items():
        assert parameters[key] is value
        assert source


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_fits_and_stops_as_its_table_says(name):
    bags, y = make_gaussian_bags(40, 3, separation=5, random_state=0, return_X_y=True)
    if name in ("mio-paper", "miles-paper"):  # the width is that of these features
        bags, y = load_musk1(return_X_y=True)
    chosen = PRESETS[name]
    few = {"learn_kernel": False} if "learn_kernel" in chosen.settings else {}
    stopping = {key: value for key, (value, _) in chosen.stopping.items()}
    if stopping:
        assert set(stopping) <= set(inspect.signature(chosen.model.fit).parameters)
        stopping["validation"] = (bags, y)
    model = preset(name, **few)
    if "random_state" in model.get_params():
        model.set_params(random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of iterations is published
        model.fit(bags, y, **stopping)
    assert roc_auc_score(y, model.decision_function(bags)) > 0.8


def test_what_paper_and_program_differ_in():
    value = {name: {k: v for k, (v, _) in p.settings.items()} for name, p in PRESETS.items()}
    for family in ("vgpmil", "lm-vgpmil", "psi-vgpmil", "g-vgpmil"):
        assert value[f"{family}-paper"]["likelihood"].H == 100
        assert value[f"{family}-program"]["likelihood"].H == 1e12
    assert value["vgpmil-paper"]["max_iter"] == 20
    assert value["vgpmil-program"]["max_iter"] == 10
    assert value["psi-vgpmil-paper"]["bag_rule"] == "noisy-or"
    assert value["psi-vgpmil-program"]["bag_rule"] == "max"
    assert value["psi-vgpmil-paper"]["kernel"].variance == 0.5


def test_the_printed_prior_of_dpmil_is_the_covariance_of_the_data():
    """But for the floor, which also makes a singular covariance positive definite."""
    bags, y = make_gaussian_bags(40, 3, random_state=0, return_X_y=True)
    root = preset("dpmil-paper", random_state=0).fit(bags, y)._prior.root
    np.testing.assert_allclose(root @ root.T, np.cov(bags.instances.T), rtol=1e-6, atol=1e-8)
    twice = bags.map(lambda X: np.hstack([X, X[:, :1]]))  # two equal features
    preset("dpmil-paper", random_state=0).fit(twice, y)
    with pytest.raises(ValueError, match="must be positive definite"):
        preset("dpmil-paper", covariance_floor=0.0).fit(twice.map(lambda X: 0 * X + X[:, :1]), y)


def test_an_unknown_name_lists_the_others():
    with pytest.raises(ValueError, match=r"no preset 'vgpmil'; choose one of \['vgpmil-paper'"):
        preset("vgpmil")


def test_a_change_replaces_a_setting():
    assert preset("vgpmil-paper", n_inducing=7).n_inducing == 7
