"""A fitted Gaussian process that takes instance labels one by one, without reading the data again.

The projected instances of every member of the model are kept. `Learner.answer` updates the sites
of the bags that were answered and q(v); `Learner.learn` sweeps over all bags from where q(v)
stands. This file is the only one in this room that knows how a model is built inside.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags, InstanceLabels, check_bags, encode_instance_labels
from bagwise.core import linalg, segments
from bagwise.core.gaussians import sigmoid_moments
from bagwise.core.platt import Platt, fit_platt, keep_ranking
from bagwise.core.rules import bag_log_odds
from bagwise.models.drivers import Serial
from bagwise.models.pipeline import last_step
from bagwise.models.variational.auto import AutoVGPMIL
from bagwise.models.variational.blocks import BagLabels, Block
from bagwise.models.variational.calibration import fit_calibration
from bagwise.models.variational.densities import Density
from bagwise.models.variational.estimators import VariationalClassifier
from bagwise.models.variational.latent_map import InstanceMap, LatentMap, bent
from bagwise.models.variational.likelihoods import BagLikelihood
from bagwise.models.variational.parts import Part, Sites
from bagwise.models.variational.projection import Projector
from bagwise.models.variational.score import BagRule, LeftOutScores, loo_scores, read_block
from bagwise.models.variational.search import Voice, pooled_scores
from bagwise.models.variational.updates import (
    FitState,
    InducingPosterior,
    Iteration,
    fit_parts,
    make_blocks,
    moments,
    update_posterior,
)

if TYPE_CHECKING:
    from bagwise.core.arrays import Ints, Reals
    from bagwise.models.base import Model


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Rounds of site updates in the answered bags; q(v) has settled to plotting accuracy after these.
_LOCAL_ROUNDS = 4
# The same where only known instances count: all of their sites move together.
_CONDITION_ROUNDS = 10
# Projected instances are kept in single precision, as AutoVGPMIL keeps them.
_DTYPE = "float32"
# Instances that are projected at a time.
_CHUNK = 8192


class Scores(NamedTuple):
    """Probability and its standard deviation, of bags and of their instances."""

    bag: Floats  # [B]
    bag_std: Floats  # [B]
    instance: Floats  # [N]
    instance_std: Floats  # [N]


class HeldOut(NamedTuple):
    """Log-odds of what has a label, each predicted without it, and where that comes from."""

    log_odds: Floats
    y: Integers
    source: str


class View(NamedTuple):
    """One member as the strategies see it: ``f = a^T v + noise``, ``q(v) = N(m, W^T W)``."""

    A: Reals  # [M, N]
    r: Floats  # [N]
    m: Floats  # [M]
    W: Floats  # [M, M]
    weight: float
    slope: float  # log-odds = slope f + intercept
    intercept: float


@dataclass
class _Member:
    """A Gaussian process of the model, with everything the training instances gave it."""

    A: Reals  # [M, N]
    r: Floats  # [N]
    likelihood: BagLikelihood
    density: Density
    q: InducingPosterior
    pi: Floats  # [N] q(y = 1)
    rule: BagRule
    weight: float = 1.0
    platt: Platt | LatentMap | None = None  # the latter of a single model
    omega: Any = None  # [N] sites that made q
    rho: Any = None
    start: InducingPosterior | None = None  # q(v) of the model, the prior where bags have no labels
    instances: InstanceMap | None = None  # of the whole model, where instances have their own
    top: Platt | None = None  # of the largest instance, where that of the bags is another

    @property
    def instance_platt(self) -> Platt | LatentMap | None:
        """The map that instances go through."""
        return self.platt if self.top is None else self.top

    def condition(self, known: NDArray[np.int8]) -> None:
        """q(v) of the model given the known instances alone: bags without labels say nothing."""
        assert self.start is not None
        rows = np.flatnonzero(known >= 0)
        A, r = [self.A[:, rows]], self.r[rows]
        a = np.asarray(A[0], dtype=np.float64)
        prior_precision = _precision(self.start)
        self.omega, self.rho = np.zeros(len(known)), np.zeros(len(known))
        self.rho[rows] = known[rows] - 0.5
        linear = prior_precision @ self.start.m + a @ self.rho[rows]
        for _ in range(_CONDITION_ROUNDS if len(rows) else 0):
            c = moments(A, r, self.q).second ** 0.5
            self.omega[rows] = self.density.theta(c)
            precision = prior_precision + (a * self.omega[rows]) @ a.T
            self.q = update_posterior(precision - np.eye(len(linear)), linear)
        if not len(rows):
            self.q = self.start
        self.pi = np.where(known >= 0, known == 1, expit(self.A.T @ self.q.m))

    def without_own_site(self, rows: Integers) -> tuple[Floats, Floats]:
        """Mean and variance of f at known instances, each without what its own label said."""
        found = moments([self.A[:, rows]], self.r[rows], self.q)
        var = found.var - self.r[rows]  # the part that q(v) explains
        precision = np.maximum(1 / np.maximum(var, 1e-12) - self.omega[rows], 1e-6)
        mean = (found.mean / np.maximum(var, 1e-12) - self.rho[rows]) / precision
        return mean, 1 / precision + self.r[rows]

    def sweep(
        self, labels: BagLabels, max_iter: int, tol: float, tell: Callable[[Iteration], bool] | None
    ) -> None:
        """Full sweeps over all bags from the present q(v)."""
        blocks = make_blocks(self.A, self.r, labels)
        pis = _per_block(self.pi, blocks)
        beliefs = tuple(
            self.likelihood.start(moments(block.A, block.r, self.q), block.labels, pi)
            for block, pi in zip(blocks, pis, strict=True)
        )
        fit, _ = fit_parts(
            [Part(tuple(blocks), pis, beliefs)],
            len(self.q.m),
            self.likelihood,
            self.density,
            state=FitState(1, self.q, [], np.inf, False),
            max_iter=1 + max_iter,
            tol=tol,
            driver=Serial(),
            on_iteration=tell,
        )
        self.q, self.pi, self.omega, self.rho = fit.posterior, fit.pi, fit.omega, fit.rho

    def update_bag(self, rows: slice, labels: BagLabels) -> None:
        """Coordinate ascent on the sites of one bag and q(v); the other bags' sites stay."""
        A, r = [self.A[:, rows]], self.r[rows]
        a = np.asarray(A[0], dtype=np.float64)
        precision = _precision(self.q)
        linear = precision @ self.q.m
        beliefs = self.likelihood.start(moments(A, r, self.q), labels, self.pi[rows])
        for _ in range(_LOCAL_ROUNDS):
            f = moments(A, r, self.q)
            c = f.second**0.5
            beliefs = self.likelihood.targets(f, self.density.log_psi(c), labels, beliefs)
            omega, rho = self.likelihood.weights(f, beliefs, self.density.theta(c))
            precision += (a * (omega - self.omega[rows])) @ a.T
            linear += a @ (rho - self.rho[rows])
            self.omega[rows], self.rho[rows] = omega, rho
            self.q = update_posterior(precision - np.eye(len(linear)), linear)
        self.pi[rows] = beliefs.pi

    def left_out(self, labels: BagLabels) -> LeftOutScores:
        """Log-odds of every bag and its instances from the posterior without the bag's sites."""
        blocks = make_blocks(self.A, self.r, labels)
        omegas, rhos = _per_block(self.omega, blocks), _per_block(self.rho, blocks)
        found = [
            loo_scores(block, self.q, Sites(omega, rho), self.rule)
            for block, omega, rho in zip(blocks, omegas, rhos, strict=True)
        ]
        return LeftOutScores(*(np.concatenate(column) for column in zip(*found, strict=True)))


