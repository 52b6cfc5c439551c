from __future__ import annotations

import numpy as np
import pytest

from bagwise.datasets import make_ct_folder
from bagwise.datasets.ct import write_slice
from bagwise.vision import ct

pydicom = pytest.importorskip("pydicom", reason="the vision extra is missing")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("scans")
    return root, make_ct_folder(root, n_scans=6, n_slices=(5, 8), size=24, random_state=0)


def test_windows_equal_a_loop(rng):
    hu = rng.uniform(-1000, 1000, size=(2, 3, 4))
    got = ct.ct_windows(hu)
    assert got.shape == (2, 3, 3, 4)
    assert got.dtype == np.float32
    for w, (centre, width) in enumerate(ct.WINDOWS.values()):
        low, high = centre - width / 2, centre + width / 2
        naive = [[[min(max((v - low) / (high - low), 0), 1) for v in r] for r in s] for s in hu]
        np.testing.assert_allclose(got[:, w], naive, atol=1e-6)


def test_round_trip_and_order(tmp_path):
    hu = np.stack([np.full((4, 4), v) for v in (-1000.0, 0.0, 55.0)])
    for position, name in ((2, "a"), (0, "b"), (1, "c")):
        write_slice(
            tmp_path / f"{name}.dcm", hu[position], f"1.2.{position}", study=1, position=position
        )
    scan = ct.read_scan(tmp_path)
    np.testing.assert_array_equal(scan.hu, hu)
    assert scan.slice_ids == ("1.2.0", "1.2.1", "1.2.2")
    assert scan.gaps == ()


def test_rescale_slope(tmp_path):
    write_slice(tmp_path / "a.dcm", np.zeros((4, 4)), "1.2.3", study=1, position=0)
    data = pydicom.dcmread(tmp_path / "a.dcm")
    data.RescaleSlope = 2
    data.save_as(tmp_path / "a.dcm")
    assert ct.read_slice(tmp_path / "a.dcm").hu[0, 0] == 1024 * 2 - 1024


def test_missing_slices_are_reported(tmp_path):
    for position in (0, 5, 10, 25, 30):
        write_slice(
            tmp_path / f"{position}.dcm",
            np.zeros((4, 4)),
            f"1.2.{position}",
            study=1,
            position=position,
        )
    with pytest.warns(UserWarning, match="2 slice"):
        scan = ct.read_scan(tmp_path)
    assert scan.gaps == ("2 slice(s) missing between 10 and 25 mm",)


def test_one_slice_scan(tmp_path):
    (tmp_path / "s").mkdir()
    write_slice(tmp_path / "s" / "a.dcm", np.zeros((4, 4)), "1.2.3", study=1, position=0)
    bags = ct.read_scans(tmp_path)
    assert bags.sizes.tolist() == [1]


def test_folder_to_bags(folder):
    root, truth = folder
    bags = ct.read_scans(root)
    assert bags.instances.shape[1:] == (3, 24, 24)
    assert list(bags.ids) == [f"scan_{i:03d}" for i in range(6)]
    y, labels = ct.label_slices(bags, truth.slice_labels)
    np.testing.assert_array_equal(y, truth.y)
    assert labels.sum() >= 2 * truth.y.sum()
    by_study = ct.read_scans(root, group_by="study")
    np.testing.assert_array_equal(by_study.instances, bags.instances)
    positions = bags.split(bags.columns["position"])
    assert all((np.diff(p) > 0).all() for p in positions)
    # A lesion is bright in the blood window.
    blood = bags.instances[:, 1].max(axis=(1, 2))
    inside = bags.instances[:, 1, 8:16, 8:16].max(axis=(1, 2))
    assert blood.shape == inside.shape


def test_shrinking(folder):
    pytest.importorskip("cv2", reason="the vision extra is missing")
    assert ct.read_scans(folder[0], size=(12, 16)).instances.shape[1:] == (3, 12, 16)


