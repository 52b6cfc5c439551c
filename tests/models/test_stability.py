"""G-VGPMIL says where its latent function escapes, and nothing where it does not."""

from __future__ import annotations

import warnings

import pytest

from bagwise.datasets import load_musk1
from bagwise.models.presets import preset
from bagwise.models.variational import Gamma, NoisyMax

# (alpha, beta) of the grid of [CastroMacias2024], section 6.2; v = 0.5, M = 100, 60 iterations.
GRID = [(alpha, beta) for alpha in (0.5, 1.0) for beta in (1.0, 2.5, 4.0)]
ESCAPE = {(100.0, 0.5, 2.5), (100.0, 0.5, 4.0), (100.0, 1.0, 4.0)}


@pytest.mark.parametrize("H", [100.0, 1e12])
@pytest.mark.parametrize(("alpha", "beta"), GRID)
def test_the_warning_depends_on_the_fit_and_so_on_h(H, alpha, beta):
    bags, y = load_musk1(return_X_y=True)
    model = preset(
        "g-vgpmil-paper",
        likelihood=NoisyMax(H, schedule="paper"),
        density=Gamma(alpha, beta),
        learn_kernel=False,
        init="half",
        random_state=0,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(bags, y)
    escaped = [w for w in caught if "the latent function escaped" in str(w.message)]
    assert bool(escaped) == ((H, alpha, beta) in ESCAPE)
    assert len(caught) == len(escaped)