class Learner:
    """Learns from instance labels in moments: the data is read once, q(v) starts warm.

    Parameters
    ----------
    model : fitted VGPMIL, one of its relatives, AutoVGPMIL, or a pipeline that ends in one
    bags : Bags
        The bags to label instances in.
    y : array of shape (n_bags,), optional
        Their labels, of the model's classes, where these are the bags the model was trained on.
        Without labels the bags are new: the model's q(v) is the prior, and only the labels of
        instances are learned from.
    instance_labels : array of shape (n_instances,), optional
        What is known already, as in ``fit``.
    max_iter, tol : int, float
        Of the sweeps in `learn`.

    Attributes
    ----------
    known : array of shape (n_instances,), int8
        0 or 1 where the label of an instance is known, else -1.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import VGPMIL
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.label import Learner
    >>> data = make_gaussian_bags(n_bags=30, random_state=0)
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
        instance_labels: InstanceLabels = None,
        *,
        max_iter: int = 20,
        tol: float = 1e-3,
    ) -> None:
        check_is_fitted(model)
        self.model, self.max_iter, self.tol = model, max_iter, tol
        self.classes = np.asarray(model.classes_)
        self.bags: Bags = check_bags(bags, estimator="Learner", n_features=model.n_features_in_)
        self.y = None if y is None else self._codes(y)
        self.known = self._encode(instance_labels)
        self._members = _members(model, self.bags, self.y)
        self._platt = self._model_platt = _outer_platt(last_step(model))
        self._bag_range = getattr(last_step(model), "bag_range_", (-np.inf, np.inf))
        # Both count where there is one member.
        self._model_map, self._model_instances = self._members[0].platt, self._members[0].instances
        self._first_map: Platt | None = None
        self.learn()

    def _codes(self, y: ArrayLike) -> NDArray[np.int64]:
        y = np.asarray(y)
        if y.shape != (len(self.bags),):
            raise ValueError(f"y needs one label per bag: {len(self.bags)}; got shape {y.shape}.")
        for i in np.flatnonzero(~np.isin(y, self.classes))[:1]:
            raise ValueError(
                f"{self.bags.describe_bag(int(i))} has label {y[i].item()!r}; the model knows "
                f"the classes {self.classes.tolist()}."
            )
        return (y == self.classes[1]).astype(np.int64)

    def _encode(self, instance_labels: InstanceLabels) -> NDArray[np.int8]:
        # Bags of unknown label could be either; what contradicts neither class is accepted.
        if self.y is not None or instance_labels is None:
            y = np.zeros(len(self.bags), dtype=np.int64) if self.y is None else self.y
            return np.array(encode_instance_labels(instance_labels, self.bags, self.classes, y))
        flat = np.asarray(instance_labels, dtype=object)
        held = [flat[a:b] == self.classes[1] for a, b in itertools.pairwise(self.bags.offsets)]
        y = np.array([part.any() for part in held], dtype=np.int64)
        return np.array(encode_instance_labels(flat, self.bags, self.classes, y))

    @property
    def labels(self) -> BagLabels:
        """Labels of bags and instances as the engine takes them."""
        y = np.zeros(len(self.bags), dtype=np.int64) if self.y is None else self.y
        return BagLabels(self.bags.offsets, y, self.known)

    def set_known(self, rows: Sequence[int], values: Sequence[int]) -> NDArray[np.int64]:
        """Set labels (0, 1, or -1 for unknown) without learning; returns the bags they are in."""
        index, codes = np.asarray(rows, dtype=np.int64), np.asarray(values)
        if index.shape != codes.shape or not np.isin(codes, (-1, 0, 1)).all():
            raise ValueError("an answer is 0, 1, or -1 for unknown, one for every row.")
        if len(index) and not (index.min() >= 0 and index.max() < self.bags.n_instances):
            raise ValueError(f"rows are numbers from 0 to {self.bags.n_instances - 1}.")
        owners = np.asarray(self.bags.bag_index)[index]
        if self.y is None:
            self.known[index] = codes
            return np.unique(owners)
        for i in owners[(codes == 1) & (self.y[owners] == 0)][:1]:
            raise ValueError(
                f"{self.bags.describe_bag(int(i))} is labelled {self.classes[0]!s}; none of its "
                f"instances can be {self.classes[1]!s}. Correct the label of the bag first."
            )
        before = self.known[index].copy()
        self.known[index] = codes
        touched = np.unique(owners)
        for i in touched[self.y[touched] == 1]:
            if (self.known[self.bags.offsets[i] : self.bags.offsets[i + 1]] == 0).all():
                self.known[index] = before
                raise ValueError(
                    f"{self.bags.describe_bag(int(i))} is labelled {self.classes[1]!s}; not every "
                    f"one of its instances can be {self.classes[0]!s}. Correct the label of the "
                    "bag first, or skip this instance."
                )
        return touched

    def answer(self, rows: Sequence[int], values: Sequence[int]) -> None:
        """Take answers in at once: only the sites of their bags, and q(v), are updated."""
        touched = self.set_known(rows, values)
        if self.y is None:
            for member in self._members:
                member.condition(self.known)
            return
        for i in touched:
            a, b = int(self.bags.offsets[i]), int(self.bags.offsets[i + 1])
            part = BagLabels(np.array([0, b - a]), self.y[i : i + 1], self.known[a:b])
            for member in self._members:
                member.update_bag(slice(a, b), part)

    def learn(self, progress: Callable[[float], None] | None = None) -> None:
        """Sweep over all bags until q(v) settles, and calibrate again.

        ``progress`` is called with the share of the work that is done.
        """
        n = len(self._members)
        for i, member in enumerate(self._members):
            if self.y is None:
                member.condition(self.known)
                continue

            def tell(told: Iteration, i: int = i) -> bool:
                if progress is not None:
                    progress((i + min(1.0, told.n_iter / self.max_iter)) / n)
                return False

            member.sweep(self.labels, self.max_iter, self.tol, tell)
        if self.y is not None:
            self._left_out = [member.left_out(self.labels) for member in self._members]
            if self._platt is None:
                self._calibrate()
            else:
                self._calibrate_ensemble()
        if progress is not None:
            progress(1.0)

    def _calibrate(self) -> None:
        """A single model's map, carried over as that of an ensemble is."""
        (member,) = self._members
        if self._model_map is not None:
            assert self.y is not None
            now = fit_calibration(self._left_out[0], self.bags.offsets, self.y, member.rule)
            change = self._change(now)
            member.platt = self._model_map.after(change)
            if self._model_instances is not None:
                member.instances = self._model_instances.after(*change)

    def _calibrate_ensemble(self) -> None:
        """The ensemble's map, carried over from the scale of its scores before any answer.

        Known labels change how strongly a bag speaks, and with it the scale of the scores. Maps
        of the left-out scores, before and now, say how the present scale is read on the first.
        """
        assert self._model_platt is not None and self.y is not None
        scores = self._left_out_total()
        now = keep_ranking(fit_platt(scores, self.y), scores)
        self._platt = self._model_platt.after(self._change(now))

    def _change(self, now: Platt) -> Platt:
        """From the present scale of the scores, whose own map is ``now``, to the model's."""
        self._first_map = self._first_map or now
        slope = now.slope / self._first_map.slope
        shift = (now.intercept - self._first_map.intercept) / self._first_map.slope
        return Platt(slope, shift)

    def _left_out_total(self) -> Floats:
        """The members' left-out log-odds of the bags, weighed, [B]."""
        total = np.zeros(len(self.bags))
        for member, left in zip(self._members, self._left_out, strict=True):
            assert member.platt is not None
            total += member.weight * member.platt.log_odds(left.bags)
        return total

    def held_out(self) -> HeldOut:
        """Calibrated log-odds of what has a label, each predicted without it, after `learn`.

        These are the training bags where their labels are known, else the known instances.
        """
        if self.y is None:
            return self._held_out_instances()
        return HeldOut(self._held_out_bags(), self.y, "training bags, each predicted without it")

    def _held_out_instances(self) -> HeldOut:
        rows = np.flatnonzero(self.known >= 0)
        total = np.zeros(len(rows))
        for member in self._members:
            p = sigmoid_moments(*member.without_own_site(rows)).log_odds
            own = member.instance_platt
            total += member.weight * (p if own is None else own.log_odds(p))
        z = total if self._platt is None else self._platt.log_odds(total)
        source = "answered instances, each predicted without its answer"
        return HeldOut(z, (self.known[rows] == 1).astype(np.int64), source)

    def _held_out_bags(self) -> Floats:
        if self._platt is None:
            member, left = self._members[0], self._left_out[0]
            if member.rule == "noisy-or" and member.platt is not None:
                z = member.platt.log_odds(left.instances)
                return bag_log_odds(z, self.bags.offsets, "noisy-or")
            return left.bags if member.platt is None else member.platt.log_odds(left.bags)
        return bent(self._platt.log_odds(self._left_out_total()), *self._bag_range)

    def copy(self) -> Learner:
        """A learner that shares the projected instances and can learn apart from this one."""
        new = copy.copy(self)
        new.known = self.known.copy()
        new._members = [
            replace(m, pi=m.pi.copy(), omega=m.omega.copy(), rho=m.rho.copy())
            for m in self._members
        ]
        return new

    def scores(self) -> Scores:
        """Probability and standard deviation of every bag and instance, from the cache."""
        return _scores(self._members, self._platt, self.labels, self._bag_range)

    def instance_scores(self, rows: Integers) -> tuple[Floats, Floats]:
        """Probability and standard deviation of some instances: a fraction of `scores`."""
        # An instance depends on its bag, so that the bags of the rows are read whole.
        owners, which = np.unique(np.asarray(self.bags.bag_index)[rows], return_inverse=True)
        own_rows, offsets = segments.take(self.bags.offsets, owners)
        members = [replace(m, A=m.A[:, own_rows], r=m.r[own_rows]) for m in self._members]
        labels = BagLabels(offsets, np.zeros(len(owners), dtype=int), self.known[own_rows])
        scores = _scores(members, self._platt, labels, self._bag_range)
        place = offsets[which] + rows - self.bags.offsets[owners[which]]
        return scores.instance[place], scores.instance_std[place]

    def views(self) -> list[View]:
        """The members as the strategies see them."""
        return [
            View(m.A, m.r, m.q.m, m.q.W, m.weight, *_map(m.instance_platt, self._platt))
            for m in self._members
        ]

    def beliefs(self) -> list[tuple[Floats, Floats, Floats]]:
        """Per member q(y = 1), and the sites omega and rho of every instance."""
        return [(member.pi, member.omega, member.rho) for member in self._members]

    def fitted_model(self) -> Any:
        """A copy of the model that has learned the answers; predicts and saves like any other."""
        new = copy.deepcopy(self.model)
        model = last_step(new)
        if isinstance(model, AutoVGPMIL):
            for stored, member in zip(model.members_, self._members, strict=True):
                stored.posterior_mean_, stored.posterior_factor_ = member.q
            assert self._platt is not None
            model.platt_ = self._platt
        else:
            (member,) = self._members
            model.posterior_mean_, model.posterior_factor_ = member.q
            if self.y is not None:
                model.instance_proba_ = member.pi
                model.calibration_ = member.platt
                model.instance_map_ = member.instances
                model.held_out_decision_ = self._held_out_bags()
        return new


