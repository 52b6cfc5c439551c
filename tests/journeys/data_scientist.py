"""A data scientist with frames and scikit-learn: from a frame of conformations to a shared model.

Run in an empty folder: ``python data_scientist.py``. Every step is what one would type; a step
that does not give what the user wants ends the script with an error.
"""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline as sk_make_pipeline
from sklearn.preprocessing import StandardScaler

import bagwise
from bagwise import Bags, BagStatistics, InstanceTransformer, SingleInstance, make_pipeline
from bagwise.datasets import load_musk1


def make_frame() -> pd.DataFrame:
    """What lies on the user's disk: a row per conformation, a label, some holes."""
    data = load_musk1()
    bags = data.bags[: len(data.bags)]
    frame = pd.DataFrame(bags.instances[:, :40], columns=[f"ray_{j}" for j in range(40)])
    frame.insert(0, "molecule", bags.ids[bags.bag_index])
    frame["label"] = data.y[bags.bag_index]
    rng = np.random.default_rng(0)
    frame.iloc[rng.choice(len(frame), 20, replace=False), 5] = np.nan
    return frame


def main() -> dict[str, float]:
    make_frame().to_parquet("conformations.parquet")

    # 1. From the frame to bags. The label column must not become a feature.
    frame = pd.read_parquet("conformations.parquet")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bags = Bags.from_frame(frame, bag="molecule")
    assert any("'label'" in str(w.message) for w in caught), "the label was not named"
    assert bags.feature_names is not None
    assert "label" not in bags.feature_names
    y = frame.groupby("molecule", sort=False)["label"].first().loc[list(bags.ids)].to_numpy()
    print(bags.describe())

    # 2. scikit-learn's tools, with the imputer and the scaler inside the folds.
    model = make_pipeline(
        InstanceTransformer(sk_make_pipeline(SimpleImputer(), StandardScaler())),
        SingleInstance(LogisticRegression(max_iter=2000)),
    )
    train, test, y_train, y_test = train_test_split(bags, y, random_state=0, stratify=y)
    search = GridSearchCV(
        model, {"singleinstance__estimator__C": [0.01, 0.1, 1.0]}, scoring="roc_auc", cv=4
    ).fit(train, y_train)
    held_out = float(search.score(test, y_test))
    print(f"single instance, held out: AUC {held_out:.2f}")

    # 3. Embedded rows as a frame with names that say what they are.
    rows = make_pipeline(
        InstanceTransformer(SimpleImputer()), BagStatistics(("mean", "max"))
    ).set_output(transform="pandas")
    table = rows.fit_transform(train, y_train)
    assert list(table.columns[:2]) == ["mean_ray_0", "mean_ray_1"]
    embedded = make_pipeline(
        InstanceTransformer(sk_make_pipeline(SimpleImputer(), StandardScaler())),
        BagStatistics(("mean", "max")),
        LogisticRegression(max_iter=2000),
    )
    auc = float(cross_val_score(embedded, bags, y, scoring="roc_auc", cv=5).mean())
    print(f"statistics, 5 folds: AUC {auc:.2f}")

    # 4. A model that knows its features refuses others, and travels in a file.
    best = search.best_estimator_
    path = bagwise.save(best, "model.bagwise", bags=train, y=y_train)
    again = bagwise.load(path)
    np.testing.assert_allclose(again.predict_proba(test), best.predict_proba(test))
    shuffled = Bags.from_frame(frame, bag="molecule", features=list(bags.feature_names)[::-1])
    try:
        again.predict(shuffled)
    except ValueError as error:
        print(f"refused: {error}")
    else:
        raise AssertionError("features in another order were accepted")

    # 5. Which conformation made the molecule a musk, as a frame; and the bags for a colleague.
    result = test.to_frame("molecule")[["molecule"]]
    result["probability"] = again.predict_proba_instances(test)[:, 1]
    result.to_csv("conformations.csv", index=False)
    test.save("held_out.bags")
    assert Bags.load("held_out.bags").feature_names == bags.feature_names
    return {"held_out_auc": held_out, "embedded_auc": auc}


if __name__ == "__main__":
    main()
