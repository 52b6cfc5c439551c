"""The relatives of VGPMIL: other densities, and a margin."""

from __future__ import annotations

from numbers import Real
from typing import Any, ClassVar

from sklearn.utils._param_validation import Interval

from bagwise.models.drivers import CHUNK_SIZE
from bagwise.models.variational.densities import Density, Gamma, Sech
from bagwise.models.variational.estimators import VGPMIL
from bagwise.models.variational.large_margin import LargeMargin
from bagwise.models.variational.likelihoods import BagLikelihood

_POSITIVE = Interval(Real, 0, None, closed="neither")


class PsiVGPMIL(VGPMIL):
    """psi-VGPMIL: VGPMIL with any differentiable Gaussian-scale-mixture density. P section 3.2.

    Parameters
    ----------
    density : density object, optional
        `Sech` (the default: VGPMIL), `Gamma`, or any object with ``theta(c)`` and ``log_psi(c)``;
        see `bagwise.models.variational.Density`.
    n_inducing, inducing, kernel, length_scale, variance, H, likelihood, expectation, schedule,\
    init, max_iter, tol, learn_kernel, scale, bag_rule, calibrate, patience, chunk_size, dtype,\
    n_jobs, random_state, verbose, callback
        As for `VGPMIL`.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import PsiVGPMIL
    >>> from bagwise.models.variational import Gamma
    >>> X = np.random.default_rng(0).normal(size=(40, 5, 2))
    >>> y = np.arange(40) % 2
    >>> X[y == 1, 0] += 3
    >>> PsiVGPMIL(density=Gamma(1.0, 2.5), random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    # check_density says what is missing, at fit.
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **VGPMIL._parameter_constraints,
        "density": "no_validation",
    }

    def __init__(
        self,
        *,
        density: Any = None,
        n_inducing: int = 100,
        inducing: Any = "kmeans",
        kernel: Any = None,
        length_scale: Any = "sqrt_dim",
        variance: float = 1.0,
        H: float = 100.0,
        likelihood: Any = "noisy-max",
        expectation: str = "plug-in",
        schedule: str = "damped",
        init: Any = "half",
        max_iter: int = 200,
        tol: float = 1e-3,
        learn_kernel: bool = False,
        scale: str | None = "feature",
        bag_rule: str = "noisy-or",
        calibrate: bool = True,
        patience: int = 10,
        chunk_size: int = CHUNK_SIZE,
        dtype: str = "float64",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: bool = False,
        callback: Any = None,
    ) -> None:
        super().__init__(
            n_inducing=n_inducing,
            inducing=inducing,
            kernel=kernel,
            length_scale=length_scale,
            variance=variance,
            H=H,
            likelihood=likelihood,
            expectation=expectation,
            schedule=schedule,
            init=init,
            max_iter=max_iter,
            tol=tol,
            learn_kernel=learn_kernel,
            scale=scale,
            bag_rule=bag_rule,
            calibrate=calibrate,
            patience=patience,
            chunk_size=chunk_size,
            dtype=dtype,
            n_jobs=n_jobs,
            random_state=random_state,
            verbose=verbose,
            callback=callback,
        )
        self.density = density

    def _density(self) -> Density:
        return Sech() if self.density is None else self.density


class GVGPMIL(VGPMIL):
    """G-VGPMIL: VGPMIL with Gamma-mixed Gaussians, P(37).

    Parameters
    ----------
    alpha, beta : float
        Shape and rate of the Gamma; see `Gamma`.
    n_inducing, inducing, kernel, length_scale, variance, H, likelihood, expectation, schedule,\
    init, max_iter, tol, learn_kernel, scale, bag_rule, calibrate, patience, chunk_size, dtype,\
    n_jobs, random_state, verbose, callback
        As for `VGPMIL`.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import GVGPMIL
    >>> X = np.random.default_rng(0).normal(size=(40, 5, 2))
    >>> y = np.arange(40) % 2
    >>> X[y == 1, 0] += 3
    >>> GVGPMIL(alpha=1.0, beta=1.0, random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **VGPMIL._parameter_constraints,
        "alpha": [_POSITIVE],
        "beta": [_POSITIVE],
    }

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        beta: float = 1.0,
        n_inducing: int = 100,
        inducing: Any = "kmeans",
        kernel: Any = None,
        length_scale: Any = "sqrt_dim",
        variance: float = 1.0,
        H: float = 100.0,
        likelihood: Any = "noisy-max",
        expectation: str = "plug-in",
        schedule: str = "damped",
        init: Any = "half",
        max_iter: int = 200,
        tol: float = 1e-3,
        learn_kernel: bool = False,
        scale: str | None = "feature",
        bag_rule: str = "noisy-or",
        calibrate: bool = True,
        patience: int = 10,
        chunk_size: int = CHUNK_SIZE,
        dtype: str = "float64",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: bool = False,
        callback: Any = None,
    ) -> None:
        super().__init__(
            n_inducing=n_inducing,
            inducing=inducing,
            kernel=kernel,
            length_scale=length_scale,
            variance=variance,
            H=H,
            likelihood=likelihood,
            expectation=expectation,
            schedule=schedule,
            init=init,
            max_iter=max_iter,
            tol=tol,
            learn_kernel=learn_kernel,
            scale=scale,
            bag_rule=bag_rule,
            calibrate=calibrate,
            patience=patience,
            chunk_size=chunk_size,
            dtype=dtype,
            n_jobs=n_jobs,
            random_state=random_state,
            verbose=verbose,
            callback=callback,
        )
        self.alpha = alpha
        self.beta = beta

    def _density(self) -> Density:
        return Gamma(self.alpha, self.beta)


