"""Stochastic variational inference: one pass over a batch of bags, one natural-gradient step.

The optimum of q(v) given all bags has natural parameters ``I + sum A diag(omega) A^T`` and
``sum A rho``, so a natural gradient is the difference to what a batch, scaled up to the whole,
says they should be (Hoffman et al., JMLR 2013): a step is a weighted mean, in closed form.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state

from bagwise.bags import Bags, BagsLike, InstanceLabels
from bagwise.core.arrays import Array, Floats, concatenate, to_numpy
from bagwise.models.drivers import Driver, RunningSum
from bagwise.models.execution import resolve
from bagwise.models.variational.blocks import BagLabels
from bagwise.models.variational.densities import check_density
from bagwise.models.variational.likelihoods import ExactOr, Inherited, SoftWitness
from bagwise.models.variational.parts import Part, make_parts, materialised
from bagwise.models.variational.projection import Projector
from bagwise.models.variational.updates import (
    InducingPosterior,
    Statistics,
    Step,
    update_posterior,
)

# Step t has size (t + 1)^-0.6: the sum diverges and the squares do not, Robbins and Monro.
_FORGETTING = 0.6
# Passes over a batch at fixed q, for likelihoods whose beliefs depend on the ones before.
_LOCAL_PASSES = 6


class Naturals(NamedTuple):
    """Natural parameters of q(v) without the prior's, and how they came about."""

    precision: Array  # [M, M] lower triangle
    linear: Array  # [M]
    n_steps: int
    n_bags: int  # seen so far, each counted once
    ids: frozenset[str] = frozenset()  # of the bags seen


def default_step(n_steps: int) -> float:
    """Size of the step after ``n_steps`` others; the first is 1."""
    return float((n_steps + 1) ** -_FORGETTING)


class Seen(NamedTuple):
    """The bags of a stream so far, each counted once."""

    n_bags: int
    ids: frozenset[str]


def count_bags(old: Naturals | None, bags: Bags, total_bags: int | None) -> Seen:
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


def blend(
    old: Naturals | None, batch: Statistics, scale: float, step: float, seen: Seen
) -> Naturals:
    """``(1 - step) old + step * scale * batch``."""
    if old is None:
        return Naturals(scale * batch.precision, scale * batch.linear, 1, *seen)
    return Naturals(
        (1 - step) * old.precision + step * scale * batch.precision,
        (1 - step) * old.linear + step * scale * batch.linear,
        old.n_steps + 1,
        *seen,
    )


class StochasticFit:
    """``partial_fit`` of the VGPMIL family."""

    calibration_: Any
    instance_map_: Any

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

        Scaling, inducing points and kernel come from the first batch. With all bags as the batch
        and ``step=1``, k calls equal ``fit`` with ``max_iter=k``. The likelihoods "or",
        "witness" and "inherited" stream; "noisy-max" and the large margin remember beliefs
        between iterations, which a stream cannot, and are refused. Nothing is calibrated or
        refined: a stream keeps no bags to hold out.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays, or 3-d array
        y : array of shape (n_bags,)
        classes : sequence of two classes
            Needed in the first call, unless ``y`` holds both.
        instance_labels : array of shape (n_instances,), optional
        total_bags : int, optional
            How many bags the batch stands for; default: all seen so far, told apart by their
            ids. Needed from the second call on where bags have none.
        step : float in (0, 1], optional
            Default: ``(t + 1)^-0.6`` for the t-th call.
        """
        first = not hasattr(self, "naturals_")
        stream_classes, data = self._validate_stream(bags, y, classes, instance_labels, first)
        if step is not None and not 0 < step <= 1:
            raise ValueError(f"step must be in (0, 1]; got {step!r}.")
        if not isinstance(self._bag_likelihood(), ExactOr | SoftWitness | Inherited):
            raise ValueError(
                f"{type(self._bag_likelihood()).__name__} remembers beliefs between iterations and "
                "cannot be streamed; use likelihood='or' or 'witness'."
            )
        execution = resolve(self.execution)
        driver = execution.make_driver()
        old = None if first else self.naturals_
        seen = count_bags(old, data.bags, total_bags)
        if first:
            self.classes_, self.n_features_in_ = stream_classes, data.bags.n_features
            rng = check_random_state(self.random_state)
            projector = self._choose_projector(data, rng, execution, driver)
        else:
            device = execution.torch_device(data.bags.instances)
            projector = self._fitted_projector(execution.dtype or self._dtype).to(device)
        labels = BagLabels(data.bags.offsets, data.y, data.instance_labels)
        q = None if first else self._posterior()
        chunk = execution.chunk(projector.on_device, driver, data.bags.n_instances)
        batch, pi = self._batch_statistics(data.bags, labels, projector, q, driver, chunk)
        scale = (seen.n_bags if total_bags is None else total_bags) / len(data.bags)
        size = default_step(0 if old is None else old.n_steps) if step is None else step
        self.naturals_ = blend(old, batch, scale, size, seen)
        new = update_posterior(self.naturals_.precision, self.naturals_.linear)
        self._store_posterior(projector, new)
        self.instance_proba_, self.n_iter_ = pi, self.naturals_.n_steps
        self.calibration_, self.instance_map_ = None, None
        return self

    def _batch_statistics(
        self: Any,
        bags: Bags,
        labels: BagLabels,
        projector: Projector,
        q: InducingPosterior | None,
        driver: Driver,
        chunk_size: int,
    ) -> tuple[Statistics, Floats]:
        """Statistics of a batch under q, its beliefs settled, and q(y = 1) of its instances."""
        pi = self._start(labels, check_random_state(self.random_state))
        parts = make_parts(bags.instances, labels, projector, pi, chunk_size, driver.n_parts)
        parts = materialised(parts, "memory", driver)
        objects = self._bag_likelihood(), check_density(self._density())
        for under in [None] + ([] if q is None else [q] * _LOCAL_PASSES):
            sums = RunningSum()
            parts = driver.sweep(Step(*objects, under, last=False), parts, sums)
        found: list[Floats] = []
        driver.sweep(_read_beliefs, parts, found.append)
        return sums.value, np.concatenate(found)


def _read_beliefs(part: Part) -> tuple[Part, Floats]:
    return part, to_numpy(concatenate(belief.pi for belief in part.beliefs or ()))
