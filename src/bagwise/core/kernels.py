"""Covariance functions: values, diagonals and analytic gradients, on numpy or torch arrays.

``length_scale`` is l in ``v exp(-|x - z|^2 / (2 l^2))``: it divides the distance, never the
squared distance. Distances come from one matrix product and are worked on in place, in blocks
of rows that stay in cache; a kernel never makes an array larger than the [N, M] it returns.
Learning happens in log-parameters (``theta``), so positivity needs no constraint.
A scale may be left to the data: ``RBF("median")``, ``RBF("sqrt_dim")``, ``MultiScale()``. Such a
kernel is a recipe; `Kernel.resolve` turns it into numbers before it is used.

>>> import numpy as np
>>> from bagwise.core.kernels import RBF, Constant
>>> kernel = RBF(length_scale=2.0, variance=3.0) + Constant(25.0)
>>> X = np.array([[0.0, 0.0], [2.0, 0.0]])
>>> kernel(X, X).round(3).tolist()
[[28.0, 26.82], [26.82, 28.0]]
>>> np.exp(kernel.theta).round(6).tolist()
[2.0, 3.0, 25.0]
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import iadd, imul
from typing import Any, ClassVar, Literal, cast

import numpy as np
from array_api_compat import array_namespace, device

from bagwise.core.arrays import Array, Floats, dot, exp_over
from bagwise.core.squared import (
    in_blocks,
    median_sq_distance,
    row_blocks,
    same_features,
    scaled,
    sq_distances,
    sq_norms,
    weighted_sq_differences,
)

__all__ = [
    "ARD",
    "RBF",
    "Constant",
    "Kernel",
    "Linear",
    "Matern32",
    "Matern52",
    "MultiScale",
    "OfMedian",
    "Product",
    "Stationary",
    "Sum",
    "make_kernel",
    "median_sq_distance",
    "sq_distances",
]


@dataclass(frozen=True)
class OfMedian:
    """A length scale that follows the data: ``factor`` times the median distance.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.kernels import RBF, OfMedian
    >>> RBF(OfMedian(0.5), 4.0).resolve(np.array([[0.0], [4.0]]))
    RBF(length_scale=2.0, variance=4.0)
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.factor) and self.factor > 0):
            raise ValueError(f"OfMedian.factor must be positive and finite; got {self.factor!r}.")


# A length scale: a number, one per feature, or what to take from the data.
LengthScale = float | Sequence[float] | OfMedian | Literal["median", "sqrt_dim"]


class Kernel:
    """A covariance function; add and multiply kernels with ``+`` and ``*``.

    Examples
    --------
    >>> from bagwise.core.kernels import RBF, Constant, Kernel
    >>> isinstance(RBF(2.0) + Constant(25.0), Kernel)
    True
    """

    def __call__(self, X: Array, Z: Array, out: Array | None = None) -> Array:
        """Covariance of every row of X with every row of Z, [N, M], in the dtype of X.

        ``out`` is an array of that shape and dtype to write into, for work in chunks.
        """
        raise TypeError(f"{type(self).__name__} has no covariance of its own")

    def diag(self, X: Array) -> Array:
        """Variance at every row of X, [N]."""
        raise TypeError(f"{type(self).__name__} has no variance of its own")

    @property
    def theta(self) -> Floats:
        """Logarithms of the parameters, float64, [P]."""
        raise TypeError(f"{type(self).__name__} has no parameters of its own")

    def with_theta(self, theta: Floats) -> Kernel:
        """The same kernel with other log-parameters."""
        raise TypeError(f"{type(self).__name__} has no parameters of its own")

    def resolve(self, X: Floats) -> Kernel:
        """The kernel with every scale that was left to the data taken from rows ``X`` [n, D]."""
        return self

    def vjp(self, X: Array, Z: Array, G: Array) -> Array:
        """Gradient of sum(G * K(X, Z)) with respect to theta, [P]."""
        raise TypeError(f"{type(self).__name__} has no gradient of its own")

    def vjp_diag(self, X: Array, g: Array) -> Array:
        """Gradient of sum(g * diag(X)) with respect to theta, [P]."""
        raise TypeError(f"{type(self).__name__} has no gradient of its own")

    def __add__(self, other: Kernel) -> Sum:
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Kernel) -> Product:
        return Product(self, other) if isinstance(other, Kernel) else NotImplemented


