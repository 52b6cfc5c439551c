"""What users take away: tables by patient, top instances, thresholds, and figures told apart."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from bagwise import Bags, persist
from bagwise.cli import main
from bagwise.report.evaluation import Evaluation
from bagwise.report.predictions import (
    Predictions,
    neutralised,
    predict_tables,
    top_instances,
)
from tests.filing import arrays, make_folder, write_h5, write_labels

QUICK = ["--model", "single-instance"]


def run(*words):
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model with cross-validated figures, and bags it has not seen, two a patient."""
    root = tmp_path_factory.mktemp("trained")
    folder, labels = make_folder(root)
    model = root / "m.bagwise"
    assert run("fit", "--bags", folder, "--labels", labels, *QUICK, "--cv", 3, "--out", model) == 0
    (root / "new").mkdir()
    made = arrays(n_bags=16, seed=1)
    rows = []
    for i, (name, x, coords, y) in enumerate(made):
        write_h5(root / "new" / f"n{name}.h5", x, coords)
        rows.append((f"n{name}", y, f"pat{y}{i // 4}"))
    write_labels(root / "new.csv", rows, header="slide_id,label,patient_id")
    return root


def test_patients_and_top_instances(trained, tmp_path, capsys):
    words = ["predict", trained / "m.bagwise", "--bags", trained / "new", "--patients"]
    words += [trained / "new.csv", "--top", 3, "--out", tmp_path / "o"]
    assert run(*words) == 0
    assert "patients are" in capsys.readouterr().out
    bags = pd.read_csv(tmp_path / "o" / "bags.csv").set_index("id")
    patients = pd.read_csv(tmp_path / "o" / "patients.csv")
    assert patients.columns.tolist() == [
        "patient", "probability", "label", "bags", "positive_bags", "top_bag",
    ]  # fmt: skip
    of = pd.read_csv(trained / "new.csv").set_index("slide_id")["patient_id"]
    for row in patients.itertuples():
        its = bags[of[bags.index] == row.patient]
        assert row.probability == its["probability"].max()
        assert row.top_bag == its["probability"].idxmax()
        assert row.bags == len(its)
        assert row.positive_bags == (its["label"] == 1).sum()
        assert row.label == int(row.probability > 0.5)
    assert patients["probability"].is_monotonic_decreasing
    top = pd.read_csv(tmp_path / "o" / "top_instances.csv")
    instances = pd.read_parquet(tmp_path / "o" / "instances.parquet")
    for bag, its in instances.groupby("bag", observed=True):
        expected = its.sort_values("probability", ascending=False, kind="stable").head(3)
        found = top[top["bag"] == bag]
        assert found["rank"].tolist() == [1, 2, 3]
        assert found["index"].tolist() == expected["index"].tolist()
        assert found[["x", "y"]].to_numpy().tolist() == expected[["x", "y"]].to_numpy().tolist()
    page = (tmp_path / "o" / "report.html").read_text(encoding="utf-8")
    assert '<h2 id="patients">Patients</h2>' in page


def test_a_patient_without_a_row_is_named(trained, tmp_path, capsys):
    write_labels(tmp_path / "p.csv", [("n000", "a")], header="slide_id,patient_id")
    words = ["predict", trained / "m.bagwise", "--bags", trained / "new", "--out", tmp_path / "o"]
    assert run(*words, "--patients", tmp_path / "p.csv") == 2
    assert "no patient for bag 'n001' (15 bags lack one)" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_top_instances_of_a_small_bag_and_of_ties():
    bags = Bags(np.zeros((4, 1)), [0, 1, 4], ids=["a", "b"])
    table = pd.DataFrame({"bag": ["a", "b", "b", "b"], "probability": [0.1, 0.5, 0.9, 0.5]})
    made = top_instances(Predictions(None, table, [0, 1], 0.5), bags, n=2)
    assert made["bag"].tolist() == ["a", "b", "b"]
    assert made["probability"].tolist() == [0.1, 0.9, 0.5]
    assert made["rank"].tolist() == [1, 1, 2]


@pytest.mark.parametrize(
    ("option", "value"),
    [("--min-sensitivity", "0.95"), ("--min-specificity", "0.9"), ("--cost", "10,1")],
)
def test_thresholds_are_chosen_on_the_cross_validated_bags(
    option, value, trained, tmp_path, capsys
):
    words = ["predict", trained / "m.bagwise", "--bags", trained / "new", "--out", tmp_path / "o"]
    assert run(*words, option, value, "--json") == 0
    threshold = json.loads(capsys.readouterr().out)["threshold"]
    stored = persist.about(trained / "m.bagwise")["extra"]["evaluation"]
    rates = Evaluation.from_json(stored).rates(threshold)
    if option == "--min-sensitivity":
        assert rates.sensitivity.value >= 0.95
    elif option == "--min-specificity":
        assert rates.specificity.value >= 0.9
    table = pd.read_csv(tmp_path / "o" / "bags.csv")
    assert (table["label"] == (table["probability"] > threshold)).all()


