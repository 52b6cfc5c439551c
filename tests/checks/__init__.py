"""One list of checks that every bag classifier passes: ``run_checks(factory)``.

A check is a function of a zero-argument factory. Exemptions carry a reason, and a check that
is exempted must really fail, or the exemption is stale.
"""

from tests.checks.contract import CHECKS, make_problem, with_instances

__all__ = ["CHECKS", "make_problem", "with_instances"]
