"""CT scans as bags of slices: windows, DICOM files, and the layouts of folders.

Section 6.3 of the psi-VGPMIL paper: three windows of each slice are stacked and scaled to
[0, 1]; the scan is the bag, its slices the instances. Needs the ``vision`` extra (pydicom).
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from bagwise.bags import Bags
from bagwise.core.arrays import Floats, Reals

Progress: TypeAlias = Callable[[Iterable[Path], int], Iterable[Path]]
Windows: TypeAlias = Mapping[str, tuple[float, float]]

# Centre and width in Hounsfield units, as radiologists set them for the head.
WINDOWS = {"brain": (40, 80), "blood": (80, 200), "soft tissue": (40, 380)}
# What a radiologist reads, in mm; thinner series of a study show the same at greater cost.
_USUAL_SPACING = 5.0
# Slices this much further apart than usual in their scan have others missing between them.
_GAP = 1.5
# Without a trained network: slices are shrunk to this side before they are described.
_SIDE = 128
_GRID = 4  # cells along a side
_BLOOD = (50.0, 95.0)  # Hounsfield units of fresh blood
_BRAIN = (0.0, 100.0)
_BRIGHTEST = 0.02  # share of the brain


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


def ct_windows(hu: ArrayLike, windows: Windows | None = None) -> Reals:
    """Stack intensity windows of CT slices, each scaled to [0, 1].

    Parameters
    ----------
    hu : array of shape (..., H, W)
        Hounsfield units.
    windows : mapping of name to (centre, width) or None, default=None
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


