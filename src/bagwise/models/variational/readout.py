"""One read-out: probabilities, deviations, intervals and fractions from one distribution of f.

A fitted `Process` is a Gaussian distribution of the latent function. Bags are read from draws of
it: each draw has its own probability of the bag, their mean is the prediction, their spread its
uncertainty. Of a single instance f is normal with known moments, so that quadrature does what
draws do, without their noise. Two questions are answered about an instance:

alone   would a bag of this instance alone be positive?  E sigmoid(f)
share   is it one of those that made its bag positive?   P(bag) E share(f), see `calibration.fit`

A line, ``slope * log-odds + intercept``, calibrates bags; it moves every draw alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import expit, ndtri

from bagwise.bags import Bags, check_bags
from bagwise.core import linalg, segments
from bagwise.core.arrays import (
    Array,
    Floats,
    Ints,
    Rows,
    beside,
    concatenate,
    namespace,
    softplus,
    to_numpy,
)
from bagwise.core.arrays import expit as sigmoid
from bagwise.core.finite import all_finite
from bagwise.core.gaussians import sigmoid_moments
from bagwise.files import map_rows_of
from bagwise.models.calibration.fit import Platt
from bagwise.models.classes import TWO_CLASSES, ClassRule, ClassScores
from bagwise.models.drivers import Span, cut
from bagwise.models.execution import Execution
from bagwise.models.variational.blocks import BagLabels, Block
from bagwise.models.variational.inference import Posteriors, directions, latent_draws, make_draws
from bagwise.models.variational.likelihoods import BagLikelihood
from bagwise.models.variational.projection import Projector, project_span, rows_of, share_out

# Draws of a prediction, and their seed: another than that of the fits.
_N_DRAWS, _SEED = 128, 1
# Log-odds beyond these are those of a probability that float64 still tells from 0 and 1.
_FARTHEST = 36.0

Question = Literal["share", "alone"]
Wanted = Literal["bags", "instances", "both", "latent", "fractions", "raw"]


class Process(NamedTuple):
    """Fitted latent functions on one projection: one for every positive class, F of them."""

    projector: Projector
    m: Floats  # [F, M]
    W: Floats  # [F, M, M], q(v) = N(m, W^T W)
    f0: Floats  # [F] prior means
    likelihood: BagLikelihood


class Latent(NamedTuple):
    """What a process says about a block, before calibration."""

    bag: Floats  # [b, F] log-odds of the mean probability
    draws: Floats  # [b, F, S] log-odds of every draw
    mean: Floats  # [n, F] of f at the instances, less what a bag of one would take off
    var: Floats  # [n, F]
    functions: Array | None = None  # [n, F, S] draws of it, where asked for


def read_block(block: Block, process: Process, functions: bool = False) -> Latent:
    """Bags and instances of a block; worked out where it lives.

    Every bag sees the same draws of v. The residuals of its instances are numbered by their rank
    in the bag, so that neither the order of instances nor that of bags changes anything.
    """
    A, offsets, likelihood = block.A, block.labels.offsets, process.likelihood
    draws = make_draws(A.shape[0], _N_DRAWS, _SEED)
    readings: list[tuple[Any, ...]] = []
    for f in range(len(process.m)):
        m, W = (beside(np.ascontiguousarray(x), A) for x in (process.m[f], process.W[f]))
        mean, var = linalg.first_two_moments(m, W, A)
        mean, var = mean + float(process.f0[f]), var + beside(block.r, A)
        one = slice(f, f + 1)
        v = directions(Posteriors(process.m[one], process.W[one], process.W[one]), draws.U[:1])
        labels = BagLabels(offsets, offsets[1:], row=_ranks(mean, offsets))
        F = latent_draws(block._replace(labels=labels), v, process.f0[one], draws.E)  # [n, 1, S]
        odds = likelihood.log_odds(F, offsets)[:, 0]
        if getattr(likelihood, "of_marginals", False):  # the papers' rules
            p = sigmoid_moments(to_numpy(mean), to_numpy(var)).log_odds
            bag = likelihood.log_odds(beside(p, A)[:, None, None], offsets)[:, 0, 0]
        else:
            bag = _log_mean_sigmoid(odds) - _log_mean_sigmoid(-odds)
        alone = likelihood.alone(F[:, 0]) if functions else None
        readings.append((bag, odds, likelihood.alone(mean), var, alone))
    *columns, drawn = zip(*readings, strict=True)
    bag, odds, mean, var = (np.stack([to_numpy(part) for part in x], 1) for x in columns)
    return Latent(bag, odds, mean, var, namespace(A).stack(drawn, 1) if functions else None)


def _ranks(values: Array, offsets: segments.Offsets) -> Any:
    """Rank of every instance within its bag, by its latent mean."""
    starts = np.asarray(to_numpy(offsets), dtype=np.int64)
    order = np.lexsort((to_numpy(values), segments.index(starts)))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - segments.spread(starts[:-1], starts)
    return beside(rank, values)


def _log_mean_sigmoid(z: Array) -> Array:
    """Logarithm of the mean of sigmoid(z) over the last axis."""
    xp, log_p = namespace(z), -softplus(-z)
    top = xp.amax(log_p, -1)
    return top + xp.log(xp.exp(log_p - top[..., None]).mean(-1))


class Columns(NamedTuple):
    """Log-odds of a probability, its standard deviation, and the ends of an interval."""

    log_odds: Floats
    std: Floats
    low: Floats
    high: Floats

    def holding(self) -> Columns:
        """No probability is 0 or 1, and intervals hold it: a skewed mean may lie in a tail."""
        log_odds = np.clip(self.log_odds, -_FARTHEST, _FARTHEST)
        p = expit(log_odds)
        return Columns(log_odds, self.std, np.minimum(self.low, p), np.maximum(self.high, p))


@dataclass(frozen=True)
class Predictor:
    """Processes, how much each counts, and what calibrates them: all that predicts.

    The log-odds of bags are the weighted sum of those of the processes, and so is f.
    """

    processes: tuple[Process, ...]
    weights: tuple[float, ...]
    lines: tuple[Platt, ...] | None = None  # [F]; None where nothing was calibrated
    shares: tuple[Platt | None, ...] = ()  # [F]
    rule: ClassRule = TWO_CLASSES

    def blend(self, latents: list[Latent]) -> Latent:
        """One latent function from those of the processes."""
        if len(latents) == 1:
            return latents[0]
        w: Any = np.array(self.weights)
        columns: Any = list(zip(*latents, strict=True))
        bag, draws, mean = (np.tensordot(w, np.stack(x), 1) for x in columns[:3])
        var = np.tensordot(w * w, np.stack(columns[3]), 1)
        functions: Any = None
        if latents[0].functions is not None:
            functions = sum(k * x for k, x in zip(self.weights, columns[4], strict=True))
        return Latent(bag, draws, mean, var, functions)

    def bags(self, latent: Latent, interval: float) -> Columns:
        """Bags [b], or their classes [b, C]."""
        bag, draws = self._calibrated(latent.bag), self._calibrated(latent.draws)
        if self.rule.binary:
            bag, p = bag[:, 0], expit(draws[:, 0])
        else:
            b, F, S = draws.shape
            flat = draws.transpose(0, 2, 1).reshape(b * S, F)
            p = expit(self.rule.of_bags(flat, np.zeros_like(flat)).log_odds)
            p = p.reshape(b, S, -1).transpose(0, 2, 1)
            bag = self.rule.of_bags(bag, np.zeros_like(bag)).log_odds
        low, high = np.quantile(p, [(1 - interval) / 2, (1 + interval) / 2], axis=-1)
        return Columns(bag, p.std(-1), low, high).holding()

    def _calibrated(self, log_odds: Floats) -> Floats:
        """Log-odds [b, F] or [b, F, S] through the line of every class."""
        if self.lines is None:
            return log_odds
        slopes, intercepts = (np.array(x) for x in zip(*self.lines, strict=True))
        shape = (1, -1) + (1,) * (log_odds.ndim - 2)
        return slopes.reshape(shape) * log_odds + intercepts.reshape(shape)

    @property
    def default_question(self) -> Question:
        """What an uncalibrated model can say of an instance is what it would do alone."""
        return "share" if self.shares and all(s is not None for s in self.shares) else "alone"

    def instances(
        self, latent: Latent, offsets: Ints, question: Question | None, interval: float
    ) -> Columns:
        """Instances [n], or their classes [n, C]."""
        question = question or self.default_question
        if question == "share" and self.default_question == "alone":
            raise ValueError(
                "question='share' needs a calibrated model, which compares held-out positive and "
                "negative bags; fit with calibrate=True, or ask question='alone'."
            )
        std = expit(self._calibrated(latent.draws)).std(-1)
        bags = ClassScores(self._calibrated(latent.bag), std)  # [b, F]
        spread = ClassScores(*(segments.spread(x, offsets) for x in bags))  # [n, F]
        share = question == "share"
        columns = [
            self._one_class(latent, f, spread if share else None, interval)
            for f in range(std.shape[1])
        ]
        if self.rule.binary:
            return columns[0].holding()
        log_odds, std = (np.stack(x, 1) for x in list(zip(*columns, strict=True))[:2])
        if self.lines is None:
            scores = self.rule.of_instances(log_odds, std)
        else:
            classes = self.rule.of_bags(*bags)
            inside = ClassScores(*(segments.spread(x, offsets) for x in classes))
            each = ClassScores(np.minimum(log_odds, spread.log_odds), std)
            scores = self.rule.inside_bags(each, spread, inside)
        p = expit(scores.log_odds)
        half = ndtri((1 + interval) / 2) * scores.std
        return Columns(*scores, np.maximum(p - half, 0.0), np.minimum(p + half, 1.0)).holding()

    def _one_class(
        self, latent: Latent, f: int, bag: ClassScores | None, interval: float
    ) -> Columns:
        """Instances of one class, by quadrature over their f; ``bag`` None asks for `alone`."""
        mean, var = latent.mean[:, f], latent.var[:, f]
        tails = ndtri(np.array([(1 - interval) / 2, (1 + interval) / 2]))
        ends = mean + np.sqrt(var) * tails[:, None]  # [2, n]
        if bag is None:
            alone = sigmoid_moments(mean, var)
            return Columns(alone.log_odds, alone.std, *expit(ends))
        share = self.shares[f]
        assert share is not None
        s = sigmoid_moments(share.log_odds(mean), share.slope**2 * var)
        odds, sd = bag.log_odds[:, f], bag.std[:, f]
        P, p, square = expit(odds), s.mean, s.mean**2 + s.std**2
        # Independent factors: E (P s)^2 = E P^2 E s^2.
        std = np.sqrt(np.maximum((P**2 + sd**2) * square - (P * p) ** 2, 0.0))
        log_p = -np.logaddexp(0, -odds) - np.logaddexp(0, -s.log_odds)
        log_odds = log_p - np.log(-np.expm1(np.minimum(log_p, -1e-16)))
        return Columns(log_odds, std, *(P * expit(share.log_odds(ends))))

    def fractions(
        self, latent: Latent, offsets: Ints, question: Question | None, interval: float
    ) -> Columns:
        """Share of positive instances of every bag [b], or of every class [b, C].

        The first column is the share itself, the mean of the instances' probabilities.
        """
        instances = self.instances(latent, offsets, question, interval)
        mean = segments.mean(expit(instances.log_odds), offsets)
        share = (question or self.default_question) == "share"
        draws, drawn_shares = expit(self._calibrated(latent.draws)), []
        assert latent.functions is not None
        for f in range(draws.shape[1]):
            u, calibration = latent.functions[:, f], self.shares[f] if share else None
            p = sigmoid(u if calibration is None else calibration.log_odds(u))
            part = to_numpy(segments.mean(p, beside(offsets, u)))
            drawn_shares.append(part if calibration is None else part * draws[:, f])
        drawn = np.stack(drawn_shares, 1)  # [b, F, S]
        if self.rule.binary:
            p = drawn[:, 0]
        else:
            p = np.empty((len(drawn), self.rule.n_classes, drawn.shape[2]))
            p[:, self.rule.findings] = drawn
            if self.rule.background is not None:
                p[:, self.rule.background] = np.maximum(1 - drawn.sum(1), 0.0)
        # The interval of the draws, about the share itself.
        tails = np.quantile(p, [(1 - interval) / 2, (1 + interval) / 2], axis=-1)
        low, high = np.clip(tails + (mean - p.mean(-1)), 0.0, 1.0)
        return Columns(mean, p.std(-1), np.minimum(low, mean), np.maximum(high, mean))

    def latent(self, latent: Latent) -> tuple[Floats, Floats]:
        """Mean and variance of f at every instance; NaN for a background."""
        if self.rule.binary:
            return latent.mean[:, 0], latent.var[:, 0]
        out = np.full((2, len(latent.mean), self.rule.n_classes), np.nan)
        out[0][:, self.rule.findings], out[1][:, self.rule.findings] = latent.mean, latent.var
        return out[0], out[1]


class NotFiniteError(ValueError):
    """Rows that were read for the first time hold NaN or infinity."""


class RowPart(NamedTuple):
    """Neighbouring bags to predict: their rows, read on demand."""

    X: Rows
    spans: tuple[Span, ...]
    offsets: Ints  # of all bags


@dataclass(frozen=True)
class Reading:
    """What is asked of a predictor; called on a part wherever the driver works on it."""

    predictor: Predictor
    wanted: Wanted
    question: Question | None = None
    interval: float = 0.9
    device: str | None = None
    check: bool = False  # whether the rows have not been looked at for NaN and infinity

    def __call__(self, part: RowPart) -> tuple[Floats, ...]:
        """Columns about the bags of a part; rows are read once for all processes."""
        device, predictor, start = self.device, self.predictor, part.spans[0].start
        processes = [p._replace(projector=p.projector.to(device)) for p in predictor.processes]
        functions, read = self.wanted == "fractions", []
        for span in part.spans:
            rows = part.X[span.start - start : span.stop - start]
            if self.check and not all_finite(rows):
                raise NotFiniteError
            offsets = part.offsets[span.first_bag : span.last_bag + 1] - span.start
            labels, latents = BagLabels(offsets, offsets[1:]), []
            with np.errstate(over="ignore", invalid="ignore"):  # `read_bags` checks what comes out
                for p in processes:
                    own = p.projector, span.first_bag, span.start
                    latents.append(read_block(project_span(rows, labels, span, *own), p, functions))
                read.append(self.columns(predictor.blend(latents), offsets))
        return tuple(concatenate(column) for column in zip(*read, strict=True))

    def columns(self, latent: Latent, offsets: Ints) -> tuple[Floats, ...]:
        """Columns of bags [b] or instances [n]; with several classes [.., C]."""
        match self.wanted:
            case "raw":
                return latent.bag, latent.mean, latent.var
            case "latent":
                return self.predictor.latent(latent)
            case "bags":
                return self.predictor.bags(latent, self.interval)
            case "fractions":
                return self.predictor.fractions(latent, offsets, self.question, self.interval)
        instances = self.predictor.instances(latent, offsets, self.question, self.interval)
        if self.wanted == "instances":
            return instances
        return *self.predictor.bags(latent, self.interval), *instances


def read_bags(
    predictor: Predictor,
    bags: Bags,
    execution: Execution,
    wanted: Wanted,
    question: Question | None = None,
    interval: float | None = None,
) -> tuple[Floats, ...]:
    """Columns about checked bags, by the driver."""
    X, M = map_rows_of(bags.instances), len(predictor.processes[0].projector.Z)
    device = execution.torch_device(X)
    driver = execution.make_driver(bags.n_instances * M, device)
    spans = cut(bags.offsets, execution.chunk(device is not None, driver, bags.n_instances))
    check = hasattr(bags.instances, "select_rows")
    read = Reading(predictor, wanted, question, interval or 0.9, device, check)
    parts = [RowPart(rows_of(X, g), g, bags.offsets) for g in share_out(spans, driver.n_parts)]
    try:
        columns = list(driver.map(read, parts))
    except NotFiniteError:
        check_bags(bags)  # says where
        raise
    values = tuple(concatenate(column) for column in zip(*columns, strict=True))
    of_f = wanted == "latent" and not predictor.rule.binary  # of a background there is no f
    for column in values:
        shown = column[:, predictor.rule.findings] if of_f else column
        bad = np.flatnonzero(~np.isfinite(shown).reshape(len(shown), -1).all(1))
        if len(bad):
            of_bags = len(column) == len(bags)
            bag = bad[0] if of_bags else np.searchsorted(bags.offsets, bad[0], side="right") - 1
            raise ValueError(
                f"the prediction for bag {bags.ids[bag]!r} is not a finite number: the numbers of "
                "the model are damaged, or those of the bag are too large."
            )
    return values
