"""Reading images and image sets, good and bad."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bagwise.vision.image_sets import read_coco, read_voc
from bagwise.vision.images import clip_boxes, fit_within, list_images, read_image

cv2 = pytest.importorskip("cv2")


def encode(pixels, suffix=".png"):
    return cv2.imencode(suffix, pixels)[1].tobytes()


def test_colour_order_is_rgb(tmp_path):
    bgr = np.zeros((4, 5, 3), dtype=np.uint8)
    bgr[..., 0] = 200
    path = tmp_path / "blue.png"
    path.write_bytes(encode(bgr))
    for source in (path, str(path), path.read_bytes()):
        assert read_image(source)[0, 0].tolist() == [0, 0, 200]


@pytest.mark.parametrize(
    "pixels",
    [
        np.full((3, 4), 7, dtype=np.uint8),
        np.full((3, 4, 1), 7, dtype=np.uint8),
        np.full((3, 4, 3), 7, dtype=np.uint8),
    ],
)
def test_grey_and_colour_keep_their_scale(pixels):
    image = read_image(pixels)
    assert image.shape == (3, 4, 3)
    assert image.dtype == np.uint8
    assert np.all(image == 7)


def test_transparent_pixels_are_laid_over_white():
    pixels = np.zeros((1, 3, 4), dtype=np.uint8)
    pixels[0, :, 3] = [255, 0, 128]
    assert read_image(pixels)[0, :, 0].tolist() == [0, 255, 127]
    assert read_image(encode(pixels))[0, :, 0].tolist() == [0, 255, 127]


def test_sixteen_bits_are_stretched():
    pixels = np.array([[1000, 2000, 3000]], dtype=np.uint16)
    assert read_image(pixels)[0, :, 0].tolist() == [0, 128, 255]
    assert read_image(encode(pixels))[0, :, 0].tolist() == [0, 128, 255]


def test_sixteen_bit_alpha_is_opacity_not_stretched():
    pixels = np.full((2, 2, 4), 65535, dtype=np.uint16)
    pixels[0, :, :3] = 0
    assert read_image(pixels)[:, 0, 0].tolist() == [0, 255]


def test_floats_and_booleans():
    assert read_image(np.array([[0.0, 0.5, 1.0]]))[0, :, 0].tolist() == [0, 128, 255]
    assert read_image(np.array([[-2.0, 6.0]]))[0, :, 0].tolist() == [0, 255]
    assert read_image(np.array([[True, False]]))[0, :, 0].tolist() == [255, 0]
    assert np.all(read_image(np.full((2, 2), 900, dtype=np.int32)) == 0)  # flat: nothing to stretch


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (b"", "corrupt"),
        (b"no image", "corrupt"),
        (np.zeros((0, 4)), "shape"),
        (np.zeros((2, 2, 5)), "shape"),
        (np.zeros(4), "shape"),
        (np.array([[np.nan]]), "NaN"),
        (np.array([["a"]]), "numbers"),
        ("missing.png", "cannot be read"),
    ],
)
def test_bad_images_are_named(source, words):
    with pytest.raises(ValueError, match=words):
        read_image(source)


def test_truncated_file_is_named(tmp_path):
    path = tmp_path / "cut.png"
    path.write_bytes(encode(np.zeros((30, 30), dtype=np.uint8))[:20])
    with pytest.raises(ValueError, match=r"cut\.png"):
        read_image(path)


def test_one_pixel():
    assert read_image(np.array([[9]], dtype=np.uint8)).shape == (1, 1, 3)


def test_fit_within_and_clip():
    image = np.zeros((50, 200, 3), dtype=np.uint8)
    small, factor = fit_within(image, 100)
    assert small.shape == (25, 100, 3)
    assert factor == 0.5
    assert fit_within(image, None)[0] is image
    boxes = [[-5, -5, 10, 10], [300, 0, 5, 5], [190, 40, 50, 50], [np.nan, 0, 1, 1]]
    assert clip_boxes(boxes, 50, 200).tolist() == [[0, 0, 5, 5], [190, 40, 10, 10]]


@pytest.fixture
def voc(tmp_path):
    root = tmp_path / "voc"
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for name, objects in {
        "a": [("cat", 1, 1, 4, 6)],
        "b": [],
        "c": [("dog", 2, 2, 2, 2)] * 2,
    }.items():
        (root / "JPEGImages" / f"{name}.png").write_bytes(encode(np.zeros((8, 8), np.uint8)))
        items = "".join(
            f"<object><name>{c}</name><bndbox><xmin>{x0}</xmin><ymin>{y0}</ymin>"
            f"<xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox></object>"
            for c, x0, y0, x1, y1 in objects
        )
        (root / "Annotations" / f"{name}.xml").write_text(f"<annotation>{items}</annotation>")
    (root / "ImageSets" / "Main" / "train.txt").write_text("a\nc 1\n")
    return root


def test_voc(voc):
    data = read_voc(voc)
    assert data.ids == ("a", "b", "c")
    assert data.class_names == ("cat", "dog")
    assert data.labels.tolist() == [[1, 0], [0, 0], [0, 1]]
    assert data.boxes[0]["cat"].tolist() == [[0, 0, 4, 6]]  # VOC counts from 1, ends included
    assert [len(b) for b in data.boxes_of("dog")] == [0, 0, 2]
    assert read_voc(voc, "train").ids == ("a", "c")


def test_bad_voc(voc, tmp_path):
    with pytest.raises(ValueError, match="Annotations"):
        read_voc(tmp_path)
    with pytest.raises(ValueError, match="split 'test'"):
        read_voc(voc, "test")
    (voc / "Annotations" / "b.xml").write_text("<annotation><object>")
    with pytest.raises(ValueError, match=r"b\.xml"):
        read_voc(voc)
    (voc / "Annotations" / "b.xml").write_text("<annotation><object/></annotation>")
    with pytest.raises(ValueError, match="without a name"):
        read_voc(voc)
    (voc / "Annotations" / "b.xml").write_text("<annotation/>")
    (voc / "JPEGImages" / "b.png").unlink()
    with pytest.raises(ValueError, match="'b' is annotated"):
        read_voc(voc)


def test_coco(tmp_path):
    (tmp_path / "x.png").write_bytes(encode(np.zeros((8, 8), np.uint8)))
    content = {
        "images": [{"id": 7, "file_name": "x.png"}],
        "categories": [{"id": 3, "name": "cell"}, {"id": 5, "name": "other"}],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 3, "bbox": [1, 2, 3, 4]},
            {"id": 2, "image_id": 7, "category_id": 3, "bbox": [1, 2, 0, 4]},
        ],
    }
    path = tmp_path / "set.json"
    path.write_text(json.dumps(content))
    data = read_coco(path, tmp_path)
    assert data.class_names == ("cell", "other")
    assert data.boxes[0]["cell"].tolist() == [[1, 2, 3, 4]]  # the empty box is left out
    assert data.labels.tolist() == [[1, 0]]
    for change, words in [
        ({"images": [{"id": 7, "file_name": "y.png"}]}, "missing"),
        ({"annotations": [{"id": 9, "image_id": 8, "category_id": 3, "bbox": []}]}, "annotation 9"),
    ]:
        path.write_text(json.dumps({**content, **change}))
        with pytest.raises(ValueError, match=words):
            read_coco(path, tmp_path)
    path.write_text("{}")
    with pytest.raises(ValueError, match="lacks"):
        read_coco(path, tmp_path)
    path.write_text("{")
    with pytest.raises(ValueError, match="json"):
        read_coco(path, tmp_path)


def test_list_images(tmp_path):
    with pytest.raises(ValueError, match="holds no images"):
        list_images(tmp_path)
    with pytest.raises(ValueError, match="not a folder"):
        list_images(tmp_path / "absent")
    (tmp_path / "b.JPG").touch()
    (tmp_path / "a.png").touch()
    (tmp_path / "notes.txt").touch()
    assert [p.name for p in list_images(tmp_path)] == ["a.png", "b.JPG"]
