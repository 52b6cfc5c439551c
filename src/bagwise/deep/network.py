"""Networks over bags as torch modules, their training loop and their inference, as functions.

A backbone gives features h_n of every instance, rectified; a network pools those of a bag. In
section 6.3 of the psi-VGPMIL paper gated attention gives weights a_n that sum to one in each bag,
and a linear head scores z_b = sum_n a_n h_n.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.functional import batch_norm, binary_cross_entropy_with_logits

from bagwise.core import segments
from bagwise.core.arrays import Bools, Column, Floats, Ints, Reals, tensor_of

# Instances pushed through the backbone at a time when no gradient is needed.
_CHUNK = 4096


class Standardise(nn.Module):
    """Shift and scale inputs by the training instances: per channel, or per feature."""

    def __init__(self, mean: torch.Tensor, std: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Standardised inputs, shape kept."""
        return (x - self.mean) / self.std


# Weight of the newest batch in the running statistics.
_MOMENTUM = 0.1


class _BatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation of features [N, D] or images [N, C, H, W], for batches of any size.

    The first batches count alike in the running statistics, so that these can be trusted after
    few of them; one value per channel is normalised by them, having no spread of its own.
    """

    num_batches_tracked: torch.Tensor

    def _check_input_dim(self, input: torch.Tensor) -> None:
        """Every shape with channels second is taken."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalised inputs, shape kept."""
        if self.training and x.numel() == x.shape[1]:
            return batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias)
        self.momentum = max(_MOMENTUM, 1 / (1 + int(self.num_batches_tracked)))
        return super().forward(x)


def small_cnn(channels: int, n_features: int) -> nn.Module:
    """Two 3 x 3 convolutions with pooling, then a linear layer: quick on a CPU.

    Where instances differ in a few pixels only (a lesion in a head), what all of them share
    would drown the difference: each place of the last map is normalised over instances, which
    takes it away. Features are normalised too, so that none is zero for every instance after
    rectification. Maxima are taken first: fewer values are then left to normalise.
    """
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1, bias=False),
        nn.MaxPool2d(2, ceil_mode=True),
        _BatchNorm(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        _BatchNorm(32 * 16),
        nn.ReLU(),
        nn.Linear(32 * 16, n_features),
        _BatchNorm(n_features),
    )


