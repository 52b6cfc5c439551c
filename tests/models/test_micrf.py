"""MICRF: the contract, the energy and its pruning, learning, bad input."""

from __future__ import annotations

import numpy as np
import pytest

from bagwise import MICRF, Bags
from tests.checks import CHECKS, make_problem


def make():
    return MICRF()


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_contract(check):
    check(make)


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_contract_with_probabilities(check):
    check(lambda: MICRF(probability=True, cv=3))
