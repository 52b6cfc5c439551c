"""
Find objects from image labels alone
====================================

Half of these canvases contain the digit 4, and that is all the detector is told. It learns which
boxes make the difference, and finds the digit in new canvases.
"""

# %%
# Canvases with known truth
# -------------------------
import matplotlib.pyplot as plt
import numpy as np

from bagwise.evaluate import corloc
from bagwise.vision import Proposals, WeakDetector, make_digit_canvases

train = make_digit_canvases(100, digit=4, random_state=0)
test = make_digit_canvases(30, digit=4, random_state=1)

# %%
# Train on image labels
# ---------------------
# ``describe`` proposes and describes boxes once; fitting is quick after that.
detector = WeakDetector(
    proposals=Proposals(method="blobs", n_boxes=60, min_side=0.08), random_state=0
)
detector.fit(detector.describe(train.images), train.labels, class_names=train.class_names)
found = detector.predict(test.images)

positive = np.flatnonzero(test.labels[:, 0])
best = [found[i].boxes[0] for i in positive]
print(f"CorLoc: {corloc(best, [test.boxes[i] for i in positive]):.2f}")

# %%
# What it found
# -------------
# Green: the best box, with its probability and standard deviation. Dashed: the truth.
figure, axes = plt.subplots(2, 4, figsize=(10, 5.4), layout="constrained")
for axis, i in zip(axes.flat, range(8), strict=True):
    axis.imshow(test.images[i])
    x, y, w, h = found[i].boxes[0]
    p, std = found[i].probabilities[0], found[i].std[0]
    colour = "lime" if p > 0.5 else "grey"
    axis.add_patch(plt.Rectangle((x, y), w, h, fill=False, color=colour, lw=2))
    for a, b, c, d in test.boxes[i]:
        axis.add_patch(plt.Rectangle((a, b), c, d, fill=False, color="white", ls="--"))
    axis.set(title=f"{p:.2f} ± {std:.2f}", xticks=[], yticks=[])
plt.show()
