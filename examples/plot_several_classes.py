"""
Several classes: which class a bag has, and which instances show it
===================================================================

Bags of digits with three positive classes: a bag holds a few twos, or fives, or
eights, or none of them.
`VGPMIL` sees one label per bag and gives every digit a probability of each class.
"""

# %%
# The bags
# --------
# 160 bags of 4 to 10 digits, no image used twice. Bags labelled "none" hold other digits only:
# they are the background.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import confusion_matrix, roc_auc_score

from bagwise import VGPMIL, Bags

rng, digits = np.random.RandomState(0), load_digits()
names = {"two": 2, "five": 5, "eight": 8}
pools = {k: list(rng.permutation(np.flatnonzero(digits.target == k))) for k in names.values()}
others = list(rng.permutation(np.flatnonzero(~np.isin(digits.target, list(names.values())))))
arrays, truth = [], []
y = np.array([*names, "none"] * 40)
for label in y:
    own = [pools[names[label]].pop() for _ in range(rng.randint(1, 4))] if label in names else []
    filler = [others.pop() for _ in range(rng.randint(4, 8))]
    arrays.append(digits.data[own + filler] / 16)
    truth += [label] * len(own) + ["none"] * len(filler)
bags = Bags.from_list(arrays).with_columns(instance_labels=np.array(truth))
train, test = np.arange(160) < 112, np.arange(160) >= 112
print(bags)

# %%
# One fit for all classes
# -----------------------
# The classes share scaling, inducing points and kernel; each has a posterior of its own, with the
# bags of the other classes as negatives. The background has none: it is what remains.
model = VGPMIL(random_state=0).fit(bags[train], y[train], background="none")
held_out, labels = bags[test], np.asarray(bags[test].instance_labels)
p = model.predict_proba(held_out)
print("classes:", model.classes_.tolist())
print("bag accuracy, held out:", round(model.score(held_out, y[test]), 3))
print(
    "sums of the class probabilities:", p.sum(axis=1).min().round(6), p.sum(axis=1).max().round(6)
)
print(confusion_matrix(y[test], model.predict(held_out), labels=model.classes_))
q = model.predict_proba_instances(held_out)
for c, name in enumerate(model.classes_):
    print(f"instance AUC, {name}: {roc_auc_score(labels == name, q[:, c]):.3f}")

# %%
# Look inside held-out bags
# -------------------------
# One bag of each class, its digits in order of how probable it is that they are of some finding.
# The bars are the probabilities of the classes; the frame has the colour of the predicted class.
colours = {"eight": "#b83a0e", "five": "#0f6b62", "two": "#2456a6", "none": "#b9b4a8"}
shown = [int(np.flatnonzero(y[test] == name)[1]) for name in ["two", "five", "eight", "none"]]
fig, grid = plt.subplots(8, 8, figsize=(9.6, 8.4), height_ratios=[3, 1] * 4, layout="constrained")
for ax in grid.ravel():
    ax.set_axis_off()
for row, i in enumerate(shown):
    rows = np.arange(held_out.offsets[i], held_out.offsets[i + 1])
    rows = rows[np.argsort(q[rows, list(model.classes_).index("none")])][:8]
    for column, n in enumerate(rows):
        image, bar = grid[2 * row, column], grid[2 * row + 1, column]
        called = model.classes_[q[n].argmax()]
        image.imshow(held_out.instances[n].reshape(8, 8), cmap="gray_r")
        image.set_axis_on()
        image.set(xticks=[], yticks=[])
        for spine in image.spines.values():
            spine.set(color=colours[called], linewidth=3)
        left = 0.0
        for c, name in enumerate(model.classes_):
            bar.barh(0, q[n, c], left=left, color=colours[name], height=0.5)
            left += q[n, c]
        bar.set(xlim=(0, 1), ylim=(-0.6, 0.6))
    best = p[i].argmax()
    title = f"bag of class {y[test][i]}: {model.classes_[best]} with probability {p[i, best]:.2f}"
    grid[2 * row, 0].set_title(title, loc="left", fontsize=10).set_in_layout(False)
handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in colours.values()]
fig.legend(handles, list(colours), loc="outside lower center", ncols=4, frameon=False)

# %%
# Several labels at once
# ----------------------
# With an indicator matrix a bag may have any number of classes, and their probabilities are free.
Y = np.column_stack([y == name for name in names]).astype(int)
free = VGPMIL(random_state=0).fit(bags[train], Y[train])
print("share of right entries, held out:", round(np.mean(free.predict(held_out) == Y[test]), 3))
