"""`Bags`: ragged bags of instances as one flat array plus offsets, and `check_bags`, the gate.

Every estimator sees data only through `check_bags`; nothing above this module has to know
whether a user brought a list, a 3-d array, a memory map, a sparse matrix or a torch tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np
import scipy.sparse as sp
from array_api_compat import is_torch_array

from bagwise.core import segments
from bagwise.core.finite import first_not_finite


class Bags:
    """Labelled-as-a-whole sets of instances, immutable, sliced by bag.

    Parameters
    ----------
    instances : array of shape (n_instances, n_features)
        ndarray, memmap, CSR matrix, torch tensor, or any object with ``shape``, ``dtype`` and
        row slicing (files opened lazily). Bags of images may have more than two dimensions.
    offsets : array of shape (n_bags + 1,)
        Bag ``i`` owns rows ``offsets[i]:offsets[i + 1]``.
    ids : sequence of str, optional
        A name for each bag, used in messages and reports. Defaults to "0", "1", ...
    columns : mapping of str to array, optional
        Instance-aligned extras that travel with the bags, such as ``coords`` or
        ``instance_labels``. Models never train on them unless they are passed to ``fit``.
        ``held_out`` marks bags that features learned from labels did not learn from: models
        that calibrate themselves trust these more.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import Bags
    >>> bags = Bags.from_list([np.zeros((2, 3)), np.ones((4, 3))])
    >>> len(bags), bags.sizes.tolist(), bags[1].shape
    (2, [2, 4], (4, 3))
    >>> bags[[1, 0]].sizes.tolist()
    [4, 2]
    """

    __slots__ = ("_columns", "_ids", "_instances", "_offsets")
    _instances: Any
    _offsets: Any
    _ids: Any
    _columns: dict[str, Any]

    def __init__(
        self,
        instances: Any,
        offsets: Any,
        ids: Any = None,
        *,
        columns: Mapping[str, Any] | None = None,
    ) -> None:
        if sp.issparse(instances) and instances.format != "csr":
            instances = instances.tocsr()
        elif not hasattr(instances, "shape"):
            instances = np.asarray(instances)
        offsets = np.ascontiguousarray(offsets, dtype=np.int64)
        _check_offsets(offsets, instances)
        if ids is not None:
            # Whole numbers stay numbers until they are read: cheap to slice by the million.
            if not (isinstance(ids, np.ndarray) and ids.dtype.kind in "iu"):
                ids = np.asarray([str(name) for name in ids], dtype=object)
            if len(ids) != len(offsets) - 1:
                raise ValueError(
                    f"ids must name every bag: got {len(ids)} ids for {len(offsets) - 1} bags."
                )
        columns = {name: np.asarray(column) for name, column in (columns or {}).items()}
        for name, column in columns.items():
            if len(column) != offsets[-1]:
                raise ValueError(
                    f"column {name!r} must have one row per instance: "
                    f"got {len(column)} rows for {offsets[-1]} instances."
                )
        offsets.flags.writeable = False
        self._set(instances, offsets, ids, columns)

    def _set(self, instances: Any, offsets: Any, ids: Any, columns: Any) -> None:
        object.__setattr__(self, "_instances", instances)
        object.__setattr__(self, "_offsets", offsets)
        object.__setattr__(self, "_ids", ids)
        object.__setattr__(self, "_columns", columns)

    @classmethod
    def _trusted(cls, instances: Any, offsets: Any, ids: Any, columns: Any) -> Bags:
        """Build without checks, for slices of bags that were checked already."""
        offsets.flags.writeable = False
        new = object.__new__(cls)
        new._set(instances, offsets, ids, columns)
        return new

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Bags are immutable; cannot set {name!r}.")

    # Slots and an immutable __setattr__ need their own pickling, for joblib and Dask.
    def __getstate__(self) -> tuple[Any, ...]:
        return (self._instances, np.asarray(self._offsets), self._ids, self._columns)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._set(*state)
        self._offsets.flags.writeable = False

    @classmethod
    def from_list(cls, arrays: Iterable[Any], ids: Any = None) -> Bags:
        """Bags from 2-d arrays, one per bag."""
        arrays = list(arrays)
        if not arrays:
            raise ValueError("at least one bag is needed; got an empty list.")
        arrays = [
            a if sp.issparse(a) or is_torch_array(a) else _as_array(a, i)
            for i, a in enumerate(arrays)
        ]
        widths = [a.shape[1:] for a in arrays]
        for i, (a, width) in enumerate(zip(arrays, widths, strict=True)):
            name = _bag_name(i, ids)
            if a.ndim < 2:
                raise ValueError(
                    f"{name} has shape {tuple(a.shape)}; every bag must be a 2-d array "
                    "(instances x features)."
                )
            if width != widths[0]:
                raise ValueError(
                    f"{name} has {_width(width)} features but bag 0 has {_width(widths[0])}; "
                    "all bags need the same features."
                )
        offsets = np.concatenate([[0], np.cumsum([a.shape[0] for a in arrays])])
        if any(sp.issparse(a) for a in arrays):
            return cls(sp.vstack(arrays, format="csr"), offsets, ids)
        if is_torch_array(arrays[0]):
            import torch

            return cls(torch.cat(arrays), offsets, ids)
        return cls(np.concatenate(arrays), offsets, ids)

    @classmethod
    def from_groups(cls, X: Any, groups: Any) -> Bags:
        """Bags from rows and one group label per row, in order of first appearance.

        Rows that are already grouped together are not copied.
        """
        groups = np.asarray(groups)
        if not hasattr(X, "shape"):
            X = np.asarray(X)
        if len(groups) != X.shape[0]:
            raise ValueError(
                f"groups must name a bag for every row: got {len(groups)} groups "
                f"for {X.shape[0]} rows."
            )
        if len(groups) == 0:
            raise ValueError("at least one row is needed; got none.")
        names, first, codes = np.unique(groups, return_index=True, return_inverse=True)
        rank = np.empty(len(names), dtype=np.int64)
        rank[np.argsort(first)] = np.arange(len(names))
        codes = rank[codes]
        offsets = np.concatenate([[0], np.cumsum(np.bincount(codes))])
        if np.any(np.diff(codes) < 0):
            X = X[np.argsort(codes, kind="stable")]
        return cls(X, offsets, names[np.argsort(first)])

    @classmethod
    def from_frame(
        cls, frame: Any, bag: str = "slide_id", features: Sequence[str] | None = None
    ) -> Bags:
        """Bags from a pandas frame with one row per instance and a bag column.

        ``features`` defaults to every numeric column but ``bag``.
        """
        if bag not in frame.columns:
            raise ValueError(f"the frame has no column {bag!r}; it has {list(frame.columns)}.")
        if features is None:
            numeric = frame.select_dtypes("number").columns
            features = [c for c in numeric if c != bag]
        unknown = [c for c in features if c not in frame.columns]
        if unknown or not features:
            raise ValueError(f"no such feature columns in the frame: {unknown or 'none numeric'}.")
        return cls.from_groups(frame[list(features)].to_numpy(), frame[bag].to_numpy())

    @property
    def instances(self) -> Any:
        """The flat array of all instances, shape (n_instances, n_features)."""
        return self._instances

    @property
    def offsets(self) -> Any:
        """Row at which every bag starts, and one past the last, shape (n_bags + 1,)."""
        return self._offsets

    @property
    def sizes(self) -> Any:
        """Number of instances in each bag."""
        return np.diff(self._offsets)

    @property
    def bag_index(self) -> Any:
        """Bag number of each instance, shape (n_instances,)."""
        return segments.index(self._offsets)

    @property
    def n_instances(self) -> int:
        """Number of instances in all bags."""
        return int(self._offsets[-1])

    @property
    def n_features(self) -> int:
        """Number of features of an instance."""
        return int(self._instances.shape[1])

    @property
    def ids(self) -> Any:
        """Names of the bags, shape (n_bags,)."""
        names = np.arange(len(self)) if self._ids is None else self._ids
        return names if names.dtype == object else np.asarray([str(i) for i in names], dtype=object)

    @property
    def named(self) -> bool:
        """Whether the bags were given names; positions in some collection are none."""
        return self._ids is not None and self._ids.dtype == object

    @property
    def columns(self) -> Mapping[str, Any]:
        """Instance-aligned extras that travel with the bags."""
        return self._columns

    @property
    def instance_labels(self) -> Any:
        """True instance labels where the bags carry them, else None; for evaluation only."""
        return self._columns.get("instance_labels")

    @property
    def held_out(self) -> Any:
        """Indices of the bags that the column ``held_out`` marks; none where there is none."""
        if "held_out" not in self._columns:
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero(segments.min(self._columns["held_out"].astype(float), self._offsets))

    @property
    def dtype(self) -> Any:
        """Data type of the instances."""
        return self._instances.dtype

    # shape and ndim are what lets scikit-learn index bags like rows.
    @property
    def shape(self) -> tuple[int]:
        """One-dimensional in bags."""
        return (len(self),)

    @property
    def ndim(self) -> Literal[1]:
        """Always 1."""
        return 1

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __iter__(self) -> Iterator[Any]:
        for start, stop in zip(self._offsets[:-1], self._offsets[1:], strict=True):
            yield self._instances[int(start) : int(stop)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        # What NumPy would make of ragged bags tells nobody what to do.
        raise ValueError(
            "bags cannot become one array: each has its own number of instances. A step that "
            "takes rows works on the instances as InstanceTransformer(StandardScaler()), and on "
            "one row per bag after BagStatistics(); a classifier of rows, as "
            "SingleInstance(SVC()). The rows of all bags are bags.instances."
        )

    @overload
    def __getitem__(self, key: int) -> Any: ...

    @overload
    def __getitem__(self, key: Any) -> Bags: ...

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, tuple):
            if len(key) != 2 or key[1] is not Ellipsis:
                raise IndexError("bags are indexed by bag only: use bags[i], bags[[0, 2]].")
            key = key[0]
        if isinstance(key, (int, np.integer)):
            i = int(key) + (len(self) if key < 0 else 0)
            if not 0 <= i < len(self):
                raise IndexError(f"bag {int(key)} is out of range for {len(self)} bags.")
            return self._instances[int(self._offsets[i]) : int(self._offsets[i + 1])]
        if isinstance(key, slice) and key.indices(len(self))[2] == 1:
            return self._contiguous(*key.indices(len(self))[:2])
        return self._gather(self._positions(key))

    def _positions(self, key: Any) -> Any:
        if isinstance(key, slice):
            return np.arange(len(self))[key]
        key = np.asarray(key)
        if key.dtype == bool:
            if key.shape != (len(self),):
                raise IndexError(f"a mask must have shape ({len(self)},); got {key.shape}.")
            return np.flatnonzero(key)
        if key.size == 0:
            return key.astype(np.int64).reshape(-1)
        if key.dtype.kind not in "iu" or key.ndim != 1:
            raise IndexError(f"bags are indexed by int, slice, int array or mask; got {key!r}.")
        if key.min() < -len(self) or key.max() >= len(self):
            raise IndexError(f"bag index out of range for {len(self)} bags.")
        return np.where(key < 0, key + len(self), key)

    def _contiguous(self, start: int, stop: int) -> Bags:
        """A run of neighbouring bags: views, no copies."""
        stop = max(start, stop)
        offsets = self._offsets[start : stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        return Bags._trusted(
            _rows(self._instances, slice(first, last)),
            offsets - first,
            np.arange(start, stop) if self._ids is None else self._ids[start:stop],
            {name: column[first:last] for name, column in self._columns.items()},
        )

    def _gather(self, chosen: Any) -> Bags:
        rows, offsets = segments.take(self._offsets, chosen)
        return Bags._trusted(
            _rows(self._instances, rows),
            offsets,
            # Unnamed bags keep their numbers; a million strings would cost more than the rows.
            chosen if self._ids is None else self._ids[chosen],
            {name: column[rows] for name, column in self._columns.items()},
        )

    def split(self, flat: Any) -> list[Any]:
        """Per-bag slices of an instance-aligned array."""
        if len(flat) != self.n_instances:
            raise ValueError(
                f"need one entry per instance: got {len(flat)} for {self.n_instances} instances."
            )
        return [
            flat[int(a) : int(b)]
            for a, b in zip(self._offsets[:-1], self._offsets[1:], strict=True)
        ]

    def map(self, function: Callable[[Any], Any]) -> Bags:
        """Apply a function to the flat instances; it must keep the rows."""
        lazy = hasattr(self._instances, "select_rows")  # rows on disk are mapped as they are read
        instances = self._instances.map_rows(function) if lazy else function(self._instances)
        if instances.shape[0] != self.n_instances:
            raise ValueError(
                f"the function must keep all {self.n_instances} rows; "
                f"it returned {instances.shape[0]}."
            )
        return Bags(instances, self._offsets, self._ids, columns=self._columns)

    def with_instances(self, instances: Any) -> Bags:
        """The same bags with other rows, one for each of theirs."""
        return Bags(instances, self._offsets, self._ids, columns=self._columns)

    def with_columns(self, **columns: Any) -> Bags:
        """The same bags carrying further instance-aligned columns."""
        return Bags(self._instances, self._offsets, self._ids, columns={**self._columns, **columns})

    def describe_bag(self, i: int) -> str:
        """Name of a bag for messages: ``bag 17 ('slide_0042')``."""
        return _bag_name(i, self._ids)

    def __repr__(self) -> str:
        return (
            f"Bags({len(self)} bags, {self.n_instances} instances, "
            f"{_width(self._instances.shape[1:])} features)"
        )


def check_bags(
    bags: Any,
    *,
    n_features: int | None = None,
    accept_sparse: bool = False,
    allow_nd: bool = False,
    dtype: Any = np.float64,
    estimator: str = "the model",
    finite: bool = True,
) -> Bags:
    """Turn what a user brought into valid `Bags`, or say what is wrong and where.

    Lists of 2-d arrays and 3-d arrays are accepted besides `Bags`. Integer instances become
    ``dtype``; floating ones keep their precision. Sparse instances are densified unless
    ``accept_sparse``. Instances opened lazily and torch tensors are passed through.
    ``finite=False`` leaves it to the caller to look at every number.
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
        bags = bags.map(lambda X: X.toarray())
    elif isinstance(bags.instances, np.ndarray) and bags.instances.dtype.kind != "f":
        bags = bags.map(lambda X: _to_float(X, dtype))
    if finite:
        _check_finite(bags)
    return bags


