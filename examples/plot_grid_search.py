"""
scikit-learn's tools on bags
============================

`Bags` behave like rows to scikit-learn, so cross-validation, grid search and calibration work
unchanged. Here a grid search chooses the regularisation of the simplest baseline.
"""

# %%
# Bags of digits: a bag is positive when it holds a nine.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.preprocessing import StandardScaler

from bagwise import InstanceTransformer, SingleInstance, make_pipeline
from bagwise.datasets import load_digit_bags

data = load_digit_bags()
train, test, y_train, y_test = train_test_split(
    data.bags, data.y, stratify=data.y, test_size=0.3, random_state=0
)

# %%
# Preprocessing sits inside the pipeline, so it is fitted inside every fold.
model = make_pipeline(
    InstanceTransformer(StandardScaler()),
    SingleInstance(LogisticRegression(max_iter=1000)),
)
grid = np.logspace(-4, 1, 6)
search = GridSearchCV(model, {"singleinstance__estimator__C": grid}, scoring="roc_auc", cv=5).fit(
    train, y_train
)
print(f"best C: {search.best_params_['singleinstance__estimator__C']:g}")
print(f"held-out AUC: {search.score(test, y_test):.3f}")

# %%
# The validation curve, mean and spread over the folds.
mean, spread = (search.cv_results_[f"{s}_test_score"] for s in ("mean", "std"))
fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.semilogx(grid, mean, "o-", color="#20639b")
ax.fill_between(grid, mean - spread, mean + spread, alpha=0.2, color="#20639b")
ax.set(xlabel="C", ylabel="AUC over bags", title="Five folds of bags")
plt.show()
