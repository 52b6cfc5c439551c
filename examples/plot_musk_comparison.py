"""
Comparing models on MUSK
========================

One fold seed moves accuracy on a hundred molecules by several points, so a comparison needs
several, and a test that knows folds overlap. :func:`bagwise.evaluate.compare` fits every model on
the same folds, keeps all preprocessing inside them, and keeps the out-of-fold predictions.
"""

# %%
# Models by name, data by name. With ``results="file.jsonl"`` a run that was stopped would go on
# where it was; ``n_jobs`` spreads the fits over processes.
import matplotlib.pyplot as plt
import numpy as np

from bagwise.evaluate import BagFolds, compare

models = ["vgpmil", "misvm", "single-instance", "statistics"]
made = compare(models, ["musk1"], BagFolds(n_splits=5, seeds=(0, 1, 2)), progress=False)
made.table()

# %%
# Each point is one repetition of five folds: the spread between seeds is as large as the
# differences that papers report.
figure, axes = plt.subplots(1, 3, figsize=(9, 3), sharey=True, layout="constrained")
for axis, metric in zip(axes, ["accuracy", "auc", "log_loss"], strict=True):
    for row, model in enumerate(models):
        values = made.per_seed(model, "musk1", metric)
        axis.plot(values, np.full(len(values), row), "o", alpha=0.6)
        axis.plot(values.mean(), row, "k|", markersize=18)
    axis.set(title=metric.replace("_", "-"), yticks=range(len(models)), yticklabels=models)
axes[0].invert_yaxis()
plt.show()

# %%
# The corrected resampled t-test allows for the overlap of training folds; an ordinary paired
# t-test would call far too many of these differences real.
made.paired("auc").round(3)
