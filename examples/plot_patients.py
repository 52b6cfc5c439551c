"""
A patient, the slides, the patches
==================================

The label belongs to the patient, who has several slides; most slides of a positive patient are
negative. A patient is one bag of all patches, slides are groups of the bag, and one model answers
at all three levels.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import roc_auc_score

from bagwise import VGPMIL, predict_levels
from bagwise.datasets import make_patient_bags

train = make_patient_bags(n_patients=50, random_state=0)
test = make_patient_bags(n_patients=30, random_state=1)
model = VGPMIL(n_inducing=50, random_state=0).fit(train.bags, train.y)
levels = predict_levels(model, test.bags)
for name, truth, level in (
    ("patients", test.y, levels.bags),
    ("slides", test.slide_labels, levels.groups),
    ("patches", test.instance_labels, levels.instances),
):
    print(f"{name}: AUC {roc_auc_score(truth, level.probability):.2f}")

# %%
# Three patients, from the left: the patient, its slides, and the patches of each slide. A patient
# is at least as probable as each of its slides, and a slide as each of its patches.
positive = np.flatnonzero(test.y)[:2]
chosen = [*positive.tolist(), int(np.flatnonzero(test.y == 0)[0])]
figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), sharey=True, layout="constrained")
slides = levels.group_bags
for ax, patient in zip(axes, chosen, strict=True):
    whole, std = levels.bags.probability[patient], levels.bags.std[patient]
    ax.errorbar(0, whole, yerr=std, fmt="s", color="black", label="patient")
    for k, slide in enumerate(np.flatnonzero(levels.owner == patient), start=1):
        color = "tab:red" if test.slide_labels[slide] else "tab:blue"
        rows = slice(slides.offsets[slide], slides.offsets[slide + 1])
        patches = levels.instances.probability[rows]
        ax.plot(np.full(len(patches), k + 0.2), patches, ".", color=color, alpha=0.5)
        p, std = levels.groups.probability[slide], levels.groups.std[slide]
        ax.errorbar(k, p, yerr=std, fmt="o", color=color)
    ax.set(title=test.bags.ids[patient], xlabel="patient, then slides", ylim=(-0.05, 1.05))
axes[0].set_ylabel("probability ± std (red: slide with positives)")
plt.show()
