"""
What MI-CRF sees: the energies of its bags
==========================================

`MICRF` lets every bag select one of its instances, or none. The picture below shows what
determines that choice: how each instance is scored, and how unlike it is to the instances of
other bags.
"""

# %%
# Musk1: a molecule is a bag of its conformations, and positive when one of them smells of musk.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import train_test_split

from bagwise import MICRF
from bagwise.datasets import load_musk1
from bagwise.report.energies import plot_energies

data = load_musk1()
train, test, y_train, y_test = train_test_split(
    data.bags, data.y, stratify=data.y, test_size=0.25, random_state=0
)
model = MICRF().fit(train, y_train)
print(f"accuracy on held-out molecules: {model.score(test, y_test):.2f}")
print({name: round(weight, 3) for name, weight in model.weights_.items() if weight > 0})

# %%
# Five positive and five negative training molecules, small ones so that the states can be told
# apart. Blue is low energy. In the strips, the instances of the first five bags lie below their
# non-instance, the last state of each bag; in the last five it is the other way round. The frames
# mark the selected states: an instance in the positive molecules, none in the negative ones.
small = np.flatnonzero(train.sizes <= 6)
chosen = np.concatenate([small[y_train[small] == label][:5] for label in (1, 0)])
plot_energies(model, train[chosen])
plt.show()

# %%
# The same terms decide about a new bag: its instances compete with its non-instance, given what
# the training bags selected. An instance with a positive score would make the bag positive.
scores = test.split(model.decision_function_instances(test))
order = np.argsort(model.decision_function(test))
figure, ax = plt.subplots(figsize=(8, 3.5), layout="constrained")
for place, b in enumerate(order):
    colour = "tab:red" if y_test[b] == 1 else "tab:blue"
    ax.plot(np.full(len(scores[b]), place), scores[b], "o", color=colour, markersize=4, alpha=0.6)
ax.axhline(0, color="black", linewidth=1)
ax.set(xlabel="held-out molecule (red: musk)", ylabel="score of its conformations", xticks=[])
plt.show()
