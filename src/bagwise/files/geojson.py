"""GeoJSON as QuPath writes and reads it: squares of patches in full-resolution pixels.

Predictions are written as detections with their class, probability and standard deviation as
measurements; known labels as annotations. Reading takes annotations only: what the model said is
no label. https://qupath.readthedocs.io/en/stable/docs/advanced/exporting_annotations.html
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bagwise.bags import Bags
from bagwise.core.arrays import Column, Floats
from bagwise.files.problems import bad_file, check_file, one_line
from bagwise.files.writing import write_text

# An annotation labels a patch when it covers at least this share of it.
MIN_OVERLAP = 0.5
# Points per side at which a patch is looked up in a drawn shape.
_GRID = 8
# Coordinates beyond this overflow when areas are worked out.
_FARTHEST = 1e100
_COLORS = ([36, 86, 166], [184, 58, 14])  # negative, positive
_NAMESPACE = uuid.UUID("8c2c5d0e-6a39-4d7e-9d4b-5a4f3f6f2f10")


def patch_sizes(bags: Bags) -> NDArray[np.float64]:
    """Side of every patch: from the files where they say it, else the spacing of the grid.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import Bags
    >>> from bagwise.files import patch_sizes
    >>> coords = np.array([[0, 0], [256, 0], [0, 256]])
    >>> bags = Bags(np.ones((3, 2)), [0, 3], columns={"coords": coords})
    >>> patch_sizes(bags).tolist()
    [256.0, 256.0, 256.0]
    """
    coords = _coords(bags)
    size = bags.columns.get("patch_size")
    if size is not None:
        return np.asarray(size, dtype=np.float64)
    sides = np.empty(len(coords))
    for a, b in zip(bags.offsets[:-1], bags.offsets[1:], strict=True):
        sides[a:b] = common_gap(coords[a:b])
    return sides


def common_gap(coords: ArrayLike) -> float:
    """The commonest positive distance between neighbouring coordinates, 1 if there is none."""
    gaps = np.concatenate([np.diff(np.unique(column)) for column in np.asarray(coords).T[:2]])
    values, counts = np.unique(gaps, return_counts=True)
    return float(values[np.argmax(counts)]) if len(values) else 1.0


def _coords(bags: Bags) -> NDArray[np.float64]:
    coords = bags.columns.get("coords")
    if coords is None:
        raise ValueError("the bags have no coordinates; GeoJSON needs them (dataset 'coords').")
    return np.asarray(coords, dtype=np.float64)[:, :2]


def write_geojson(
    folder: str | Path,
    bags: Bags,
    probability: ArrayLike,
    std: Floats | None = None,
    *,
    classes: Sequence[object],
    instance_labels: Column | None = None,
) -> list[Path]:
    """Write one file per bag for QuPath's *File > Import objects*.

    Parameters
    ----------
    folder : path
    bags : Bags with the column ``coords``
    probability : array of shape (n_instances,)
        Of the positive class, which a patch is given from 0.5.
    std : array of shape (n_instances,) or None, default=None
        Its standard deviation.
    classes : (negative, positive)
    instance_labels : array of shape (n_instances,) or None, default=None
        Known classes, None where unknown; written as annotations beside the detections.

    Examples
    --------
    >>> import pathlib, tempfile, numpy as np
    >>> from bagwise import Bags
    >>> from bagwise.files import read_geojson, write_geojson
    >>> bags = Bags(np.ones((2, 3)), [0, 2], ["s1"], columns={"coords": [[0, 0], [256, 0]]})
    >>> known = np.array([None, "tumour"], dtype=object)
    >>> (path,) = write_geojson(tempfile.mkdtemp(), bags, [0.1, 0.8], classes=["normal", "tumour"],
    ...                         instance_labels=known)
    >>> read_geojson(path, bags, ["normal", "tumour"]).tolist()
    [None, 'tumour']
    """
    coords, sides = _coords(bags), patch_sizes(bags)
    probability = np.asarray(probability, dtype=np.float64)
    texts = [str(c) for c in classes]
    folder = Path(folder)
    written = []
    for name, start, stop in zip(bags.ids, bags.offsets[:-1], bags.offsets[1:], strict=True):
        features = []
        for row in range(int(start), int(stop)):
            measured = {"index": row - int(start), "probability": round(float(probability[row]), 6)}
            if std is not None and np.isfinite(std[row]):
                measured["std"] = round(float(std[row]), 6)
            drawn = {"detection": int(probability[row] >= 0.5)}
            if instance_labels is not None and instance_labels[row] is not None:
                drawn["annotation"] = texts.index(str(instance_labels[row]))
            (x, y), side = coords[row].tolist(), float(sides[row])
            square = [[x, y], [x + side, y], [x + side, y + side], [x, y + side], [x, y]]
            for kind, code in drawn.items():
                properties: dict[str, Any] = {
                    "objectType": kind,
                    "classification": {"name": texts[code], "color": _COLORS[code]},
                    "measurements": measured,
                }
                if kind == "annotation":
                    properties["isLocked"] = True
                place = f"{name}/{measured['index']}/{kind}"
                features.append(
                    {
                        "type": "Feature",
                        "id": str(uuid.uuid5(_NAMESPACE, place)),
                        "geometry": {"type": "Polygon", "coordinates": [square]},
                        "properties": properties,
                    }
                )
        written.append(folder / f"{quote(str(name), safe=' ')}.geojson")
        content = {"type": "FeatureCollection", "features": features}
        write_text(written[-1], json.dumps(content, allow_nan=False))
    return written


def read_geojson(
    path: str | Path, bags: Bags, classes: Sequence[object], bag: str | None = None
) -> Column:
    """Instance labels from annotations drawn in QuPath; None where nothing was drawn.

    A patch takes the class of an annotation that covers at least half of it. Annotations
    without a class, or of another class, are left out; detections are not labels.

    Parameters
    ----------
    path : path
        GeoJSON of one slide: a FeatureCollection, a list of features, or one feature.
    bags : Bags with the column ``coords``
    classes : (negative, positive)
    bag : str or None, default=None
        Which bag the file is about; default: the bag that the file is named after.

    Returns
    -------
    array of shape (n_instances,) of object

    Examples
    --------
    >>> import json, pathlib, tempfile, numpy as np
    >>> from bagwise import Bags
    >>> from bagwise.files import read_geojson
    >>> bags = Bags(np.ones((2, 3)), [0, 2], ["s1"], columns={"coords": [[0, 0], [256, 0]]})
    >>> square = [[0, 0], [256, 0], [256, 256], [0, 256], [0, 0]]
    >>> drawn = {"type": "Feature", "geometry": {"type": "Polygon", "coordinates": [square]},
    ...          "properties": {"classification": {"name": "tumour"}}}
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "s1.geojson"
    >>> _ = path.write_text(json.dumps([drawn]))
    >>> read_geojson(path, bags, ["normal", "tumour"]).tolist()
    ['tumour', None]
    """
    path = Path(path)
    texts = [str(c) for c in classes]
    ids = [str(v) for v in bags.ids]
    name = bag
    if name is None:
        named = (n for n in ids if path.stem in (n, quote(n, safe=" ")))
        name = next(named, path.stem)
    if name not in ids:
        raise bad_file(path, f"is about bag {name!r}, which is not among the bags; name it")
    i = ids.index(name)
    rows = slice(int(bags.offsets[i]), int(bags.offsets[i + 1]))
    corners, sides = _coords(bags)[rows], patch_sizes(bags)[rows]
    labels = np.full(bags.n_instances, None, dtype=object)
    for number, feature in enumerate(_features(path)):
        label = _label_of(path, number, feature, texts)
        if label is None:
            continue
        covered = _overlap(path, number, feature.get("geometry"), corners, sides) >= MIN_OVERLAP
        for k in np.flatnonzero(covered):
            if labels[rows.start + k] not in (None, label):
                what = f"instance {k} of bag {name!r} is covered by annotations of both classes"
                raise bad_file(path, what)
            labels[rows.start + k] = label
    return labels


def _features(path: Path) -> list[dict[str, Any]]:
    content = read_json(path)
    if isinstance(content, dict) and content.get("type") == "FeatureCollection":
        content = content.get("features")
        if content is None:
            raise bad_file(path, "is a FeatureCollection without 'features'")
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        raise bad_file(path, "is not GeoJSON: features must be a list")
    for number, feature in enumerate(content):
        if not isinstance(feature, dict) or feature.get("type") != "Feature":
            raise bad_file(path, f"feature {number} is not a GeoJSON Feature")
    return content


def _label_of(path: Path, number: int, feature: dict[str, Any], texts: list[str]) -> str | None:
    properties = feature.get("properties") or {}
    if not isinstance(properties, dict):
        raise bad_file(path, f"feature {number}: 'properties' is not an object")
    # Older versions of QuPath call it object_type.
    kind = properties.get("objectType", properties.get("object_type", "annotation"))
    if kind != "annotation":
        return None
    classification = properties.get("classification")
    if classification is None:
        return None
    name = classification.get("name") if isinstance(classification, dict) else None
    if name is None:
        names = classification.get("names") if isinstance(classification, dict) else None
        if not isinstance(names, list) or not names:
            raise bad_file(path, f"feature {number}: the classification has no 'name'")
        name = names[0]
    return str(name) if str(name) in texts else None


def _overlap(
    path: Path, number: int, geometry: Any, corners: Floats, sides: Floats
) -> NDArray[np.float64]:
    """Share of each patch that a Polygon or MultiPolygon covers, at a grid of points."""
    from matplotlib.path import Path as Outline

    kind = geometry.get("type") if isinstance(geometry, dict) else None
    coordinates = geometry.get("coordinates") if isinstance(geometry, dict) else None
    if kind not in ("Polygon", "MultiPolygon") or not coordinates:
        raise bad_file(path, f"feature {number}: needs a Polygon or MultiPolygon; got {kind!r}")
    try:
        polygons = [
            [np.asarray(ring, dtype=np.float64)[:, :2] for ring in polygon]
            for polygon in ([coordinates] if kind == "Polygon" else coordinates)
        ]
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise bad_file(path, f"feature {number}: the coordinates are not points") from error
    for ring in [ring for rings in polygons for ring in rings]:
        # Beyond this size the products that tell inside from outside are infinite.
        if ring.shape[1] != 2 or not (np.abs(ring) < _FARTHEST).all():
            raise bad_file(path, f"feature {number}: the coordinates are not points")
    if any(min(map(len, rings), default=0) < 4 for rings in polygons):
        raise bad_file(path, f"feature {number}: a ring needs at least four points")
    steps = (np.arange(_GRID) + 0.5) / _GRID
    grid = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)  # [g, 2]
    points = (corners[:, None] + grid * sides[:, None, None]).reshape(-1, 2)
    inside = np.zeros(len(points), dtype=bool)
    for outer, *holes in polygons:
        part = Outline(outer).contains_points(points)
        for hole in holes:
            part &= ~Outline(hole).contains_points(points)
        inside |= part
    return inside.reshape(len(corners), -1).mean(axis=1)


def read_json(path: Path) -> Any:
    """A JSON file, or one line about why it cannot be read."""
    check_file(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise bad_file(path, f"is not JSON: {one_line(error)}") from error
