"""`AutoVGPMIL`: designs are chosen and weighed by cross-validation; its members are VGPMILs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags, BagsLike, InstanceLabels, check_bags
from bagwise.core import segments
from bagwise.core.arrays import Array, Column, Floats, Ints, RandomState, Wholes
from bagwise.core.kernels import Kernel
from bagwise.core.platt import Platt, cool, fit_shrunk_platt, typical_range
from bagwise.files import read_plainly
from bagwise.models.base import InstanceClassifier, SeveralClasses, TrainingData
from bagwise.models.classes import (
    ClassRule,
    ClassWeight,
    bag_weights,
    has_several_classes,
    read_instance_classes,
)
from bagwise.models.drivers import Driver
from bagwise.models.execution import Execution, device_settings, resolve
from bagwise.models.feature_checks import check_bag_weights
from bagwise.models.one_vs_rest import check_two_class_background
from bagwise.models.scaling import Scale
from bagwise.models.variational import search
from bagwise.models.variational.blocks import BagLabels
from bagwise.models.variational.checkpoint import StageCheckpoint, fingerprint_arrays
from bagwise.models.variational.densities import Sech
from bagwise.models.variational.estimators import (
    VGPMIL,
    FitProblem,
    driver_for,
    loaded_if_small,
    on_device,
    on_disk,
    probabilities,
    read_bags,
    start,
    with_uncertainty,
)
from bagwise.models.variational.latent_map import (
    ENOUGH_OF_CLASS,
    HeldOut,
    InstanceMap,
    MapFit,
    bags_to_read,
    bent,
    fit_instance_map,
    level_with_bags,
    usual_deviations,
)
from bagwise.models.variational.monitors import stage_bar
from bagwise.models.variational.projection import Projector
from bagwise.models.variational.score import BagRule, Reader, Readout, ReadsBlocks, Scores
from bagwise.models.variational.search import Candidate, Design, Space, Voice
from bagwise.models.variational.several import (
    base_rates,
    class_columns,
    class_fractions,
    class_smoothing,
    combined,
    fitted_rule,
    held_out_classes,
    warn_of_rare,
)
from bagwise.models.variational.updates import Fit, InducingPosterior
from bagwise.models.variational.whole_bags import WholeMember, fit_points, pooled_bags

# The screen: fewer inducing points, folds and iterations, and the cheapest rule.
_SCREEN_INDUCING, _SCREEN_FOLDS, _SCREEN_ITERATIONS = 100, 3, 5
_SCREEN_RULES: tuple[BagRule, ...] = ("max",)
# Bags with so many times `max_search_instances` are compared by some of their instances;
_MUCH_LARGER = 2
# so many of the best designs are then weighed on whole ones.
_WEIGHED_ON_WHOLE = 3
# What `search_results_` and `best_params_` call the rule of members that look at whole bags.
_WHOLE_RULE = "whole"
Group = tuple[Scale, str]


class AutoVGPMIL(InstanceClassifier):
    """VGPMIL that chooses its own scaling, kernel, likelihood and bag rule.

    The estimator to reach for first. Which design of a VGPMIL is right depends on the data: one
    scale for all features or one each, narrow or wide kernels, one positive instance per bag or
    many. No single one is good everywhere, and the evidence bound does not find it across
    kernels; held-out bags do. Ninety-six designs are screened, the best are cross-validated
    in full, weighted by their held-out likelihood, refitted on all bags and averaged; the
    average is calibrated on held-out scores that have paid for the choice.

    Parameters
    ----------
    n_inducing : int
        Inducing points of every fit; cost grows with their square. Capped at the distinct rows.
        Narrow kernels gain from many.
    cv : int
        Folds of the inner cross-validation; fewer where a class has fewer bags.
    n_finalists : int
        Designs that survive the screen.
    temperature : float
        How far the weights of close designs are evened out; near 0 only the best one counts.
    max_iter : int
        Most iterations of a fit.
    assumption : {"standard", "any"}
        What may make a bag positive. By default some instance of it: that is the
        multiple-instance assumption. ``"any"`` also admits members that look at whole bags, a
        Gaussian process on the set kernel, weighed by held-out bags like the others. It helps where
        the label is made by the whole, or where few positive bags show no single instance. What
        it gives up: any instance may then raise or lower the probability of its bag, also by
        being absent (such an ensemble fails the tests of `evaluate.check_mil`), and
        the instances are scored by the other members alone.
    max_search_instances : int
        Where there are more training instances, designs are compared on a stratified part of
        the bags with about so many; the refit sees them all. Where bags are so large that this
        would be fewer than 25 of each class, designs are compared on some instances of so many
        bags, and the best three are weighed and calibrated on the whole bags.
    execution : Execution or {"serial", "threads", "dask", "cpu", "cuda"}, optional
        Where and how the search, the refit and the prediction run; see `Execution`. A
        checkpoint keeps every finished stage: the screen, the cross-validation, each member.
    random_state : int, RandomState or None
        Of the inducing points and the folds.
    verbose : bool
        Show a progress bar.

    Attributes
    ----------
    members_ : list of VGPMIL
        The fitted models of the ensemble, the one that counts most first.
    weights_ : array of shape (n_members,)
        How much each member counts.
    maps_ : list of Platt
        The map that each member's log-odds of bags go through before they are averaged.
    instance_maps_ : list of Platt
        The same for instances: the map of the largest instance of a bag.
    platt_ : Platt
        The final map of the average.
    bag_range_ : (float, float)
        Calibrated log-odds between which most held-out bags lie; those of bags outside are pulled
        towards them (`bagwise.core.platt.compress_beyond`). Infinite with several classes.
    instance_map_ : InstanceMap
        What the labels of held-out bags say about instances: the chance that an instance of a
        positive bag is positive, by its log-odds, and the share of positives.
    whole_members_, whole_weights_, whole_maps_ : lists
        With ``assumption="any"``: the members that look at whole bags, how much each counts
        beside ``weights_``, and its map.
    best_params_ : dict
        Scaling, kernel, likelihood and bag rule of the member that counts most.
    search_results_ : dict of arrays
        One row per design and rule: ``scale``, ``kernel``, ``likelihood``, ``rule``, ``stage``
        ("screen" or "full"), held-out ``log_loss`` and ``auc``, and ``weight`` in the ensemble.
        ``pandas.DataFrame(model.search_results_)`` makes a table of it. Empty for a class of
        several that was too rare to be searched.
    held_out_decision_ : array of shape (n_search_bags,)
        Calibrated log-odds of training bags from ensembles that did not see them.
    n_iter_ : int
        Most iterations of any member.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import AutoVGPMIL
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 5, 2))
    >>> y = np.arange(40) % 2
    >>> X[y == 1, 0] += 4  # one positive instance in each positive bag
    >>> model = AutoVGPMIL(n_inducing=20, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    >>> sorted(model.best_params_)
    ['bag_rule', 'kernel', 'likelihood', 'scale']
    """

    # Also of models that were saved before they had them.
    instance_map_: InstanceMap | None = None
    instance_maps_: Sequence[Platt] = ()  # those without read instances by `maps_`
    bag_range_: tuple[float, float] = (-np.inf, np.inf)
    assumption: Literal["standard", "any"] = "standard"
    whole_members_: Sequence[WholeMember] = ()
    whole_weights_: Sequence[float] = ()
    whole_maps_: Sequence[Platt] = ()

    best_params_: dict[str, str | None]
    maps_: list[Platt]
    platt_: Platt
    search_results_: dict[str, Column]
    held_out_decision_: Floats
    n_iter_: int
    _rules: list[BagRule]
    _designs: list[Design]
    members_: list[VGPMIL]
    weights_: Floats

    # Projections in float32: the search compares designs, and the refit follows it.
    _dtype: ClassVar[str] = "float32"
    _keeps_rows = True
    _multi_class = True
    _multi_label = True
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_inducing": [Interval(Integral, 1, None, closed="left")],
        "cv": [Interval(Integral, 2, None, closed="left")],
        "n_finalists": [Interval(Integral, 1, None, closed="left")],
        "temperature": [Interval(Real, 0, None, closed="neither")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "assumption": [StrOptions({"standard", "any"})],
        "max_search_instances": [Interval(Integral, 1, None, closed="left")],
        "execution": "no_validation",  # `resolve` says what is wrong
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        *,
        n_inducing: int = 300,
        cv: int = 5,
        n_finalists: int = 8,
        temperature: float = 4.0,
        max_iter: int = 20,
        assumption: Literal["standard", "any"] = "standard",
        max_search_instances: int = 20_000,
        execution: Execution | str | None = None,
        random_state: RandomState = None,
        verbose: bool = False,
    ) -> None:
        self.n_inducing = n_inducing
        self.cv = cv
        self.n_finalists = n_finalists
        self.temperature = temperature
        self.max_iter = max_iter
        self.assumption = assumption
        self.max_search_instances = max_search_instances
        self.execution = execution
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        bags: BagsLike,
        y: ArrayLike,
        instance_labels: InstanceLabels = None,
        background: Any = None,
        class_weight: ClassWeight | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> AutoVGPMIL:
        """Search, weigh, refit, calibrate.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays, or 3-d array
        y : array of shape (n_bags,) or (n_bags, n_classes)
            A class per bag; of two, of which at least two bags are needed, the larger one is
            positive. Or an indicator matrix, scikit-learn's multilabel format. With several
            classes one that has a single bag borrows the design of another.
        instance_labels, background, class_weight
            As for `VGPMIL.fit`. Every class has a search of its own; scalings and inducing points
            are shared.
        sample_weight : array of shape (n_bags,), optional
            How much each bag counts in every fit; designs are compared, and probabilities
            calibrated, on the bags as they are.
        """
        self._forget_classes()
        execution = resolve(self.execution)
        if has_several_classes(y):
            several = self._validate_several(bags, y, instance_labels, background)
            driver = driver_for(execution, several.bags, self.n_inducing)
            with _on_device(execution, several.bags):
                return self._fit_several(several, class_weight, sample_weight, execution, driver)
        data = self._validate_fit(bags, y, instance_labels)
        check_two_class_background(background, self.classes_)
        counts = (
            None if sample_weight is None else check_bag_weights(sample_weight, data.bags, self)
        )
        weight = bag_weights(class_weight, counts, data.y, self.classes_)
        driver = driver_for(execution, data.bags, self.n_inducing)
        with _on_device(execution, data.bags):
            rng = check_random_state(self.random_state)
            spaces = self._make_spaces(data.bags, rng, driver)
            self._fit(data, weight, spaces, rng, execution, driver)
            self._fit_deviations(data.bags)
        return self

    def _fit_deviations(self, bags: Bags) -> None:
        """What the deviations of the instances have in common, from some of the training bags."""
        assert self.instance_map_ is not None
        read = self._read(bags[bags_to_read(bags.sizes)], search.pooled_deviations)
        self.instance_map_ = self.instance_map_._replace(deviations=usual_deviations(*read))

    def _make_spaces(
        self, bags: Bags, rng: np.random.RandomState, driver: Driver
    ) -> dict[Scale, Space]:
        spaces = search.make_spaces(bags, self.n_inducing, rng, driver)
        if on_disk(bags) and not np.isfinite(spaces["feature"].scaling.center).all():
            check_bags(bags)  # says where
        return spaces

    def _fit_several(
        self,
        data: SeveralClasses,
        class_weight: ClassWeight | None,
        sample_weight: ArrayLike | None,
        execution: Execution,
        driver: Driver,
    ) -> AutoVGPMIL:
        """A search per finding, in spaces that they share."""
        bags, labels, known = data
        rng = check_random_state(self.random_state)
        counts = None if sample_weight is None else check_bag_weights(sample_weight, bags, self)
        spaces = self._make_spaces(bags, rng, driver)
        seed = int(rng.randint(np.iinfo(np.int32).max))
        rare, rates = warn_of_rare(labels), base_rates(labels)
        members: dict[int, AutoVGPMIL] = {}
        # Classes of which no bag can be held out come last: they borrow what others have chosen.
        for f in sorted(range(labels.present.shape[1]), key=lambda f: f in rare):
            member = members[f] = clone(self)
            member.classes_, member.n_features_in_ = np.arange(2), bags.n_features
            own = TrainingData(bags, labels.present[:, f], known[:, f])
            weight = labels.weights(class_weight, counts, f)
            draws = np.random.RandomState(seed)
            numbered = execution.numbered(f)
            lenders = [g for g in members if g not in rare]
            if f in rare and lenders:
                nearest = min(lenders, key=lambda g: abs(rates[g] - rates[f]))
                shift = float(rates[f] - rates[nearest])
                member._borrow(members[nearest], shift, own, weight, spaces, numbered)
            else:
                count = class_smoothing(labels)
                member._fit(own, weight, spaces, draws, numbered, driver, True, count)
        self.per_class_ = [members[f] for f in range(len(members))]
        held_out = np.full((len(bags), len(self.per_class_)), np.nan)
        for f, member in enumerate(self.per_class_):
            held_out[member._searched, f] = member.held_out_decision_
        self.class_rule_ = fitted_rule(labels, list(held_out.T))
        self.held_out_decision_ = held_out_classes(self.class_rule_, held_out)
        self.n_iter_ = max(member.n_iter_ for member in self.per_class_)
        return self

    def _fit(
        self,
        data: TrainingData,
        weight: Floats | None,
        spaces: dict[Scale, Space],
        rng: np.random.RandomState,
        execution: Execution,
        driver: Driver,
        one_of_several: bool = False,
        smoothing: float | None = None,  # of the final map's targets: `core.platt.smoothed`'s count
    ) -> AutoVGPMIL:
        rarest = int(np.bincount(data.y).min())
        if rarest < 2:
            raise ValueError(
                "AutoVGPMIL needs at least 2 bags of each class to cross-validate; the rarer "
                f"class has {rarest}. Use VGPMIL, which chooses nothing."
            )
        part, self._searched = self._search_part(data, rng)
        few = self._thinned(part, rng)
        part_weight = None if weight is None else weight[self._searched]
        seeds = [int(rng.randint(2**31 - 1)) for _ in range(2)]
        points = {scale: _some(space.Z, _SCREEN_INDUCING, rng) for scale, space in spaces.items()}
        name = self._problem_name(data, weight, spaces, seeds)
        keeper = StageCheckpoint(execution.checkpoint, name)
        designs = search.grid()
        total = len(search.SCALES) * len(search.KERNELS) + self.n_finalists + 1
        with stage_bar(self.verbose, total, "AutoVGPMIL") as advance:

            def held_out(
                some: TrainingData,
                chosen: Sequence[Design],
                rules: tuple[BagRule, ...],
                folds: search.Folds,
                max_iter: int,
                Z: dict[Scale, Floats] | None = None,
            ) -> search.HeldOutScores:
                labels = _labels(some, part_weight)
                work = search.HeldOut(some.bags, labels, rules, folds, max_iter)
                return self._held_out(work, chosen, spaces, Z, execution, driver, advance)

            def cross_validated(
                some: TrainingData, chosen: list[Design], stage: str = ""
            ) -> tuple[list[Candidate], list[Design], search.HeldOutScores]:
                stored = keeper.stage(
                    "full" + stage,
                    lambda: held_out(some, chosen, search.RULES, full_folds, self.max_iter),
                )
                scores, compared = search.HeldOutScores(*stored), chosen
                if self.assumption == "any":
                    compared = [*chosen, *search.whole_grid()]
                    labels = _labels(some, part_weight)
                    work = search.HeldOutWhole(some.bags, labels, full_folds, self.max_iter)
                    (whole,) = keeper.stage(
                        "whole" + stage,
                        lambda: [self._held_out_whole(work, spaces, execution, driver)],
                    )
                    scores = scores.beside(whole)
                candidates = self._choose(
                    some, scores, compared, seeds[1], smoothing, not one_of_several
                )
                return candidates, compared, scores

            advance(f"screening {len(designs)} designs", 0)
            folds = search.make_folds(part.y, _SCREEN_FOLDS, seeds[0])
            (screened,) = keeper.stage(
                "screen",
                lambda: held_out(few, designs, _SCREEN_RULES, folds, _SCREEN_ITERATIONS, points)[
                    :1
                ],
            )
            finalists = self._finalists(designs, screened, part.y)
            advance(f"cross-validating {len(finalists)} designs", 0)
            full_folds = search.make_folds(part.y, self.cv, seeds[1])
            candidates, compared, scores = cross_validated(few, finalists)
            if few is not part:
                # Whole bags reach higher than a few of their instances: on these the best designs
                # are weighed and calibrated.
                inside = [compared[c.design] for c in candidates if c.design < len(finalists)]
                finalists = list(dict.fromkeys(inside))[:_WEIGHED_ON_WHOLE]
                advance(f"calibrating {len(finalists)} designs", 0)
                candidates, compared, scores = cross_validated(part, finalists, " of whole bags")
            self._report(designs, screened, compared, scores, candidates, part.y)
            self._set_members(candidates, compared, len(finalists))
            advance(f"refitting {len(candidates)} members", 0)
            chosen = [compared[c.design] for c in candidates]
            inside = [design for design in chosen if design in finalists]
            self._refit(data, weight, spaces, inside, keeper, advance)
            self.whole_members_ = [
                self._whole_member(data.bags, _labels(data, weight), spaces, design, execution)
                for design in chosen
                if design not in finalists
            ]
        keeper.done()
        return self

    def _borrow(
        self,
        lender: AutoVGPMIL,
        shift: float,
        data: TrainingData,
        weight: Floats | None,
        spaces: dict[Scale, Space],
        execution: Execution,
    ) -> None:
        """Fit a class too rare to be searched with the best design of another, and its map.

        ``shift`` is how much rarer the class is, in log-odds.
        """
        # The best of those that score instances: whole bags of another class say nothing here.
        self._designs, self._rules = lender._designs[:1], lender._rules[:1]
        self.best_params_ = {**self._designs[0]._asdict(), "bag_rule": self._rules[0]}
        self.weights_, self.maps_ = np.ones(1), lender.maps_[:1]
        self.instance_maps_ = lender.instance_maps_[:1]
        self.platt_ = lender.platt_._replace(intercept=lender.platt_.intercept + shift)
        self.search_results_ = {}
        self._searched, self.held_out_decision_ = np.arange(0), np.empty(0)
        name = self._problem_name(data, weight, spaces, [])
        keeper = StageCheckpoint(execution.checkpoint, name)
        with stage_bar(self.verbose, 1, "AutoVGPMIL") as advance:
            self._refit(data, weight, spaces, self._designs, keeper, advance)
        keeper.done()

    def _check_bags(self, bags: BagsLike, n_features: int | None = None) -> Bags:
        # Pages of a memory map would count as memory of this process.
        bags = loaded_if_small(read_plainly(bags))
        bags = on_device(bags, resolve(self.execution), n_features, "AutoVGPMIL")
        if not on_disk(bags):
            return super()._check_bags(bags, n_features)
        return check_bags(bags, n_features=n_features, estimator="AutoVGPMIL", finite=False)

    def _problem_name(
        self,
        data: TrainingData,
        weight: Floats | None,
        spaces: dict[Scale, Space],
        seeds: list[int],
    ) -> str:
        """Names the search for its checkpoint: data, points, seeds and settings."""
        settings = (
            *(self.cv, self.n_finalists, self.temperature, self.max_iter),
            *(self.assumption, seeds),
        )
        arrays: list[Array | Wholes] = [data.bags.offsets, data.y, data.instance_labels]
        arrays += [] if weight is None else [weight]
        arrays += [array for space in spaces.values() for array in (*space.scaling, space.Z)]
        return fingerprint_arrays(arrays, (*settings, self.max_search_instances))

    def _search_part(
        self, data: TrainingData, rng: np.random.RandomState
    ) -> tuple[TrainingData, Ints]:
        """All bags, or a stratified draw with about `max_search_instances`; and which they are.

        However large they are, there are `ENOUGH_OF_CLASS` of each class, or all of it.
        """
        share = self.max_search_instances / data.bags.n_instances
        part, bags = data, np.arange(len(data.bags))
        if share < 1:
            chosen = []
            for label in (0, 1):
                of_class = np.flatnonzero(data.y == label)
                n = max(ENOUGH_OF_CLASS, round(share * len(of_class)))
                chosen.append(rng.choice(of_class, min(n, len(of_class)), replace=False))
            bags = np.sort(np.concatenate(chosen))
            rows, _ = segments.take(data.bags.offsets, bags)
            part = TrainingData(data.bags[bags], data.y[bags], data.instance_labels[rows])
        if not on_disk(part.bags) or self._is_much(part.bags):
            return part, bags
        rows = part.bags.instances[0 : part.bags.n_instances]
        return part._replace(bags=part.bags.with_instances(rows)), bags

    def _is_much(self, bags: Bags) -> bool:
        """Whether bags are too large to compare all designs on."""
        return bags.n_instances >= _MUCH_LARGER * self.max_search_instances

    def _thinned(self, part: TrainingData, rng: np.random.RandomState) -> TrainingData:
        """The same bags with about `max_search_instances` instances drawn from all of them."""
        if not self._is_much(part.bags):
            return part
        share = self.max_search_instances / part.bags.n_instances
        drawn = [
            np.sort(rng.choice(size, max(1, round(share * size)), replace=False))
            for size in part.bags.sizes
        ]
        starts, X = part.bags.offsets[:-1], part.bags.instances
        rows = np.concatenate([start + own for start, own in zip(starts, drawn, strict=True)])
        if on_disk(part.bags):  # bag by bag, so that memory holds one of them
            spans = itertools.pairwise(part.bags.offsets)
            X = np.concatenate([X[a:b][own] for (a, b), own in zip(spans, drawn, strict=True)])
        else:
            X = X[rows]
        few = Bags(X, np.concatenate([[0], np.cumsum([len(own) for own in drawn])]))
        return TrainingData(few, part.y, part.instance_labels[rows])

    def _held_out(
        self,
        work: search.HeldOut,
        designs: Sequence[Design],
        spaces: dict[Scale, Space],
        points: dict[Scale, Floats] | None,
        execution: Execution,
        driver: Driver,
        advance: Callable[[str, int], None],
    ) -> search.HeldOutScores:
        """Held-out scores of the designs; designs of one kernel share its projection."""
        groups: dict[Group, list[int]] = {}
        for i, design in enumerate(designs):
            groups.setdefault((design.scale, design.kernel), []).append(i)
        device = execution.torch_device(work.bags.instances)
        dtype = execution.dtype or self._dtype
        tasks = []
        for (scale, kernel), members in groups.items():
            Z = None if points is None else points[scale]
            projector = spaces[scale].projector(kernel, dtype, Z).to(device)
            tasks.append(search.Task(projector, tuple(designs[i].likelihood for i in members)))
        scores = search.HeldOutScores(
            np.empty((len(designs), len(work.rules), len(work.bags))),
            np.empty((len(designs), work.bags.n_instances)),
        )
        for rows, own in zip(groups.values(), driver.map(work, tasks), strict=True):
            scores.bags[rows], scores.instances[rows] = own
            advance("comparing designs", 1)
        return scores

    def _held_out_whole(
        self,
        work: search.HeldOutWhole,
        spaces: dict[Scale, Space],
        execution: Execution,
        driver: Driver,
    ) -> Floats:
        """Held-out scores [designs, B] of `search.whole_grid`, the designs for whole bags."""
        device = execution.torch_device(work.bags.instances)
        dtype = execution.dtype or self._dtype
        tasks = [
            search.Task(spaces[scale].projector(kernel, dtype).to(device), tuple(search.WHOLE_BAGS))
            for scale in search.SCALES
            for kernel in search.SET_KERNELS
        ]
        return np.concatenate(list(driver.map(work, tasks)))

    def _whole_member(
        self,
        bags: Bags,
        labels: BagLabels,
        spaces: dict[Scale, Space],
        design: Design,
        execution: Execution,
    ) -> WholeMember:
        """A member that looks at whole bags, fitted to all of them."""
        space, variance = spaces[design.scale], search.WHOLE_BAGS[design.likelihood]
        projector = space.projector(design.kernel, execution.dtype or self._dtype)
        device = execution.torch_device(bags.instances)
        driver = driver_for(execution, bags, self.n_inducing)
        chunk = execution.chunk(device is not None, driver, bags.n_instances)
        points = pooled_bags(bags, labels, projector.to(device), variance, chunk)
        q = fit_points(points, self.max_iter, search.TOL)
        return WholeMember(
            design.scale, space.kernels[design.kernel], variance, *space.scaling, space.Z, *q
        )

    def _finalists(self, designs: Sequence[Design], scores: Floats, y: Ints) -> list[Design]:
        """The designs worth a full cross-validation."""
        _, losses = search.calibrated_losses(scores.reshape(-1, len(y)), y)
        best = losses.reshape(len(designs), -1).min(axis=1)
        rarest = int(np.bincount(y).min())
        priced = best + np.array([d.price(rarest) for d in designs]) / len(y)
        order = np.argsort(priced, kind="stable")[: self.n_finalists]
        return [designs[i] for i in np.sort(order)]

    def _choose(
        self,
        part: TrainingData,
        scores: search.HeldOutScores,
        finalists: Sequence[Design],
        seed: int,
        smoothing: float | None,
        compress: bool,
    ) -> list[Candidate]:
        """The weights of the finalists, and the final calibration of bags and instances.

        ``compress`` bags that are far out; not where an instance counts as a bag of one.
        """
        rarest = int(np.bincount(part.y).min())
        prices = [design.price(rarest) for design in finalists]
        again = search.make_folds(part.y, self.cv, seed + 1)
        settings = prices, self.temperature
        rule_price = search.PRICE + search.size_gain(part.bags.sizes, part.y)
        offsets = part.bags.offsets
        left_out, instances = search.held_out_ensemble(
            scores, part.y, offsets, *settings, again, rule_price
        )
        ends = typical_range(left_out, part.y) if compress else (-np.inf, np.inf)
        compressed = bent(left_out, *ends)
        platt = fit_shrunk_platt(compressed, part.y, smoothing)
        units = np.arange(len(left_out) + 1)
        self.platt_ = cool(platt, compressed, units, part.y, part.bags.held_out)
        low, high = self.platt_.log_odds(ends)
        self.bag_range_ = float(low), float(high)
        self.held_out_decision_ = self.platt_.log_odds(compressed)
        # Whole bags say nothing of an instance: its log-odds are those of the others alone. They
        # are not compressed, and as sure as a line through all bags is.
        z = self.platt_.log_odds(instances)
        of_bags = HeldOut(self.platt_.log_odds(left_out), np.zeros(len(part.y)), units)
        unshrunk = MapFit(of_bags, part.y, "max", count=smoothing)
        of_instances = HeldOut(z, np.zeros_like(z), offsets)
        contrast = fit_instance_map(
            of_instances, part.y, unshrunk.slope, part.instance_labels, gain=unshrunk.gain
        )
        self.instance_map_ = level_with_bags(
            contrast, of_instances, part.y, self.held_out_decision_
        )
        return search.weigh(scores.bags, part.y, *settings, rule_price, len(scores.instances))

    def _report(
        self,
        designs: Sequence[Design],
        screened: Floats,
        finalists: Sequence[Design],
        scores: search.HeldOutScores,
        candidates: Sequence[Candidate],
        y: Ints,
    ) -> None:
        """Set ``search_results_``; the last finalists may look at whole bags."""
        weights = {(c.design, c.rule): c.weight for c in candidates}
        rows: list[tuple[object, ...]] = []
        n = len(scores.instances)
        for first, stage, some, held_out, rules in (
            (0, "screen", designs, screened, _SCREEN_RULES),
            (0, "full", finalists[:n], scores.bags[:n], search.RULES),
            (n, "full", finalists[n:], scores.bags[n:, :1], (_WHOLE_RULE,)),
        ):
            if not some:
                continue
            aucs = search.auc(held_out, y)
            _, losses = search.calibrated_losses(held_out.reshape(-1, len(y)), y)
            losses = losses.reshape(len(some), -1)
            for i, design in enumerate(some):
                for j, rule in enumerate(rules):
                    weight = weights.get((first + i, j), 0.0) if stage == "full" else 0.0
                    rows.append((*design, rule, stage, losses[i, j], aucs[i, j], weight))
        names = ("scale", "kernel", "likelihood", "rule", "stage", "log_loss", "auc", "weight")
        self.search_results_ = {
            name: np.array(column)
            for name, column in zip(names, zip(*rows, strict=True), strict=True)
        }

    def _set_members(
        self, candidates: Sequence[Candidate], designs: Sequence[Design], n_scoring: int
    ) -> None:
        """Set the weights, the maps and ``best_params_``; the first designs score instances."""
        inside = [c for c in candidates if c.design < n_scoring]
        whole = [c for c in candidates if c.design >= n_scoring]
        self._designs = [designs[c.design] for c in inside]
        self._rules = [search.RULES[c.rule] for c in inside]
        self.weights_ = np.array([c.weight for c in inside])
        self.maps_ = [c.platt for c in inside]
        self.instance_maps_ = [c.top for c in inside]
        self.whole_weights_ = [c.weight for c in whole]
        self.whole_maps_ = [c.platt for c in whole]
        best = candidates[0]
        rule = search.RULES[best.rule] if best.design < n_scoring else _WHOLE_RULE
        self.best_params_ = {**designs[best.design]._asdict(), "bag_rule": rule}

    def _refit(
        self,
        data: TrainingData,
        weight: Floats | None,
        spaces: dict[Scale, Space],
        designs: Sequence[Design],
        keeper: StageCheckpoint,
        advance: Callable[[str, int], None],
    ) -> None:
        """Fit every member to all bags; members of one kernel share its projection."""
        members: dict[int, VGPMIL] = {}
        groups: dict[Group, list[int]] = {}
        for i, design in enumerate(designs):
            groups.setdefault((design.scale, design.kernel), []).append(i)
        for (scale, kernel), positions in groups.items():
            space = spaces[scale]
            shared: tuple[FitProblem, list[Any]] | None = None
            for i in positions:
                member = self._member(space, designs[i], self._rules[i])
                stored = keeper.load(f"member_{i}")
                if stored is None:
                    if shared is None:
                        shared = self._shared(data, weight, space, kernel, member)
                    fit = member.fit_projected(shared[0], shared[1])
                    keeper.save(f"member_{i}", _packed(fit))
                else:
                    fit = _unpacked(stored)
                member.take(space.projector(kernel, "float64"), fit, self.classes_)
                members[i] = member
                advance(f"refitted {len(members)} of {len(designs)} members", 1)
        self.members_ = [members[i] for i in range(len(designs))]
        self.n_iter_ = max(member.n_iter_ for member in self.members_)

    def _member(self, space: Space, design: Design, rule: BagRule) -> VGPMIL:
        """An unfitted member: a VGPMIL with the design's choices spelled out."""
        return VGPMIL(
            kernel=space.kernels[design.kernel],
            likelihood=search.LIKELIHOODS[design.likelihood],
            inducing=space.scaling.undo(space.Z),
            scale=design.scale,
            bag_rule=rule,
            calibrate=False,
            init="half" if design.likelihood == "inherited" else "label",
            max_iter=self.max_iter,
            tol=search.TOL,
            execution=self._member_execution(),
            random_state=0,
        )

    def _member_execution(self) -> Execution:
        """How members run: as the ensemble does, with its precision; it keeps the checkpoint."""
        execution = resolve(self.execution)
        return replace(
            execution, dtype=execution.dtype or "float32", checkpoint=None, checkpoint_every=None
        )

    def _shared(
        self,
        data: TrainingData,
        weight: Floats | None,
        space: Space,
        kernel: str,
        member: VGPMIL,
    ) -> tuple[FitProblem, list[Any]]:
        """The projected bags that members with one scaling and kernel fit."""
        execution = self._member_execution()
        device = execution.torch_device(data.bags.instances)
        projector = space.projector(kernel, execution.dtype or self._dtype).to(device)
        labels = _labels(data, weight)
        problem = FitProblem(
            data.bags,
            labels,
            projector,
            start("label", labels, None),
            search.LIKELIHOODS["or"],
            Sech(),
            execution,
            driver_for(execution, data.bags, self.n_inducing),
        )
        return problem, member.project(problem)

    def update(
        self, bags: BagsLike, y: ArrayLike, instance_labels: InstanceLabels = None
    ) -> AutoVGPMIL:
        """Refit the members, with instance labels that came later; nothing is searched again.

        Designs, weights, inducing points, calibration and the members that look at whole bags
        stay as `fit` left them.
        """
        check_is_fitted(self)
        if self._rule is not None:
            checked = self._check_bags(bags, self.n_features_in_)
            labels = self._rule.read_labels(y, checked, self.classes_)
            known = read_instance_classes(instance_labels, checked, labels)
            for f, one in enumerate(self.per_class_):
                one.update(checked, labels.present[:, f], known[:, f])
            return self
        for member in self.members_:
            member.update(bags, self._check_update_labels(y), instance_labels)
        self.n_iter_ = max(member.n_iter_ for member in self.members_)
        return self

    def _check_update_labels(self, y: ArrayLike) -> ArrayLike:
        unknown = np.setdiff1d(np.unique(np.asarray(y)), self.classes_)
        if len(unknown):
            raise ValueError(
                f"update must keep the classes of fit, {self.classes_.tolist()}; got "
                f"{unknown.tolist()} besides."
            )
        return y

    def _read(
        self,
        bags: BagsLike,
        finish: Callable[..., tuple[Floats, ...]],
        fractions: bool = False,
    ) -> tuple[Floats, ...]:
        """Columns made of the members' readouts; one pass over the rows for all classes."""
        check_is_fitted(self)
        checked = self._validate_predict(bags)
        ensembles = getattr(self, "per_class_", [self])
        projectors: dict[Group, Projector] = {}
        readers: list[ReadsBlocks] = []

        def number(scale: Scale, kernel: Kernel, make: Callable[[str], Projector]) -> int:
            """Which projector it is; members of one scale and kernel share it."""
            key = scale, repr(kernel)
            if key not in projectors:
                projectors[key] = make("float64")
            return list(projectors).index(key)

        for one in ensembles:
            for member in one.members_:
                at = number(member.scale, member.kernel_, member._fitted_projector)
                reader = Reader(at, member._posterior(), member.bag_rule)
                readers.append(reader._replace(fractions=fractions))
            for whole in one.whole_members_:
                readers.append(whole.reader(number(whole.scale, whole.kernel, whole.projector)))
        voices = tuple(one._voices() for one in ensembles)
        work: Callable[[Sequence[Readout], Ints], tuple[Floats, ...]]
        if self._rule is None:
            maps = {"instance_map": self.instance_map_, "bag_range": self.bag_range_}
            work = partial(finish, voices=voices[0], **maps)
        else:
            work = partial(_by_class, finish=finish, voices=voices, rule=self._rule)
        execution = resolve(self.execution)
        return read_bags(checked, tuple(projectors.values()), tuple(readers), work, execution)

    def _voices(self) -> tuple[Voice, ...]:
        total = float(np.sum(self.weights_))
        inside = self.weights_ / total if total > 0 else np.ones(1)  # whole bags have all of it
        tops = self.instance_maps_ or self.maps_
        voices = [
            Voice(float(weight), self.platt_.after(platt), float(own), self.platt_.after(top))
            for weight, platt, own, top in zip(self.weights_, self.maps_, inside, tops, strict=True)
        ]
        whole = zip(self.whole_weights_, self.whole_maps_, strict=True)
        return (*voices, *(Voice(float(w), self.platt_.after(p), 0.0) for w, p in whole))

    @property
    def _rule(self) -> ClassRule | None:
        """How several classes go together; None with two."""
        return getattr(self, "class_rule_", None)

    def score_bags(self, bags: BagsLike) -> Scores:
        """Everything the ensemble says about bags, from one pass over their rows.

        As `VGPMIL.score_bags`.
        """
        return Scores(*self._read(bags, search.pooled_scores))

    def decision_function(self, bags: BagsLike) -> Floats:
        """Calibrated log-odds of each bag, shape (n_bags,); a column per class with several."""
        return self.score_bags(bags).bag

    def decision_function_instances(self, bags: BagsLike) -> Floats:
        """Calibrated log-odds of each instance, aligned with ``bags.instances``."""
        return self.score_bags(bags).instance

    def predict_latent(self, bags: BagsLike) -> tuple[Floats, Floats]:
        """Mean and variance of the latent function at every instance, on the scale of the bags."""
        mean, var = self._read(bags, search.pooled_instances)
        return mean, var

    def predict_proba(
        self, bags: BagsLike, return_std: bool = False, return_interval: float | None = None
    ) -> Floats | tuple[Floats, ...]:
        """Probability of the classes for each bag, and its uncertainty on request.

        Several classes are as in `VGPMIL.predict_proba`.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays, or 3-d array
        return_std : bool
            Also return the standard deviation of the positive probability: each member's
            under q(f), and their disagreement.
        return_interval : float in (0, 1), optional
            Also return the central interval of the Beta distribution with this mean and
            standard deviation, as in `VGPMIL.predict_proba`.

        Returns
        -------
        proba : array of shape (n_bags, n_classes)
        std : array of shape (n_bags,), if ``return_std``
        interval : array of shape (n_bags, 2), if ``return_interval``
        """
        scores = self.score_bags(bags)
        return probabilities(scores.bag, scores.bag_std, return_std, return_interval)

    def predict_proba_instances(
        self, bags: BagsLike, return_std: bool = False, return_interval: float | None = None
    ) -> Floats | tuple[Floats, ...]:
        """Probability of both classes for each instance; as `predict_proba`.

        It is the chance that the bag is positive and that the instance is one of its positives,
        which the contrast between positive and negative held-out bags tells (``instance_map_``);
        no instance is more probable than its bag. Standard deviations are as in
        `VGPMIL.predict_proba_instances`. With several classes an instance counts as a bag of one.
        """
        scores = self.score_bags(bags)
        return probabilities(scores.instance, scores.instance_std, return_std, return_interval)

    def predict_positive_fraction(
        self, bags: BagsLike, return_std: bool = False, return_interval: float | None = None
    ) -> Floats | tuple[Floats, ...]:
        """Expected share of positive instances in each bag, as `VGPMIL.predict_positive_fraction`.

        Its mean is the mean probability of the instances; its spread is that of the members'
        shares, their own and their disagreement.
        """
        mean, std = self._read(bags, search.pooled_fractions, fractions=True)
        return with_uncertainty(mean, mean, std, return_std, return_interval)


@contextmanager
def _on_device(execution: Execution, bags: Bags) -> Iterator[None]:
    """The settings of a device for the whole fit, where the work runs on one."""
    if execution.torch_device(bags.instances) is None:
        yield
        return
    with device_settings(execution.precision, bags.n_instances):
        yield


def _labels(data: TrainingData, weight: Floats | None) -> BagLabels:
    return BagLabels(data.bags.offsets, data.y, data.instance_labels, weight)


def _by_class(
    readouts: Sequence[Readout],
    offsets: Ints,
    finish: Callable[..., tuple[Floats, ...]],
    voices: tuple[tuple[Voice, ...], ...],
    rule: ClassRule,
) -> tuple[Floats, ...]:
    """What the ensembles of all classes say, each about the readouts of its own members."""
    ends = np.cumsum([0] + [len(own) for own in voices])
    own = [readouts[a:b] for a, b in itertools.pairwise(ends)]
    columns = [finish(r, offsets, voices=v) for r, v in zip(own, voices, strict=True)]
    if finish is search.pooled_instances:
        return tuple(class_columns(column, rule) for column in zip(*columns, strict=True))
    pairs = zip(own, voices, strict=True)
    scores = combined([search.pooled_scores(r, offsets, v) for r, v in pairs], rule, offsets)
    if finish is search.pooled_scores:
        return scores
    return class_fractions([std for _, std in columns], rule, scores.instance, offsets)


def _some(Z: Floats, n: int, rng: np.random.RandomState) -> Floats:
    """At most ``n`` of the inducing points."""
    return Z if len(Z) <= n else Z[np.sort(rng.choice(len(Z), n, replace=False))]


def _packed(fit: Fit) -> dict[str, Any]:
    """A fit as arrays, for a checkpoint."""
    kept = ("pi", "bound_history", "n_iter", "converged")
    return {"m": fit.posterior.m, "W": fit.posterior.W, **{k: getattr(fit, k) for k in kept}}


def _unpacked(stored: dict[str, Any]) -> Fit:
    return Fit(
        InducingPosterior(stored["m"], np.asfortranarray(stored["W"])),
        stored["pi"],
        stored["bound_history"],
        int(stored["n_iter"]),
        bool(stored["converged"]),
    )
