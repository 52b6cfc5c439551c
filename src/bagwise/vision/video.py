"""Reading frames from videos and folders, and writing the tracked video."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bagwise.core.arrays import Floats
from bagwise.vision.images import Image, list_images, quiet_opencv, read_image

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


def frame_rate(source: str | Path, default: float = 25.0) -> float:
    """Frames per second that a video file states; ``default`` for folders."""
    rate = default if Path(source).is_dir() else _video_property(source, "FPS")
    return rate if np.isfinite(rate) and rate > 0 else default


def count_frames(source: str | Path) -> int | None:
    """How many frames a folder holds or a video states; None where a video does not."""
    if Path(source).is_dir():
        return len(list_images(source))
    count = int(_video_property(source, "FRAME_COUNT"))
    return count if count > 0 else None


class VideoWriter:
    """Write frames with the target drawn; frames of another size are brought to the first's."""

    def __init__(self, path: str | Path, rate: float) -> None:
        self.path, self.rate = str(path), rate
        self._code = _CODES.get(Path(path).suffix.lower(), "")
        if not self._code:
            raise ValueError(f"the tracked video must end in .mp4 or .avi; got {self.path!r}.")
        self._writer: Any = None
        self._size: tuple[int, int] = (0, 0)

    def write(self, frame: Image, targets: Sequence[tuple[Floats, bool, float]]) -> None:
        """Append a frame with the box of each target: green where it is found, red where lost.

        A target is its box, whether it was found, and the probability of that. Several targets are
        numbered.
        """
        import cv2

        frame = np.ascontiguousarray(frame).copy()
        for number, (box, found, score) in enumerate(targets, start=1):
            x, y, w, h = (round(float(v)) for v in box)
            colour = (60, 200, 60) if found else (40, 40, 220)
            cv2.rectangle(frame, (x, y), (x + w, y + h), colour, 2)
            name = f"{number}: " if len(targets) > 1 else ""
            label = f"{name}{score:.2f}" if found else f"{name}lost {score:.2f}"
            place = (x, max(y - 4, 10))
            cv2.putText(frame, label, place, cv2.FONT_HERSHEY_SIMPLEX, 0.45, colour, 1)
        if self._writer is None:
            self._size = (frame.shape[1], frame.shape[0])
            code = cv2.VideoWriter.fourcc(*self._code)
            self._writer = cv2.VideoWriter(self.path, code, self.rate, self._size)
            if not self._writer.isOpened():
                raise ValueError(f"no encoder for {self.path!r} ({self._code}); try .avi.")
        if (frame.shape[1], frame.shape[0]) != self._size:
            frame = cv2.resize(frame, self._size)
        self._writer.write(frame)

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.release()
