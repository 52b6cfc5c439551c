"""Pooling networks as torch modules: the mean, the maximum, and the two streams of DSMIL.

Each has a ``backbone`` and a ``pool(h, offsets)`` like the attention network, so that the same
loop trains it.
"""

from __future__ import annotations

import torch
from torch import nn

from bagwise.core import segments


class PoolingNetwork(nn.Module):
    """Backbone, the mean or maximum of each feature over the bag, and a linear head."""

    def __init__(self, backbone: nn.Module, n_features: int, how: str) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(n_features, 1)
        self.how = how

    def pool(self, h: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Bag logits [B] and instance logits [N]: the head applied to each instance alone."""
        pooled = (segments.mean if self.how == "mean" else segments.max)(h.float(), offsets)
        return self.head(pooled)[:, 0], self.head(h.float())[:, 0]

    def forward(self, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Logit of each bag, [B]."""
        return self.pool(torch.relu(self.backbone(x)), offsets)[0]


class DualStreamNetwork(nn.Module):
    """An instance classifier, and attention by similarity to its best instance."""

    def __init__(self, backbone: nn.Module, n_features: int, attention_size: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.instance_head = nn.Linear(n_features, 1)
        self.query = nn.Linear(n_features, attention_size)
        self.value = nn.Linear(n_features, n_features)
        self.bag_head = nn.Linear(n_features, 1)

    def pool(self, h: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Bag logits [B], the mean of both streams, and instance logits [N] of the first."""
        h = h.float()
        logits = self.instance_head(h)[:, 0]
        best = segments.argmax(logits.detach().cpu().numpy(), offsets.cpu().numpy())
        q = self.query(h)
        critical = q[torch.as_tensor(best, device=q.device)]  # [B, attention_size]
        similarity = (q * segments.spread(critical, offsets)).sum(1) / q.shape[1] ** 0.5
        weights = segments.softmax(similarity, offsets)
        z = segments.sum(weights[:, None] * self.value(h), offsets)
        bag = (segments.max(logits, offsets) + self.bag_head(z)[:, 0]) / 2
        return bag, logits

    def forward(self, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Logit of each bag, [B]."""
        return self.pool(torch.relu(self.backbone(x)), offsets)[0]
