"""How strongly neighbours should be coupled: evidence that needs no labels of instances.

Instances are held out with their bags. What a model says about one of them is compared with what
its neighbours say: where positives lie together, the neighbours of an instance predict the
evidence for it, and where they are scattered they mislead. Bags without positives show how much of
that is not due to positives at all.

(The log-loss of held-out bags does not tell: on simulated grids and chains the maximum over coupled
instances is as good at a strength that ruins the instances as at the best one.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bagwise.core import segments
from bagwise.core.arrays import Codes, Floats, Ints
from bagwise.core.coupling import Graph, couple

STRENGTHS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
# One-sided at 5 %: a strength whose gain, or whose gain over the one before, could be chance is not
# taken.
_LEAST_Z = 1.645
# On a graph with cycles, strengths whose pull on an instance by all neighbours is larger are left
# out: messages then settle on one side or the other whatever the scores say.
_MOST_PULL = 5.0
# Positive bags with known instances from which their labels decide.
_LABELLED_BAGS = 5


class StrengthSearch(NamedTuple):
    """What each strength gains on held-out bags, and the one to take."""

    strength: float
    strengths: Floats  # [S]
    gains: Floats  # [S] mean log-likelihood per bag, over no coupling
    z: Floats  # [S] the same in standard errors
    correlation: float  # of the scores of neighbours in negative bags
    by_labels: bool  # whether known labels of instances decided


def choose_strength(
    log_odds: Floats,
    graph: Graph,
    offsets: Ints,
    y: Ints,
    known: Codes,
    strengths: Sequence[float] = STRENGTHS,
) -> StrengthSearch:
    """The strength that fits held-out instances best; 0 where none gains significantly.

    Where at least five positive bags have known instances of both kinds, the gain is the
    log-likelihood of their labels. Otherwise it is that of the evidence for each instance, given
    its neighbours, in positive bags beyond that in negative ones; and since neighbours whose
    scores err together are not independent witnesses, the strength is reduced by the correlation
    of neighbours in negative bags, where every difference is an error. Strengths are tried in
    rising order, and the first one beyond which the gain does not surely rise is taken: too strong
    a coupling does more harm than one that is a little weak.

    Parameters
    ----------
    log_odds : array of shape (n_instances,)
        From models that did not see the instance's bag.
    graph : Graph
    offsets : array of shape (n_bags + 1,)
    y : array of shape (n_bags,)
        1 for positive bags, else 0.
    known : array of shape (n_instances,)
        Labels of instances, -1 where unknown.
    strengths : sequence of float, default=(0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
    """
    positive = y == 1
    labelled = positive & (segments.max(known, offsets) >= 0)
    shown = known[segments.spread(labelled, offsets) & (known >= 0)]
    by_labels = bool(labelled.sum() >= _LABELLED_BAGS and 0 < shown.mean() < 1)
    correlation = neighbour_correlation(log_odds, graph, offsets, ~positive)
    most = np.inf
    if graph.kind != "chain" and len(graph.weights):
        source = np.repeat(np.arange(len(graph.order)), np.diff(graph.starts))
        pull = np.bincount(source, weights=graph.weights, minlength=len(graph.order))
        # Messages on a graph with cycles can be trusted up to here.
        most = _MOST_PULL / max(float(np.median(pull)), 1.0) + 1e-9
    strengths = [J for J in strengths if most >= J]
    sign = np.where(known == 1, -1.0, 1.0)
    gains, z, step_z = np.empty((3, len(strengths)))
    before = np.zeros(len(y))
    for k, strength in enumerate(strengths):
        coupled = couple(log_odds, graph, strength)
        if by_labels:
            # log p(label) is -log(1 + e^(sign z)).
            each = np.logaddexp(0, sign * log_odds) - np.logaddexp(0, sign * coupled)
            gain = segments.sum(np.where(known >= 0, each, 0.0), offsets)
            compared = labelled, np.zeros(len(y), dtype=bool)
        else:
            gain = segments.sum(evidence_gain(log_odds, coupled, graph), offsets)
            compared = positive, ~positive
        gains[k], z[k] = _standardised(gain, *compared)
        step_z[k] = _standardised(gain - before, *compared)[1]
        before = gain
    flat = np.append(step_z[1:] < _LEAST_Z, True)  # the first such step ends the rise
    rising = 1 + int(np.argmax(flat))
    sure = np.flatnonzero((z[:rising] >= _LEAST_Z) & (gains[:rising] > 0))
    chosen = 0.0
    if len(sure):
        chosen = float(strengths[sure[-1]])
        chosen *= 1.0 if by_labels else 1.0 - max(correlation, 0.0)
    return StrengthSearch(chosen, np.asarray(strengths), gains, z, correlation, by_labels)


def evidence_gain(log_odds: Floats, coupled: Floats, graph: Graph) -> Floats:
    """Log-likelihood of the evidence for each instance given its neighbours, over without, [N].

    The evidence is the likelihood ratio ``e^l``, ``l`` the log-odds beyond those of the mean rate
    of the stretch. An instance whose probability is ``c`` by its neighbours alone has the
    likelihood ``1 - c + c e^l``; ``c`` has the coupled log-odds less ``l``.
    """
    places = log_odds[graph.order]
    log_yes, log_no = -np.logaddexp(0, -places), -np.logaddexp(0, places)
    rate = segments.logsumexp(log_yes, graph.offsets) - segments.logsumexp(log_no, graph.offsets)
    prior = np.empty(len(log_odds))  # log-odds of the mean rate of each instance's stretch
    prior[graph.order] = segments.spread(rate, graph.offsets)
    evidence = log_odds - prior
    alone = np.logaddexp(0, log_odds) - np.logaddexp(0, log_odds - evidence)
    return np.logaddexp(0, coupled) - np.logaddexp(0, coupled - evidence) - alone


def _standardised(
    gain: Floats, some: NDArray[np.bool_], others: NDArray[np.bool_]
) -> tuple[float, float]:
    """Mean gain of some bags over that of others, or over 0 without; also in standard errors."""
    difference, variance = 0.0, 0.0
    for sign, bags in ((1, some), (-1, others)):
        own = gain[bags]
        if len(own):
            difference += sign * float(own.mean())
            variance += float(own.var(ddof=1)) / len(own)
    return difference, difference / float(np.sqrt(variance)) if variance > 0 else 0.0


def neighbour_correlation(
    log_odds: Floats, graph: Graph, offsets: Ints, bags: NDArray[np.bool_]
) -> float:
    """Weighted correlation of the scores of neighbours in some bags, each about its bag's mean."""
    centred = log_odds - segments.spread(segments.mean(log_odds, offsets), offsets)
    rows = segments.spread(bags, offsets)
    source = graph.order[np.repeat(np.arange(len(graph.order)), np.diff(graph.starts))]
    target = graph.order[graph.ends]
    used = rows[source]
    total, variance = graph.weights[used].sum(), np.mean(centred[rows] ** 2)
    if total == 0 or variance == 0:
        return 0.0
    products = graph.weights[used] * centred[source[used]] * centred[target[used]]
    return float(products.sum() / total / variance)
