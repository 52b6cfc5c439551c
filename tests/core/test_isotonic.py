import numpy as np
import pytest
from scipy.special import expit

from bagwise.core.isotonic import fit_isotonic


def test_rises_and_stays_inside(rng):
    scores = rng.normal(size=200)
    y = (rng.random(200) < expit(3 * scores)).astype(int)
    fitted = fit_isotonic(scores, y)
    grid = np.linspace(-10, 10, 400)
    p = expit(fitted.log_odds(grid))
    assert (np.diff(p) >= -1e-12).all()
    assert p.min() == pytest.approx(1 / 202)
    assert p.max() == pytest.approx(1 - 1 / 202)
    assert np.mean((expit(fitted.log_odds(scores)) - y) ** 2) < np.mean((y.mean() - y) ** 2)


def test_constant_scores_give_the_share_of_positives():
    fitted = fit_isotonic(np.zeros(10), np.arange(10) < 3)
    assert expit(fitted.log_odds(np.array([-1.0, 0.0, 5.0]))) == pytest.approx(0.3)