def test_thresholds_need_something_to_be_chosen_on(trained, tmp_path, capsys):
    fit = ["fit", "--bags", trained / "bags", "--labels", trained / "labels.csv", *QUICK]
    assert run(*fit, "--out", tmp_path / "plain") == 0
    words = ["predict", tmp_path / "plain", "--bags", trained / "new", "--out", tmp_path / "o"]
    capsys.readouterr()
    assert run(*words, "--min-sensitivity", 0.9) == 2
    assert "train it with fit --cv" in capsys.readouterr().err
    assert run(*words, "--min-sensitivity", 0.9, "--threshold", 0.5) == 2
    assert "not both" in capsys.readouterr().err
    words[1] = trained / "m.bagwise"
    assert run(*words, "--min-sensitivity", 1.5) == 2
    assert "up to 1; got 1.5" in capsys.readouterr().err


def test_evaluate_says_rates_with_intervals_by_bag_and_patient(trained, capsys):
    words = ["evaluate", trained / "m.bagwise", "--bags", trained / "new"]
    words += ["--labels", trained / "new.csv", "--patient-column", "patient_id"]
    assert run(*words) == 0
    said = capsys.readouterr().out
    assert "recommended threshold" in said
    assert "by patient" in said
    assert run(*words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    share = found["rates"]["sensitivity"]
    assert share["total"] == 8
    assert share["low"] < share["value"] <= share["high"]
    assert found["patients"]["sensitivity"]["total"] == 4
    assert found["n_trained_on"] == 0


def test_resubstitution_is_said(trained, tmp_path, capsys):
    words = ["--bags", trained / "bags", "--labels", trained / "labels.csv"]
    assert run("evaluate", trained / "m.bagwise", *words) == 0
    assert "trained on 24 of these 24 bags" in capsys.readouterr().out
    assert run("predict", trained / "m.bagwise", *words, "--out", tmp_path / "o") == 0
    page = (tmp_path / "o" / "report.html").read_text(encoding="utf-8")
    assert "bags it was trained on (resubstitution)" in page
    assert "each predicted by a model without it: 3-fold cross-validation" in page
    words = ["--bags", trained / "new", "--labels", trained / "new.csv"]
    assert run("predict", trained / "m.bagwise", *words, "--out", tmp_path / "p") == 0
    page = (tmp_path / "p" / "report.html").read_text(encoding="utf-8")
    assert "resubstitution" not in page
    assert "On these bags: 16 labelled bags" in page
    assert "area under the ROC curve, cross-validated" in page


def test_fingerprints_survive_slicing_and_other_precision():
    rng = np.random.default_rng(0)
    bags = Bags.from_list([rng.normal(size=(n, 3)).astype(np.float32) for n in (2, 5, 1)])
    marks = persist.fingerprints(bags)
    assert len(set(marks)) == 3
    assert persist.fingerprints(bags[[2, 0]]) == [marks[2], marks[0]]
    wide = Bags(bags.instances.astype(np.float64), bags.offsets)
    assert persist.fingerprints(wide) == marks


def test_patients_are_stored_as_numbers(trained, tmp_path):
    fit = ["fit", "--bags", trained / "new", "--labels", trained / "new.csv", *QUICK, "--cv", 2]
    assert run(*fit, "--patient-column", "patient_id", "--out", tmp_path / "m") == 0
    about = persist.about(tmp_path / "m")
    assert "pat1" not in json.dumps(about)
    assert len(set(about["extra"]["evaluation"]["groups"])) == 8


class Broken:
    """A model whose parameters were damaged."""

    classes_ = np.array([0, 1])

    def predict_proba(self, bags):
        p = np.full(len(bags), np.nan)
        return np.column_stack([1 - p, p])


def test_probabilities_that_are_none_are_refused():
    bags = Bags(np.zeros((2, 1)), [0, 1, 2], ids=["a", "b"])
    with pytest.raises(ValueError, match="a probability of nan for bag 0"):
        predict_tables(Broken(), bags)


# Formulas.


def test_names_that_are_formulas(trained, tmp_path, capsys):
    folder = tmp_path / "bags"
    folder.mkdir()
    names = ["=HYPERLINK(1)", "+1", "-a", "@x", "plain"]
    for name, (_, x, coords, _) in zip(names, arrays(n_bags=5), strict=True):
        write_h5(folder / f"{name}.h5", x, coords)
    words = ["predict", trained / "m.bagwise", "--bags", folder]
    assert run(*words, "--out", tmp_path / "o") == 0
    assert "4 names start like a formula" in capsys.readouterr().out
    assert set(pd.read_csv(tmp_path / "o" / "bags.csv")["id"]) == set(names)
    assert run(*words, "--spreadsheet-safe", "--out", tmp_path / "s") == 0
    assert "like a formula" not in capsys.readouterr().out
    for file, column in [("bags.csv", "id"), ("top_instances.csv", "bag")]:
        found = set(pd.read_csv(tmp_path / "s" / file)[column])
        assert found == {"'=HYPERLINK(1)", "'+1", "'-a", "'@x", "plain"}


def test_numbers_are_never_neutralised():
    table = pd.DataFrame({"id": pd.Categorical(["-1", "b"]), "p": [-0.5, 1.0]})
    assert neutralised(table)["p"].tolist() == [-0.5, 1.0]
    assert neutralised(table)["id"].tolist() == ["'-1", "b"]