@dataclass(frozen=True)
class _Leaf(Kernel):
    """A kernel whose dataclass fields, in order, are its positive parameters."""

    def __post_init__(self) -> None:
        for name, value in list(vars(self).items()):
            if isinstance(value, str) and value == "median":
                value = OfMedian()
            if not _is_left_to_data(value):
                value = _positive(value, f"{type(self).__name__}.{name}")
            # Frozen dataclasses are normalised once, here.
            object.__setattr__(self, name, value)

    @property
    def theta(self) -> Floats:
        values = list(vars(self).values())
        if any(map(_is_left_to_data, values)):
            raise ValueError(
                f"{self!r} takes a scale from the data: call resolve(X) with some rows first."
            )
        return np.log(np.concatenate([np.atleast_1d(v) for v in values]))

    def with_theta(self, theta: Floats) -> Kernel:
        values = iter(np.exp(_check_theta(self, theta)).tolist())
        new = {
            name: tuple(next(values) for _ in old) if isinstance(old, tuple) else next(values)
            for name, old in vars(self).items()
        }
        return replace(self, **new)


class _Uniform(_Leaf):
    """A kernel whose variance, the last parameter, is the same everywhere."""

    variance: float

    def diag(self, X: Array) -> Array:
        """Variance at every row of X, [N]."""
        return _full(X, self.variance)

    def vjp_diag(self, X: Array, g: Array) -> Array:
        """Gradient of sum(g * diag(X)) with respect to theta, [P]."""
        grad = np.zeros(len(self.theta))
        grad[-1] = self.variance * float(g.sum())
        return grad


class _OfDistance(_Uniform):
    """v k(s) of the squared scaled distance s = sum_d (x_d - z_d)^2 / l_d^2.

    A subclass gives ``_profile``, which turns s into k(s) in place, and ``_slope``, which turns
    s into -2 k'(s): every gradient with respect to a length scale is that times a squared
    scaled difference.
    """

    @property
    @abstractmethod
    def _scale(self) -> float | tuple[float, ...]:
        """The length scale, or one per feature."""

    # d log(l) / d log(the first parameter): 1 where that parameter is l itself.
    _chain: ClassVar[float] = 1.0

    @staticmethod
    @abstractmethod
    def _profile(s: Array) -> Array:
        """k(s), written over s."""

    @staticmethod
    @abstractmethod
    def _slope(s: Array) -> Array:
        """-2 k'(s), written over s."""

    def __call__(self, X: Array, Z: Array, out: Array | None = None) -> Array:
        """Covariance of every row of X with every row of Z, [N, M]."""
        X, Z = scaled(X, Z, self._scale)

        def finish(s: Array) -> None:
            s = self._profile(s)
            if self.variance != 1.0:
                s *= self.variance

        return in_blocks(X, Z, finish, out)

    def vjp(self, X: Array, Z: Array, G: Array) -> Array:
        """Gradient of sum(G * K(X, Z)) with respect to theta, [P]."""
        X, Z = scaled(X, Z, self._scale)
        per_feature = isinstance(self._scale, tuple)
        d_scale = np.zeros(X.shape[1] if per_feature else 1)
        d_variance = 0.0
        for rows in row_blocks(X.shape[0], Z.shape[0], X):
            x, g = X[rows], G[rows]
            s = sq_distances(x, Z)
            # dK / d log l_d = v (-2 k'(s)) (x_d - z_d)^2 / l_d^2; with one l for all features the
            # squared differences add up to s.
            W = self._slope(1.0 * s)
            W *= g  # [n, M]
            if per_feature:
                d_scale += weighted_sq_differences(x, Z, W)
            else:
                d_scale += dot(W, s)
            d_variance += dot(g, self._profile(s))
        d_scale *= self._chain
        return self.variance * np.append(d_scale, d_variance)