class LMVGPMIL(VGPMIL):
    """LM-VGPMIL: VGPMIL with a large margin. V section 3.3 and supplement 2.

    Every instance has a gate that opens beyond a margin; only instances whose gate is open pull
    the decision surface. The model is cyclic: its objective may fall, and the fit stops
    on the change of q(u). Prediction is VGPMIL's.

    Parameters
    ----------
    C, V : float
        Steepness of the gates and width of the margin; V sets both to 2.
    init : as for `VGPMIL`
        ``label`` by default: at 1/2 an instance has no side, and its gate no margin to ask for.
    n_inducing, inducing, kernel, length_scale, variance, H, expectation, schedule,\
    max_iter, tol, learn_kernel, scale, bag_rule, calibrate, patience, chunk_size, dtype, n_jobs,\
    random_state, verbose, callback
        As for `VGPMIL`.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import LMVGPMIL
    >>> X = np.random.default_rng(0).normal(size=(40, 5, 2))
    >>> y = np.arange(40) % 2
    >>> X[y == 1, 0] += 3
    >>> LMVGPMIL(random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **{k: v for k, v in VGPMIL._parameter_constraints.items() if k != "likelihood"},
        "C": [_POSITIVE],
        "V": [_POSITIVE],
    }

    def __init__(
        self,
        *,
        C: float = 2.0,
        V: float = 2.0,
        n_inducing: int = 100,
        inducing: Any = "kmeans",
        kernel: Any = None,
        length_scale: Any = "sqrt_dim",
        variance: float = 1.0,
        H: float = 100.0,
        expectation: str = "plug-in",
        schedule: str = "damped",
        init: Any = "label",
        max_iter: int = 200,
        tol: float = 1e-3,
        learn_kernel: bool = False,
        scale: str | None = "feature",
        bag_rule: str = "noisy-or",
        calibrate: bool = True,
        patience: int = 10,
        chunk_size: int = CHUNK_SIZE,
        dtype: str = "float64",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: bool = False,
        callback: Any = None,
    ) -> None:
        super().__init__(
            n_inducing=n_inducing,
            inducing=inducing,
            kernel=kernel,
            length_scale=length_scale,
            variance=variance,
            H=H,
            expectation=expectation,
            schedule=schedule,
            init=init,
            max_iter=max_iter,
            tol=tol,
            learn_kernel=learn_kernel,
            scale=scale,
            bag_rule=bag_rule,
            calibrate=calibrate,
            patience=patience,
            chunk_size=chunk_size,
            dtype=dtype,
            n_jobs=n_jobs,
            random_state=random_state,
            verbose=verbose,
            callback=callback,
        )
        self.C = C
        self.V = V

    def _likelihood(self) -> BagLikelihood:
        expectation: Any = self.expectation
        schedule: Any = self.schedule
        return LargeMargin(self.C, self.V, self.H, expectation, schedule)
