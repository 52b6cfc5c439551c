"""Valid files of every kind the commands read, and the command lines that read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import cv2
import numcodecs
import numpy as np
import pandas as pd
import torch
import zarr

from bagwise.cli import main
from tests.filing import arrays, write_h5, write_labels


class Case(NamedTuple):
    """A command line and the files that differ from the valid ones."""

    kind: str  # which mutator made it
    words: tuple[str, ...]
    files: dict[str, bytes]


FAST = ("--model", "single-instance")
GP = ("--model", "vgpmil", "--set", "n_inducing=4", "--set", "max_iter=3")
LABELS = ("--labels", "labels.csv")
OUT = ("--out", "out")
# What reads the bags of each layout; the first file of it is the one to spoil.
LAYOUTS = {"h5": "h5/a0.h5", "npz": "npz/a0.npz", "pt": "pt/a0.pt"}
ZARRS = {
    file: layout
    for layout, members in {
        "zarr2": (".zarray", "0.0"),
        "zarr3": ("zarr.json", "c/0/0"),
    }.items()
    for name in ("features", "coords")
    for file in [f"{layout}/a0.zarr/{name}/{member}" for member in members]
}
TABLES = {"csv": "table.csv", "parquet": "table.parquet", "xlsx": "table.xlsx"}
DRAWN = ("label", "model.bagwise", "--bags", "h5", "--export-only", "--out", "out/labels.csv")
DETECT = ("--images", "images", "--n-boxes", "10", "--proposals", "windows")


def readers(source: str) -> list[tuple[str, ...]]:
    """Commands that read bags from a source."""
    bags = ("--bags", source)
    return [
        ("fit", *bags, *LABELS, *FAST, *OUT),
        ("fit", *bags, *LABELS, *FAST, "--cv", "2", "--skip-bad", *OUT),
        ("fit", *bags, *LABELS, *GP, *OUT),
        ("predict", "model.bagwise", *bags, "--min-sensitivity", "0.9", *OUT),
        ("predict", "model.bagwise", *bags, *LABELS, "--skip-bad", *OUT),
        ("evaluate", "model.bagwise", *bags, *LABELS, "--json"),
        ("compare", *bags, *LABELS, "--models", "single-instance", "--cv", "2", *OUT),
    ]


# (file to spoil, command line); chosen with equal weight.
TEMPLATES: list[tuple[str, tuple[str, ...]]] = [
    *((file, words) for name, file in LAYOUTS.items() for words in readers(name)),
    *((file, words) for file, layout in ZARRS.items() for words in readers(layout)[:4:3]),
    *(("drawn.geojson", (*DRAWN, "--import", "drawn.geojson", "--bag", "a0")) for _ in range(4)),
    *(("tasks.json", (*DRAWN, "--import", "tasks.json")) for _ in range(4)),
    *((file, words) for file in TABLES.values() for words in readers(file)),
    *(("labels.csv", words) for words in readers("h5")),
    *(("model.bagwise", words) for words in readers("h5") if "model.bagwise" in words),
    *(("model.bagwise", words) for words in readers("h5") if "model.bagwise" in words),
    ("model.bagwise", ("info", "model.bagwise")),
    ("model.bagwise", ("info", "model.bagwise", "--json")),
    (
        "patches.csv",
        ("fit", "--bags", "h5", *LABELS, *FAST, "--instance-labels", "patches.csv", *OUT),
    ),
    (
        "patients.csv",
        ("predict", "model.bagwise", "--bags", "h5", "--patients", "patients.csv", *OUT),
    ),
    ("images/i0.png", ("detect", "fit", *DETECT, "--labels", "image-labels.csv", *OUT)),
    ("image-labels.csv", ("detect", "fit", *DETECT, "--labels", "image-labels.csv", *OUT)),
    ("coco.json", ("detect", "fit", *DETECT, "--coco", "coco.json", *OUT)),
    ("images/i0.png", ("detect", "predict", "detector.bagwise", "--images", "images", *OUT)),
    ("detector.bagwise", ("detect", "predict", "detector.bagwise", "--images", "images", *OUT)),
    ("images/i1.png", ("track", "images", "--box", "8,8,16,16", "--csv", "out")),
]


def write_corpus(folder: Path) -> None:
    """Write everything the templates name."""
    made = [(f"a{i}", x, coords, y) for i, (_, x, coords, y) in enumerate(arrays(n_bags=12))]
    for layout in (*LAYOUTS, "zarr2", "zarr3"):
        (folder / layout).mkdir(parents=True)
    rows = []
    for name, x, coords, _ in made:
        write_h5(folder / "h5" / f"{name}.h5", x, coords, patch_size=256)
        np.savez_compressed(folder / "npz" / f"{name}.npz", features=x, coords=coords)
        torch.save({"features": torch.from_numpy(x)}, folder / "pt" / f"{name}.pt")
        for version, compressor in [(2, numcodecs.Zstd()), (3, zarr.codecs.ZstdCodec())]:
            place = folder / f"zarr{version}" / f"{name}.zarr"
            group = zarr.open_group(place, mode="w", zarr_format=version)
            group.create_array("features", data=x, compressors=compressor)
            group.create_array("coords", data=coords, compressors=None)
        rows += [{"slide_id": name, **{f"f{k}": float(v) for k, v in enumerate(r)}} for r in x]
    pd.DataFrame(rows).to_csv(folder / "table.csv", index=False)
    pd.DataFrame(rows).to_excel(folder / "table.xlsx", index=False)
    _write_annotations(folder)
    pd.DataFrame(rows).to_parquet(folder / "table.parquet", index=False)
    write_labels(folder / "labels.csv", [(name, ["normal", "tumor"][y]) for name, *_, y in made])
    write_labels(
        folder / "patches.csv",
        [(made[1][0], 0, "tumor"), (made[0][0], 0, "normal")],
        header="slide_id,index,label",
    )
    patients = [(name, f"p{i // 2}") for i, (name, *_) in enumerate(made)]
    write_labels(folder / "patients.csv", patients, header="slide_id,patient_id")
    _write_images(folder)
    fit = ("fit", "--bags", folder / "h5", "--labels", folder / "labels.csv", *FAST, "--cv", 2)
    detect = ("detect", "fit", *DETECT, "--labels", folder / "image-labels.csv")
    # Tracking compiles its kernels once; a case must not pay for that.
    track = ("track", "images", "--box", "8,8,16,16")
    for words, option, out in [
        (fit, "--out", "model.bagwise"),
        (detect, "--out", "detector.bagwise"),
        (track, "--csv", "track.csv"),
    ]:
        line = [str(folder / "images") if word == "images" else str(word) for word in words]
        code = main([*line, "--json", option, str(folder / out)])
        if code:
            raise RuntimeError(f"the valid corpus cannot be made: {line} ended with {code}")


def _write_annotations(folder: Path) -> None:
    corner = [[0, 0], [256, 0], [256, 256], [0, 256], [0, 0]]
    drawn = {
        "type": "Feature",
        "geometry": {"type": "Polygon", "coordinates": [corner]},
        "properties": {"classification": {"name": "tumor"}},
    }
    many = {"type": "MultiPolygon", "coordinates": [[corner]]}
    features = {"type": "FeatureCollection", "features": [drawn, {**drawn, "geometry": many}]}
    (folder / "drawn.geojson").write_text(json.dumps(features), encoding="utf-8")
    result = [{"type": "choices", "value": {"choices": ["tumor"]}}]
    tasks = [
        {"data": {"bag": "a0", "index": i}, "annotations": [{"result": result}]} for i in range(3)
    ]
    (folder / "tasks.json").write_text(json.dumps(tasks), encoding="utf-8")


def _write_images(folder: Path) -> None:
    rng = np.random.default_rng(0)
    (folder / "images").mkdir()
    rows, coco = [], {"images": [], "annotations": [], "categories": [{"id": 1, "name": "cell"}]}
    for i in range(6):
        image = rng.integers(0, 60, (48, 48, 3), dtype=np.uint8)
        if i % 2:
            image[8 + i : 24 + i, 8:24] = (200, 120, 90)
            box = {"id": i, "image_id": i, "category_id": 1, "bbox": [8, 8 + i, 16, 16]}
            coco["annotations"].append(box)
        cv2.imwrite(str(folder / "images" / f"i{i}.png"), image)
        coco["images"].append({"id": i, "file_name": f"i{i}.png"})
        rows.append((f"i{i}.png", "cell" if i % 2 else ""))
    write_labels(folder / "image-labels.csv", rows, header="image,label")
    (folder / "coco.json").write_text(json.dumps(coco), encoding="utf-8")
