"""Sets kept in a data home: newsgroups, MNIST bags, tracking and detection.

The data home is the ``data_home`` argument, else the ``BAGWISE_DATA`` environment variable, else
a folder in the user's cache. Files are verified by checksum before they are used; sets that are
public as they were measured are downloaded into the data home when they are first asked for.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.decomposition import PCA
from sklearn.utils import Bunch, check_random_state

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Column, RandomState
from bagwise.datasets.bundled import bags_of_digits
from bagwise.datasets.download import SOURCES, download
from bagwise.datasets.generators import as_result
from bagwise.datasets.layouts import read_annotated, read_sequence
from bagwise.datasets.registry import ADDRESSES, CHECKSUMS

NEWSGROUPS, TRACKING, DETECTION = (
    tuple(Path(name).stem for name in CHECKSUMS if name.startswith(f"{folder}/"))
    for folder in ("newsgroups", "tracking", "detection")
)


def data_home(path: str | os.PathLike[str] | None = None) -> Path:
    """Folder in which fetched sets are looked up.

    Examples
    --------
    >>> from bagwise.datasets import data_home
    >>> data_home("my-data").name
    'my-data'
    """
    if path is None:
        path = os.environ.get("BAGWISE_DATA")
    if path is None:
        import pooch

        path = pooch.os_cache("bagwise")
    return Path(path).expanduser()


def _read(name: str, home: Path) -> dict[str, Column] | None:
    """Arrays of a verified file of the data home, or None where it is absent."""
    path = home / name
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != CHECKSUMS[name]:
        raise ValueError(
            f"{path} is corrupt: its sha256 is {digest}, expected {CHECKSUMS[name]}. "
            "Replace the file, or remove it."
        )
    with np.load(path, allow_pickle=False) as stored:
        return {key: stored[key] for key in stored.files}


def _require(
    name: str, home: Path, read_folder: Callable[[Path], dict[str, Column]]
) -> dict[str, Column]:
    """The arrays of ``NAME.npz``, of the public layout in the folder ``NAME/``, or downloaded."""
    arrays = _read(f"{name}.npz", home)
    if arrays is None and (home / name).is_dir():
        arrays = read_folder(home / name)
    reason = ""
    if arrays is None and name in SOURCES:
        try:
            arrays = download(name, home, read_folder)
        except OSError as error:
            reason = f" It could not be downloaded ({str(error).splitlines()[0]})."
    if arrays is None:
        raise FileNotFoundError(
            f"{name}.npz is not in the data home {home}.{reason} Put the file there, or point "
            f"BAGWISE_DATA or data_home= at the folder that has it. The set is public at "
            f"{ADDRESSES[name]}: copy that folder to {home / name} and it is read from there."
        )
    return arrays


def _check_name(name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise ValueError(f"unknown set {name!r}; choose one of {', '.join(known)}.")


def fetch_newsgroups(
    name: str,
    *,
    bag_labels: str = "design",
    data_home: str | os.PathLike[str] | None = None,
    return_X_y: bool = False,
) -> Bunch:
    """One of the 20 Newsgroups MIL sets: 100 bags of posts, 200 TF-IDF features.

    About 3 % of the posts in a positive bag belong to the target group. Where the published set
    is not in the data home, an equivalent one is rebuilt from scikit-learn's 20 Newsgroups
    loader (seeded, so always the same) and marked ``rebuilt=True``.

    Parameters
    ----------
    name : str
        One of ``bagwise.datasets.NEWSGROUPS``.
    bag_labels : {"design", "instances"}, default="design"
        In five sets a bag built as positive holds no positive post. "design" keeps the 50/50
        labels of the construction, "instances" takes the maximum of the instance labels.
    data_home : path or None, default=None
    return_X_y : bool, default=False
        Return ``(bags, y)`` instead of a Bunch with ``bags``, ``y``, ``instance_labels``,
        ``rebuilt`` and ``DESCR``.

    Examples
    --------
    >>> from bagwise.datasets import NEWSGROUPS
    >>> len(NEWSGROUPS), NEWSGROUPS[0]
    (20, 'alt_atheism')
    """
    _check_name(name, NEWSGROUPS)
    if bag_labels not in ("design", "instances"):
        raise ValueError(f"bag_labels must be 'design' or 'instances'; got {bag_labels!r}.")
    arrays = _read(f"newsgroups/{name}.npz", _home(data_home))
    rebuilt = arrays is None
    if arrays is None:
        arrays = _rebuild_newsgroups(name)
    truth = arrays["instance_label"].astype(np.int64)
    bags = Bags.from_groups(arrays["X"].astype(np.float64), arrays["bag"])
    bags = bags.with_columns(instance_labels=truth)
    y = arrays["bag_label"].astype(np.int64)
    if bag_labels == "instances":
        y = segments.max(truth, bags.offsets).astype(np.int64)
    bunch = Bunch(
        bags=bags,
        y=y,
        instance_labels=truth,
        rebuilt=rebuilt,
        DESCR=f"20 Newsgroups MIL, target {name.replace('_', '.')} (Zhou, Sun, Li, 2009).",
    )
    return as_result(bunch, return_X_y)


# The functions' data_home argument shadows the function of that name.
_home = data_home


def _rebuild_newsgroups(name: str) -> dict[str, Column]:
    """An equivalent set from scikit-learn's loader: 50 + 50 bags, 1 to 2 target posts each."""
    from sklearn.datasets import fetch_20newsgroups
    from sklearn.feature_extraction.text import TfidfVectorizer

    try:
        posts = fetch_20newsgroups(subset="all", remove=("headers", "footers", "quotes"))
    except OSError as error:
        raise FileNotFoundError(
            f"newsgroups/{name}.npz is not in the data home, and the posts to rebuild it could "
            f"not be downloaded ({error}). Put the published file into the data home, or set "
            "BAGWISE_DATA to the folder that has it."
        ) from error
    target = list(posts.target_names).index(name.replace("_", "."))
    X = TfidfVectorizer(max_features=200, stop_words="english").fit_transform(posts.data)
    # A post without any of the 200 words says nothing; the published sets have none.
    worded = np.asarray(X.getnnz(axis=1) > 0)
    is_target = np.asarray(posts.target) == target
    rng = np.random.RandomState(NEWSGROUPS.index(name))
    pools = {
        True: list(rng.permutation(np.flatnonzero(is_target & worded))),
        False: list(rng.permutation(np.flatnonzero(~is_target & worded))),
    }
    rows, bag, label = [], [], []
    for b in range(100):
        size = rng.randint(20, 61)
        n_target = max(1, round(0.03 * size)) if b < 50 else 0
        for is_positive, count in ((True, n_target), (False, size - n_target)):
            for _ in range(count):
                rows.append(pools[is_positive].pop())
                bag.append(b)
                label.append(int(is_positive))
    return {
        "X": X[rows].toarray(),
        "bag": np.array(bag),
        "bag_label": (np.arange(100) < 50).astype(np.int8),
        "instance_label": np.array(label),
    }


