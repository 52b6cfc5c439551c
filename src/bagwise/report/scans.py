"""One self-contained HTML page of CT scans: every positive class, and the slices behind it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bagwise.bags import Bags
from bagwise.files import new_file
from bagwise.report.charts import slices_chart
from bagwise.report.html import render, written_at
from bagwise.report.predictions import Predictions
from bagwise.vision.ct import WINDOWS, ScanFiles, ct_windows, read_slice, shrink

if TYPE_CHECKING:
    from bagwise.core.arrays import Ints

# Longest side of a slice on the page, and the window that it is shown in.
_SIDE, _WINDOW = 160, "blood"
# Scans shown with their slices, and of each class the most probable slices.
_SCANS, _SLICES = 200, 3


def write_scans(
    tables: Mapping[str, Predictions],
    bags: Bags,
    scans: Sequence[ScanFiles],
    path: str | Path,
    *,
    about: Mapping[str, object],
    truth: Ints | None = None,
) -> Path:
    """Write one page with every class of every scan, the most probable scan first.

    Parameters
    ----------
    tables : mapping from class name to Predictions
        Of the scans and their slices.
    bags : Bags
        The scans, with a column ``position`` of slices in millimetres.
    scans : sequence of ScanFiles
        Where the slices lie; the most probable ones are read again, to be shown.
    path : path
    about : mapping
        What `bagwise.persist.about` says of the model.
    truth : array of shape (n_scans, n_classes), optional
        Labels of the scans, 0 or 1.
    """
    probability, std = (
        np.column_stack([table.bags[what] for table in tables.values()])
        for what in ("probability", "std")
    )
    names = list(tables)
    order = np.argsort(-probability.max(axis=1), kind="stable").tolist()
    rows = []
    for place, i in enumerate(order):
        # What is called positive is shown, or the most probable class where nothing is.
        shown = probability[i] >= min(0.5, probability[i].max())
        row = {
            "files": scans[i],
            "probability": probability[i],
            "std": std[i],
            "truth": None if truth is None else np.array(names)[truth[i] == 1].tolist(),
            "evidence": [
                _evidence(name, tables[name], bags, scans[i], i)
                for name, is_shown in zip(names, shown, strict=True)
                if is_shown and place < _SCANS
            ],
        }
        rows.append(row)
    page = render(
        "scans.html",
        style=(files("bagwise.report") / "assets" / "report.css").read_text(encoding="utf-8"),
        names=names,
        called=(probability > 0.5).sum(axis=0).tolist(),
        rows=rows,
        n_slices=bags.n_instances,
        n_shown=min(len(rows), _SCANS),
        window=_WINDOW,
        notes=next(iter(tables.values())).notes,
        about=about,
        now=written_at(),
    )
    with new_file(path) as draft:
        draft.write_text(page, encoding="utf-8")
    return Path(path)


def _evidence(
    name: str, table: Predictions, bags: Bags, scan: ScanFiles, i: int
) -> dict[str, object]:
    """The probability of a class along the slices of scan ``i``, and its most probable slices."""
    assert table.instances is not None  # a model of scans has slices
    rows = slice(bags.offsets[i], bags.offsets[i + 1])
    p, std = (table.instances[what].to_numpy()[rows] for what in ("probability", "std"))
    position = bags.columns["position"][rows]
    top = np.sort(np.argsort(-p, kind="stable")[:_SLICES]).tolist()
    pictures = [
        {"number": k + 1, "position": position[k], "probability": p[k], "png": _png(scan, k)}
        for k in top
    ]
    return {
        "name": name,
        "probability": table.bags["probability"].iloc[i],
        "chart": slices_chart(name, position, p, std),
        "slices": pictures,
    }


def _png(scan: ScanFiles, k: int) -> str:
    """Slice ``k`` as a small grey PNG, as base64."""
    import cv2

    hu = read_slice(scan.slices[k].path)
    height, width = (max(round(_SIDE * side / max(hu.shape)), 1) for side in hu.shape)
    pixels = ct_windows(shrink(hu, (height, width)), {_WINDOW: WINDOWS[_WINDOW]})[0]
    png = cv2.imencode(".png", np.rint(255 * pixels).astype(np.uint8))[1]
    return base64.b64encode(png.tobytes()).decode("ascii")
