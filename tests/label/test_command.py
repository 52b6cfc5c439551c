"""``bagwise label`` without its page: refusals, files of other tools, and the experiment."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bagwise import VGPMIL, save
from bagwise.cli import main
from bagwise.files import read_bags
from tests.filing import arrays, make_folder


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    root = tmp_path_factory.mktemp("slides")
    folder, labels = make_folder(root)
    bags = read_bags(folder)
    y = np.array([label for _, _, _, label in arrays()])
    save(VGPMIL(n_inducing=10, random_state=0).fit(bags, y), root / "m.bagwise", bags=bags, y=y)
    return root, folder, labels


def run(*words):
    return main(["label", *(str(word) for word in words)])


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "label needs a model file and --bags, or --demo"),
        (["m", "--bags", "b"], "label needs --out"),
        (["m", "--bags", "b", "--out", "o", "--test-bags", "t"], "go together"),
        (["m", "--bags", "b", "--out", "o", "--auto", "-1"], "--auto must be 0 or more"),
        (["nothing", "--bags", "b", "--out", "o"], "nothing"),
    ],
)
def test_refusals_are_one_line_and_write_nothing(tmp_path, monkeypatch, capsys, words, what):
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 2
    said = capsys.readouterr().err
    assert what in said and len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_label_the_model_does_not_know(slides, tmp_path, capsys):
    root, folder, _ = slides
    labels = tmp_path / "l.csv"
    rows = [f"{name},{'odd' if y else 'even'}" for name, _, _, y in arrays()]
    labels.write_text("slide_id,label\n" + "\n".join(rows) + "\n")
    words = root / "m.bagwise", "--bags", folder, "--labels", labels, "--out", tmp_path / "o.csv"
    assert run(*words) == 2
    assert "has the label 'even'; the model knows ['0', '1']" in capsys.readouterr().err


def test_annotations_of_qupath_become_labels(slides, tmp_path):
    root, folder, labels = slides
    square = [[0, 0], [256, 0], [256, 256], [0, 256], [0, 0]]
    feature = {
        "type": "Feature",
        "geometry": {"type": "Polygon", "coordinates": [square]},
        "properties": {"objectType": "annotation", "classification": {"name": "1"}},
    }
    drawn = tmp_path / "001.geojson"
    drawn.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    out = tmp_path / "labels.csv"
    words = [root / "m.bagwise", "--bags", folder, "--labels", labels, "--out", out]
    assert run(*words, "--import", drawn, "--export-only") == 0
    assert out.read_text().splitlines() == ["slide_id,index,label", "001,0,1"]
    # Once more: nothing is said twice.
    assert run(*words, "--import", drawn, "--export-only") == 0
    assert len((tmp_path / "labels.csv.journal").read_text().splitlines()) == 2


def test_tasks_for_label_studio_and_answers_back(slides, tmp_path):
    root, folder, labels = slides
    out, tasks = tmp_path / "labels.csv", tmp_path / "tasks.json"
    words = [root / "m.bagwise", "--bags", folder, "--labels", labels, "--out", out]
    assert run(*words, "--label-studio", tasks) == 0
    content = json.loads(tasks.read_text())
    truth = {name: int(y) for name, _, _, y in arrays()}
    assert content and all(truth[task["data"]["bag"]] == 1 for task in content)
    answer = {"type": "choices", "value": {"choices": ["1"]}}
    content[0]["annotations"] = [{"result": [answer]}]
    tasks.write_text(json.dumps(content))
    assert run(*words, "--import", tasks, "--export-only") == 0
    data = content[0]["data"]
    assert out.read_text().splitlines()[1:] == [f"{data['bag']},{data['index']},1"]


def test_the_experiment_runs_quickly(tmp_path):
    from experiments.labelling import run as simulate

    table = simulate(quick=True, out=tmp_path)
    assert table["model"].tolist() == [
        "VGPMIL, information",
        "VGPMIL, uncertainty",
        "VGPMIL, random",
    ]
    assert table["mean"].iloc[-1] <= 20  # random reaches itself
    assert (tmp_path / "labelling.png").stat().st_size > 0
