"""Public sets from their public homes, checked by what they hold.

A repository's archive is packed anew by its host now and then, so its own checksum may change
while the data does not. The arrays that are read from it are checked instead.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Source(NamedTuple):
    """Where a set is public: an archive, the folder in it, and the digest of its arrays."""

    url: str
    folder: str
    digest: str


# Sets that can be had from their public home exactly as they were measured.
SOURCES = {
    "tracking/david": Source(
        "https://github.com/whluo/MILTracker_Matlab_Version/archive/ec96056.zip",
        "david",
        "b08d480a0ac8cd9e3c27cc71c8d9034d8e835d35cb8c61d9ab953b02e42bb8ed",
    ),
    "tracking/girl": Source(
        "https://github.com/masa-nudt/KCFDP/archive/224bc33a65ee05e99b347ada33c30b9ac28eab8f.zip",
        "Girl",
        "d4325ee3e54309c1729d6a9788f2ad894c929deaa4846e571ca6e2782557d73d",
    ),
    "detection/bccd": Source(
        "https://github.com/Shenggan/BCCD_Dataset/archive/d272fb1.zip",
        "BCCD",
        "52fd3c86a5937e319578168d317615f63782fd92504f113ecb5e7e4b9c0f232f",
    ),
}
# What is compared: labels and encoded pictures to the byte, decoded frames by their shape, since
# decoders round differently.
_COMPARED = ("jpeg", "box_xywh", "box_class", "box_image", "gt")


def content_digest(arrays: dict[str, Any]) -> str:
    """A checksum of a set's arrays that does not depend on how they are stored.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.datasets.download import content_digest
    >>> one = content_digest({"gt": np.zeros((3, 4), np.float32)})
    >>> one == content_digest({"gt": np.zeros((3, 4))}), one == content_digest({"gt": np.ones(3)})
    (True, False)
    """
    digest = hashlib.sha256()
    for name in _COMPARED:
        if name in arrays:
            values = np.asarray(arrays[name])
            kind = np.uint8 if name == "jpeg" else np.float64
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(values, dtype=kind).tobytes())
    if "frames" in arrays:
        digest.update(repr(tuple(np.shape(arrays["frames"]))).encode())
    return digest.hexdigest()


def download(name: str, home: Path, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Fetch a set into the data home as a folder, and return its arrays.

    Parameters
    ----------
    name : str
        One of ``SOURCES``.
    home : path
        The data home; the set becomes its folder ``name``.
    read : callable
        Reads the arrays from the folder.
    """
    import pooch

    source = SOURCES[name]
    place = home / ".downloads" / name.replace("/", "-")
    try:
        pooch.retrieve(
            source.url, known_hash=None, fname="set.zip", path=place, processor=pooch.Unzip()
        )
        (folder,) = (place / "set.zip.unzip").glob(f"*/{source.folder}")
        arrays = read(folder)
        content = content_digest(arrays)
        if content != source.digest:
            raise ValueError(
                f"{source.url} does not hold the set {name!r} that was published: the digest of "
                f"its arrays is {content}, expected {source.digest}. Nothing was kept."
            )
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder, home / name)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return arrays
