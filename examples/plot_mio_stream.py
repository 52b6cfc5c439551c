"""
Learning from a stream
======================

`MIO` learns from one bag at a time: it predicts, is told the label, and takes one exact step.
Here a generator makes bags without end, as a sensor or a queue would, and the learner never
sees a bag twice. The label of a bag needs instances of two concepts, so no single instance
tells it.
"""

# %%
# A source of bags
# ----------------
# Each item is one bag and its label. Nothing else is known beforehand: not how many bags will
# come, not which instances they hold.

import itertools

import matplotlib.pyplot as plt
import numpy as np

from bagwise import MIO
from bagwise.datasets import make_two_concept_bags


def source(seed):
    """Yield (bag, label) for ever."""
    for batch in itertools.count():
        bags, y = make_two_concept_bags(100, random_state=seed + batch, return_X_y=True)
        for i, label in enumerate(y):
            yield bags[i : i + 1], label


# %%
# Predict, then learn
# -------------------
# A stream needs the width of the similarity as a number, and the classes in the first call.
# ``max_instances`` bounds memory: instances whose weight has been zero for longest are dropped.

T = 2000
model = MIO(
    sigma=3.0,
    alpha=0.1,
    beta=10.0,
    bias=10.0,
    horizon=T,
    max_instances=2000,
    scale=None,
    calibrate=False,
)
right, loss, kept = [], [], []
for bag, label in itertools.islice(source(seed=0), T):
    if right:
        right.append(model.predict(bag)[0] == label)
    else:
        right.append(False)  # nothing is known before the first label
    model.partial_fit(bag, [label], classes=[0, 1])
    loss.append(model.cumulative_loss_)
    kept.append(model.n_kept_)

print(f"{model.n_bags_seen_} bags, {model.n_kept_} instances kept, {model.n_dropped_} dropped")
print(f"accuracy on the last 500 bags, before learning from them: {np.mean(right[-500:]):.3f}")

# %%
# Regret
# ------
# The data can be separated, so the best weights in hindsight lose nothing and the cumulative
# loss *is* the regret. It grows more slowly than the number of bags: on average it vanishes.

t = np.arange(1, T + 1)
figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
axes[0].plot(t, loss)
axes[0].set(xlabel="bags", title="regret")
axes[1].loglog(t[20:], np.asarray(loss)[20:] / t[20:])
axes[1].set(xlabel="bags", title="average regret")
axes[2].plot(t, np.convolve(right, np.ones(200) / 200)[:T])
axes[2].set(xlabel="bags", title="accuracy over the last 200", ylim=(0.4, 1.02))

# %%
# What was learnt
# ---------------
# The weights are sparse. Each selected instance is a point of the plane with a weight: for the
# positive class (red) or against it (blue).

anchors = model.state_.anchors[: model.n_kept_]
weights = model.coef_.toarray()[0]
used = weights != 0
figure, ax = plt.subplots(figsize=(5, 4.4), layout="constrained")
ax.scatter(*anchors[~used].T, s=4, c="0.85", label="kept, weight 0")
limit = np.abs(weights).max()
points = ax.scatter(
    *anchors[used].T, s=14, c=weights[used], cmap="coolwarm", vmin=-limit, vmax=limit
)
figure.colorbar(points, label="weight")
ax.legend(loc="lower right")
ax.set(title=f"{used.sum()} of {len(weights)} kept instances have a weight")
