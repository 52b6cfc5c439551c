"""Studies in the nested layout of CQ500, drawn from a seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.utils import Bunch, check_random_state

from bagwise.datasets.ct import draw_scan, write_slice


def write_cq500(
    root: str | Path, *, n_scans: int, n_slices: int, size: int, random_state: int
) -> Bunch:
    """Write studies in CQ500's nested layout, and its table of readers beside it, ``<root>.csv``.

    A study is ``CQ500CT7 CQ500CT7/Unknown Study`` and has a plain series of slices 5 mm apart, a
    thin one with 2.5 mm, and a localizer; beside the studies lies a ``DICOMDIR``. Half of the scans
    hold a lesion (ICH), on the left of the picture (SDH) in half of those.

    Returns
    -------
    Bunch with ``labels`` (the path of the table), ``Y`` [n_scans, 2] for ICH and SDH, and
    ``slice_labels`` (slice id -> 0/1) of the plain series
    """
    rng = check_random_state(random_state)
    root = Path(root)
    order = rng.permutation(n_scans)
    Y = np.column_stack([order < n_scans // 2, order < n_scans // 4]).astype(np.int64)
    rows = ["name," + ",".join(f"R{r}:{c}" for r in (1, 2, 3) for c in ("ICH", "SDH"))]
    labels: dict[str, int] = {}
    for i, (bleeds, left) in enumerate(Y):
        hu, lesion = draw_scan(rng, n_slices, size, 45.0)
        middle = np.flatnonzero(lesion.max(axis=(0, 1)) > 0).mean() < size / 2
        if bool(left) != bool(middle):
            hu, lesion = hu[..., ::-1], lesion[..., ::-1]
        if not bleeds:
            hu, lesion = hu - lesion, np.zeros_like(lesion)
        study = root / f"CQ500CT{i} CQ500CT{i}" / "Unknown Study"
        base = f"1.2.826.0.1.3680043.8.498.{i + 1}"
        kinds = {"CT Plain": (1, 5.0), "CT Thin": (2, 2.5), "Scout": (3, 0.0)}
        for description, (number, gap) in kinds.items():
            folder = study / description
            folder.mkdir(parents=True, exist_ok=True)
            slices = hu if number == 1 else np.repeat(hu, 2, axis=0) if number == 2 else hu[:1]
            for s, pixels in enumerate(slices):
                uid = f"{base}.{number}.{s + 1}"
                write_slice(
                    folder / f"CT{s:06d}.dcm",
                    pixels,
                    uid,
                    study=i + 1,
                    position=gap * s,
                    series=f"{base}.{number}",
                    description=description,
                    localizer=number == 3,
                )
                if number == 1:
                    labels[uid] = int(lesion[s].max() > 22.5)
        votes = [[bleeds, left], [bleeds, left], rng.randint(0, 2, 2)]  # the third reader guesses
        rows.append(f"CQ500-CT-{i}," + ",".join(str(int(v)) for vote in votes for v in vote))
    (root / "DICOMDIR").write_bytes(b"an index of the files, not an image")
    path = root.with_name(f"{root.name}.csv")  # beside the folder, which holds only DICOM
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return Bunch(labels=path, Y=Y, slice_labels=labels)
