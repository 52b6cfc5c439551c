"""CT scans as bags of slices: windows, DICOM files, and the layouts of folders.

Section 6.3 of the psi-VGPMIL paper: three windows of each slice are stacked and scaled to
[0, 1]; the scan is the bag, its slices the instances. Needs the ``vision`` extra (pydicom).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bagwise.bags import Bags

Progress = Callable[[Iterable[Path], int], Iterable[Path]]

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
    path = Path(path)
    data = _read_dicom(path, stop_before_pixels=False)
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
    with np.errstate(over="ignore", invalid="ignore"):
        hu = pixels.astype(np.float32) * np.float32(slope) + np.float32(intercept)
    if not np.isfinite(hu).all():
        raise ValueError(f"{path} contains NaN or infinite pixels.")
    return Slice(
        hu,
        _position(data, path),
        str(getattr(data, "SOPInstanceUID", path.stem)),
        str(getattr(data, "StudyInstanceUID", path.parent.name)),
        path,
    )


def _read_dicom(path: Path, *, stop_before_pixels: bool) -> Any:
    import pydicom
    from pydicom.errors import InvalidDicomError

    try:
        return pydicom.dcmread(path, stop_before_pixels=stop_before_pixels)
    except InvalidDicomError as error:
        raise ValueError(f"{path} is not a DICOM file.") from error
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from error


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


class SliceFile(NamedTuple):
    """What the header of a DICOM slice says."""

    path: Path
    study: str
    series: str
    description: str
    modality: str
    localizer: bool
    position: float  # millimetres along the scan's axis
    name: str  # SOPInstanceUID, else the file's stem
    shape: tuple[int, int]


class ScanFiles(NamedTuple):
    """One series of a study: its slices in order along its axis, not read yet."""

    name: str
    description: str  # of the series
    slices: tuple[SliceFile, ...]
    gaps: tuple[str, ...]  # one sentence for each place where slices are missing
    others: tuple[str, ...]  # the other series of the study


# What a radiologist reads; thinner series of the same study show the same at greater cost.
_USUAL_SPACING = 5.0


def find_scans(
    root: Any,
    *,
    series: str | None = None,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> list[ScanFiles]:
    """Find the scans below a folder by the headers of its DICOM files.

    Files are grouped by study, wherever they lie: a folder per scan, nested folders of study and
    series (CQ500), or one flat folder (RSNA). A scan takes the name of the outermost folder that
    holds no other study, else its StudyInstanceUID. Of several series in a study one is taken. A
    ``DICOMDIR`` and hidden files are passed over.

    Parameters
    ----------
    root : path
    series : str, optional
        Take the series whose description or folder contains this text, upper or lower case. By
        default the CT series, not a localizer, whose slices are nearest to 5 mm apart.
    skip_bad : bool
        Warn about files and studies that cannot be used and go on; by default they are errors.
    progress : callable, optional
        Wraps the iteration over files: ``progress(files, number of files)``.

    Examples
    --------
    >>> import tempfile
    >>> from bagwise.datasets import make_ct_folder
    >>> from bagwise.vision import find_scans
    >>> root = tempfile.mkdtemp()
    >>> _ = make_ct_folder(root, n_scans=2, n_slices=(5, 5), size=16, random_state=0)
    >>> [(scan.name, len(scan.slices)) for scan in find_scans(root)]
    [('scan_000', 5), ('scan_001', 5)]
    """
    root = Path(root)
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder.")
    paths = sorted(p for p in root.rglob("*") if p.is_file() and not _passed_over(p, root))
    if not paths:
        raise ValueError(f"{root} holds no files.")
    studies: dict[str, list[SliceFile]] = {}
    for path in paths if progress is None else progress(paths, len(paths)):
        try:
            file = read_header(path)
        except ValueError as error:
            if not skip_bad:
                raise
            warnings.warn(f"skipped: {error}", stacklevel=2)
            continue
        studies.setdefault(file.study, []).append(file)
    names = _names(studies, root)
    scans = []
    for study, files in studies.items():
        try:
            scans.append(_choose_series(names[study], files, series))
        except ValueError as error:
            if not skip_bad:
                raise
            warnings.warn(f"skipped: {error}", stacklevel=2)
    if not scans:
        raise ValueError(f"{root} holds no scan that can be used.")
    return sorted(scans, key=lambda scan: scan.name)


def _passed_over(path: Path, root: Path) -> bool:
    parts = path.relative_to(root).parts
    return path.stem.upper() == "DICOMDIR" or any(part.startswith(".") for part in parts)


def read_header(path: Any) -> SliceFile:
    """What the header of one DICOM file says, without its pixels."""
    path = Path(path)
    data = _read_dicom(path, stop_before_pixels=True)
    modality = str(getattr(data, "Modality", "unknown"))
    is_ct = modality == "CT"
    image_type = [str(v).upper() for v in getattr(data, "ImageType", None) or ()]
    return SliceFile(
        path,
        str(getattr(data, "StudyInstanceUID", path.parent.name)),
        str(getattr(data, "SeriesInstanceUID", path.parent.name)),
        str(getattr(data, "SeriesDescription", "")) or path.parent.name,
        modality,
        "LOCALIZER" in image_type,
        _position(data, path) if is_ct else 0.0,
        str(getattr(data, "SOPInstanceUID", path.stem)),
        (int(getattr(data, "Rows", 0)), int(getattr(data, "Columns", 0))),
    )


def _names(studies: Mapping[str, Sequence[SliceFile]], root: Path) -> dict[str, str]:
    """The outermost folder that holds a study and no other, or the study's own identifier."""
    owners: dict[Path, set[str]] = {}
    for study, files in studies.items():
        for folder in {parent for file in files for parent in file.path.parents}:
            owners.setdefault(folder, set()).add(study)
    names = {}
    for study, files in studies.items():
        above = [p for p in files[0].path.parents if root in p.parents]
        whole = [
            p
            for p in above
            if owners[p] == {study} and all(p in file.path.parents for file in files)
        ]
        names[study] = str(whole[-1].relative_to(root)) if whole else study
    return names


