"""
Find the nines: instance probabilities from bag labels
======================================================

A bag of digits is positive when it holds a nine. `VGPMIL` sees only the labels of the bags,
and says for every digit how probable it is to be a nine, and how sure it is of that.
"""

# %%
# The bags
# --------
# 150 bags of 5 to 12 digits; half of them hold one to three nines. Which digits are the nines
# is known, but not told to the model.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import average_precision_score
from sklearn.model_selection import train_test_split

from bagwise import VGPMIL
from bagwise.datasets import load_digit_bags

data = load_digit_bags()
train, test = train_test_split(
    np.arange(len(data.bags)), test_size=0.3, stratify=data.y, random_state=0
)
print(data.bags)

# %%
# Learn from the bag labels
# -------------------------
model = VGPMIL(n_inducing=200, random_state=0).fit(data.bags[train], data.y[train])
held_out = data.bags[test]
print("bag accuracy, held out:", round(model.score(held_out, data.y[test]), 3))
p, std = model.predict_proba_instances(held_out, return_std=True)
ap = average_precision_score(held_out.instance_labels, p[:, 1])
print("instance average precision, held out:", round(ap, 3))

# %%
# Look inside held-out bags
# -------------------------
# True nines are framed; under each digit its probability of being a nine ± one standard
# deviation under the posterior.
shown = np.flatnonzero(data.y[test] == 1)[:4]
width = int(held_out.sizes[shown].max())
figure, axes = plt.subplots(len(shown), width, figsize=(1.1 * width, 6.4), layout="constrained")
bag_p = model.predict_proba(held_out)[:, 1]
for row, bag in zip(axes, shown, strict=True):
    first = held_out.offsets[bag]
    for ax in row:
        ax.set_axis_off()
    for i, ax in zip(range(held_out.sizes[bag]), row, strict=False):
        n = first + i
        ax.set_axis_on()
        ax.imshow(held_out.instances[n].reshape(8, 8), cmap="gray_r")
        ax.set(xticks=[], yticks=[])
        ax.set_xlabel(f"{p[n, 1]:.2f} ± {std[n]:.2f}", fontsize=8)
        is_nine = held_out.instance_labels[n] == 1
        for side in ax.spines.values():
            side.set(color="crimson" if is_nine else "0.8", linewidth=3 if is_nine else 1)
    row[0].set_ylabel(f"bag {bag_p[bag]:.2f}", fontsize=9)
plt.show()
