"""The papers' closed-form updates: `inference="paper"`, and psi-, G- and LM-VGPMIL.

q(u) q(y) is factorised: every instance of a positive bag is labelled to the extent it is believed
in. In whitened coordinates ``u = L v``, ``L L^T = Kzz``, so that ``v ~ N(0, I)``,
``q(v) = N(m, S)`` and ``f = a^T v`` plus independent noise of variance ``r``. One iteration, in
the papers' order:

    theta            (28)               from E f^2 (the first from k(x, x), where m = 0, S = I)
    S and m          (26, 27)           from the sites omega and rho of all instances
    beliefs q(y)     (25)               from the moments of q(f)

The full evidence bound, every term and constant, is the likelihood's part (`PaperLikelihood.bound`,
which contains ``log psi(c_n) - theta(c_n)/2 (E f_n^2 - c_n^2)`` at the optimum c_n^2 = E f_n^2)
less ``KL(N(m, S) || N(0, I))``. Nothing but `expect` and `statistics` sees data.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning

from bagwise.core import gaussians, linalg, segments
from bagwise.core.arrays import (
    Array,
    Floats,
    Ints,
    as_array,
    beside,
    concatenate,
    is_tensor,
    to_numpy,
)
from bagwise.core.kernels import Kernel, make_kernel
from bagwise.core.rules import RULES
from bagwise.models.drivers import Driver, RunningSum, one_blas_thread, total
from bagwise.models.held_out import calibration_folds, folds
from bagwise.models.variational.blocks import BagLabels, Block, InducingPosterior, Part
from bagwise.models.variational.checkpoint import Checkpoint
from bagwise.models.variational.engine import Fitted, HeldOutReadings, Problem, ready_parts
from bagwise.models.variational.inference import Iteration
from bagwise.models.variational.paper_likelihoods import Density, LatentMoments, PaperLikelihood
from bagwise.models.variational.projection import Projector
from bagwise.models.variational.readout import Predictor, Process, read_bags

Init = Literal["half", "label", "random"]


class PaperSettings(NamedTuple):
    """Settings of the closed-form updates."""

    likelihood: PaperLikelihood
    density: Density
    init: Init | ArrayLike
    rule: str
    learn_kernel: Any  # a step of the kernel, see `hyper`; None keeps the kernel
    max_iter: int
    tol: float
    name: str  # of the model, in messages

    @property
    def normalised(self) -> bool:
        """Whether ``exp(±f/2) psi(f)`` are two probabilities, so that log Z of (19) is 0."""
        return getattr(self.density, "normalised", False)


# One pass over a block.


class SiteParameters(NamedTuple):
    """What each instance adds to the natural parameters of q(v): ``omega a a^T`` and ``rho a``."""

    omega: Array  # [n]
    rho: Array  # [n]


class PaperSums(NamedTuple):
    """Additive over blocks: all that the update of q(v) and the bound need."""

    precision: Array  # [M, M] A diag(omega) A^T, lower triangle
    linear: Array  # [M] A rho
    bound: float | Array  # the likelihood's part


def moments(A: Array, r: Array, q: InducingPosterior | None) -> LatentMoments:
    """``E f = a^T m`` and ``var f = |W a|^2 + r`` of a block; None means the prior, W = I."""
    if q is None:
        var = linalg.column_squares(A) + r
        return LatentMoments(0.0 * var, var)
    mean, square = linalg.first_two_moments(q.m, q.W, A)
    return LatentMoments(mean, square + r)


def statistics(A: Array, sites: SiteParameters, bound: float | Array) -> PaperSums:
    """``A diag(omega) A^T`` and ``A rho`` of a block, summed in float64."""
    return PaperSums(*linalg.weighted_sums(A, *sites), bound)


def expect(
    block: Block,
    beliefs: Any,
    q: InducingPosterior | None,
    likelihood: PaperLikelihood,
    density: Density,
) -> tuple[Any, SiteParameters, float | Array]:
    """LatentMoments, beliefs and theta of a block: new beliefs, sites, and the bound's part.

    ``q`` None means the prior. ``beliefs`` are those of the pass before, or the probabilities [n]
    of an array to start from.
    """
    labels = block.labels
    f = moments(block.A, block.r, q)
    c = f.second**0.5  # the best c, (28)
    log_psi = density.log_psi(c)
    if isinstance(beliefs, tuple):
        targets = likelihood.targets(f, log_psi, labels, beliefs)
    else:
        targets = likelihood.start(f, labels, beside(beliefs, block.A))
    bound = likelihood.bound(f, log_psi, labels, targets)
    omega, rho = likelihood.weights(f, targets, density.theta(c))
    if labels.each is not None:  # a bag of weight 2 is the bag twice
        each = beside(labels.each, omega)
        omega, rho = each * omega, each * rho
    return targets, SiteParameters(omega, rho), bound


def update_posterior(precision: Array, linear: Array) -> InducingPosterior:
    """``S = (I + A diag(omega) A^T)^{-1}``, ``m = S A rho``. (26, 27); (11, 12) of [Haussmann2017].

    In float64, where the sums are: a device would wait for the host.
    """
    W = linalg.inverse_factor(linalg.plus_identity(precision))
    return InducingPosterior(W.T @ (W @ linear), W)


# Iterations over parts.


def begin(part: Part, task: int, start: Array) -> tuple[Part, None]:
    """A part as before the first iteration of one task; its projections are shared.

    ``start`` [N] are the probabilities of all instances to start from.
    """
    blocks = OfTask(part.blocks, task)
    pis = tuple(start[as_array(block.labels.row)] for block in part.blocks)
    return Part(tuple(blocks) if isinstance(part.blocks, tuple) else blocks, pis), None


@dataclass(frozen=True)
class OfTask:
    """One task's labels on the blocks of a part, whenever they are asked for."""

    blocks: Any
    task: int

    def __iter__(self) -> Any:
        for block in self.blocks:
            yield block._replace(labels=block.labels.of_tasks(self.task))


