"""CT scans as bags of slices: windows, DICOM folders, and published label files.

Section 6.3 of the psi-VGPMIL paper: three windows of each slice are stacked and scaled to
[0, 1]; the scan is the bag, its slices the instances. Needs the ``vision`` extra (pydicom).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bagwise.bags import Bags
from bagwise.files.tables import named_columns, read_frame

# Centre and width in Hounsfield units, as radiologists set them for the head.
WINDOWS = {"brain": (40, 80), "blood": (80, 200), "soft tissue": (40, 380)}


class Slice(NamedTuple):
    """One DICOM slice in Hounsfield units."""

    hu: Any  # [H, W]
    position: float  # millimetres along the scan's axis
    name: str  # SOPInstanceUID, else the file's stem
    study: str  # StudyInstanceUID
    path: Path


class Scan(NamedTuple):
    """The slices of one scan in order along its axis."""

    hu: Any  # [S, H, W]
    positions: Any  # [S]
    slice_ids: tuple[str, ...]
    gaps: tuple[str, ...]  # one sentence for each place where slices are missing


def ct_windows(hu: Any, windows: Mapping[str, tuple[float, float]] | None = None) -> Any:
    """Stack intensity windows of CT slices, each scaled to [0, 1].

    Parameters
    ----------
    hu : array of shape (..., H, W)
        Hounsfield units.
    windows : mapping of name to (centre, width), optional
        Defaults to brain, blood and soft tissue.

    Returns
    -------
    array of shape (..., n_windows, H, W), float32

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import ct_windows
    >>> ct_windows(np.array([[-1000.0, 40.0], [80.0, 1000.0]]))[0].tolist()
    [[0.0, 0.5], [1.0, 1.0]]
    """
    hu = np.asarray(hu, dtype=np.float32)
    scaled = [
        np.clip((hu - (centre - width / 2)) / width, 0, 1)
        for centre, width in (windows or WINDOWS).values()
    ]
    return np.stack(scaled, axis=-3)


def read_scan(folder: Any) -> Scan:
    """Read one folder of DICOM slices, ordered by position, in Hounsfield units.

    Slices missing in the middle are warned about and listed in ``gaps``.

    Examples
    --------
    >>> import tempfile
    >>> from bagwise.datasets import make_ct_folder
    >>> from bagwise.vision import read_scan
    >>> root = tempfile.mkdtemp()
    >>> _ = make_ct_folder(root, n_scans=1, n_slices=(6, 6), size=16, random_state=0)
    >>> read_scan(root + "/scan_000").hu.shape
    (6, 16, 16)
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; a scan is a folder of DICOM slices.")
    files = sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
    if not files:
        raise ValueError(f"{folder} holds no files; a scan needs at least one DICOM slice.")
    return _assemble([read_slice(path) for path in files], str(folder))


