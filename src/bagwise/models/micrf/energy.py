"""The energy of MI-CRF (eq. 2-7): terms, exact pruning, and inference over bags.

A configuration ``L`` holds for every bag the row of the selected instance, or -1 for the
non-instance state. Its energy is ``alpha @ features(L)``: one weight per instance classifier
(Upsilon_f), per non-instance model (Omega_f), for the prior (Pi), and per dissimilarity (Gamma_g).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from bagwise.core import segments
from bagwise.core.arrays import Bools, Floats, Ints

if TYPE_CHECKING:
    from bagwise.core.trws import PairwiseEnergy
    from bagwise.models.micrf.distances import Dissimilarities


Inference = Literal["trws", "icm"]
NONE = -1  # the non-instance state in a configuration


class EnergyTerms(NamedTuple):
    """Everything the energy of a set of bags is made of, before weights."""

    Upsilon: Floats  # [N, F] instance scores, negative = positive instance
    Omega: Floats  # [B, F] non-instance energies, eq. (5)
    X: Floats  # [N, D] scaled instances
    offsets: Ints  # [B + 1]
    factors: Floats  # [3] 1 / mean of each dissimilarity, 0 where it is not used


class TermWeights(NamedTuple):
    """The learned weights, all >= 0."""

    upsilon: Floats  # [F]
    omega: Floats  # [F]
    prior: float
    gamma: Floats  # [3]


class JointDecision(NamedTuple):
    """A configuration from inference."""

    L: Ints  # [B]
    energy: float
    lower_bound: float
    n_states: int  # states that inference saw, non-instances included
    n_dropped: int  # states beyond max_states that were left out without proof


def make_terms(Upsilon: Floats, X: Floats, offsets: Ints, factors: Floats) -> EnergyTerms:
    """EnergyTerms with the non-instance models derived from the instance scores, eq. (5)."""
    return EnergyTerms(Upsilon, -segments.min(Upsilon, offsets), X, offsets, factors)


def unpack(alpha: Floats, n_classifiers: int) -> TermWeights:
    """Split the weight vector into its terms."""
    F = n_classifiers
    return TermWeights(alpha[:F], alpha[F : 2 * F], float(alpha[2 * F]), alpha[2 * F + 1 :])


def unaries(terms: EnergyTerms, w: TermWeights) -> tuple[Floats, Floats]:
    """Unary energies (4) of all instances [N] and of the non-instance of each bag [B]."""
    return terms.Upsilon @ w.upsilon, terms.Omega @ w.omega + w.prior


def features(terms: EnergyTerms, L: Ints) -> Floats:
    """EnergyTerms of the energy of a configuration, so that E(L) = alpha @ features(L)."""
    from bagwise.models.micrf.distances import pair_sums

    chosen = L[L != NONE]
    none = L == NONE
    return np.concatenate(
        [
            terms.Upsilon[chosen].sum(axis=0),
            terms.Omega[none].sum(axis=0),
            [none.sum()],
            pair_sums(np.ascontiguousarray(terms.X[chosen]), terms.factors),
        ]
    )


def prune(inst: Floats, non: Floats, offsets: Ints, max_states: int) -> tuple[Bools, int]:
    """Mask of instances that can win, and how many were dropped beyond ``max_states``.

    Pairwise terms are >= 0 and zero for the non-instance, so an instance whose unary is not
    below its bag's non-instance never lowers the energy: leaving it out is exact. Only where
    more than ``max_states`` remain are the least promising ones dropped without that proof.
    """
    keep = inst < segments.spread(non, offsets)
    kept = keep_lowest(inst, keep, offsets, max_states)
    return kept, int(keep.sum() - kept.sum())


def keep_lowest(inst: Floats, keep: Bools, offsets: Ints, max_states: int) -> Bools:
    """At most ``max_states`` of the kept instances: those nearest to the best of their bag."""
    alive = np.flatnonzero(keep)
    if len(alive) <= max_states:
        return keep.copy()
    best = segments.spread(segments.min(np.where(keep, inst, np.inf), offsets), offsets)
    order = np.argsort(inst[alive] - best[alive], kind="stable")
    kept = np.zeros_like(keep)
    kept[alive[order[:max_states]]] = True
    return kept


def infer(
    inst: Floats,
    non: Floats,
    offsets: Ints,
    gamma: Floats,
    dissimilarities: Dissimilarities,
    method: Inference = "trws",
    max_sweeps: int = 100,
    tol: float = 1e-6,
) -> JointDecision:
    """Lowest-energy configuration (3) for given unaries and pairwise weights."""
    from bagwise.core.trws import icm, trws

    keep, n_dropped = prune(inst, non, offsets, dissimilarities.max_rows)
    n_bags = len(non)
    if not np.any(gamma > 0):  # nothing ties the bags together
        best = segments.argmax(np.where(keep, -inst, -np.inf), offsets)
        L = np.where(segments.max(keep.astype(np.float64), offsets) > 0, best, NONE)
        energy = float(np.where(L == NONE, non, inst[L]).sum())
        return JointDecision(L, energy, energy, int(keep.sum()) + n_bags, n_dropped)
    L = np.full(n_bags, NONE, dtype=np.int64)
    owner = segments.index(offsets)
    n_kept = np.bincount(owner[keep], minlength=n_bags)
    live = np.flatnonzero(n_kept)  # bags with no instance left keep the non-instance
    rest = float(non[n_kept == 0].sum())
    if len(live) == 0:
        return JointDecision(L, rest, rest, n_bags, n_dropped)
    ids = np.flatnonzero(keep)
    problem, state_ids = build(inst, non, ids, owner, live, gamma, dissimilarities)
    found = trws(problem, max_sweeps, tol) if method == "trws" else icm(problem)
    L[live] = state_ids[problem.offsets[:-1] + found.labels]
    bound = found.lower_bound + rest
    return JointDecision(L, found.energy + rest, bound, len(ids) + n_bags, n_dropped)


def build(
    inst: Floats,
    non: Floats,
    ids: Ints,
    owner: Ints,
    live: Ints,
    gamma: Floats,
    dissimilarities: Dissimilarities,
) -> tuple[PairwiseEnergy, Ints]:
    """The pairwise energy over the kept instances of ``live`` bags, and each state's row or -1."""
    from bagwise.core.trws import PairwiseEnergy, block_starts, complete_graph
    from bagwise.models.micrf.distances import fill_blocks

    sizes = np.bincount(owner[ids], minlength=len(non))[live]
    offsets = np.concatenate([[0], np.cumsum(sizes + 1)]).astype(np.int64)
    last = np.zeros(offsets[-1], dtype=bool)
    last[offsets[1:] - 1] = True  # the non-instance is the last state of its bag
    state_ids = np.full(len(last), NONE, dtype=np.int64)
    state_ids[~last] = ids
    unary = np.empty(len(last))
    unary[~last] = inst[ids]
    unary[last] = non[live]
    table, rows = dissimilarities.table(ids)
    place = np.full(len(last), -1, dtype=np.int64)
    place[~last] = rows
    edges = complete_graph(len(live))
    starts = block_starts(offsets, edges)
    blocks = np.empty(starts[-1])
    fill_blocks(table, gamma, place, offsets, edges, starts, blocks)
    return PairwiseEnergy(unary, offsets, edges, starts, blocks), state_ids
