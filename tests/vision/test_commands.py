"""The commands detect, track and ct, on small files."""

from __future__ import annotations

import argparse
import csv
import re
import shutil

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from bagwise import load
from bagwise.cli.commands import build_parser, run
from bagwise.cli.detect import PROPOSALS, new_detector
from bagwise.cli.track import parse_box
from bagwise.datasets.layouts import read_annotation
from bagwise.vision import PhotographDetector, WeakDetector, read_coco
from bagwise.vision.image_sets import read_table
from bagwise.vision.proposals import METHODS
from tests.vision.cq500 import write_cq500
from tests.vision.test_detection import make_scenes
from tests.vision.test_tracking import moving_target

cv2 = pytest.importorskip("cv2")


def call(*words):
    words = [str(w) for w in words]
    run(build_parser(words).parse_args(words))


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
    words += ["--proposals", "blobs", "--n-boxes", 20, "--out", out, "--json"]
    call(*words)
    return out


def test_detect_fit_and_predict(folder, model, capsys):
    out = folder / "results"
    call("detect", "predict", model, "--images", folder / "all", "--out", out, "--json")
    assert '"images": 16' in capsys.readouterr().out
    with (out / "detections.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["image"] for row in rows} == {f"{i:02}.png" for i in range(16)}
    page = (out / "gallery.html").read_text()
    assert page.count("<figure>") == 16
    assert "://" not in page  # nothing is loaded from anywhere
    with pytest.raises(ValueError, match="exists already"):
        call("detect", "predict", model, "--images", folder / "all", "--out", out)


def test_detections_are_exported_and_read_back(folder, model, tmp_path, capsys):
    """COCO and VOC files hold the boxes of the table; one bad image is named and left out."""
    images = tmp_path / "new"
    shutil.copytree(folder / "all", images)
    (images / "broken.png").write_bytes(b"nothing")
    words = ["detect", "predict", model, "--images", images, "--min-probability", 0.25]
    with pytest.raises(ValueError, match=r"broken\.png"):
        call(*words, "--out", tmp_path / "none", "--json")
    assert not (tmp_path / "none").exists()
    out = tmp_path / "results"
    call(*words, "--skip-bad", "--out", out, "--json")
    said = capsys.readouterr()
    assert '"skipped": 1' in said.out
    assert "broken.png" in said.err
    table = read_table(out / "detections.csv")
    coco = read_coco(out / "coco.json", images)
    assert coco.class_names == ("red",)
    boxes = table[["x", "y", "w", "h"]].to_numpy()
    np.testing.assert_allclose(np.concatenate(coco.boxes_of("red")), boxes, atol=0.01)
    probable = [float(r["probability"]) >= 0.25 for r in rows_of(out / "detections.csv")]
    written = [read_annotation(path)[1] for path in sorted((out / "voc").glob("*.xml"))]
    assert len(written) == 16
    assert 0 < sum(probable) < len(probable)
    corners = np.array([box for objects in written for _, *box in objects])  # counted from 1
    voc = np.hstack([corners[:, :2] - 1, corners[:, 2:] - corners[:, :2] + 1])
    np.testing.assert_allclose(voc, boxes[probable], atol=0.02)
    drawn = sorted(path.name for path in (out / "overlays").iterdir())
    assert drawn == [f"{i:02}.jpg" for i in range(16)]
    capsys.readouterr()
    words = ["detect", "evaluate", out / "detections.csv", "--coco", out / "coco.json"]
    call(*words, "--images", images, "--json")
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
    monkeypatch.setattr("bagwise.vision.saliency.u2netp_path", lambda: None)
    words = ["detect", "fit", "--images", folder / "all", "--labels", folder / "labels.csv"]
    words += ["--features", "hog", "--out", tmp_path / "m.bagwise", "--json"]
    call(*words)
    assert '"threshold": 0.3' in capsys.readouterr().out
    assert isinstance(load(tmp_path / "m.bagwise"), PhotographDetector)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ((), PhotographDetector),
        (("--proposals", "edge-boxes"), PhotographDetector),
        (("--proposals", "blobs"), WeakDetector),
        (("--contrast", "1.5"), WeakDetector),
    ],
)
def test_the_detector_follows_the_proposals(words, kind):
    arguments = build_parser().parse_args(["detect", "fit", "--out", "m", *words])
    assert type(new_detector(arguments)) is kind


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


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    source = tmp_path_factory.mktemp("video") / "frames"
    source.mkdir()
    pictures, boxes = moving_target(8)
    for i, frame in enumerate(pictures):
        cv2.imwrite(str(source / f"{i:03}.png"), frame)
    return source, boxes


