"""`check_bags`, the validation every estimator sees data through, and that of instance labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from bagwise.bags.container import Bags
from bagwise.core import segments
from bagwise.core.arrays import Codes, Column, Ints, Rows
from bagwise.core.finite import first_not_finite

# What users may pass: `check_bags` and `encode_instance_labels` validate it.
BagsLike: TypeAlias = "Bags | Sequence[Rows | ArrayLike] | Rows"
InstanceLabels: TypeAlias = ArrayLike | Sequence[object] | None


def check_bags(
    bags: BagsLike,
    *,
    n_features: int | None = None,
    accept_sparse: bool = False,
    allow_nd: bool = False,
    estimator: str = "the model",
    finite: bool | Literal["allow-nan"] = True,
) -> Bags:
    """Turn what a user brought into valid `Bags`, or say what is wrong and where.

    Lists of 2-d arrays and 3-d arrays are accepted besides `Bags`. Integer instances become
    float64; floating ones keep their precision. Sparse instances are densified unless
    ``accept_sparse``. Instances opened lazily and torch tensors are passed through.
    ``finite=False`` leaves it to the caller to look at every number, and "allow-nan" lets missing
    values pass, but not infinity.
    """
    if not isinstance(bags, Bags):
        bags = _from_anything(bags)
    if len(bags) == 0:
        raise ValueError(f"{estimator} needs at least one bag; got 0 bags.")
    empty = np.flatnonzero(bags.sizes == 0)
    if len(empty):
        others = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
        raise ValueError(
            f"{bags.describe_bag(int(empty[0]))} has 0 instances{others}; every bag needs at "
            "least one. Drop it with bags[bags.sizes > 0]."
        )
    if bags.instances.ndim != 2 and not allow_nd:
        raise ValueError(
            f"instances must be 2-d (instances x features); got shape {bags.instances.shape}."
        )
    if n_features is not None and bags.n_features != n_features:
        raise ValueError(
            f"bags have {bags.n_features} features, but {estimator} is expecting "
            f"{n_features} features as input, the number it was fitted on."
        )
    if bags.n_features == 0:
        raise ValueError(
            f"bags have 0 feature(s) (shape={bags.instances.shape}) while a minimum of 1 is "
            f"required by {estimator}."
        )
    if sp.issparse(bags.instances) and not accept_sparse:
        bags = bags.with_instances(bags.instances.toarray(), bags.feature_names)
    elif isinstance(bags.instances, np.ndarray) and bags.instances.dtype.kind != "f":
        if bags.instances.dtype.kind == "c":
            raise ValueError("Complex data not supported: features must be real numbers.")
        try:
            rows = bags.instances.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"features must be numbers; got dtype {bags.instances.dtype} ({error})."
            ) from error
        bags = bags.with_instances(rows, bags.feature_names)
    if finite:
        _check_finite(bags, allow_nan=finite == "allow-nan")
    return bags


def check_feature_names(
    fitted: Sequence[str] | None, bags: Bags, estimator: str = "the model"
) -> None:
    """Refuse bags whose features are named otherwise than those a model was fitted on.

    Bags without names, and models fitted without, are taken at their width.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.bags import Bags, check_feature_names
    >>> bags = Bags(np.ones((2, 2)), [0, 1, 2], feature_names=["b", "a"])
    >>> check_feature_names(["a", "b"], bags)
    Traceback (most recent call last):
    ValueError: feature 0 is called 'b', but the model was fitted with 'a' there; ...
    """
    if fitted is None or bags.feature_names is None:
        return
    for j, (name, expected) in enumerate(zip(bags.feature_names, fitted, strict=True)):
        if name != expected:
            raise ValueError(
                f"feature {j} is called {name!r}, but {estimator} was fitted with "
                f"{str(expected)!r} there; bring the features into the same order."
            )


def encode_instance_labels(
    instance_labels: InstanceLabels, bags: Bags, classes: Column, y: Ints | None
) -> Codes:
    """Instance labels as int8 codes, -1 where unknown, checked against the bag labels.

    ``instance_labels`` is one entry per instance, or one sequence per bag (which scikit-learn's
    splitters can slice); an entry is a class, or missing: None, NaN, or -1 unless -1 is itself a
    class. Codes index ``classes``; ``y`` holds the bags' codes, where they are to agree.
    """
    width = np.dtype(np.int8 if len(classes) < 128 else np.int64)
    known: Codes = np.full(bags.n_instances, -1, dtype=width)
    if instance_labels is None:
        return known
    flat = _flatten_labels(instance_labels, bags)
    # Only NaN differs from itself.
    missing = np.asarray([v is None or v != v for v in flat], dtype=bool)
    if -1 not in list(classes):
        missing |= flat == -1
    for code, name in enumerate(classes):
        known[~missing & (flat == name)] = code
    bad = np.flatnonzero(~missing & (known < 0))
    if len(bad):
        raise ValueError(
            f"instance {bad[0]} of {bags.describe_bag(int(bags.bag_index[bad[0]]))} has label "
            f"{np.asarray(flat[bad[0]]).item()!r}; instance labels must be one of "
            f"{np.asarray(classes).tolist()} or missing."
        )
    if len(classes) == 2 and y is not None:
        _check_agreement(known, bags, y)
    return known


def _check_agreement(known: Codes, bags: Bags, y: Ints) -> None:
    has_positive = segments.max((known == 1).astype(np.float64), bags.offsets) > 0
    clash = np.flatnonzero(has_positive & (y == 0))
    if len(clash):
        raise ValueError(
            f"{bags.describe_bag(int(clash[0]))} is labelled negative but has a positive "
            "instance label; a negative bag has only negative instances."
        )
    all_negative = segments.max((known != 0).astype(np.float64), bags.offsets) == 0
    clash = np.flatnonzero(all_negative & (y == 1))
    if len(clash):
        raise ValueError(
            f"{bags.describe_bag(int(clash[0]))} is labelled positive but every instance in it "
            "is labelled negative; a positive bag has at least one positive instance."
        )


def _flatten_labels(instance_labels: Any, bags: Bags) -> Column:
    n = bags.n_instances
    if len(instance_labels) == len(bags) and any(np.ndim(v) == 1 for v in instance_labels):
        for i, (labels, size) in enumerate(zip(instance_labels, bags.sizes, strict=True)):
            if len(labels) != size:
                raise ValueError(
                    f"{bags.describe_bag(i)} has {size} instances but {len(labels)} instance "
                    "labels."
                )
        instance_labels = [v for labels in instance_labels for v in labels]
    elif len(instance_labels) != n:
        raise ValueError(
            f"instance_labels needs one entry per instance ({n}) or one sequence per bag "
            f"({len(bags)}); got {len(instance_labels)} entries."
        )
    flat = np.empty(n, dtype=object)
    flat[:] = [v.item() if isinstance(v, np.generic) else v for v in instance_labels]
    return flat


def _from_anything(data: Any) -> Bags:
    if sp.issparse(data) or (hasattr(data, "ndim") and data.ndim == 2):
        raise ValueError(
            f"expected bags, got one 2-d array of shape {tuple(data.shape)}. Reshape your data: "
            "say which rows belong together with Bags.from_groups(X, groups), or pass a list of "
            "2-d arrays."
        )
    if hasattr(data, "ndim") and data.ndim == 3:
        n_bags, n_instances = data.shape[:2]
        return Bags(
            data.reshape(n_bags * n_instances, data.shape[2]), np.arange(n_bags + 1) * n_instances
        )
    if isinstance(data, (list, tuple)) or (isinstance(data, np.ndarray) and data.dtype == object):
        return Bags.from_list(data)
    raise ValueError(
        f"expected Bags, a list of 2-d arrays or a 3-d array; got {type(data).__name__}."
    )


def _check_finite(bags: Bags, allow_nan: bool) -> None:
    found = first_not_finite(bags.instances, allow_nan=allow_nan)
    if found is None:
        return
    (row, *place), what = found
    i = int(np.searchsorted(bags.offsets, row, side="right")) - 1
    kind = "feature" if bags.instances.ndim == 2 else "pixel"
    where = ", ".join(map(str, place))
    raise ValueError(
        f"{bags.describe_bag(i)} contains {what} in instance {row - int(bags.offsets[i])}, "
        f"{kind} {where}; features must be finite."
    )
