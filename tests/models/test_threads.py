"""A fit says the same on a laptop as on a server: the number of threads changes rounding only."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from bagwise.datasets import load_digit_bags
from bagwise.models.registry import make_model

# With all inducing points and finalists: the screen draws points by their number.
QUICK = {"auto": {"n_inducing": 20}}


@pytest.mark.parametrize("name", ["auto", "mica", "probit-gp", "dpmil", "ppmm"])
def test_predictions_do_not_depend_on_the_number_of_threads(name):
    bags, y = load_digit_bags(return_X_y=True)
    seen, unseen = np.arange(105), np.arange(105, 150)
    said = []
    for n_threads in (1, 2):
        with threadpool_limits(n_threads):
            model = make_model(name, **QUICK.get(name, {}), random_state=0).fit(bags[seen], y[seen])
            said.append(model.predict_proba(bags[unseen])[:, 1])
    np.testing.assert_allclose(said[1], said[0], atol=1e-4)
