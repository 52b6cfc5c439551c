"""A fitted Gaussian process that takes instance labels one by one, without reading the data again.

The bags are projected once per process of the model and kept (`members`). `Learner.answer`
conditions q(v) on the answered instances alone (`answers`); `Learner.learn` fits q(v) to all bags
from where it stands. What is predicted comes from the model's own `Predictor`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags, check_bags
from bagwise.core import segments
from bagwise.core.arrays import Floats, Ints
from bagwise.core.gaussians import sigmoid_moments
from bagwise.label import answers
from bagwise.label.members import (
    CHUNK,
    Member,
    ProcessView,
    coded,
    members_of,
    predictor_of,
    views_of,
)
from bagwise.models.drivers import cut
from bagwise.models.held_out import folds
from bagwise.models.pipeline import last_step
from bagwise.models.variational.blocks import BagLabels, Block
from bagwise.models.variational.inference import Iteration, Settings
from bagwise.models.variational.readout import Latent, read_block
from bagwise.models.variational.search import N_FOLDS, Tasks

if TYPE_CHECKING:
    from bagwise.models.base import Model


# The read-out makes intervals too; the page shows standard deviations.
_INTERVAL = 0.9


class LearnerScores(NamedTuple):
    """Probability and its standard deviation, of bags and of their instances."""

    bag: Floats  # [B]
    bag_std: Floats  # [B]
    instance: Floats  # [N]
    instance_std: Floats  # [N]


class _OutOfFold(NamedTuple):
    """Log-odds of what has a label, each predicted without it, and where that comes from."""

    log_odds: Floats
    y: Ints
    source: str


class Learner:
    """Learns from instance labels in moments: the data is read once, q(v) starts warm.

    Parameters
    ----------
    model : fitted model of the VGPMIL family, AutoVGPMIL, or a pipeline that ends in one
        Of two classes.
    bags : Bags
        The bags to label instances in.
    y : array of shape (n_bags,) or None, default=None
        Their labels, of the model's classes, where these are the bags the model was trained on.
        Without labels the bags are new: the model's q(v) is the prior, and only the labels of
        instances are learned from. So it is with models of the papers' updates.
    max_iter, tol : int, float, default=20, 0.001
        Of the fit in `learn`: passes over the data, and the gain in nats per bag that ends it.

    Attributes
    ----------
    known : array of shape (n_instances,), int8
        0 or 1 where the label of an instance is known, else -1.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import VGPMIL, datasets
    >>> from bagwise.label import Learner
    >>> data = datasets.make_gaussian_bags(n_bags=30, random_state=0)
    >>> model = VGPMIL(n_inducing=20, random_state=0).fit(data.bags, data.y)
    >>> learner = Learner(model, data.bags, data.y)
    >>> row = int(np.flatnonzero(np.repeat(data.y, data.bags.sizes))[0])
    >>> before = learner.scores().instance
    >>> learner.answer([row], [1])
    >>> int(learner.known[row]), bool((learner.scores().instance != before).any())
    (1, True)
    """

    def __init__(
        self,
        model: Model,
        bags: Bags,
        y: ArrayLike | None = None,
        *,
        max_iter: int = 20,
        tol: float = 1e-3,
    ) -> None:
        check_is_fitted(model)
        self.model, self.max_iter, self.tol = model, max_iter, tol
        self.predictor = predictor_of(model)
        self.classes = np.asarray(model.classes_)
        self.bags: Bags = check_bags(bags, estimator="Learner", n_features=model.n_features_in_)
        self.y = None if y is None else coded(y, self.bags, self.classes)
        self.known = np.full(self.bags.n_instances, -1, dtype=np.int8)
        self._members = members_of(model, self.bags)
        self._out_of_fold: Floats | None = None  # log-odds of the bags, each without it
        self.learn()

    def set_known(self, rows: Sequence[int], values: Sequence[int]) -> None:
        """Set labels (0, 1, or -1 for unknown) without learning from them."""
        index, codes = np.asarray(rows, dtype=np.int64), np.asarray(values)
        if index.shape != codes.shape or not np.isin(codes, (-1, 0, 1)).all():
            raise ValueError("an answer is 0, 1, or -1 for unknown, one for every row.")
        if len(index) and not (index.min() >= 0 and index.max() < self.bags.n_instances):
            raise ValueError(f"rows are numbers from 0 to {self.bags.n_instances - 1}.")
        new = self.known.copy()
        new[index] = codes
        # What contradicts the label of its bag is refused.
        negative, positive = map(str, self.classes)
        for i in np.unique(self.bags.bag_index[index]):
            label = None if self.y is None else self.y[i]
            of_bag = new[self.bags.offsets[i] : self.bags.offsets[i + 1]]
            name = self.bags.describe_bag(int(i))
            if label == 0 and (of_bag == 1).any():
                raise ValueError(
                    f"{name} is labelled {negative}; none of its instances can be {positive}. "
                    "Correct the label of the bag first."
                )
            if label == 1 and (of_bag == 0).all():
                raise ValueError(
                    f"{name} is labelled {positive}; not every one of its instances can be "
                    f"{negative}. Correct the label of the bag first, or skip this instance."
                )
        self.known = new

    def answer(self, rows: Sequence[int], values: Sequence[int]) -> None:
        """Take answers in at once: q(v) is conditioned on all that is known of instances."""
        self.set_known(rows, values)
        self._members = [member.conditioned(self.known) for member in self._members]

    def learn(self, progress: Callable[[float], None] | None = None) -> None:
        """Fit q(v) to all bags and answers, from where it stands, and without each fold.

        Without labels of bags, and where the labels of instances were not summed out, q(v) of
        the model is conditioned on the answers. ``progress`` is called with the share of the work
        that is done.
        """
        likelihoods = [member.process.likelihood for member in self._members]
        if self.y is None or any(getattr(one, "of_marginals", False) for one in likelihoods):
            self._members = [member.conditioned(self.known) for member in self._members]
        else:
            self._learn_from_bags(self.y, progress)
        if progress is not None:
            progress(1.0)

    def _learn_from_bags(self, y: Ints, progress: Callable[[float], None] | None) -> None:
        tasks = Tasks(folds(y, N_FOLDS), y[:, None])
        n, whole = len(self._members), np.zeros(tasks.n_tasks, dtype=np.int64)
        # The same labels in every task; the held-out bags weigh 0.
        known = self.known[:, None][:, whole] if (self.known >= 0).any() else None
        labels = BagLabels(self.bags.offsets, tasks.y[:, whole], known, tasks.weight()).dealt()
        members: list[Member] = []

        def tell(at: Iteration) -> bool:
            if progress is not None:
                progress((len(members) + min(1.0, at.n_iter / self.max_iter)) / n)
            return False

        settings = Settings(max_iter=self.max_iter, tol=self.tol)
        for member in self._members:
            members.append(member.learned(labels, settings, tell))
        self._members = members
        if tasks.n_folds == 0:
            self._out_of_fold = None
            return
        self._out_of_fold = np.empty(len(y))
        for j in range(tasks.n_folds):  # task 1 + j has not seen the bags of fold j
            bags = np.flatnonzero(tasks.fold == j)
            read = self._read(bags, 1 + j)
            log_odds = [self.predictor.bags(latent, _INTERVAL).log_odds for latent, _ in read]
            self._out_of_fold[bags] = np.concatenate(log_odds)

    def _read(self, bags: Ints, task: int = 0) -> Iterator[tuple[Latent, Ints]]:
        """What the model says of some bags, a few at a time, and their offsets."""
        rows, offsets = segments.take(self.bags.offsets, bags)
        for span in cut(offsets, CHUNK):
            of_span = rows[span.start : span.stop]
            starts = offsets[span.first_bag : span.last_bag + 1] - span.start
            labels = BagLabels(starts, starts[1:])
            latents = [
                read_block(Block(member.A.T[of_span].T, member.r[of_span], labels), member.at(task))
                for member in self._members
            ]
            yield self.predictor.blend(latents), starts

    def _scores(self, bags: Ints) -> LearnerScores:
        spans = []
        for latent, offsets in self._read(bags):
            bag = self.predictor.bags(latent, _INTERVAL)
            instance = self.predictor.instances(latent, offsets, None, _INTERVAL)
            spans.append((expit(bag.log_odds), bag.std, expit(instance.log_odds), instance.std))
        return LearnerScores(*(np.concatenate(column) for column in zip(*spans, strict=True)))

    def scores(self) -> LearnerScores:
        """Probability and standard deviation of every bag and instance, from the cache."""
        return self._scores(np.arange(len(self.bags)))

    def instance_scores(self, rows: Ints) -> tuple[Floats, Floats]:
        """Probability and standard deviation of some instances: a fraction of `scores`."""
        if len(rows) == 0:
            return np.empty(0), np.empty(0)
        # An instance depends on its bag, so that the bags of the rows are read whole.
        owners, which = np.unique(np.asarray(self.bags.bag_index)[rows], return_inverse=True)
        scores = self._scores(owners)
        _, offsets = segments.take(self.bags.offsets, owners)
        place = offsets[which] + rows - self.bags.offsets[owners[which]]
        return scores.instance[place], scores.instance_std[place]

    def out_of_fold(self) -> _OutOfFold:
        """Log-odds of what has a label, each predicted without it, after `learn`.

        These are the training bags where they were learned from, else the known instances.
        """
        if self._out_of_fold is not None and self.y is not None:
            return _OutOfFold(self._out_of_fold, self.y, "training bags, each predicted without it")
        moments = [answers.left_out(m.q, m.answers(self.known)) for m in self._members]
        weights, (mean, var) = np.array(self.predictor.weights), np.stack(moments, axis=1)
        z = sigmoid_moments(weights @ mean, weights**2 @ var).log_odds
        y = self.known[self.known >= 0].astype(np.int64)
        return _OutOfFold(z, y, "answered instances, each predicted without its answer")

    def copy(self) -> Learner:
        """A learner that shares the projected instances and can learn apart from this one."""
        return copy.copy(self)  # answers and learning replace arrays, never write into them

    def views(self) -> list[ProcessView]:
        """The processes as the strategies see them."""
        return views_of(self._members, self.predictor)

    def fitted_model(self) -> Any:
        """A copy of the model that has learned the answers; predicts and saves like any other."""
        new = copy.deepcopy(self.model)
        last = last_step(new)
        processes = tuple(member.at() for member in self._members)
        last.predictor_ = replace(self.predictor, processes=processes)
        if self._out_of_fold is not None and self.predictor.lines is not None:
            last.held_out_decision_ = self._out_of_fold
        return new
