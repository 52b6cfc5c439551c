"""
Follow a target through a video
===============================

`MIOTracker` learns what a target looks like from one box, keeps learning as it moves, and says
when the target is gone. Here a textured patch moves over a textured ground, dims, and is covered
for a while.
"""

# %%
# A clip with known truth
# -----------------------
import cv2
import matplotlib.pyplot as plt
import numpy as np

from bagwise.evaluate import centre_error
from bagwise.vision import MIOTracker, track

rng = np.random.default_rng(0)
height, width, side, n = 120, 160, 28, 60
ground = cv2.GaussianBlur(rng.integers(0, 255, (height, width), dtype=np.uint8), (0, 0), 2.5)
target = cv2.GaussianBlur(rng.integers(0, 255, (side, side), dtype=np.uint8), (0, 0), 2)
target = cv2.normalize(target, None, 0, 255, cv2.NORM_MINMAX)

frames, truth = [], []
for t in range(n):
    x, y = int(60 + 45 * np.sin(t / 30)), int(45 + 20 * np.cos(t / 30))
    frame = ground.astype(float)
    if not 38 <= t < 43:  # covered for five frames
        frame[y : y + side, x : x + side] = target
    light = 0.5 + 0.5 * abs(np.cos(t / 15))
    frames.append(np.clip(frame * light + rng.normal(0, 4, frame.shape), 0, 255).astype(np.uint8))
    truth.append([x, y, side, side])
truth = np.array(truth, dtype=float)

# %%
# Track it
# --------
result = track(frames, truth[0], MIOTracker(random_state=0))
seen = np.r_[0:38]
print(f"centre error before the cover: {centre_error(result.boxes[seen], truth[seen]):.2f} pixels")
print("frames in which the target counts as lost:", np.flatnonzero(~result.found).tolist())

# %%
# The probability falls while the target is covered
# -------------------------------------------------
figure, axes = plt.subplots(1, 4, figsize=(10, 2.6), layout="constrained")
for axis, t in zip(axes[:3], (5, 30, 41), strict=True):
    axis.imshow(frames[t], cmap="gray", vmin=0, vmax=255)
    colour = "lime" if result.found[t] else "red"
    x, y, w, h = result.boxes[t]
    axis.add_patch(plt.Rectangle((x, y), w, h, fill=False, color=colour, lw=2))
    axis.set(title=f"frame {t}", xticks=[], yticks=[])
axes[3].plot(result.scores)
axes[3].axhline(0.5, color="grey", lw=0.8)
axes[3].axvspan(38, 43, color="red", alpha=0.15)
axes[3].set(xlabel="frame", ylabel="probability that the box shows it")
plt.show()
