"""
Learning a kernel, and letting AutoVGPMIL choose
================================================

Two features matter and four do not. With one length scale per feature the evidence finds out which.
With a single one there is nothing to find out, and held-out bags keep the kernel where it was.
"""

# %%
# Bags of six-dimensional points. A positive bag holds one point from a ring in the first two
# features; the other four are noise.
import matplotlib.pyplot as plt
import numpy as np

from bagwise import VGPMIL, AutoVGPMIL, Bags
from bagwise.core.kernels import ARD, RBF
from bagwise.report.plots import probability_colours


def make_rings(n_bags, seed):
    rng = np.random.default_rng(seed)
    y = np.arange(n_bags) % 2
    arrays = []
    for label in y:
        x = rng.normal(size=(6, 6))
        if label:
            angle = rng.uniform(0, 2 * np.pi)
            x[0, :2] = 3 * np.array([np.cos(angle), np.sin(angle)]) + 0.2 * rng.normal(size=2)
        arrays.append(x)
    return Bags.from_list(arrays), y


train, y_train = make_rings(80, seed=0)
test, y_test = make_rings(80, seed=1)

# %%
# The same model three times: one length scale that is fixed, one learnt, and six learnt.
options = {"n_inducing": 60, "scale": None, "random_state": 0}
models = {
    "RBF, fixed": VGPMIL(kernel=RBF(2.5, 4.0), learn_kernel=False, **options),
    "RBF, learnt": VGPMIL(kernel=RBF(2.5, 4.0), **options),
    "ARD, learnt": VGPMIL(kernel=ARD([2.5] * 6, 4.0), **options),
    "AutoVGPMIL": AutoVGPMIL(n_inducing=60, random_state=0),
}
accuracy = {name: model.fit(train, y_train).score(test, y_test) for name, model in models.items()}
for name, value in accuracy.items():
    print(f"{name:12s} held-out accuracy {value:.2f}")

# %%
# Half of the bags are positive, so 0.50 is chance. A single length scale has nothing to gain: four
# of six features are noise, and the learnt kernel is kept only where it does not predict held-out
# bags worse than the one it started from. One length scale per feature can be long where a
# feature is noise and short where it is not, and is much better. AutoVGPMIL compares scalings and
# likelihoods, all with one length scale. So: give the evidence the freedom that the data need, and
# look at held-out bags.
for name in ("RBF, learnt", "ARD, learnt"):
    scales = np.atleast_1d(models[name].kernel_.length_scale)
    print(f"{name}: length scale", ", ".join(f"{scale:.1f}" for scale in scales))

# %%
# The learnt length scales of the six features: long means irrelevant.
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
left.bar(range(6), scales, color=["tab:blue"] * 2 + ["0.7"] * 4)
left.set(xlabel="feature", ylabel="learnt length scale", yscale="log")
right.barh(list(accuracy), list(accuracy.values()), color="tab:blue")
right.set(xlabel="held-out accuracy", xlim=(0.4, 1))

# %%
# The score surface over the two features that matter, the others at 0.
axis = np.linspace(-4.5, 4.5, 60)
colours = probability_colours()
points = np.zeros((3600, 6))
points[:, 0], points[:, 1] = (a.ravel() for a in np.meshgrid(axis, axis))
figure, panels = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained", sharey=True)
for panel, name in zip(panels, ("RBF, fixed", "ARD, learnt"), strict=True):
    p = models[name].predict_proba_instances(Bags(points, np.arange(3601)))[:, 1]
    panel.contourf(axis, axis, p.reshape(60, 60), levels=20, cmap=colours, vmin=0, vmax=1)
    panel.set(title=name, xlabel="feature 0", aspect="equal")
panels[0].set_ylabel("feature 1")
plt.show()
