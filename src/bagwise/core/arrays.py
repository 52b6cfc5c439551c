"""The few elementwise functions that NumPy and torch spell differently.

Everything else is written against `namespace`. A torch tensor stays on its device and keeps its
precision; the NumPy path is plain NumPy in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import is_torch_array
from scipy.special import expit as _expit

Array = Any


def namespace(x: Array) -> Any:
    """``torch`` for tensors, else ``numpy``."""
    if is_torch_array(x):
        import torch

        return torch
    return np


def as_float(x: Array) -> Array:
    """Floating point: float64 in NumPy; in torch what is floating already, else float32."""
    if is_torch_array(x):
        return x if x.is_floating_point() else x.float()
    return np.asarray(x, dtype=np.float64)


def expit(x: Array) -> Array:
    """Logistic sigmoid."""
    return x.sigmoid() if is_torch_array(x) else _expit(x)


def softplus(x: Array) -> Array:
    """``log(1 + exp(x))`` without overflow."""
    if is_torch_array(x):
        import torch

        return torch.logaddexp(x, torch.zeros_like(x))
    return np.logaddexp(0.0, x)


def at_least(x: Array, low: float) -> Array:
    """Elementwise maximum with a number."""
    return x.clamp(min=low) if is_torch_array(x) else np.maximum(x, low)


def at_most(x: Array, high: float) -> Array:
    """Elementwise minimum with a number."""
    return x.clamp(max=high) if is_torch_array(x) else np.minimum(x, high)


def exp_over(x: Array) -> Array:
    """``exp(x)`` written over x."""
    return x.exp_() if is_torch_array(x) else np.exp(x, out=x)


def copy(x: Array) -> Array:
    """A copy on the same device."""
    return x.clone() if is_torch_array(x) else x.copy()


def dot(a: Array, b: Array) -> float:
    """``sum(a * b)`` of two matrices; in NumPy the sum is made in float64."""
    if is_torch_array(a):
        return float((a * b).sum())
    return float(np.einsum("nm,nm->n", a, b).sum(dtype=np.float64))


def to_numpy(x: Array) -> Array:
    """A NumPy array in float64 on the host."""
    if is_torch_array(x):
        x = x.detach().cpu().numpy()
    return np.asarray(x, dtype=np.float64)


def concatenate(parts: Any) -> Array:
    """Join along the first axis."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    if is_torch_array(parts[0]):
        import torch

        return torch.cat(parts)
    return np.concatenate(parts)


def host_rows(X: Array, rows: Array) -> Array:
    """Chosen rows as a NumPy array in float64, from wherever they live."""
    if is_torch_array(X):
        import torch

        X, rows = X[torch.as_tensor(rows, device=X.device)], slice(None)
    return to_numpy(X[rows])
