"""
Comparing models on MUSK
========================

One fold seed moves accuracy on a hundred molecules by several points, so a comparison needs
several, and a test that knows folds overlap. :func:`bagwise.evaluate.compare` fits every model on
the same folds, keeps all preprocessing inside them, and keeps the out-of-fold predictions.
"""

# %%
# Models come by name from the registry, with their scaling in a pipeline, or as any unfitted
# estimator. With ``results="file.jsonl"`` a run that was stopped would go on where it was;
# ``n_jobs`` spreads the fits over processes.
import matplotlib.pyplot as plt
import numpy as np

from bagwise.evaluate import BagFolds, compare
from bagwise.models.registry import make_model

models = {
    "vgpmil": make_model("vgpmil", n_inducing=40, max_iter=30),
    "misvm": make_model("misvm"),
    "single-instance": make_model("single-instance"),
    "statistics": make_model("statistics"),
}
made = compare(models, ["musk1"], BagFolds(n_splits=3, seeds=(0, 1, 2)), progress=False)
made.table()

# %%
# Each point is one repetition of three folds: the spread between seeds is as large as the
# differences that papers report.
figure, axes = plt.subplots(1, 3, figsize=(9, 3), sharey=True, layout="constrained")
for axis, metric in zip(axes, ["accuracy", "auc", "log_loss"], strict=True):
    for row, model in enumerate(models):
        values = made.per_seed(model, "musk1", metric)
        axis.plot(values, np.full(len(values), row), "o", alpha=0.6)
        axis.plot(values.mean(), row, "k|", markersize=18)
    axis.set(title=metric.replace("_", "-"), yticks=range(len(models)), yticklabels=list(models))
axes[0].invert_yaxis()
plt.show()

# %%
# The corrected resampled t-test allows for the overlap of training folds; an ordinary paired
# t-test would call far too many of these differences real.
made.paired("auc").round(3)