def paper_pass(
    part: Part,
    likelihood: PaperLikelihood,
    density: Density,
    q: InducingPosterior | None,
    last: bool,
) -> tuple[Part, PaperSums]:
    """`expect` over the blocks of a part; the ``last`` pass sums the bound alone."""
    beliefs, sums = [], list[PaperSums]()
    for block, before in zip(part.blocks, part.beliefs, strict=True):
        targets, sites, bound = expect(block, before, q, likelihood, density)
        beliefs.append(targets)
        # After the last pass q stays: nothing but the bound is needed.
        values = PaperSums(0.0, 0.0, bound) if last else statistics(block.A, sites, bound)
        sums = [total([*sums, values])]
    return part._replace(beliefs=tuple(beliefs)), sums[0]


class FitState(NamedTuple):
    """Where a fit stands between two iterations."""

    n_iter: int = 0
    q: Any = None  # `InducingPosterior`; None is the prior
    history: tuple[float, ...] = ()  # [n_iter] bounds
    change: float = np.inf
    converged: bool = False

    def columns(self) -> dict[str, Any]:
        """The arrays that a checkpoint stores."""
        rest = {name: value for name, value in self._asdict().items() if name != "q"}
        return {**rest, **self.q.on_host()._asdict()}

    @classmethod
    def of(cls, saved: dict[str, Any]) -> FitState:
        """The state that a checkpoint stored."""
        q = InducingPosterior(saved["m"], np.asfortranarray(saved["W"]))
        rest = float(saved["change"]), bool(saved["converged"])
        return cls(int(saved["n_iter"]), q, tuple(saved["history"].tolist()), *rest)


def iterate(
    parts: list[Any],
    likelihood: PaperLikelihood,
    density: Density,
    *,
    max_iter: int = 200,
    tol: float = 1e-3,
    driver: Driver,
    on_iteration: Callable[[Iteration], bool] | None = None,
    state: FitState | None = None,
    on_state: Callable[[FitState, list[Any]], None] | None = None,
) -> tuple[FitState, list[Any]]:
    """Iterate on parts, wherever the driver keeps them; returns where it ended, and the parts.

    ``state`` goes on from where an earlier fit stood; ``on_state`` is told, before every
    iteration but the first, where this one stands.
    """
    n_iter, q, history, change, converged = state or FitState()
    # The work is shared out by chunks; BLAS's own threads would only get in the way of it.
    with one_blas_thread():
        while True:
            last = converged or n_iter == max_iter
            if n_iter and on_state is not None:
                on_state(FitState(n_iter, q, history, change, converged), parts)
            sums = RunningSum()
            step = partial(paper_pass, likelihood=likelihood, density=density, q=q, last=last)
            parts = driver.sweep(step, parts, sums)
            precision, linear, bound = sums.value
            if n_iter:
                # On a device the host waits once for both parts of the bound.
                divergence = gaussians.kl_to_standard(q.m, q.W)
                bound = bound.double() if is_tensor(bound) else bound
                history = (*history, float(bound - divergence))
                if on_iteration is not None or last:
                    q = q.on_host()
                    at = Iteration(n_iter, history[-1], change, q)
                    if (on_iteration is not None and on_iteration(at)) or last:
                        break
            old, q = q, update_posterior(precision, linear)
            m = to_numpy(q.m)  # how far it moved, relative to its length where that exceeds 1
            change = float(np.linalg.norm(m - (0.0 if old is None else to_numpy(old.m))))
            change /= max(1.0, float(np.linalg.norm(m)))
            converged = n_iter > 0 and change < tol
            n_iter += 1
    return FitState(n_iter, q, history, change, converged), parts


