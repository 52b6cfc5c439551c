from __future__ import annotations

import numpy as np
import pytest

from bagwise.datasets import data_home, fetch_detection, fetch_tracking
from bagwise.datasets.layouts import read_annotated, read_sequence

Image = pytest.importorskip("PIL.Image")


def write_frames(folder, frames, pattern):
    folder.mkdir(parents=True)
    for t, frame in enumerate(frames, 1):
        Image.fromarray(frame).save(folder / pattern.format(t))


@pytest.fixture
def frames():
    return np.random.default_rng(0).integers(0, 256, (4, 6, 8), dtype=np.uint8)


def test_miltrack_layout(tmp_path, frames):
    write_frames(tmp_path / "imgs", frames, "img{:05d}.png")
    (tmp_path / "david_gt.txt").write_text("1,2,3,4\n0,0,0,0\n0,0,0,0\n1.5,2,3,4\n")
    (tmp_path / "david_frames.txt").write_text("1,4\n")
    data = read_sequence(tmp_path)
    np.testing.assert_array_equal(data["frames"], frames)
    assert data["gt_valid"].tolist() == [True, False, False, True]
    np.testing.assert_array_equal(data["gt"][[0, 3]], [[1, 2, 3, 4], [1.5, 2, 3, 4]])
    assert np.isnan(data["gt"][1:3]).all()


def test_otb_layout_counts_from_one(tmp_path, frames):
    write_frames(tmp_path / "tracking" / "girl" / "img", frames, "{:04d}.png")
    truth = tmp_path / "tracking" / "girl" / "groundtruth_rect.txt"
    truth.write_text("57\t21\t31\t45\n58,22,31,43\n1 1 2 2\n9,9,9,9\n")
    data = fetch_tracking("girl", data_home=tmp_path)
    np.testing.assert_array_equal(data.frames, frames)
    np.testing.assert_array_equal(data.gt[:3], [[56, 20, 31, 45], [57, 21, 31, 43], [0, 0, 2, 2]])


def test_published_sequence_survives_its_public_layout(tmp_path):
    if not (data_home() / "tracking" / "david.npz").is_file():
        pytest.skip("tracking/david.npz is not in the data home")
    stored = fetch_tracking("david")
    write_frames(tmp_path / "tracking" / "david" / "imgs", stored.frames[:7], "img{:05d}.png")
    lines = [",".join(f"{v:g}" for v in row) for row in stored.gt_raw[:7]]
    (tmp_path / "tracking" / "david" / "david_gt.txt").write_text("\n".join(lines) + "\n")
    data = fetch_tracking("david", data_home=tmp_path)
    np.testing.assert_array_equal(data.frames, stored.frames[:7])
    np.testing.assert_allclose(data.gt, stored.gt[:7], rtol=1e-5)


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        ("1,2,3,4\n", "4 frames and 1 boxes"),
        ("1,2,3,4\n1,2,3\n", "line 2 must be x, y, w, h"),
        ("a,b,c,d\n", "line 1 must be"),
    ],
)
def test_bad_sequences(truth, message, tmp_path, frames):
    write_frames(tmp_path / "imgs", frames, "img{:05d}.png")
    (tmp_path / "x_gt.txt").write_text(truth)
    with pytest.raises(ValueError, match=message):
        read_sequence(tmp_path)


def test_bad_picture(tmp_path, frames):
    write_frames(tmp_path / "imgs", frames, "img{:05d}.png")
    (tmp_path / "imgs" / "img00003.png").write_bytes(b"no picture")
    (tmp_path / "x_gt.txt").write_text("1,2,3,4\n" * 4)
    with pytest.raises(ValueError, match=r"img00003\.png cannot be read"):
        read_sequence(tmp_path)
    Image.fromarray(frames[0, :3]).save(tmp_path / "imgs" / "img00003.png")
    with pytest.raises(ValueError, match="frames of different sizes"):
        read_sequence(tmp_path)


OBJECT = (
    "<object><name>{}</name><bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax>"
    "</bndbox></object>"
)


def write_voc(folder, objects, split=None):
    for part in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (folder / part).mkdir(parents=True)
    for name, boxes in objects.items():
        body = "".join(OBJECT.format(*box) for box in boxes)
        size = "<size><width>8</width><height>6</height></size>"
        text = f"<annotation>{size}{body}</annotation>"
        (folder / "Annotations" / f"{name}.xml").write_text(text)
        Image.fromarray(np.zeros((6, 8, 3), np.uint8)).save(folder / "JPEGImages" / f"{name}.jpg")
    for part, names in (split or {}).items():
        (folder / "ImageSets" / "Main" / f"{part}.txt").write_text("\n".join(names) + "\n")


def test_voc_layout(tmp_path):
    boxes = {
        "a": [("WBC", 1, 1, 5, 4), ("Platelets", 2, 2, 3, 3)],
        "b": [("RBC", 1, 2, 7, 6), ("RBC", 3, 3, 3, 5)],  # the second has no width
        "c": [],
    }
    write_voc(tmp_path / "detection" / "bccd", boxes, {"train": ["a"], "test": ["b"]})
    data = fetch_detection("bccd", data_home=tmp_path)
    assert data.class_names.tolist() == ["RBC", "WBC", "Platelets"]
    assert data.image_label.tolist() == [[0, 1, 1], [1, 0, 0], [0, 0, 0]]
    assert data.split.tolist() == ["train", "test", "train"]
    np.testing.assert_array_equal(data.boxes[0], [[1, 1, 4, 3], [2, 2, 1, 1]])
    np.testing.assert_array_equal(data.boxes[1], [[1, 2, 6, 4]])
    assert data.image_hw.tolist() == [[6, 8]] * 3
    stored = (tmp_path / "detection" / "bccd" / "JPEGImages" / "b.jpg").read_bytes()
    assert data.jpeg[1] == stored


def test_published_boxes_survive_their_public_layout(tmp_path):
    if not (data_home() / "detection" / "bccd.npz").is_file():
        pytest.skip("detection/bccd.npz is not in the data home")
    stored = fetch_detection("bccd")
    names = stored.class_names
    boxes = {
        stored.image_id[i]: [
            (names[c], x, y, x + w, y + h)
            for c, (x, y, w, h) in zip(stored.box_classes[i], stored.boxes[i], strict=True)
        ]
        for i in range(20)
    }
    write_voc(tmp_path / "detection" / "bccd", boxes)
    data = fetch_detection("bccd", data_home=tmp_path)
    assert data.class_names.tolist() == names.tolist()
    np.testing.assert_array_equal(data.image_label, stored.image_label[:20])
    for mine, theirs in zip(data.boxes, stored.boxes[:20], strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        ("<annotation", "cannot be read"),
        ("<annotation><object><name>a</name></object></annotation>", "without a name or a box"),
    ],
)
def test_bad_annotations(xml, message, tmp_path):
    write_voc(tmp_path, {"a": []})
    (tmp_path / "Annotations" / "a.xml").write_text(xml)
    with pytest.raises(ValueError, match=message):
        read_annotated(tmp_path)


def test_absent_picture(tmp_path):
    write_voc(tmp_path, {"a": []})
    (tmp_path / "JPEGImages" / "a.jpg").unlink()
    with pytest.raises(ValueError, match=r"a\.jpg is annotated, but"):
        read_annotated(tmp_path)


def test_absent_set_names_its_public_address(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"public at https://github\.com/Shenggan/BCCD"):
        fetch_detection("bccd", data_home=tmp_path)
