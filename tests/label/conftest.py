"""A small labelling problem that every test of this folder shares."""

from __future__ import annotations

import numpy as np
import pytest

from bagwise import VGPMIL, Bags
from bagwise.datasets import make_gaussian_bags
from bagwise.label import Journal, Learner, Session


@pytest.fixture(scope="session")
def data():
    found = make_gaussian_bags(n_bags=30, random_state=0)
    ids = [f"bag_{i:02d}" for i in range(30)]
    bags = Bags(found.bags.instances, found.bags.offsets, ids)
    return bags, found.y, np.asarray(found.instance_labels)


@pytest.fixture(scope="session")
def model(data):
    bags, y, _ = data
    return VGPMIL(n_inducing=20, random_state=0).fit(bags, y)


@pytest.fixture
def learner(model, data):
    return Learner(model, data[0], data[1])


@pytest.fixture
def session(learner, tmp_path):
    with Journal(tmp_path / "labels.csv", learner.classes) as journal:
        yield Session(learner, journal, auto=0)