class BagNetwork(nn.Module, ABC):
    """A backbone, and a way to pool its features over the bag, which a subclass gives."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Features h_n of each instance, [N, n_features]."""
        return torch.relu(self.backbone(x))

    @abstractmethod
    def pool(self, h: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Bag logits [B], and one number per instance [N]."""

    def forward(self, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Logit of each bag, [B]."""
        return self.pool(self.features(x), offsets)[0]


class AttentionNetwork(BagNetwork):
    """Gated attention pooling and a linear head."""

    def __init__(self, backbone: nn.Module, n_features: int, attention_size: int) -> None:
        super().__init__(backbone)
        self.value = nn.Linear(n_features, attention_size)
        self.gate = nn.Linear(n_features, attention_size)
        self.score = nn.Linear(attention_size, 1, bias=False)
        self.head = nn.Linear(n_features, 1)

    def attention_logits(self, h: torch.Tensor) -> torch.Tensor:
        """Unnormalised attention of each instance, w (tanh(V h_n) * sigmoid(U h_n)), [N]."""
        return self.score(torch.tanh(self.value(h)) * torch.sigmoid(self.gate(h)))[:, 0]

    def pool(self, h: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Bag logits [B] and attention weights [N]."""
        weights = segments.softmax(self.attention_logits(h).float(), offsets)  # a_n, [N]
        z = segments.sum(weights[:, None] * h.float(), offsets)  # z_b, [B, n_features]
        return self.head(z)[:, 0], weights


class PoolingNetwork(BagNetwork):
    """The mean or maximum of each feature over the bag, and a linear head."""

    def __init__(self, backbone: nn.Module, n_features: int, statistic: str) -> None:
        super().__init__(backbone)
        self.head = nn.Linear(n_features, 1)
        self.over_bag = segments.mean if statistic == "mean" else segments.max

    def pool(self, h: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Bag logits [B] and instance logits [N]: the head applied to each instance alone."""
        return self.head(self.over_bag(h.float(), offsets))[:, 0], self.head(h.float())[:, 0]


class DualStreamNetwork(BagNetwork):
    """An instance classifier, and attention by similarity to its best instance."""

    def __init__(self, backbone: nn.Module, n_features: int, attention_size: int) -> None:
        super().__init__(backbone)
        self.instance_head = nn.Linear(n_features, 1)
        self.query = nn.Linear(n_features, attention_size)
        self.value = nn.Linear(n_features, n_features)
        self.bag_head = nn.Linear(n_features, 1)

    def pool(self, h: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Bag logits [B], the mean of both streams, and instance logits [N] of the first."""
        h = h.float()
        logits = self.instance_head(h)[:, 0]
        # Which instance is best has no gradient.
        best = segments.argmax(logits.detach().cpu().numpy(), offsets.cpu().numpy())
        q = self.query(h)
        critical = q[torch.as_tensor(best, device=q.device)]  # [B, attention_size]
        # Scaled as in attention between queries and keys, by the root of their length.
        similarity = (q * segments.spread(critical, offsets)).sum(1) / q.shape[1] ** 0.5
        weights = segments.softmax(similarity, offsets)
        z = segments.sum(weights[:, None] * self.value(h), offsets)  # [B, n_features]
        bag = (segments.max(logits, offsets) + self.bag_head(z)[:, 0]) / 2
        return bag, logits


def as_images(X: Reals, image_shape: tuple[int, ...] | None) -> Reals:
    """Instances as the network sees them: vectors [N, D] or images [N, C, H, W]."""
    X = np.asarray(X, dtype=np.float32, order="C")
    if image_shape is not None:
        X = X.reshape(len(X), *image_shape)
    # Not X[:, None], whose strides make torch choose other kernels.
    return X.reshape(len(X), 1, *X.shape[1:]) if X.ndim == 3 else X


def build_backbone(
    example: Reals,
    backbone: str | torch.nn.Module,
    n_features: int,
    stats: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> nn.Module:
    """What turns instances shaped like ``example`` into features, standardising first."""
    if stats is None:  # of a trained network, whose weights bring them
        shape = (1, example.shape[1], *(1,) * (example.ndim - 2))
        stats = torch.zeros(shape), torch.ones(shape)
    if isinstance(backbone, nn.Module):
        body: nn.Module = copy.deepcopy(backbone)
        with torch.no_grad():
            out = body.eval()(tensor_of(example[:1]))
        if out.ndim != 2:
            raise ValueError(
                f"the backbone must map instances to a matrix; for input {example[:1].shape} it "
                f"gave shape {tuple(out.shape)}."
            )
        body = nn.Sequential(body, nn.Linear(out.shape[1], n_features))
    elif example.ndim == 4:
        body = small_cnn(example.shape[1], n_features)
    else:
        body = nn.Sequential(
            nn.Linear(example.shape[1], 128), nn.ReLU(), nn.Linear(128, n_features)
        )
    return nn.Sequential(Standardise(*stats), body)


def input_stats(X: Reals) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation per channel or feature; constant ones are left alone."""
    axes = (0, 2, 3) if X.ndim == 4 else (0,)
    mean = X.mean(axis=axes, keepdims=True, dtype=np.float64)
    std = X.std(axis=axes, keepdims=True, dtype=np.float64)
    std[std == 0] = 1.0
    return torch.as_tensor(mean, dtype=torch.float32), torch.as_tensor(std, dtype=torch.float32)


class NetworkTraining(NamedTuple):
    """A network and the bags that it is trained on; ``settings`` are the estimator's parameters."""

    network: BagNetwork
    X: Reals
    offsets: Ints
    y: Column
    held_out: Bools  # [B] bags used for early stopping only
    device: str
    settings: dict[str, Any]

    def run(self, seed: int, report: Callable[[int, str], None]) -> list[tuple[float, float]]:
        """Minimise the cross-entropy of bag labels; keep the epoch best on held-out bags.

        Returns the training and the validation loss of each epoch.
        """
        network, settings = self.network.to(self.device), self.settings
        optimiser = torch.optim.AdamW(
            network.parameters(),
            lr=settings["learning_rate"],
            weight_decay=settings["weight_decay"],
        )
        shuffler = np.random.default_rng(seed)
        train_bags, valid_bags = np.flatnonzero(~self.held_out), np.flatnonzero(self.held_out)
        watched = valid_bags if len(valid_bags) else train_bags
        history: list[tuple[float, float]] = []
        best, best_loss, waited = copy.deepcopy(network.state_dict()), np.inf, 0
        for epoch in range(settings["max_epochs"]):
            network.train()
            order, total = shuffler.permutation(train_bags), 0.0
            for x, local, target in self.batches(order):
                optimiser.zero_grad()
                precise = not settings["mixed_precision"]
                with torch.autocast(self.device, torch.bfloat16, enabled=not precise):
                    h = network.features(x)
                logits, _ = network.pool(h.float(), local)
                batch_loss = binary_cross_entropy_with_logits(logits, target)
                batch_loss.backward()
                optimiser.step()
                total += float(batch_loss.detach()) * len(target)
            loss, valid = total / len(order), self.loss(watched)
            history.append((loss, valid))
            report(epoch + 1, f"loss {loss:.3f}, held out {valid:.3f}")
            if valid < best_loss - 1e-5:
                best, best_loss, waited = copy.deepcopy(network.state_dict()), valid, 0
            else:
                waited += 1
                if waited >= settings["patience"]:
                    break
        network.load_state_dict(best)
        network.eval()
        return history

    def batches(self, order: Ints) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Ragged mini-batches of bags: instances, their offsets, and the labels."""
        for start in range(0, len(order), self.settings["batch_size"]):
            chosen = order[start : start + self.settings["batch_size"]]
            rows, local = segments.take(self.offsets, chosen)
            target = torch.as_tensor(self.y[chosen], dtype=torch.float32)
            x, offsets = torch.as_tensor(self.X[rows]), torch.as_tensor(local)
            yield x.to(self.device), offsets.to(self.device), target.to(self.device)

    @torch.no_grad()
    def loss(self, order: Ints) -> float:
        """Mean cross-entropy of some bags."""
        self.network.eval()
        losses = (
            binary_cross_entropy_with_logits(self.network(x, local), target, reduction="sum")
            for x, local, target in self.batches(order)
        )
        return sum(map(float, losses)) / len(order)


@torch.no_grad()
def instance_features(network: BagNetwork, X: Reals, device: str) -> torch.Tensor:
    """Features h_n of each instance, [N, n_features], in chunks."""
    network = network.to(device).eval()
    parts = [
        network.features(tensor_of(X[i : i + _CHUNK]).to(device)).float().cpu()
        for i in range(0, len(X), _CHUNK)
    ]
    return torch.cat(parts)


@torch.no_grad()
def pool(network: BagNetwork, h: torch.Tensor, offsets: Ints) -> tuple[Floats, Floats]:
    """Bag logits [B] and one number per instance [N] from their features, on the CPU."""
    bag, instance = network.to("cpu").eval().pool(h, torch.as_tensor(np.array(offsets)))
    return bag.numpy().astype(np.float64), instance.numpy().astype(np.float64)
