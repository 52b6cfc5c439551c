"""What true boxes say of the size of their class: evidence for or against a proposal.

A classifier trained on image labels is content with a part of an object, and few boxes hardly move
it. But few boxes tell how large the objects are. Sizes are log width and log height as shares of
the image. Those of the class have a normal-inverse-Wishart prior that expects what proposals look
like, so that the evidence is weak where boxes are few or vary much; those of other proposals are
normal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import multivariate_normal, multivariate_t

# Boxes that the prior counts as, for the mean and (above the least possible) for the covariance.
_PRIOR_MEAN, _PRIOR_COVARIANCE = 0.5, 1.0
# Size says no more than this, in log-odds.
_MOST = 5.0


def log_sizes(boxes: Any, image_size: Any) -> Any:
    """Log width and log height of boxes [n, 4] as shares of their image (height, width) [n, 2]."""
    boxes = np.asarray(boxes, dtype=np.float64)
    return np.log(np.maximum(boxes[:, 2:], 1.0) / np.asarray(image_size, dtype=np.float64)[:, ::-1])


def learn_sizes(true: Any, proposed: Any) -> dict[str, Any]:
    """The two densities from log sizes of true boxes [k, 2] and of proposals [n, 2].

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision.sizes import learn_sizes, size_log_odds
    >>> rng = np.random.default_rng(0)
    >>> proposed, true = rng.normal(-2, 1, (500, 2)), rng.normal(-2, 0.1, (20, 2))
    >>> usual, odd = size_log_odds(learn_sizes(true, proposed), np.array([[-2, -2], [-3, -1]]))
    >>> bool(usual > 1), bool(odd < -1)
    (True, True)
    """
    n, d = true.shape
    mean, cov = proposed.mean(axis=0), np.cov(proposed.T) + 1e-6 * np.eye(d)
    centre = true.mean(axis=0)
    kappa, nu = _PRIOR_MEAN + n, d + 1 + _PRIOR_COVARIANCE + n
    gap = centre - mean
    psi = _PRIOR_COVARIANCE * cov + (true - centre).T @ (true - centre)
    psi += _PRIOR_MEAN * n / kappa * np.outer(gap, gap)
    df = nu - d + 1
    return {
        "loc": (_PRIOR_MEAN * mean + n * centre) / kappa,
        "shape": psi * (kappa + 1) / (kappa * df),
        "df": df,
        "other_mean": mean,
        "other_cov": cov,
    }


def size_log_odds(sizes: dict[str, Any], log_size: Any) -> Any:
    """Log density of sizes under the class less that under other proposals, [n]."""
    own = multivariate_t.logpdf(log_size, sizes["loc"], sizes["shape"], sizes["df"])
    other = multivariate_normal.logpdf(log_size, sizes["other_mean"], sizes["other_cov"])
    # Far from both, tails would decide; there the appearance should.
    return np.clip(own - other, -_MOST, _MOST)