def fetch_mnist_bags(
    *,
    n_bags: int = 7000,
    features: str = "raw",
    subset: str = "all",
    random_state: RandomState = 0,
    data_home: str | os.PathLike[str] | None = None,
    return_X_y: bool = False,
) -> Bunch:
    """MNIST bags of the psi-VGPMIL paper (section 6.1): ten digits, of which 1 to 4 are 2 or 9.

    The other half of the bags, which are negative, holds neither.
    The paper's 7000 bags need more negative digits than MNIST has, so a pool that runs out is
    shuffled and dealt again; with up to 5000 bags no image is used twice.

    Parameters
    ----------
    n_bags : int, default=7000
        Half of them, rounded down, are positive.
    features : {"raw", "pca"}, default="raw"
        784 pixels in [0, 1], or the first 30 principal components. The components are fitted on
        MNIST's 60,000 training images; for components fitted inside a fold use ``raw`` with
        ``InstanceTransformer(PCA(30))``.
    subset : {"all", "train", "test"}, default="all"
        Draw from MNIST's training images, its test images, or both.
    random_state : int, RandomState or None, default=0
    data_home : path or None, default=None
        Where ``mnist.npz`` is looked up; absent, scikit-learn's OpenML loader is used.
    return_X_y : bool, default=False
        Return ``(bags, y)`` instead of a Bunch with ``bags``, ``y``, ``instance_labels``,
        ``digits`` and ``DESCR``.

    Examples
    --------
    >>> from bagwise.datasets import fetch_mnist_bags
    >>> data = fetch_mnist_bags(n_bags=100)  # doctest: +SKIP
    >>> data.bags  # doctest: +SKIP
    Bags(100 bags, 1000 instances, 784 features)
    """
    if features not in ("raw", "pca"):
        raise ValueError(f"features must be 'raw' or 'pca'; got {features!r}.")
    parts = {"all": slice(0, 70_000), "train": slice(0, 60_000), "test": slice(60_000, 70_000)}
    if subset not in parts:
        raise ValueError(f"subset must be one of {', '.join(parts)}; got {subset!r}.")
    home = _home(data_home)
    arrays = _read("mnist.npz", home)  # training images first
    if arrays is None:
        from sklearn.datasets import fetch_openml

        try:
            mnist = fetch_openml("mnist_784", version=1, as_frame=False, parser="liac-arff")
        except OSError as error:
            raise FileNotFoundError(
                f"mnist.npz is not in the data home {home} and MNIST could not be downloaded from "
                f"OpenML ({error}). Put the file there, or set BAGWISE_DATA to the folder that has "
                "it."
            ) from error
        arrays = {"X": mnist.data.astype(np.uint8), "y": mnist.target}
    X, target = arrays["X"], arrays["y"].astype(np.int64)
    images, digits = X[parts[subset]], target[parts[subset]]
    rng = check_random_state(random_state)
    bunch = bags_of_digits(images, digits, (2, 9), n_bags, (10, 10), (1, 4), rng, reuse=True)
    pixels = bunch.bags.map(lambda x: x.astype(np.float32) / 255)
    bunch.bags = pixels
    if features == "pca":
        pca = PCA(30, svd_solver="covariance_eigh").fit(X[:60_000].astype(np.float32) / 255)
        bunch.bags = pixels.map(pca.transform)
    bunch.DESCR = "Bags of 10 MNIST digits; positive when they hold a 2 or a 9."
    return as_result(bunch, return_X_y)