@dataclass(frozen=True)
class Stationary(_OfDistance):
    """A kernel of the distance with a length scale, or one per feature, and a variance.

    Parameters
    ----------
    length_scale : float, sequence of float, "median", "sqrt_dim" or OfMedian, default=1.0
        l; one number, or one per feature (automatic relevance determination). "median" is the
        median distance between instances, ``OfMedian(0.5)`` half of it, "sqrt_dim" the square
        root of the number of features.
    variance : float, default=1.0
        v, the prior variance of the latent function.

    Examples
    --------
    >>> from bagwise.core.kernels import RBF, Linear, Stationary
    >>> isinstance(RBF(), Stationary), isinstance(Linear(), Stationary)
    (True, False)
    """

    length_scale: LengthScale = 1.0
    variance: float = 1.0

    @property
    def _scale(self) -> float | tuple[float, ...]:
        if _is_left_to_data(self.length_scale):
            _ = self.theta  # says what is missing
        return cast("float | tuple[float, ...]", self.length_scale)

    def resolve(self, X: Floats) -> Kernel:
        """The kernel with its length scale taken from the data, where it was left to them."""
        scale = self.length_scale
        if isinstance(scale, OfMedian):
            return replace(self, length_scale=scale.factor * float(np.sqrt(median_sq_distance(X))))
        if isinstance(scale, str):  # "sqrt_dim"
            return replace(self, length_scale=float(np.sqrt(X.shape[1])))
        if isinstance(scale, tuple) and len(scale) != X.shape[1]:
            raise ValueError(
                f"length_scale must be a number or one per feature ({X.shape[1]}); got "
                f"{len(scale)} of them."
            )
        return self


@dataclass(frozen=True)
class RBF(Stationary):
    """Squared exponential, ``v exp(-|x - z|^2 / (2 l^2))``.

    Parameters
    ----------
    length_scale : float, sequence of float, "median", "sqrt_dim" or OfMedian, default=1.0
        l, see `Stationary`.
    variance : float, default=1.0
        v, the prior variance of the latent function.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.kernels import RBF
    >>> RBF(length_scale=[1.0, 1e6])(np.zeros((1, 2)), np.array([[2.0, 9.0]])).round(4).tolist()
    [[0.1353]]
    """

    @staticmethod
    def _profile(s: Array) -> Array:
        s *= -0.5
        return exp_over(s)

    @staticmethod
    def _slope(s: Array) -> Array:
        return RBF._profile(s)


def ARD(length_scale: Sequence[float], variance: float = 1.0) -> RBF:
    """An RBF kernel with one length scale per feature.

    Examples
    --------
    >>> from bagwise.core.kernels import ARD
    >>> ARD([1.0, 2.0])
    RBF(length_scale=(1.0, 2.0), variance=1.0)
    """
    if np.ndim(length_scale) != 1:
        raise ValueError(
            f"ARD needs one length scale per feature; got {length_scale!r}. Use RBF for one."
        )
    return RBF(length_scale, variance)


@dataclass(frozen=True)
class Matern32(Stationary):
    """Matern with nu = 3/2: ``v (1 + r) exp(-r)``, ``r = sqrt(3) |x - z| / l``.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.kernels import Matern32
    >>> Matern32()(np.zeros((1, 1)), np.ones((1, 1))).round(4).tolist()
    [[0.4834]]
    """

    @staticmethod
    def _profile(s: Array) -> Array:
        r = _root(s, 3.0)
        s = _negative_exp(r, s)
        r += 1.0
        s *= r  # (1 + r) exp(-r)
        return s

    @staticmethod
    def _slope(s: Array) -> Array:
        s = _negative_exp(_root(s, 3.0), s)
        s *= 3.0  # r^2 = 3 s, so dk/ds = -r exp(-r) 3 / (2 r)
        return s


