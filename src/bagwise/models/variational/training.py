"""What a fit needs besides the engine: scaling, the start, projected blocks, monitors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import roc_auc_score

from bagwise.bags import Bags
from bagwise.core import linalg
from bagwise.core.gaussians import project
from bagwise.models.drivers import Driver, cut
from bagwise.models.variational.likelihoods import Labels
from bagwise.models.variational.predict import BagRule, block_scores
from bagwise.models.variational.updates import Block, Iteration

# Rows read at a time while the features are measured.
_ROWS = 65_536


class Scaling(NamedTuple):
    """``(X - center) / width``, learnt from training instances."""

    center: Any  # [D]
    width: Any  # [D]

    def __call__(self, X: Any) -> Any:
        """Scaled rows, in float64."""
        return (np.asarray(X, dtype=np.float64) - self.center) / self.width

    def undo(self, X: Any) -> Any:
        """Back to the user's units."""
        return X * self.width + self.center


def learn_scaling(X: Any, scale: str | None) -> Scaling:
    """Standardise every feature, or divide all by one width; chunked, two passes.

    A constant feature keeps its width.
    """
    D = X.shape[1]
    if scale is None:
        return Scaling(np.zeros(D), np.ones(D))
    chunks = [slice(a, a + _ROWS) for a in range(0, X.shape[0], _ROWS)]
    center = sum(np.sum(X[rows], axis=0, dtype=np.float64) for rows in chunks) / X.shape[0]
    squares = sum(np.sum((np.asarray(X[rows]) - center) ** 2, axis=0) for rows in chunks)
    width = np.sqrt(squares / X.shape[0])
    # Rounding leaves a constant feature with a width that is not quite 0.
    constant = width <= 1e-12 * np.maximum(np.abs(center), 1e-300)
    width = np.where(constant, 0.0, width)
    if scale == "global":
        width = np.full(D, np.sqrt(np.mean(width**2)))
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


class Projector(NamedTuple):
    """Instances in the user's units -> whitened coordinates."""

    kernel: Any
    Z: Any  # [M, D] scaled
    L: Any  # [M, M]
    scaling: Scaling
    dtype: Any

    def __call__(self, X: Any) -> tuple[Any, Any]:
        """``A`` [M, n] and ``r`` [n]."""
        return project(self.kernel, self.scaling(X), self.Z, self.L, self.dtype)


def make_projector(kernel: Any, Z: Any, scaling: Scaling, dtype: str) -> Projector:
    """A projector onto scaled inducing points ``Z``."""
    return Projector(kernel, Z, linalg.cholesky(kernel(Z, Z)), scaling, np.dtype(dtype))


@dataclass(frozen=True)
class ProjectSpan:
    """Projects one span of bags; picklable, for any driver."""

    X: Any
    labels: Labels
    projector: Projector

    def __call__(self, span: Any) -> Block:
        """The block of a span."""
        parts = [self.projector(self.X[a:b]) for a, b in span.rows]
        bags = slice(span.first_bag, span.last_bag)
        offsets = self.labels.offsets[span.first_bag : span.last_bag + 1] - span.start
        labels = Labels(offsets, self.labels.y[bags], self.labels.known[span.start : span.stop])
        A, r = zip(*parts, strict=True)
        return Block(A, np.concatenate(r), labels)


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