def test_track_writes_video_and_tables(frames, tmp_path):
    source, boxes = frames
    box = ",".join(str(int(v)) for v in boxes[0])
    out, table, mot = tmp_path / "out.avi", tmp_path / "out.csv", tmp_path / "mot.txt"
    words = ["track", source, "--box", box, "--box", "2,60,24,24", "--out", out]
    call(*words, "--csv", table, "--mot", mot)
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [(row["frame"], row["target"]) for row in rows[:3]] == [
        ("0", "1"),
        ("0", "2"),
        ("1", "1"),
    ]
    assert len(rows) == 16
    assert abs(float(rows[-2]["x"]) - boxes[-1][0]) < 3
    lines = [line.split(",") for line in mot.read_text().splitlines()]
    kept = [row for row in rows if row["found"] == "1"]
    assert len(lines) == len(kept)
    for line, row in zip(lines, kept, strict=True):
        assert len(line) == 10
        assert (int(line[0]), line[1]) == (int(row["frame"]) + 1, row["target"])
        assert line[2:7] == [row["x"], row["y"], row["w"], row["h"], row["probability"]]
    call("track", source, "--box", "2,60,24,24", "--mot", mot, "--mot-all", "--force")
    assert [line.split(",")[0] for line in mot.read_text().splitlines()] == list("12345678")
    capture = cv2.VideoCapture(str(out))
    assert int(capture.get(cv2.CAP_PROP_FRAME_COUNT)) == 8
    capture.release()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mot.txt", "out.avi", "out.csv"]