def fetch_tracking(name: str, *, data_home: str | os.PathLike[str] | None = None) -> Bunch:
    """A tracking sequence: gray ``frames`` (T, H, W) and boxes ``gt`` (T, 4) as x, y, w, h.

    ``gt`` is NaN where a frame is not annotated; ``gt_valid`` says where it is. Without the file
    of the data home, a folder of that name in the layout of MILTrack or OTB is read.

    Parameters
    ----------
    name : str
        "david" or "girl".
    data_home : path or None, default=None

    Examples
    --------
    >>> from bagwise.datasets import fetch_tracking
    >>> fetch_tracking("david").frames.shape  # doctest: +SKIP
    (462, 240, 320)
    """
    _check_name(name, TRACKING)
    arrays = _require(f"tracking/{name}", _home(data_home), read_sequence)
    return Bunch(**arrays, DESCR=f"Tracking sequence {name}, research use.")


def fetch_detection(name: str, *, data_home: str | os.PathLike[str] | None = None) -> Bunch:
    """An image set with boxes, for weakly supervised detection.

    Returns a Bunch with ``jpeg`` (one bytes object per image), ``image_label`` (N, classes),
    ``boxes`` (one (n, 4) array of x, y, w, h per image), ``box_classes`` (one array per image),
    ``split`` ("train", "val" or "test" per image), ``image_id`` and ``class_names``. Boxes of
    zero size are left out. Without the file of the data home, a folder of that name in the
    layout of PASCAL VOC is read.

    Parameters
    ----------
    name : str
        "bccd": blood cells, with WBC, RBC and Platelets. "animals": photographs of raccoons and
        kangaroos. "scenes": everyday scenes with 80 kinds of object.
    data_home : path or None, default=None

    Examples
    --------
    >>> from bagwise.datasets import fetch_detection
    >>> len(fetch_detection("bccd").jpeg)  # doctest: +SKIP
    364
    """
    _check_name(name, DETECTION)
    a = _require(f"detection/{name}", _home(data_home), read_annotated)
    n = len(a["image_id"])
    real = np.all(a["box_xywh"][:, 2:] > 0, axis=1)
    owner, boxes, classes = (a[k][real] for k in ("box_image", "box_xywh", "box_class"))
    return Bunch(
        jpeg=[
            a["jpeg"][s:e].tobytes()
            for s, e in zip(a["jpeg_offset"][:-1], a["jpeg_offset"][1:], strict=True)
        ],
        image_hw=a["image_hw"],
        image_label=a["image_label"],
        boxes=[boxes[owner == i].astype(np.float64) for i in range(n)],
        box_classes=[classes[owner == i] for i in range(n)],
        split=a["split"],
        image_id=a["image_id"],
        class_names=a["class_names"],
        DESCR=f"Detection set {name}: {n} images, {len(a['class_names'])} classes.",
    )
