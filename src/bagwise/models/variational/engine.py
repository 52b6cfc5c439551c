"""From bags to fitted processes: plan, fit, and what the held-out bags say. No estimator in sight.

`plan` makes a `Problem` of bags and settings; `fit_marginal` (here) and `fit_paper` (`paper`) make
`Fitted` processes of it; `calibrated` turns those and their held-out readings into the `Predictor`
that a model keeps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from bagwise.bags import Bags, check_bags
from bagwise.core import linalg, segments
from bagwise.core.arrays import Bools, Floats, Ints, host_rows, to_numpy
from bagwise.core.finite import all_finite
from bagwise.core.kernels import Constant, Kernel, OfMedian, Stationary, make_kernel
from bagwise.models.calibration.fit import correct_optimism, fit_platt
from bagwise.models.calibration.functions import Platt
from bagwise.models.calibration.share import fit_share
from bagwise.models.classes import ClassRule, fit_temperature
from bagwise.models.drivers import Driver
from bagwise.models.execution import Execution, device_settings
from bagwise.models.held_out import folds
from bagwise.models.labels import Labels
from bagwise.models.scaling import FeatureScaling, Scale, learn_scaling, over_rows
from bagwise.models.variational import inference, search
from bagwise.models.variational.blocks import BagLabels, host, take_bags
from bagwise.models.variational.evidence import arranged_rows
from bagwise.models.variational.inference import Iteration, Posteriors, Settings
from bagwise.models.variational.likelihoods import BagLikelihood, SoftMax
from bagwise.models.variational.parts import Part, make_parts, materialised
from bagwise.models.variational.projection import (
    Projector,
    choose_inducing,
    make_projector,
    sample_rows,
)
from bagwise.models.variational.readout import Predictor, Process, read_block
from bagwise.models.variational.search import N_FOLDS, STARTS, Search, Tasks, Trial

# The search for a kernel sees whole bags: at least so many, and more while their instances are few.
_SEARCHED_BAGS, _SEARCHED_ROWS = 128, 1 << 14
# ... but never more than so many instances and numbers, 0.5 GB.
_MOST_ROWS, _MOST_NUMBERS = 1 << 17, 1 << 26
# Sharpness of the soft maximum by which instances make a bag, unless another likelihood is given.
_TAU = 3.0
# Sets of more instances are projected in single precision; their sums stay double.
_SINGLE = 1 << 15


class Problem(NamedTuple):
    """Bags, what is known of them, and every choice that does not depend on a kernel."""

    bags: Bags
    labels: BagLabels  # y, known and weight with a column per task
    tasks: Tasks  # in the order of the bags
    scaling: FeatureScaling
    Z: Floats  # [M, D] scaled
    sample: Floats  # rows that resolve a kernel's scales
    execution: Execution
    driver: Driver
    dtype: str

    @property
    def device(self) -> str | None:
        """The torch device that the work is done on."""
        return self.execution.torch_device(self.bags.instances)

    def projector(self, kernel: Kernel) -> Projector:
        """Onto the inducing points under a kernel, where the work is done."""
        return make_projector(kernel, self.Z, self.scaling, self.dtype).to(self.device)

    def settings(self) -> AbstractContextManager[None]:
        """The settings of the device that the work is done on; nothing on the host."""
        if self.device is None:
            return nullcontext()
        return device_settings(self.execution.precision, self.bags.n_instances)

    def alone(self) -> Problem:
        """The same without a checkpoint of its own."""
        return self._replace(
            execution=replace(self.execution, checkpoint=None, checkpoint_every=None)
        )

    @property
    def size(self) -> float:
        """Median number of instances of a bag."""
        return float(np.median(self.bags.sizes))


def plan(
    bags: Bags,
    targets: Labels,
    scale: Scale,
    inducing: Any,
    n_inducing: int,
    kernel: Kernel | str,
    execution: Execution,
    rng: np.random.RandomState,
    held_out: bool,
) -> Problem:
    """Scaling, inducing points, folds and labels of a fit."""
    device = execution.torch_device(bags.instances)
    driver = execution.make_driver(bags.n_instances * n_inducing, device)
    scaling = measured_scaling(bags, scale, driver)
    Z = choose_inducing(bags, scaling, inducing, n_inducing, rng, targets.group(bags.offsets))
    sample = sample_rows(bags.instances, scaling, start_kernels(kernel)[0], rng)
    fold = np.zeros(len(bags), dtype=np.int64)
    if held_out:
        fold = folds(targets.codes, N_FOLDS)
    tasks = Tasks(fold, targets.present, targets.counts)
    known = tasks.spread(targets.known) if targets.known.max(initial=-1) >= 0 else None
    labels = BagLabels(
        bags.offsets, tasks.spread(targets.present), known, tasks.weight(targets.weight)
    ).dealt()
    dtype = execution.dtype or ("float64" if bags.n_instances <= _SINGLE else "float32")
    return Problem(bags, labels, tasks, scaling, Z, sample, execution, driver, dtype)


def measured_scaling(bags: Bags, scale: Scale, driver: Driver) -> FeatureScaling:
    """The scaling of training bags; rows on disk are looked at for NaN in the same pass."""
    scaling = learn_scaling(bags.instances, scale, driver)
    if hasattr(bags.instances, "select_rows"):
        finite = (
            all(over_rows(all_finite, bags.instances, driver))
            if scale is None
            else np.isfinite(scaling.center).all()
        )
        if not finite:
            check_bags(bags)  # says where
    # In single precision: devices add up in another order, and a search would amplify their
    # last digits.
    return FeatureScaling(*(to_numpy(x).astype(np.float32).astype(np.float64) for x in scaling))


def start_kernels(kernel: Kernel | str) -> list[Kernel]:
    """Where the search for a kernel begins: the user's own, or a handful of the kind that is named.

    A handful has lengths and variances of `search.STARTS`, and a bias.
    """
    if not isinstance(kernel, str):
        return [make_kernel(kernel)]
    named = make_kernel(kernel)
    if not isinstance(named, Stationary) or not hasattr(named, "length_scale"):
        return [named]
    kind: Any = type(named)
    return [kind(OfMedian(length), v) + Constant(4.0) for length, v in STARTS]


def default_likelihood(problem: Problem) -> BagLikelihood:
    """A soft maximum that counts in units of the usual bag: no instance can lower it."""
    return SoftMax(_TAU, problem.size)


def searched(problem: Problem) -> Search:
    """The search over whole bags in memory, a stratified draw where there are many."""
    bags, labels = problem.bags, problem.labels
    chosen = draw_bags(bags.sizes, problem.tasks.y, bags.n_features)
    rows, _ = segments.take(bags.offsets, chosen)
    X = problem.scaling(host_rows(bags.instances, rows))
    own = labels.take(chosen)._replace(bag=None, deal=None, row=None).dealt()
    data = arranged_rows(X, own, problem.Z)
    order = chosen[host(data.labels.bag)]
    fold, y, counts = problem.tasks
    tasks = Tasks(fold[order], y[order], None if counts is None else counts[order])
    return Search(data, tasks, problem.size)


def draw_bags(sizes: Ints, present: Ints, n_features: int) -> Ints:
    """Numbers of the bags that a search looks at, in order: all, or as many of every label."""
    rng = np.random.default_rng(0)
    _, code = np.unique(present, axis=0, return_inverse=True)
    shuffled = rng.permutation(len(sizes))
    # Round robin over the labels: any first bags are stratified.
    turn = np.empty(len(sizes))
    for c in np.unique(code):
        own = shuffled[code[shuffled] == c]
        turn[own] = (np.arange(len(own)) + 0.5) / len(own)
    order = np.argsort(turn, kind="stable")
    rows = np.cumsum(sizes[order])
    most = min(_MOST_ROWS, _MOST_NUMBERS // max(n_features, 1))
    enough = max(_SEARCHED_ROWS, int(rows[min(_SEARCHED_BAGS, len(rows)) - 1]))
    n = max(2, int(np.searchsorted(rows, min(most, enough), side="right")))
    return np.sort(order[:n])


@dataclass(frozen=True)
class HeldOut:
    """What fits without a bag said of it: log-odds of bags, latent moments of instances."""

    bag: Floats  # [B, F]
    mean: Floats  # [N, F]
    var: Floats  # [N, F]


class Fitted(NamedTuple):
    """A fitted process, and what it is judged by."""

    process: Process
    held_out: HeldOut | None
    history: Floats  # [passes] bounds of the fit to all bags, summed over findings
    n_iter: int
    converged: bool
    cache: str
    pi: Floats | None = None  # [N, F] q(y = 1), of the papers' updates


def choose(
    problem: Problem, kernels: Sequence[Kernel], likelihood: BagLikelihood, learn_kernel: bool
) -> Trial:
    """Where the kernel starts and, where it is learned, where it ends."""
    finder = searched(problem)
    starts = [kernel.resolve(problem.sample) for kernel in kernels]
    start = search.best([finder.path(kernel, likelihood)[-1] for kernel in starts])
    return finder.refined(start) if learn_kernel else start


def fit_marginal(
    problem: Problem,
    trial: Trial,
    settings: Settings,
    on_iteration: Callable[[Iteration], bool] | None = None,
    keeper: Any = None,
) -> Fitted:
    """The posteriors of all tasks from where the search left them; held-out bags are read."""
    projector = problem.projector(trial.kernel)
    parts, cache = ready_parts(problem, projector)
    whole = problem.tasks.whole

    def tell(at: Iteration) -> bool:
        if on_iteration is None:
            return False
        return on_iteration(
            at._replace(posterior=process_of(projector, trial, at.posterior, whole))
        )

    fits = inference.fit(
        parts,
        len(problem.bags),
        trial.likelihood,
        trial.q,
        trial.f0,
        problem.driver,
        settings,
        tell,
        None if keeper is None else keeper.state,
        None if keeper is None else keeper.save_state,
    )
    held_out = None
    if problem.tasks.n_folds:
        held_out = read_held_out(problem, parts, fold_processes(problem, projector, trial, fits.q))
    if keeper is not None:
        keeper.done()
    return Fitted(
        process_of(projector, trial, fits.q, whole),
        held_out,
        fits.history[:, whole].sum(1),
        fits.n_iter,
        fits.converged,
        cache,
    )


def trial_of(process: Process) -> Trial:
    """A fitted process as the start of another fit."""
    eye = np.eye(process.m.shape[1])
    factors = [to_numpy(linalg.solve_lower(w, eye)) for w in process.W]  # S = W^T W
    q = Posteriors(process.m, np.stack([L @ L.T for L in factors]), process.W)
    return Trial(process.projector.kernel, process.likelihood, process.f0, q, np.nan, np.nan)


def plan_again(process: Process, bags: Bags, targets: Labels, execution: Execution) -> Problem:
    """A fit on the projection of a fitted process, without folds."""
    projector = process.projector
    device = execution.torch_device(bags.instances)
    driver = execution.make_driver(bags.n_instances * len(projector.Z), device)
    tasks = Tasks(np.zeros(len(bags), dtype=np.int64), targets.present)
    known = targets.known if targets.known.max(initial=-1) >= 0 else None
    labels = BagLabels(bags.offsets, targets.present, known, targets.weight).dealt()
    dtype = execution.dtype or ("float64" if bags.n_instances <= _SINGLE else "float32")
    empty = np.empty((0, projector.Z.shape[1]))
    return Problem(
        bags,
        labels,
        tasks,
        projector.scaling,
        to_numpy(projector.Z),
        empty,
        execution,
        driver,
        dtype,
    )


def ready_parts(problem: Problem, projector: Projector) -> tuple[list[Any], str]:
    """The bags as parts, projected and kept as there is room."""
    bags, execution, driver = problem.bags, problem.execution, problem.driver
    n_bytes = len(problem.Z) * bags.n_instances * np.dtype(problem.dtype).itemsize
    cache = execution.plan_cache(n_bytes, problem.device)
    chunk = execution.chunk(projector.on_device, driver, bags.n_instances)
    parts = make_parts(bags.instances, problem.labels, projector, chunk, driver.n_parts)
    return materialised(parts, cache, driver), cache


def process_of(projector: Projector, trial: Trial, q: Posteriors, tasks: Ints) -> Process:
    """The process of some tasks."""
    return Process(projector, q.m[tasks], q.W[tasks], trial.f0[tasks], trial.likelihood)


def fold_processes(
    problem: Problem, projector: Projector, trial: Trial, q: Posteriors
) -> list[tuple[Process, Bools]]:
    """For every fold the process that did not see its bags, and which they are."""
    tasks, F = problem.tasks, problem.tasks.n_findings
    return [
        (process_of(projector, trial, q, np.arange((1 + j) * F, (2 + j) * F)), tasks.fold == j)
        for j in range(tasks.n_folds)
    ]


@dataclass(frozen=True)
class ReadHeldOut:
    """What processes say of the bags of a part that they did not see; picklable."""

    pairs: list[tuple[Process, Bools]]  # the bags are those of the whole

    def __call__(self, part: Part) -> tuple[Part, list[tuple[Ints, Floats, Floats, Floats]]]:
        """The part as it is; numbers of bags, their log-odds, and moments of their instances."""
        found = []
        for block in part.blocks:
            numbers = host(block.labels.bag)
            for process, chosen in self.pairs:
                here = np.flatnonzero(chosen[numbers])
                if len(here):
                    latent = read_block(take_bags(block, here), process)
                    found.append((numbers[here], latent.bag, latent.mean, latent.var))
        return part, found


def read_held_out(
    problem: Problem, parts: list[Any], pairs: list[tuple[Process, Bools]]
) -> HeldOut:
    """Every bag, read by the fit that did not see it."""
    offsets, F = problem.bags.offsets, problem.tasks.n_findings
    bag = np.full((len(offsets) - 1, F), np.nan)
    mean, var = np.full((2, int(offsets[-1]), F), np.nan)

    def take(found: list[tuple[Ints, Floats, Floats, Floats]]) -> None:
        for numbers, *values in found:
            rows, _ = segments.take(offsets, numbers)
            bag[numbers], mean[rows], var[rows] = values

    problem.driver.sweep(ReadHeldOut(pairs), parts, take)
    return HeldOut(bag, mean, var)


class Calibrated(NamedTuple):
    """What predicts, and the calibrated log-odds of the held-out bags."""

    predictor: Predictor
    held_out: Floats | None  # [B, F]


def calibrated(
    problem: Problem,
    processes: Sequence[Process],
    weights: Sequence[float],
    held_out: HeldOut | None,
    rule: ClassRule,
    codes: Ints,
) -> Calibrated:
    """A line for the bags of every finding and a share map for their instances."""
    processes = tuple(on_host(process) for process in processes)
    plain = Predictor(processes, tuple(weights), rule=rule)
    if held_out is None:
        return Calibrated(plain, None)
    y, counts, offsets = problem.tasks.y, problem.tasks.counts, problem.bags.offsets
    lines = fit_lines(held_out.bag, y, counts, problem.bags.held_out)
    shares = tuple(
        fit_share(held_out.mean[:, f], offsets, y[:, f] == 1, counts) for f in range(y.shape[1])
    )
    odds = np.column_stack(
        [line.log_odds(z) for line, z in zip(lines, held_out.bag.T, strict=True)]
    )
    if not rule.binary:
        rule = fit_temperature(rule, odds, codes)
    return Calibrated(Predictor(processes, tuple(weights), lines, shares, rule), odds)


def fit_lines(bag: Floats, y: Ints, counts: Floats | None, unlearned: Ints) -> tuple[Platt, ...]:
    """A shrunk slope and an intercept for every finding, from log-odds of held-out bags [B, F].

    ``unlearned`` are the bags from which no features were learned either (`correct_optimism`).
    """
    lines = []
    for z, own in zip(bag.T, y.T, strict=True):
        line = fit_platt(z, own, shrink=True, weight=counts)
        lines.append(correct_optimism(line, z, own, unlearned))
    return tuple(lines)


def warn_if_nothing_learned(name: str, bag: Floats, y: Ints) -> None:
    """Say in one line where held-out bags are predicted no better than by their base rate."""
    for z, own in zip(bag.T, y.T, strict=True):
        if Tasks(np.zeros(len(own), np.int64), own[:, None]).gain(z[:, None]) > 0:
            return
    warnings.warn(
        f"{name} found nothing in these bags that tells their labels: held-out bags are predicted "
        "no better than by their base rate, and so will new ones be.",
        stacklevel=4,
    )


def on_host(process: Process) -> Process:
    """A process whose projector is of NumPy arrays in double precision."""
    projector = process.projector
    scaling = FeatureScaling(*(to_numpy(x) for x in projector.scaling))
    Z = to_numpy(projector.Z)
    made = make_projector(projector.kernel, Z, scaling, "float64")
    return process._replace(projector=made)
