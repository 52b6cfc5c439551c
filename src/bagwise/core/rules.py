"""Between bags and instances: probabilities up, under the MIL assumption, and labels down.

`RULES` is the one table of bag rules: an entry there is a value of every ``bag_rule``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
from numpy.typing import ArrayLike

from bagwise.core import segments
from bagwise.core.arrays import ArrayT, Codes, Floats, Ints, namespace, softplus


class BagRule(Protocol):
    """How the log-odds of instances become those of their bag."""

    # Whether any score that rises with the probability will do: to calibrate a bag's score is then
    # to calibrate the scores of its instances.
    takes_scores: bool
    # Whether it is applied to the instances' probabilities, not to draws of a latent function.
    of_marginals: bool

    def log_odds(self, instances: ArrayT, offsets: segments.Offsets) -> ArrayT:
        """Log-odds of bags [b, ...] from those of their instances [n, ...]."""
        ...

    def alone(self, instances: ArrayT) -> ArrayT:
        """Log-odds of bags of one instance each."""
        ...


@dataclass(frozen=True)
class Largest:
    """A bag is as probable as its most probable instance."""

    takes_scores = of_marginals = True

    def log_odds(self, instances: ArrayT, offsets: segments.Offsets) -> ArrayT:
        """The largest log-odds of a bag's instances."""
        return segments.max(instances, offsets)

    def alone(self, instances: ArrayT) -> ArrayT:
        """A bag of one is its instance."""
        return instances


@dataclass(frozen=True)
class NoisyOr(Largest):
    """A bag is positive unless all of its instances, which are independent, are negative."""

    takes_scores = False

    def log_odds(self, instances: ArrayT, offsets: segments.Offsets) -> ArrayT:
        """Those of 1 - prod(1 - p), in the log domain: a bag of 50,000 instances is safe."""
        xp = namespace(instances)
        # log(1 - p) = -softplus(log-odds)
        log_none = -segments.sum(softplus(instances), offsets)
        with np.errstate(divide="ignore"):
            log_some = xp.log(-xp.expm1(log_none))
        # Where every p underflows, 1 - prod(1 - p) is their sum: the score stays finite.
        tiny = log_none > -1e-200
        if tiny.any():
            log_some = xp.where(tiny, segments.logsumexp(instances, offsets), log_some)
        return cast("ArrayT", log_some - log_none)


RULES: dict[str, BagRule] = {"max": Largest(), "noisy-or": NoisyOr()}


def bag_log_odds(instances: ArrayT, offsets: segments.Offsets, rule: str) -> ArrayT:
    """Log-odds that a bag has a positive instance, from those of its instances, by a rule."""
    return RULES[rule].log_odds(instances, offsets)


def inherited_labels(y: Ints, known: Codes, offsets: Ints) -> Ints:
    """Label of each instance: its own where known (not -1), else its bag's, [N]."""
    return np.where(known >= 0, known, segments.spread(y, offsets))


def log_odds(p: ArrayLike) -> Floats:
    """Log-odds of a probability, finite for p in {0, 1}."""
    eps = np.finfo(np.float64).tiny
    return np.log(np.maximum(p, eps)) - np.log1p(-np.minimum(p, 1 - np.finfo(np.float64).epsneg))
