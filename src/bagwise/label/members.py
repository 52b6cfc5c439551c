"""The processes of a fitted model on projected bags: what answers change and strategies look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bagwise.bags import Bags
from bagwise.core.arrays import Codes, Column, Floats, Ints, Reals
from bagwise.label import answers
from bagwise.label.answers import Answers
from bagwise.models.calibration.fit import Platt
from bagwise.models.drivers import Serial, cut
from bagwise.models.pipeline import last_step
from bagwise.models.variational import inference
from bagwise.models.variational.blocks import BagLabels, Block, Part
from bagwise.models.variational.engine import trial_of
from bagwise.models.variational.inference import Iteration, Posteriors, Settings
from bagwise.models.variational.projection import project_span
from bagwise.models.variational.readout import Predictor, Process

# Projected instances are kept in single precision.
_DTYPE = np.dtype("float32")
# Instances that are projected, fitted or read at a time.
CHUNK = 8192


class ProcessView(NamedTuple):
    """One process as the strategies see it: ``f = a^T v + noise``, ``q(v) = N(m, W^T W)``."""

    A: Reals  # [M, N]
    r: Floats  # [N]
    m: Floats  # [M]
    W: Floats  # [M, M]
    weight: float
    slope: float  # log-odds of an instance = slope f + intercept
    intercept: float


class Member(NamedTuple):
    """A process of the model on the projected instances.

    The first task of ``q`` sees all bags, the others all but those of a fold.
    """

    process: Process  # of the model, as it was fitted
    A: Reals  # [M, N]
    r: Floats  # [N]
    q: Posteriors  # [T]
    before: Posteriors  # [1] without the answers: what they are the evidence for

    def at(self, task: int = 0) -> Process:
        """The process of a task, as it predicts now."""
        return self.process._replace(m=self.q.m[[task]], W=self.q.W[[task]])

    def answers(self, known: Codes) -> Answers:
        """What is known of the instances, for this process."""
        rows = np.flatnonzero(known >= 0)
        offset = np.full(len(rows), self.level)
        A = np.asarray(self.A[:, rows], dtype=np.float64)
        return Answers(A, self.r[rows], offset, known[rows].astype(np.int64))

    @property
    def level(self) -> float:
        """Log-odds of a bag of one instance where the latent function is its prior mean."""
        return float(self.process.likelihood.alone(self.process.f0)[0])

    def conditioned(self, known: Codes) -> Member:
        """The process given the answers, by a problem of their size."""
        new = answers.condition(self.before, self.answers(known))
        pairs = zip(new, self.q, strict=True)
        return self._replace(q=Posteriors(*(np.concatenate([x, y[1:]]) for x, y in pairs)))

    def learned(
        self, labels: BagLabels, settings: Settings, tell: Callable[[Iteration], bool]
    ) -> Member:
        """The process fitted to all labels, from where it stands."""
        T = labels.y.shape[1]
        start = self.q if len(self.q.m) == T else self.q.take(np.zeros(T, dtype=np.int64))
        blocks = []
        for span in cut(labels.offsets, CHUNK):
            rows = slice(span.start, span.stop)
            of_span = labels.slice(span.first_bag, span.last_bag)
            blocks.append(Block(self.A[:, rows], self.r[rows], of_span))
        f0, likelihood = np.repeat(self.process.f0, T), self.process.likelihood
        parts = [Part(tuple(blocks))]
        fits = inference.fit(parts, len(labels.y), likelihood, start, f0, Serial(), settings, tell)
        known = np.full(len(self.r), -1) if labels.known is None else labels.known[:, 0]
        before = answers.without(fits.q.take(np.zeros(1, dtype=np.int64)), self.answers(known))
        return self._replace(q=fits.q, before=before)


def project(model: Any, bags: Bags) -> list[ProcessView]:
    """The processes of a fitted model on any bags, without labels.

    Examples
    --------
    >>> from bagwise import VGPMIL, datasets
    >>> from bagwise.label import project
    >>> bags, y = datasets.make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> (view,) = project(VGPMIL(n_inducing=10, random_state=0).fit(bags, y), bags)
    >>> view.A.shape == (10, bags.n_instances)
    True
    """
    return views_of(members_of(model, bags), predictor_of(model))


def predictor_of(model: Any) -> Predictor:
    """What a model predicts by; of two classes."""
    last = last_step(model)
    predictor = getattr(last, "predictor_", None)
    if not isinstance(predictor, Predictor):
        raise ValueError(
            "labelling needs a model of the VGPMIL family or AutoVGPMIL; "
            f"got {type(last).__name__}."
        )
    if not predictor.rule.binary:
        raise ValueError(
            f"labelling needs a model of two classes; this one has {model.classes_.tolist()}."
        )
    return predictor


def members_of(model: Any, bags: Bags) -> list[Member]:
    """The processes of a model on the projected bags, which are read once for each."""
    inside = model._before_last(bags) if hasattr(model, "steps") else bags
    labels = BagLabels(inside.offsets, inside.offsets[1:])
    members = []
    for process in predictor_of(model).processes:
        # All instances in whitened coordinates, a few bags at a time.
        A = np.empty((process.m.shape[1], inside.n_instances), dtype=_DTYPE, order="F")
        r = np.empty(inside.n_instances)
        projector = process.projector._replace(dtype=_DTYPE)
        for span in cut(inside.offsets, CHUNK):
            rows = slice(span.start, span.stop)
            A[:, rows], r[rows], _ = project_span(inside.instances, labels, span, projector)
        q = trial_of(process).q
        members.append(Member(process, A, r, q, q))
    return members


def coded(y: ArrayLike, bags: Bags, classes: Column) -> Ints:
    """Labels of bags as 0 and 1."""
    y = np.asarray(y)
    if y.shape != (len(bags),):
        raise ValueError(f"y needs one label per bag: {len(bags)}; got shape {y.shape}.")
    for i in np.flatnonzero(~np.isin(y, classes))[:1]:
        raise ValueError(
            f"{bags.describe_bag(int(i))} has label {y[i].item()!r}; the model knows the classes "
            f"{classes.tolist()}."
        )
    return (y == classes[1]).astype(np.int64)


def views_of(members: Sequence[Member], predictor: Predictor) -> list[ProcessView]:
    """Log-odds are the model's own of an instance in a positive bag."""
    share = Platt(1.0, 0.0)
    if predictor.default_question == "share":
        (share,) = predictor.shares  # type: ignore[assignment]
    views = []
    for member, weight in zip(members, predictor.weights, strict=True):
        m, W = member.q.m[0], member.q.W[0]
        intercept = float(share.log_odds(member.level))
        views.append(ProcessView(member.A, member.r, m, W, weight, share.slope, intercept))
    return views