@dataclass(frozen=True)
class Matern52(Stationary):
    """Matern with nu = 5/2: ``v (1 + r + r^2/3) exp(-r)``, ``r = sqrt(5) |x - z| / l``.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.kernels import Matern52
    >>> Matern52()(np.zeros((1, 1)), np.ones((1, 1))).round(4).tolist()
    [[0.524]]
    """

    @staticmethod
    def _profile(s: Array) -> Array:
        r = _root(s, 5.0)
        s *= 5.0 / 3.0  # r^2 / 3
        s += r
        s += 1.0
        r *= -1.0
        s *= exp_over(r)
        return s

    @staticmethod
    def _slope(s: Array) -> Array:
        r = _root(s, 5.0)
        s = _negative_exp(r, s)
        r += 1.0
        s *= r
        s *= 5.0 / 3.0  # dk/dr = -r (1 + r) exp(-r) / 3, and dr/ds = 5 / (2 r)
        return s


@dataclass(frozen=True)
class MultiScale(_OfDistance):
    """Mean of four RBFs with l^2 in {1/8, 1/2, 2, 8} times a typical squared distance.

    It needs no tuning: some scale fits. The four share one distance matrix and one exponential,
    exp(-s/16), whose 4th, 16th and 64th powers are the three narrower bells.

    Parameters
    ----------
    median_sq : float or "median", default="median"
        The typical squared distance, see `median_sq_distance`; by default that of the data.
    variance : float, default=16.0
        v, the variance of the whole.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.kernels import MultiScale, median_sq_distance
    >>> X = np.arange(6.0).reshape(3, 2)
    >>> kernel = MultiScale(median_sq_distance(X))
    >>> kernel(X, X).round(2)[0].tolist()
    [16.0, 8.42, 4.66]
    """

    median_sq: float | OfMedian | Literal["median"] = "median"
    variance: float = 16.0

    _chain: ClassVar[float] = 0.5  # log l = log(median_sq) / 2

    @property
    def _scale(self) -> float | tuple[float, ...]:
        return float(np.exp(self.theta[0] / 2))

    def resolve(self, X: Floats) -> Kernel:
        """The kernel with the data's typical squared distance, where it was left to them."""
        if not isinstance(self.median_sq, OfMedian):
            return self
        return replace(self, median_sq=self.median_sq.factor**2 * median_sq_distance(X))

    @staticmethod
    def _profile(s: Array) -> Array:
        return MultiScale._powers(s, (1.0, 1.0, 1.0, 1.0))

    @staticmethod
    def _slope(s: Array) -> Array:
        # exp(-c s) has slope c exp(-c s): twice 1/16, 1/4, 1 and 4.
        return MultiScale._powers(s, (0.125, 0.5, 2.0, 8.0))

    @staticmethod
    def _powers(s: Array, weights: tuple[float, ...]) -> Array:
        """Weighted mean of e, e^4, e^16, e^64 with e = exp(-s / 16)."""
        s *= -1.0 / 16.0
        s = exp_over(s)
        power = 1.0 * s
        if weights[0] != 1.0:
            s *= weights[0]
        for weight in weights[1:]:
            power *= power
            power *= power
            s += power if weight == 1.0 else weight * power
        s *= 0.25
        return s