def project(model: Any, bags: Bags) -> list[View]:
    """The members of a fitted model on any bags, without labels.

    Examples
    --------
    >>> from bagwise import VGPMIL
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.label import project
    >>> bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> (view,) = project(VGPMIL(n_inducing=10, random_state=0).fit(bags, y), bags)
    >>> view.A.shape == (10, bags.n_instances)
    True
    """
    outer = _outer_platt(last_step(model))
    return [
        View(m.A, m.r, m.q.m, m.q.W, m.weight, *_map(m.instance_platt, outer))
        for m in _members(model, bags, None)
    ]


def _members(model: Any, bags: Bags, y: Ints | None) -> list[_Member]:
    """The Gaussian processes of a model, on the projected bags; equal projections are shared."""
    last = last_step(model)
    inside = model._before_last(bags) if hasattr(model, "steps") else bags
    models: Sequence[Any]
    weights: Sequence[float]
    maps: Sequence[Platt | LatentMap | None]
    tops: Sequence[Platt | None]
    if isinstance(last, AutoVGPMIL):
        if last.whole_members_:
            raise ValueError(
                "labelling needs members that score instances; this AutoVGPMIL has some that look "
                "at whole bags. Fit it with assumption='standard'."
            )
        models, weights, maps = last.members_, last.weights_.tolist(), last.maps_
        tops = last.instance_maps_ or last.maps_
    elif isinstance(last, VariationalClassifier):
        models, weights, maps, tops = [last], [1.0], [last.calibration_], [None]
    else:
        raise ValueError(
            "labelling needs a Gaussian process model (vgpmil and its relatives, or auto-vgpmil); "
            f"got {type(last).__name__}."
        )
    of_bag = 1.0 if y is None else np.repeat(y, bags.sizes)
    shared: dict[tuple[Any, str], tuple[Any, Any]] = {}
    members = []
    for one, weight, platt, top in zip(models, weights, maps, tops, strict=True):
        key = one.scale, repr(one.kernel_)
        if len(models) == 1 or key not in shared:
            shared[key] = _project(one._fitted_projector(_DTYPE), inside)
        A, r = shared[key]
        q = InducingPosterior(one.posterior_mean_, one.posterior_factor_)
        pi = expit(A.T @ q.m) * of_bag
        parts = (one._bag_likelihood(), one._density(), q, pi, one.bag_rule, float(weight), platt)
        members.append(_Member(A, r, *parts, start=q, instances=last.instance_map_, top=top))
    return members


