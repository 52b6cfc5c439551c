"""Patient, slide, patch: merging and splitting bags, coherence, tables, and the command."""

import numpy as np
import pandas as pd
import pytest

from bagwise import VGPMIL, AutoVGPMIL, Bags, Coupled, StatisticsClassifier, predict_levels
from bagwise.cli import main
from bagwise.core import segments
from bagwise.datasets import make_patient_bags
from bagwise.files import read_bags
from bagwise.models import levels
from bagwise.report import predict_level_tables


@pytest.fixture(scope="module")
def patients():
    return make_patient_bags(n_patients=24, n_slides=(2, 4), n_patches=(5, 8), random_state=0)


@pytest.fixture(scope="module")
def model(patients):
    return VGPMIL(n_inducing=25, random_state=0).fit(patients.bags, patients.y)


def interleaved(bags, seed=0):
    """The same patients with the patches of their slides mixed."""
    rng = np.random.default_rng(seed)
    rows = np.concatenate(
        [a + rng.permutation(n) for a, n in zip(bags.offsets[:-1], bags.sizes, strict=True)]
    )
    return Bags(bags.instances[rows], bags.offsets, bags.ids, groups=bags.groups[rows])


def test_merging_and_splitting_are_inverse(patients):
    slides = patients.bags.by_group()
    owner = ["_".join(name.split("_")[:2]) for name in slides.ids]
    again = slides.merge(owner)
    np.testing.assert_array_equal(again.instances, patients.bags.instances)
    np.testing.assert_array_equal(again.offsets, patients.bags.offsets)
    assert again.groups.tolist() == patients.bags.groups.tolist()
    assert again.ids.tolist() == patients.bags.ids.tolist()
    assert slides.instance_labels is not None
    truth = segments.max(slides.instance_labels, slides.offsets)
    np.testing.assert_array_equal(truth, patients.slide_labels)


def test_merging_brings_scattered_slides_together():
    slides = Bags(np.arange(10.0)[:, None], [0, 2, 3, 6, 10], ids=["a", "b", "c", "d"])
    merged = slides.merge(["p", "q", "p", "q"])
    assert merged["p"].ravel().tolist() == [0, 1, 3, 4, 5]
    assert merged.groups.tolist() == ["a"] * 2 + ["c"] * 3 + ["b"] + ["d"] * 4


def test_interleaved_groups_come_apart(patients):
    mixed = interleaved(patients.bags)
    slides = mixed.by_group()
    for name, X in zip(slides.ids, slides, strict=True):
        mine = mixed.groups == name
        np.testing.assert_array_equal(X, mixed.instances[mine])
    assert sorted(slides.ids) == sorted(patients.bags.by_group().ids)


@pytest.mark.parametrize("kind", ["vgpmil", "coupled", "statistics", "auto"])
def test_levels_are_coherent(patients, model, kind):
    bags = patients.bags.with_columns(coords=np.arange(patients.bags.n_instances))
    if kind == "coupled":
        model = Coupled(model, strength=1.0).fit(bags, patients.y)
    if kind == "auto":
        model = AutoVGPMIL(n_inducing=25, random_state=0)
        model.fit(bags, patients.y)
    if kind == "statistics":
        with pytest.raises(ValueError, match="needs a model with predict_proba_instances"):
            predict_levels(StatisticsClassifier().fit(bags, patients.y), bags)
        return
    levels = predict_levels(model, bags)
    slides = levels.group_bags
    patch = segments.max(levels.instances.probability, slides.offsets)
    assert (levels.groups.probability >= patch).all()
    top = np.zeros(len(bags))
    np.maximum.at(top, levels.owner, levels.groups.probability)
    assert (levels.bags.probability >= top).all()
    for level in levels[:3]:
        assert np.isfinite(level.std).all()
        assert (level.std >= 0).all()
    # The model's own answer, wherever it is coherent already.
    np.testing.assert_allclose(levels.bags.probability, model.predict_proba(bags)[:, 1], atol=0.02)