def describe_slice(hu: ArrayLike) -> Floats:
    """Numbers that tell slices with blood from others, without a trained network.

    Of each window: mean and largest smoothed value in 4 x 4 cells, and how the cells differ from
    their mirror images, as a bleeding is rarely on both sides. Of the brain: the share in the range
    of blood, the area of its largest connected piece, mean, spread and the brightest 2 %.

    Parameters
    ----------
    hu : array of shape (H, W)
        A slice in Hounsfield units.

    Returns
    -------
    array of shape (125,)

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import describe_slice
    >>> describe_slice(np.zeros((64, 64))).shape
    (125,)
    """
    import cv2

    small = np.asarray(hu, dtype=np.float32)
    if small.shape != (_SIDE, _SIDE):
        small = cv2.resize(small, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
    smooth = cv2.blur(small, (5, 5))
    cells = ct_windows(smooth).reshape(-1, _GRID, _SIDE // _GRID, _GRID, _SIDE // _GRID)
    mean, top = cells.mean(axis=(2, 4)), cells.max(axis=(2, 4))  # [W, 4, 4]
    uneven = np.abs(mean - mean[..., ::-1])[..., : _GRID // 2]
    brain = (smooth > _BRAIN[0]) & (smooth < _BRAIN[1])
    blood = brain & (smooth > _BLOOD[0]) & (smooth < _BLOOD[1])
    values = np.sort(smooth[brain])  # Hounsfield units of the brain, the brightest last
    of_brain = [0.0] * 5
    if len(values):
        pieces = cv2.connectedComponentsWithStats(blood.astype(np.uint8))[2]
        largest = pieces[1:, cv2.CC_STAT_AREA].max() if len(pieces) > 1 else 0
        brightest = values[-max(int(_BRIGHTEST * len(values)), 1) :].mean()
        share, area = blood.sum() / len(values), largest / len(values)
        of_brain = [share, area, values.mean() / 100, values.std() / 100, brightest / 100]
    return np.concatenate([mean.ravel(), top.ravel(), uneven.ravel(), of_brain]).astype(np.float64)


def read_slice(path: str | PathLike[str]) -> Reals:
    """Read one DICOM file in Hounsfield units, [H, W]: pixels times slope plus intercept."""
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
    return hu


def _read_header(path: Path) -> SliceFile:
    """What the header of one DICOM file says, without its pixels."""
    data = _read_dicom(path, stop_before_pixels=True)
    modality = str(getattr(data, "Modality", "unknown"))
    image_type = [str(v).upper() for v in getattr(data, "ImageType", None) or ()]
    position = 0.0
    if modality == "CT":
        if "ImagePositionPatient" in data:
            place = np.array([float(v) for v in data.ImagePositionPatient])
            axes = getattr(data, "ImageOrientationPatient", (1, 0, 0, 0, 1, 0))
            axes = np.array([float(v) for v in axes])
            # Millimetres along the normal of the slice plane; along the body where not given.
            position = float(np.cross(axes[:3], axes[3:]) @ place)
        elif getattr(data, "InstanceNumber", None) is not None:
            position = float(data.InstanceNumber)
        else:
            raise ValueError(
                f"{path} has neither ImagePositionPatient nor InstanceNumber, so its place is "
                "unknown."
            )
    return SliceFile(
        path,
        str(getattr(data, "StudyInstanceUID", path.parent.name)),
        str(getattr(data, "SeriesInstanceUID", path.parent.name)),
        str(getattr(data, "SeriesDescription", "")) or path.parent.name,
        modality,
        "LOCALIZER" in image_type,
        position,
        str(getattr(data, "SOPInstanceUID", path.stem)),
        (int(getattr(data, "Rows", 0)), int(getattr(data, "Columns", 0))),
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


def _slices(scan: ScanFiles) -> Iterator[Reals]:
    """Read the slices of a scan in Hounsfield units, one at a time; all must have one size."""
    first = scan.slices[0]
    for file in scan.slices:
        if file.shape != first.shape:
            raise ValueError(
                f"{file.path} has size {file.shape} but {first.path} has {first.shape}; "
                "all slices of a scan need one size."
            )
        yield read_slice(file.path)


def find_scans(
    root: str | PathLike[str],
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
    series : str or None, default=None
        Take the series whose description or folder contains this text, upper or lower case. By
        default the CT series, not a localizer, whose slices are nearest to 5 mm apart.
    skip_bad : bool, default=False
        Warn about files and studies that cannot be used and go on; by default they are errors.
    progress : callable or None, default=None
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
    paths = []
    for path in sorted(root.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
        if path.is_file() and not hidden and path.stem.upper() != "DICOMDIR":
            paths.append(path)
    if not paths:
        raise ValueError(f"{root} holds no files.")
    studies: dict[str, list[SliceFile]] = {}
    for path in paths if progress is None else progress(paths, len(paths)):
        try:
            file = _read_header(path)
        except ValueError as error:
            if not skip_bad:
                raise
            warnings.warn(f"skipped: {error}", stacklevel=2)
            continue
        studies.setdefault(file.study, []).append(file)
    scans = []
    for study, name in study_names(studies, root).items():
        try:
            scans.append(choose_series(name, studies[study], series))
        except ValueError as error:
            if not skip_bad:
                raise
            warnings.warn(f"skipped: {error}", stacklevel=2)
    if not scans:
        raise ValueError(f"{root} holds no scan that can be used.")
    return sorted(scans, key=lambda scan: scan.name)


def study_names(studies: Mapping[str, list[SliceFile]], root: Path) -> dict[str, str]:
    """The outermost folder that holds a study and no other, or the study's own identifier."""
    held: defaultdict[Path, Counter[str]] = defaultdict(Counter)  # files of each study in a folder
    for study, files in studies.items():
        for file in files:
            for folder in file.path.parents:
                held[folder][study] += 1
    names = {}
    for study, files in studies.items():
        whole = [
            folder
            for folder in files[0].path.parents  # from the innermost outwards
            if root in folder.parents and held[folder] == {study: len(files)}
        ]
        names[study] = str(whole[-1].relative_to(root)) if whole else study
    return names


def choose_series(name: str, files: list[SliceFile], wanted: str | None) -> ScanFiles:
    """One CT series of a study, its slices in order; warns where some are missing."""
    by_series: dict[str, list[SliceFile]] = {}
    for file in files:
        by_series.setdefault(file.series, []).append(file)
    usable = [
        sorted(slices, key=lambda file: (file.position, file.name))
        for slices in by_series.values()
        if any(f.modality == "CT" for f in slices) and not all(f.localizer for f in slices)
    ]
    if not usable:
        first = files[0]
        raise ValueError(
            f"{first.path} has modality {first.modality}; scan {name} has no CT series."
        )
    other = next((f for slices in usable for f in slices if f.modality != "CT"), None)
    if other is not None:
        raise ValueError(f"{other.path} has modality {other.modality}; only CT slices can be read.")
    text = (wanted or "").lower()
    names = [f"{s[0].description}\n{s[0].path.parent.name}".lower() for s in usable]
    chosen = [s for s, of_series in zip(usable, names, strict=True) if text in of_series]
    if not chosen:
        have = ", ".join(repr(s[0].description) for s in usable)
        raise ValueError(f"scan {name} has no series named {wanted!r}; it has {have}.")

    def suits(slices: list[SliceFile]) -> tuple[float, int, str]:
        """Spacing nearest to the usual first; of equal ones the longest."""
        steps = np.diff([file.position for file in slices])
        far = abs(float(np.median(steps)) - _USUAL_SPACING) if len(steps) else np.inf
        return far, -len(slices), slices[0].description

    best = min(chosen, key=suits)
    positions = [file.position for file in best]
    steps = np.diff(positions)
    usual = float(np.median(steps)) if len(steps) else 0.0
    gaps = tuple(
        f"{round(step / usual) - 1} slice(s) missing between {before:g} and {after:g} mm"
        for step, before, after in zip(steps, positions, positions[1:], strict=False)
        if step >= _GAP * usual > 0
    )
    if gaps:
        warnings.warn(f"scan {name}: {'; '.join(gaps)}.", stacklevel=3)
    others = tuple(s[0].description for s in usable if s is not best)
    return ScanFiles(name, best[0].description, tuple(best), gaps, others)


def read_scans(
    root: str | PathLike[str],
    *,
    size: tuple[int, int] | None = None,
    series: str | None = None,
) -> Bags:
    """Read every scan below a folder as bags of windowed slices.

    Parameters
    ----------
    root : path
        A folder of DICOM files in any layout that `find_scans` knows.
    size : (height, width) or None, default=None
        Shrink every slice by area averaging; needed when scans differ in size.
    series : str or None, default=None
        As in `find_scans`.

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
    scans = find_scans(root, series=series)
    return scan_bags(scans, lambda hu: ct_windows(shrink(hu, size)))


def scan_bags(scans: Iterable[ScanFiles], describe: Callable[[Reals], Reals]) -> Bags:
    """Bags of what ``describe`` makes of each slice, which is read, described and let go.

    The columns ``slice_id`` and ``position`` say which slice a row is and where it lies, also as
    the ``coords`` that `Coupled` goes by; rows of a scan are in order along its axis.
    """
    scans, described = list(scans), []
    for scan in scans:
        described.append(np.stack([describe(hu) for hu in _slices(scan)]))
        first, rows = described[0], described[-1]
        if rows.shape[1:] != first.shape[1:]:
            raise ValueError(
                f"scan {scan.name} has slices of {rows.shape[2:]} but scan {scans[0].name} of "
                f"{first.shape[2:]}; give size=(height, width) to bring them together."
            )
    files = [file for scan in scans for file in scan.slices]
    position = np.array([file.position for file in files])
    return Bags.from_list(described, ids=[scan.name for scan in scans]).with_columns(
        slice_id=np.array([file.name for file in files], dtype=str),
        position=position,
        coords=position,
    )


def shrink(hu: Reals, size: tuple[int, int] | None) -> Reals:
    """A slice brought to a size by area averaging; None leaves it as it is."""
    if size is None or hu.shape[-2:] == tuple(size):
        return hu
    import cv2

    return np.asarray(cv2.resize(hu, size[::-1], interpolation=cv2.INTER_AREA), dtype=np.float32)
