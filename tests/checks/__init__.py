"""One list of checks that every bag classifier passes.

A check is a function of a zero-argument factory that builds a fresh, seeded, quick estimator::

    @pytest.mark.parametrize("check", CHECKS)
    def test_contract(check):
        check(lambda: MyModel())

    @sklearn_checks(MyModel())
    def test_sklearn(estimator, check):
        check(estimator)

An exemption is written where the model is tested, with its reason.
"""

from tests.checks.adapter import sklearn_checks
from tests.checks.contract import CHECKS, make_problem, with_instances

__all__ = ["CHECKS", "make_problem", "sklearn_checks", "with_instances"]
