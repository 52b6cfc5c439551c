"""The first entry that is not finite, in rows of any kind."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from bagwise.core import finite


@pytest.mark.parametrize("kind", ["dense", "sparse", "torch", "float32"])
@pytest.mark.parametrize(("bad", "word"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_finds_the_first(kind, bad, word, monkeypatch):
    monkeypatch.setattr(finite, "_ROWS", 3)
    X = np.ones((10, 4))
    whole = _as(kind, X)
    assert finite.all_finite(whole)
    assert finite.first_not_finite(whole) is None
    X[7, 2], X[9, 0] = bad, np.nan
    assert finite.first_not_finite(_as(kind, X)) == ((7, 2), word)
    assert not finite.all_finite(_as(kind, X))


def _as(kind, X):
    if kind == "sparse":
        return sp.csr_matrix(X)
    if kind == "torch":
        return pytest.importorskip("torch").tensor(X)
    return X.astype(np.float32) if kind == "float32" else X.copy()


def test_a_sum_that_overflows_is_no_error():
    assert finite.all_finite(np.full((3, 2), 1e308))


def test_images():
    X = np.zeros((2, 3, 3))
    X[1, 2, 0] = np.nan
    assert finite.first_not_finite(X) == ((1, 2, 0), "NaN")
