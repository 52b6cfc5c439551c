"""
Reliability of bag and instance probabilities
=============================================

Of the bags that a model gives a probability of 0.8, eight in ten should be positive. The
reliability curve shows whether they are, and the expected calibration error (ECE) says it in one
number. Both are taken on held-out bags, for bags and for instances.
"""

# %%
# Bags of digits, positive when they hold a nine. Three models: a Gaussian process, the same with
# its probabilities calibrated on held-out bags, and a classifier on instances that
# inherit their bag's label.
import matplotlib.pyplot as plt
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from bagwise import VGPMIL, SingleInstance
from bagwise.datasets import load_digit_bags
from bagwise.evaluate import bag_metrics, instance_metrics, reliability_curve

data = load_digit_bags(random_state=0)
train, test, y_train, y_test = train_test_split(
    data.bags, data.y, test_size=0.5, stratify=data.y, random_state=0
)
models = {
    "VGPMIL": VGPMIL(n_inducing=60, scale="global", calibrate=False, random_state=0),
    "VGPMIL, calibrated": VGPMIL(n_inducing=60, scale="global", calibrate=True, random_state=0),
    "single instance": SingleInstance(LogisticRegression(max_iter=2000)),
}

# %%
# The diagonal is perfect calibration. A curve below it promises too much, one above it too
# little. Inherited labels make every instance of a positive bag look positive, and the largest
# of many such probabilities makes nearly every bag look positive.
figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
for name, model in models.items():
    model.fit(train, y_train)
    bags = model.predict_proba(test)[:, 1]
    instances = model.predict_proba_instances(test)[:, 1]
    curve = reliability_curve(y_test, bags, n_bins=5)
    error = bag_metrics(model, test, y_test, ["ece"])["ece"]
    axes[0].plot(curve.predicted, curve.observed, "o-", label=f"{name}, ECE {error:.2f}")
    curve = reliability_curve(test.instance_labels, instances, n_bins=5)
    error = instance_metrics(model, test, metrics=["ece"])["ece"]
    axes[1].plot(curve.predicted, curve.observed, "o-", label=f"{name}, ECE {error:.2f}")
for axis, title in zip(axes, ["bags", "instances"], strict=True):
    axis.plot([0, 1], [0, 1], "k:", linewidth=1)
    axis.set(title=title, xlabel="predicted probability", xlim=(0, 1), ylim=(0, 1))
    axis.legend(loc="upper left", fontsize="small")
axes[0].set_ylabel("share of positives")
plt.show()
