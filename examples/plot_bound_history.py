"""
Which updates converge: the evidence bound, iteration by iteration
==================================================================

The published update of VGPMIL changes all instance beliefs at once from the old ones. That is not
coordinate ascent, and it can oscillate. Three other ways to read a bag label do not.
"""

# %%
import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from bagwise import VGPMIL
from bagwise.datasets import load_musk1
from bagwise.models.variational import ExactOr, NoisyMax

bags, y = load_musk1(return_X_y=True)
shared = {"max_iter": 40, "tol": 0.0, "random_state": 0}
models = {
    "noisy-max, as published": VGPMIL(likelihood=NoisyMax(1e12, schedule="paper"), **shared),
    "noisy-max, damped": VGPMIL(likelihood=NoisyMax(1e12, schedule="damped"), **shared),
    "noisy-max, one at a time": VGPMIL(likelihood=NoisyMax(1e12, "exact", "sequential"), **shared),
    "or": VGPMIL(likelihood=ExactOr(1e12), **shared),
    "witness": VGPMIL(likelihood="witness", **shared),
    "inherited": VGPMIL(likelihood="inherited", **shared),
}

# %%
# Fit each for exactly forty iterations and keep the bound.
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
# The bounds of different likelihoods are not comparable with each other: each is a bound on its
# own model's evidence. What counts is whether a curve ever falls.
