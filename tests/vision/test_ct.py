from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from bagwise.datasets import make_ct_folder
from bagwise.datasets.ct import write_slice
from bagwise.vision import ct, ct_labels
from bagwise.vision.ct import describe_slice
from tests.vision.cq500 import write_cq500

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
    (scan,) = ct.find_scans(tmp_path)
    assert scan.gaps == ()
    bags = ct.scan_bags([scan], lambda hu: hu)
    np.testing.assert_array_equal(bags.instances, hu)
    assert bags.columns["slice_id"].tolist() == ["1.2.0", "1.2.1", "1.2.2"]


def test_rescale_slope(tmp_path):
    write_slice(tmp_path / "a.dcm", np.zeros((4, 4)), "1.2.3", study=1, position=0)
    data = pydicom.dcmread(tmp_path / "a.dcm")
    data.RescaleSlope = 2
    data.save_as(tmp_path / "a.dcm")
    assert ct.read_slice(tmp_path / "a.dcm")[0, 0] == 1024 * 2 - 1024


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
    y, labels = ct_labels.label_slices(bags, truth.slice_labels)
    np.testing.assert_array_equal(y, truth.y)
    assert labels.sum() >= 2 * truth.y.sum()
    positions = bags.split(bags.columns["position"])
    assert all((np.diff(p) > 0).all() for p in positions)
    # A lesion is bright in the blood window.
    blood = bags.instances[:, 1].max(axis=(1, 2))
    inside = bags.instances[:, 1, 8:16, 8:16].max(axis=(1, 2))
    assert blood.shape == inside.shape


@pytest.fixture(scope="module")
def cq500(tmp_path_factory):
    root = tmp_path_factory.mktemp("cq500") / "scans"
    return root, write_cq500(root, n_scans=8, n_slices=6, size=24, random_state=0)


def test_one_series_of_a_nested_study_is_taken(cq500):
    root, truth = cq500
    assert (root / "DICOMDIR").exists()  # passed over
    scans = ct.find_scans(root)
    assert [scan.name for scan in scans] == [f"CQ500CT{i} CQ500CT{i}" for i in range(8)]
    for scan in scans:
        assert scan.description == "CT Plain"  # 5 mm apart, not 2.5, not the localizer
        assert scan.others == ("CT Thin",)
        assert [file.position for file in scan.slices] == [0, 5, 10, 15, 20, 25]
    bags = ct.read_scans(root)
    assert set(bags.columns["slice_id"]) == set(truth.slice_labels)
    thin = ct.find_scans(root, series="thin")
    assert {len(scan.slices) for scan in thin} == {12}
    with pytest.raises(ValueError, match=r"no series named 'bone'; it has 'CT Plain', 'CT Thin'"):
        ct.find_scans(root, series="bone")


def test_a_flat_folder_is_grouped_by_study(folder, tmp_path):
    root, _ = folder
    for i, path in enumerate(sorted(root.rglob("*.dcm"))):
        (tmp_path / f"ID_{i}.dcm").write_bytes(path.read_bytes())
    nested, flat = ct.read_scans(root), ct.read_scans(tmp_path)
    assert all(name.startswith("1.2.826") for name in flat.ids)  # no folder to take a name from
    np.testing.assert_array_equal(flat.instances, nested.instances)
    np.testing.assert_array_equal(flat.columns["slice_id"], nested.columns["slice_id"])


def test_slices_are_in_order_of_position_not_of_name(tmp_path):
    for position, name in ((10, "a"), (0, "b"), (5, "c")):
        uid = f"1.2.{position}"
        write_slice(tmp_path / f"{name}.dcm", np.zeros((4, 4)), uid, study=1, position=position)
    (scan,) = ct.find_scans(tmp_path)
    assert [file.path.stem for file in scan.slices] == ["b", "c", "a"]


