"""What a fit needs besides the engine: scaling, the start, projected blocks, monitors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import is_torch_array
from sklearn.metrics import roc_auc_score

from bagwise.bags import Bags
from bagwise.core import linalg
from bagwise.core.arrays import concatenate, to_numpy
from bagwise.core.gaussians import project
from bagwise.models.drivers import Driver, Serial, Span, cut
from bagwise.models.variational.likelihoods import Labels
from bagwise.models.variational.predict import BagRule, block_scores
from bagwise.models.variational.updates import Block, Iteration

# Numbers read at a time while the features are measured: 8 MB.
_NUMBERS = 1_000_000
# Such chunks in a run of rows that one worker measures.
_CHUNKS = 32


class Scaling(NamedTuple):
    """``(X - center) / width``, learnt from training instances."""

    center: Any  # [D]
    width: Any  # [D]

    def __call__(self, X: Any) -> Any:
        """Scaled rows, in float64, on the device the scaling lives on."""
        if is_torch_array(self.center):
            X = torch_rows(X, self.center.device)
            return (X - self.center) / self.width
        return (np.asarray(X, dtype=np.float64) - self.center) / self.width

    def undo(self, X: Any) -> Any:
        """Back to the user's units."""
        return X * self.width + self.center


class Measured(NamedTuple):
    """Number, mean, and squared distances from that mean, of rows."""

    n: int
    mean: Any  # [D]
    squares: Any  # [D]


