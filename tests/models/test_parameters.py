"""Parameters as dataclass fields: what scikit-learn sees of them, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils._param_validation import InvalidParameterError, StrOptions

from bagwise.models.base import BagClassifier
from bagwise.models.parameters import AT_LEAST_1, POSITIVE, parameter


@dataclass(kw_only=True, eq=False, repr=False)
class Nearest(BagClassifier):
    """A classifier that only validates."""

    n_neighbors: int = parameter(3, AT_LEAST_1)
    unit: str = parameter("cm", StrOptions({"cm", "in"}), None)
    kernel: object = parameter("rbf")

    def fit(self, bags, y):
        self._validate_fit(bags, y)
        return self


@dataclass(kw_only=True, eq=False, repr=False)
class Weighted(Nearest):
    """A subclass adds a parameter and changes a default."""

    n_neighbors: int = parameter(5, AT_LEAST_1)
    power: float = parameter(1.0, POSITIVE)


BAGS, Y = [np.eye(2)[:1], np.eye(2)[1:]] * 4, np.array([0, 1] * 4)


def test_fields_are_the_parameters_that_scikit_learn_sees():
    model = Weighted(power=2.0)
    assert model.get_params() == {"kernel": "rbf", "n_neighbors": 5, "power": 2.0, "unit": "cm"}
    assert clone(model.set_params(unit=None)).get_params() == model.get_params()
    assert repr(model) == "Weighted(power=2.0, unit=None)"
    assert model != clone(model)
    assert len({model, clone(model)}) == 2


@pytest.mark.parametrize("wrong", [{"n_neighbors": 0}, {"unit": "m"}, {"power": 0.0}])
def test_a_value_outside_its_constraint_is_refused_at_fit(wrong):
    with pytest.raises(InvalidParameterError, match=next(iter(wrong))):
        Weighted(**wrong).fit(BAGS, Y)


def test_without_a_constraint_any_value_is_allowed():
    assert Weighted(kernel=object(), unit=None).fit(BAGS, Y).n_features_in_ == 2