def _columns(part: Part) -> tuple[Part, dict[str, Any]]:
    """Beliefs of a part, with the numbers of its instances."""
    columns = {
        name: to_numpy(concatenate(getattr(b, name) for b in part.beliefs))
        for name in part.beliefs[0]._fields
    }
    columns["row"] = np.concatenate([as_array(block.labels.row) for block in part.blocks])
    return part, columns


def read_beliefs(parts: list[Any], driver: Driver) -> dict[str, Floats]:
    """Beliefs about every instance, in the order of the instances."""
    pieces: list[dict[str, Any]] = []
    driver.sweep(_columns, parts, pieces.append)
    order = np.argsort(np.concatenate([piece.pop("row") for piece in pieces]))
    return {name: np.concatenate([p[name] for p in pieces])[order] for name in pieces[0]}


def restore(part: Part, columns: dict[str, Any], likelihood: PaperLikelihood) -> tuple[Part, None]:
    """Put columns [N] of `read_beliefs` back into a part as it was before the first iteration."""
    beliefs = []
    for block, pi in zip(part.blocks, part.beliefs, strict=True):
        row, f = as_array(block.labels.row), moments(block.A, block.r, None)
        start = likelihood.start(f, block.labels, beside(pi, block.A))
        here = {name: beside(columns[name][row], block.A) for name in start._fields}
        beliefs.append(start._replace(**here))
    return part._replace(beliefs=tuple(beliefs)), None


# From a problem to a fitted process.


def fit_paper(
    problem: Problem,
    kernel: Kernel | str,
    settings: PaperSettings,
    rng: np.random.RandomState,
    on_iteration: Callable[[Iteration], bool] | None = None,
) -> Fitted:
    """The posteriors of all classes, one after the other, and q(y) of the training instances."""
    kernel = make_kernel(kernel).resolve(problem.sample)
    projector = problem.projector(kernel)
    parts, cache = ready_parts(problem, projector)
    rule: Any = RULES[settings.rule]  # takes the place of a likelihood in the read-out
    F = problem.tasks.n_classes
    pis = [initial(settings.init, problem.labels.of_tasks(f), rng) for f in range(F)]

    def tell(at: Iteration) -> bool:
        m, W = at.posterior
        process = Process(projector, m[None], W[None], np.zeros(1), rule)
        return on_iteration is not None and on_iteration(at._replace(posterior=process))

    fits, beliefs = [], []
    for f, pi in enumerate(pis):
        fit, its_parts = _fit_class(problem, parts, projector, settings, f, pi, tell)
        left = escaped(problem, its_parts, fit, settings, kernel)
        fits.append(fit._replace(converged=fit.converged and not left))
        beliefs.append(read_beliefs(its_parts, problem.driver)["pi"])
    longest = max(len(fit.history) for fit in fits)
    histories = [np.pad(fit.history, (0, longest - len(fit.history)), mode="edge") for fit in fits]
    m, W = np.stack([fit.q.m for fit in fits]), np.stack([fit.q.W for fit in fits])
    return Fitted(
        Process(projector, m, W, np.zeros(F), rule),
        None,
        np.sum(histories, axis=0),
        longest,
        all(fit.converged for fit in fits),
        cache,
        np.stack(beliefs, axis=1),
    )


