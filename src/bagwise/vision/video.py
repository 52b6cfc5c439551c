"""Reading frames from videos and folders, and writing the tracked video."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bagwise.files import new_file
from bagwise.vision.images import Image, list_images, quiet_opencv, read_image

if TYPE_CHECKING:
    from bagwise.vision.tracking import Track

_CODES = {".mp4": "mp4v", ".avi": "MJPG"}  # encoding by the file's ending


def read_frames(source: str | Path) -> Iterator[Image]:
    """Frames of a video file or of a folder of images (sorted by name), BGR uint8.

    A video that cannot be opened or holds no frame is an error.
    """
    source = Path(source)
    if source.is_dir():
        for path in list_images(source):
            yield np.ascontiguousarray(read_image(path)[..., ::-1])
        return
    if not source.is_file():
        raise ValueError(f"{str(source)!r} is neither a video file nor a folder of frames.")
    import cv2

    with quiet_opencv():  # the error below says it, with the file's name
        capture = cv2.VideoCapture(str(source))
    ok, frame = capture.read()
    empty = not ok
    try:
        while ok:
            yield frame
            ok, frame = capture.read()
    finally:
        capture.release()
    if empty:
        raise ValueError(f"video {str(source)!r} is empty, corrupt, or of an unknown kind.")


def _video_property(source: str | Path, what: str) -> float:
    """OpenCV's ``CAP_PROP_<what>`` of a video file."""
    import cv2

    capture = cv2.VideoCapture(str(source))
    value = float(capture.get(getattr(cv2, f"CAP_PROP_{what}")))
    capture.release()
    return value


def frame_rate(source: str | Path) -> float:
    """Frames per second that a video file states; 25 for folders."""
    rate = 25.0 if Path(source).is_dir() else _video_property(source, "FPS")
    return rate if np.isfinite(rate) and rate > 0 else 25.0


def count_frames(source: str | Path) -> int | None:
    """How many frames a folder holds or a video states; None where a video does not."""
    if Path(source).is_dir():
        return len(list_images(source))
    count = int(_video_property(source, "FRAME_COUNT"))
    return count if count > 0 else None


def write_video(path: Path, rate: float, frames: Iterable[Image], tracks: Sequence[Track]) -> None:
    """Write frames with the box of each target: green where it is found, red where lost.

    Several targets are numbered. Frames of another size are brought to that of the first.
    """
    import cv2

    code = _CODES.get(path.suffix.lower())
    if code is None:
        raise ValueError(f"the tracked video must end in .mp4 or .avi; got {str(path)!r}.")
    with new_file(path) as draft:
        temporary = draft.with_suffix(path.suffix)  # the encoder goes by the ending
        writer = cv2.VideoWriter()
        try:
            for i, frame in enumerate(frames):
                drawn = _draw_targets(frame, i, tracks)
                if i == 0:
                    size = (frame.shape[1], frame.shape[0])
                    fourcc = cv2.VideoWriter.fourcc(*code)
                    if not writer.open(str(temporary), fourcc, rate, size):
                        raise ValueError(f"no encoder for {str(path)!r} ({code}); try .avi.")
                writer.write(drawn if drawn.shape[1::-1] == size else cv2.resize(drawn, size))
            writer.release()
            temporary.replace(draft)
        finally:
            writer.release()
            temporary.unlink(missing_ok=True)


def _draw_targets(frame: Image, i: int, tracks: Sequence[Track]) -> Image:
    """Frame number ``i`` with a box and a probability for each target."""
    import cv2

    frame = np.ascontiguousarray(frame).copy()
    for number, one in enumerate(tracks, start=1):
        x, y, w, h = (round(float(v)) for v in one.boxes[i])
        colour = (60, 200, 60) if one.found[i] else (40, 40, 220)
        cv2.rectangle(frame, (x, y), (x + w, y + h), colour, 2)
        name = f"{number}: " if len(tracks) > 1 else ""
        label = f"{name}{'' if one.found[i] else 'lost '}{one.scores[i]:.2f}"
        place = (x, max(y - 4, 10))
        cv2.putText(frame, label, place, cv2.FONT_HERSHEY_SIMPLEX, 0.45, colour, 1)
    return frame
