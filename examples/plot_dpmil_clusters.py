"""
Clusters of each class with DPMIL
=================================

`DPMIL` fits one Dirichlet-process mixture to each class while it works out which instances of the
positive bags are positive. Its clusters can be looked at: how many a class needs, where they are,
and which instances belong to each.
"""

# %%
# Negative instances come in two kinds, and so do positive ones. A positive bag holds one or two
# positives among negatives; only its label is known.
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Ellipse

from bagwise import DPMIL, Bags
from bagwise.datasets import load_digit_bags
from bagwise.report.mixtures import plot_cluster_examples, plot_mixture_weights

rng = np.random.default_rng(0)
negative = np.array([[0.0, 0.0], [3.0, -1.0]])
positive = np.array([[6.0, 5.0], [-4.0, 5.0]])
y = np.arange(90) % 3 == 0
arrays, truth = [], []
for target in y:
    n = rng.integers(4, 9)
    x = negative[rng.integers(0, 2, size=n)] + rng.normal(scale=0.8, size=(n, 2))
    labels = np.zeros(n, dtype=bool)
    if target:
        labels[: rng.integers(1, 3)] = True
        kinds = rng.choice(2, p=[0.6, 0.4], size=labels.sum())
        x[labels] = positive[kinds] + rng.normal(scale=0.6, size=(labels.sum(), 2))
    arrays.append(x)
    truth.append(labels)
bags, y, truth = Bags.from_list(arrays), y.astype(int), np.concatenate(truth)

# %%
# Up to ten clusters per class are allowed. ``n_init`` starts from ten, three and one cluster and
# keeps the fit with the highest bound.
model = DPMIL(n_components=10, n_init=3, scale=None, n_dimensions=None, random_state=0).fit(bags, y)
print(f"bound {model.bound_:.1f} after {model.n_iter_} iterations")
print(f"training instances named correctly: {np.mean(model.instance_labels_ == truth):.3f}")

# %%
# The weights show how many clusters each class uses.
plot_mixture_weights(model)
plt.show()

# %%
# The clusters themselves: every instance in the colour of its inferred class, every cluster with
# more than 3 % of its class as an ellipse of two standard deviations.
figure, ax = plt.subplots(figsize=(6.4, 5), layout="constrained")
colours = ("tab:blue", "tab:red")
for c, colour in enumerate(colours):
    x = bags.instances[model.instance_labels_ == c]
    ax.plot(*x.T, "o", ms=3, alpha=0.5, color=colour, label=f"class {c}")
    for weight, mean, covariance in zip(
        model.weights_[c], model.means_[c], model.covariances_[c], strict=True
    ):
        if weight > 0.03:
            lengths, axes = np.linalg.eigh(covariance)
            angle = np.degrees(np.arctan2(axes[1, 1], axes[0, 1]))
            width, height = 4 * np.sqrt(lengths[::-1])
            ax.add_patch(Ellipse(mean, width, height, angle=angle, fill=False, ec=colour))
ax.set(xlabel="feature 0", ylabel="feature 1")
ax.legend(frameon=False)
plt.show()

# %%
# ``assign`` says which cluster of its class an instance is in, so examples of a cluster can be
# pulled out and looked at.
classes, clusters = model.predict_instances(bags), model.assign(bags)
for k in np.argsort(-model.weights_[1])[:2]:
    members = np.flatnonzero((classes == 1) & (clusters == k))
    where = np.round(model.means_[1, k], 1)
    print(f"positive cluster {k} at {where}: {len(members)} instances, such as {members[:5]}")

# %%
# With pictures a cluster can be looked at. Bags of digits are positive when they hold a nine. Each
# row shows the digits nearest to one cluster, every one from another bag: kinds of other digits
# above, kinds of nines below.
digits = load_digit_bags(random_state=0)
model = DPMIL(n_components=10, random_state=0).fit(digits.bags, digits.y)
plot_cluster_examples(model, digits.bags, digits.images, n_clusters=4)
plt.show()
