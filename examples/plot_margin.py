"""
A large margin: leaving doubtful instances out
==============================================

`LMVGPMIL` gives every instance a gate that opens beyond a margin. Doubtful instances stay at one
half and do not pull the decision surface.
"""

# %%
import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from bagwise import LMVGPMIL, VGPMIL
from bagwise.datasets import load_digit_bags

data = load_digit_bags()
positive = np.repeat(data.y == 1, data.bags.sizes)
models = {
    "VGPMIL": VGPMIL(inference="paper", random_state=0),
    "LM-VGPMIL, V = 1": LMVGPMIL(V=1.0, random_state=0),
    "LM-VGPMIL, V = 2": LMVGPMIL(V=2.0, random_state=0),
}

# %%
# What each believes of the training instances in positive bags. The margin makes the model cyclic;
# where it circles, the last iteration is taken.
warnings.simplefilter("ignore", ConvergenceWarning)
figure, axes = plt.subplots(1, 3, figsize=(9, 3), sharey=True, layout="constrained")
for ax, (name, model) in zip(axes, models.items(), strict=True):
    model.fit(data.bags, data.y)
    ax.hist(model.instance_proba_[positive], bins=20, range=(0, 1))
    ax.set(title=name, xlabel="q(y = 1)")
axes[0].set_ylabel("instances of positive bags")
plt.show()