@dataclass(frozen=True)
class Linear(_Leaf):
    """v x.z, without bias; add `Constant` for one.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.kernels import Linear
    >>> Linear(2.0)(np.ones((1, 3)), np.ones((1, 3))).tolist()
    [[6.0]]
    """

    variance: float = 1.0

    def __call__(self, X: Array, Z: Array, out: Array | None = None) -> Array:
        """Covariance of every row of X with every row of Z, [N, M]."""
        X, Z = same_features(X, Z)
        return array_namespace(X).matmul(X, (self.variance * Z).T, out=out)

    def diag(self, X: Array) -> Array:
        """Variance at every row of X, [N]."""
        return self.variance * sq_norms(X)

    def vjp(self, X: Array, Z: Array, G: Array) -> Array:
        """Gradient of sum(G * K(X, Z)) with respect to theta, [P]."""
        X, Z = same_features(X, Z)
        return np.array([self.variance * dot(G.T @ X, Z)])

    def vjp_diag(self, X: Array, g: Array) -> Array:
        """Gradient of sum(g * diag(X)) with respect to theta, [P]."""
        return np.array([self.variance * float((g * sq_norms(X)).sum())])


@dataclass(frozen=True)
class Constant(_Uniform):
    """v everywhere: the prior of an unknown bias.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.kernels import Constant
    >>> Constant(25.0)(np.ones((1, 3)), np.ones((2, 3))).tolist()
    [[25.0, 25.0]]
    """

    variance: float = 1.0

    def __call__(self, X: Array, Z: Array, out: Array | None = None) -> Array:
        """Covariance of every row of X with every row of Z, [N, M]."""
        X, Z = same_features(X, Z)
        if out is None:
            return _full(X, self.variance, Z.shape[0])
        out[...] = self.variance
        return out

    def vjp(self, X: Array, Z: Array, G: Array) -> Array:
        """Gradient of sum(G * K(X, Z)) with respect to theta, [P]."""
        return np.array([self.variance * float(G.sum())])


@dataclass(frozen=True)
class _Pair(Kernel):
    """Two kernels combined; theta is the left one's followed by the right one's."""

    left: Kernel
    right: Kernel
    # How values are combined, the first ones in place.
    _combine: ClassVar[Callable[[Any, Any], Any]]

    def __post_init__(self) -> None:
        for part in (self.left, self.right):
            if not isinstance(part, Kernel):
                raise ValueError(f"{type(self).__name__} combines two kernels; got {part!r}.")

    @property
    def theta(self) -> Floats:
        return np.concatenate([self.left.theta, self.right.theta])

    def resolve(self, X: Floats) -> Kernel:
        """Both kernels resolved."""
        return type(self)(self.left.resolve(X), self.right.resolve(X))

    def with_theta(self, theta: Floats) -> Kernel:
        theta = _check_theta(self, theta)
        n = len(self.left.theta)
        return type(self)(self.left.with_theta(theta[:n]), self.right.with_theta(theta[n:]))

    def __call__(self, X: Array, Z: Array, out: Array | None = None) -> Array:
        """Covariance of every row of X with every row of Z, [N, M]."""
        # A constant is a number, not spread to a matrix first.
        right = self.right.variance if isinstance(self.right, Constant) else self.right(X, Z)
        return type(self)._combine(self.left(X, Z, out), right)

    def diag(self, X: Array) -> Array:
        """Variance at every row of X, [N]."""
        return type(self)._combine(self.left.diag(X), self.right.diag(X))


@dataclass(frozen=True)
class Sum(_Pair):
    """The sum of two kernels, written ``left + right``.

    Examples
    --------
    >>> from bagwise.core.kernels import RBF, Constant
    >>> RBF() + Constant(25.0)
    Sum(left=RBF(length_scale=1.0, variance=1.0), right=Constant(variance=25.0))
    """

    _combine = iadd

    def vjp(self, X: Array, Z: Array, G: Array) -> Array:
        """Gradient of sum(G * K(X, Z)) with respect to theta, [P]."""
        return np.concatenate([self.left.vjp(X, Z, G), self.right.vjp(X, Z, G)])

    def vjp_diag(self, X: Array, g: Array) -> Array:
        """Gradient of sum(g * diag(X)) with respect to theta, [P]."""
        return np.concatenate([self.left.vjp_diag(X, g), self.right.vjp_diag(X, g)])