def measure(X: Any) -> Measured:
    """Rows in chunks, each read once."""
    step = max(1, _NUMBERS // X.shape[1])
    return pooled([_measure(X[a : a + step]) for a in range(0, X.shape[0], step)])


def _measure(X: Any) -> Measured:
    X = np.array(X, dtype=np.float64)
    mean = X.sum(axis=0) / len(X)
    X -= mean
    return Measured(len(X), mean, np.square(X, out=X).sum(axis=0))


def pooled(found: Sequence[Measured]) -> Measured:
    """Rows measured apart as if together; every term is a square, so nothing cancels.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.training import measure, pooled
    >>> X = np.arange(6.0)[:, None] + 1e9
    >>> apart, together = pooled([measure(X[:4]), measure(X[4:])]), measure(X)
    >>> float(apart.squares[0]), float(together.squares[0])
    (17.5, 17.5)
    """
    if len(found) == 1:
        return found[0]
    n, means, squares = (np.array(column) for column in zip(*found, strict=True))
    mean = n @ means / n.sum()
    return Measured(int(n.sum()), mean, squares.sum(axis=0) + n @ np.square(means - mean))


def learn_scaling(X: Any, scale: str | None, driver: Driver | None = None) -> Scaling:
    """Standardise every feature, or divide all by one width; chunked, one pass.

    A constant feature keeps its width. Rows on disk are read where the driver works.
    """
    D = X.shape[1]
    if is_torch_array(X):
        return _device_scaling(X, scale)
    if scale is None:
        return Scaling(np.zeros(D), np.ones(D))
    n, mean, squares = pooled(list(over_rows(measure, X, driver)))
    return _make_scaling(mean, np.sqrt(squares / n), scale)


def over_rows(function: Callable[[Any], Any], X: Any, driver: Driver | None) -> Iterator[Any]:
    """``function`` of runs of rows: by the driver where they are on disk, here where in memory.

    What is in memory would take longer to send than to read. The runs are the same whoever
    reads them, so that results are, to the last bit: a checkpoint knows a problem by them.
    """
    step = _CHUNKS * max(1, _NUMBERS // X.shape[1])
    runs = [slice(a, min(a + step, X.shape[0])) for a in range(0, X.shape[0], step)]
    if not hasattr(X, "select_rows"):
        return Serial().map(function, [X[run] for run in runs])
    return (driver or Serial()).map(function, [X.select_rows(run) for run in runs])


def _device_scaling(X: Any, scale: str | None) -> Scaling:
    """As `learn_scaling`, where the tensor lives; the result comes to the host."""
    D = X.shape[1]
    if scale is None:
        return Scaling(np.zeros(D), np.ones(D))
    step = max(1, 100 * _NUMBERS // D)  # a device has the room
    rows = range(0, X.shape[0], step)
    center = sum(X[a : a + step].double().sum(0) for a in rows) / X.shape[0]
    squares = sum((X[a : a + step].double() - center).square().sum(0) for a in rows)
    return _make_scaling(to_numpy(center), np.sqrt(to_numpy(squares) / X.shape[0]), scale)


def _make_scaling(center: Any, width: Any, scale: str) -> Scaling:
    # Rounding leaves a constant feature with a width that is not quite 0.
    constant = width <= 1e-12 * np.maximum(np.abs(center), 1e-300)
    width = np.where(constant, 0.0, width)
    if scale == "global":
        width = np.full(len(width), np.sqrt(np.mean(width**2)))
    return Scaling(center, np.where(width > 0, width, 1.0))


def start(init: Any, labels: Labels, rng: Any) -> Any:
    """Instance probabilities before the first update, [N]."""
    n, of_bag = len(labels.known), labels.of_bag
    if isinstance(init, str):
        if init == "random":
            return rng.uniform(size=n)
        return of_bag if init == "label" else of_bag / 2
    pi = np.asarray(init, dtype=np.float64)
    if pi.shape != (n,) or not ((pi >= 0) & (pi <= 1)).all():
        raise ValueError(
            f"init must hold a probability in [0, 1] for each of the {n} instances; "
            f"got an array of shape {pi.shape}."
        )
    return pi


def torch_rows(X: Any, device: Any) -> Any:
    """Rows as a float64 tensor on a device."""
    import torch

    return torch.as_tensor(X).to(device=device, dtype=torch.float64)


class Projector(NamedTuple):
    """Instances in the user's units -> whitened coordinates.

    On a device ``Z``, ``L`` and the scaling are tensors there.
    """

    kernel: Any
    Z: Any  # [M, D] scaled
    L: Any  # [M, M]
    scaling: Scaling
    dtype: Any

    def __call__(self, X: Any) -> tuple[Any, Any]:
        """``A`` [M, n] and ``r`` [n]."""
        if not is_torch_array(self.Z):
            return project(self.kernel, self.scaling(X), self.Z, self.L, self.dtype)
        import torch

        n = X.shape[0]
        A = torch.empty((len(self.Z), n), dtype=self.dtype, device=self.Z.device)
        r = torch.empty(n, dtype=self.dtype, device=self.Z.device)
        # Slabs bound the float64 workspace; only A and r are kept.
        for start in range(0, n, linalg.SLAB):
            rows = slice(start, min(start + linalg.SLAB, n))
            A[:, rows], r[rows] = project(
                self.kernel, self.scaling(X[rows]), self.Z, self.L, self.dtype
            )
        return A, r

    def place(self, labels: Labels) -> Labels:
        """Labels where the projections will be."""
        if not is_torch_array(self.Z):
            return labels
        import torch

        return Labels(*(torch.as_tensor(np.array(x)).to(self.Z.device) for x in labels))

    def to(self, device: str) -> Projector:
        """The same projector on a torch device; the algebra stays in float64."""
        import torch

        Z, L, *scaling = (
            torch.as_tensor(np.array(x), dtype=torch.float64).to(device)
            for x in (self.Z, self.L, *self.scaling)
        )
        dtype = getattr(torch, str(np.dtype(self.dtype)))
        return Projector(self.kernel, Z, L, Scaling(*scaling), dtype)


def make_projector(kernel: Any, Z: Any, scaling: Scaling, dtype: str) -> Projector:
    """A projector onto scaled inducing points ``Z``."""
    return Projector(kernel, Z, linalg.cholesky(kernel(Z, Z)), scaling, np.dtype(dtype))


def project_span(
    X: Any, labels: Labels, span: Span, projector: Projector, first_bag: int = 0, first_row: int = 0
) -> Block:
    """The block of a span, from rows and labels that begin at ``first_bag`` and ``first_row``."""
    parts = [projector(X[a - first_row : b - first_row]) for a, b in span.rows]
    bags = slice(span.first_bag - first_bag, span.last_bag - first_bag)
    offsets = labels.offsets[bags.start : bags.stop + 1]
    known = labels.known[span.start - first_row : span.stop - first_row]
    A, r = zip(*parts, strict=True)
    own = projector.place(Labels(offsets - offsets[0], labels.y[bags], known))
    return Block(A, concatenate(r), own)


@dataclass(frozen=True)
class ProjectSpan:
    """Projects one span of bags; picklable, for any driver."""

    X: Any
    labels: Labels
    projector: Projector

    def __call__(self, span: Span) -> Block:
        """The block of a span."""
        return project_span(self.X, self.labels, span, self.projector)


def project_bags(
    bags: Bags, labels: Labels, projector: Projector, chunk_size: int, driver: Driver
) -> list[Block]:
    """Every bag in whitened coordinates, cut into blocks."""
    spans = cut(bags.offsets, chunk_size)
    return list(driver.map(ProjectSpan(bags.instances, labels, projector), spans))


class Patience:
    """Stops when the validation bags' AUC has not risen for a while; remembers the best."""

    def __init__(self, blocks: list[Block], y: Any, rule: BagRule, patience: int) -> None:
        self.blocks, self.y, self.rule, self.patience = blocks, y, rule, patience
        self.history: list[float] = []
        self.best = 0

    def __call__(self, told: Iteration) -> bool:
        """Whether to stop."""
        scores = [
            block_scores(block.A, block.r, block.labels.offsets, told.posterior, self.rule).log_odds
            for block in self.blocks
        ]
        self.history.append(float(roc_auc_score(self.y, np.concatenate(scores))))
        if self.best == 0 or self.history[-1] > self.history[self.best - 1]:
            self.best = told.n_iter
        return told.n_iter - self.best >= self.patience


@contextmanager
def progress(show: bool, max_iter: int, name: str) -> Iterator[list[Any]]:
    """A progress bar with the bound, as a list of monitors: empty unless shown."""
    if not show:
        yield []
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn(name), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns) as bar:
        task = bar.add_task("", total=max_iter)

        def show_bound(told: Iteration) -> bool:
            words = f"iteration {told.n_iter}  bound {told.bound:.6g}  change {told.change:.1e}"
            bar.update(task, completed=told.n_iter, description=words)
            return False

        yield [show_bound]


def all_of(monitors: list[Callable[[Iteration], Any]]) -> Callable[[Iteration], bool]:
    """One callback from several; every one is called, any may stop."""

    def told(iteration: Iteration) -> bool:
        answers = [bool(monitor(iteration)) for monitor in monitors]
        return any(answers)

    return told


@contextmanager
def device_settings(precision: str | None) -> Iterator[None]:
    """TF32 where asked for, and one BLAS thread: the host only does M x M algebra.

    Threads that spin between two small factorisations take the host from feeding the device.
    """
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = before or precision == "tf32"
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def torch_device(device: str | None, instances: Any) -> str | None:
    """The torch device to work on, or None for plain NumPy.

    A missing GPU is an error, never a silent step back to the CPU.
    """
    if device in (None, "cpu"):
        return str(instances.device) if is_torch_array(instances) else None
    try:
        import torch
    except ImportError as error:
        raise ValueError(f"device={device!r} needs torch; install bagwise[torch].") from error
    if str(device).startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(
            f"device={device!r} was asked for, but torch sees no GPU on this machine; use "
            "device='cpu'."
        )
    return device
