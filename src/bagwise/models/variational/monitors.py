"""What watches a fit: progress bars, patience on validation bags, the user's callback."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from sklearn.metrics import roc_auc_score

from bagwise.core.arrays import Ints
from bagwise.models.variational.blocks import Block
from bagwise.models.variational.score import BagRule, read_block
from bagwise.models.variational.updates import Iteration

Monitor = Callable[[Iteration], object]


class Patience:
    """Stops when the validation bags' AUC has not risen for a while; remembers the best."""

    def __init__(self, blocks: Sequence[Block], y: Ints, rule: BagRule, patience: int) -> None:
        self.blocks, self.y, self.rule, self.patience = blocks, y, rule, patience
        self.history: list[float] = []
        self.best = 0

    def __call__(self, iteration: Iteration) -> bool:
        """Whether to stop."""
        scores = [read_block(block, iteration.posterior, self.rule).bag for block in self.blocks]
        self.history.append(float(roc_auc_score(self.y, np.concatenate(scores))))
        if self.best == 0 or self.history[-1] > self.history[self.best - 1]:
            self.best = iteration.n_iter
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


@contextmanager
def stage_bar(show: bool, total: int, name: str) -> Iterator[Callable[[str, int], None]]:
    """A progress bar over the stages of a search; ``advance(words, steps)`` moves it on."""
    if not show:
        yield lambda words, steps: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn(name), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns) as bar:
        task = bar.add_task("", total=total)
        yield lambda words, steps: bar.update(task, advance=steps, description=words)


def all_of(monitors: Sequence[Monitor]) -> Callable[[Iteration], bool]:
    """One callback from several; every one is called, any may stop."""

    def watch(iteration: Iteration) -> bool:
        answers = [bool(monitor(iteration)) for monitor in monitors]
        return any(answers)

    return watch