def test_missing_slices_are_listed_with_the_files(tmp_path):
    for position in (0, 5, 10, 25, 30):
        uid = f"1.2.{position}"
        write_slice(tmp_path / f"{position}.dcm", np.zeros((4, 4)), uid, study=1, position=position)
    with pytest.warns(UserWarning, match="2 slice"):
        (scan,) = ct.find_scans(tmp_path)
    assert scan.gaps == ("2 slice(s) missing between 10 and 25 mm",)


def test_bad_files_are_errors_or_skipped(cq500, tmp_path):
    root, _ = cq500
    for study in sorted(root.iterdir())[:3]:
        if study.is_dir():
            for path in (study / "Unknown Study" / "CT Plain").iterdir():
                target = tmp_path / study.name / path.name
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(path.read_bytes())
    bad = tmp_path / "CQ500CT0 CQ500CT0" / "notes.txt"
    bad.write_text("hello")
    with pytest.raises(ValueError, match=r"notes\.txt is not a DICOM file"):
        ct.find_scans(tmp_path)
    with pytest.warns(UserWarning, match=r"skipped: .*notes\.txt"):
        scans = ct.find_scans(tmp_path, skip_bad=True)
    assert len(scans) == 3


def test_slices_are_described_one_by_one(cq500, monkeypatch):
    """No more than one slice is held at full resolution."""
    root, _ = cq500
    alive = []
    read = ct.read_slice

    def counted(path):
        one = read(path)
        alive.append(one.shape)
        return one

    monkeypatch.setattr(ct, "read_slice", counted)

    def describe(hu):
        assert hu.shape == (24, 24)
        return np.array([hu.max(), len(alive)])

    bags = ct.scan_bags(ct.find_scans(root), describe)
    # The n-th slice was described when n slices had been read.
    np.testing.assert_array_equal(bags.instances[:, 1], 1 + np.arange(bags.n_instances))


def test_description_of_a_slice_matches_loops():
    rng = np.random.default_rng(0)
    hu = rng.uniform(-20, 120, (128, 128)).astype(np.float32)
    hu[40:60, 20:40] = 70  # a piece of blood on the left
    made = describe_slice(hu)
    cv2 = pytest.importorskip("cv2", reason="the vision extra is missing")
    smooth = cv2.blur(hu, (5, 5))
    windows = ct.ct_windows(smooth)
    for w in range(3):
        for r in range(4):
            for c in range(4):
                cell = windows[w, 32 * r : 32 * r + 32, 32 * c : 32 * c + 32]
                assert made[16 * w + 4 * r + c] == pytest.approx(cell.mean(), abs=1e-5)
                assert made[48 + 16 * w + 4 * r + c] == pytest.approx(cell.max(), abs=1e-5)
            for c in range(2):
                pair = made[16 * w + 4 * r + c] - made[16 * w + 4 * r + 3 - c]
                assert made[96 + 8 * w + 2 * r + c] == pytest.approx(abs(pair), abs=1e-5)
    brain = smooth[(smooth > 0) & (smooth < 100)]
    blood = (brain > 50) & (brain < 95)
    assert made[120] == pytest.approx(blood.mean(), abs=1e-6)
    assert made[122] == pytest.approx(brain.mean() / 100, abs=1e-5)
    assert made[123] == pytest.approx(brain.std() / 100, abs=1e-5)
    top = np.sort(brain)[-int(0.02 * len(brain)) :]
    assert made[124] == pytest.approx(top.mean() / 100, abs=1e-5)
    assert describe_slice(np.full((32, 32), -1000.0))[120:].tolist() == [0] * 5  # only air


def test_the_largest_piece_of_blood_is_measured():
    pytest.importorskip("cv2", reason="the vision extra is missing")
    hu = np.full((128, 128), 30.0)
    hu[20:40, 20:40] = hu[80:120, 80:110] = 70.0
    one = describe_slice(hu)
    assert one[120] > one[121] > 0.6 * one[120]
    hu[20:40, 20:40] = 30.0
    assert describe_slice(hu)[120] == pytest.approx(describe_slice(hu)[121])


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
        ct.read_scans(broken(tmp_path, change))


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
    with pytest.raises(ValueError, match=r"b\.dcm has modality MR; only CT"):
        ct.read_scans(tmp_path)