def _choose_series(name: str, files: Sequence[SliceFile], wanted: str | None) -> ScanFiles:
    """One CT series of a study, its slices in order."""
    by_series: dict[str, list[SliceFile]] = {}
    for file in files:
        by_series.setdefault(file.series, []).append(file)
    usable = []
    for slices in by_series.values():
        kinds = {file.modality for file in slices}
        if "CT" not in kinds or all(file.localizer for file in slices):
            continue
        odd = next((file for file in slices if file.modality != "CT"), None)
        if odd is not None:
            raise ValueError(f"{odd.path} has modality {odd.modality}; only CT slices can be read.")
        usable.append(sorted(slices, key=lambda file: (file.position, file.name)))
    if not usable:
        first = files[0]
        raise ValueError(
            f"{first.path} has modality {first.modality}; scan {name} has no CT series."
        )
    if wanted is not None:
        chosen = [
            s
            for s in usable
            if wanted.lower() in s[0].description.lower()
            or wanted.lower() in s[0].path.parent.name.lower()
        ]
        if not chosen:
            have = ", ".join(repr(s[0].description) for s in usable)
            raise ValueError(f"scan {name} has no series named {wanted!r}; it has {have}.")
    else:
        chosen = usable
    best = min(chosen, key=lambda s: (_from_usual_spacing(s), -len(s), s[0].description))
    gaps = _gaps(np.array([file.position for file in best]))
    if gaps:
        warnings.warn(f"scan {name}: {'; '.join(gaps)}.", stacklevel=3)
    others = tuple(s[0].description for s in usable if s is not best)
    return ScanFiles(name, best[0].description, tuple(best), gaps, others)


def _from_usual_spacing(slices: Sequence[SliceFile]) -> float:
    """How far from the usual the slices lie apart; infinite for a single one."""
    if len(slices) < 2:
        return float("inf")
    return abs(float(np.median(np.diff([file.position for file in slices]))) - _USUAL_SPACING)


def read_scans(
    root: Any,
    *,
    size: tuple[int, int] | None = None,
    series: str | None = None,
    windows: Mapping[str, tuple[float, float]] | None = None,
) -> Bags:
    """Read every scan below a folder as bags of windowed slices.

    Parameters
    ----------
    root : path
        A folder of DICOM files in any layout that `find_scans` knows.
    size : (height, width), optional
        Shrink every slice by area averaging; needed when scans differ in size.
    series : str, optional
        As in `find_scans`.
    windows : mapping, optional
        As in `ct_windows`.

    Returns
    -------
    Bags with instances (n_slices, n_windows, H, W), ``coords``, and columns ``slice_id`` and
    ``position``

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
    return scan_bags(
        find_scans(root, series=series), lambda hu: ct_windows(shrink(hu, size), windows)
    )


def scan_bags(
    scans: Iterable[ScanFiles], describe: Callable[[NDArray[np.float32]], NDArray[np.floating]]
) -> Bags:
    """Bags of what ``describe`` makes of each slice, which is read, described and let go.

    The columns ``slice_id`` and ``position`` say which slice a row is and where it lies, also as
    the ``coords`` that `Coupled` goes by; rows of a scan are in order along its axis.
    """
    scans = list(scans)
    described = []
    for scan in scans:
        rows = [describe(_same_size(file, scan)) for file in scan.slices]
        described.append(np.stack(rows))
        first = described[0]
        if described[-1].shape[1:] != first.shape[1:]:
            raise ValueError(
                f"scan {scan.name} has slices of {described[-1].shape[2:]} but scan "
                f"{scans[0].name} of {first.shape[2:]}; give size=(height, width) to bring them "
                "together."
            )
    bags = Bags.from_list(described, ids=[scan.name for scan in scans])
    position = np.array([file.position for scan in scans for file in scan.slices])
    return bags.with_columns(
        slice_id=np.array([file.name for scan in scans for file in scan.slices], dtype=str),
        position=position,
        coords=position,
    )


def _same_size(file: SliceFile, scan: ScanFiles) -> NDArray[np.float32]:
    """The slice in Hounsfield units, if its size is that of its scan."""
    hu: NDArray[np.float32] = read_slice(file.path).hu
    if file.shape != scan.slices[0].shape:
        raise ValueError(
            f"{file.path} has size {file.shape} but {scan.slices[0].path} has "
            f"{scan.slices[0].shape}; all slices of a scan need one size."
        )
    return hu


def shrink(hu: NDArray[np.float32], size: tuple[int, int] | None) -> NDArray[np.float32]:
    """A slice brought to a size by area averaging; None leaves it as it is."""
    if size is None or hu.shape[-2:] == tuple(size):
        return hu
    import cv2

    return np.asarray(cv2.resize(hu, size[::-1], interpolation=cv2.INTER_AREA), dtype=np.float32)
