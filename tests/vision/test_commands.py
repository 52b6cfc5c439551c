"""The commands detect fit, detect predict and track, on small files."""

from __future__ import annotations

import argparse
import csv
import importlib
import shutil

import numpy as np
import pytest

from bagwise import load
from bagwise.cli.vision_arguments import _PROPOSALS, add_vision, parse_box
from bagwise.vision import read_coco
from bagwise.vision.exports import read_table
from bagwise.vision.images import _read_voc_boxes
from bagwise.vision.proposals import METHODS
from tests.vision.test_detection import make_scenes
from tests.vision.test_tracking import moving_target

cv2 = pytest.importorskip("cv2")


def _command(commands, name, run, about, *examples):
    made = commands.add_parser(name, help=about)
    made.set_defaults(run=f"bagwise.cli.{run}")
    made.add_argument("--json", action="store_true")
    return made


def call(*words):
    parser = argparse.ArgumentParser()
    add_vision(parser.add_subparsers(dest="command"), _command)
    arguments = parser.parse_args([str(w) for w in words])
    module, _, function = arguments.run.partition(":")
    return getattr(importlib.import_module(module), function)(arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    images, labels, _ = make_scenes(16)
    rows = ["image,label"]
    (root / "all").mkdir()
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        cv2.imwrite(str(root / "all" / f"{i:02}.png"), image[..., ::-1])
        rows.append(f"{i:02}.png,{'red' if label else ''}")
    (root / "labels.csv").write_text("\n".join(rows))
    return root


@pytest.fixture(scope="module")
def model(folder):
    out = folder / "red.bagwise"
    words = ["detect", "fit", "--images", folder / "all", "--labels", folder / "labels.csv"]
    words += ["--proposals", "blobs", "--n-boxes", 20, "--pca", 8, "--out", out, "--json"]
    assert call(*words) == 0
    return out


def test_detect_fit_and_predict(folder, model, capsys):
    out = folder / "results"
    assert call("detect", "predict", model, "--images", folder / "all", "--out", out, "--json") == 0
    assert '"images": 16' in capsys.readouterr().out
    with (out / "detections.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["image"] for row in rows} == {f"{i:02}.png" for i in range(16)}
    page = (out / "gallery.html").read_text()
    assert page.count("<figure>") == 16
    assert "http" not in page.replace("<!doctype html>", "")
    with pytest.raises(ValueError, match="exists already"):
        call("detect", "predict", model, "--images", folder / "all", "--out", out)


def test_detections_are_exported_and_read_back(folder, model, tmp_path, capsys):
    """COCO and VOC files hold the boxes of the table; one bad image is named and left out."""
    images = tmp_path / "new"
    shutil.copytree(folder / "all", images)
    (images / "broken.png").write_bytes(b"nothing")
    words = ["detect", "predict", model, "--images", images, "--min-probability", 0.5]
    with pytest.raises(ValueError, match=r"broken\.png"):
        call(*words, "--out", tmp_path / "none", "--json")
    assert not (tmp_path / "none").exists()
    out = tmp_path / "results"
    assert call(*words, "--skip-bad", "--out", out, "--json") == 0
    said = capsys.readouterr()
    assert '"skipped": 1' in said.out
    assert "broken.png" in said.err
    table = read_table(out / "detections.csv")
    coco = read_coco(out / "coco.json", images)
    assert coco.class_names == ("red",)
    np.testing.assert_allclose(np.concatenate(coco.boxes), table.boxes, atol=0.01)
    probable = [float(r["probability"]) >= 0.5 for r in rows_of(out / "detections.csv")]
    voc = [_read_voc_boxes(path)[0] for path in sorted((out / "voc").glob("*.xml"))]
    assert len(voc) == 16
    np.testing.assert_allclose(np.concatenate(voc), table.boxes[probable], atol=0.02)
    assert len(list((out / "overlays").iterdir())) == 16
    capsys.readouterr()
    words = ["detect", "evaluate", out / "detections.csv", "--coco", out / "coco.json"]
    assert call(*words, "--images", images, "--json") == 0
    assert '"AP": 1.0' in capsys.readouterr().out  # every box against itself


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_evaluate_names_what_is_wrong(folder, tmp_path):
    table = tmp_path / "t.csv"
    header = "image,class,x,y,w,h,score\n"
    (tmp_path / "boxes.json").write_text(
        '{"images": [{"id": 1, "file_name": "00.png"}], "categories": [{"id": 1, "name": "red"}],'
        '"annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [2, 2, 9, 9]}]}'
    )
    words = ["detect", "evaluate", table, "--coco", tmp_path / "boxes.json"]
    words += ["--images", folder / "all"]
    table.write_text(header + "00.png,red,2,2,nine,9,0.5\n")
    with pytest.raises(ValueError, match=r"row 2 .* has 'nine' as w"):
        call(*words)
    table.write_text(header + "elsewhere.png,red,2,2,9,9,0.5\n")
    with pytest.raises(ValueError, match="no image of"):
        call(*words)


def test_photographs_are_the_default(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("bagwise.vision.saliency._packaged", lambda: None)
    words = ["detect", "fit", "--images", folder / "all", "--labels", folder / "labels.csv"]
    words += ["--features", "hog", "--out", tmp_path / "m.bagwise", "--json"]
    assert call(*words) == 0
    assert '"thresholds"' in capsys.readouterr().out
    assert load(tmp_path / "m.bagwise").photographic


def test_labels_must_match_the_images(folder, tmp_path):
    words = ["detect", "fit", "--images", folder / "all", "--out", tmp_path / "m", "--labels"]
    table = tmp_path / "labels.csv"
    for content, message in [
        ("image,label\n00.png,red\n", "has no label"),
        ("name,label\n", "no column 'image'"),
        ("image,label\n" + "\n".join(f"{i:02}.png," for i in range(16)), "names no class"),
    ]:
        table.write_text(content)
        with pytest.raises(ValueError, match=message):
            call(*words, table)
    with pytest.raises(ValueError, match="--labels"):
        call(*words[:-1])
    with pytest.raises(ValueError, match="where the images are"):
        call("detect", "fit", "--out", tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_track_writes_video_and_table(tmp_path):
    frames, boxes = moving_target(8)
    source = tmp_path / "frames"
    source.mkdir()
    for i, frame in enumerate(frames):
        cv2.imwrite(str(source / f"{i:03}.png"), frame)
    box = ",".join(str(int(v)) for v in boxes[0])
    out, table = tmp_path / "out.avi", tmp_path / "out.csv"
    assert call("track", source, "--box", box, "--out", out, "--csv", table) == 0
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert len(rows) == 8
    assert abs(float(rows[-1]["x"]) - boxes[-1][0]) < 3
    capture = cv2.VideoCapture(str(out))
    assert int(capture.get(cv2.CAP_PROP_FRAME_COUNT)) == 8
    capture.release()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["frames", "out.avi", "out.csv"]


def test_track_leaves_nothing_behind_when_it_fails(tmp_path):
    (tmp_path / "empty.mp4").touch()
    with pytest.raises(ValueError, match=r"empty\.mp4"):
        call("track", tmp_path / "empty.mp4", "--box", "1,1,9,9", "--out", tmp_path / "o.mp4")
    assert [p.name for p in tmp_path.iterdir()] == ["empty.mp4"]


def test_boxes_on_the_command_line():
    assert parse_box("1,2.5,3,4") == (1, 2.5, 3, 4)
    for text in ("1,2,3", "a,b,c,d", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="x,y,w,h"):
            parse_box(text)


def test_the_offered_proposals_exist():
    assert set(_PROPOSALS) == set(METHODS) - {"given"}
