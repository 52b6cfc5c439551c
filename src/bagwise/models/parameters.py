"""Parameters of an estimator as fields of a dataclass, each with the values it may have.

An estimator is declared with ``@dataclass(kw_only=True, eq=False, repr=False)``: the signature, the
defaults and what scikit-learn's ``get_params`` and ``clone`` see are then the fields themselves.
"""

from __future__ import annotations

from dataclasses import field
from numbers import Integral, Real
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions, validate_parameter_constraints

from bagwise.core.rules import RULES

AT_LEAST_1 = Interval(Integral, 1, None, closed="left")
NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
POSITIVE = Interval(Real, 0, None, closed="neither")
BAG_RULES = (StrOptions(RULES.keys()),)  # a view: an entry added later counts
SCALES = (StrOptions({"feature", "global"}), None)  # of the features, see `scaling`


def parameter(default: Any, *allowed: Any, kw_only: bool = True) -> Any:
    """A field with a default and the constraints of which a value must meet one.

    A constraint is anything that scikit-learn's own estimators take: an interval, a set of words,
    a type, "boolean", None. Without one, any value is allowed here and checked where it is used.
    ``kw_only=False`` is for the estimator that a model wraps, which scikit-learn passes first.
    """
    metadata = {"allowed": list(allowed) or "no_validation"}
    return field(default=default, kw_only=kw_only, metadata=metadata)


class HasParameters(BaseEstimator):
    """An estimator whose parameters are fields made by `parameter`."""

    def _validate_params(self) -> None:
        declared = getattr(self, "__dataclass_fields__", {})
        allowed = {k: f.metadata["allowed"] for k, f in declared.items() if "allowed" in f.metadata}
        validate_parameter_constraints(
            {**getattr(self, "_parameter_constraints", {}), **allowed},
            self.get_params(deep=False),
            caller_name=type(self).__name__,
        )