def broken(tmp_path, change):
    write_slice(tmp_path / "bad.dcm", np.zeros((4, 4)), "1.2.3", study=1, position=0)
    data = pydicom.dcmread(tmp_path / "bad.dcm")
    change(data)
    data.save_as(tmp_path / "bad.dcm")
    return tmp_path


def drop(*names):
    def change(data):
        for name in names:
            delattr(data, name)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("PixelData"), r"bad\.dcm has no pixel data"),
        (lambda d: setattr(d, "Modality", "MR"), r"bad\.dcm has modality MR"),
        (drop("Modality"), r"bad\.dcm has modality unknown"),
        (lambda d: setattr(d, "RescaleSlope", "1e38"), r"bad\.dcm contains NaN"),
        (drop("ImagePositionPatient"), r"bad\.dcm has neither"),
        (lambda d: setattr(d, "Rows", 400), r"bad\.dcm has pixel data that cannot be decoded"),
    ],
)
def test_bad_slices_are_named(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        ct.read_scan(broken(tmp_path, change))


def test_one_mr_slice_among_ct_is_named(tmp_path):
    (tmp_path / "s").mkdir()
    for name, position in (("a", 0), ("b", 1), ("c", 2)):
        write_slice(
            tmp_path / "s" / f"{name}.dcm",
            np.zeros((4, 4)),
            f"1.2.{position}",
            study=1,
            position=position,
        )
    data = pydicom.dcmread(tmp_path / "s" / "b.dcm")
    data.Modality = "MR"
    data.save_as(tmp_path / "s" / "b.dcm")
    for group_by in ("folder", "study"):
        with pytest.raises(ValueError, match=r"b\.dcm has modality MR; only CT"):
            ct.read_scans(tmp_path, group_by=group_by)


def test_bad_folders(tmp_path):
    with pytest.raises(ValueError, match="is not a folder"):
        ct.read_scan(tmp_path / "nope")
    with pytest.raises(ValueError, match="holds no files"):
        ct.read_scan(tmp_path)
    with pytest.raises(ValueError, match="holds no scan folders"):
        ct.read_scans(tmp_path)
    with pytest.raises(ValueError, match="group_by"):
        ct.read_scans(tmp_path, group_by="patient")
    (tmp_path / "note.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"note\.txt is not a DICOM file"):
        ct.read_scan(tmp_path)


def test_sizes_must_agree(tmp_path):
    for name, size in (("a", 4), ("b", 6)):
        (tmp_path / name).mkdir()
        write_slice(
            tmp_path / name / "1.dcm", np.zeros((size, size)), f"1.2.{size}", study=size, position=0
        )
    with pytest.raises(ValueError, match="scan b has slices of"):
        ct.read_scans(tmp_path)
    write_slice(tmp_path / "a" / "2.dcm", np.zeros((6, 6)), "1.2.9", study=1, position=1)
    with pytest.raises(ValueError, match=r"2\.dcm has size"):
        ct.read_scan(tmp_path / "a")


def test_label_files(tmp_path, folder):
    rsna = tmp_path / "rsna.csv"
    rsna.write_text("ID,Label\nID_a_any,1\nID_a_epidural,1\nID_b_any,0\nID_b_epidural,0\n")
    assert ct.read_rsna_labels(rsna) == {"ID_a": 1, "ID_b": 0}
    with pytest.raises(ValueError, match="no column 'name'"):
        ct.read_cq500_labels(rsna)
    rsna.write_text("ID,Label\nID_a_epidural,1\n")
    with pytest.raises(ValueError, match="_any"):
        ct.read_rsna_labels(rsna)
    with pytest.raises(ValueError, match="does not exist"):
        ct.read_rsna_labels(tmp_path / "absent.csv")
    (tmp_path / "empty.csv").write_bytes(b"")
    with pytest.raises(ValueError, match="is empty"):
        ct.read_rsna_labels(tmp_path / "empty.csv")
    with pytest.raises(ValueError, match=r"slice\(s\) have no label"):
        ct.label_slices(ct.read_scans(folder[0]), {})
