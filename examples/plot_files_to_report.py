"""
From files to a report
======================

Bags usually live on disk, one file per bag, with the labels in a table beside them. This example
writes such a folder, reads it back, trains a Gaussian process on bag labels alone, and looks at
what it says about single instances. ``bagwise fit`` and ``bagwise predict`` do the same from the
command line.
"""

# %%
# A folder of bags
# ----------------
# Slides of 300 patches each; positive ones hold a small cluster of unusual patches. Every slide
# is an HDF5 file with ``features`` and ``coords``, as patch encoders write them.

import tempfile
from pathlib import Path

import h5py
import matplotlib.pyplot as plt
import numpy as np

import bagwise
from bagwise import VGPMIL
from bagwise.files import read_training
from bagwise.report import (
    BoundDisplay,
    InstanceMapDisplay,
    ReliabilityDisplay,
    Report,
    predict_tables,
    write_report,
)

folder = Path(tempfile.mkdtemp())
(folder / "features").mkdir()
rng = np.random.default_rng(0)
lines = ["slide_id,label"]
where_positive = {}
grid = np.stack(np.meshgrid(np.arange(20), np.arange(15)), axis=-1).reshape(-1, 2)
for i in range(60):
    x = rng.normal(size=(len(grid), 16)).astype(np.float32)
    centre = rng.uniform(4, 11, size=2)
    cluster = (np.hypot(*(grid - centre).T) < 2.5) & (i % 2 == 1)
    x[cluster, :4] += 2.5
    with h5py.File(folder / "features" / f"slide_{i:02d}.h5", "w") as file:
        file["features"] = x
        file["coords"] = grid * 256
    where_positive[f"slide_{i:02d}"] = cluster
    lines.append(f"slide_{i:02d},{i % 2}")
(folder / "labels.csv").write_text("\n".join(lines) + "\n")

# %%
# Reading it
# ----------
# Every file is checked before anything is trained; whatever is wrong is said at once.

data = read_training(folder / "features", folder / "labels.csv")
print(data.bags)

# %%
# Training on two thirds
# ----------------------

train, test = np.arange(40), np.arange(40, 60)
model = VGPMIL(n_inducing=40, random_state=0)
model.fit(data.bags[train], data.y[train])
held_out = data.bags[test]
print(f"accuracy on new slides: {model.score(held_out, data.y[test]):.2f}")

# %%
# Which patches made a slide positive?
# ------------------------------------
# No patch was ever labelled. The map on the right is what the model was not told.

figure, axes = plt.subplots(1, 3, figsize=(13, 3.4), layout="constrained")
name = str(held_out.ids[1])
InstanceMapDisplay.from_estimator(model, held_out, name, ax=axes[0])
InstanceMapDisplay.from_estimator(model, held_out, name, what="std", ax=axes[1])
InstanceMapDisplay(grid * 256, where_positive[name], name="the truth").plot(axes[2])

# %%
# Can it be believed?
# -------------------

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
ReliabilityDisplay.from_estimator(model, held_out, data.y[test], n_bins=5, ax=axes[0])
BoundDisplay.from_estimator(model, ax=axes[1])

# %%
# A report and a file
# -------------------
# The report is one HTML file to send to a colleague; the model file holds no pickle, so loading
# one runs no code.

path = bagwise.save(model, folder / "model.bagwise", bags=data.bags[train], y=data.y[train])
again = bagwise.load(path)
made = predict_tables(again, held_out)
page = write_report(Report(made, held_out, bagwise.persist.about(path)), folder / "report.html")
print(page.name, f"{page.stat().st_size / 1000:.0f} kB")
print(made.bags.head())