def test_a_whole_is_raised_to_its_part(patients):
    """A model that finds every patient improbable, and slides as sizes say."""

    class Odd:
        classes_ = np.array([0, 1])

        def predict_proba(self, bags):
            p = 1 / bags.sizes
            return np.column_stack([1 - p, p])

        def predict_proba_instances(self, bags):
            p = np.full(bags.n_instances, 0.01)
            return np.column_stack([1 - p, p])

    levels = predict_levels(Odd(), patients.bags)
    smallest = np.full(len(patients.bags), 10**6)
    np.minimum.at(smallest, levels.owner, levels.group_bags.sizes)
    np.testing.assert_allclose(levels.bags.probability, 1 / smallest)


def test_owner_and_order_follow_the_patients(patients, model):
    levels = predict_levels(model, patients.bags)
    for name, owner in zip(levels.group_bags.ids, levels.owner, strict=True):
        assert name.startswith(patients.bags.ids[owner])
    mixed = interleaved(patients.bags)
    other = predict_levels(model, mixed)
    by_name = dict(zip(other.group_bags.ids, other.groups.probability, strict=True))
    np.testing.assert_allclose(
        [by_name[name] for name in levels.group_bags.ids], levels.groups.probability, atol=1e-9
    )


def test_tables(patients, model):
    tables, slides = predict_level_tables(model, patients.bags, 0.4, ["none", "some"])
    assert len(tables.patients) == 24
    assert tables.patients["probability"].is_monotonic_decreasing
    levels = predict_levels(model, patients.bags)
    ours = tables.patients.set_index("patient").loc[patients.bags.ids]
    np.testing.assert_array_equal(ours["probability"], levels.bags.probability)
    np.testing.assert_array_equal(ours["std"], levels.bags.std)
    assert (ours["label"] == np.where(ours["probability"] > 0.4, "some", "none")).all()
    for patient, row in ours.iterrows():
        mine = tables.bags[tables.bags["patient"] == patient]
        assert row["bags"] == len(mine)
        assert row["top_bag"] == mine.loc[mine["probability"].idxmax(), "id"]
    assert tables.bags["id"].tolist() == slides.ids.tolist()
    assert len(tables.instances) == patients.bags.n_instances


def test_errors(patients):
    bags = patients.bags
    slides = bags.by_group()
    with pytest.raises(ValueError, match=r"group 's1' is in bag 0 \('a'\) and in bag 1 \('b'\)"):
        Bags(np.ones((2, 1)), [0, 1, 2], ids=["a", "b"], groups=["s1", "s1"])
    with pytest.raises(ValueError, match="the bags have no groups"):
        slides.by_group()
    with pytest.raises(ValueError, match="have groups already"):
        bags.merge(bags.ids)
    with pytest.raises(ValueError, match="one name per bag: got 1 for"):
        slides.merge(["p"])
    twice = Bags(np.ones((2, 1)), [0, 1, 2], ids=["s1", "s1"])
    with pytest.raises(ValueError, match=r"group 's1' is in bag 0 \('p'\) and in bag 1 \('q'\)"):
        twice.merge(["p", "q"])