def test_track_refuses_to_do_nothing(frames, tmp_path, monkeypatch):
    source, _ = frames
    with pytest.raises(ValueError, match="say what to write"):
        call("track", source, "--box", "1,1,9,9")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(ValueError, match="no screen"):
        call("track", source, "--csv", tmp_path / "t.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_drawn_box_is_taken(frames, monkeypatch):
    import matplotlib.pyplot as plt
    from matplotlib.widgets import RectangleSelector

    from bagwise.cli.track import pick_box

    monkeypatch.setenv("DISPLAY", ":0")
    drawn = []

    class Selector(RectangleSelector):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            drawn.append(self)

    monkeypatch.setattr("matplotlib.widgets.RectangleSelector", Selector)
    monkeypatch.setattr(plt, "show", lambda: setattr(drawn[-1], "extents", (10, 30, 20, 45)))
    frame = cv2.imread(str(frames[0] / "000.png"))
    assert pick_box(frame) == (10, 20, 20, 25)
    monkeypatch.setattr(plt, "show", lambda: None)
    with pytest.raises(ValueError, match="no box was drawn"):
        pick_box(frame)


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
    assert set(PROPOSALS) == set(METHODS) - {"given"}


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    pytest.importorskip("pydicom", reason="the vision extra is missing")
    root = tmp_path_factory.mktemp("ct") / "scans"
    return root, write_cq500(root, n_scans=16, n_slices=6, size=48, random_state=0)


@pytest.fixture(scope="module")
def ct_model(scans):
    root, truth = scans
    out = root.parent / "ct.bagwise"
    words = ["ct", "fit", "--scans", root, "--labels", truth.labels, "--out", out, "--cv", 3]
    call(*words, "--json")
    return out


def test_ct_fit_and_predict(scans, ct_model, capsys):
    root, truth = scans
    out = root.parent / "results"
    words = ["ct", "predict", ct_model, "--scans", root, "--labels", truth.labels, "--out", out]
    call(*words, "--json")
    assert '"ICH": 8' in capsys.readouterr().out
    assert sorted(p.name for p in out.iterdir()) == [
        "report.html",
        "scans.csv",
        "slices.csv",
    ]
    by_scan = list(csv.DictReader((out / "scans.csv").read_text().splitlines()))
    assert [row["series"] for row in by_scan] == ["CT Plain"] * 16
    p = np.array([float(row["p_ICH"]) for row in by_scan])
    y = np.array([int(row["label_ICH"]) for row in by_scan])
    assert roc_auc_score(y, p) > 0.95
    by_slice = list(csv.DictReader((out / "slices.csv").read_text().splitlines()))
    assert len(by_slice) == 16 * 6
    q = [float(row["p_ICH"]) for row in by_slice]
    slices = [truth.slice_labels[row["slice"]] for row in by_slice]
    assert roc_auc_score(slices, q) > 0.9
    for row in by_slice[:6]:
        assert float(row["position"]) == 5 * int(row["index"])
        assert row["file"].endswith(f"CT{int(row['index']):06d}.dcm")


def test_the_page_of_scans_shows_every_class_and_links_to_what_is_there(scans, ct_model, tmp_path):
    """One page: a row per scan, its slices with their interval, no file name that is missing."""
    root, truth = scans
    out = tmp_path / "results"
    call("ct", "predict", ct_model, "--scans", root, "--labels", truth.labels, "--out", out)
    page = (out / "report.html").read_text()
    words = re.sub(r"<style>.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL)
    assert not re.search(r"\b(bags?|instances?)\b", words)
    links = re.findall(r'href="#([^"]*)"', page)
    assert links
    assert set(links) <= set(re.findall(r'id="([^"]*)"', page))
    assert not re.findall(r'href="(?!#)', page)
    assert set(re.findall(r"\w+\.(?:csv|html|parquet)", words)) <= {p.name for p in out.iterdir()}
    by_scan = rows_of(out / "scans.csv")
    by_slice = rows_of(out / "slices.csv")
    for row in by_scan:
        for name in ("ICH", "SDH"):
            called = float(row[f"p_{name}"]) > 0.5
            assert f"{float(row[f'p_{name}']):.3f}" in words
            own = page.split(f">{row['scan']}</h2>")[1].split("</section>")[0]
            assert not called or f"{name}: {float(row[f'p_{name}']):.3f}" in own
    top = max(by_scan, key=lambda row: max(float(row["p_ICH"]), float(row["p_SDH"])))
    name = max(("ICH", "SDH"), key=lambda name: float(top[f"p_{name}"]))
    own = page.split(f">{top['scan']}</h2>")[1].split("</section>")[0]
    assert 'class="band"' in own
    best = max(float(r[f"p_{name}"]) for r in by_slice if r["scan"] == top["scan"])
    assert f"<b>{best:.2f}</b>" in own
    assert own.count("data:image/png") >= 3


def test_ct_slices_are_coupled(scans, ct_model, tmp_path, capsys):
    from bagwise import Coupled, load

    root, truth = scans
    members = load(ct_model).estimators_
    assert all(isinstance(member, Coupled) for member in members)
    assert all(member.strength_search_ is not None for member in members)
    words = ["ct", "fit", "--scans", root, "--labels", truth.labels, "--classes", "ICH"]
    out = tmp_path / "m.bagwise"
    call(*words, "--couple", 0, "--out", out)
    assert "strength 0.00" in capsys.readouterr().out
    assert not isinstance(load(out).estimators_[0], Coupled)
    call(*words, "--couple", 1.5, "--out", out, "--force")
    assert load(out).estimators_[0].strength_ == 1.5
    few = tmp_path / "few"
    table = write_cq500(few, n_scans=6, n_slices=4, size=32, random_state=0).labels
    words = ["ct", "fit", "--scans", few, "--labels", table, "--classes", "ICH"]
    call(*words, "--out", tmp_path / "few.bagwise")
    said = capsys.readouterr()
    assert "slices are left on their own" in said.out + said.err


def test_ct_errors_name_the_file(scans, ct_model, tmp_path):
    root, truth = scans
    words = ["ct", "fit", "--scans", root, "--out", tmp_path / "m", "--labels"]
    with pytest.raises(ValueError, match=r"scans\.csv has no class 'XYZ'; it has ICH, SDH"):
        call(*words, truth.labels, "--classes", "XYZ")
    table = tmp_path / "labels.csv"
    table.write_text("scan,any\nCQ500CT0,1\n")
    with pytest.raises(ValueError, match="has no label"):
        call(*words, table)
    with pytest.raises(ValueError, match="--cv 9"):
        call(*words, truth.labels, "--cv", 9)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "slice.dcm").write_bytes(b"no DICOM")
    with pytest.raises(ValueError, match=r"slice\.dcm is not a DICOM file"):
        call("ct", "predict", ct_model, "--scans", broken, "--out", tmp_path / "r")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["broken", "labels.csv"]


def test_ct_predict_wants_a_model_of_scans(scans, model, tmp_path):
    with pytest.raises(ValueError, match="not a model of scans"):
        call("ct", "predict", model, "--scans", scans[0], "--out", tmp_path / "r")
