"""The device path on torch tensors; on the CPU here, so that it is tested everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from bagwise import GVGPMIL, LMVGPMIL, VGPMIL, Bags
from bagwise.core import linalg
from bagwise.core.kernels import RBF
from bagwise.datasets import load_musk1
from bagwise.models.execution import TF32_FROM, device_settings
from bagwise.models.variational import NoisyMax, Or, SoftMax
from tests.checks import make_problem
from tests.checks.options import gathered

torch = pytest.importorskip("torch", reason="the torch extra is missing")
OPTIONS = {"n_inducing": 20, "random_state": 0, "max_iter": 10, "tol": 0.0}


@pytest.fixture(scope="module")
def musk():
    bags, y = load_musk1(return_X_y=True)
    return bags, Bags(torch.as_tensor(np.array(bags.instances)), bags.offsets), y


PAPER = {"inference": "paper"}


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (VGPMIL, PAPER),
        (VGPMIL, {**PAPER, "likelihood": NoisyMax(expectation="exact"), "scale": "global"}),
        (VGPMIL, {**PAPER, "likelihood": NoisyMax(schedule="paper"), "bag_rule": "noisy-or"}),
        (VGPMIL, {**PAPER, "kernel": RBF("median"), "learn_kernel": True, "chunk_size": 32}),
        (GVGPMIL, {}),
        (LMVGPMIL, {}),
    ],
    ids=str,
)
def test_papers_updates_on_tensors_equal_those_on_arrays(musk, model, options):
    bags, tensors, y = musk
    a = model(**gathered(**OPTIONS, **options)).fit(bags, y)
    b = model(**gathered(**OPTIONS, **options)).fit(tensors, y)
    np.testing.assert_allclose(a.posterior_mean_, b.posterior_mean_, atol=1e-7)
    np.testing.assert_allclose(a.bound_history_, b.bound_history_, rtol=2e-8)
    np.testing.assert_allclose(a.held_out_decision_, b.held_out_decision_, atol=1e-5)
    for name in ("predict_proba", "predict_proba_instances"):
        p, q = getattr(a, name)(bags), getattr(b, name)(tensors)
        np.testing.assert_allclose(p, q, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": "global", "kernel": "matern32"},
        {"likelihood": Or(), "chunk_size": 32},
        {"likelihood": Or(0.5, error=0.1)},
        {"likelihood": SoftMax(0.0), "learn_kernel": False},
    ],
    ids=str,
)
def test_tensors_equal_arrays(musk, options):
    bags, tensors, y = musk
    a = VGPMIL(**gathered(**OPTIONS, **options)).fit(bags, y)
    b = VGPMIL(**gathered(**OPTIONS, **options)).fit(tensors, y)
    np.testing.assert_allclose(a.kernel_.theta, b.kernel_.theta, atol=1e-8)
    np.testing.assert_allclose(a.posterior_mean_, b.posterior_mean_, atol=1e-8)
    np.testing.assert_allclose(a.bound_history_, b.bound_history_, rtol=1e-9)
    np.testing.assert_allclose(a.held_out_decision_, b.held_out_decision_, atol=1e-6)
    for name in ("predict_proba", "predict_proba_instances", "predict_positive_fraction"):
        ours = getattr(a, name)(bags, return_std=True, return_interval=0.8)
        theirs = getattr(b, name)(tensors, return_std=True, return_interval=0.8)
        for p, q in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(p, q, atol=1e-8, err_msg=name)


def test_a_learned_kernel_is_the_same_on_tensors():
    """Learning a kernel amplifies rounding; musk's data are whole numbers and have little of it."""
    bags, y, _ = make_problem(n_bags=48, seed=3, shift=2.0)
    tensors = Bags(torch.as_tensor(np.array(bags.instances)), bags.offsets)
    a, b = (VGPMIL(n_inducing=20, random_state=0).fit(x, y) for x in (bags, tensors))
    np.testing.assert_allclose(a.kernel_.theta, b.kernel_.theta, atol=1e-8)
    np.testing.assert_allclose(a.posterior_mean_, b.posterior_mean_, atol=1e-8)
    np.testing.assert_allclose(a.predict_proba(bags), b.predict_proba(tensors), atol=1e-8)


def test_several_classes_on_tensors(musk):
    bags, tensors, y = musk
    y = np.where(np.arange(len(y)) % 3 == 0, 2, y)
    a = VGPMIL(**OPTIONS).fit(bags, y)
    b = VGPMIL(**OPTIONS).fit(tensors, y)
    np.testing.assert_allclose(a.predict_proba(bags), b.predict_proba(tensors), atol=1e-8)


