"""The commands, as a user types them: what they write, what they say, how they end."""

from __future__ import annotations

import html
import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

import bagwise
from bagwise import persist
from bagwise.cli import main
from bagwise.cli.commands import COMMANDS, build_parser
from bagwise.cli.console import Printer
from bagwise.cli.fit import settings
from bagwise.datasets import make_gaussian_bags
from bagwise.files import read_bags
from bagwise.models.registry import make_model
from tests.filing import failing, make_clam, make_folder, make_trident, write_labels
from tests.test_files import H5_FAULTS, LABEL_FAULTS

QUICK = ["--model", "single-instance"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder, its labels and a model file, never changed by a test."""
    root = tmp_path_factory.mktemp("trained")
    folder, labels = make_folder(root)
    model = root / "model.bagwise"
    assert (
        main(["fit", "--bags", str(folder), "--labels", str(labels), "--out", str(model), *QUICK])
        == 0
    )
    return folder, labels, model


def run(*words):
    return main([str(word) for word in words])


def tree(root: Path):
    """Every path below a folder, hidden ones too."""
    return sorted(str(p.relative_to(root)) for p in root.rglob("*"))


# The whole path.


@pytest.mark.parametrize("layout", [make_clam, make_trident])
def test_from_a_folder_of_features_to_a_report(layout, tmp_path, capsys):
    bags, labels = layout(tmp_path)
    model, out = tmp_path / "model.bagwise", tmp_path / "out"
    assert (
        run(
            "fit",
            "--bags",
            bags,
            "--labels",
            labels,
            "--set",
            "n_inducing=20",
            "--cv",
            3,
            "--out",
            model,
        )
        == 0
    )
    assert run("predict", model, "--bags", bags, "--labels", labels, "--out", out) == 0
    said = capsys.readouterr()
    assert "3-fold cross-validation" in said.out
    assert not said.err
    names = ["bags.csv", "instances.parquet", "report.html", "top_instances.csv"]
    assert sorted(p.name for p in out.iterdir()) == names
    table = pd.read_csv(out / "bags.csv", dtype={"id": str})
    columns = ["id", "probability", "std", "label", "fraction", "fraction_low", "fraction_high"]
    assert table.columns.tolist() == columns
    truth = pd.read_csv(labels, dtype=str).set_index("slide_id")["label"]
    assert (table["label"].astype(str) == truth[table["id"]].to_numpy()).mean() > 0.9
    instances = pd.read_parquet(out / "instances.parquet")
    assert instances.columns.tolist() == ["bag", "index", "x", "y", "probability", "std"]
    assert instances["std"].notna().all()
    assert "How good is it?" in (out / "report.html").read_text(encoding="utf-8")


def test_the_command_also_runs_as_a_module():
    words = [sys.executable, "-m", "bagwise", "--version"]
    made = subprocess.run(words, capture_output=True, text=True, check=True)
    assert bagwise.__version__ in made.stdout


def test_how_a_model_runs_is_set_like_its_parameters(tmp_path):
    folder, labels = make_folder(tmp_path)
    path = tmp_path / "m.bagwise"
    given = ["--model", "vgpmil", "--set", "n_inducing=15", "--set", "execution.dtype=float32"]
    given += ["--set", "execution.cache=none"]
    assert run("fit", "--bags", folder, "--labels", labels, *given, "--out", path) == 0
    model = bagwise.load(path)
    assert model.execution == bagwise.Execution(dtype="float32", cache="none")
    assert model.cache_ == "none"


def test_a_terminal_shows_how_far_a_fit_is(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Printer, "is_watched", True)
    folder, labels = make_folder(tmp_path)
    path = tmp_path / "m.bagwise"
    given = ["--model", "vgpmil", "--set", "n_inducing=15", "--set", "max_iter=3"]
    assert run("fit", "--bags", folder, "--labels", labels, *given, "--out", path) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "training vgpmil on" in printed
    assert "bound" in printed
    assert "passed, at most" in printed
    assert persist.about(path)["parameters"]["verbose"] == "False"


def test_predictions_equal_the_model_in_memory(tmp_path):
    folder, labels = make_folder(tmp_path)
    model, out = tmp_path / "m.bagwise", tmp_path / "out"
    assert (
        run("fit", "--bags", folder, "--labels", labels, "--set", "n_inducing=15", "--out", model)
        == 0
    )
    assert run("predict", model, "--bags", folder, "--out", out) == 0
    bags = read_bags(folder)
    y = pd.read_csv(labels)["label"].to_numpy()
    in_memory = make_model("auto", n_inducing=15, random_state=0)
    p, std = in_memory.fit(bags, y).predict_proba(bags, return_std=True)
    table = pd.read_csv(out / "bags.csv", dtype=str)
    np.testing.assert_array_equal([float(v) for v in table["probability"]], p[:, 1])
    np.testing.assert_array_equal([float(v) for v in table["std"]], std)
    instances = pd.read_parquet(out / "instances.parquet")
    saved = bagwise.load(model)
    np.testing.assert_array_equal(
        instances["probability"], saved.predict_proba_instances(bags)[:, 1]
    )


def test_fit_and_report_say_how_to_read_the_probabilities(tmp_path, capsys):
    folder, labels = make_folder(tmp_path)
    model, out = tmp_path / "m.bagwise", tmp_path / "out"
    data = ["--bags", folder, "--labels", labels]
    assert run("fit", *data, "--set", "n_inducing=15", "--out", model) == 0
    weight = f"{100 * bagwise.load(model).whole_bag_weight_:.0f} %"
    notes = [
        "whether it is one of those that made its bag positive",
        f"Candidates that look at whole bags have {weight} of the weight",
    ]
    printed = " ".join(capsys.readouterr().out.split())
    assert run("predict", model, "--bags", folder, "--out", out) == 0
    page = (out / "report.html").read_text(encoding="utf-8")
    for note in notes:
        assert printed.count(note) == page.count(note) == 1


def test_the_positive_class_can_be_named(tmp_path, capsys):
    folder, labels = make_folder(tmp_path)
    write_labels(labels, [(f"{i:03d}", ["wild", "mutant"][i % 2]) for i in range(24)])
    fit = ["fit", "--bags", folder, "--labels", labels, *QUICK]
    assert run(*fit, "--out", tmp_path / "a.bagwise") == 2
    assert (
        "cannot tell which of 'mutant' and 'wild' is the positive class; pass --positive mutant"
        in capsys.readouterr().err
    )
    assert run(*fit, "--positive", "mutant", "--cv", 3, "--out", tmp_path / "b.bagwise") == 0
    assert (
        run(
            "predict",
            tmp_path / "b.bagwise",
            "--bags",
            folder,
            "--labels",
            labels,
            "--out",
            tmp_path / "o",
        )
        == 0
    )
    table = pd.read_csv(tmp_path / "o" / "bags.csv")
    assert ((table["probability"] > 0.5) == (table["label"] == "mutant")).all()
    mutant = np.arange(24) % 2 == 1
    assert table["probability"][mutant].min() > table["probability"][~mutant].median()
    capsys.readouterr()
    assert (
        run("evaluate", tmp_path / "b.bagwise", "--bags", folder, "--labels", labels, "--json") == 0
    )
    assert json.loads(capsys.readouterr().out)["metrics"]["auc"] > 0.9
    write_labels(
        tmp_path / "i.csv", [("001", 0, "mutant"), ("000", 0, "wild")], "slide_id,index,label"
    )
    known = ["--instance-labels", tmp_path / "i.csv", "--positive", "mutant", "--cv", 3]
    assert run(*fit, *known, "--out", tmp_path / "k.bagwise") == 0
    assert run(*fit, "--positive", "tumor", "--out", tmp_path / "c.bagwise") == 2
    assert "has no label 'tumor'" in capsys.readouterr().err


def test_fit_warns_where_held_out_bags_rank_the_wrong_way_round(tmp_path, capsys):
    folder, labels = make_folder(tmp_path)
    fit = ["fit", "--bags", folder, "--labels", labels, *QUICK, "--cv", 3, "--json"]
    assert run(*fit, "--out", tmp_path / "a.bagwise") == 0
    assert "below 0.5" not in capsys.readouterr().err
    chance = np.random.default_rng(11).permutation(24) % 2  # labels that say nothing
    write_labels(labels, [(f"{i:03d}", ["wild", "mutant"][c]) for i, c in enumerate(chance)])
    assert run(*fit, "--positive", "wild", "--out", tmp_path / "b.bagwise") == 0
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert result["metrics"]["auc"] < 0.4
    assert "below 0.5" in result["warnings"][-1]
    assert "pass --positive mutant" in " ".join(said.err.split())


def test_tables_and_feature_names(tmp_path, capsys):
    folder, labels = make_folder(tmp_path)
    bags = read_bags(folder)
    frame = pd.DataFrame(bags.instances, columns=[f"f{j}" for j in range(6)])
    frame.insert(0, "mol", bags.ids[bags.bag_index])
    frame.to_csv(tmp_path / "rows.csv", index=False)
    text = labels.read_text().replace("slide_id", "mol").replace("label", "active")
    labels.write_text(text)
    names = ["--id-column", "mol", "--label-column", "active"]
    model = tmp_path / "m.bagwise"
    assert (
        run(
            "fit",
            "--bags",
            tmp_path / "rows.csv",
            "--labels",
            labels,
            *names,
            *QUICK,
            "--out",
            model,
        )
        == 0
    )
    assert persist.about(model)["feature_names"] == [f"f{j}" for j in range(6)]
    assert (
        run("predict", model, "--bags", tmp_path / "rows.csv", *names, "--out", tmp_path / "o") == 0
    )
    assert "x" not in pd.read_parquet(tmp_path / "o" / "instances.parquet")


def test_patients_stay_together(tmp_path, capsys):
    folder, labels = make_folder(tmp_path)
    write_labels(
        labels, [(f"{i:03d}", i % 2, f"p{i // 4}") for i in range(24)], "slide_id,label,who"
    )
    words = ["fit", "--bags", folder, "--labels", labels, "--patient-column", "who", "--cv", 3]
    assert run(*words, *QUICK, "--out", tmp_path / "m.bagwise") == 0
    assert "3-fold cross-validation by patient" in capsys.readouterr().out


def test_instance_labels_are_used_only_when_asked(tmp_path, capsys):
    folder, labels = make_folder(tmp_path)
    write_labels(tmp_path / "i.csv", [("000", 0, 1)], "slide_id,index,label")
    words = ["fit", "--bags", folder, "--labels", labels, *QUICK, "--out", tmp_path / "m.bagwise"]
    assert run(*words, "--instance-labels", tmp_path / "i.csv") == 2
    assert "labelled negative but has a positive instance" in capsys.readouterr().err
    assert run(*words, "--use-instance-labels") == 2
    assert "have no dataset 'instance_labels'" in capsys.readouterr().err
    for path in folder.iterdir():
        with h5py.File(path, "a") as file:
            file["instance_labels"] = np.zeros(len(file["features"]), dtype=int)
    assert run(*words, "--use-instance-labels") == 2  # a positive bag of negatives only
    assert run(*words) == 0
    assert "every instance in it is labelled negative" in capsys.readouterr().err


def test_skip_bad_goes_on_and_lists(tmp_path, capsys):
    folder, labels = make_folder(tmp_path)
    os.truncate(folder / "003.h5", 900)
    words = ["--bags", folder, "--labels", labels, "--skip-bad", "--json"]
    assert run("fit", *words, *QUICK, "--out", tmp_path / "m.bagwise") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["training"]["n_bags"] == 23
    assert "003.h5" in result["skipped"][0]
    assert run("predict", tmp_path / "m.bagwise", *words, "--out", tmp_path / "o") == 0
    assert "003.h5" in json.loads(capsys.readouterr().out)["skipped"][0]
    assert "003.h5" in (tmp_path / "o" / "report.html").read_text(encoding="utf-8")


# Bad input: one line that names the file, exit code 2, nothing written.


def refused(capsys, root, *words, names, says):
    before = tree(root)
    assert run(*words) == 2
    said = capsys.readouterr()
    lines = said.err.strip().splitlines()
    assert len(lines) == 1, said.err
    assert lines[0].startswith("bagwise: error: ")
    assert str(names) in lines[0]
    import re

    assert re.search(says, lines[0]), lines[0]
    assert tree(root) == before
    return lines[0]


@pytest.mark.parametrize("fault", H5_FAULTS)
@pytest.mark.parametrize("command", ["fit", "predict"])
def test_broken_bag_files(fault, command, tmp_path, capsys, trained):
    if command == "predict" and fault == "no coords":
        pytest.skip("one kind of command is enough for each kind of layout fault")
    folder, labels = make_folder(tmp_path)
    spoil, message = H5_FAULTS[fault]
    spoil(folder / "002.h5")
    words = ["predict", trained[2]] if command == "predict" else ["fit", "--labels", labels, *QUICK]
    words += ["--bags", folder, "--out", tmp_path / "out"]
    refused(capsys, tmp_path, *words, names=folder / "002.h5", says=message)


@pytest.mark.parametrize("fault", LABEL_FAULTS)
def test_broken_label_files(fault, tmp_path, capsys):
    folder, labels = make_folder(tmp_path)
    content, message = LABEL_FAULTS[fault]
    labels.write_bytes(content)
    words = ["fit", "--bags", folder, "--labels", labels, *QUICK, "--out", tmp_path / "m"]
    refused(capsys, tmp_path, *words, names=labels, says=message)


def test_labels_that_do_not_fit(tmp_path, capsys):
    folder, labels = make_folder(tmp_path)
    good = labels.read_text()
    words = ["fit", "--bags", folder, *QUICK, "--out", tmp_path / "m", "--labels"]
    labels.write_text(good + "ghost,1\n")
    refused(
        capsys, tmp_path, *words, labels, names=labels, says="bag 'ghost' has a label but no file"
    )
    labels.write_text(good.replace("005,1\n", ""))
    refused(capsys, tmp_path, *words, labels, names=labels, says="bag '005' has no label in")
    labels.write_text(good.replace(",0", ",1"))
    refused(capsys, tmp_path, *words, labels, names=labels, says="needs two classes of bags; got 1")
    refused(capsys, tmp_path, *words, tmp_path, names=tmp_path, says="is a folder, not a file")
    refused(capsys, tmp_path, *words, tmp_path / "no.csv", names="no.csv", says="does not exist")


def test_bags_that_are_not_there(tmp_path, capsys):
    folder, labels = make_folder(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "text.csv").write_text("slide_id,a\n000,1\n001,oops\n")
    for path, message in [
        ("nowhere", "does not exist"),
        ("empty", "has no bag files"),
        ("labels.csv.zip", "does not exist"),
        ("bad.parquet", "cannot be read"),
        ("text.csv", "column 'a' must hold finite numbers; line 3 has 'oops'"),
    ]:
        words = [
            "fit",
            "--bags",
            tmp_path / path,
            "--labels",
            labels,
            *QUICK,
            "--out",
            tmp_path / "m",
        ]
        refused(capsys, tmp_path, *words, names=tmp_path / path, says=message)
    np.save(folder / "002.npy", np.ones((2, 6)))
    words = ["predict", folder / "002.npy", "--bags", folder, "--out", tmp_path / "o"]
    refused(capsys, tmp_path, *words, names="002.npy", says="is not a bagwise model")


def test_several_faults_are_one_report(tmp_path, capsys):
    folder, labels = make_folder(tmp_path)
    os.truncate(folder / "001.h5", 900)
    (folder / "002.h5").write_bytes(b"")
    assert run("fit", "--bags", folder, "--labels", labels, *QUICK, "--out", tmp_path / "m") == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[0] == "bagwise: error: 2 problems:"
    assert "001.h5: " in lines[1]
    assert "002.h5: " in lines[2]
    assert not (tmp_path / "m").exists()


def test_models_that_do_not_fit(tmp_path, capsys, trained):
    folder, _ = make_folder(tmp_path, n_features=5)
    _, _, model = trained
    words = ["--bags", folder, "--out", tmp_path / "o"]
    refused(capsys, tmp_path, "predict", model, *words, names=folder, says="5 features, but .* 6")
    damaged = tmp_path / "d.bagwise"
    damaged.write_bytes(model.read_bytes()[:500])
    refused(capsys, tmp_path, "predict", damaged, *words, names=damaged, says="cut short")
    refused(capsys, tmp_path, "info", tmp_path / "no", names=tmp_path / "no", says="does not exist")


def test_arguments_that_make_no_sense(tmp_path, capsys, trained):
    folder, labels, model = trained
    fit = ["fit", "--bags", folder, "--labels", labels, "--out", tmp_path / "m"]
    for extra, message in [
        (["--model", "resnet"], "there is no model 'resnet'"),
        (["--set", "n_inducing"], "--set needs NAME=VALUE"),
        (["--set", "colour=red"], "has no parameter 'colour'"),
        (["--set", "n_inducing=-3"], "n_inducing"),
        (["--set", "execution.colour=red"], "execution.colour: an execution has device"),
        (["--set", "execution.dtype=int8"], "dtype must be one of"),
        (["--set", "execution=cpu", "--set", "execution.n_jobs=1"], "exclude each other"),
        (["--cv", "13"], "needs at least 2 folds and 13 bags of each class"),
        (["--cv", "1"], "at least 2 folds"),
    ]:
        refused(capsys, tmp_path, *fit, *extra, names="", says=message)
    predict = ["predict", model, "--bags", folder, "--out", tmp_path / "o", "--threshold", "1.5"]
    refused(capsys, tmp_path, *predict, names="", says="--threshold must be between 0 and 1")
    with pytest.raises(SystemExit) as caught:
        run("fit", "--bags", folder)
    assert caught.value.code == 2
    assert "required: --labels, --out" in capsys.readouterr().err


# Outputs.


def test_existing_outputs_are_kept_without_force(tmp_path, capsys, trained):
    folder, labels, model = trained
    (tmp_path / "m").write_text("precious")
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "bags.csv").write_text("precious")
    fit = ["fit", "--bags", folder, "--labels", labels, *QUICK, "--out", tmp_path / "m"]
    predict = ["predict", model, "--bags", folder, "--out", tmp_path / "o"]
    for words, path in [(fit, tmp_path / "m"), (predict, tmp_path / "o")]:
        refused(capsys, tmp_path, *words, names=path, says="exists already; pass --force")
        assert run(*words, "--force") == 0
    capsys.readouterr()
    names = ["bags.csv", "instances.parquet", "report.html", "top_instances.csv"]
    assert tree(tmp_path) == ["m", "o", *(f"o/{name}" for name in names)]
    (tmp_path / "o" / "mine.txt").write_text("precious")
    says = r"holds other files \(mine.txt\) and is not replaced"
    refused(capsys, tmp_path, *predict, "--force", names=tmp_path / "o", says=says)
    refused(
        capsys, tmp_path, "demo", "--out", tmp_path / "o", names=tmp_path / "o", says="bags.csv"
    )


def test_read_only_places(tmp_path, capsys, trained, monkeypatch):
    folder, labels, _ = trained
    fit = ["fit", "--bags", folder, "--labels", labels, *QUICK, "--out"]
    refused(capsys, tmp_path, *fit, labels / "m", names=labels / "m", says="is not a folder")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    out = tmp_path / "m"
    refused(capsys, tmp_path, *fit, out, names=out, says="cannot be written: .* is read-only")


def test_a_full_disk(tmp_path, capsys, trained, monkeypatch):
    folder, labels, model = trained
    full = OSError(28, "No space left on device")

    def refuse(*_arguments, **_more):
        raise full

    monkeypatch.setattr(zipfile.ZipFile, "writestr", failing(full))
    monkeypatch.setattr(pd.DataFrame, "to_parquet", refuse)
    fit = ["fit", "--bags", folder, "--labels", labels, *QUICK, "--out", tmp_path / "m"]
    refused(capsys, tmp_path, *fit, names=tmp_path / "m", says="the disk is full")
    predict = ["predict", model, "--bags", folder, "--out", tmp_path / "o"]
    refused(capsys, tmp_path, *predict, names=tmp_path / "o", says="the disk is full")


@pytest.mark.parametrize("command", ["fit", "predict"])
def test_ctrl_c_leaves_nothing_half_written(command, tmp_path, capsys, trained, monkeypatch):
    folder, labels, model = trained

    def interrupt(*_arguments, **_more):
        raise KeyboardInterrupt

    if command == "fit":
        monkeypatch.setattr(zipfile.ZipFile, "writestr", failing(KeyboardInterrupt()))
        words = ["fit", "--bags", folder, "--labels", labels, *QUICK, "--out", tmp_path / "m"]
    else:
        monkeypatch.setattr("bagwise.report.html.render_report", interrupt)
        words = ["predict", model, "--bags", folder, "--out", tmp_path / "o"]
    assert run(*words) == 130
    assert "interrupted; nothing was written" in capsys.readouterr().err
    assert tree(tmp_path) == []


def test_ctrl_c_in_a_process_of_its_own(tmp_path, trained):
    folder, labels, _ = trained
    code = "import signal, sys, time, zipfile; from bagwise.cli import main\n"
    code += "writestr = zipfile.ZipFile.writestr\n"
    code += "def slow(archive, *a, **k):\n"
    code += "    if archive.filename: print('writing', flush=True); time.sleep(60)\n"
    code += "    return writestr(archive, *a, **k)\n"
    # A background job may have inherited a parent that ignores Ctrl-C.
    code += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "zipfile.ZipFile.writestr = slow\n"
    code += "sys.exit(main())"
    words = ["fit", "--bags", folder, "--labels", labels, *QUICK, "--out", tmp_path / "m", "--json"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "writing\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; nothing was written" in said
    assert tree(tmp_path) == []


# The other commands.


def test_evaluate(trained, capsys):
    folder, labels, model = trained
    assert run("evaluate", model, "--bags", folder, "--labels", labels) == 0
    assert "accuracy" in capsys.readouterr().out
    assert run("evaluate", model, "--bags", folder, "--labels", labels, "--json") == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert set(metrics) == {"accuracy", "auc", "log_loss", "brier", "ece"}


def test_evaluate_needs_the_same_classes(tmp_path, trained, capsys):
    folder, _, model = trained
    labels = tmp_path / "l.csv"
    write_labels(labels, [(f"{i:03d}", "ab"[i % 2]) for i in range(24)])
    assert run("evaluate", model, "--bags", folder, "--labels", labels) == 2
    assert "label 'a' is not one of the classes [0, 1] of the model" in capsys.readouterr().err


def test_evaluate_instances_where_labels_are_known(tmp_path, capsys, trained):
    folder, labels = make_folder(tmp_path)
    for i, path in enumerate(sorted(folder.iterdir())):
        with h5py.File(path, "a") as file:
            shifted = np.asarray(file["features"]).mean(axis=1) > 1.5
            file["instance_labels"] = (shifted & bool(i % 2)).astype(int)
    assert run("evaluate", trained[2], "--bags", folder, "--labels", labels, "--json") == 0
    assert json.loads(capsys.readouterr().out)["instance_metrics"]["auc"] > 0.9


def test_compare(tmp_path, trained, capsys):
    folder, labels, _ = trained
    words = ["compare", "--models", "single-instance,statistics", "--cv", 3, "--json"]
    out = tmp_path / "c.csv"
    assert run(*words, "--bags", folder, "--labels", labels, "--out", out) == 0
    models = {row["model"] for row in json.loads(capsys.readouterr().out)["summary"]}
    assert models == {"single-instance", "statistics"}
    assert len(pd.read_csv(out)) > 6
    assert run(*words) == 2
    assert "either --bags with --labels, or --datasets" in capsys.readouterr().err
    assert run(*words, "--bags", folder) == 2
    assert "needs --labels" in capsys.readouterr().err
    assert run(*words, "--datasets", "atlantis") == 2
    assert "there is no data set 'atlantis'" in capsys.readouterr().err


def test_info(trained, capsys):
    assert run("info", trained[2]) == 0
    assert "SingleInstance" in capsys.readouterr().out
    assert run("info", trained[2], "--json") == 0
    about = json.loads(capsys.readouterr().out)
    assert about["training"]["n_bags"] == 24
    with zipfile.ZipFile(trained[2]) as archive:
        assert json.loads(archive.read("bagwise.json")) == about


def test_datasets(capsys):
    assert run("datasets", "--json") == 0
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)["datasets"]}
    assert found["musk2"]["instances"] == 6598
    assert run("datasets") == 0
    assert "musk1" in capsys.readouterr().out


def test_reproduce_lists(capsys):
    assert run("reproduce", "--list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"paper", "data", "time"} <= set(listed["margin"])


def test_audit_finds_a_label_among_the_features(tmp_path, capsys):
    rng = np.random.default_rng(0)
    rows, labels = ["slide_id,mass,outcome"], ["slide_id,label"]
    for i in range(40):
        labels.append(f"s{i},{'tumor' if i % 2 else 'normal'}")
        rows += [f"s{i},{rng.normal():.5f},{i % 2}" for _ in range(3)]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "labels.csv").write_text("\n".join(labels) + "\n")
    words = ["audit", "--bags", tmp_path / "rows.csv", "--labels", tmp_path / "labels.csv"]
    words += ["--feature-columns", "mass,outcome"]
    assert run(*words, "--json") == 0
    made = json.loads(capsys.readouterr().out)
    (finding,) = made["findings"]
    assert finding["where"] == "feature 1 ('outcome'), one value per bag"
    assert run(*words) == 0
    assert "determines the bag label" in " ".join(capsys.readouterr().out.split())
    # The same while fitting: a warning now, and a section of every report made with the model.
    fit = ["fit", "--model", "single-instance", "--audit", *words[1:]]
    assert run(*fit, "--out", tmp_path / "m.bagwise", "--json") == 0
    said = capsys.readouterr()
    assert "audit: bag-label: a feature alone determines the bag label" in said.err
    assert json.loads(said.out)["audit"] == made
    words = ["predict", tmp_path / "m.bagwise", "--bags", tmp_path / "rows.csv"]
    words += ["--feature-columns", "mass,outcome", "--out", tmp_path / "results"]
    assert run(*words) == 0
    page = (tmp_path / "results" / "report.html").read_text(encoding="utf-8")
    assert "Are the training data sound?" in page
    assert "found 1 thing to look at" in page
    assert "feature 1 ('outcome'), one value per bag" in html.unescape(page)


def test_audit_of_training_bags_that_finds_nothing(tmp_path):
    bags, y = make_gaussian_bags(40, 5, separation=2, random_state=0, return_X_y=True)
    folder, labels = tmp_path / "features", tmp_path / "labels.csv"
    folder.mkdir()
    for i, x in enumerate(bags):
        np.save(folder / f"s{i}.npy", x)
    labels.write_text("slide_id,label\n" + "".join(f"s{i},{c}\n" for i, c in enumerate(y)))
    words = ["fit", "--model", "single-instance", "--bags", folder, "--labels", labels]
    assert run(*words, "--audit", "--out", tmp_path / "m.bagwise") == 0
    predict = ["predict", tmp_path / "m.bagwise", "--bags", folder, "--out", tmp_path / "r"]
    assert run(*predict) == 0
    page = (tmp_path / "r" / "report.html").read_text(encoding="utf-8")
    assert "An audit of the training bags found nothing." in page
    assert run(*words, "--out", tmp_path / "plain.bagwise") == 0
    predict = ["predict", tmp_path / "plain.bagwise", "--bags", folder, "--out", tmp_path / "p"]
    assert run(*predict) == 0
    page = (tmp_path / "p" / "report.html").read_text(encoding="utf-8")
    assert "Are the training data sound?" not in page


def test_version_and_help(capsys):
    with pytest.raises(SystemExit) as caught:
        run("--version")
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"bagwise {bagwise.__version__}\n"
    assert run() == 0
    assert "bagwise demo" in capsys.readouterr().out
    chosen = build_parser()._subparsers._group_actions[0].choices
    assert set(chosen) == set(COMMANDS)
    names = set(COMMANDS) - {"ct", "detect"}  # which have commands of their own
    for name in names:
        with pytest.raises(SystemExit):
            run(name, "--help")
        said = capsys.readouterr().out
        assert "examples:" in said
        assert "exit codes:" in said


def test_traceback_on_request(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        run("info", tmp_path / "none", "--traceback")


def test_settings_are_literals_or_text():
    found = settings(["a=1", "b=None", "c=global", "d=(1, 2)", "e=x=y"])
    assert found == {"a": 1, "b": None, "c": "global", "d": (1, 2), "e": "x=y"}


def test_warnings_are_one_line(tmp_path, capsys, trained):
    folder, labels, _ = trained
    words = ["fit", "--model", "vgpmil", "--bags", folder, "--labels", labels]
    words += ["--set", "max_iter=1"]
    assert run(*words, "--set", "n_inducing=10", "--out", tmp_path / "m") == 0
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("bagwise: warning: VGPMIL did not converge")


def test_demo_refuses_too_few_bags(tmp_path, capsys):
    assert run("demo", "--out", tmp_path / "demo", "--bags", 3) == 2  # the reader's journey runs it
