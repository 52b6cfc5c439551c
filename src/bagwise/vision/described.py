"""Described photographs: the cells of a grid, saliency, its components, and proposed boxes.

Describing an image is the slow part of detection; what is learned from descriptions is in
`bagwise.vision.photographs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bagwise.bags import Bags
from bagwise.core.arrays import Floats
from bagwise.vision import saliency
from bagwise.vision.features import RegionFeatures
from bagwise.vision.networks import have_backbone
from bagwise.vision.proposals import Proposals
from bagwise.vision.saliency import Components, find_components

# What describes photographs best, where it is installed.
_BACKBONE = "efficientnet-lite2"
# Longest side of the maps that boxes are judged on, in map cells.
_MAP_SIDE = 160
# Simple boxes that any detector should beat, by name: the share of each side that they take.
SMALL_FRAME = "centre 60 %"
FRAMES = {"whole image": 1.0, "centre 80 %": 0.8, SMALL_FRAME: 0.6}
# The level of saliency whose largest component is the box of saliency alone.
_SALIENT_LEVEL = 1


class Photographs:
    """Described photographs: bags of cells, and the boxes proposed in each image.

    Immutable; ``photographs[rows]`` takes some of them, as with `Bags`.
    """

    def __init__(
        self,
        cells: Bags,
        grids: NDArray[np.int64],
        sizes: NDArray[np.int64],
        boxes: Sequence[NDArray[np.float64]],
        components: Sequence[Components],
        centred: bool = False,
    ) -> None:
        self.cells = cells  # with a column "salient", row by row
        self.grids = grids  # [B, 2] rows and columns of cells
        self.sizes = sizes  # [B, 2] height and width of the image
        self.boxes = tuple(boxes)
        self.components = tuple(components)
        self.centred = centred  # saliency is little more than a prior for the middle

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, rows: Any) -> Photographs:
        some = np.arange(len(self))[rows].reshape(-1)
        return Photographs(
            self.cells[some],
            self.grids[some],
            self.sizes[some],
            [self.boxes[i] for i in some],
            [self.components[i] for i in some],
            self.centred,
        )

    @property
    def ids(self) -> Any:
        """Names of the images."""
        return self.cells.ids

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where the boxes of each image begin among all boxes, [B + 1]."""
        return np.concatenate([[0], np.cumsum([len(b) for b in self.boxes])])

    def map_of(self, i: int, values: Any) -> tuple[NDArray[np.float32], float]:
        """Values of image ``i``'s cells as a map of pixels, and its cells per image pixel."""
        import cv2

        height, width = self.sizes[i]
        factor = min(1.0, _MAP_SIDE / max(height, width))
        shape = (max(round(width * factor), 1), max(round(height * factor), 1))
        grid = np.asarray(values, dtype=np.float32).reshape(tuple(self.grids[i]))
        return cv2.resize(grid, shape, interpolation=cv2.INTER_LINEAR), factor


def frames(height: int, width: int) -> NDArray[np.float64]:
    """The whole image and boxes in its middle, in the order of `FRAMES`."""
    share = np.array(list(FRAMES.values()))[:, None]
    size = np.array([[width, height]])
    return np.hstack([(1 - share) / 2 * size, share * size])


def cell_means(saliency: NDArray[np.float32], grid: tuple[int, int]) -> NDArray[np.float64]:
    """Mean saliency of each cell of a grid, row by row."""
    import cv2

    rows, columns = grid
    small = cv2.resize(saliency, (columns, rows), interpolation=cv2.INTER_AREA)
    return np.asarray(small, dtype=np.float64).ravel()


def salient_box(photos: Photographs, i: int) -> NDArray[np.float64]:
    """The box around the largest salient component of image ``i``, or the whole image, [4]."""
    components = photos.components[i]
    some = components.boxes[components.level == _SALIENT_LEVEL]
    height, width = photos.sizes[i]
    return some[0] if len(some) else np.array([0.0, 0.0, width, height])


def best_backbone() -> str:
    """What describes photographs best of what is installed."""
    return _BACKBONE if have_backbone(_BACKBONE) else "hog"


def photograph_proposals() -> Proposals:
    """What proposes boxes in photographs unless something else is asked for."""
    return Proposals(n_boxes=250, max_side=224, quality="fast", min_side=0.04, max_area=1.0)


class Photograph(NamedTuple):
    """One described image."""

    cells: NDArray[np.float32]  # [n, D]
    salient: Floats  # [n] mean saliency of each cell
    grid: tuple[int, int]  # rows and columns of cells
    size: tuple[int, int]  # height and width of the image
    boxes: Floats  # [k, 4]
    components: Components


def describe_photograph(
    image: NDArray[np.uint8],
    key: object,
    proposals: Proposals,
    features: RegionFeatures,
    wholeness: str,
) -> Photograph:
    """Cells, saliency and boxes of one RGB image: frames, salient components and proposals."""
    height, width = image.shape[:2]
    salient = saliency.saliency_map(image, wholeness)
    components = find_components(salient, height, width)
    proposed = proposals.propose(image, key)
    boxes = np.concatenate([frames(height, width), components.boxes, proposed])
    first = np.unique(boxes.round(), axis=0, return_index=True)[1]
    cells, grid = features.extract_cells(image)
    means = cell_means(salient, grid)
    return Photograph(cells, means, grid, (height, width), boxes[np.sort(first)], components)


def join_photographs(ids: Sequence[str], parts: Sequence[Photograph], centred: bool) -> Photographs:
    """Described images as one value."""
    offsets = np.concatenate([[0], np.cumsum([len(part.cells) for part in parts])])
    columns = {"salient": np.concatenate([part.salient for part in parts])}
    cells = Bags(
        np.concatenate([part.cells for part in parts]), offsets, list(ids), columns=columns
    )
    return Photographs(
        cells,
        np.asarray([part.grid for part in parts]),
        np.asarray([part.size for part in parts]),
        [part.boxes for part in parts],
        [part.components for part in parts],
        centred,
    )
