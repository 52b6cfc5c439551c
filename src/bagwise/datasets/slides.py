"""Synthetic whole-slide images as files of patch features, with known truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.utils import Bunch, check_random_state

from bagwise.core.arrays import Ints, RandomState

# A patch lies in a latent space, in which a kind of tissue or of tumour is a cluster.
_LATENT, _TISSUES, _TUMOURS = 32, 12, 3
_APART, _STAIN, _NOISE = 1.5, 0.5, 0.6  # standard deviations
# Side of a slide and of a patch, in pixels at full resolution.
_SLIDE, _PATCH = 100_000, 512


def make_slides(
    n_slides: int = 40,
    patches: tuple[int, int] = (2000, 8000),
    n_features: int = 768,
    *,
    rate: tuple[float, float] = (0.005, 0.05),
    to: str | Path,
    random_state: RandomState = None,
) -> Bunch:
    """Write slides as patch encoders do, a file of features and coordinates each, with truth.

    Twelve kinds of tissue occur in shares that differ by slide, and each slide has a shift of its
    own, as from staining. The tumour of a slide is of one of three further kinds. Patches of one
    kind lie together.

    Parameters
    ----------
    n_slides : int, default=40
        Every second one holds tumour.
    patches : (int, int), default=(2000, 8000)
        Fewest and most patches of a slide.
    n_features : int, default=768
    rate : (float, float), default=(0.005, 0.05)
        Least and largest share of tumour patches in a slide with tumour; at least three patches.
    to : path
        Folder for ``slide_000.h5``, ..., and ``labels.csv``; made where absent.
    random_state : int, RandomState or None, default=None

    Returns
    -------
    Bunch with ``y`` (per slide, in order of file name) and ``instance_labels`` (per patch)

    Examples
    --------
    >>> import tempfile
    >>> from bagwise.datasets import make_slides
    >>> from bagwise.files import read_bags
    >>> folder = tempfile.mkdtemp()
    >>> truth = make_slides(4, (50, 60), 8, to=folder, random_state=0)
    >>> truth.y.tolist(), int(truth.instance_labels.sum()), len(read_bags(folder))
    ([0, 1, 0, 1], 6, 4)
    """
    import h5py

    rng = check_random_state(random_state)
    spread = rng.standard_normal((_LATENT, n_features)) / np.sqrt(_LATENT)
    kinds = _APART * rng.standard_normal((_TISSUES + _TUMOURS, _LATENT))
    folder = Path(to)
    folder.mkdir(parents=True, exist_ok=True)
    y, truth = np.arange(n_slides) % 2, []
    for i, positive in enumerate(y):
        n = int(rng.randint(patches[0], patches[1] + 1))
        n_tumour = int(positive) * max(3, int(n * rng.uniform(*rate)))
        kind = rng.choice(_TISSUES, n, p=rng.dirichlet(np.ones(_TISSUES)))  # [n]
        where = rng.choice(n, n_tumour, replace=False)
        kind[where] = _TISSUES + rng.randint(_TUMOURS)
        stain = _STAIN * rng.standard_normal(_LATENT)
        z = kinds[kind] + rng.standard_normal((n, _LATENT)) + stain  # [n, latent]
        X = z @ spread + _NOISE * rng.standard_normal((n, n_features))
        with h5py.File(folder / f"slide_{i:03d}.h5", "w") as file:
            file["features"] = X.astype(np.float16)
            corners = _together(kind, rng.randint(0, _SLIDE, (n, 2)))
            coords = file.create_dataset("coords", data=corners)
            coords.attrs["patch_size_level0"] = _PATCH
        truth.append((kind >= _TISSUES).astype(np.int64))
    rows = [f"slide_{i:03d},{'tumour' if positive else 'normal'}\n" for i, positive in enumerate(y)]
    (folder / "labels.csv").write_text("slide_id,label\n" + "".join(rows), encoding="utf-8")
    return Bunch(y=y, instance_labels=np.concatenate(truth))


def _together(kind: Ints, places: Ints) -> Ints:
    """Corners of patches on a square grid, those of one kind side by side, [n, 2].

    The tumours first, each kind takes the free squares nearest to the place of its first patch.
    """
    n = len(kind)
    side = int(np.ceil(np.sqrt(n)))
    grid = np.stack(np.divmod(np.arange(n), side), axis=1)
    free, square = np.arange(n), np.empty(n, dtype=np.int64)
    for k in np.unique(kind)[::-1]:
        members = np.flatnonzero(kind == k)
        centre = places[members[0]] * side / _SLIDE
        order = np.argsort(((grid[free] - centre) ** 2).sum(axis=1), kind="stable")
        square[members], free = free[order[: len(members)]], free[order[len(members) :]]
    return _PATCH * grid[square]