@dataclass(frozen=True)
class Product(_Pair):
    """The elementwise product of two kernels, written ``left * right``.

    Examples
    --------
    >>> from bagwise.core.kernels import RBF, Linear
    >>> RBF() * Linear(2.0)
    Product(left=RBF(length_scale=1.0, variance=1.0), right=Linear(variance=2.0))
    """

    _combine = imul

    def vjp(self, X: Array, Z: Array, G: Array) -> Array:
        """Gradient of sum(G * K(X, Z)) with respect to theta, [P]."""
        # The product rule: each factor's gradient is weighted by the other factor.
        left = self.left.vjp(X, Z, G * self.right(X, Z))
        return np.concatenate([left, self.right.vjp(X, Z, G * self.left(X, Z))])

    def vjp_diag(self, X: Array, g: Array) -> Array:
        """Gradient of sum(g * diag(X)) with respect to theta, [P]."""
        left = self.left.vjp_diag(X, g * self.right.diag(X))
        return np.concatenate([left, self.right.vjp_diag(X, g * self.left.diag(X))])


# The one place where a kernel gets a name.
KERNELS: dict[str, Callable[[], Kernel]] = {
    "rbf": lambda: RBF("sqrt_dim"),
    "matern32": lambda: Matern32("sqrt_dim"),
    "matern52": lambda: Matern52("sqrt_dim"),
    "linear": lambda: Linear() + Constant(),
}


def make_kernel(kernel: Kernel | str) -> Kernel:
    """The kernel meant by a name, or the user's own, checked.

    Examples
    --------
    >>> from bagwise.core.kernels import make_kernel
    >>> make_kernel("rbf")
    RBF(length_scale='sqrt_dim', variance=1.0)
    """
    if isinstance(kernel, str) and kernel in KERNELS:
        return KERNELS[kernel]()
    if isinstance(kernel, Kernel):
        return kernel
    raise ValueError(
        f"kernel must be one of {list(KERNELS)} or a kernel object such as RBF('median', 16.0); "
        f"got {kernel!r}."
    )


def _is_left_to_data(value: object) -> bool:
    return isinstance(value, OfMedian) or (isinstance(value, str) and value == "sqrt_dim")


def _full(X: Array, value: float, columns: int | None = None) -> Array:
    shape = (X.shape[0],) if columns is None else (X.shape[0], columns)
    return array_namespace(X).full(shape, value, dtype=X.dtype, device=device(X))


def _root(s: Array, factor: float) -> Array:
    """sqrt(factor * s), a new array."""
    return array_namespace(s).sqrt(factor * s)


def _negative_exp(r: Array, out: Array) -> Array:
    """exp(-r) written over ``out``."""
    out[...] = r
    out *= -1.0
    return exp_over(out)


def _check_theta(kernel: Kernel, theta: Floats) -> Floats:
    theta = np.asarray(theta, dtype=np.float64)
    expected = kernel.theta.shape
    if theta.shape != expected or not np.isfinite(theta).all():
        raise ValueError(
            f"theta needs {expected[0]} finite log-parameters for {type(kernel).__name__}; "
            f"got {theta.tolist()}."
        )
    return theta


def _positive(value: object, name: str) -> float | tuple[float, ...]:
    """A positive finite float, or a tuple of them for the length scales of the features."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a positive number; got {value!r}.") from error
    many = name.endswith("length_scale")
    ok = array.ndim == 0 or (many and array.ndim == 1 and array.size > 0)
    if not ok or not np.isfinite(array).all() or (array <= 0).any():
        raise ValueError(
            f"{name} must be positive and finite"
            f"{' (one number, or one per feature)' if many else ''}; got {value!r}."
        )
    return float(array) if array.ndim == 0 else tuple(array.tolist())