@pytest.fixture(scope="module")
def folder(patients, tmp_path_factory):
    """Slides as files, and a table of their patients whose labels they inherit."""
    root = tmp_path_factory.mktemp("patients")
    (root / "slides").mkdir()
    slides = patients.bags.by_group()
    y = dict(zip(patients.bags.ids, patients.y, strict=True))
    lines = ["slide_id,label,patient"]
    for name, X in zip(slides.ids, slides, strict=True):
        coords = np.column_stack([np.arange(len(X)) % 3, np.arange(len(X)) // 3])
        np.savez(root / "slides" / f"{name}.npz", features=X, coords=256 * coords)
        patient = "_".join(name.split("_")[:2])
        lines.append(f"{name},{y[patient]},{patient}")
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    return root


QUICK = ["--model", "vgpmil", "--set", "n_inducing=25"]


def test_command(folder, patients, capsys):
    data = ["--bags", str(folder / "slides"), "--labels", str(folder / "labels.csv")]
    data += ["--patient-column", "patient"]
    out = folder / "model.bagwise"
    fit = ["fit", *data, *QUICK, "--level", "patient", "--couple", "0.5", "--cv", "3"]
    assert main([*fit, "--out", str(out)]) == 0
    assert "made 24 patients" in capsys.readouterr().out
    results = folder / "results"
    assert main(["predict", str(out), *data, "--out", str(results)]) == 0
    said = capsys.readouterr()
    assert "24 labelled patients" in said.out
    assert "trained on 24 of these" in said.err + said.out
    names = {path.name for path in results.iterdir()}
    assert {"patients.csv", "slides.csv", "instances.parquet", "report.html"} <= names
    assert "bags.csv" not in names
    by_patient = pd.read_csv(results / "patients.csv").set_index("patient")
    slides = pd.read_csv(results / "slides.csv")
    instances = pd.read_parquet(results / "instances.parquet")
    assert len(by_patient) == 24
    assert by_patient["std"].notna().all()
    top = slides.groupby("patient")["probability"].max()
    assert (top <= by_patient["probability"].loc[top.index]).all()
    patch = instances.groupby("bag", observed=True)["probability"].max()
    assert (patch <= slides.set_index("id")["probability"].loc[patch.index] + 1e-12).all()
    page = (results / "report.html").read_text(encoding="utf-8")
    assert "called by all bags together" in page
    assert "were coupled (strength up to 0.50)" in page


def test_command_errors(folder, tmp_path, capsys):
    bags = ["--bags", str(folder / "slides")]
    data = [*bags, "--labels", str(folder / "labels.csv")]
    out = ["--out", str(tmp_path / "m.bagwise")]
    assert main(["fit", *data, *QUICK, "--level", "patient", *out]) == 2
    assert "needs --patient-column" in capsys.readouterr().err
    lines = (folder / "labels.csv").read_text().splitlines()
    first = lines[1].split(",")
    lines[1] = f"{first[0]},{1 - int(first[1])},{first[2]}"
    mixed = tmp_path / "mixed.csv"
    mixed.write_text("\n".join(lines) + "\n")
    fit = ["fit", *bags, "--labels", str(mixed), "--patient-column", "patient", *QUICK]
    assert main([*fit, "--level", "patient", *out]) == 2
    assert "has slides labelled" in capsys.readouterr().err
    model = folder / "plain.bagwise"
    assert main(["fit", *data, *QUICK, "--out", str(model)]) == 0
    predict = ["predict", str(model), *bags, "--level", "patient", "--out", str(tmp_path / "r")]
    assert main(predict) == 2
    assert "needs the patient of every bag" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["fit", *data, *QUICK, "--couple", "-1", *out])
    assert "a strength is a number from 0 up" in capsys.readouterr().err


def test_experiment(tmp_path):
    from experiments import patients as experiment

    table = experiment.run(True, tmp_path).set_index(["model", "metric"])["mean"]
    assert table["patients as bags", "incoherent pairs"] == 0
    assert table["patients as bags", "patch AUC"] > 0.8


def test_rows_on_disk_are_predicted_a_few_patients_at_a_time(
    patients, model, tmp_path, monkeypatch
):
    slides = patients.bags.by_group()
    for i, X in enumerate(slides):
        np.save(tmp_path / f"{i:03d}.npy", X)
    owner = [name.split("_")[1] for name in slides.ids][::-1]  # slides of a patient lie apart
    on_disk = read_bags(tmp_path, lazy=True).merge(owner)
    expected = predict_levels(model, on_disk.with_instances(on_disk.instances[:]))
    monkeypatch.setattr(levels, "_MOST_NUMBERS", 30 * on_disk.n_features)
    result = predict_levels(model, on_disk)
    for level in ("bags", "groups", "instances"):
        for a, b in zip(getattr(result, level), getattr(expected, level), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-8)
    np.testing.assert_array_equal(result.owner, expected.owner)
    assert result.group_bags.ids.tolist() == expected.group_bags.ids.tolist()
    np.save(tmp_path / "000.npy", np.full((len(slides[0]), on_disk.n_features), np.nan))
    with pytest.raises(ValueError, match="NaN"):
        predict_levels(model, on_disk)
