"""Stochastic variational inference: one pass over a batch of bags, one natural-gradient step.

The step of a fit to all bags goes towards the precision ``I + curvature`` and adds
``P^-1 (linear - m)`` to the mean. A batch, scaled up to the whole, stands for the sums of all bags
(Hoffman et al., JMLR 2013), and the size of the step falls so that its noise averages out.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state

from bagwise.bags import Bags, BagsLike, InstanceLabels
from bagwise.core.arrays import to_numpy
from bagwise.models.drivers import RunningSum
from bagwise.models.execution import resolve
from bagwise.models.variational import engine
from bagwise.models.variational.inference import (
    Posteriors,
    Settings,
    State,
    Sums,
    prior,
    propose,
    sums_of,
)
from bagwise.models.variational.readout import Predictor, Process

# Step t has size (t + 1)^-0.6: the sum diverges and the squares do not, Robbins and Monro.
_FORGETTING = 0.6


class Seen(NamedTuple):
    """The bags of a stream so far, each counted once."""

    n_bags: int
    ids: frozenset[str]


def default_step(n_steps: int) -> float:
    """Size of the step after ``n_steps`` others; the first is 1."""
    return float((n_steps + 1) ** -_FORGETTING)


def count_bags(old: Seen | None, bags: Bags, total_bags: int | None) -> Seen:
    """Bags seen with this batch; bags without names cannot be told from those of before."""
    new = frozenset(bags.ids.tolist()) if bags.named else frozenset()
    if old is None:
        return Seen(len(new) if bags.named else len(bags), new)
    named = bags.named and len(old.ids) == old.n_bags
    if not named and total_bags is None:
        raise ValueError(
            "partial_fit cannot tell whether these bags came before: give them ids, or say with "
            "total_bags how many there are in all."
        )
    ids = old.ids | new
    return Seen(len(ids) if named else old.n_bags + len(bags), ids)


def stepped(q: Posteriors, sums: Sums, scale: float, step: float) -> Posteriors:
    """One natural-gradient step of size ``step`` from the sums of a batch."""
    T = len(q.m)
    value, linear, curvature = (scale * to_numpy(x) for x in sums)
    scaled = Sums(value, linear, curvature)
    rho, still = np.full(T, step), np.zeros(T, dtype=np.int64)
    state = State(q, scaled, value, rho, still, value[None])
    return propose(state, np.arange(T))[0]


class StochasticFit:
    """``partial_fit`` of the VGPMIL family."""

    predictor_: Predictor

    def partial_fit(
        self: Any,
        bags: BagsLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        instance_labels: InstanceLabels = None,
        total_bags: int | None = None,
        step: float | None = None,
    ) -> Any:
        """Take one natural-gradient step on a batch of bags.

        Scaling, inducing points and kernel come from the first batch. Nothing is held out: the
        kernel is the given one or the second of the usual starts, it is not learned, and the
        likelihood is the given one or ``SoftMax(3, size)`` with the median size of the first bags.
        Probabilities are not calibrated.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays, or 3-d array
        y : array of shape (n_bags,)
        classes : sequence of two classes or None, default=None
            Needed in the first call, unless ``y`` holds both.
        instance_labels : array of shape (n_instances,) or None, default=None
        total_bags : int or None, default=None
            How many bags the batch stands for; default: all seen so far, told apart by their
            ids. Needed from the second call on where bags have none.
        step : float in (0, 1] or None, default=None
            Default: ``(t + 1)^-0.6`` for the t-th call.
        """
        first = not hasattr(self, "seen_")
        names, bags, targets = self._validate_stream(bags, y, classes, instance_labels, first)
        if step is not None and not 0 < step <= 1:
            raise ValueError(f"step must be in (0, 1]; got {step!r}.")
        if self._paper() is not None:
            raise ValueError(
                f"{type(self).__name__} remembers beliefs about instances between iterations and "
                "cannot be streamed; use VGPMIL() with inference='marginal'."
            )
        seen = count_bags(None if first else self.seen_, bags, total_bags)
        if first:
            self.classes_, self.n_features_in_ = names, bags.n_features
            self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            problem, self.n_iter_ = self._plan(bags, targets, held_out=False), 0
            # The prior, on a kernel and a likelihood that nothing was held out to choose.
            starts = engine.start_kernels(self.kernel)
            kernel = starts[min(1, len(starts) - 1)].resolve(problem.sample)
            likelihood = self.likelihood or engine.default_likelihoods(problem)[-1]
            q = prior(1, len(problem.Z))
            process = Process(problem.projector(kernel), q.m, q.W, np.zeros(1), likelihood)
        else:
            (process,) = self.predictor_.processes
            problem = engine.plan_again(process, bags, targets, resolve(self.execution))
        q = engine.trial_of(process).q
        projector = problem.projector(process.projector.kernel)
        parts, self.cache_ = engine.ready_parts(problem, projector)
        work = partial(sums_of, likelihood=process.likelihood, q=q, f0=process.f0)
        sums = RunningSum()
        problem.driver.sweep(partial(work, tasks=np.arange(1), settings=Settings()), parts, sums)
        scale = (seen.n_bags if total_bags is None else total_bags) / len(bags)
        q = stepped(q, sums.value, scale, default_step(self.n_iter_) if step is None else step)
        process = process._replace(m=q.m, W=q.W, projector=process.projector.on_host())
        self.predictor_ = Predictor((process,), (1.0,))
        self.seen_, self.n_iter_ = seen, self.n_iter_ + 1
        return self
