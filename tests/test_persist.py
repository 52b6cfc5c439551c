"""Models on disk: they come back the same, and nothing in a file is ever executed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp
import skops.io
from sklearn.base import BaseEstimator
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import RandomForestClassifier
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import bagwise
from bagwise import Bags, InstanceTransformer, SingleInstance, make_pipeline, persist
from bagwise.models.registry import MODELS, load_class, make_model
from tests.checks import make_problem
from tests.checks.contract import assert_same, outputs
from tests.filing import failing, sign

FIXTURES = Path(__file__).parent / "fixtures"
QUICK = {
    "vgpmil": {"n_inducing": 10},
    "auto": {"n_inducing": 10},
    "lm-vgpmil": {"n_inducing": 10, "max_iter": 500},
    "psi-vgpmil": {"n_inducing": 10},
    "g-vgpmil": {"n_inducing": 10},
    "mi-forest": {"n_estimators": 8, "n_steps": 2},
}


@pytest.fixture(scope="module")
def problem():
    bags, y, _ = make_problem()
    return bags, y


def need_family(name):
    """Skip where an installation lacks a family of models."""
    try:
        return load_class(MODELS[name])
    except ModuleNotFoundError as error:
        return pytest.skip(f"{name} is not installed: {error}")


def saved(model, tmp_path, **more):
    return persist.save(model, tmp_path / "model.bagwise", **more)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_comes_back_exactly(name, problem, tmp_path):
    bags, y = problem
    need_family(name)
    model = make_model(name, **QUICK.get(name, {})).fit(bags, y)
    again = bagwise.load(saved(model, tmp_path))
    assert type(again) is type(model)
    assert_same(outputs(model, bags), outputs(again, bags), tol=0)
    assert repr(again.get_params()) == repr(model.get_params())


@pytest.mark.parametrize(
    "model",
    [
        SingleInstance(SVC()),
        SingleInstance(GaussianProcessClassifier(ConstantKernel() * RBF(2.0))),
        make_pipeline(InstanceTransformer(StandardScaler()), SingleInstance(LogisticRegression())),
        SingleInstance(CalibratedClassifierCV(LogisticRegression(), method="isotonic", cv=3)),
        SingleInstance(CalibratedClassifierCV(LogisticRegression(), cv=3)),
        GridSearchCV(SingleInstance(LogisticRegression()), {"estimator__C": [0.1, 1]}, cv=2),
    ],
    ids=lambda model: type(model).__name__,
)
def test_scikit_learn_inside(model, problem, tmp_path):
    bags, y = problem
    model.fit(bags, y)
    assert_same(outputs(model, bags), outputs(bagwise.load(saved(model, tmp_path)), bags), tol=0)


@pytest.mark.parametrize("kind", ["csr_array", "csc_array", "coo_array", "csr_matrix"])
def test_sparse_attributes(kind, problem, tmp_path, rng):
    bags, y = problem
    model = SingleInstance(LogisticRegression()).fit(bags, y)
    model.sparse_ = getattr(sp, kind)(rng.normal(size=(3, 4)) > 0.5)
    model.bags_ = Bags(sp.csr_array(np.eye(3)), [0, 1, 3], ids=["a", "b"])
    again = bagwise.load(saved(model, tmp_path))
    np.testing.assert_array_equal(again.sparse_.toarray(), model.sparse_.toarray())
    np.testing.assert_array_equal(again.bags_[1].toarray(), np.eye(3)[1:])
    assert again.bags_.ids.tolist() == ["a", "b"]


def test_other_class_labels_and_names(problem, tmp_path):
    bags, y = problem
    model = SingleInstance(LogisticRegression()).fit(bags, np.array(["benign", "malignant"])[y])
    path = saved(model, tmp_path, bags=bags, y=y, feature_names=["a", "b", "c"], extra={"k": 1})
    assert bagwise.load(path).predict(bags).tolist() == model.predict(bags).tolist()
    about = persist.about(path)
    assert about["classes"] == ["benign", "malignant"]
    assert about["feature_names"] == ["a", "b", "c"]
    assert about["training"]["classes"] == {"0": 12, "1": 12}
    assert about["n_features"] == 3
    assert about["extra"] == {"k": 1}
    assert about["bagwise"] == bagwise.__version__


def test_models_of_this_format_load():
    files = sorted(FIXTURES.glob("*-0.3.*.bagwise"))
    assert files
    for path in files:
        model = bagwise.load(path)
        expected = np.load(path.with_name(path.name.replace(".bagwise", ".npz")))
        bags = Bags(expected["instances"], expected["offsets"])
        np.testing.assert_allclose(model.predict_proba(bags)[:, 1], expected["p"], rtol=1e-6)
        np.testing.assert_allclose(
            model.predict_proba_instances(bags)[:, 1], expected["p_instances"], rtol=1e-6, atol=1e-9
        )


@pytest.mark.parametrize("read", [bagwise.load, persist.about])
def test_models_of_0_2_must_be_fitted_again(read):
    path = FIXTURES / "vgpmil-0.2.0.bagwise"
    with pytest.raises(ValueError, match=r"was written by bagwise 0\.2\.0.*fit .* again") as caught:
        read(path)
    assert "\n" not in str(caught.value)


# Objects that store themselves.


class Stranger:
    """Something skops knows nothing about; stands for a torch module."""

    def __init__(self, weights):
        self.weights = weights
        self.handle = lambda: None  # cannot be stored

    def __bagwise_state__(self):
        return {"weights": self.weights}

    @classmethod
    def __bagwise_restore__(cls, state):
        return cls(state["weights"])


def test_objects_that_store_themselves(monkeypatch, tmp_path, problem):
    bags, y = problem
    monkeypatch.setattr(bagwise.models, "Stranger", Stranger, raising=False)
    monkeypatch.setattr(Stranger, "__module__", "bagwise.models")
    inner = SingleInstance(LogisticRegression()).fit(bags, y)
    inner.module_ = Stranger(np.arange(3.0))
    inner.more_ = [("a", {"b": Stranger(np.ones(2))})]
    model = make_pipeline(InstanceTransformer(StandardScaler()), inner)
    again = bagwise.load(saved(model, tmp_path))
    np.testing.assert_array_equal(again[-1].module_.weights, np.arange(3.0))
    np.testing.assert_array_equal(again[-1].more_[0][1]["b"].weights, np.ones(2))
    assert isinstance(inner.module_, Stranger)  # saving changed nothing


# What is refused.


class Foreign(BaseEstimator):
    pass


@dataclass
class ForeignValue:
    a: int = 1


class ForeignTuple(NamedTuple):
    a: int = 1


@pytest.mark.parametrize("value", [Foreign(), ForeignValue(), ForeignTuple(), os.system, Path("x")])
def test_what_is_not_on_the_list_is_not_saved(value, problem, tmp_path):
    bags, y = problem
    model = SingleInstance(LogisticRegression()).fit(bags, y)
    model.extra_ = value
    with pytest.raises(ValueError, match="cannot be saved: it holds"):
        saved(model, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_trees_are_refused_by_name(problem, tmp_path):
    bags, y = problem
    model = SingleInstance(RandomForestClassifier(3, random_state=0)).fit(bags, y)
    with pytest.raises(ValueError, match=r"sklearn\.tree\._tree\.Tree"):
        saved(model, tmp_path)


def parameters(path):
    """The member with the parameters, of this format or of the one before."""
    with zipfile.ZipFile(path) as archive:
        return next(name for name in archive.namelist() if name != "bagwise.json")


def rewrite(path, change_about=None, payload=None):
    """A file as an attacker or a newer release would make it: consistent, but odd."""
    name = parameters(path)
    with zipfile.ZipFile(path) as archive:
        about = json.loads(archive.read("bagwise.json"))
        content = archive.read(name) if payload is None else payload
    about["sha256"] = hashlib.sha256(content).hexdigest()
    (change_about or (lambda about: None))(about)
    sign(about)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("bagwise.json", json.dumps(about))
        archive.writestr(name, content)
    return path


@pytest.fixture
def good(problem, tmp_path):
    bags, y = problem
    return saved(SingleInstance(LogisticRegression()).fit(bags, y), tmp_path)


@pytest.fixture(params=["a part", "the whole, as before"])
def with_skops(request, problem, tmp_path):
    """A model that skops stored in part, or as a whole; both end in ``model.bagwise``."""
    if request.param != "a part":
        return shutil.copy(FIXTURES / "single-instance-0.3.0.bagwise", tmp_path / "model.bagwise")
    bags, y = problem
    model = SingleInstance(LogisticRegression(random_state=np.random.RandomState(0)))
    return saved(model.fit(bags, y), tmp_path)


class Bomb:
    def __reduce__(self):
        return (os.system, ("touch exploded",))


def edited(content, inside, change):
    """A zip with the JSON at a path of members, one zip inside another, changed in place."""
    if not inside:
        value = json.loads(content)
        change(value)
        return json.dumps(value).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            inner = old.read(name)
            new.writestr(name, edited(inner, inside[1:], change) if name == inside[0] else inner)
    return buffer.getvalue()


def edit(path, inside, change):
    """The same in the parameters of a model file, which stays consistent."""
    with zipfile.ZipFile(path) as archive:
        payload = archive.read(parameters(path))
    rewrite(path, payload=edited(payload, inside, change))


def edit_schema(path, change):
    """Change what skops is told."""
    whole = parameters(path) == "model.skops"
    edit(path, ["schema.json"] if whole else ["foreign.skops", "schema.json"], change)


def node(module, name, loader, **more):
    return {"__class__": name, "__module__": module, "__loader__": loader, "__id__": 1, **more}


def arguments(*values):
    content = [
        node("builtins", "str", "JsonNode", content=json.dumps(v), is_json=True) for v in values
    ]
    return node("builtins", "tuple", "TupleNode", content=content)


ATTACKS = {
    "a function by name": node("os", "system", "FunctionNode"),
    "a type by name": node("subprocess", "Popen", "TypeNode"),
    "a constructor": node(
        "subprocess", "Popen", "ConstructorFromReduceNode", content=arguments("touch exploded")
    ),
    "a method call": node("builtins", "eval", "TypeNode"),
    "an operator": node(
        "operator", "methodcaller", "OperatorFuncNode", attrs=arguments("system", "touch exploded")
    ),
    "an object with a state": node(
        "tests.test_persist", "Bomb", "ObjectNode", content=arguments("x")
    ),
    "bagwise's own functions": node("bagwise.persist", "load", "FunctionNode"),
    "bagwise's own helpers": node("bagwise.files.rows", "LazyRows", "ObjectNode"),
    "what is no part of a model": node("bagwise.cli.console", "Printer", "ObjectNode"),
    "a module that does not exist": node("bagwise.models.no_such", "Thing", "ObjectNode"),
    "a partial": node(
        "functools",
        "partial",
        "PartialNode",
        content={
            "func": node("os", "system", "FunctionNode"),
            "args": arguments("touch exploded"),
            "kwds": node(
                "builtins",
                "dict",
                "DictNode",
                content={},
                key_types=node("builtins", "list", "ListNode", content=[]),
            ),
            "namespace": node("builtins", "str", "JsonNode", content="null", is_json=True),
        },
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_malicious_files_are_refused_and_never_executed(attack, with_skops, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def plant(schema):
        content, planted = schema["content"], {**ATTACKS[attack], "__id__": 99_999}
        if isinstance(content, list):
            content[0] = planted
        else:
            content["content"]["estimator_"] = planted

    edit_schema(with_skops, plant)
    with pytest.raises(ValueError, match=r"model\.bagwise: ") as caught:
        bagwise.load(with_skops)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "exploded").exists()


CALLING = ["MethodNode", "PartialNode", "OperatorFuncNode", "ConstructorFromReduceNode", "NewNode"]


@pytest.mark.parametrize("loader", CALLING)
@pytest.mark.parametrize("depth", [0, 3])
def test_what_calls_something_is_refused_before_skops_sees_it(
    loader, depth, with_skops, monkeypatch
):
    from skops import io as skops_io

    planted = node("bagwise.bags.bags", "Bags", loader, content={"obj": {}, "func": "save"})
    for _ in range(depth):
        planted = node("builtins", "list", "ListNode", content=[planted])
    edit_schema(with_skops, lambda schema: schema.update(other=[planted]))
    for name in ("get_untrusted_types", "loads"):
        monkeypatch.setattr(skops_io, name, None)
    with pytest.raises(ValueError, match=rf"refused: it holds bagwise.*Bags \({loader}\)"):
        bagwise.load(with_skops)


def test_a_kind_that_is_not_a_name_is_refused(with_skops):
    edit_schema(with_skops, lambda schema: schema.update(__loader__=["MethodNode"]))
    with pytest.raises(ValueError, match="cannot be read"):
        bagwise.load(with_skops)


REFUSED_OBJECTS = [
    "os.system",
    "subprocess.Popen",
    "pathlib.Path",
    "numpy.ndarray",
    "bagwise.persist.load",
    "bagwise.models.base.np.load",
    "bagwise.files.rows.LazyRows",
    "bagwise.cli.console.Printer",
    "bagwise.models.no_such.Thing",
    "sklearn.base.clone",
    "sklearn.tree._tree.Tree",
    "sklearn.tests.test_base.MyEstimator",
    "tests.test_persist.Bomb",
    "system",
    "",
]


@pytest.mark.parametrize("name", REFUSED_OBJECTS)
def test_objects_that_are_not_on_the_list_are_refused(name, good):
    modules = set(sys.modules)
    part = {"object": name, "state": {"tuple": ["touch exploded"]}}
    edit(good, ["tree.json"], lambda tree: tree["state"]["dict"].append(["more", [part]]))
    with pytest.raises(ValueError, match=rf"refused: it holds {re.escape(name)}, which no"):
        bagwise.load(good)
    assert not {m for m in set(sys.modules) - modules if not m.startswith("bagwise")}


ODD_PARTS = [
    {"object": ["os.system"], "state": 0},
    {"object": "bagwise.models.single_instance.SingleInstance"},
    {"call": "os.system"},
    {"array": 999},
    {"array": "../0"},
    {"scalar": None},
    {"foreign": 0},
    {"whole": 0},
    {"dtype": "no such type"},
    {"dict": [1, 2]},
    {"dict": [[["a list"], 1]]},
    {"tuple": 3},
    {},
]


@pytest.mark.parametrize("part", ODD_PARTS, ids=json.dumps)
def test_odd_parts_are_a_value_error(part, good):
    def plant(tree):
        next(pair for pair in tree["state"]["dict"] if pair[0] == "classes_")[1] = part

    edit(good, ["tree.json"], plant)
    with pytest.raises(ValueError, match=r"model\.bagwise: "):
        bagwise.load(good)


def test_arrays_of_objects_are_not_unpickled(good, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = io.BytesIO()
    np.save(content, np.array([Bomb()], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(good) as archive:
        payload = io.BytesIO(archive.read("model.zip"))
    with zipfile.ZipFile(payload, "a") as archive:
        archive.writestr("99.npy", content.getvalue())
    rewrite(good, payload=payload.getvalue())
    with pytest.raises(ValueError, match="cannot be read"):
        bagwise.load(good)
    assert not (tmp_path / "exploded").exists()


def test_what_is_shared_is_stored_once(problem, tmp_path):
    bags, y = problem
    model = SingleInstance(LogisticRegression()).fit(bags, y)
    model.arrays_ = [np.arange(6.0).reshape(2, 3).T] * 3
    model.plain_ = {"a": (1, None, np.nan), 2.5: np.float32(1.5), "t": np.dtype("f4")}
    path = saved(model, tmp_path)
    with zipfile.ZipFile(io.BytesIO(zipfile.ZipFile(path).read("model.zip"))) as archive:
        assert "foreign.skops" not in archive.namelist()
    again = bagwise.load(path)
    assert again.arrays_[0] is again.arrays_[2]
    assert again.arrays_[0].flags.f_contiguous
    assert repr(again.plain_) == repr(model.plain_)
    assert again.plain_["a"] == (1, None, pytest.approx(np.nan, nan_ok=True))


def test_a_gaussian_process_is_saved_and_loaded_without_skops(tmp_path):
    code = """
