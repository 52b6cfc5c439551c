"""``bagwise track``: follow targets through a video."""

from __future__ import annotations

import csv
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.markup import escape

from bagwise.cli.arguments import set_up
from bagwise.cli.console import Printer
from bagwise.files import check_output, new_file

if TYPE_CHECKING:
    from bagwise.vision.images import Image

Box = tuple[float, float, float, float]


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``bagwise track``."""
    set_up(
        parser,
        track,
        "bagwise track video.mp4 --box 122,58,75,97 --out tracked.mp4",
        "bagwise track frames/ --box 10,10,40,60 --box 90,12,38,61 --mot tracks.txt",
    )
    add = parser.add_argument
    add("video", type=Path, help="video file, or folder of frames")
    what = "the target in the first frame; repeat for several (default: draw one on the screen)"
    add("--box", type=parse_box, action="append", metavar="X,Y,W,H", help=what)
    add("--out", type=Path, metavar="FILE", help="tracked video, .mp4 or .avi")
    add("--csv", type=Path, metavar="FILE", help="table of boxes, a row per frame")
    add("--mot", type=Path, metavar="FILE", help="table in MOT Challenge's format")
    add("--mot-all", action="store_true", help="with --mot: also rows where the target is lost")
    add("--seed", type=int, default=0)
    add("--force", action="store_true", help="replace an existing output")


def parse_box(text: str) -> Box:
    """``x,y,w,h`` as numbers."""
    try:
        x, y, w, h = (float(v) for v in text.split(","))
    except ValueError as error:
        raise ArgumentTypeError(f"a box is x,y,w,h; got {text!r}") from error
    return x, y, w, h


def track(arguments: Namespace, printer: Printer) -> dict[str, object]:
    """Follow targets through a video; write it with their boxes, or tables of them."""
    from bagwise.vision.tracking import MIOTracker, track_many
    from bagwise.vision.video import count_frames, frame_rate, read_frames, write_video

    outputs = {"--out": arguments.out, "--csv": arguments.csv, "--mot": arguments.mot}
    if not arguments.json and not any(outputs.values()):
        raise ValueError("say what to write: --out for a video, --csv or --mot for a table.")
    if arguments.mot_all and arguments.mot is None:
        raise ValueError("--mot-all says which rows the table of --mot has; pass --mot FILE too.")
    for path in outputs.values():
        if path is not None:
            check_output(path, arguments.force)
    boxes = arguments.box or [pick_box(next(iter(read_frames(arguments.video))))]
    trackers = [MIOTracker(random_state=arguments.seed + i) for i in range(len(boxes))]
    total = count_frames(arguments.video)
    frames = printer.bar("tracking")(read_frames(arguments.video), total)
    tracks = track_many(frames, boxes, trackers)
    if arguments.out is not None:
        rate, again = frame_rate(arguments.video), read_frames(arguments.video)
        write_video(arguments.out, rate, again, tracks)
    # Frame from 0, number of the target from 1, its box, whether it was found, probability.
    boxed = [
        (i, number, [f"{v:g}" for v in one.boxes[i]], int(one.found[i]), f"{one.scores[i]:.4g}")
        for i in range(len(tracks[0].found))
        for number, one in enumerate(tracks, start=1)
    ]
    if arguments.csv is not None:
        header = ["frame", "target", "x", "y", "w", "h", "found", "probability"]
        _write_rows(arguments.csv, [header, *([i, n, *box, ok, p] for i, n, box, ok, p in boxed)])
    if arguments.mot is not None:
        # MOT Challenge's ten columns, frames and targets from 1; a lost target has no row, unless
        # all rows are wanted: then the seventh column, the probability, is to be thresholded.
        kept = [row for row in boxed if row[3] or arguments.mot_all]
        ten = [[i + 1, n, *box, p, -1, -1, -1] for i, n, box, _, p in kept]
        _write_rows(arguments.mot, ten)
    for path in outputs.values():
        if path is not None:
            printer.say(f"wrote {escape(str(path))}")
    n_frames = len(tracks[0].found)
    lost = [int(np.sum(~one.found)) for one in tracks]
    for number, count in enumerate(lost, start=1):
        name = f"target {number}" if len(tracks) > 1 else "the target"
        printer.say(f"{n_frames} frames; {name} was lost in {count} of them")
    targets = [
        {"boxes": one.boxes, "found": one.found, "probability": one.scores} for one in tracks
    ]
    return {"frames": n_frames, "lost": lost, "targets": targets}


def _write_rows(out: Path, rows: Iterable[Sequence[object]]) -> None:
    with new_file(out) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def pick_box(frame: Image) -> Box:
    """Let the user draw the target on the first frame; an error where there is no screen."""
    has_screen = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    if not has_screen:
        raise ValueError("there is no screen to draw the target on; pass --box X,Y,W,H.")
    import matplotlib.pyplot as plt
    from matplotlib.widgets import RectangleSelector

    figure, axes = plt.subplots()
    axes.imshow(frame[..., ::-1])
    axes.set(title="Draw a box around the target, then close the window", xticks=[], yticks=[])
    selector = RectangleSelector(axes, lambda *_: None, useblit=True, interactive=True)
    plt.show()
    left, right, top, bottom = (float(v) for v in selector.extents)
    plt.close(figure)
    if right - left < 1 or bottom - top < 1:
        raise ValueError("no box was drawn; draw one, or pass --box X,Y,W,H.")
    return left, top, right - left, bottom - top
