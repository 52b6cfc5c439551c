"""
Which updates converge: the evidence bound, iteration by iteration
==================================================================

The published update of VGPMIL changes all instance beliefs at once from the old ones. That is not
coordinate ascent, and it can oscillate. Damped and sequential updates do not, and neither does the
default inference, which sums the hidden instance labels out and takes natural-gradient steps.
"""

# %%
import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from bagwise import VGPMIL
from bagwise.datasets import load_musk1
from bagwise.models.variational import NoisyMax, Or, SoftMax

bags, y = load_musk1(return_X_y=True)
shared = {"max_iter": 40, "tol": 0.0, "n_inducing": 40, "random_state": 0}
models = {
    f"noisy-max, {name}": VGPMIL(inference="paper", likelihood=likelihood, **shared)
    for name, likelihood in {
        "as published": NoisyMax(1e12, schedule="paper"),
        "damped": NoisyMax(1e12, schedule="damped"),
        "one at a time": NoisyMax(1e12, "exact", "sequential"),
    }.items()
}
models |= {
    "soft maximum": VGPMIL(likelihood=SoftMax(3.0, size=4), **shared),
    "or": VGPMIL(likelihood=Or(), **shared),
    "mean": VGPMIL(likelihood=SoftMax(0.0), **shared),
}

# %%
# Fit each for at most forty iterations and keep the bound.
warnings.simplefilter("ignore", ConvergenceWarning)
figure, axes = plt.subplots(2, 3, figsize=(9, 5), layout="constrained")
for ax, (name, model) in zip(axes.flat, models.items(), strict=True):
    model.fit(bags, y)
    ax.plot(np.arange(1, model.n_iter_ + 1), model.bound_history_)
    falls = int(np.sum(np.diff(model.bound_history_) < -1e-9))
    ax.set_title(f"{name}: falls {falls} times", fontsize=9)
    ax.set_xlabel("iteration")
axes[0, 0].set_ylabel("evidence bound")
axes[1, 0].set_ylabel("evidence bound")
plt.show()

# %%
# The bounds of the first row belong to a model of bag labels and hidden instance labels, those of
# the second row to bag labels alone. Only the latter can be compared with each other.