import sys
from bagwise import VGPMIL, datasets, load, save
bags, y = datasets.make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
load(save(VGPMIL(n_inducing=5, random_state=0).fit(bags, y), sys.argv[1])).predict(bags)
print(sorted({"skops", "torch", "dask", "matplotlib"} & set(sys.modules)))
"""
    words = [sys.executable, "-c", code, tmp_path / "m.bagwise"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_pickle_is_not_a_model(tmp_path, monkeypatch):
    import pickle  # noqa: TID251 - to attack with

    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.bagwise"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="is not a bagwise model"):
        bagwise.load(path)
    assert not (tmp_path / "exploded").exists()


def test_foreign_and_damaged_files(good, tmp_path):
    whole = good.read_bytes()
    skops.io.dump(StandardScaler(), tmp_path / "foreign.bagwise")
    cases = {
        "missing.bagwise": (None, "does not exist"),
        "empty.bagwise": (b"", "is empty"),
        "short.bagwise": (whole[: len(whole) // 2], "is not a bagwise model, or is cut short"),
        "text.bagwise": (b"hello", "is not a bagwise model"),
        "foreign.bagwise": ((tmp_path / "foreign.bagwise").read_bytes(), "is not a bagwise model"),
    }
    for name, (content, message) in cases.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message) as caught:
            bagwise.load(tmp_path / name)
        assert name in str(caught.value)
    with pytest.raises(ValueError, match="is a folder"):
        bagwise.load(tmp_path)


@pytest.mark.parametrize("place", range(5, 95, 10))
def test_flipped_bytes_never_pass(good, place):
    content = bytearray(good.read_bytes())
    at = len(content) * place // 100
    content[at] ^= 0xFF
    good.write_bytes(bytes(content))
    try:
        bagwise.load(good)
    except ValueError as error:
        assert str(good) in str(error)
    else:  # a byte that nothing depends on, such as a time stamp
        assert persist.about(good)["format"] == "bagwise-model"


def test_newer_and_odd_versions(good):
    rewrite(good, lambda about: about.update(format_version=5, bagwise="9.0"))
    with pytest.raises(ValueError, match=r"saved by bagwise 9\.0 in format 5.*Update bagwise"):
        bagwise.load(good)
    rewrite(good, lambda about: about.update(format_version="x"))
    with pytest.raises(ValueError, match="format version is 'x'"):
        bagwise.load(good)
    rewrite(good, lambda about: about.update(format_version=persist.FORMAT_VERSION, sha256="0"))
    with pytest.raises(ValueError, match="does not match its checksum"):
        bagwise.load(good)
    rewrite(good, payload=b"PK nothing")
    with pytest.raises(ValueError, match="the model in it cannot be read"):
        bagwise.load(good)


def test_a_failed_save_leaves_the_old_model(good, problem, monkeypatch):
    bags, _ = problem
    before = bagwise.load(good).decision_function(bags)

    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "writestr", failing(OSError(28, "No space left on device")))
        with pytest.raises(ValueError, match="the disk is full"):
            persist.save(SingleInstance(LogisticRegression(C=9)), good)
    np.testing.assert_array_equal(bagwise.load(good).decision_function(bags), before)
    assert [p.name for p in good.parent.iterdir()] == [good.name]
