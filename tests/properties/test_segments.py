from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bagwise.core import segments
from tests.reference import segments as naive

sizes_lists = st.lists(st.integers(0, 6), min_size=1, max_size=8)
seeds = st.integers(0, 2**16)


def problem(sizes, seed, width=None):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    shape = (offsets[-1],) if width is None else (offsets[-1], width)
    # Few distinct values, so ties are common.
    return rng.integers(-3, 4, size=shape).astype(float), offsets


@given(sizes_lists, seeds)
def test_reductions_equal_naive(sizes, seed):
    v, offsets = problem(sizes, seed)
    np.testing.assert_allclose(segments.sum(v, offsets), naive.sum_(v, offsets))
    np.testing.assert_array_equal(segments.max(v, offsets), naive.max_(v, offsets))
    np.testing.assert_allclose(segments.logsumexp(v, offsets), naive.logsumexp(v, offsets))
    np.testing.assert_allclose(segments.softmax(v, offsets), naive.softmax(v, offsets))
    np.testing.assert_array_equal(
        segments.max_of_others(v, offsets), naive.max_of_others(v, offsets)
    )
    if 0 in sizes:
        with pytest.raises(ValueError, match=f"segment {sizes.index(0)} has no maximum"):
            segments.argmax(v, offsets)
    else:
        np.testing.assert_array_equal(segments.argmax(v, offsets), naive.argmax(v, offsets))


@pytest.mark.parametrize("tensor", [False, True])
def test_a_segment_with_nan_has_no_maximum(tensor):
    v, offsets = np.array([1.0, 2.0, np.nan, 5.0, -np.inf]), np.array([0, 2, 4, 5])
    if tensor:
        torch = pytest.importorskip("torch", reason="the torch extra is missing")
        v, offsets = torch.as_tensor(v), torch.as_tensor(offsets)
    with pytest.raises(ValueError, match="segment 1 has no maximum: it is empty or holds NaN"):
        segments.argmax(v, offsets)
    v[2] = 6.0
    assert segments.argmax(v, offsets).tolist() == [1, 2, 4]


@given(sizes_lists, seeds)
def test_columns_reduce_alone(sizes, seed):
    v, offsets = problem(sizes, seed, width=3)
    np.testing.assert_allclose(segments.sum(v, offsets), naive.sum_(v, offsets))
    np.testing.assert_array_equal(segments.max(v, offsets), naive.max_(v, offsets))
    np.testing.assert_array_equal(segments.min(v, offsets), -naive.max_(-v, offsets))


@given(sizes_lists, st.lists(st.integers(0, 7), max_size=10))
def test_take_equals_naive(sizes, picks):
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    chosen = np.array([p % len(sizes) for p in picks], dtype=int)
    for got, expected in zip(
        segments.take(offsets, chosen), naive.take(offsets, chosen), strict=True
    ):
        np.testing.assert_array_equal(got, expected)


@given(sizes_lists, seeds)
def test_torch_equals_numpy(sizes, seed):
    torch = pytest.importorskip("torch", reason="the torch extra is missing")
    v, offsets = problem(sizes, seed)
    tv, to = torch.as_tensor(v), torch.as_tensor(offsets)
    for name in ("sum", "max", "logsumexp", "softmax", "max_of_others"):
        f = getattr(segments, name)
        np.testing.assert_allclose(f(tv, to).numpy(), f(v, offsets), atol=1e-12, err_msg=name)
    np.testing.assert_array_equal(segments.index(to).numpy(), segments.index(offsets))


def test_rows_past_the_last_segment_do_not_leak():
    v = np.array([1.0, 2.0, 100.0])
    np.testing.assert_array_equal(segments.sum(v, np.array([0, 2])), [3.0])


def test_extreme_values_stay_finite():
    v = np.array([1e4, 1e4, -1e4])
    assert segments.logsumexp(v, np.array([0, 3]))[0] == pytest.approx(1e4 + np.log(2))
