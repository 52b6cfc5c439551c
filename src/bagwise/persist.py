"""Save and load models without pickle.

A model file is a zip with two members: ``bagwise.json``, what the model is and what it was
trained on, readable by anyone; and ``model.zip``, its parameters: a tree of JSON, arrays as
``.npy``, and in ``foreign.skops`` what only skops can store. Loading builds only objects of a
closed list of types (bagwise's estimators and value types, NumPy, SciPy, scikit-learn), so
nothing a file says is ever executed. Both members carry a checksum, what the description says is
of the type it should be, and a file that would unpack to far more than its size is refused.

A class whose attributes cannot be stored (torch modules, say) may define
``__bagwise_state__()``, returning a dict of arrays and plain values, and the class method
``__bagwise_restore__(state)``, which builds the object again.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import platform
import sys
import textwrap
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator

from bagwise import __version__
from bagwise.bags import Bags
from bagwise.files import new_file
from bagwise.files.limits import check_zip
from bagwise.files.problems import UNREADABLE, check_file, one_line
from bagwise.files.writing import plain_json

if TYPE_CHECKING:
    from bagwise.core.arrays import Column


FORMAT = "bagwise-model"
FORMAT_VERSION = 4
# Format 3 was written by early builds of 0.3: the same models, stored by skops as a whole.
_OLDEST_FORMAT = 3
_ABOUT, _MODEL, _SKOPS_MODEL = "bagwise.json", "model.zip", "model.skops"
_TREE, _ARRAY, _FOREIGN = "tree.json", "{}.npy", "foreign.skops"
# Parts of bagwise whose classes may be in a model; the rest has no business there.
_OWN_PACKAGES = ("core", "bags", "models", "evaluate", "vision", "deep")

# Libraries whose versions a description lists.
_LIBRARIES = ("numpy", "scipy", "scikit-learn", "skops")

# How skops may store a part of a model. Those that call something when they are built are not
# among them: methods, partials, operators, constructors.
_NODES = frozenset(
    f"{name}Node"
    for name in (
        *("Json", "Dict", "DefaultDict", "_DictWithDeprecatedKeys", "List", "Set", "Tuple"),
        *("Bytes", "Bytearray", "Slice", "Object", "Type", "Function", "Loss", "SGD"),
        *("NdArray", "MaskedArray", "DType", "RandomState", "RandomGenerator", "SparseMatrix"),
        "Cached",
    )
)


def save(
    model: object,
    path: str | Path,
    *,
    bags: Bags | None = None,
    y: Column | None = None,
    feature_names: Sequence[str] | None = None,
    extra: Mapping[str, object] | None = None,
) -> Path:
    """Save a fitted model to a file, whole or not at all.

    Parameters
    ----------
    model : estimator
        Any bagwise estimator or pipeline.
    path : path
        Conventionally ends in ``.bagwise``. An existing file is replaced.
    bags, y : Bags and labels or None, default=None
        What the model was trained on; a summary is stored beside it, never the data.
    feature_names : sequence of str or None, default=None
    extra : mapping or None, default=None
        Anything JSON can hold, such as results of cross-validation.

    Returns
    -------
    Path
        Where the model was saved.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from sklearn.linear_model import LogisticRegression
    >>> import bagwise
    >>> from bagwise.datasets import make_gaussian_bags
    >>> bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> model = bagwise.SingleInstance(LogisticRegression()).fit(bags, y)
    >>> path = bagwise.save(model, pathlib.Path(tempfile.mkdtemp()) / "model.bagwise")
    >>> bool((bagwise.load(path).predict(bags) == model.predict(bags)).all())
    True
    """
    parts = _parts(model)
    if refused := _refused(parts):
        raise ValueError(
            f"{type(model).__name__} cannot be saved: it holds {', '.join(refused)}; only "
            "bagwise, NumPy, SciPy and scikit-learn objects are stored."
        )
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    payload = content.getvalue()
    about = {
        **_describe(model),
        "feature_names": None if feature_names is None else list(feature_names),
        "training": None if bags is None else summarise(bags, y),
        "extra": dict(extra or {}),
        "fingerprints": None if bags is None else fingerprints(bags),
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    about = json.loads(json.dumps(about, default=plain_json))
    about["description_sha256"] = _description_checksum(about)
    with new_file(path) as draft, zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_ABOUT, json.dumps(about, indent=1))
        archive.writestr(_MODEL, payload)
    return Path(path)


def load(path: str | Path) -> Any:
    """Load a model that `save` wrote; nothing in the file is executed.

    Raises
    ------
    ValueError
        When the file is not a bagwise model, is damaged, was written by a newer bagwise or one
        before 0.3, or holds a type that is not on the closed list.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from sklearn.linear_model import LogisticRegression
    >>> from bagwise import SingleInstance, load, save
    >>> from bagwise.datasets import make_gaussian_bags
    >>> bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.bagwise"
    >>> _ = save(SingleInstance(LogisticRegression()).fit(bags, y), path)
    >>> load(path).predict(bags).shape
    (20,)
    """
    with _opened(path) as archive:
        about = _read_about(path, archive)
        old = about["format_version"] == _OLDEST_FORMAT
        payload = _read_member(path, archive, _SKOPS_MODEL if old else _MODEL)
    if hashlib.sha256(payload).hexdigest() != about.get("sha256"):
        raise ValueError(f"{path}: is damaged: its content does not match its checksum.")
    with _explained(path, "the model in it cannot be read"):
        check_zip(io.BytesIO(payload), Path(path).stat().st_size)
        with zipfile.ZipFile(io.BytesIO(payload)) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        if old:
            parts = {_TREE: b'{"whole": 0}', _FOREIGN: payload}
        refused = _refused(parts)
    if refused:
        raise ValueError(
            f"{path}: refused: it holds {', '.join(refused)}, which no bagwise model has. "
            "Nothing in it was executed."
        )
    with _explained(path, "the model in it cannot be read"), warnings.catch_warnings():
        # scikit-learn warns about other versions of itself; `about` has them for who asks.
        warnings.filterwarnings("ignore", message="Trying to unpickle", module="sklearn")
        model = _built(parts)
    with _explained(path, "the model in it is damaged and cannot predict"):
        classes = _describe(model)["classes"]
        if json.loads(json.dumps(classes, default=plain_json)) != about["classes"]:
            raise ValueError("its classes are not those of its description")
        _check_shapes(model, about["n_features"])
    return model


def _check_shapes(model: Any, n_features: int | None) -> None:
    """Predict bags of ones: arrays that do not fit together fail here, and not in front of a user.

    What a model says of these bags is not looked at, nor what it asks of them beyond numbers.
    """
    steps = [step for _, step in getattr(model, "steps", [("", model)])]
    # Networks may take images, whose shape a description does not say.
    if n_features is None or any(getattr(step, "_allow_nd", False) for step in steps):
        return
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for name in ("predict", "predict_proba_instances"):
            if hasattr(model, name):
                try:
                    getattr(model, name)(Bags(np.ones((3, n_features)), [0, 1, 3]))
                except (ValueError, RuntimeError, OSError, ImportError):
                    pass  # coordinates, devices and clusters that are not there are no damage
                except Exception as error:
                    raise TypeError(one_line(error)) from error


def about(path: str | Path) -> dict[str, Any]:
    """What a model file says about itself, without building the model.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> import bagwise
    >>> bags, y = bagwise.datasets.make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> model = bagwise.StatisticsClassifier().fit(bags, y)
    >>> path = bagwise.save(model, pathlib.Path(tempfile.mkdtemp()) / "m.bagwise", bags=bags, y=y)
    >>> bagwise.persist.about(path)["training"]["n_bags"]
    20
    """
    with _opened(path) as archive:
        return _read_about(path, archive)


def summarise(bags: Bags, y: Column | None = None) -> dict[str, object]:
    """Counts that describe a data set, as plain numbers."""
    sizes = bags.sizes
    summary: dict[str, object] = {
        "n_bags": len(bags),
        "n_instances": bags.n_instances,
        "n_features": bags.n_features,
        "dtype": str(bags.dtype),
        "bag_sizes": {
            "min": int(sizes.min()),
            "median": float(np.median(sizes)),
            "max": int(sizes.max()),
        },
    }
    if y is not None:
        labels = np.asarray(y)
        if labels.ndim == 2:  # an indicator matrix: bags of each class, which may overlap
            classes, counts = getattr(y, "columns", range(labels.shape[1])), labels.sum(0)
        else:
            classes, counts = np.unique(labels, return_counts=True)
        summary["classes"] = {str(c): int(n) for c, n in zip(classes, counts, strict=True)}
    return summary


def fingerprints(bags: Bags) -> list[str]:
    """A short hash of every bag, from its size and its first and last instance.

    They tell whether bags were among those a model was trained on, and nothing else about them.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import Bags
    >>> from bagwise.persist import fingerprints
    >>> a, b, c = fingerprints(Bags.from_list([np.ones((2, 3)), np.zeros((2, 3)), np.ones((2, 3))]))
    >>> a == c, a == b
    (True, False)
    """
    filled = bags.sizes > 0
    ends = np.stack([bags.offsets[:-1][filled], bags.offsets[1:][filled] - 1], axis=1).ravel()
    rows = bags.instances[ends]
    rows = rows.toarray() if hasattr(rows, "toarray") else rows
    rows = rows.detach().cpu() if hasattr(rows, "detach") else rows
    # Half of the digits: the same numbers stored as float32 and float64 must agree.
    values = np.ascontiguousarray(np.asarray(rows), dtype=np.float32)
    values = values.reshape(int(filled.sum()), -1)
    content = iter(values)
    return [
        hashlib.sha256(b"%d:" % n + (next(content).tobytes() if n else b"")).hexdigest()[:16]
        for n in bags.sizes.tolist()
    ]


def _describe(model: object) -> dict[str, object]:
    steps = [step for _, step in getattr(model, "steps", [("", model)])]
    classes = getattr(model, "classes_", None)
    n_features = getattr(steps[0], "n_features_in_", None)
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "bagwise": __version__,
        "versions": {"python": platform.python_version(), **{n: version(n) for n in _LIBRARIES}},
        "model": type(steps[-1]).__name__,
        "parameters": {k: repr(v) for k, v in steps[-1].get_params(deep=False).items()},
        "steps": [type(step).__name__ for step in steps],
        "n_features": None if n_features is None else int(n_features),
        "classes": None if classes is None else np.asarray(classes).tolist(),
    }


# Reading, with every failure turned into one line about the file.


def _opened(path: str | Path) -> zipfile.ZipFile:
    check_file(Path(path))
    with _explained(path, "is not a bagwise model, or is cut short"):
        archive = zipfile.ZipFile(path)
    try:
        with _explained(path, "is refused"):
            check_zip(path, Path(path).stat().st_size, depth=0)
    except ValueError:
        archive.close()
        raise
    return archive


def _read_member(path: str | Path, archive: zipfile.ZipFile, name: str) -> bytes:
    if name not in archive.namelist():
        raise ValueError(f"{path}: is not a bagwise model: it has no {name}.")
    with _explained(path, "is damaged"):
        return archive.read(name)


def _read_about(path: str | Path, archive: zipfile.ZipFile) -> dict[str, Any]:
    try:
        about = json.loads(_read_member(path, archive, _ABOUT).decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: is damaged: its description is not JSON ({error}).") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise ValueError(f"{path}: is not a bagwise model.")
    written = about.get("format_version")
    if not isinstance(written, int) or isinstance(written, bool):
        raise ValueError(f"{path}: is damaged: its format version is {written!r}.")
    if written > FORMAT_VERSION:
        raise ValueError(
            f"{path}: was saved by bagwise {about.get('bagwise')} in format {written}; this "
            f"bagwise {__version__} reads formats up to {FORMAT_VERSION}. Update bagwise."
        )
    if written < _OLDEST_FORMAT:
        raise ValueError(
            f"{path}: was written by bagwise {about.get('bagwise')}, whose models bagwise "
            f"{__version__} cannot read; fit the model again with this version."
        )
    if about.get("description_sha256") != _description_checksum(about):
        raise ValueError(f"{path}: is damaged: its description does not match its checksum.")
    if wrong := _first_wrong(about):
        raise ValueError(f"{path}: is damaged: its description has a wrong {wrong}.")
    return about


def _description_checksum(about: Mapping[str, object]) -> str:
    """Of everything the description says but the checksum itself."""
    content = {key: value for key, value in about.items() if key != "description_sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _first_wrong(about: Mapping[str, Any]) -> str | None:
    """The first part of a description that is missing or not of the type the commands rely on."""
    if not isinstance(about.get("extra"), dict):
        return "'extra'"
    extra = {name: value for name, value in about["extra"].items() if name in _EXTRA}
    wrong = [name for name in _PARTS if name not in about or not _fits(about[name], _PARTS[name])]
    wrong += [name for name, value in extra.items() if not _fits(value, _EXTRA[name])]
    return repr(wrong[0]) if wrong else None


def _fits(value: Any, shape: Any) -> bool:
    """Whether a value of JSON is of a shape.

    A shape is a type, a function, None, ``[shape of the items]``, ``{str: shape of the values}``,
    ``{"name": shape, ...}`` for a record of these parts and no others, or a tuple of alternatives.
    """
    if isinstance(shape, tuple):
        return any(_fits(value, one) for one in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(item, shape[0]) for item in value)
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return False
        if str in shape:
            return all(_fits(item, shape[str]) for item in value.values())
        parts = (_fits(value.get(name), one) for name, one in shape.items())
        return value.keys() <= shape.keys() and all(parts)
    if isinstance(shape, type):
        return isinstance(value, shape)
    return value is None if shape is None else bool(shape(value))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_pair_of_names(value: Any) -> bool:
    return _fits(value, [_PLAIN]) and len(value) == 2


def _is_code(value: object) -> bool:
    return _is_count(value) and value in (0, 1)


def _is_probability(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value <= 1


def _is_evaluation(value: Any) -> bool:
    """Whether a stored evaluation has a code and a probability per bag and column of classes."""
    codes, probabilities = [[_is_code]], [[_is_probability]]
    groups = ([_is_count], None)
    shape = {"source": str, "classes": [_PLAIN], "y": codes, "p": probabilities, "groups": groups}
    if not _fits(value, shape):
        return False
    classes, y, p, groups = value["classes"], value["y"], value["p"], value.get("groups")
    width = len(y[0]) if y else 0
    return (
        width in ((1, 2) if len(classes) == 2 else (len(classes),))
        and all(len(row) == width for row in [*y, *p])
        and len(y) == len(p)
        and (groups is None or (len(groups) == len(y) and max(groups) < len(y)))
    )


_PLAIN = (str, int, float)  # what a class may be called
_TRAINING = {
    **dict.fromkeys(("n_bags", "n_instances", "n_features"), _is_count),
    "dtype": str,
    "bag_sizes": {str: (int, float)},
    "classes": ({str: _is_count}, None),
}
_FINDING = dict.fromkeys(("check", "what", "where", "strength"), str)
_PARTS = {
    "bagwise": str,
    "model": str,
    "steps": [str],
    "parameters": {str: str},
    "classes": ([_PLAIN], None),
    "n_features": (_is_count, None),
    "feature_names": ([str], None),
    "training": (_TRAINING, None),
    "fingerprints": ([str], None),
}
# What the commands add, where they do.
_EXTRA = {
    "name": str,
    "remarks": [str],
    "class_names": (_is_pair_of_names, None),
    "positive_classes": ([str], None),
    "audit": ({"checks": [str], "findings": [_FINDING]}, None),
    "evaluation": (_is_evaluation, None),
}


@contextmanager
def _explained(path: str | Path, what: str) -> Iterator[None]:
    """Whatever reading raises, as a ValueError about the file.

    A library's message is cut short: a crafted file can make it as long as it likes.
    """
    try:
        yield
    except UNREADABLE as error:
        why = textwrap.shorten(one_line(error), 300, placeholder=" ...")
        raise ValueError(f"{path}: {what} ({why}).") from error


# The parameters.


def _parts(model: object) -> dict[str, bytes]:
    """A model as a tree of JSON, arrays, and what only skops can store.

    skops imports most of scikit-learn: where nothing needs it, saving and loading do without.
    """
    arrays: dict[int, tuple[int, Any]] = {}
    foreign: dict[int, tuple[int, Any]] = {}

    def place(value: object, among: dict[int, tuple[int, Any]]) -> int:
        """The number of a part, the same wherever it is used; ``among`` keeps it alive."""
        return among.setdefault(id(value), (len(among), value))[0]

    def tree(value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if kind is list:
            return [tree(item) for item in value]
        if kind is tuple:
            return {"tuple": [tree(item) for item in value]}
        if kind is dict:
            return {"dict": [[tree(key), tree(item)] for key, item in value.items()]}
        if kind is np.ndarray and not value.dtype.hasobject:
            return {"array": place(value, arrays)}
        if kind is bytes:
            return {"bytes": place(np.frombuffer(value, np.uint8), arrays)}
        if isinstance(value, np.number | np.bool_ | np.str_):
            return {"scalar": place(np.asarray(value), arrays)}
        if isinstance(value, np.dtype) and value.isbuiltin == 1:
            return {"dtype": value.str}
        name = f"{kind.__module__}.{kind.__qualname__}"
        if _stored_class(name) is kind:
            return {"object": name, "state": tree(_state(value))}
        return {"foreign": place(value, foreign)}

    parts = {_TREE: json.dumps(tree(model)).encode()}
    for number, array in arrays.values():
        content = io.BytesIO()
        np.lib.format.write_array(content, array, allow_pickle=False)
        parts[_ARRAY.format(number)] = content.getvalue()
    if foreign:
        parts[_FOREIGN] = _skops().dumps([value for _, value in foreign.values()])
    return parts


def _state(value: Any) -> Any:
    if hasattr(value, "__bagwise_state__"):
        return value.__bagwise_state__()
    return list(value) if isinstance(value, tuple) else value.__getstate__()


def _refused(parts: Mapping[str, bytes]) -> list[str]:
    """Types that are not on the closed list, and what skops stored as none of ours is."""
    tree = json.loads(parts[_TREE])
    names = {part["object"] for part in _dicts(tree) if "object" in part}
    refused = [name for name in names if _stored_class(name) is None]
    return sorted(refused + (_types(parts[_FOREIGN])[1] if _FOREIGN in parts else []))


def _built(parts: Mapping[str, bytes]) -> Any:
    """The model; only where nothing is refused."""
    arrays = {
        name: np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
        for name, content in parts.items()
        if name.endswith(".npy")
    }
    foreign: Any = []
    if payload := parts.get(_FOREIGN):
        foreign = _skops().loads(payload, trusted=_types(payload)[0])

    def build(part: dict[str, Any]) -> Any:
        """What a dictionary of the tree stands for; what is inside it is built already."""
        match part:
            case {"tuple": items}:
                return tuple(items)
            case {"dict": pairs}:
                return dict(pairs)
            case {"array": number}:
                return arrays[_ARRAY.format(number)]
            case {"bytes": number}:
                return arrays[_ARRAY.format(number)].tobytes()
            case {"scalar": number}:
                return arrays[_ARRAY.format(number)][()]
            case {"dtype": name}:
                return np.dtype(name)
            case {"foreign": number}:
                return foreign[number]
            case {"whole": _}:
                return foreign
            case {"object": name, "state": state}:
                return _restored(_stored_class(name), state)
        raise ValueError(f"it has an unknown part, {', '.join(part)}")

    return json.loads(parts[_TREE], object_hook=build)


def _restored(kind: Any, state: Any) -> Any:
    if hasattr(kind, "__bagwise_restore__"):
        return kind.__bagwise_restore__(state)
    if issubclass(kind, tuple):
        return kind(*state)
    value = object.__new__(kind)
    if hasattr(value, "__setstate__"):
        value.__setstate__(state)
    else:
        vars(value).update(state or {})
    return value


# The closed list.


def _skops() -> Any:
    """``skops.io``, imported without torch, dask and cupy.

    It lists the estimators of scikit-learn by importing its modules. Those that adapt other
    libraries hold none, and would import the libraries.
    """
    adapters = [f"sklearn.externals.array_api_compat.{name}" for name in ("torch", "dask", "cupy")]
    absent = [name for name in adapters if name not in sys.modules]
    for name in absent:
        sys.modules[name] = None  # type: ignore[assignment]  # an import says: not found
    try:
        return importlib.import_module("skops.io")
    finally:
        for name in absent:
            del sys.modules[name]


def _dicts(tree: object) -> Iterator[dict[str, Any]]:
    """Every dictionary in a tree of JSON, however deep."""
    left = [tree]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
        if isinstance(part, (dict, list)):
            left += part.values() if isinstance(part, dict) else part


def _types(payload: bytes) -> tuple[list[str], list[str]]:
    """Types that skops stored beyond those it vouches for itself; those that are refused."""
    # Our own walk comes first, wherever the parts are in the schema: what skops reports has had
    # gaps.
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        schema = json.loads(archive.read("schema.json"))
    odd = {
        f"{part.get('__module__')}.{part.get('__class__')} ({part['__loader__']})"
        for part in _dicts(schema)
        if part.get("__loader__", "JsonNode") not in _NODES
    }
    if odd:
        return [], sorted(odd)
    types = _skops().get_untrusted_types(data=payload)
    known = _library_types()
    return types, [t for t in types if t not in known and _stored_class(t) is None]


@cache
def _library_types() -> frozenset[str]:
    """Types of NumPy, SciPy and scikit-learn that models hold, beyond the estimators."""
    names = {
        "numpy.dtype",
        "scipy.interpolate._interpolate.interp1d",
        *(f"scipy.sparse._{k}.{k}_{t}" for k in ("csr", "csc", "coo") for t in ("array", "matrix")),
        "sklearn.calibration._CalibratedClassifier",
        "sklearn.calibration._SigmoidCalibration",
        "sklearn.gaussian_process._gpc._BinaryGaussianProcessClassifierLaplace",
        "sklearn.metrics._scorer._PassthroughScorer",
        "sklearn.utils._bunch.Bunch",
    }
    for module, base in [
        ("sklearn.gaussian_process.kernels", "Kernel"),
        ("sklearn.model_selection._split", "_MetadataRequester"),
    ]:
        content = vars(importlib.import_module(module))
        # What the module itself defines, not what it imports.
        types = [t for t in content.values() if isinstance(t, type) and t.__module__ == module]
        names |= {f"{module}.{t.__name__}" for t in types if issubclass(t, content[base])}
    return frozenset(names)


def _stored_class(name: str) -> type | None:
    """A class that is stored by its attributes: an estimator, a value type of bagwise's, or Bags.

    Estimators of scikit-learn are, those of its tests and of what it only brings along are not.
    """
    module, _, class_name = name.rpartition(".")
    package, *rest = module.split(".")
    own = package == "bagwise" and rest[:1] and rest[0] in _OWN_PACKAGES
    if not own and (package != "sklearn" or {"tests", "externals", "conftest"} & set(rest)):
        return None
    try:
        kind = getattr(importlib.import_module(module), class_name, None)
    except ImportError:
        return None
    if not isinstance(kind, type) or kind.__module__ != module:
        return None
    is_value = is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    stores_itself = hasattr(kind, "__bagwise_restore__")
    trusted = issubclass(kind, BaseEstimator) or (
        own and (is_value or stores_itself or issubclass(kind, Bags))
    )
    return kind if trusted else None