def _project(projector: Projector, bags: Bags) -> tuple[Reals, Floats]:
    """All instances in whitened coordinates, read once, in chunks."""
    A = np.empty((len(projector.Z), bags.n_instances), dtype=_DTYPE, order="F")
    r = np.empty(bags.n_instances)
    for begin in range(0, bags.n_instances, _CHUNK):
        rows = slice(begin, min(begin + _CHUNK, bags.n_instances))
        A[:, rows], r[rows] = projector(bags.instances[rows])
    return A, r


def _outer_platt(model: Any) -> Platt | None:
    """The map of an ensemble's joint log-odds; None for a single model."""
    return model.platt_ if isinstance(model, AutoVGPMIL) else None


def _map(inner: Platt | LatentMap | None, outer: Platt | None) -> Platt:
    """Two maps of log-odds, one after the other; None changes nothing.

    What a single model does to log-odds that are far out is left aside.
    """
    first = Platt(1.0, 0.0) if inner is None else Platt(inner.slope, inner.intercept)
    return first if outer is None else outer.after(first)


def _precision(q: InducingPosterior) -> Floats:
    """Inverse of S = W^T W, from its factor."""
    inverse = linalg.solve_lower(q.W, np.eye(len(q.m)))
    return inverse @ inverse.T


def _per_block(values: Floats, blocks: Sequence[Block]) -> tuple[Floats, ...]:
    ends = np.cumsum([len(block.r) for block in blocks])
    return tuple(np.split(values, ends[:-1]))


def _scores(
    members: Sequence[_Member],
    outer: Platt | None,
    labels: BagLabels,
    bag_range: tuple[float, float],
) -> Scores:
    """Scores from the cache, read as the model itself reads them."""
    voices = [
        Voice(m.weight, _map(m.platt, outer), top=_map(m.instance_platt, outer)) for m in members
    ]
    own = members[0].platt if isinstance(members[0].platt, LatentMap) else None
    spans: list[tuple[Any, ...]] = []
    for blocks in zip(*(make_blocks(m.A, m.r, labels) for m in members), strict=True):
        offsets = np.asarray(blocks[0].labels.offsets)
        read = [
            read_block(block, member.q, member.rule, own, instance_map=member.instances)
            if outer is None
            else read_block(block, member.q, member.rule)
            for block, member in zip(blocks, members, strict=True)
        ]
        if outer is None:
            spans.append(read[0][:4])
        else:
            spans.append(pooled_scores(read, offsets, voices, members[0].instances, bag_range))
    bag, bag_std, instance, instance_std = (np.concatenate(c) for c in zip(*spans, strict=True))
    return Scores(expit(bag), bag_std, expit(instance), instance_std)
