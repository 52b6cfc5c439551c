"""
A simulated labelling run
=========================

``bagwise label`` asks about the instances that teach the model most. Here the questions are
answered by the known truth: bags of handwritten digits, positive when they hold a 1. The pool has
labels of bags only; the instance AUC is measured on bags that were held out. One run is an
illustration: ``experiments/labelling.py`` averages over seeds and data sets.
"""

# %%
# A model that has seen labels of bags only.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import roc_auc_score

from bagwise import VGPMIL
from bagwise.datasets import load_digit_bags
from bagwise.label import Learner, suggest_for

data = load_digit_bags(positive=(1,), random_state=0)
pool, held_out = data.bags[:100], data.bags[100:]
y, truth = data.y[:100], pool.instance_labels
model = VGPMIL(random_state=0).fit(pool, y)


# %%
# Forty questions, five at a time, by the default strategy and at random. Every answer is taken in
# at once; after ten the model is fitted to all bags, without reading the data again.
def run(strategy, n_answers=40):
    learner = Learner(model, pool, y)
    rng = np.random.RandomState(0)
    curve, asked = [], []
    for done in range(0, n_answers + 1, 5):
        score = learner.fitted_model().decision_function_instances(held_out)
        curve.append(roc_auc_score(held_out.instance_labels, score))
        if done == n_answers:
            break
        for row in suggest_for(learner, 5, strategy, closed=asked, random_state=rng):
            learner.answer([row], [truth[row]])
            asked.append(int(row))
        if done % 10 == 5:
            learner.learn()
    return learner, curve, asked


learner, informed, asked = run("information")
_, at_random, _ = run("random")

# %%
# The first questions: what they show, and what the truth answered.
figure, axes = plt.subplots(2, 6, figsize=(8, 3.2), layout="constrained")
for ax, row in zip(axes.flat, asked, strict=False):
    ax.imshow(pool.instances[row].reshape(8, 8), cmap="gray_r")
    ax.set_title("yes" if truth[row] else "no", fontsize=9)
    ax.set_axis_off()

# %%
# How well single digits of held-out bags are ranked.
figure, ax = plt.subplots(figsize=(5, 3.3), layout="constrained")
answers = np.arange(0, 41, 5)
ax.plot(answers, informed, marker="o", label="suggested")
ax.plot(answers, at_random, marker="o", label="random")
ax.set(xlabel="answers", ylabel="instance AUC, held out")
ax.legend()
plt.show()
