"""From bags to fitted processes: plan, fit, and what the held-out bags say. No estimator in sight.

`plan` makes a `Problem` of bags and settings; `fit_marginal` (here) and `fit_paper` (`paper`) make
`Fitted` processes of it; `calibrated` turns those and their held-out readings into the `Predictor`
that a model keeps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bagwise.bags import Bags, check_bags
from bagwise.core import inducing as inducing_points
from bagwise.core import linalg, segments
from bagwise.core.arrays import Bools, Floats, Ints, as_array, host_rows, is_tensor, to_numpy
from bagwise.core.finite import all_finite
from bagwise.core.kernels import Constant, Kernel, OfMedian, Stationary, make_kernel
from bagwise.models.calibration.fit import correct_optimism, fit_platt, fit_share
from bagwise.models.classes import fit_temperature
from bagwise.models.drivers import Driver, Serial, Threads, product_rate
from bagwise.models.execution import Execution, device_settings
from bagwise.models.held_out import folds
from bagwise.models.labels import Labels
from bagwise.models.scaling import FeatureScaling, Scale, learn_scaling, over_rows
from bagwise.models.variational import inference, search
from bagwise.models.variational.blocks import BagLabels, Part, take_bags
from bagwise.models.variational.checkpoint import Checkpoint
from bagwise.models.variational.evidence import whole_bags
from bagwise.models.variational.inference import (
    Iteration,
    Posteriors,
    Settings,
    State,
    Sums,
    posteriors,
)
from bagwise.models.variational.likelihoods import BagLikelihood, SoftMax
from bagwise.models.variational.projection import (
    Inducing,
    Projector,
    make_parts,
    make_projector,
    materialised,
)
from bagwise.models.variational.readout import Predictor, Process, read_block
from bagwise.models.variational.search import N_FOLDS, STARTS, Search, Tasks, Trial

# The search for a kernel sees whole bags: at least so many, and more while their instances are few.
_SEARCHED_BAGS, _SEARCHED_ROWS = 128, 1 << 14
# ... but no more than so many instances and numbers, 0.5 GB, at first; and where held-out bags show
# nothing, twice, four times and eight times as many.
_MOST_ROWS, _MOST_NUMBERS = 1 << 17, 1 << 26
_TIMES = (1, 2, 4, 8)
# ... and so many inducing points, a random part of those that are more: work grows with M^2.
_SEARCHED_POINTS = 200
# Sharpness of the soft maxima by which instances make a bag, unless a likelihood is given.
_TAUS = (1.0, 3.0)
# A fit of so many seconds on a CPU is announced. A usual fit makes so many passes over the
# instances, and so many over those that a search looks at; it takes so many times as long as the
# largest products of these alone.
_SLOW, PASSES, _SEARCH_PASSES, _BESIDE_PRODUCTS = 180.0, 10, 100, 5.0
# Operations per second that every core makes: what is quick with them is not measured.
_SLOWEST_CORE = 1e9
# Sets of more instances are projected in single precision; their sums stay double.
_SINGLE = 1 << 12


# Instances whose distances make the median length scale.
_MEDIAN_ROWS = 1000


class Problem(NamedTuple):
    """Bags, what is known of them, and every choice that does not depend on a kernel."""

    bags: Bags
    targets: Labels  # of the bags in their order, a column per positive class
    labels: BagLabels  # the same with a column per task
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

    @property
    def size(self) -> float:
        """Median number of instances of a bag."""
        return float(np.median(self.bags.sizes))

    def projector(self, kernel: Kernel) -> Projector:
        """Onto the inducing points under a kernel, where the work is done."""
        return make_projector(kernel, self.Z, self.scaling, self.dtype).to(self.device)

    def settings(self) -> AbstractContextManager[None]:
        """The settings of the device that the work is done on; nothing on the host."""
        if self.device is None:
            return nullcontext()
        return device_settings(self.execution.precision, self.bags.n_instances)


def plan(
    bags: Bags,
    targets: Labels,
    scale: Scale,
    inducing: Inducing | Floats,
    n_inducing: int,
    execution: Execution,
    rng: np.random.RandomState,
    held_out: bool,
) -> Problem:
    """Scaling, inducing points, folds and labels of a fit."""
    device = execution.torch_device(bags.instances)
    driver = execution.make_driver(bags.n_instances * n_inducing, device)
    scaling = learn_scaling(bags.instances, scale, driver)
    if hasattr(bags.instances, "select_rows"):
        # Rows on disk are looked at for NaN where they are read anyway.
        finite = [True] if scale else over_rows(all_finite, bags.instances, driver)
        if not (all(finite) and np.isfinite(scaling.center).all()):
            check_bags(bags)  # says where
    # In single precision: devices add up in another order, and a search would amplify their
    # last digits.
    scaling = FeatureScaling(*(to_numpy(x).astype(np.float32).astype(np.float64) for x in scaling))
    if isinstance(inducing, str):
        method = "subset" if inducing == "subset" else "kmeans"
        group = targets.group(bags.offsets) if inducing == "class-kmeans" else None
        Z = inducing_points.choose(bags.instances, group, n_inducing, method, rng, scaling)
    else:
        Z = to_numpy(scaling(inducing))
    if held_out and len(Z) > _SEARCHED_POINTS:  # the search takes the first
        Z = Z[rng.permutation(len(Z))]
    rows = np.arange(bags.n_instances)
    if len(rows) > _MEDIAN_ROWS:
        rows = np.sort(rng.choice(len(rows), _MEDIAN_ROWS, replace=False))
    sample = to_numpy(scaling(host_rows(bags.instances, rows)))
    fold = folds(targets.codes, N_FOLDS) if held_out else np.zeros(len(bags), dtype=np.int64)
    return _problem(bags, targets, fold, scaling, Z, sample, execution, driver)


def plan_again(process: Process, bags: Bags, targets: Labels, execution: Execution) -> Problem:
    """A fit on the projection of a fitted process, without folds."""
    projector, device = process.projector, execution.torch_device(bags.instances)
    Z = to_numpy(projector.Z)
    driver = execution.make_driver(bags.n_instances * len(Z), device)
    fold, none = np.zeros(len(bags), dtype=np.int64), np.empty((0, Z.shape[1]))
    return _problem(bags, targets, fold, projector.scaling, Z, none, execution, driver)


def _problem(
    bags: Bags,
    targets: Labels,
    fold: Ints,
    scaling: FeatureScaling,
    Z: Floats,
    sample: Floats,
    execution: Execution,
    driver: Driver,
) -> Problem:
    """Labels of all tasks, and the precision of the projection."""
    tasks = Tasks(fold, targets.present, targets.counts)
    known = tasks.spread(targets.known) if targets.known.max(initial=-1) >= 0 else None
    y, weight = tasks.spread(targets.present), tasks.weight(targets.weight)
    labels = BagLabels(bags.offsets, y, known, weight).dealt()
    dtype = execution.dtype or ("float64" if bags.n_instances <= _SINGLE else "float32")
    return Problem(bags, targets, labels, tasks, scaling, Z, sample, execution, driver, dtype)


def start_kernels(kernel: Kernel | str) -> list[Kernel]:
    """Where the search for a kernel begins: the user's own, or a handful of the kind that is named.

    A handful has lengths and variances of `search.STARTS`, and a bias.
    """
    start = make_kernel(kernel)
    if not (isinstance(kernel, str) and isinstance(start, Stationary)):
        return [start]
    kind: Any = type(start)
    return [kind(OfMedian(length), v) + Constant(4.0) for length, v in STARTS]


def default_likelihoods(problem: Problem) -> tuple[BagLikelihood, ...]:
    """Soft maxima that count in units of the usual bag: no instance can lower them.

    Stages of one continuation, among which held-out bags choose.
    """
    return tuple(SoftMax(tau, problem.size) for tau in _TAUS)


# Searching and fitting with the hidden labels summed out.


def searched(problem: Problem, times: int = 1) -> Search:
    """The search over whole bags in memory, a stratified draw where there are many."""
    bags, labels = problem.bags, problem.labels
    chosen = draw_bags(bags.sizes, problem.tasks.y, bags.n_features, times)
    rows, _ = segments.take(bags.offsets, chosen)
    own = labels.take(chosen)._replace(bag=None, deal=None, row=None).dealt()
    # A device is worth the transfer, and single precision its digits, where instances are many.
    many = len(rows) > _SINGLE
    data = whole_bags(
        bags.instances,
        rows,
        own,
        problem.Z[:_SEARCHED_POINTS],
        problem.scaling,
        problem.driver if isinstance(problem.driver, Threads) else Serial(),
        problem.device if many else None,
        "float32" if many else "float64",
    )
    return Search(data, problem.tasks.take(chosen), problem.size)


def draw_bags(sizes: Ints, present: Ints, n_features: int, times: int = 1) -> Ints:
    """Numbers of the bags that a search looks at, in order: all, or as many of every label.

    ``times`` as many instances as usual; a larger draw has all bags of a smaller one.
    """
    rng = np.random.default_rng(0)
    _, code = np.unique(present, axis=0, return_inverse=True)
    shuffled = rng.permutation(len(sizes))
    # Round robin over the labels: any first bags are stratified.
    turn = np.empty(len(sizes))
    for c in np.unique(code):
        same = shuffled[code[shuffled] == c]
        turn[same] = (np.arange(len(same)) + 0.5) / len(same)
    order = np.argsort(turn, kind="stable")
    rows = np.cumsum(sizes[order])
    most = min(_MOST_ROWS, _MOST_NUMBERS // max(n_features, 1))
    enough = max(_SEARCHED_ROWS, int(rows[min(_SEARCHED_BAGS, len(rows)) - 1]))
    n = max(2, int(np.searchsorted(rows, times * min(most, enough), side="right")))
    return np.sort(order[:n])


def paths(
    problem: Problem, kernels: Sequence[Kernel], likelihoods: Sequence[BagLikelihood]
) -> tuple[Search, list[Trial]]:
    """A search and its continuation of every kernel to the last of the likelihoods.

    Few large bags may not show what many do, and a kernel learned where nothing was found is flat:
    the search looks at more bags until held-out ones are predicted better than luck would have it.
    """
    starts = [kernel.resolve(problem.sample) for kernel in kernels]
    for times in _TIMES:
        finder = searched(problem, times)
        trials = [trial for kernel in starts for trial in finder.path(kernel, likelihoods[-1])]
        offered = [trial for trial in trials if trial.likelihood in likelihoods]
        if finder.data.n_bags == len(problem.bags) or finder.has_learned(offered):
            break
    return finder, trials


def choose(
    problem: Problem,
    kernels: Sequence[Kernel],
    likelihoods: Sequence[BagLikelihood],
    learn_kernel: bool,
    tried: Callable[[], tuple[Search, list[Trial]]] | None = None,
) -> Trial:
    """Where the kernel starts and, where it is learned, where it ends.

    The continuation leads to the last of the likelihoods; held-out bags choose among its stages
    that are one of them. ``tried`` gives `paths` that other likelihoods share.
    """
    finder, trials = tried() if tried else paths(problem, kernels, likelihoods)
    start = search.best([trial for trial in trials if trial.likelihood in likelihoods])
    return finder.refined(start) if learn_kernel else start


class HeldOutReadings(NamedTuple):
    """What fits without a bag said of it: log-odds of bags, latent moments of instances."""

    bag: Floats  # [B, F]
    mean: Floats  # [N, F]
    var: Floats  # [N, F]

    @classmethod
    def gathered(
        cls, offsets: Ints, n_classes: int, readings: Iterable[tuple[Any, ...]]
    ) -> HeldOutReadings:
        """Those of all bags, from numbers of some bags and what was said of them."""
        bag = np.full((len(offsets) - 1, n_classes), np.nan)
        mean, var = np.full((2, int(offsets[-1]), n_classes), np.nan)
        for numbers, *values in readings:
            rows, _ = segments.take(offsets, numbers)
            bag[numbers], mean[rows], var[rows] = values
        return cls(bag, mean, var)


class Fitted(NamedTuple):
    """A fitted process, and what it is judged by."""

    process: Process
    held_out: HeldOutReadings | None
    history: Floats  # [passes] bounds of the fit to all bags, summed over the classes
    n_iter: int
    converged: bool
    cache: str
    pi: Floats | None = None  # [N, F] q(y = 1), of the papers' updates


def search_and_fit(
    problem: Problem,
    kernels: Sequence[Kernel],
    likelihoods: Sequence[BagLikelihood],
    find: Callable[[], Trial],
    settings: Settings,
    on_iteration: Callable[[Iteration], bool],
    *asked: object,
) -> tuple[Trial, Fitted]:
    """A search among kernels and the fit from where it ends, which a checkpoint may hold.

    ``asked`` is what ``find`` depends on beside the kernels and the likelihoods, which say what the
    stored numbers are of.
    """
    arrays = (*problem.labels, problem.Z, *problem.scaling)
    keeper = Checkpoint(problem.execution, arrays, (kernels, likelihoods, asked, problem.dtype))
    saved, state = keeper.stored, None
    if "theta" in saved:
        kernel = kernels[0].resolve(problem.sample).with_theta(saved["theta"])
        q = posteriors(saved["start_m"], saved["start_P"])
        likelihood = likelihoods[int(saved["likelihood"])]
        trial = Trial(kernel, likelihood, saved["f0"], q, *saved["judged"].tolist())
    else:
        trial = find()
        judged, which = np.array([trial.bound, trial.loss]), likelihoods.index(trial.likelihood)
        q, theta = trial.q, trial.kernel.theta
        keeper.save(
            theta=theta,
            likelihood=np.array(which),
            f0=trial.f0,
            judged=judged,
            start_m=q.m,
            start_P=q.P,
        )
    if "m" in saved:
        sums = Sums(*(saved[name] for name in Sums._fields))
        rest = (saved[name] for name in State._fields[2:])
        state = State(posteriors(saved["m"], saved["P"]), sums, *rest)

    def save(at: State) -> None:
        if len(at.history) % keeper.every == 0:
            rest = dict(zip(State._fields[2:], at[2:], strict=True))
            keeper.save(m=at.q.m, P=at.q.P, **at.sums._asdict(), **rest)

    on_state = None if keeper.path is None else save
    fitted = fit_marginal(problem, trial, settings, on_iteration, state, on_state)
    keeper.done()
    return trial, fitted


def fit_marginal(
    problem: Problem,
    trial: Trial,
    settings: Settings,
    on_iteration: Callable[[Iteration], bool] | None = None,
    state: State | None = None,
    on_state: Callable[[State], None] | None = None,
) -> Fitted:
    """The posteriors of all tasks from where the search left them; held-out bags are read."""
    projector, tasks = problem.projector(trial.kernel), problem.tasks
    parts, cache = ready_parts(problem, projector)

    def process(q: Posteriors, fold: int = 0) -> Process:
        """That of all bags, or the one that did not see the bags of a fold, from 1."""
        columns = np.arange(tasks.n_classes) + fold * tasks.n_classes
        return Process(projector, q.m[columns], q.W[columns], trial.f0[columns], trial.likelihood)

    def tell(at: Iteration) -> bool:
        return on_iteration is not None and on_iteration(
            at._replace(posterior=process(at.posterior))
        )

    q = trial.q.widened(len(problem.Z))
    start = (trial.likelihood, q, trial.f0, problem.driver)
    fits = inference.fit(parts, len(problem.bags), *start, settings, tell, state, on_state)
    held_out = None
    if tasks.n_folds:
        pairs = [(process(fits.q, j + 1), tasks.fold == j) for j in range(tasks.n_folds)]
        readings: list[tuple[Any, ...]] = []
        problem.driver.sweep(partial(_read_unseen, pairs=pairs), parts, readings.extend)
        offsets = problem.bags.offsets
        held_out = HeldOutReadings.gathered(offsets, tasks.n_classes, readings)
    history = fits.history[:, : tasks.n_classes].sum(1)
    return Fitted(process(fits.q), held_out, history, fits.n_iter, fits.converged, cache)


def trial_of(process: Process) -> Trial:
    """A fitted process as the start of another fit."""
    eye = np.eye(process.m.shape[1])
    factors = [to_numpy(linalg.solve_lower(w, eye)) for w in process.W]  # S = W^T W
    q = Posteriors(process.m, np.stack([L @ L.T for L in factors]), process.W)
    return Trial(process.projector.kernel, process.likelihood, process.f0, q, np.nan, np.nan)


def ready_parts(problem: Problem, projector: Projector) -> tuple[list[Any], str]:
    """The bags as parts, projected and kept as there is room."""
    bags, execution, driver = problem.bags, problem.execution, problem.driver
    n_bytes = len(problem.Z) * bags.n_instances * np.dtype(problem.dtype).itemsize
    cache = execution.plan_cache(n_bytes, problem.device)
    chunk = execution.chunk(is_tensor(projector.Z), driver, bags.n_instances)
    parts = make_parts(bags.instances, problem.labels, projector, chunk, driver.n_parts)
    return materialised(parts, cache, driver), cache


# Held-out bags, and calibration.

# For every fold the process that did not see its bags, and which they are in the whole.
Pairs = list[tuple[Process, Bools]]


def _read_unseen(part: Part, pairs: Pairs) -> tuple[Part, list[tuple[Any, ...]]]:
    """Numbers of the bags of a part, their log-odds, and moments of their instances."""
    readings = []
    for block in part.blocks:
        numbers = as_array(block.labels.bag)
        for process, chosen in pairs:
            here = np.flatnonzero(chosen[numbers])
            if len(here):
                latent = read_block(take_bags(block, here), process)
                readings.append((numbers[here], latent.bag, latent.mean, latent.var))
    return part, readings


def calibrated(
    problem: Problem,
    processes: Sequence[Process],
    weights: Sequence[float],
    held_out: HeldOutReadings | None,
) -> tuple[Predictor, Floats | None]:
    """For every class a slope and an intercept of bags, and the calibration of instances.

    What predicts, and the calibrated log-odds of the held-out bags, [B, F].
    """
    labels, offsets = problem.targets, problem.bags.offsets
    processes = tuple(p._replace(projector=p.projector.on_host()) for p in processes)
    if held_out is None:
        return Predictor(processes, tuple(weights), rule=labels.rule), None
    lines, shares, odds, counts = [], [], np.empty_like(held_out.bag), labels.counts
    for f, (z, y) in enumerate(zip(held_out.bag.T, labels.present.T, strict=True)):
        line = fit_platt(z, y, shrink=True, weight=counts)
        # Bags from which no features were learned say by how much the others are over-confident.
        lines.append(correct_optimism(line, z, y, problem.bags.held_out))
        odds[:, f] = lines[-1].log_odds(z)
        shares.append(fit_share(held_out.mean[:, f], offsets, y == 1, counts))
    rule = labels.rule if labels.rule.binary else fit_temperature(labels.rule, odds, labels.codes)
    return Predictor(processes, tuple(weights), tuple(lines), tuple(shares), rule), odds


def warn_if_slow(name: str, problem: Problem, passes: int, searches: int) -> None:
    """Say before a fit that takes minutes on a CPU what would shorten it.

    Counted are the products of the projection, of the passes of all tasks and of the searches.
    """
    bags, tasks, M = problem.bags, problem.tasks, len(problem.Z)
    searched = bags.sizes[draw_bags(bags.sizes, tasks.y, bags.n_features)].sum()
    per_task = passes * bags.n_instances * M**2
    per_task += searches * _SEARCH_PASSES * searched * min(M, _SEARCHED_POINTS) ** 2
    products = bags.n_instances * M * (bags.n_features + M) + tasks.n_tasks * per_task
    work = _BESIDE_PRODUCTS * 2 * products
    if str(problem.device).startswith("cuda") or work < _SLOW * _SLOWEST_CORE:
        return
    seconds = work / product_rate(problem.driver)
    if seconds > _SLOW:
        warnings.warn(
            f"{name} will take about {seconds / 60:.0f} minutes on this CPU. Fewer than {M} "
            "inducing points (n_inducing), a GPU (execution='cuda'), or a random part of the "
            "instances of large bags shorten that.",
            stacklevel=3,
        )


def warn_if_nothing_learned(name: str, bag: Floats, y: Ints) -> None:
    """Say in one line where held-out bags are predicted no better than by their base rate."""
    for z, label in zip(bag.T[:, :, None], y.T[:, :, None], strict=True):
        tasks = Tasks(np.zeros(len(label), np.int64), label)
        if tasks.loss(z) < tasks.loss(np.zeros_like(z)):
            return
    warnings.warn(
        f"{name} found nothing in these bags that tells their labels: held-out bags are predicted "
        "no better than by their base rate, and so will new ones be.",
        stacklevel=4,
    )
