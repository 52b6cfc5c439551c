"""One list of checks over every registered model and every kind of rows."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss

import bagwise
from bagwise import AutoVGPMIL, Execution
from bagwise.files import LazyRows, read_bags
from bagwise.models.registry import MODELS, make_model
from bagwise.models.variational import Or, engine
from bagwise.models.variational.search import Search
from tests.checks import make_problem

torch = pytest.importorskip("torch", reason="the torch extra is missing")

# Small settings: the point is the rows, not the fit.
QUICK = {
    "auto": {"n_inducing": 12, "max_iter": 20},
    "vgpmil": {"n_inducing": 12},
    "lm-vgpmil": {"n_inducing": 12},
    "g-vgpmil": {"n_inducing": 12},
    "dpmil": {"n_components": 3, "max_iter": 10},
    "mi-forest": {"n_estimators": 8, "n_steps": 2},
    "forest": {"n_estimators": 20},
    "blrt": {"n_estimators": 20},
    "dd-svm": {"n_starts": 4},
}
KINDS = ("float32", "memmap", "files", "csr", "tensor")


@pytest.fixture(scope="module")
def problem():
    bags, y, _ = make_problem(n_bags=24)
    # Numbers that float32 holds exactly: what is compared is the work, not the rounding of input.
    return bags.map(lambda X: X.astype(np.float32).astype(np.float64)), y


def rows_of(kind, bags, folder):
    X = np.asarray(bags.instances, dtype=np.float64)
    if kind == "float32":
        return bags.with_instances(X.astype(np.float32))
    if kind == "memmap":
        X.tofile(folder / "rows.bin")
        return bags.with_instances(np.memmap(folder / "rows.bin", np.float64, "r", shape=X.shape))
    if kind == "csr":
        return bags.with_instances(sp.csr_matrix(X))
    if kind == "tensor":
        return bags.with_instances(torch.tensor(X))
    files = folder / "bags"
    files.mkdir()
    for i, x in enumerate(bags):
        np.save(files / f"{i:03d}.npy", np.asarray(x))
    return read_bags(files, lazy=True)


def fitted(name, bags, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return make_model(name, **QUICK.get(name, {}), random_state=0).fit(bags, y)


@pytest.fixture(scope="module")
def of_arrays(problem):
    """A model by name, fitted to plain arrays once for all kinds of rows."""
    return cache(lambda name: fitted(name, *problem))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_rows_gives_the_same_numbers(name, kind, problem, of_arrays, tmp_path):
    """Fit, predict, instances, save and load; or one line that says what to do."""
    bags, y = problem
    model = of_arrays(name)
    rows = rows_of(kind, bags, tmp_path)
    # Sparse features are scaled without taking their mean off: another model, told apart below.
    moved = kind == "csr" and type(model)._accept_sparse
    tolerance = 1e-4 if kind == "float32" else 1e-8
    other = fitted(name, rows, y)
    other = bagwise.load(bagwise.save(other, tmp_path / "model.bagwise"))
    for method in ("decision_function", "predict_proba", "decision_function_instances"):
        if not hasattr(model, method):
            continue
        here, there = getattr(model, method)(bags), getattr(other, method)(rows)
        assert isinstance(there, np.ndarray)
        if not moved:
            scale = max(1.0, float(np.abs(here).max()))
            np.testing.assert_allclose(there, here, rtol=0, atol=tolerance * scale, err_msg=method)
        else:
            assert np.isfinite(there).all()


@pytest.fixture
def counted(problem, tmp_path, monkeypatch):
    """Bags on disk, and a list of how many rows each read asked for."""
    bags, y = problem
    files = tmp_path / "counted"
    files.mkdir()
    for i, x in enumerate(bags):
        np.save(files / f"{i:03d}.npy", np.asarray(x))
    reads = []
    original = LazyRows.__getitem__

    def counting(self, key):
        rows = original(self, key)
        reads.append(len(rows))
        return rows

    monkeypatch.setattr(LazyRows, "__getitem__", counting)
    return read_bags(files, lazy=True), y, reads


@pytest.mark.parametrize("scale", ["feature", "global"])
def test_rows_on_disk_are_read_few_times(counted, scale, monkeypatch):
    bags, y, reads = counted
    small = bagwise.VGPMIL(n_inducing=10, random_state=0).fit(bags, y)
    assert sum(reads) == bags.n_instances  # few numbers are read once and for all
    reads.clear()
    small.predict_proba(bags)
    assert sum(reads) == bags.n_instances
    reads.clear()
    monkeypatch.setattr("bagwise.models.variational.predicting._FEW_NUMBERS", 0)
    # As in a large set, where k-means and the search for a kernel see a part of the rows.
    monkeypatch.setattr("bagwise.core.inducing._MAX_ROWS", 20)
    monkeypatch.setattr("bagwise.models.variational.engine._MEDIAN_ROWS", 20)
    monkeypatch.setattr("bagwise.models.variational.engine._MOST_ROWS", 20)
    # ... and learns something there; else it looks at more.
    monkeypatch.setattr(Search, "has_learned", lambda self, trials: True)
    model = bagwise.VGPMIL(n_inducing=2, scale=scale, random_state=0, execution="serial")
    model.fit(bags, y)
    # Once to measure, once to project; and four samples of about 20: to look for leaks, to choose
    # inducing points, for the median distance, and to search for a kernel.
    assert sum(reads) <= 2 * bags.n_instances + 100
    for method in (model.predict_proba, model.predict_proba_instances, model.predict_latent):
        reads.clear()
        method(bags)
        assert sum(reads) == bags.n_instances


def test_the_automatic_model_reads_rows_once_per_prediction(counted):
    bags, y, reads = counted
    model = AutoVGPMIL(**QUICK["auto"], random_state=0).fit(bags, y)
    reads.clear()
    model.score_bags(bags)
    assert sum(reads) == bags.n_instances


@pytest.mark.parametrize(
    "execution",
    [
        Execution(cache="disk"),
        Execution(cache="none"),
        Execution(n_jobs=2),
        Execution(n_jobs=2, cache="disk", chunk_size=16),
    ],
    ids=["disk", "none", "threads", "threads-disk"],
)
def test_the_automatic_model_is_the_same_however_it_runs(problem, tmp_path, execution):
    bags, y = problem
    options = {**QUICK["auto"], "random_state": 0, "execution": None}
    chunk = Execution(chunk_size=execution.chunk_size) if execution.chunk_size else None
    here = AutoVGPMIL(**{**options, "execution": chunk}).fit(bags, y)
    rows = rows_of("files", bags, tmp_path)
    there = AutoVGPMIL(**{**options, "execution": execution}).fit(rows, y)
    np.testing.assert_allclose(here.weights_, there.weights_, atol=1e-8)
    for a, b in zip(here.score_bags(bags), there.score_bags(rows), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)


def test_the_automatic_model_goes_on_from_its_checkpoint(problem, tmp_path, monkeypatch):
    bags, y = problem
    options = {**QUICK["auto"], "random_state": 0, "execution": None}
    whole = AutoVGPMIL(**options).fit(bags, y)
    original, fits = engine.fit_marginal, []

    def stopping(*arguments):
        if len(fits) == 1:
            raise KeyboardInterrupt
        fits.append(1)
        return original(*arguments)

    folder = tmp_path / "stored"
    folder.mkdir()
    stored = {**options, "execution": Execution(checkpoint=folder / "search.npz")}
    with monkeypatch.context() as patched:
        patched.setattr(engine, "fit_marginal", stopping)
        with pytest.raises(KeyboardInterrupt):
            AutoVGPMIL(**stored).fit(bags, y)
    (found,) = folder.iterdir()
    kept = found.read_bytes()
    resumed = AutoVGPMIL(**stored).fit(bags, y)
    assert list(folder.iterdir()) == []
    np.testing.assert_allclose(resumed.weights_, whole.weights_, atol=1e-12)
    for a, b in zip(resumed.score_bags(bags), whole.score_bags(bags), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    found.write_bytes(kept)
    with pytest.raises(ValueError, match="checkpoint of another fit"):
        AutoVGPMIL(**stored).fit(bags, 1 - y)
    found.write_bytes(b"junk")
    with pytest.raises(ValueError, match="is not a checkpoint"):
        AutoVGPMIL(**stored).fit(bags, y)


@pytest.mark.parametrize("options", [{}, {"likelihood": Or()}, {"inference": "paper"}], ids=str)
def test_update_takes_labels_that_came_later(problem, options):
    bags, y = problem
    _, _, truth = make_problem(n_bags=24)
    model = bagwise.VGPMIL(n_inducing=12, random_state=0, **options).fit(bags, y)
    before = model.predict_proba_instances(bags, question="alone")[:, 1]
    model.update(bags, y, instance_labels=truth)
    after = model.predict_proba_instances(bags, question="alone")[:, 1]
    assert not np.allclose(before, after)
    assert log_loss(truth, after) < log_loss(truth, before)
    with pytest.raises(ValueError, match="not one of the classes"):
        model.update(bags, np.array(["a", "b"])[y])


def test_what_has_no_effect_is_an_error():
    for settings, message in [
        ({"cache": "disk", "memory_limit": 10}, "memory_limit has no effect"),
        ({"driver": "dask", "n_jobs": 2}, "n_jobs has no effect"),
        ({"checkpoint_every": 2}, "checkpoint_every has no effect"),
        ({"device": "cuda", "n_jobs": 2}, "threads have no effect"),
        ({"precision": "tf32", "dtype": "float64"}, "has no effect"),
        ({"n_jobs": 0}, "n_jobs must be"),
        ({"chunk_size": 0}, "chunk_size must be"),
        ({"driver": object()}, "driver must be"),
        ({"dtype": "float16"}, "dtype must be"),
        ({"memory_limit": -1}, "memory_limit must be larger than 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            Execution(**settings)
    with pytest.raises(ValueError, match=r"execution\.cache has no effect on DPMIL"):
        bagwise.DPMIL(execution=Execution(cache="disk")).fit([[[0.0], [1.0]]] * 4, [0, 1, 0, 1])
