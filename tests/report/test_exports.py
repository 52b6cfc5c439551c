"""Fractions of positive instances, GeoJSON and Label Studio there and back, the sheet."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from bagwise import Bags, OneVsRest
from bagwise.cli import main
from bagwise.files import (
    BadFilesError,
    label_studio_config,
    read_geojson,
    read_label_studio,
    write_geojson,
    write_label_studio,
)
from bagwise.models.registry import make_model
from bagwise.report import positive_fraction, predict_tables, with_fractions
from bagwise.report.exports import write_extras
from tests.filing import make_folder

CLASSES = ["normal", "tumour"]


def test_the_interval_covers_what_draws_do():
    """Labels drawn from the probabilities, without further doubt: 90 % of them are inside."""
    rng = np.random.default_rng(0)
    p = rng.beta(1, 3, 60)
    found = positive_fraction(p, np.zeros(60), [0, 60])
    drawn = (rng.random((4000, 60)) < p).mean(axis=1)
    inside = np.mean((drawn >= found.low) & (drawn <= found.high))
    assert 0.86 < inside < 0.94


def test_doubt_about_the_probabilities_widens_it_by_as_much():
    p = np.full(2000, 0.4)
    sure, unsure = (positive_fraction(p, np.full(2000, s), [0, 2000]) for s in (0.0, 0.1))
    # With 2000 instances only the shared doubt is left: a standard deviation of 0.1.
    assert (unsure.high - unsure.low)[0] == pytest.approx(2 * 1.645 * 0.1, rel=0.1)
    assert (sure.high - sure.low)[0] < 0.05


def test_edges_of_fractions():
    found = positive_fraction([0.0, 0.0, 1.0, 1.0], [0, 0, np.nan, 0], [0, 2, 4])
    assert [column.tolist() for column in found] == [[0.0, 1.0]] * 3


def slides(n=12):
    coords = np.stack([np.arange(n) % 4, np.arange(n) // 4], axis=1) * 256
    size = np.full(n, 256.0)
    ids = ["s/1 <b>", "s2"]
    return Bags(np.ones((n, 2)), [0, 8, n], ids, columns={"coords": coords, "patch_size": size})


def test_geojson_there_and_back(tmp_path):
    bags = slides()
    known = np.full(12, None, dtype=object)
    known[[0, 3]], known[[5, 9]] = "tumour", "normal"
    p = np.linspace(0, 1, 12)
    paths = write_geojson(tmp_path, bags, p, p / 2, classes=CLASSES, instance_labels=known)
    assert all(path.parent == tmp_path for path in paths)  # a name is never a way out
    back = [read_geojson(path, bags, CLASSES) for path in paths]
    joined = np.where(back[0] == None, back[1], back[0])  # noqa: E711
    assert joined.tolist() == known.tolist()


def test_geojson_is_what_qupath_documents(tmp_path):
    bags = slides()
    (path, _) = write_geojson(tmp_path, bags, np.linspace(0, 1, 12), classes=CLASSES)
    content = json.loads(path.read_text())
    assert content["type"] == "FeatureCollection" and len(content["features"]) == 8
    feature = content["features"][5]
    assert feature["type"] == "Feature"
    assert feature["geometry"] == {
        "type": "Polygon",
        "coordinates": [[[256, 256], [512, 256], [512, 512], [256, 512], [256, 256]]],
    }
    assert feature["properties"]["objectType"] == "detection"
    assert feature["properties"]["classification"] == {"name": "normal", "color": [36, 86, 166]}
    assert feature["properties"]["measurements"]["probability"] == pytest.approx(5 / 11, abs=1e-6)
    assert len({f["id"] for f in content["features"]}) == 8


def drawn(geometry, name="tumour", **properties):
    properties = {"objectType": "annotation", "classification": {"name": name}, **properties}
    return {"type": "Feature", "geometry": geometry, "properties": properties}


def box(x0, y0, x1, y1):
    return [[x0, y0], [x1, y0], [x1, y1], [x0, y1], [x0, y0]]


def test_a_patch_is_labelled_where_half_of_it_is_covered(tmp_path):
    bags = slides()
    shape = {"type": "Polygon", "coordinates": [box(0, 0, 256 + 140, 256)]}
    holed = {"type": "Polygon", "coordinates": [box(512, 256, 1024, 512), box(512, 256, 768, 512)]}
    many = {"type": "MultiPolygon", "coordinates": [[box(0, 256, 110, 512)]]}
    features = [drawn(shape), drawn(holed), drawn(many), drawn(shape, objectType="detection")]
    path = tmp_path / "s2.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    labels = read_geojson(path, bags, CLASSES, bag="s/1 <b>")
    assert np.flatnonzero(labels == "tumour").tolist() == [0, 1, 7]
    path.write_text(json.dumps([drawn(shape, "Stroma"), drawn(shape, None) | {"properties": None}]))
    assert set(read_geojson(path, bags, CLASSES, bag="s2")) == {None}


SQUARE = {"type": "Polygon", "coordinates": [box(0, 0, 256, 256)]}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", "is empty"),
        ("{", "is not JSON"),
        ('{"type": "FeatureCollection"}', "without 'features'"),
        ('"text"', "features must be a list"),
        ('[{"type": "Point"}]', "feature 0 is not a GeoJSON Feature"),
        ([drawn(None)], "feature 0: needs a Polygon or MultiPolygon; got None"),
        ([drawn({"type": "Polygon"})], "feature 0: needs a Polygon"),
        ([drawn({"type": "Polygon", "coordinates": [["a"]]})], "coordinates are not points"),
        ([drawn({"type": "Polygon", "coordinates": [[[0, 0], [1, 1]]]})], "at least four points"),
        ([drawn(SQUARE) | {"properties": {"classification": {}}}], "has no 'name'"),
        ([drawn(SQUARE), drawn(SQUARE, "normal")], "annotations of both classes"),
    ],
)
def test_bad_geojson_is_one_line(tmp_path, content, what):
    path = tmp_path / "a.geojson"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(BadFilesError, match=what) as error:
        read_geojson(path, slides(), CLASSES, bag="s/1 <b>")
    assert "\n" not in str(error.value) and str(path) in str(error.value)


def test_geojson_names_its_bag_or_says_so(tmp_path):
    path = tmp_path / "other.geojson"
    path.write_text("[]")
    with pytest.raises(BadFilesError, match="is about bag 'other', which is not among the bags"):
        read_geojson(path, slides(), CLASSES)
    with pytest.raises(ValueError, match="the bags have no coordinates"):
        write_geojson(tmp_path, Bags(np.ones((2, 2)), [0, 2]), [0, 1], classes=CLASSES)


def test_label_studio_there_and_back(tmp_path):
    bags = slides()
    known = np.full(12, None, dtype=object)
    known[2], known[10] = "tumour", "normal"
    rows = np.arange(12)
    p = np.linspace(0, 1, 12)
    images = [f"data:image/png;base64,{i}" for i in rows]
    path = write_label_studio(
        tmp_path / "tasks.json", bags, rows, p, p, classes=CLASSES, images=images,
        instance_labels=known,
    )  # fmt: skip
    assert read_label_studio(path, bags, CLASSES).tolist() == known.tolist()
    task = json.loads(path.read_text())[11]
    assert task["data"] == {
        "bag": "s2", "index": 3, "probability": 1.0, "std": 1.0, "image": images[11],
    }  # fmt: skip
    (prediction,) = task["predictions"]
    assert prediction["score"] == 1.0
    (result,) = prediction["result"]
    config = label_studio_config(CLASSES)
    assert f'name="{result["from_name"]}"' in config and f'name="{result["to_name"]}"' in config
    assert result["type"] == "choices" and result["value"] == {"choices": ["tumour"]}


def test_label_studio_takes_the_last_annotation_that_stands(tmp_path):
    def said(label, **more):
        return {"result": [{"type": "choices", "value": {"choices": [label]}}], **more}

    annotations = [said("normal"), said("tumour"), said("normal", was_cancelled=True)]
    path = tmp_path / "export.json"
    path.write_text(json.dumps([{"data": {"bag": "s2", "index": 1}, "annotations": annotations}]))
    assert read_label_studio(path, slides(), CLASSES)[9] == "tumour"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{}", "a list of tasks is needed"),
        ("[{}]", "task 0 has no 'data'"),
        ('[{"data": {"bag": "s2"}}]', "its data has no 'index'"),
        ('[{"data": {"bag": "x", "index": 0}}]', "bag 'x', which is not among the bags"),
        ('[{"data": {"bag": "s2", "index": 4}}]', "has instances 0 to 3; got 4"),
        ('[{"data": {"bag": "s2", "index": 0}, "annotations": [{}]}]', "has no 'result'"),
        ('[{"data": {"bag": "s2", "index": 0}, "annotations": 3}]', "not a list of objects"),
        (
            '[{"data": {"bag": "s2", "index": 0}, "annotations": [{"result": [{"value": {}}]}]}]',
            "no single choice",
        ),
        (
            '[{"data": {"bag": "s2", "index": 0}, "annotations": '
            '[{"result": [{"value": {"choices": ["fat"]}}]}]}]',
            "has the choice 'fat'",
        ),
    ],
)
def test_bad_exports_of_label_studio_are_one_line(tmp_path, content, what):
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(BadFilesError, match=what) as error:
        read_label_studio(path, slides(), CLASSES)
    assert "\n" not in str(error.value)


def test_predict_writes_geojson_and_fractions(tmp_path, capsys):
    folder, labels = make_folder(tmp_path)
    model = tmp_path / "m.bagwise"
    fit = ["fit", "--bags", folder, "--labels", labels, "--set", "n_inducing=10", "--out", model]
    assert main([str(word) for word in fit]) == 0
    out = tmp_path / "out"
    words = ["predict", model, "--bags", folder, "--geojson", "--out", out]
    assert main([str(word) for word in words]) == 0
    assert len(list((out / "geojson").iterdir())) == 24
    table = pd.read_csv(out / "bags.csv")
    assert (
        (table["fraction_low"] <= table["fraction"]) & (table["fraction"] <= table["fraction_high"])
    ).all()
    # A second run with --force replaces its own folder.
    assert main([*(str(word) for word in words), "--force"]) == 0
    words = ["predict", model, "--bags", folder, "--sheet", "--out", tmp_path / "o2"]
    assert main([str(word) for word in words]) == 2
    assert "a sheet needs pictures" in capsys.readouterr().err
    assert not (tmp_path / "o2").exists()


def test_each_of_several_classes_has_fractions_and_a_folder(tmp_path, rng):
    coords = np.stack([np.arange(72) % 9, np.arange(72) // 9], axis=1) * 256
    bags = Bags(rng.normal(size=(72, 2)), np.arange(0, 73, 3), columns={"coords": coords})
    y = np.array(["fat", "a/b", "a b"])[np.arange(24) % 3]
    model = OneVsRest(make_model("single-instance")).fit(bags, y)
    tables = with_fractions(predict_tables(model, bags), bags)
    for name in ("fat", "a/b", "a b"):
        p = tables.instances[f"probability_{name}"].to_numpy().reshape(24, 3)
        np.testing.assert_allclose(tables.bags[f"fraction_{name}"], p.mean(axis=1))
    assert write_extras(tables, bags, tmp_path, geojson=False, sheet=False) == []
    places = write_extras(tables, bags, tmp_path, geojson=True, sheet=False)
    assert len(set(places)) == 3 and tmp_path / "classes" / "fat" / "geojson" in places
    assert all(len(list(place.iterdir())) == 24 for place in places)
