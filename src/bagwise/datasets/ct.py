"""Synthetic head CT scans as DICOM folders, with bright blobs as lesions and known truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.utils import Bunch, check_random_state

from bagwise.core.arrays import Floats, RandomState
from bagwise.datasets.generators import half_positive


def make_ct_folder(
    root: str | Path,
    *,
    n_scans: int = 40,
    n_slices: tuple[int, int] = (10, 20),
    size: int = 64,
    contrast: float = 45.0,
    random_state: RandomState = None,
) -> Bunch:
    """Write scans ``root/scan_000/*.dcm``: a skull, a noisy brain, and blood in half of them.

    A lesion is a blob of ``contrast`` Hounsfield units above the brain that spans two to four
    neighbouring slices. Needs pydicom (the ``vision`` extra).

    Parameters
    ----------
    root : path
        Written into; made where absent.
    n_scans : int, default=40
        Half of them, rounded down, hold a lesion.
    n_slices : (int, int), default=(10, 20)
        Fewest and most slices of a scan.
    size : int, default=64
        Height and width of a slice.
    contrast : float, default=45.0
    random_state : int, RandomState or None, default=None

    Returns
    -------
    Bunch with ``y`` (per scan, in order of folder name) and ``slice_labels`` (slice id -> 0/1)

    Examples
    --------
    >>> import tempfile
    >>> from bagwise.datasets import make_ct_folder
    >>> truth = make_ct_folder(tempfile.mkdtemp(), n_scans=4, size=16, random_state=0)
    >>> int(truth.y.sum()), max(truth.slice_labels.values())
    (2, 1)
    """
    rng = check_random_state(random_state)
    y = half_positive(n_scans, rng)
    labels: dict[str, int] = {}
    for i, target in enumerate(y):
        folder = Path(root) / f"scan_{i:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        hu, lesion = draw_scan(rng, int(rng.randint(n_slices[0], n_slices[1] + 1)), size, contrast)
        if not target:
            hu, lesion = hu - lesion, np.zeros_like(lesion)
        # File names are shuffled, so a reader must order slices by position.
        for s, number in enumerate(rng.permutation(len(hu))):
            uid = f"1.2.826.0.1.3680043.8.498.{i + 1}.{s + 1}"
            write_slice(folder / f"{number:04d}.dcm", hu[s], uid, study=i + 1, position=5.0 * s)
            labels[uid] = int(lesion[s].max() > 0.5 * contrast)
    return Bunch(y=y, slice_labels=labels)


def draw_scan(
    rng: np.random.RandomState, n: int, size: int, contrast: float
) -> tuple[Floats, Floats]:
    """A scan with a lesion and the lesion alone, both [n, size, size] in Hounsfield units."""
    row, col = np.mgrid[:size, :size] / (size - 1) * 2 - 1
    radius = np.hypot(row / 0.9, col / 0.75)
    head = np.where(radius < 0.85, 32.0, np.where(radius < 1.0, 900.0, -1000.0))
    noise = rng.normal(0, 6, size=(n, size, size)) * (radius < 0.85)
    centre = rng.uniform(-0.4, 0.4, size=2)
    width = rng.uniform(0.08, 0.16)
    blob = np.exp(-((row - centre[0]) ** 2 + (col - centre[1]) ** 2) / (2 * width**2))
    span = int(rng.randint(2, 5))
    first = int(rng.randint(0, max(1, n - span + 1)))
    lesion = np.zeros((n, size, size))
    lesion[first : first + span] = contrast * blob * (radius < 0.85)
    return head + noise + lesion, lesion


def write_slice(
    path: str | Path,
    hu: Floats,
    uid: str,
    *,
    study: int,
    position: float,
    series: str | None = None,
    description: str | None = None,
    localizer: bool = False,
) -> None:
    """Write one CT slice as DICOM, stored with slope 1 and intercept -1024."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = CTImageStorage
    meta.MediaStorageSOPInstanceUID = uid
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    data.SOPClassUID, data.SOPInstanceUID = CTImageStorage, uid
    data.StudyInstanceUID = f"1.2.826.0.1.3680043.8.498.9.{study}"
    data.Modality = "CT"
    if series is not None:
        data.SeriesInstanceUID = series
    if description is not None:
        data.SeriesDescription = description
    data.ImageType = ["ORIGINAL", "PRIMARY", "LOCALIZER" if localizer else "AXIAL"]
    data.ImagePositionPatient = [0.0, 0.0, float(position)]
    data.ImageOrientationPatient = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    data.RescaleSlope, data.RescaleIntercept = 1, -1024
    data.Rows, data.Columns = hu.shape
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.BitsAllocated = data.BitsStored = 16
    data.HighBit, data.PixelRepresentation = 15, 0
    data.PixelData = np.clip(np.round(hu) + 1024, 0, 65535).astype("<u2").tobytes()
    data.save_as(path, enforce_file_format=True)