def test_early_stopping_on_tensors(musk):
    bags, tensors, y = musk
    for inference in ("marginal", "paper"):
        a, b = (
            VGPMIL(inference=inference, **OPTIONS).fit(x, y, validation=(x[::2], y[::2]))
            for x in (bags, tensors)
        )
        np.testing.assert_allclose(a.posterior_mean_, b.posterior_mean_, atol=1e-7)


@pytest.mark.parametrize("inference", ["marginal", "paper"])
def test_float32_within_a_thousandth(musk, inference):
    bags, tensors, y = musk
    a = VGPMIL(inference=inference, **OPTIONS).fit(bags, y)
    b = VGPMIL(inference=inference, **gathered(**OPTIONS, dtype="float32")).fit(tensors, y)
    np.testing.assert_allclose(a.predict_proba(bags), b.predict_proba(tensors), atol=1e-3)


@pytest.mark.parametrize("inference", ["marginal", "paper"])
def test_known_labels_and_checkpoints_on_a_device(musk, tmp_path, inference):
    bags, tensors, y = musk
    known = np.full(bags.n_instances, -1)
    known[bags.offsets[:-1][y == 1]] = 1
    options = {"inference": inference, **OPTIONS}
    there = {"checkpoint": tmp_path / "c.npz", "checkpoint_every": 2}

    def kill(told):
        if told.n_iter == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        VGPMIL(**gathered(**options, **there, callback=kill)).fit(tensors, y, instance_labels=known)
    resumed = VGPMIL(**gathered(**options, **there)).fit(tensors, y, instance_labels=known)
    through = VGPMIL(**options).fit(tensors, y, instance_labels=known)
    np.testing.assert_allclose(resumed.posterior_mean_, through.posterior_mean_, atol=1e-12)
    np.testing.assert_allclose(resumed.held_out_decision_, through.held_out_decision_, atol=1e-6)
    whole = VGPMIL(**options).fit(bags, y, instance_labels=known)
    np.testing.assert_allclose(resumed.posterior_mean_, whole.posterior_mean_, atol=1e-7)


def test_partial_fit_on_tensors(musk):
    bags, tensors, y = musk
    a, b = (VGPMIL(likelihood=Or(), n_inducing=10, random_state=0) for _ in range(2))
    for _ in range(2):
        a.partial_fit(bags, y, total_bags=len(bags))
        b.partial_fit(tensors, y, total_bags=len(bags))
    np.testing.assert_allclose(a.posterior_mean_, b.posterior_mean_, atol=1e-8)


def test_what_was_fitted_on_tensors_predicts_arrays(musk):
    bags, tensors, y = musk
    model = VGPMIL(**OPTIONS).fit(tensors, y)
    np.testing.assert_allclose(model.predict_proba(bags), model.predict_proba(tensors), atol=1e-8)


def test_no_silent_fallback(musk):
    bags, tensors, y = musk
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="sees no GPU"):
            VGPMIL(execution="cuda").fit(bags, y)
    with pytest.raises(ValueError, match="which a device"):
        VGPMIL(**PAPER, likelihood=NoisyMax(schedule="sequential")).fit(tensors, y)


@pytest.mark.parametrize("n", [TF32_FROM - 1, TF32_FROM])
def test_tf32_is_for_many_instances_and_is_put_back(n):
    before = torch.backends.cuda.matmul.allow_tf32
    with device_settings("tf32", n):
        assert torch.backends.cuda.matmul.allow_tf32 == (n >= TF32_FROM)
    assert torch.backends.cuda.matmul.allow_tf32 == before


def test_the_precision_is_never_made_in_tf32(monkeypatch):
    """Nor is the setting left changed."""
    seen = []
    plain = linalg._add_outer

    def spy(*arguments):
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        plain(*arguments)

    monkeypatch.setattr(linalg, "_add_outer", spy)
    A, ones = torch.randn(3, 256, generator=torch.Generator().manual_seed(0)), torch.ones(256)
    with device_settings("tf32", TF32_FROM):
        gram, _ = linalg.weighted_sums(A, ones, ones)
        assert torch.backends.cuda.matmul.allow_tf32
    assert seen == [False]
    np.testing.assert_allclose(np.tril(gram), np.tril(A.double() @ A.double().T), rtol=1e-5)


def test_long_sums_are_made_in_float64():
    """Of 2^24 + 1 columns that count 1 each, the last would be lost in float32."""
    n = 2**24 + 128
    A, omega = torch.ones((1, n)), torch.ones(n)
    omega[2**24 + 1 :] = 0
    gram, _ = linalg.weighted_sums(A, omega, omega)
    assert float(gram) == 2**24 + 1
