"""The API reference: every documented parameter states the default that the signature has."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
from pathlib import Path

import pytest
from numpydoc.docscrape import NumpyDocString
from sklearn.base import BaseEstimator

from bagwise.evaluate.metrics import METRIC_NAMES
from tests.test_docs import PUBLIC

ROOT = Path(__file__).parent.parent


def documented():
    """Every public class and function, and the public methods of the classes, once."""
    seen = {}
    for path, value in PUBLIC:
        seen.setdefault(value, path)
        if inspect.isclass(value):
            for name, method in inspect.getmembers(value, inspect.isroutine):
                ours = getattr(method, "__module__", None) or ""
                if not name.startswith("_") and ours.startswith("bagwise") and method.__doc__:
                    seen.setdefault(getattr(method, "__func__", method), f"{path}.{name}")
    return [(path, value) for value, path in seen.items()]


def factories(value):
    """Defaults of dataclass fields that are made anew for every instance."""
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    return {
        field.name: field.default_factory()
        for field in fields
        if field.default_factory is not dataclasses.MISSING
    }


def as_text(default):
    """A default as the documentation writes it."""
    if default == METRIC_NAMES:
        return "METRIC_NAMES"
    if isinstance(default, tuple) and type(default) is tuple:
        return f"({', '.join(map(as_text, default))}{',' * (len(default) == 1)})"
    if isinstance(default, str):
        return f'"{default}"'
    if default is not None and type(default).__module__.startswith("bagwise"):
        with contextlib.suppress(TypeError):  # one that needs arguments has no shorter form
            if type(default)() == default:
                return f"{type(default).__name__}()"
    return getattr(default, "__name__", None) or repr(default)


def faults_of(value):
    """What is wrong with the parameters that a docstring lists, and how many have a default."""
    parameters = NumpyDocString(inspect.cleandoc(value.__doc__))["Parameters"]
    if not parameters:
        return [], 0
    signature, made = inspect.signature(value).parameters, factories(value)
    faults, n_defaults = [], 0
    for listed in parameters:
        names = [name.strip().lstrip("*") for name in listed.name.split(",")]
        if unknown := [name for name in names if name not in signature]:
            faults.append(f"{unknown} are no parameters")
            continue
        defaults = [made.get(name, signature[name].default) for name in names]
        texts = [as_text(d) for d in defaults if d is not inspect.Parameter.empty]
        n_defaults += len(texts)
        want = ", ".join(texts if len(set(texts)) > 1 else texts[:1])
        _, said, stated = listed.type.partition("default=")
        if (stated if said else None) != (want if texts else None):
            faults.append(f"{listed.name} : {listed.type} should say default={want}")
    return faults, n_defaults


REFERENCE = documented()


@pytest.mark.parametrize("value", [v for _, v in REFERENCE], ids=[p for p, _ in REFERENCE])
def test_defaults_are_those_of_the_signature(value):
    assert faults_of(value)[0] == []


def test_parameters_were_compared():
    assert sum(faults_of(value)[1] for _, value in REFERENCE) >= 600


def test_a_wrong_default_is_noticed():
    def example(a, b=2, c="x"):
        """An example.

        Parameters
        ----------
        a : int
        b, c : int, str, default=2, "x"
        """

    assert faults_of(example) == ([], 2)
    example.__doc__ = re.sub("default=2", "default=3", example.__doc__)
    assert len(faults_of(example)[0]) == 1


# Estimators that are no paper's: wrappers, baselines, and what is bagwise's own.
OWN = {
    *("AutoVGPMIL", "BagPipeline", "Coupled", "InstanceTransformer", "OneVsRest", "SingleInstance"),
    *("StatisticsBoosting", "StatisticsForest", "PhotographDetector", "Proposals"),
    "RegionFeatures",
}
ESTIMATORS = [v for _, v in REFERENCE if inspect.isclass(v) and issubclass(v, BaseEstimator)]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: e.__name__)
def test_estimators_name_their_kind_and_their_paper(estimator):
    sections = NumpyDocString(inspect.cleandoc(estimator.__doc__))
    assert sections["See Also"]
    assert bool(sections["References"]) != (estimator.__name__ in OWN)
    papers = (ROOT / "docs/reference/bibliography.rst").read_text(encoding="utf-8")
    for key in re.findall(r"\[(\w+)\]_", estimator.__doc__):
        assert f".. [{key}]" in papers, key


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: e.__name__)
def test_predictions_have_shapes(estimator):
    for name, method in inspect.getmembers(estimator, inspect.isroutine):
        if re.match("(predict|decision_function)(_|$)", name) and "bagwise" in method.__module__:
            returned = NumpyDocString(inspect.cleandoc(method.__doc__ or ""))["Returns"]
            assert any(re.search(r"shape|list", value.type) for value in returned), name
