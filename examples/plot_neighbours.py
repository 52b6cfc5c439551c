"""
A map before and after its patches listen to their neighbours
=============================================================

A patch next to four probable patches is more probable than it looks by itself. `Coupled` wraps any
model, leaves training as it is, and couples neighbouring instances when it predicts. How strongly,
it learns from held-out bags.
"""

# %%
# Bags of 12 x 12 patches with known truth: the positive patches of a bag lie together.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import average_precision_score

from bagwise import VGPMIL, Coupled
from bagwise.datasets import make_neighbour_bags
from bagwise.report.plots import probability_colours

train = make_neighbour_bags(n_bags=40, separation=2.5, random_state=0)
test = make_neighbour_bags(n_bags=20, separation=2.5, random_state=1)
model = Coupled(VGPMIL(n_inducing=40, random_state=0)).fit(train.bags, train.y)
print(f"strength {model.strength_:.2f}")

# %%
# The coupled model and the one inside it, on a bag that neither has seen.
before = model.estimator_.predict_proba_instances(test.bags)[:, 1]
after = model.predict_proba_instances(test.bags)[:, 1]
for name, p in (("alone", before), ("coupled", after)):
    print(f"{name}: average precision {average_precision_score(test.instance_labels, p):.2f}")

# %%
bag = int(np.flatnonzero(test.y)[2])
rows = slice(bag * 144, (bag + 1) * 144)
figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
colours = probability_colours()  # those of the report
columns = {"truth": test.instance_labels, "each patch alone": before, "with neighbours": after}
for ax, (name, values) in zip(axes, columns.items(), strict=True):
    shown = ax.imshow(values[rows].reshape(12, 12), vmin=0, vmax=0.5, cmap=colours)
    ax.set(title=name, xticks=[], yticks=[])
figure.colorbar(shown, ax=axes, label="probability", shrink=0.8)
plt.show()

# %%
# What each strength gained on held-out training bags. The strength is raised as long as the gain
# rises, and taken only if the gain is significant. Where positives are scattered, little is gained.
scattered = make_neighbour_bags(n_bags=40, smooth=False, separation=2.5, random_state=0)
other = Coupled(VGPMIL(n_inducing=40, random_state=0))
other.fit(scattered.bags, scattered.y)
print(f"strength where positives are scattered: {other.strength_:.2f}")
figure, ax = plt.subplots(figsize=(5, 3.2), layout="constrained")
for name, fitted in (("positives together", model), ("positives scattered", other)):
    search = fitted.strength_search_
    ax.plot([0, *search.strengths], [0, *search.gains], marker="o", label=name)
ax.axhline(0, color="0.7", linewidth=1)
ax.set(xlabel="strength J", ylabel="gain per bag, nats")
ax.legend()
plt.show()