def encode_instance_labels(instance_labels: Any, bags: Bags, classes: Any, y: Any) -> Any:
    """Instance labels as int8 codes, -1 where unknown, checked against the bag labels.

    ``instance_labels`` is one entry per instance, or one sequence per bag (which scikit-learn's
    splitters can slice); an entry is a class, or missing: None, NaN, or -1 unless -1 is itself a
    class. Codes index ``classes``; ``y`` holds the bags' codes.
    """
    known = np.full(bags.n_instances, -1, dtype=np.int8)
    if instance_labels is None:
        return known
    flat = _flatten_labels(instance_labels, bags)
    missing = np.asarray([_is_missing(v, classes) for v in flat])
    for code, name in enumerate(classes):
        known[~missing & (flat == name)] = code
    bad = np.flatnonzero(~missing & (known < 0))
    if len(bad):
        raise ValueError(
            f"instance {bad[0]} of {bags.describe_bag(int(bags.bag_index[bad[0]]))} has label "
            f"{np.asarray(flat[bad[0]]).item()!r}; instance labels must be one of "
            f"{np.asarray(classes).tolist()} or missing."
        )
    if len(classes) == 2:
        _check_agreement(known, bags, y)
    return known


def _check_agreement(known: Any, bags: Bags, y: Any) -> None:
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


