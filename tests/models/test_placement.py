"""Rows that move to a device: the same numbers, read ahead in order, or left where they are."""

import numpy as np
import pytest

from bagwise import Bags
from bagwise.files import read_bags
from bagwise.models import placement
from bagwise.models.placement import placed, read_ahead

torch = pytest.importorskip("torch")


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(7):
        np.save(tmp_path / f"{i}.npy", rng.normal(size=(3 + i, 4)).astype(np.float32))
    return tmp_path


def test_rows_are_moved_whole_and_in_order(folder, monkeypatch):
    monkeypatch.setattr(placement, "_NUMBERS", 20)
    lazy = read_bags(folder, lazy=True)
    moved = placed(lazy, "cpu")
    assert isinstance(moved.instances, torch.Tensor)
    assert moved.instances.dtype == torch.float32
    np.testing.assert_array_equal(moved.instances.numpy(), lazy.instances[:])
    np.testing.assert_array_equal(moved.offsets, lazy.offsets)
    runs = [run for run, _ in read_ahead(lazy.instances)]
    assert [run.stop - run.start for run in runs[:-1]] == [5] * (len(runs) - 1)


def test_rows_stay_where_they_do_not_fit(folder, monkeypatch):
    lazy = read_bags(folder, lazy=True)
    needed = lazy.instances.nbytes / placement._SHARE
    monkeypatch.setattr(placement, "free_memory", lambda device: needed - 1)
    assert placed(lazy, "cpu") is lazy
    monkeypatch.setattr(placement, "free_memory", lambda device: needed)
    assert placed(lazy, "cpu") is not lazy


def test_nothing_moves_unasked():
    bags = Bags(np.ones((4, 2)), [0, 2, 4])
    assert placed(bags, None) is bags
    tensors = Bags(torch.ones(4, 2), [0, 2, 4])
    assert placed(tensors, "cpu") is tensors
