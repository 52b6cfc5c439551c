"""
Find objects from image labels alone
====================================

Half of these canvases contain the digit 4, and that is all the detector is told. It learns which
boxes make the difference, and finds the digit in new canvases.
"""

# %%
# Canvases with known truth
# -------------------------
# Every canvas holds three digits in random colours on a grey ground; where one is a 4, its box is
# kept for the comparison below.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from bagwise.evaluate import corloc
from bagwise.vision import Proposals, WeakDetector

source = load_digits()


def canvas(positive, rng):
    """One canvas [96, 96, 3] and the boxes of its fours."""
    image = rng.integers(40, 70, (96, 96, 3))
    others = rng.choice(np.flatnonzero(source.target != 4), 3)
    fours = rng.choice(np.flatnonzero(source.target == 4), 3)
    boxes = []
    for k, place in enumerate(rng.choice(4, 3, replace=False)):
        is_four = positive and k == 0
        ink = source.images[fours[k] if is_four else others[k]].repeat(4, 0).repeat(4, 1)
        y, x = np.array(divmod(place, 2)) * 48 + rng.integers(0, 16, 2)
        colour = rng.integers(180, 256, 3)
        patch = image[y : y + 32, x : x + 32]
        patch[:] = np.where(ink[..., None] > 6, colour, patch)
        if is_four:
            rows, columns = (np.flatnonzero((ink > 6).any(axis=axis)) for axis in (1, 0))
            boxes.append([x + columns[0], y + rows[0], np.ptp(columns) + 1, np.ptp(rows) + 1])
    return image.astype(np.uint8), np.reshape(boxes, (-1, 4))


def canvases(n, seed):
    """Canvases, their labels and their true boxes."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    images, boxes = zip(*(canvas(y, rng) for y in labels), strict=True)
    return images, labels, boxes


train, labels, _ = canvases(100, seed=0)
test, test_labels, truth = canvases(30, seed=1)

# %%
# Train on image labels
# ---------------------
# ``describe`` proposes and describes boxes once; fitting is quick after that.
detector = WeakDetector(
    proposals=Proposals(method="blobs", n_boxes=60, min_side=0.08), random_state=0
)
detector.fit(detector.describe(train), ["4" if y else None for y in labels])
found = detector.predict(test)

positive = np.flatnonzero(test_labels)
best = [found[i].boxes[0] for i in positive]
print(f"CorLoc: {corloc(best, [truth[i] for i in positive]):.2f}")

# %%
# What it found
# -------------
# Green: the best box, with its probability and standard deviation. Dashed: the truth.
figure, axes = plt.subplots(2, 4, figsize=(10, 5.4), layout="constrained")
for axis, i in zip(axes.flat, range(8), strict=True):
    axis.imshow(test[i])
    x, y, w, h = found[i].boxes[0]
    p, std = found[i].probabilities[0], found[i].std[0]
    colour = "lime" if p > 0.5 else "grey"
    axis.add_patch(plt.Rectangle((x, y), w, h, fill=False, color=colour, lw=2))
    for a, b, c, d in truth[i]:
        axis.add_patch(plt.Rectangle((a, b), c, d, fill=False, color="white", ls="--"))
    axis.set(title=f"{p:.2f} ± {std:.2f}", xticks=[], yticks=[])
plt.show()
