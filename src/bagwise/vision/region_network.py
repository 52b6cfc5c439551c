"""Proposals and features of one network, as in section 3.3 of the VGPMIL paper.

The paper feeds images to the region proposal network of a Faster R-CNN that was trained on other
data, and describes its best proposals by the fully connected layer that follows their pooling. Its
network is a VGG-16 trained on COCO in Caffe, with 4,096 numbers per region; torchvision's networks
of the same kind take its place here (ResNet-50 has 1,024). Nothing is downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils._param_validation import HasMethods

from bagwise.core.arrays import Floats, RandomState, Reals
from bagwise.models.parameters import AT_LEAST_1, HasParameters, parameter
from bagwise.models.presets import preset
from bagwise.vision.images import Image, ImageSource, clip_boxes, read_image
from bagwise.vision.networks import read_state
from bagwise.vision.regions import WeakDetector

if TYPE_CHECKING:
    from torch import nn

# Section 4.3 of [Haussmann2017]: regions of an image, and principal components of their features.
REGIONS, COMPONENTS = 50, 500


def load_region_network(weights: str | Path, name: str = "fasterrcnn_resnet50_fpn") -> nn.Module:
    """A network of ``torchvision.models.detection`` with the weights of a local file.

    Parameters
    ----------
    weights : path
        A state dict, as torchvision publishes it; it is read without unpickling code.
    name : str, default="fasterrcnn_resnet50_fpn"
        A Faster R-CNN of torchvision.

    Examples
    --------
    >>> from bagwise.vision import load_region_network
    >>> network = load_region_network("fasterrcnn_resnet50_fpn_coco.pth")  # doctest: +SKIP
    """
    try:
        from torchvision.models import detection
    except ImportError as error:
        message = f"{name} needs torchvision: pip install '.[torchvision]' in a checkout."
        raise ImportError(message) from error
    network: nn.Module = getattr(detection, name)(weights=None, weights_backbone=None)
    network.load_state_dict(read_state(weights))
    return network


@dataclass(kw_only=True, eq=False, repr=False)
class RegionNetwork(HasParameters):
    """Propose and describe regions by a Faster R-CNN; proposals and features of `WeakDetector`.

    Parameters
    ----------
    network : torch.nn.Module or None, default=None
        With the parts of torchvision's Faster R-CNN: ``transform``, ``backbone``, ``rpn`` and
        ``roi_heads`` with ``box_roi_pool`` and ``box_head``; see `load_region_network`.
    n_boxes : int, default=50
        The best proposals of an image that are kept, 50 in the paper.

    See Also
    --------
    paper_detector : The whole pipeline.

    References
    ----------
    [Haussmann2017]_

    Examples
    --------
    >>> from bagwise.vision import RegionNetwork, load_region_network
    >>> network = load_region_network("fasterrcnn_resnet50_fpn_coco.pth")  # doctest: +SKIP
    >>> RegionNetwork(network=network).propose("photograph.jpg").shape  # doctest: +SKIP
    (50, 4)
    """

    network: nn.Module = parameter(None, HasMethods(["state_dict"]))
    n_boxes: int = parameter(REGIONS, AT_LEAST_1)

    def propose(self, image: ImageSource, key: object = None) -> Floats:
        """Boxes of one image, best first, [k, 4]; the whole image where there are none."""
        import torch

        self._validate_params()
        image = read_image(image)
        network = self.network.eval()
        with torch.inference_mode():
            images, maps = _start(network, image)
            corners = network.rpn(images, maps)[0][0][: self.n_boxes].cpu().numpy()
        corners = corners * _scale(image, images.image_sizes[0])
        boxes = np.hstack([corners[:, :2], corners[:, 2:] - corners[:, :2]])
        boxes = clip_boxes(boxes, *image.shape[:2])
        if len(boxes) == 0:
            return np.array([[0.0, 0.0, image.shape[1], image.shape[0]]])
        return boxes

    def extract(self, image: ImageSource, boxes: ArrayLike) -> Reals:
        """What the layer after the pooling says of each box, [k, D]."""
        import torch

        self._validate_params()
        image = read_image(image)
        boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
        corners = np.hstack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]])
        network = self.network.eval()
        with torch.inference_mode():
            images, maps = _start(network, image)
            scaled = torch.from_numpy(corners / _scale(image, images.image_sizes[0])).float()
            heads = network.roi_heads
            pooled = heads.box_roi_pool(maps, [scaled], images.image_sizes)
            features: Reals = heads.box_head(pooled).flatten(1).cpu().numpy()
        return features


def _start(network: nn.Module, image: Image) -> tuple[Any, Any]:
    """The resized image as torchvision wraps it, and the maps of the backbone."""
    import torch

    pixels = torch.from_numpy(image.astype(np.float32) / 255).permute(2, 0, 1)
    images, _ = network.transform([pixels])
    return images, network.backbone(images.tensors)


def _scale(image: Image, resized: tuple[int, int]) -> Floats:
    """Pixels of the image per pixel of its resized copy, for x, y, x, y."""
    height, width = (a / b for a, b in zip(image.shape, resized, strict=False))
    return np.array([width, height, width, height])


def paper_detector(network: nn.Module, *, random_state: RandomState = None) -> WeakDetector:
    """The detector of section 3.3 of the VGPMIL paper, with the settings of its section 4.3.

    The 50 best proposals of a Faster R-CNN, the features of the same network reduced to 500
    principal components, and `VGPMIL` with the paper's updates and 50 inducing points. The paper
    does not say at which overlap boxes are suppressed; 0.3 is ours.

    Parameters
    ----------
    network : torch.nn.Module
        See `RegionNetwork`.
    random_state : int, RandomState or None, default=None

    Examples
    --------
    >>> from bagwise.vision import load_region_network, paper_detector
    >>> network = load_region_network("fasterrcnn_resnet50_fpn_coco.pth")  # doctest: +SKIP
    >>> detector = paper_detector(network, random_state=0)  # doctest: +SKIP
    """
    regions = RegionNetwork(network=network)
    return WeakDetector(
        proposals=regions,
        features=regions,
        pca=COMPONENTS,
        classifier=preset("vgpmil-paper"),
        random_state=random_state,
    )
