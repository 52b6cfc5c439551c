"""The papers' closed-form updates as a way to fit: `inference="paper"`, and psi-, G- and LM-VGPMIL.

q(u) q(y) is factorised: every instance of a positive bag is labelled to the extent it is believed
in. One posterior per finding, one after the other, on the projection that they share. Held-out
bags are read by fits to the others, each with inducing points of its own, because these may be
chosen class by class.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning

from bagwise.core import segments
from bagwise.core.arrays import Floats, Ints, beside, to_numpy
from bagwise.core.kernels import RBF, Kernel, make_kernel
from bagwise.core.rules import RULES
from bagwise.models.drivers import RunningSum, total
from bagwise.models.held_out import calibration_folds, folds
from bagwise.models.variational.blocks import BagLabels, Block, host
from bagwise.models.variational.checkpoint import (
    Checkpoint,
    fingerprint,
    read_beliefs,
    restored,
)
from bagwise.models.variational.densities import Density, Sech
from bagwise.models.variational.engine import Fitted, HeldOut, Problem, ready_parts
from bagwise.models.variational.inference import Iteration
from bagwise.models.variational.noisy_max import BagLikelihood
from bagwise.models.variational.parts import Begin, Part, Sites
from bagwise.models.variational.readout import Predictor, Process, read_bags
from bagwise.models.variational.updates import (
    Fit,
    FitState,
    fit_parts,
    moments,
    statistics,
    update_posterior,
)

# Kernel learning: this many short fits at most, until no log-parameter moves by more than the tol.
_KERNEL_ROUNDS, _KERNEL_ITERATIONS, _KERNEL_TOL = 10, 10, 0.01

Init = Literal["half", "label", "random"]


class PaperSettings(NamedTuple):
    """What the closed-form updates are told."""

    likelihood: BagLikelihood
    density: Density
    init: Init | ArrayLike
    rule: str
    learn_kernel: bool
    max_iter: int
    tol: float
    name: str  # of the model, in messages


def fit_paper(
    problem: Problem,
    kernel: Kernel | str,
    settings: PaperSettings,
    rng: np.random.RandomState,
    on_iteration: Callable[[Iteration], bool] | None = None,
) -> Fitted:
    """The posteriors of all findings, and q(y) of the training instances."""
    kernel = make_kernel(kernel).resolve(problem.sample)
    F = problem.tasks.n_findings
    pis = [initial(settings.init, problem.labels.of_task(f), rng) for f in range(F)]
    if settings.learn_kernel:
        if F > 1:
            raise ValueError(
                "learn_kernel=True with inference='paper' learns the kernel of one question; with "
                "several classes use inference='marginal', or wrap the model in OneVsRest."
            )
        kernel, pis[0] = learn(problem, kernel, settings, pis[0])
    projector = problem.projector(kernel)
    parts, cache = ready_parts(problem, projector)
    rule: Any = RULES[settings.rule]  # takes the place of a likelihood in the read-out
    fits: list[Fit] = []

    def tell(at: Iteration) -> bool:
        m, W = at.posterior
        own = Process(projector, m[None], W[None], np.zeros(1), rule)
        return on_iteration is not None and on_iteration(at._replace(posterior=own))

    for f, pi in enumerate(pis):
        own = problem.driver.sweep(Begin(f, pi), parts, lambda _: None)
        fits.append(_fit_one(problem, own, projector, settings, f, pi, tell))
        if _escaped(problem, own, fits[f], settings, kernel):
            fits[f] = fits[f]._replace(converged=False)
    m, W = (np.stack([fit.posterior[i] for fit in fits]) for i in (0, 1))
    longest = max(len(fit.bound_history) for fit in fits)
    history = sum(
        np.pad(fit.bound_history, (0, longest - len(fit.bound_history)), mode="edge")
        for fit in fits
    )
    pi = np.stack([_in_order(problem, fit.pi, parts) for fit in fits], axis=1)
    converged = all(fit.converged for fit in fits)
    n_iter = max(fit.n_iter for fit in fits)
    return Fitted(
        Process(projector, m, W, np.zeros(F), rule),
        None,
        np.asarray(history),
        n_iter,
        converged,
        cache,
        pi,
    )


def _fit_one(
    problem: Problem,
    parts: list[Any],
    projector: Any,
    settings: PaperSettings,
    f: int,
    pi: Floats,
    on_iteration: Callable[[Iteration], bool],
) -> Fit:
    """One finding; goes on from a checkpoint where there is one."""
    execution, state, keeper = problem.execution, None, None
    if problem.tasks.n_findings > 1:
        execution = execution.numbered(f)
    if execution.checkpoint is not None:
        objects = settings.likelihood, settings.density, settings.tol
        name = fingerprint(problem.labels.of_task(f), pi, projector, *objects)
        keeper = Checkpoint(execution.checkpoint, execution.saves_every, name, settings.likelihood)
        state, parts = keeper.resume(parts, problem.driver)
    fit, _ = fit_parts(
        parts,
        len(problem.Z),
        settings.likelihood,
        settings.density,
        sites=False,
        max_iter=settings.max_iter,
        tol=settings.tol,
        driver=problem.driver,
        on_iteration=on_iteration,
        state=state,
        on_state=None if keeper is None else keeper.saver(problem.driver),
    )
    if keeper is not None:
        keeper.done()
    return fit


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


def _rows(part: Part) -> tuple[Part, Ints]:
    return part, np.concatenate([host(block.labels.row) for block in part.blocks])


def _in_order(problem: Problem, values: Floats, parts: list[Any]) -> Floats:
    """What blocks say of their instances, in the order of the bags."""
    rows: list[Ints] = []
    problem.driver.sweep(_rows, parts, rows.append)
    out = np.empty(len(values))
    out[np.concatenate(rows)] = values
    return out


def read_paper_folds(
    problem: Problem,
    fit_to: Callable[[Ints], Process],
    codes: Ints,
) -> HeldOut | None:
    """Every bag read by a fit to the other folds; None where nothing can be held out.

    ``fit_to`` fits to some of the bags, by their numbers.
    """
    fold = folds(codes, calibration_folds(codes))
    if fold.max() == 0:
        return None
    offsets, F = problem.bags.offsets, problem.tasks.n_findings
    bag = np.empty((len(fold), F))
    mean, var = np.empty((2, int(offsets[-1]), F))
    for j in range(int(fold.max()) + 1):
        process = fit_to(np.flatnonzero(fold != j))
        left = np.flatnonzero(fold == j)
        rows, _ = segments.take(offsets, left)
        reader = Predictor((process,), (1.0,))
        bag[left], mean[rows], var[rows] = read_bags(
            reader, problem.bags[left], problem.execution, "raw"
        )
    return HeldOut(bag, mean, var)


def learn(
    problem: Problem, kernel: Kernel, settings: PaperSettings, pi: Floats
) -> tuple[Kernel, Floats]:
    """Short fits and kernel updates in turn, P(29); sites and beliefs carry over."""
    from bagwise.models.variational.hyper import KernelFit
    from bagwise.models.variational.hyper import learn as alternate

    X = to_numpy(problem.scaling(to_numpy(problem.bags.instances[:])))
    driver, density, likelihood = problem.driver, settings.density, settings.likelihood
    chunk = problem.execution.chunk(problem.device is not None, driver, problem.bags.n_instances)

    def advance(kernel: Kernel, last: KernelFit | None) -> KernelFit:
        parts, _ = ready_parts(problem, problem.projector(kernel))
        parts = driver.sweep(Begin(0, pi), parts, lambda _: None)
        state, n_done = None, 0
        if last is not None:
            parts = restored(parts, last.carry, likelihood, driver)
            sums = RunningSum()
            driver.sweep(_site_statistics, parts, sums)
            q = update_posterior(sums.value.precision, sums.value.linear)
            state, n_done = FitState(1, q, [], np.inf, False), 1
        fit, ended = fit_parts(
            parts,
            len(problem.Z),
            likelihood,
            density,
            max_iter=n_done + _KERNEL_ITERATIONS,
            tol=settings.tol,
            driver=driver,
            state=state,
            sites=False,
        )
        carry = read_beliefs(ended, driver)
        return KernelFit(carry["omega"], carry["rho"], float(fit.bound_history[-1]), carry)

    normaliser = not isinstance(density, Sech)
    if normaliser and not isinstance(kernel, RBF):
        warnings.warn(
            f"log Z of {type(density).__name__} is known for the RBF kernel alone; this kernel is "
            "learnt without it.",
            stacklevel=4,
        )
        normaliser = False
    learnt = alternate(
        kernel,
        X,
        problem.Z,
        advance,
        n_rounds=_KERNEL_ROUNDS,
        tol=_KERNEL_TOL,
        density=density,
        normaliser=normaliser,
        chunk_size=chunk,
    )
    return learnt.kernel, learnt.fit.carry["belief_pi"]


def _site_statistics(part: Part) -> tuple[Part, Any]:
    """The statistics that the sites a part was given make under its projection."""
    assert part.sites is not None
    pairs = zip(part.blocks, part.sites, strict=True)
    return part, total(statistics(block.A, _placed(sites, block), 0.0) for block, sites in pairs)


def _placed(sites: Sites, block: Block) -> Sites:
    """The sites where the block lives."""
    return Sites(*(beside(x, block.A) for x in sites))


def _escaped(
    problem: Problem, parts: list[Any], fit: Fit, settings: PaperSettings, kernel: Kernel
) -> bool:
    """Whether, and then warn that, the latent function left the prior.

    An unbounded density, such as the Gamma's, multiplies a certain label by more than the prior
    holds back. Labels move f by a few prior standard deviations; ten of them are an escape.
    """
    if isinstance(settings.density, Sech):
        return False
    largest: list[float] = []
    problem.driver.sweep(_LargestMean(fit), parts, largest.append)
    std = math.sqrt(float(np.max(to_numpy(kernel.diag(problem.Z)))))
    escaped = not max(largest) <= 10 * std or bool(fit.bound_history[-1] > 0)
    if escaped:
        warnings.warn(
            f"{settings.name}: the latent function escaped to {max(largest):.3g}, where the prior "
            f"standard deviation is {std:.3g} and the evidence bound {fit.bound_history[-1]:.3g}. "
            "Do not trust this fit; lower beta or the kernel's variance, or raise alpha.",
            ConvergenceWarning,
            stacklevel=5,
        )
    return escaped


@dataclass(frozen=True)
class _LargestMean:
    """The largest latent mean of a part, either sign."""

    fit: Fit

    def __call__(self, part: Part) -> tuple[Part, float]:
        q = self.fit.posterior
        means = (moments(block.A, block.r, q).mean for block in part.blocks)
        return part, max(float(abs(mean).max()) for mean in means)
