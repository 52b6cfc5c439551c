"""
A few labelled instances among many labelled bags
=================================================

Instance labels are expensive, bag labels cheap. Every model takes both: ``instance_labels`` holds
a label where one is known and -1 where none is.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import average_precision_score
from sklearn.model_selection import train_test_split

from bagwise import VGPMIL
from bagwise.datasets import load_digit_bags

data = load_digit_bags()
a, b = train_test_split(np.arange(len(data.bags)), test_size=0.4, stratify=data.y, random_state=1)
train, test = data.bags[a], data.bags[b]

# %%
# A growing share of the training bags tells all its instance labels.
shares = [0.0, 0.1, 0.2, 0.5, 1.0]
order = np.random.default_rng(0).permutation(len(train))
curves = {}
for inference in ("marginal", "paper"):
    curves[inference] = []
    for share in shares:
        told = np.repeat(order < share * len(train), train.sizes)
        known = np.where(told, train.instance_labels, -1)
        model = VGPMIL(inference=inference, n_inducing=40, random_state=0)
        model.fit(train, data.y[a], instance_labels=known)
        score = model.decision_function_instances(test)
        curves[inference].append(average_precision_score(test.instance_labels, score))

# %%
figure, ax = plt.subplots(figsize=(5, 3.5), layout="constrained")
for inference, values in curves.items():
    ax.plot(100 * np.array(shares), values, marker="o", label=inference)
ax.set(xlabel="fully labelled bags, %", ylabel="instance average precision, held out")
ax.legend(title="inference")
plt.show()
