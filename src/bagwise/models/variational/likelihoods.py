"""Bag likelihoods with the hidden instance labels summed out, as functions of draws of f.

A likelihood is two small objects. A *pool* makes one score of a bag from the latent function at
its instances, ``g = g(f_1, ..., f_n)``; a *link* says how likely the bag's label is at that score,
``log p(T | g)``. With ``w = dg/df`` and ``d2g/df2 = diag(w h) - k w w^T``,

    gradient by f          l'(g) w
    negative Hessian       (k l' - l'') w w^T - diag(l' w h)

so that one pair of derivatives of each serves every model. All functions take S draws of f in each
of T tasks for the instances of whole bags, [n, T, S], and give one value per bag, [b, T, S].

| likelihood   | pool g                              | link                    |
|--------------|-------------------------------------|-------------------------|
| `Or(h)`      | log of n^-h sum_i softplus(f_i)     | p = 1 - exp(-e^g)       |
| `SoftMax(t)` | log(sum_i exp(t f_i) / n_0) / t     | p = 1 / (1 + e^-g)      |
| `Score`      | as `SoftMax`                        | any in one dimension    |
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from bagwise.core import segments
from bagwise.core.arrays import Array, as_float, at_least, at_most, expit, like, namespace, softplus
from bagwise.models.variational.blocks import BagLabels

# A log p of a bag that no draw makes possible is that of this score, finite in single precision.
_TINY = 1e-30


class Pooled(NamedTuple):
    """The score of every bag, and its derivatives by the latent function of the instances."""

    g: Array  # [b, T, S]
    w: Array  # [n, T, S] or [n, 1, 1]: dg/df
    h: Array | float  # [n, T, S] or one number: d2g/df2 = diag(w h) - k w w^T
    k: float


class Linked(NamedTuple):
    """Logarithm of the probability of the labels at a score, and its two derivatives."""

    value: Array  # [b, T, S]
    slope: Array  # [b, T, S]
    curve: Array  # [b, T, S]


class Terms(NamedTuple):
    """What a pass needs of a block: see the table of this module."""

    value: Array  # [b, T, S] log p(T | f)
    gradient: Array  # [n, T, S]
    diagonal: Array | None  # [n, T] of the negative Hessian, mean over the draws; None means 0
    direction: Array  # [n, T, S] or [n, 1, 1] w
    strength: Array  # [b, T, S] of w w^T


@dataclass(frozen=True)
class Logit:
    """``p(T = 1 | g) = 1 / (1 + e^-g)``."""

    def at(self, g: Array, y: Array) -> Linked:
        """Log-probability of the label and its derivatives."""
        p = expit(g)
        return Linked(-softplus((1 - 2 * y) * g), y - p, -p * (1 - p))

    def log_odds(self, g: Array) -> Array:
        """Of a positive bag."""
        return g


@dataclass(frozen=True)
class LogLog:
    """``p(T = 1 | g) = 1 - exp(-s)``, ``s = e^g`` (the complementary log-log link)."""

    def at(self, g: Array, y: Array) -> Linked:
        """Log-probability of the label and its derivatives.

        For T = 1 with u = s / (e^s - 1): l' = u, l'' = u (1 - s - u). For T = 0 both are -s.
        """
        xp = namespace(g)
        s = at_least(xp.exp(at_most(g, 80.0)), _TINY)
        small = at_most(s, 50.0)  # beyond, u is 0 and exp would overflow
        u = s / xp.expm1(small)
        positive = y == 1
        value = xp.where(positive, xp.log(-xp.expm1(-s)), -s)
        return Linked(value, xp.where(positive, u, -s), xp.where(positive, u * (1 - s - u), -s))

    def log_odds(self, g: Array) -> Array:
        """Of a positive bag: ``log(e^s - 1)``."""
        xp = namespace(g)
        s = at_least(xp.exp(at_most(g, 80.0)), _TINY)
        return s + xp.log(-xp.expm1(-s))


@dataclass(frozen=True)
class Noisy:
    """A link whose label is wrong with probability ``error``: p' = e + (1 - 2 e) p.

    With the responsibility o = (1 - 2 e) p / p' that the label is right: l' of p' is o l', and
    l'' is o l'' + o (1 - o) l'^2.
    """

    link: Logit | LogLog
    error: float

    def __post_init__(self) -> None:
        if not 0 < self.error < 0.5:
            raise ValueError(f"error must be in (0, 0.5); got {self.error!r}.")

    def at(self, g: Array, y: Array) -> Linked:
        """Log-probability of the label and its derivatives."""
        xp, clean = namespace(g), self.link.at(g, y)
        p = (1 - 2 * self.error) * xp.exp(clean.value)
        right = p / (self.error + p)
        curve = right * clean.curve + right * (1 - right) * clean.slope**2
        return Linked(xp.log(self.error + p), right * clean.slope, curve)

    def log_odds(self, g: Array) -> Array:
        """Of a positive bag."""
        p = self.error + (1 - 2 * self.error) * expit(self.link.log_odds(g))
        return namespace(g).log(p / (1 - p))


@runtime_checkable
class BagLikelihood(Protocol):
    """What inference asks of a likelihood; a user's own needs these methods and no more.

    Examples
    --------
    >>> from bagwise.models.variational import BagLikelihood, Or
    >>> isinstance(Or(), BagLikelihood)
    True
    """

    @property
    def standard(self) -> bool:
        """Whether no instance can lower the probability of its bag."""

    def terms(self, F: Array, labels: BagLabels) -> Terms:
        """Value, gradient and curvature of the labels of whole bags at draws of f [n, T, S]."""
        ...

    def log_odds(self, F: Array, offsets: segments.Offsets) -> Array:
        """Log-odds of positive bags at draws of f, [b, T, S]."""
        ...

    def alone(self, f: Array) -> Array:
        """Log-odds that a bag of this one instance is positive, elementwise."""
        ...


class _PooledLikelihood(ABC):
    """A pool and a link; instance labels that are known are logistic terms of their own."""

    error: float  # how probable it is that the label of a bag is wrong
    clean: ClassVar[Any]  # the link of labels that are never wrong
    settles: ClassVar[bool] = False  # whether one known positive instance settles its bag

    @property
    def noisy(self) -> Any:
        """The link of the labels that there are."""
        return Noisy(self.clean, self.error) if self.error else self.clean

    @abstractmethod
    def pool(self, F: Array, labels: BagLabels) -> Pooled:
        """The score of every bag, and its derivatives."""

    def alone(self, f: Array) -> Array:
        """Log-odds that a bag of this one instance is positive."""
        return f

    def log_odds(self, F: Array, offsets: segments.Offsets) -> Array:
        """Log-odds of positive bags at draws of f, [b, T, S]."""
        return self.noisy.log_odds(self.pool(F, BagLabels(offsets, offsets[1:])).g)

    def terms(self, F: Array, labels: BagLabels) -> Terms:
        """Value, gradient and curvature of the labels of whole bags at draws of f [n, T, S]."""
        g, w, h, k = self.pool(F, labels)
        value, slope, curve = self.noisy.at(g, like(labels.y, F)[..., None])
        weight = labels.weight
        if self.settles and not labels.nothing_known:
            rest = as_float(~labels.has_positive)
            weight = rest if weight is None else weight * rest
        if weight is not None:  # how often the label of each bag counts
            weight = like(weight[..., None], F)  # [b, T, 1]
            value, slope, curve = weight * value, weight * slope, weight * curve
        gradient = w * segments.spread(slope, labels.offsets)
        diagonal = None if isinstance(h, float) and h == 0 else -(gradient * h).mean(-1)
        terms = Terms(value, gradient, diagonal, w, k * slope - curve)
        return terms if labels.nothing_known else self._with_known(terms, F, labels)

    def _with_known(self, terms: Terms, F: Array, labels: BagLabels) -> Terms:
        """The terms and ``log sigmoid(+-alone(f))`` of every instance whose label is known."""
        assert labels.known is not None
        xp, known = namespace(F), labels.known[..., None]
        z = self.alone(F)
        y, counts = like(known == 1, F), like(known >= 0, F)
        if labels.each is not None:
            counts = counts * like(labels.each, F)[..., None]
        p = expit(z)
        value = xp.where(known >= 0, -softplus((1 - 2 * y) * z), 0.0) * counts
        diagonal = (counts * p * (1 - p)).mean(-1)
        return terms._replace(
            value=terms.value + segments.sum(value, labels.offsets),
            gradient=terms.gradient + counts * (y - p),
            diagonal=diagonal if terms.diagonal is None else terms.diagonal + diagonal,
        )


@dataclass(frozen=True)
class Or(_PooledLikelihood):
    """At least one instance is positive, independently given f: p = 1 - prod sigmoid(-f_i).

    Parameters
    ----------
    h : float in [0, 1], default=0.0
        Weighs the instances of a bag of n by n^-h: 0 takes them for independent evidence, 1
        counts a bag once however large it is.
    error : float in [0, 0.5), default=0.0
        Probability that the label of a bag is wrong.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational import Or
    >>> F = np.log(np.array([1.0, 3.0]))[:, None, None]  # probabilities 1/2 and 3/4, one bag
    >>> odds = np.exp(Or().log_odds(F, np.array([0, 2])))
    >>> (odds / (1 + odds)).round(6).tolist()
    [[[0.875]]]
    """

    h: float = 0.0
    error: float = 0.0
    clean: ClassVar[Any] = LogLog()
    settles: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.h <= 1:
            raise ValueError(f"h must be in [0, 1]; got {self.h!r}.")
        _ = self.noisy

    @property
    def standard(self) -> bool:
        """Only without n^-h can no instance lower the probability of its bag."""
        return self.h == 0

    def pool(self, F: Array, labels: BagLabels) -> Pooled:
        """``g = log s``, ``s = n^-h sum softplus(f)``: w = sigma n^-h / s, h = 1 - sigma, k = 1."""
        xp, offsets = namespace(F), labels.offsets
        soft, sigma = softplus(F), expit(F)
        if labels.known is not None and not labels.nothing_known:
            # Those known are terms of their own.
            unknown = like(labels.known < 0, F)[..., None]
            soft, sigma = soft * unknown, sigma * unknown
        h, part = 1 - sigma, sigma
        if self.h:
            n = like(segments.lengths(offsets)[:, None, None], F)  # [b, 1, 1]
            scale = segments.spread(n**-self.h, offsets)
            soft, part = soft * scale, sigma * scale
        s = at_least(segments.sum(soft, offsets), _TINY)
        return Pooled(xp.log(s), part / segments.spread(s, offsets), h, 1.0)


@dataclass(frozen=True)
class SoftMax(_PooledLikelihood):
    """A soft maximum of f decides: ``g = log(sum_i exp(tau f_i) / n_0) / tau``, p = sigmoid(g).

    ``tau`` = 0 is the mean of f, a large tau its maximum. With ``size`` (n_0) fixed, another
    instance can only raise g: the standard assumption. ``size=None`` divides by the size of the
    bag itself, which makes g a mean that an instance may lower.

    Parameters
    ----------
    tau : float, default=0.0
    size : float or None, default=None
        n_0; a number of instances, such as the median of the training bags.
    error : as for `Or`, default=0.0

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational import SoftMax
    >>> F = np.array([-1.0, 3.0])[:, None, None]
    >>> SoftMax(0.0).log_odds(F, np.array([0, 2])).tolist()  # of one bag: the mean
    [[[1.0]]]
    """

    tau: float = 0.0
    size: float | None = None
    error: float = 0.0
    clean: ClassVar[Any] = Logit()

    def __post_init__(self) -> None:
        if not (np.isfinite(self.tau) and self.tau >= 0):
            raise ValueError(f"tau must be finite and >= 0; got {self.tau!r}.")
        if self.size is not None and (self.tau == 0 or not self.size > 0):
            raise ValueError(
                f"size must be positive and needs tau > 0; got {self.size!r}, tau={self.tau!r}."
            )
        _ = self.noisy

    @property
    def standard(self) -> bool:
        """A mean can be lowered by an instance, a sum cannot."""
        return self.size is not None

    def alone(self, f: Array) -> Array:
        """``f`` less what n_0 takes off a bag of one."""
        return f if self.size is None else f - math.log(self.size) / self.tau

    def pool(self, F: Array, labels: BagLabels) -> Pooled:
        """W = softmax(tau f), h = k = tau."""
        xp, offsets = namespace(F), labels.offsets
        n = like(segments.lengths(offsets)[:, None, None], F)  # [b, 1, 1]
        if self.tau == 0:
            w = segments.spread(1 / n, offsets)
            return Pooled(segments.sum(F, offsets) / n, w, 0.0, 0.0)
        top = segments.max(F, offsets)
        e = xp.exp(self.tau * (F - segments.spread(top, offsets)))
        z = segments.sum(e, offsets)
        norm = n if self.size is None else self.size
        g = top + xp.log(z / norm) / self.tau
        return Pooled(g, e / segments.spread(z, offsets), self.tau, self.tau)


@dataclass(frozen=True)
class Score(_PooledLikelihood):
    """Any likelihood in one dimension of a bag's score: regression, ordered grades, counts.

    Parameters
    ----------
    link : object with ``at(g, y)``
        ``log p(y | g)`` with its first and second derivative by g, as ``Linked``.
    tau : float, default=0.0
        The score is the mean of f (0) or a soft maximum, as for `SoftMax`.

    Examples
    --------
    >>> from bagwise.models.variational import Gaussian, Score
    >>> Score(Gaussian(std=0.5)).tau
    0.0
    """

    link: Any
    tau: float = 0.0
    standard: ClassVar[bool] = False

    @property
    def noisy(self) -> Any:
        """The link."""
        return self.link

    def pool(self, F: Array, labels: BagLabels) -> Pooled:
        """As `SoftMax` of a mean."""
        return SoftMax(self.tau).pool(F, labels)


@dataclass(frozen=True)
class Gaussian:
    """``y ~ N(g, std^2)``: the conjugate link, whose posterior has a closed form.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational import Gaussian
    >>> Gaussian(std=2.0).at(np.array([1.0]), np.array([3.0])).slope.tolist()
    [0.5]
    """

    std: float = 1.0

    def at(self, g: Array, y: Array) -> Linked:
        """Log-density of the target and its derivatives."""
        gap = (y - g) / self.std**2
        constant = math.log(2 * math.pi * self.std**2) / 2
        return Linked(-(gap**2) * self.std**2 / 2 - constant, gap, 0 * g - 1 / self.std**2)