def _flatten_labels(instance_labels: Any, bags: Bags) -> Any:
    n = bags.n_instances
    nested = len(instance_labels) == len(bags) and any(
        np.ndim(v) == 1
        for v in instance_labels  # one sequence per bag
    )
    if nested:
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


def _is_missing(value: Any, classes: Any) -> bool:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return True
    return bool(isinstance(value, (int, float)) and value == -1 and -1 not in list(classes))


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
            data.reshape(n_bags * n_instances, data.shape[2]),
            np.arange(n_bags + 1) * n_instances,
        )
    if isinstance(data, (list, tuple)) or (isinstance(data, np.ndarray) and data.dtype == object):
        return Bags.from_list(data)
    raise ValueError(
        f"expected Bags, a list of 2-d arrays or a 3-d array; got {type(data).__name__}."
    )


def _check_offsets(offsets: Any, instances: Any) -> None:
    if getattr(instances, "ndim", 2) < 2:
        raise ValueError(f"instances must be 2-d; got shape {tuple(instances.shape)}.")
    if offsets.ndim != 1 or len(offsets) < 1 or offsets[0] != 0:
        raise ValueError("offsets must be a 1-d array that starts at 0.")
    if np.any(np.diff(offsets) < 0):
        i = int(np.flatnonzero(np.diff(offsets) < 0)[0])
        raise ValueError(f"offsets must not fall; they do after bag {i}.")
    if offsets[-1] != instances.shape[0]:
        raise ValueError(
            f"offsets end at {offsets[-1]} but there are {instances.shape[0]} instances; "
            "the last offset is the number of instances."
        )


def _check_finite(bags: Bags) -> None:
    found = first_not_finite(bags.instances)
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


def _rows(instances: Any, key: Any) -> Any:
    """Rows of the instances; those on disk stay there."""
    if hasattr(instances, "select_rows"):
        return instances.select_rows(key)
    # np.take is faster than fancy indexing; memmaps and others index for themselves.
    if type(instances) is np.ndarray and not isinstance(key, slice):
        return instances.take(key, axis=0)
    return instances[key]


def _to_float(X: Any, dtype: Any) -> Any:
    if X.dtype.kind == "c":
        raise ValueError("Complex data not supported: features must be real numbers.")
    try:
        return X.astype(dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(f"features must be numbers; got dtype {X.dtype} ({error}).") from error


def _as_array(a: Any, i: int) -> Any:
    try:
        return np.asarray(a)
    except ValueError as error:
        raise ValueError(f"bag {i} is not a rectangular array: {error}.") from error


def _bag_name(i: int, ids: Any) -> str:
    return f"bag {i}" if ids is None else f"bag {i} ({str(ids[i])!r})"


def _width(shape: tuple[int, ...]) -> str:
    return " x ".join(str(n) for n in shape)
