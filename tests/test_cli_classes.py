"""The commands on more than two classes: fit, predict, evaluate, compare, and their errors."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from bagwise.cli import main

NAMES = ["normal", "adeno", "squamous"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Bags of three classes, half of them to train on, and their labels in both forms."""
    root = tmp_path_factory.mktemp("classes")
    rng = np.random.default_rng(0)
    rows = []
    for b in range(48):
        c, place = b % 3, root / ("train" if b < 30 else "test")
        place.mkdir(exist_ok=True)
        X = rng.normal(size=(rng.integers(3, 6), 2))
        if c:
            X[0, c - 1] += 5
        np.save(place / f"s{b:02d}.npy", X)
        rows.append((f"s{b:02d}", NAMES[c], int(c == 1), int(c == 2)))
    frame = pd.DataFrame(rows, columns=["slide_id", "label", "adeno", "squamous"])
    frame[:30].to_csv(root / "train.csv", index=False)
    frame[30:].to_csv(root / "test.csv", index=False)
    return root


def run(capsys, *arguments):
    """The exit code, the JSON that a command printed, and what it said besides."""
    code = main([*map(str, arguments), "--json"])
    said = capsys.readouterr()
    return code, json.loads(said.out) if code == 0 else None, said.err


def fit(folder, out, capsys, *more):
    given = ["--bags", folder / "train", "--labels", folder / "train.csv", "--out", out]
    return run(capsys, "fit", *given, *more)


def test_three_classes_from_fit_to_report(folder, tmp_path, capsys):
    model = tmp_path / "m.bagwise"
    options = ["--model", "vgpmil", "--set", "n_inducing=12", "--cv", "2"]
    code, made, _ = fit(folder, model, capsys, *options)
    assert code == 0 and made["metrics"]["auc"] > 0.9
    held_out = ["--bags", folder / "test", "--labels", folder / "test.csv"]
    code, made, _ = run(capsys, "predict", model, *held_out, "--out", tmp_path / "out")
    assert code == 0 and set(made["classes"]) == set(NAMES) and made["metrics"]["accuracy"] > 0.8
    table = pd.read_csv(tmp_path / "out" / "bags.csv")
    columns = [f"probability_{name}" for name in sorted(NAMES)]
    np.testing.assert_allclose(table[columns].sum(axis=1), 1.0, atol=1e-9)
    assert (table["label"] == np.array(sorted(NAMES))[table[columns].to_numpy().argmax(1)]).all()
    instances = pd.read_parquet(tmp_path / "out" / "instances.parquet")
    assert set(columns) <= set(instances.columns)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "squamous against all others" in page and "--min-sensitivity" in page
    assert "not squamous" in page
    top = pd.read_csv(tmp_path / "out" / "top_instances.csv")
    assert top["class"].unique().tolist() == sorted(NAMES) and top["rank"].max() <= 10
    code, made, _ = run(capsys, "evaluate", model, *held_out, "--min-sensitivity", "0.9")
    assert code == 0 and np.sum(made["confusion"]) == 18
    assert [row["class"] for row in made["classes"]] == sorted(NAMES)


def test_an_indicator_matrix_from_fit_to_report(folder, tmp_path, capsys):
    model, columns = tmp_path / "m.bagwise", ["--label-column", "adeno,squamous"]
    options = ["--model", "vgpmil", "--set", "n_inducing=12", "--class-weight", "balanced"]
    code, made, _ = fit(folder, model, capsys, *columns, *options)
    assert code == 0 and made["training"]["classes"] == {"adeno": 10, "squamous": 10}
    held_out = ["--bags", folder / "test", "--labels", folder / "test.csv", *columns]
    code, made, _ = run(capsys, "predict", model, *held_out, "--out", tmp_path / "out")
    assert code == 0 and made["metrics"]["auc"] > 0.9
    code, made, _ = run(capsys, "evaluate", model, *held_out)
    assert code == 0 and made["confusion"] is None


def test_a_two_class_model_is_trained_once_per_class(folder, tmp_path, capsys):
    code, _, _ = fit(folder, tmp_path / "m.bagwise", capsys, "--model", "single-instance")
    assert code == 0
    given = ["--bags", folder / "train", "--labels", folder / "train.csv"]
    models = ["--models", "single-instance,statistics", "--cv", "2"]
    code, made, _ = run(capsys, "compare", *given, *models)
    assert code == 0 and {row["model"] for row in made["summary"]} == {
        "single-instance",
        "statistics",
    }


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--positive", "adeno"], "--positive is for two classes"),
        (["--background", "weird"], "has no label 'weird'"),
        (["--model", "misvm", "--class-weight", "balanced"], "misvm cannot use --class-weight"),
        (["--model", "dpmil"], "rename 'normal' so that it sorts first"),
        (["--label-column", "adeno,label"], "column 'label' must be 0 or 1; got 'normal'"),
        (["--label-column", "adeno,squamous", "--background", "adeno"], "has no meaning where"),
    ],
)
def test_errors_are_one_line(folder, tmp_path, capsys, more, message):
    code, _, said = fit(folder, tmp_path / "m.bagwise", capsys, *more)
    lines = [line for line in said.splitlines() if line.startswith("bagwise: error:")]
    assert code != 0 and len(lines) == 1 and message in said.replace("\n", " ")
    assert not (tmp_path / "m.bagwise").exists()


def test_an_unknown_class_is_an_error(folder, tmp_path, capsys):
    model = tmp_path / "m.bagwise"
    fit(folder, model, capsys, "--model", "single-instance")
    wrong = pd.read_csv(folder / "test.csv").replace({"label": {"adeno": "other"}})
    wrong.to_csv(tmp_path / "wrong.csv", index=False)
    given = ["--bags", folder / "test", "--labels", tmp_path / "wrong.csv"]
    code, _, said = run(capsys, "evaluate", model, *given)
    assert code != 0 and "label 'other' is not one of the classes" in said.replace("\n", " ")
