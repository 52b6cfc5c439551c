"""What watches a fit: a progress bar, patience on validation bags, the user's callback."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from sklearn.metrics import roc_auc_score

from bagwise.bags import Bags
from bagwise.core.arrays import Ints
from bagwise.models.execution import Execution
from bagwise.models.variational.inference import Iteration
from bagwise.models.variational.readout import Predictor, Process, read_bags

Monitor = Callable[[Iteration], object]


class Patience:
    """Stops when the validation bags' AUC has not risen for a while; remembers the best."""

    best_process: Process

    def __init__(self, bags: Bags, y: Ints, execution: Execution, patience: int) -> None:
        self.bags, self.y, self.execution, self.patience = bags, y, execution, patience
        self.history: list[float] = []
        self.best = 0

    def __call__(self, iteration: Iteration) -> bool:
        """Whether to stop."""
        reader = Predictor((iteration.posterior,), (1.0,))
        scores, _, _ = read_bags(reader, self.bags, self.execution, "raw")
        self.history.append(float(roc_auc_score(self.y, scores[:, 0])))
        if self.best == 0 or self.history[-1] > max(self.history[:-1]):
            self.best, self.best_process = iteration.n_iter, iteration.posterior
        return iteration.n_iter - self.best >= self.patience


@contextmanager
def iteration_bar(show: bool, max_iter: int, name: str) -> Iterator[list[Monitor]]:
    """A progress bar with the bound, as a list of monitors: empty unless shown."""
    if not show:
        yield []
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn(name), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns) as bar:
        task = bar.add_task("", total=max_iter)

        def show_bound(at: Iteration) -> bool:
            words = f"iteration {at.n_iter}  bound {at.bound:.6g}  change {at.change:.1e}"
            bar.update(task, completed=at.n_iter, description=words)
            return False

        yield [show_bound]


def all_of(monitors: Sequence[Monitor]) -> Callable[[Iteration], bool]:
    """One callback from several; every one is called, any may stop."""

    def watch(iteration: Iteration) -> bool:
        return bool(np.any([bool(monitor(iteration)) for monitor in monitors]))

    return watch
