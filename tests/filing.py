"""Folders of bags on disk, good ones and broken ones, for the tests of files and commands."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import h5py
import numpy as np

N_BAGS, N_FEATURES = 24, 6


def arrays(n_bags=N_BAGS, n_features=N_FEATURES, seed=0):
    """Well-separated bags on a grid, every second one with a positive patch."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n_bags):
        n = int(rng.integers(4, 9))
        x = rng.normal(size=(n, n_features)).astype(np.float32)
        if i % 2:
            x[: rng.integers(1, 3)] += 3
        coords = np.stack([np.arange(n) % 3, np.arange(n) // 3], axis=1) * 256
        made.append((f"{i:03d}", x, coords, i % 2))
    return made


def write_h5(path: Path, x, coords=None, *, nested=False, **attributes):
    with h5py.File(path, "w") as file:
        file["features"] = x[None] if nested else x
        if coords is not None:
            made = file.create_dataset("coords", data=coords[None] if nested else coords)
            made.attrs.update(attributes)


def write_labels(path: Path, rows, header="slide_id,label"):
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def make_folder(root: Path, **options) -> tuple[Path, Path]:
    """A plain folder of .h5 files and its labels."""
    folder = root / "bags"
    folder.mkdir(parents=True)
    made = arrays(**options)
    for name, x, coords, _ in made:
        write_h5(folder / f"{name}.h5", x, coords)
    write_labels(root / "labels.csv", [(name, y) for name, _, _, y in made])
    return folder, root / "labels.csv"


def make_clam(root: Path) -> tuple[Path, Path]:
    """CLAM: h5_files/ beside pt_files/, patch size at a level with a downsample."""
    (root / "features" / "h5_files").mkdir(parents=True)
    (root / "features" / "pt_files").mkdir()
    made = arrays()
    for name, x, coords, _ in made:
        write_h5(
            root / "features" / "h5_files" / f"slide_{name}.h5",
            x,
            coords,
            patch_size=256,
            patch_level=0,
            downsample=np.array([1.0, 1.0]),
        )
    write_labels(
        root / "dataset.csv",
        [
            (f"p{i // 2}", f"slide_{name}", ["normal", "tumor"][y])
            for i, (name, _, _, y) in enumerate(made)
        ],
        "case_id,slide_id,label",
    )
    return root / "features", root / "dataset.csv"


def make_trident(root: Path, encoders=("uni_v1",)) -> tuple[Path, Path]:
    """TRIDENT: job/20x_256px_0px_overlap/features_{encoder}/{slide}.h5, 1 x N x D."""
    made = arrays()
    for encoder in encoders:
        folder = root / "job" / "20x_256px_0px_overlap" / f"features_{encoder}"
        folder.mkdir(parents=True)
        for name, x, coords, _ in made:
            write_h5(
                folder / f"TCGA-{name}.h5",
                x,
                coords,
                nested=True,
                patch_size=256,
                patch_size_level0=512,
                level0_magnification=40,
            )
    write_labels(root / "labels.csv", [(f"TCGA-{name}", y) for name, _, _, y in made])
    return root / "job", root / "labels.csv"


def failing(error):
    """`ZipFile.writestr` that raises where the archive is a file on disk, not one in memory."""
    writestr = zipfile.ZipFile.writestr

    def write(archive, *arguments, **more):
        if archive.filename is not None:
            raise error
        return writestr(archive, *arguments, **more)

    return write


def sign(about):
    """Give the description of a model file the checksum of its content."""
    about.pop("description_sha256", None)
    text = json.dumps(about, sort_keys=True)
    about["description_sha256"] = hashlib.sha256(text.encode()).hexdigest()
