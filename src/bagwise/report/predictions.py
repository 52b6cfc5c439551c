"""What a model says about bags and their instances, as two tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bagwise.bags import Bags
from bagwise.models.pipeline import positive_proba


class Predictions(NamedTuple):
    """Tables of a model's answers.

    ``bags`` has the columns id, probability, std, label; ``instances`` bag, index, the
    coordinates where known, probability, std. ``std`` is missing where a model gives none, and
    ``instances`` is None where a model cannot rank them.

    Examples
    --------
    >>> import pandas as pd
    >>> from bagwise.report import Predictions
    >>> table = pd.DataFrame({"id": ["s1"], "probability": [0.9], "std": [0.1], "label": [1]})
    >>> Predictions(table, None, [0, 1], 0.5).bags["probability"].item()
    0.9
    """

    bags: Any
    instances: Any
    classes: list[Any]
    threshold: float


def predict_tables(
    model: Any, bags: Bags, threshold: float = 0.5, class_names: Any = None
) -> Predictions:
    """Probability and uncertainty of every bag and instance.

    ``class_names`` replaces the model's classes in the tables.

    Examples
    --------
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.models.registry import make_model
    >>> from bagwise.report.predictions import predict_tables
    >>> bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> made = predict_tables(make_model("single-instance").fit(bags, y), bags)
    >>> list(made.bags.columns), len(made.instances) == bags.n_instances
    (['id', 'probability', 'std', 'label'], True)
    """
    import pandas as pd

    p, std = _probability(model, bags, "")
    classes = np.asarray(model.classes_)
    scores = None
    if p is None:
        scores, p = model.decision_function(bags), np.full(len(bags), np.nan)
    positive = p > threshold if scores is None else scores > 0  # what predict says, without a pass
    names = classes if class_names is None else np.asarray(class_names)
    columns = {"id": bags.ids, "probability": p, "std": std, "label": names[positive.astype(int)]}
    if scores is not None:
        columns["score"] = scores
    return Predictions(
        pd.DataFrame(columns), _instance_table(model, bags), names.tolist(), threshold
    )


def _instance_table(model: Any, bags: Bags) -> Any:
    import pandas as pd

    if not hasattr(model, "decision_function_instances"):
        return None
    p, std = _probability(model, bags, "_instances")
    owner = bags.bag_index
    columns: dict[str, Any] = {
        "bag": pd.Categorical.from_codes(owner, categories=pd.Index(bags.ids)),
        "index": np.arange(bags.n_instances) - bags.offsets[owner],
    }
    coords = bags.columns.get("coords")
    if coords is not None:
        places = coords.reshape(len(coords), -1)
        axes = ["order"] if places.shape[1] == 1 else ["x", "y", "z"]
        for name, values in zip(axes, places.T, strict=False):
            columns[name] = values
    if p is None:
        columns["score"] = model.decision_function_instances(bags)
        p = np.full(bags.n_instances, np.nan)
    return pd.DataFrame({**columns, "probability": p, "std": std})


def _probability(model: Any, bags: Bags, twin: str) -> tuple[Any, Any]:
    """Probability of the positive class and its standard deviation, or None and NaN."""
    if not hasattr(model, f"predict_proba{twin}"):
        return None, np.full(bags.n_instances if twin else len(bags), np.nan)
    return positive_proba(model, bags, twin)


def write_predictions(made: Predictions, folder: str | Path) -> list[Path]:
    """Write ``bags.csv`` and ``instances.parquet`` into a folder.

    Examples
    --------
    >>> import tempfile
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.models.registry import make_model
    >>> from bagwise.report import predict_tables, write_predictions
    >>> bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> made = predict_tables(make_model("single-instance").fit(bags, y), bags)
    >>> [path.name for path in write_predictions(made, tempfile.mkdtemp())]
    ['bags.csv', 'instances.parquet']
    """
    folder = Path(folder)
    written = [folder / "bags.csv"]
    # 17 digits: reading the file back gives the same floats.
    made.bags.to_csv(written[0], index=False, float_format="%.17g")
    if made.instances is not None:
        written.append(folder / "instances.parquet")
        made.instances.to_parquet(written[1], index=False)
    return written