def _fit_class(
    problem: Problem,
    parts: list[Any],
    projector: Projector,
    settings: PaperSettings,
    f: int,
    pi: Floats,
    on_iteration: Callable[[Iteration], bool],
) -> tuple[FitState, list[Any]]:
    """One positive class; goes on from a checkpoint where there is one."""
    driver, likelihood = problem.driver, settings.likelihood
    execution, labels = problem.execution, problem.labels.of_tasks(f)
    if problem.tasks.n_classes > 1:
        execution = execution.numbered(f)
    arrays = (*labels, pi, projector.Z, *projector.scaling)
    asked = (projector.kernel, str(projector.dtype), likelihood, settings.density, settings.tol)
    keeper, state = Checkpoint(execution, arrays, asked), FitState()
    parts = driver.sweep(partial(begin, task=f, start=pi), parts, lambda _: None)
    if keeper.stored:
        state = FitState.of(keeper.stored)
        back = partial(restore, columns=keeper.stored, likelihood=likelihood)
        parts = driver.sweep(back, parts, lambda _: None)

    def save(at: FitState, parts: list[Any]) -> None:
        if at.n_iter % keeper.every == 0 and at.n_iter > state.n_iter:
            keeper.save(**at.columns(), **read_beliefs(parts, driver))

    ended = iterate(
        parts,
        likelihood,
        settings.density,
        max_iter=settings.max_iter,
        tol=settings.tol,
        driver=driver,
        on_iteration=on_iteration,
        state=state,
        on_state=None if keeper.path is None else save,
    )
    keeper.done()
    return ended


def initial(init: Init | ArrayLike, labels: BagLabels, rng: np.random.RandomState) -> Floats:
    """Instance probabilities before the first update, [N]."""
    n = int(labels.offsets[-1])
    if isinstance(init, str):
        if init == "random":
            return rng.uniform(size=n)
        share = 1.0 if init == "label" else 0.5
        return segments.spread(share * np.asarray(labels.y, dtype=np.float64), labels.offsets)
    pi = np.asarray(init, dtype=np.float64)
    if pi.shape != (n,) or not ((pi >= 0) & (pi <= 1)).all():
        raise ValueError(
            f"init must hold a probability in [0, 1] for each of the {n} instances; "
            f"got an array of shape {pi.shape}."
        )
    return pi


def read_paper_folds(problem: Problem, fit_to: Callable[[Ints], Process]) -> HeldOutReadings | None:
    """Every bag read by a fit to the other folds; None where nothing can be held out.

    ``fit_to`` fits to some of the bags, by their numbers, with inducing points of its own, because
    these may be chosen class by class.
    """
    codes = problem.targets.codes
    fold = folds(codes, calibration_folds(codes))
    if fold.max() == 0:
        return None
    readings = []
    for j in range(int(fold.max()) + 1):
        reader = Predictor((fit_to(np.flatnonzero(fold != j)),), (1.0,))
        left = np.flatnonzero(fold == j)
        values = read_bags(reader, problem.bags[left], problem.execution, "raw")
        readings.append((left, *values))
    return HeldOutReadings.gathered(problem.bags.offsets, problem.tasks.n_classes, readings)


def escaped(
    problem: Problem, parts: list[Any], fit: FitState, settings: PaperSettings, kernel: Kernel
) -> bool:
    """Whether, and then warn that, the latent function left the prior.

    An unbounded density, such as the Gamma's, multiplies a certain label by more than the prior
    holds back. Labels move f by a few prior standard deviations; ten of them are an escape.
    """
    if settings.normalised:
        return False
    means: list[float] = []
    problem.driver.sweep(partial(_largest_mean, q=fit.q), parts, means.append)
    largest = max(means)
    std = math.sqrt(float(np.max(to_numpy(kernel.diag(problem.Z)))))
    escaped = not largest <= 10 * std or fit.history[-1] > 0  # NaN is an escape, too
    if escaped:
        warnings.warn(
            f"{settings.name}: the latent function escaped to {largest:.3g}, where the prior "
            f"standard deviation is {std:.3g} and the evidence bound {fit.history[-1]:.3g}. "
            "Do not trust this fit; lower beta or the kernel's variance, or raise alpha.",
            ConvergenceWarning,
            stacklevel=5,
        )
    return escaped


def _largest_mean(part: Part, q: InducingPosterior) -> tuple[Part, float]:
    """The largest latent mean of a part, either sign."""
    means = (moments(block.A, block.r, q).mean for block in part.blocks)
    return part, max(float(abs(mean).max()) for mean in means)