def read_slice(path: Any) -> Slice:
    """Read one DICOM file: pixels times slope plus intercept, and where it lies."""
    import pydicom
    from pydicom.errors import InvalidDicomError

    path = Path(path)
    try:
        data = pydicom.dcmread(path)
    except InvalidDicomError as error:
        raise ValueError(f"{path} is not a DICOM file.") from error
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from error
    modality = str(getattr(data, "Modality", "unknown"))
    if modality != "CT":
        raise ValueError(f"{path} has modality {modality}; only CT slices can be read.")
    if "PixelData" not in data:
        raise ValueError(f"{path} has no pixel data.")
    try:
        pixels = data.pixel_array
    except (ValueError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{path} has pixel data that cannot be decoded: {error}.") from error
    if pixels.ndim != 2:
        raise ValueError(f"{path} has pixels of shape {pixels.shape}; a slice is 2-d.")
    slope = float(getattr(data, "RescaleSlope", 1))
    intercept = float(getattr(data, "RescaleIntercept", 0))
    with np.errstate(over="ignore", invalid="ignore"):  # looked for, by file, in `_assemble`
        hu = pixels.astype(np.float32) * np.float32(slope) + np.float32(intercept)
    return Slice(
        hu,
        _position(data, path),
        str(getattr(data, "SOPInstanceUID", path.stem)),
        str(getattr(data, "StudyInstanceUID", path.parent.name)),
        path,
    )


def _position(data: Any, path: Path) -> float:
    """Millimetres along the normal of the slice plane; the slice number where not given."""
    if "ImagePositionPatient" in data:
        place = np.array([float(v) for v in data.ImagePositionPatient])
        if "ImageOrientationPatient" in data:
            axes = np.array([float(v) for v in data.ImageOrientationPatient])
            return float(np.cross(axes[:3], axes[3:]) @ place)
        return float(place[2])
    if "InstanceNumber" in data and data.InstanceNumber is not None:
        return float(data.InstanceNumber)
    raise ValueError(
        f"{path} has neither ImagePositionPatient nor InstanceNumber, so its place is unknown."
    )


def _assemble(slices: Sequence[Slice], name: str) -> Scan:
    for s in slices:
        if s.hu.shape != slices[0].hu.shape:
            raise ValueError(
                f"{s.path} has size {s.hu.shape} but {slices[0].path} has {slices[0].hu.shape}; "
                "all slices of a scan need one size."
            )
        if not np.isfinite(s.hu).all():
            raise ValueError(f"{s.path} contains NaN or infinite pixels.")
    ordered = sorted(slices, key=lambda s: (s.position, s.name))
    positions = np.array([s.position for s in ordered])
    gaps = _gaps(positions)
    if gaps:
        warnings.warn(f"scan {name}: {'; '.join(gaps)}.", stacklevel=3)
    return Scan(np.stack([s.hu for s in ordered]), positions, tuple(s.name for s in ordered), gaps)


def _gaps(positions: Any) -> tuple[str, ...]:
    """Steps of at least one and a half times the usual spacing, in words."""
    steps = np.diff(positions)
    usual = float(np.median(steps)) if len(steps) else 0.0
    if usual <= 0:
        return ()
    return tuple(
        f"{round(step / usual) - 1} slice(s) missing between {positions[i]:g} and "
        f"{positions[i + 1]:g} mm"
        for i, step in enumerate(steps)
        if step >= 1.5 * usual
    )


def read_scans(
    root: Any,
    *,
    size: tuple[int, int] | None = None,
    group_by: str = "folder",
    windows: Mapping[str, tuple[float, float]] | None = None,
) -> Bags:
    """Read every scan below a folder as bags of windowed slices.

    Parameters
    ----------
    root : path
        A folder with one folder per scan, or one flat folder of slices (the RSNA layout).
    size : (height, width), optional
        Shrink every slice by area averaging; needed when scans differ in size.
    group_by : {"folder", "study"}
        What makes a scan: its folder, or the StudyInstanceUID inside the files.
    windows : mapping, optional
        As in `ct_windows`.

    Returns
    -------
    Bags with instances (n_slices, n_windows, H, W) and columns ``slice_id`` and ``position``

    Examples
    --------
    >>> import tempfile
    >>> from bagwise.datasets import make_ct_folder
    >>> from bagwise.vision import read_scans
    >>> root = tempfile.mkdtemp()
    >>> _ = make_ct_folder(root, n_scans=2, n_slices=(5, 5), size=16, random_state=0)
    >>> read_scans(root)
    Bags(2 bags, 10 instances, 3 x 16 x 16 features)
    """
    scans = _collect(Path(root), group_by)
    prepared = [ct_windows(_shrink(scan.hu, size), windows) for scan in scans.values()]
    for name, images in zip(scans, prepared, strict=True):
        if images.shape[1:] != prepared[0].shape[1:]:
            raise ValueError(
                f"scan {name} has slices of {images.shape[2:]} but scan {next(iter(scans))} of "
                f"{prepared[0].shape[2:]}; give size=(height, width) to bring them together."
            )
    bags = Bags.from_list(prepared, ids=list(scans))
    return bags.with_columns(
        slice_id=np.array([i for scan in scans.values() for i in scan.slice_ids], dtype=str),
        position=np.concatenate([scan.positions for scan in scans.values()]),
    )


def _collect(root: Path, group_by: str) -> dict[str, Scan]:
    if group_by not in ("folder", "study"):
        raise ValueError(f"group_by must be 'folder' or 'study'; got {group_by!r}.")
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder.")
    if group_by == "folder":
        folders = sorted(p for p in root.iterdir() if p.is_dir())
        if not folders:
            raise ValueError(f"{root} holds no scan folders; for a flat folder use 'study'.")
        return {folder.name: read_scan(folder) for folder in folders}
    studies: dict[str, list[Slice]] = {}
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        found = read_slice(path)
        studies.setdefault(found.study, []).append(found)
    if not studies:
        raise ValueError(f"{root} holds no files.")
    return {name: _assemble(slices, name) for name, slices in studies.items()}


def _shrink(hu: Any, size: tuple[int, int] | None) -> Any:
    if size is None or hu.shape[1:] == tuple(size):
        return hu
    import cv2

    return np.stack([cv2.resize(s, size[::-1], interpolation=cv2.INTER_AREA) for s in hu])


def read_rsna_labels(path: Any) -> dict[str, int]:
    r"""Slice labels of the RSNA 2019 haemorrhage challenge: slice id -> any haemorrhage.

    The file has a row per slice and subtype, ``ID_<slice>_<subtype>,Label``.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from bagwise.vision import read_rsna_labels
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "train.csv"
    >>> _ = path.write_text("ID,Label\nID_a1_any,1\nID_a1_epidural,0\nID_b2_any,0\n")
    >>> read_rsna_labels(path)
    {'ID_a1': 1, 'ID_b2': 0}
    """
    frame = _read_csv(path, ("ID", "Label"))
    parts = frame["ID"].astype(str).str.rsplit("_", n=1, expand=True)
    chosen = parts[1] == "any"
    if not chosen.any():
        raise ValueError(f"{path} has no row that ends in '_any'; is it the RSNA label file?")
    return dict(zip(parts[0][chosen], frame["Label"][chosen].astype(int), strict=True))


def read_cq500_labels(path: Any) -> dict[str, int]:
    r"""Scan labels of CQ500: scan name -> haemorrhage by majority of the three readers.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from bagwise.vision import read_cq500_labels
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "reads.csv"
    >>> _ = path.write_text("name,R1:ICH,R2:ICH,R3:ICH\nCQ500-CT-0,1,1,0\nCQ500-CT-1,0,1,0\n")
    >>> read_cq500_labels(path)
    {'CQ500-CT-0': 1, 'CQ500-CT-1': 0}
    """
    readers = ("R1:ICH", "R2:ICH", "R3:ICH")
    frame = _read_csv(path, ("name", *readers))
    votes = frame[list(readers)].sum(axis=1) >= 2
    return dict(zip(frame["name"].astype(str), votes.astype(int), strict=True))


def _read_csv(path: Any, needed: tuple[str, ...]) -> Any:
    return named_columns(read_frame(path, text=()), str(path), needed)


def label_slices(bags: Bags, labels: Mapping[str, int]) -> tuple[Any, Any]:
    """Scan labels and slice labels of bags read by `read_scans`, from slice labels by id.

    Returns ``(y, instance_labels)``; a slice without a label is an error that names it.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import Bags
    >>> from bagwise.vision import label_slices
    >>> bags = Bags(np.ones((3, 2)), [0, 2, 3]).with_columns(slice_id=np.array(["a", "b", "c"]))
    >>> y, instance_labels = label_slices(bags, {"a": 0, "b": 1, "c": 0})
    >>> y.tolist(), instance_labels.tolist()
    ([1, 0], [0, 1, 0])
    """
    ids = bags.columns["slice_id"]
    unknown = [i for i in ids if i not in labels]
    if unknown:
        raise ValueError(f"{len(unknown)} slice(s) have no label, the first is {unknown[0]!r}.")
    flat = np.array([labels[i] for i in ids])
    return np.array([part.max() for part in bags.split(flat)]), flat
