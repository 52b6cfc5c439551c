"""`Bags`: ragged bags of instances as one flat array plus offsets, and what travels with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from bagwise.bags import frames, storage
from bagwise.bags.layout import (
    Content,
    as_rows,
    bag_name,
    check_column,
    check_coords,
    check_groups,
    check_offsets,
    checked_names,
    group_rows,
    grouped,
    joined,
    read_only,
    select,
    stacked,
    width_of,
)
from bagwise.core import segments
from bagwise.core.arrays import Column, Ints, Rows

if TYPE_CHECKING:
    import pandas as pd
    import torch


class Bags:
    """Labelled-as-a-whole sets of instances, immutable, sliced by bag.

    The arrays inside refuse to be written; the user's own stay writable, and what is changed in
    them shows, as in any view. Models look at the numbers each time they are given bags.

    Parameters
    ----------
    instances : array of shape (n_instances, n_features)
        ndarray, memmap, CSR matrix, torch tensor, or any object with ``shape``, ``dtype`` and
        row slicing (files opened lazily). Bags of images may have more than two dimensions.
    offsets : array of shape (n_bags + 1,)
        Bag ``i`` owns rows ``offsets[i]:offsets[i + 1]``.
    ids : sequence of str or None, default=None
        A name for each bag, used in messages and reports. Defaults to "0", "1", ...
    columns : mapping of str to array or None, default=None
        Instance-aligned extras that travel with the bags, such as ``instance_labels``. Models
        never train on them unless they are passed to ``fit``. ``held_out`` marks bags that
        features learned from labels did not learn from: models that calibrate themselves trust
        these more.
    coords : array of shape (n_instances,) or (n_instances, 2 or 3), default=None
        Where an instance lies: its place in an order, in a plane or in space. Kept as the column
        ``coords``.
    groups : array of shape (n_instances,) or None, default=None
        A sub-group of the bag that an instance belongs to, such as the slide within a patient.
        A group belongs to one bag. Kept as the column ``groups``.
    feature_names : sequence of str or None, default=None
        A name for each feature. Models fitted on named features store them as
        ``feature_names_in_`` and refuse others.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import Bags
    >>> bags = Bags.from_list([np.zeros((2, 3)), np.ones((4, 3))])
    >>> len(bags), bags.sizes.tolist(), bags[1].shape
    (2, [2, 4], (4, 3))
    >>> bags[[1, 0]].sizes.tolist()
    [4, 2]

    Bags are looked up by number or by name, and instances are filtered by a mask.

    >>> slides = Bags(np.arange(6).reshape(3, 2), [0, 1, 3], ids=["s1", "s2"])
    >>> slides["s2"].tolist()
    [[2, 3], [4, 5]]
    >>> slides.filter(lambda X: X[:, 0] < 4).sizes.tolist()
    [1, 1]
    """

    __slots__ = ("_content",)
    _content: Content

    def __init__(
        self,
        instances: Rows | ArrayLike,
        offsets: ArrayLike,
        ids: Sequence[object] | Column | None = None,
        *,
        columns: Mapping[str, ArrayLike] | None = None,
        coords: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        feature_names: Sequence[str] | None = None,
    ) -> None:
        rows = as_rows(instances)
        offsets = np.ascontiguousarray(offsets, dtype=np.int64)
        check_offsets(offsets, rows)
        if ids is not None:
            # Whole numbers stay numbers until they are read: cheap to slice by the million.
            if not (isinstance(ids, np.ndarray) and ids.dtype.kind in "iu"):
                ids = np.asarray([str(name) for name in ids], dtype=object)
            if len(ids) != len(offsets) - 1:
                raise ValueError(
                    f"ids must name every bag: got {len(ids)} ids for {len(offsets) - 1} bags."
                )
        named = dict(columns or {})
        named.update({} if coords is None else {"coords": coords})
        named.update({} if groups is None else {"groups": groups})
        extras = {name: check_column(name, c, int(offsets[-1])) for name, c in named.items()}
        names = checked_names(feature_names, rows)
        self._set(Content(rows, offsets, ids, extras, names))
        if self.coords is not None:
            check_coords(self.coords, self)
        if self.groups is not None:
            check_groups(self.groups, self)

    def _set(self, content: Content) -> None:
        X, offsets, ids, columns, names = content
        columns = {name: read_only(column) for name, column in columns.items()}
        ids = None if ids is None else read_only(ids)
        content = Content(read_only(X), read_only(offsets), ids, columns, names)
        object.__setattr__(self, "_content", content)

    @classmethod
    def _of(cls, content: Content) -> Bags:
        """Bags of what was checked already."""
        bags = object.__new__(cls)
        bags._set(content)
        return bags

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Bags are immutable; cannot set {name!r}.")

    # Slots and an immutable __setattr__ need their own pickling, for joblib and Dask.
    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(self._content)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._set(Content(*state))

    @classmethod
    def _from_content(cls, content: Content) -> Bags:
        """Bags of what was read or put together, checked."""
        X, offsets, ids, columns, names = content
        return cls(X, offsets, ids, columns=columns, feature_names=names)

    @classmethod
    def from_list(
        cls, arrays: Iterable[Rows | ArrayLike], ids: Sequence[object] | Column | None = None
    ) -> Bags:
        """Bags from 2-d arrays, one per bag."""
        return cls(*stacked(list(arrays), ids), ids)

    @classmethod
    def from_groups(cls, X: Rows | ArrayLike, groups: ArrayLike) -> Bags:
        """Bags from rows and one group label per row, in order of first appearance.

        Rows that are already grouped together are not copied.
        """
        groups = np.asarray(groups)
        X = as_rows(X)
        if len(groups) != X.shape[0]:
            raise ValueError(
                f"groups must name a bag for every row: got {len(groups)} groups "
                f"for {X.shape[0]} rows."
            )
        if len(groups) == 0:
            raise ValueError("at least one row is needed; got none.")
        order, offsets, names = grouped(groups)
        return cls(X if order is None else X[order], offsets, names)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        bag: str = "slide_id",
        features: str | Sequence[str] | None = None,
        *,
        coords: str | Sequence[str] | None = None,
        groups: str | None = None,
        levels: Sequence[str] | None = None,
    ) -> Bags:
        """Bags from a pandas or polars frame with one row per instance and a bag column.

        Parameters
        ----------
        frame : pandas.DataFrame, polars.DataFrame or polars.LazyFrame
        bag : str, default="slide_id"
            Column that says which bag a row belongs to.
        features : str or sequence of str or None, default=None
            The feature columns, or one column of lists. By default every numeric column that
            does not look like a label, an id, a coordinate or a group, judged by its name and by
            whether all rows of a bag share its value; the columns left out are named in a
            warning.
        coords : str or sequence of str or None, default=None
            One to three columns with the coordinates.
        groups : str or None, default=None
            Column with the sub-group within the bag, such as the slide of a patient.
        levels : sequence of two str or None, default=None
            Bag and group columns together, from the outer to the inner: ``["patient", "slide"]``.

        Examples
        --------
        >>> import pandas as pd
        >>> from bagwise import Bags
        >>> rows = pd.DataFrame({"patient": ["a", "a", "b"], "slide": ["s1", "s2", "s3"],
        ...                      "mass": [1.0, 2.0, 3.0]})
        >>> bags = Bags.from_frame(rows, levels=["patient", "slide"])
        >>> bags.feature_names, bags.groups.tolist()
        (('mass',), ['s1', 's2', 's3'])
        """
        content = frames.read(frame, bag, features, coords, groups, levels)
        return cls._from_content(content)

    @classmethod
    def concat(cls, parts: Iterable[Bags]) -> Bags:
        """The bags of several partitions as one, in order.

        Partitions in memory are copied into one array. As soon as one is a memory map or is read
        lazily from files, all stay where they are, and rows are read when they are needed.

        Parameters
        ----------
        parts : iterable of Bags
            At least one, none empty, all with the same features and columns. Ids are kept where
            a partition names its bags.

        Examples
        --------
        >>> import numpy as np
        >>> from bagwise import Bags
        >>> parts = [Bags.from_list([np.zeros((n, 2)), np.ones((3, 2))]) for n in (1, 2)]
        >>> Bags.concat(parts).sizes.tolist()
        [1, 3, 2, 3]
        """
        parts = list(parts)
        for i, part in enumerate(parts):
            if not isinstance(part, Bags):
                raise ValueError(f"partition {i} must be Bags; got {type(part).__name__}.")
        return cls._from_content(joined(parts))

    @classmethod
    def load(cls, path: str | Path, *, lazy: bool | Literal["auto"] = "auto") -> Bags:
        """Bags from a file that `save` wrote; nothing in it is executed.

        With ``lazy`` the rows stay on disk as a memory map; "auto" does so beyond 512 MB.
        """
        return cls._from_content(storage.read(Path(path), lazy))

    def save(self, path: str | Path) -> Path:
        """Write the bags to one file, whole or not at all; returns its path.

        Rows, ids, columns, coordinates, groups and names of features are kept. The file is a zip
        of plain arrays, without pickle. Rows on disk are copied a block at a time.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> from bagwise import Bags
        >>> bags = Bags(np.ones((3, 2)), [0, 1, 3], ids=["s1", "s2"], feature_names=["a", "b"])
        >>> path = bags.save(pathlib.Path(tempfile.mkdtemp()) / "slides.bags")
        >>> Bags.load(path)["s2"].shape
        (2, 2)
        """
        return storage.write(self, Path(path))

    @property
    def instances(self) -> Any:
        """The flat array of all instances, shape (n_instances, n_features)."""
        return self._content.instances

    @property
    def offsets(self) -> Ints:
        """Row at which every bag starts, and one past the last, shape (n_bags + 1,)."""
        return self._content.offsets

    @property
    def sizes(self) -> Ints:
        """Number of instances in each bag."""
        return np.diff(self.offsets)

    @property
    def bag_index(self) -> Ints:
        """Bag number of each instance, shape (n_instances,)."""
        return segments.index(self.offsets)

    @property
    def n_instances(self) -> int:
        """Number of instances in all bags."""
        return int(self.offsets[-1])

    @property
    def n_features(self) -> int:
        """Number of features of an instance."""
        return int(self.instances.shape[1])

    @property
    def named(self) -> bool:
        """Whether the bags were given names; positions in some collection are none."""
        return self._content.ids is not None and self._content.ids.dtype == object

    @property
    def ids(self) -> Column:
        """Names of the bags, shape (n_bags,)."""
        names = self._content.ids
        names = np.arange(len(self)) if names is None else names
        return names if names.dtype == object else np.asarray([str(i) for i in names], dtype=object)

    @property
    def columns(self) -> Mapping[str, Column]:
        """Instance-aligned extras that travel with the bags."""
        return MappingProxyType(self._content.columns)

    @property
    def instance_labels(self) -> Column | None:
        """True instance labels where the bags carry them, else None; for evaluation only."""
        return self.columns.get("instance_labels")

    @property
    def coords(self) -> Column | None:
        """Coordinates of the instances, or None: shape (n_instances,), (.., 2) or (.., 3)."""
        return self.columns.get("coords")

    @property
    def groups(self) -> Column | None:
        """Sub-group of each instance, such as its slide within a patient, or None."""
        return self.columns.get("groups")

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """Names of the features, or None where they have none."""
        return self._content.feature_names

    @property
    def held_out(self) -> Ints:
        """Indices of the bags that the column ``held_out`` marks; none where there is none."""
        if "held_out" not in self.columns:
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero(segments.min(self.columns["held_out"].astype(float), self.offsets))

    @property
    def dtype(self) -> np.dtype[np.generic] | torch.dtype:
        """Data type of the instances."""
        return self.instances.dtype

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
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[Any]:
        for start, stop in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            yield self.instances[int(start) : int(stop)]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Column:
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
            return self.instances[int(self.offsets[i]) : int(self.offsets[i + 1])]
        if isinstance(key, str):
            return self[self.index_of(key)]
        run = isinstance(key, slice) and key.indices(len(self))[2] == 1
        chosen = key if run else self._positions(key)
        if run:  # neighbouring bags are views, without a copy
            start, stop, _ = key.indices(len(self))
            stop = max(start, stop)
            offsets = self.offsets[start : stop + 1]
            rows: Any = slice(offsets[0], offsets[-1])
            offsets, numbers = offsets - offsets[0], np.arange(start, stop)
        else:
            rows, offsets = segments.take(self.offsets, chosen)
            numbers = chosen
        # Unnamed bags keep their numbers; a million strings would cost more than the rows.
        ids = self._content.ids
        return self._rows(rows, offsets, numbers if ids is None else ids[chosen])

    def _positions(self, key: object) -> Ints:
        if isinstance(key, slice):
            return np.arange(len(self))[key]
        key = np.asarray(key)
        if key.dtype == bool:
            if key.shape != (len(self),):
                raise IndexError(f"a mask must have shape ({len(self)},); got {key.shape}.")
            return np.flatnonzero(key)
        if key.size == 0:
            return key.astype(np.int64).reshape(-1)
        if key.ndim == 1 and all(isinstance(name, str) for name in key):
            return np.asarray([self.index_of(name) for name in key], dtype=np.int64)
        if key.dtype.kind not in "iu" or key.ndim != 1:
            raise IndexError(f"bags are indexed by int, slice, int array, mask or id; got {key!r}.")
        if key.min() < -len(self) or key.max() >= len(self):
            raise IndexError(f"bag index out of range for {len(self)} bags.")
        return np.where(key < 0, key + len(self), key)

    def _rows(self, rows: Any, offsets: Ints, ids: Column | None) -> Bags:
        """Some of the rows, as bags."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        X = select(self.instances, rows)
        return self._of(Content(X, offsets, ids, columns, self.feature_names))

    def split(self, flat: Any) -> list[Any]:
        """Per-bag slices of an instance-aligned array."""
        if len(flat) != self.n_instances:
            raise ValueError(
                f"need one entry per instance: got {len(flat)} for {self.n_instances} instances."
            )
        return [
            flat[int(a) : int(b)] for a, b in zip(self.offsets[:-1], self.offsets[1:], strict=True)
        ]

    def map(
        self, function: Callable[[Any], Any], feature_names: Sequence[str] | None = None
    ) -> Bags:
        """Apply a function to the flat instances; it must keep the rows.

        Names of features do not survive a function that may change what they mean; pass
        ``feature_names`` to name the new ones.
        """
        rows = self.instances
        lazy = hasattr(rows, "map_rows")  # rows on disk are mapped as they are read
        instances = rows.map_rows(function) if lazy else function(rows)
        if instances.shape[0] != self.n_instances:
            raise ValueError(
                f"the function must keep all {self.n_instances} rows; "
                f"it returned {instances.shape[0]}."
            )
        return self.with_instances(instances, feature_names)

    def with_instances(self, instances: Rows, feature_names: Sequence[str] | None = None) -> Bags:
        """The same bags with other rows, one for each of theirs."""
        check_offsets(self.offsets, instances)
        names = checked_names(feature_names, instances)
        return self._of(self._content._replace(instances=instances, feature_names=names))

    def with_columns(self, **columns: ArrayLike) -> Bags:
        """The same bags carrying further instance-aligned columns."""
        given = {name: np.asarray(column) for name, column in columns.items()}
        merged = {**self.columns, **given}
        return self._from_content(self._content._replace(columns=merged))

    def filter(self, keep: ArrayLike | Callable[[Rows], bool]) -> Bags:
        """The same bags with only some of their instances.

        Parameters
        ----------
        keep : mask of shape (n_instances,), or callable
            A function gets the flat instances and returns the mask. All bags stay, so that labels
            stay aligned; drop those that lost everything with ``bags[bags.sizes > 0]``.

        Examples
        --------
        >>> import numpy as np
        >>> from bagwise import Bags
        >>> bags = Bags(np.arange(4.0)[:, None], [0, 2, 4])
        >>> bags.filter(np.array([True, False, True, True])).sizes.tolist()
        [1, 2]
        """
        mask = np.asarray(keep(self.instances) if callable(keep) else keep)
        if mask.shape != (self.n_instances,) or mask.dtype != bool:
            raise ValueError(
                f"a filter is a mask of {self.n_instances} booleans, one per instance; got "
                f"shape {mask.shape} of {mask.dtype}."
            )
        counts = np.concatenate([[0], np.cumsum(mask)])
        return self._rows(np.flatnonzero(mask), counts[self.offsets], self._content.ids)

    def merge(self, names: Any) -> Bags:
        """Bags of bags, such as patients of slides: those with one name become one bag.

        The ids of the former bags become the ``groups`` of the new ones; `by_group` is the way
        back. Rows on disk stay there.

        Parameters
        ----------
        names : sequence of str, one per bag
            New bags come in order of first appearance.

        Examples
        --------
        >>> import numpy as np
        >>> from bagwise import Bags
        >>> slides = Bags(np.ones((4, 2)), [0, 1, 3, 4], ids=["s1", "s2", "s3"])
        >>> patients = slides.merge(["a", "b", "a"])
        >>> patients.ids.tolist(), patients.groups.tolist()
        (['a', 'b'], ['s1', 's3', 's2', 's2'])
        """
        if self.groups is not None:
            raise ValueError("the bags have groups already; a group cannot hold groups.")
        names = np.asarray([str(name) for name in names], dtype=object)
        if len(names) != len(self):
            raise ValueError(f"merge needs one name per bag: got {len(names)} for {len(self)}.")
        order, ends, merged = grouped(names)
        ordered = self if order is None else self[order]
        columns = {**ordered.columns, "groups": ordered.ids[ordered.bag_index]}
        return self._from_content(
            ordered._content._replace(offsets=ordered.offsets[ends], ids=merged, columns=columns)
        )

    def by_group(self) -> Bags:
        """Every group as a bag of its own, such as the slides of patients, bag after bag.

        Examples
        --------
        >>> import numpy as np
        >>> from bagwise import Bags
        >>> patients = Bags(np.ones((3, 2)), [0, 2, 3], ids=["a", "b"], groups=["s1", "s2", "s3"])
        >>> patients.by_group().ids.tolist()
        ['s1', 's2', 's3']
        """
        if self.groups is None:
            raise ValueError("the bags have no groups; pass Bags(..., groups=...).")
        rows = group_rows(self.groups, self.bag_index)
        order = slice(None) if rows.order is None else rows.order
        bags = self._rows(order, rows.offsets, rows.names.astype(object))
        columns = {name: column for name, column in bags.columns.items() if name != "groups"}
        return self._of(bags._content._replace(columns=columns))

    def index_of(self, name: str) -> int:
        """Number of the bag with this id; `KeyError` where none or several have it.

        Examples
        --------
        >>> import numpy as np
        >>> from bagwise import Bags
        >>> Bags(np.ones((3, 2)), [0, 1, 3], ids=["s1", "s2"]).index_of("s2")
        1
        """
        at = np.flatnonzero(self.ids == name)
        if len(at) == 0:
            raise KeyError(f"no bag is called {name!r}; there are {frames.some(self.ids)}.")
        if len(at) > 1:
            raise KeyError(f"{len(at)} bags are called {name!r}: bags {at[:5].tolist()}.")
        return int(at[0])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(np.any(self.ids == name))

    def to_frame(self, bag: str = "slide_id") -> pd.DataFrame:
        """A pandas frame with one row per instance: the bag, the features and the columns.

        `from_frame` reads it again. Coordinates are called ``order``, or ``x``, ``y``, ``z``.

        Examples
        --------
        >>> import numpy as np
        >>> from bagwise import Bags
        >>> Bags(np.ones((2, 1)), [0, 1, 2], ids=["s1", "s2"], coords=[5, 7]).to_frame()
          slide_id   x0  order
        0       s1  1.0      5
        1       s2  1.0      7
        """
        return frames.write(self, bag)

    def describe(self) -> pd.Series:
        """What the bags are, in a few lines, as a pandas Series.

        Examples
        --------
        >>> import numpy as np
        >>> from bagwise import Bags
        >>> Bags(np.ones((3, 2)), [0, 1, 3]).describe()[["bags", "largest bag"]].tolist()
        [2, 2]
        """
        return frames.describe(self)

    def _repr_html_(self) -> str:
        return frames.html(self)

    def describe_bag(self, i: int) -> str:
        """Name of a bag for messages: ``bag 17 ('slide_0042')``."""
        return bag_name(i, self._content.ids)

    def __repr__(self) -> str:
        return (
            f"Bags({len(self)} bags, {self.n_instances} instances, "
            f"{width_of(self.instances.shape[1:])} features)"
        )


# Model files and pickles name the public place of the class.
Bags.__module__ = "bagwise.bags"
