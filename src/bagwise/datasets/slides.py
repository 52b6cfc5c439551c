"""Synthetic whole-slide images as files of patch features, with known truth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from sklearn.utils import Bunch, check_random_state

if TYPE_CHECKING:
    from bagwise.core.arrays import RandomState

# A patch lies in a latent space, in which a kind of tissue or of tumour is a cluster.
_LATENT, _TISSUES, _TUMOURS = 32, 12, 3
_APART, _STAIN, _NOISE = 1.5, 0.5, 0.6  # standard deviations


def make_slide_folder(
    root: str | Path,
    *,
    n_slides: int = 40,
    n_patches: tuple[int, int] = (2000, 8000),
    n_features: int = 768,
    rate: tuple[float, float] = (0.005, 0.05),
    random_state: RandomState = None,
) -> Bunch:
    """Write slides ``root/slide_000.h5``: features and coordinates of patches, tumour in half.

    Twelve kinds of tissue occur in shares that differ by slide, and each slide has a shift of its
    own, as from staining. Patches of a tumour belong to one of three further kinds.

    Parameters
    ----------
    root : path
        Written into; made where absent.
    n_slides : int, default=40
        Every second one holds tumour.
    n_patches : (int, int), default=(2000, 8000)
        Fewest and most patches of a slide.
    n_features : int, default=768
    rate : (float, float), default=(0.005, 0.05)
        Least and largest share of tumour patches in a slide with tumour; at least three patches.
    random_state : int, RandomState or None, default=None

    Returns
    -------
    Bunch with ``y`` (per slide, in order of file name) and ``instance_labels`` (per patch)

    Examples
    --------
    >>> import tempfile
    >>> from bagwise.datasets import make_slide_folder
    >>> truth = make_slide_folder(
    ...     tempfile.mkdtemp(), n_slides=4, n_patches=(50, 60), n_features=8, random_state=0
    ... )
    >>> truth.y.tolist(), int(truth.instance_labels.sum())
    ([0, 1, 0, 1], 6)
    """
    import h5py

    rng = check_random_state(random_state)
    spread = rng.standard_normal((_LATENT, n_features)) / np.sqrt(_LATENT)
    kinds = _APART * rng.standard_normal((_TISSUES + _TUMOURS, _LATENT))
    root = Path(root)
    root.mkdir(parents=True, exist_ok=True)
    y, truth = np.arange(n_slides) % 2, []
    for i, positive in enumerate(y):
        n = int(rng.randint(n_patches[0], n_patches[1] + 1))
        n_tumour = int(positive) * max(3, int(n * rng.uniform(*rate)))
        kind = rng.choice(_TISSUES, n, p=rng.dirichlet(np.ones(_TISSUES)))  # [n]
        where = rng.choice(n, n_tumour, replace=False)
        kind[where] = _TISSUES + rng.randint(_TUMOURS, size=n_tumour)
        stain = _STAIN * rng.standard_normal(_LATENT)
        z = kinds[kind] + rng.standard_normal((n, _LATENT)) + stain  # [n, latent]
        X = z @ spread + _NOISE * rng.standard_normal((n, n_features))
        with h5py.File(root / f"slide_{i:03d}.h5", "w") as file:
            file["features"] = X.astype(np.float16)
            file["coords"] = rng.randint(0, 100_000, (n, 2))
        truth.append((kind >= _TISSUES).astype(np.int64))
    return Bunch(y=y, instance_labels=np.concatenate(truth))