def test_bad_folders(tmp_path):
    with pytest.raises(ValueError, match="holds no files"):
        ct.read_scans(tmp_path)
    with pytest.raises(ValueError, match="is not a folder"):
        ct.read_scans(tmp_path / "nope")
    (tmp_path / "note.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"note\.txt is not a DICOM file"):
        ct.read_scans(tmp_path)


def test_sizes_must_agree(tmp_path):
    for name, size in (("a", 4), ("b", 6)):
        (tmp_path / name).mkdir()
        write_slice(
            tmp_path / name / "1.dcm", np.zeros((size, size)), f"1.2.{size}", study=size, position=0
        )
    with pytest.raises(ValueError, match="scan b has slices of"):
        ct.read_scans(tmp_path)
    write_slice(tmp_path / "a" / "2.dcm", np.zeros((6, 6)), "1.2.9", study=4, position=1)
    with pytest.raises(ValueError, match=r"2\.dcm has size"):
        ct.read_scans(tmp_path / "a")


def test_label_files(tmp_path, folder):
    path = tmp_path / "labels.csv"
    rows = ["ID,Label", "ID_a_any,1", "ID_a_epidural,1", "ID_b_any,0", "ID_b_epidural,0"]
    path.write_text("\n".join(rows))
    rsna = ct_labels.read_ct_labels(path)
    assert (list(rsna.columns), rsna.index.name) == (["any", "epidural"], "slice")
    assert rsna.T.to_dict("list") == {"ID_a": [1, 1], "ID_b": [0, 0]}
    path.write_text("\n".join(rows[:-1]))
    with pytest.raises(ValueError, match="lacks a subtype of slice 'ID_b'"):
        ct_labels.read_ct_labels(path)
    path.write_text("name,R1:ICH,R2:ICH,R3:ICH\nCQ500-CT-0,1,1,0\nCQ500-CT-1,0,1,0\n")
    reads = ct_labels.read_ct_labels(path)
    assert reads.T.to_dict("list") == {"CQ500-CT-0": [1], "CQ500-CT-1": [0]}
    for content, message in [
        ("name,R1:ICH,R2:ICH\na,1,1\n", "no column 'R3:ICH'"),
        ("scan,any\na,2\n", "column 'any': 2"),
        ("scan,any\na,1\na,0\n", "'a' more than once"),
        ("scan\na\n", "no column of labels"),
        ("who,any\na,1\n", "no column 'scan'"),
        ("ID,Label\nx,1\n", "has the ID 'x'"),
    ]:
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            ct_labels.read_ct_labels(path)
    with pytest.raises(ValueError, match="does not exist"):
        ct_labels.read_ct_labels(tmp_path / "absent.csv")
    (tmp_path / "empty.csv").write_bytes(b"")
    with pytest.raises(ValueError, match="is empty"):
        ct_labels.read_ct_labels(tmp_path / "empty.csv")
    with pytest.raises(ValueError, match=r"slice\(s\) have no label"):
        ct_labels.label_slices(ct.read_scans(folder[0]), {})


def test_labels_of_scans_and_of_slices(cq500):
    root, truth = cq500
    bags = ct.read_scans(root)
    Y, slices = ct_labels.label_scans(bags, ct_labels.read_ct_labels(truth.labels))
    np.testing.assert_array_equal(Y, truth.Y)  # the readers disagree only one against two
    assert slices is None
    by_slice = pd.DataFrame({"any": truth.slice_labels}).rename_axis("slice")
    Y, slices = ct_labels.label_scans(bags, by_slice)
    np.testing.assert_array_equal(Y[:, 0], truth.Y[:, 0])
    assert len(slices) == bags.n_instances
    with pytest.raises(ValueError, match="'CQ500CT0 CQ500CT0' has no label"):
        ct_labels.label_scans(bags, pd.DataFrame({"any": {"CQ500-CT-77": 1}}))
    with pytest.raises(ValueError, match=r"slice\(s\) have no label"):
        ct_labels.label_scans(bags, by_slice.iloc[:1])
