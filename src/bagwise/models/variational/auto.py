"""`AutoVGPMIL`: the design is chosen by cross-validation, the probabilities are calibrated."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags
from bagwise.core.gaussians import sigmoid_moments
from bagwise.core.platt import cool, fit_platt
from bagwise.models.base import InstanceClassifier, TrainingData, two_columns
from bagwise.models.drivers import CHUNK_SIZE, Serial, cut
from bagwise.models.variational import search, training
from bagwise.models.variational.likelihoods import Labels
from bagwise.models.variational.search import Design, Member, Readout, Space
from bagwise.models.variational.updates import Fit, Posterior, fit_blocks

# The screen: fewer inducing points, folds and iterations, and the cheapest rule.
_SCREEN_INDUCING, _SCREEN_FOLDS, _SCREEN_ITERATIONS = 100, 3, 5
_SCREEN_RULES = ("max",)


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
    max_search_instances : int
        Where there are more training instances, designs are compared on a stratified part of
        the bags with about so many; the refit sees them all.
    chunk_size : int
        Instances per chunk of work.
    n_jobs : int, optional
        Threads of the search and the refit; -1 means every core.
    random_state : int, RandomState or None
        Of the inducing points and the folds.
    verbose : bool
        Say what is being done.

    Attributes
    ----------
    best_params_ : dict
        Scaling, kernel, likelihood and bag rule of the member that counts most.
    search_results_ : dict of arrays
        One row per design and rule: ``scale``, ``kernel``, ``likelihood``, ``rule``, ``stage``
        ("screen" or "full"), held-out ``log_loss`` and ``auc``, and ``weight`` in the ensemble.
        ``pandas.DataFrame(model.search_results_)`` makes a table of it.
    members_ : list of dict
        What the ensemble is made of: design, rule, weight, calibration, kernel, q(v).
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

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_inducing": [Interval(Integral, 1, None, closed="left")],
        "cv": [Interval(Integral, 2, None, closed="left")],
        "n_finalists": [Interval(Integral, 1, None, closed="left")],
        "temperature": [Interval(Real, 0, None, closed="neither")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "max_search_instances": [Interval(Integral, 1, None, closed="left")],
        "chunk_size": [Interval(Integral, 1, None, closed="left")],
        "n_jobs": [Integral, None],
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
        max_search_instances: int = 20_000,
        chunk_size: int = CHUNK_SIZE,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.n_inducing = n_inducing
        self.cv = cv
        self.n_finalists = n_finalists
        self.temperature = temperature
        self.max_iter = max_iter
        self.max_search_instances = max_search_instances
        self.chunk_size = chunk_size
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, bags: Any, y: Any, instance_labels: Any = None) -> AutoVGPMIL:
        """Search, weigh, refit, calibrate.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays, or 3-d array
        y : array of shape (n_bags,)
            Two classes, at least two bags of each; the larger one is positive.
        instance_labels : array of shape (n_instances,), optional
            Class of each instance, or missing: None, NaN, -1.
        """
        data = self._validate_fit(bags, y, instance_labels)
        rarest = int(np.bincount(data.y).min())
        if rarest < 2:
            raise ValueError(
                "AutoVGPMIL needs at least 2 bags of each class to cross-validate; the rarer "
                f"class has {rarest}. Use VGPMIL, which chooses nothing."
            )
        rng = check_random_state(self.random_state)
        spaces = {
            scale: search.make_space(data.bags, scale, self.n_inducing, rng)
            for scale in search.SCALES
        }
        part = self._search_part(data, rng)
        finalists, screened = self._screen(part, spaces, rng)
        scores, members = self._choose(part, spaces, finalists, rng)
        self._report(screened, finalists, scores, members, part.y)
        self._refit(data, spaces, finalists, members)
        return self

    def _search_part(self, data: TrainingData, rng: Any) -> TrainingData:
        """All bags, or a stratified draw of them with about `max_search_instances`."""
        share = self.max_search_instances / data.bags.n_instances
        if share >= 1:
            return data
        chosen = []
        for label in (0, 1):
            of_class = np.flatnonzero(data.y == label)
            n = max(2, round(share * len(of_class)))
            chosen.append(rng.choice(of_class, min(n, len(of_class)), replace=False))
        bags = np.sort(np.concatenate(chosen))
        known = np.concatenate([data.bags.split(data.instance_labels)[i] for i in bags])
        return TrainingData(data.bags[bags], data.y[bags], known)

    def _scores(
        self,
        part: TrainingData,
        spaces: dict[str, Space],
        designs: Sequence[Design],
        rules: Sequence[str],
        folds: Any,
        max_iter: int,
        points: dict[str, Any] | None = None,
    ) -> Any:
        """Held-out scores [designs, rules, B]; designs of one kernel share its projection."""
        groups: dict[tuple[str, str], list[int]] = {}
        for i, design in enumerate(designs):
            groups.setdefault((design.scale, design.kernel), []).append(i)
        labels = Labels(part.bags.offsets, part.y, part.instance_labels)

        def work(key: tuple[str, str]) -> Any:
            scale, kernel = key
            projector = spaces[scale].projector(kernel, points and points[scale])
            names = [designs[i].likelihood for i in groups[key]]
            return search.held_out_scores(
                projector, part.bags, labels, names, rules, folds, max_iter
            )

        found = Parallel(n_jobs=self.n_jobs, prefer="threads")(delayed(work)(k) for k in groups)
        scores = np.empty((len(designs), len(rules), len(part.bags)))
        for rows, block in zip(groups.values(), found, strict=True):
            scores[rows] = block
        return scores

    def _screen(
        self, part: TrainingData, spaces: dict[str, Space], rng: Any
    ) -> tuple[list[Design], Any]:
        """The designs worth a full cross-validation, and every design's screening scores."""
        designs = search.grid()
        folds = search.make_folds(part.y, _SCREEN_FOLDS, int(rng.randint(2**31 - 1)))
        points = {scale: _some(space.Z, _SCREEN_INDUCING, rng) for scale, space in spaces.items()}
        if self.verbose:
            print(f"AutoVGPMIL: screening {len(designs)} designs on {len(part.bags)} bags")
        scores = self._scores(
            part, spaces, designs, _SCREEN_RULES, folds, _SCREEN_ITERATIONS, points
        )
        _, losses = search.calibrated_losses(scores.reshape(-1, len(part.y)), part.y)
        losses = losses.reshape(len(designs), -1)
        priced = losses.min(axis=1) + np.array([d.price for d in designs]) / len(part.y)
        order = np.argsort(priced, kind="stable")[: self.n_finalists]
        return [designs[i] for i in np.sort(order)], (designs, scores, losses)

    def _choose(
        self, part: TrainingData, spaces: dict[str, Space], finalists: list[Design], rng: Any
    ) -> tuple[Any, list[Member]]:
        """Full cross-validation of the finalists, their weights, and the final calibration."""
        seed = int(rng.randint(2**31 - 1))
        folds = search.make_folds(part.y, self.cv, seed)
        if self.verbose:
            print(f"AutoVGPMIL: cross-validating {len(finalists)} finalists")
        scores = self._scores(part, spaces, finalists, search.RULES, folds, self.max_iter)
        prices = [design.price for design in finalists]
        members = search.weigh(scores, part.y, prices, self.temperature)
        again = search.make_folds(part.y, self.cv, seed + 1)
        left_out = search.held_out_ensemble(scores, part.y, prices, self.temperature, again)
        platt = fit_platt(left_out, part.y)
        platt = cool(platt, left_out, np.arange(len(left_out) + 1), part.y, part.bags.held_out)
        self.slope_, self.intercept_ = platt
        self.held_out_decision_ = platt.log_odds(left_out)
        return scores, members

    def _report(
        self, screened: Any, finalists: list[Design], scores: Any, members: list[Member], y: Any
    ) -> None:
        """Set ``search_results_`` and ``best_params_``."""
        designs, screen_scores, screen_losses = screened
        screen_auc, full_auc = search.auc(screen_scores, y), search.auc(scores, y)
        rows: list[tuple[Any, ...]] = []
        for i, design in enumerate(designs):
            for j, rule in enumerate(_SCREEN_RULES):
                row = (*design, rule, "screen", screen_losses[i, j], screen_auc[i, j], 0.0)
                rows.append(row)
        weights = {(m.design, m.rule): m.weight for m in members}
        _, losses = search.calibrated_losses(scores.reshape(-1, len(y)), y)
        losses = losses.reshape(len(finalists), -1)
        for i, design in enumerate(finalists):
            for j, rule in enumerate(search.RULES):
                weight = weights.get((i, j), 0.0)
                rows.append((*design, rule, "full", losses[i, j], full_auc[i, j], weight))
        names = ("scale", "kernel", "likelihood", "rule", "stage", "log_loss", "auc", "weight")
        self.search_results_ = {
            name: np.array(column)
            for name, column in zip(names, zip(*rows, strict=True), strict=True)
        }
        best = members[0]
        scale, kernel, likelihood = finalists[best.design]
        self.best_params_ = {
            "scale": scale,
            "kernel": kernel,
            "likelihood": likelihood,
            "bag_rule": search.RULES[best.rule],
        }

    def _refit(
        self,
        data: TrainingData,
        spaces: dict[str, Space],
        finalists: list[Design],
        members: list[Member],
    ) -> None:
        """Fit every member to all bags and keep what prediction needs."""
        labels = Labels(data.bags.offsets, data.y, data.instance_labels)
        pi = training.start("label", labels, None)
        if self.verbose:
            print(f"AutoVGPMIL: refitting {len(members)} members on {len(data.bags)} bags")
        groups: dict[tuple[str, str], list[Member]] = {}
        for member in members:
            scale, kernel, _ = finalists[member.design]
            groups.setdefault((scale, kernel), []).append(member)

        def work(key: tuple[str, str]) -> list[dict[str, Any]]:
            scale, kernel = key
            projector = spaces[scale].projector(kernel)
            blocks = training.project_bags(data.bags, labels, projector, self.chunk_size, Serial())
            made = []
            for member in groups[key]:
                name = finalists[member.design].likelihood
                fit = fit_blocks(
                    blocks, pi, search.LIKELIHOODS[name], max_iter=self.max_iter, tol=search.TOL
                )
                made.append(_fitted(finalists[member.design], member, fit))
            return made

        found = Parallel(n_jobs=self.n_jobs, prefer="threads")(delayed(work)(k) for k in groups)
        self.members_ = [member for group in found for member in group]
        self.n_iter_ = max(member["n_iter"] for member in self.members_)
        self.kernels_ = {
            scale: {
                kernel: search.KERNELS[kernel](spaces[scale].median_sq)
                for s, kernel in groups
                if s == scale
            }
            for scale in spaces
        }
        self.scalings_ = {scale: tuple(space.scaling) for scale, space in spaces.items()}
        self.inducing_points_ = {
            scale: space.scaling.undo(space.Z) for scale, space in spaces.items()
        }

    def _read(self, bags: Any) -> Readout:
        """The ensemble's calibrated log-odds and their standard deviation.

        Mixture moments: members' own variance plus their disagreement.
        """
        check_is_fitted(self)
        bags = self._validate_predict(bags)
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for member in self.members_:
            groups.setdefault((member["scale"], member["kernel"]), []).append(member)
        projectors = {key: self._projector(*key) for key in groups}
        parts = [
            self._read_span(bags, span, groups, projectors)
            for span in cut(bags.offsets, self.chunk_size)
        ]
        return Readout(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _projector(self, scale: str, kernel: str) -> training.Projector:
        scaling = training.Scaling(*self.scalings_[scale])
        Z = scaling(self.inducing_points_[scale])
        return training.make_projector(self.kernels_[scale][kernel], Z, scaling, "float64")

    def _read_span(self, bags: Bags, span: Any, groups: Any, projectors: Any) -> Readout:
        n_bags, n = span.last_bag - span.first_bag, span.stop - span.start
        offsets = bags.offsets[span.first_bag : span.last_bag + 1] - span.start
        sizes = (n_bags, n_bags, n, n)
        first, second = Readout(*map(np.zeros, sizes)), Readout(*map(np.zeros, sizes))
        for key, members in groups.items():
            pieces = [projectors[key](bags.instances[a:b]) for a, b in span.rows]
            A, r = [piece[0] for piece in pieces], np.concatenate([piece[1] for piece in pieces])
            for member in members:
                q = Posterior(member["posterior_mean"], member["posterior_factor"])
                (found,) = search.read(A, r, offsets, q, [member["bag_rule"]])
                slope = self.slope_ * member["slope"]
                shift = self.slope_ * member["intercept"] + self.intercept_
                for i in (0, 2):
                    z, std = slope * found[i] + shift, slope * found[i + 1]
                    first[i][:] += member["weight"] * z
                    second[i][:] += member["weight"] * (z * z + std * std)
        return Readout(
            first.bag,
            np.sqrt(np.maximum(second.bag - first.bag**2, 0.0)),
            first.instance,
            np.sqrt(np.maximum(second.instance - first.instance**2, 0.0)),
        )

    def decision_function(self, bags: Any) -> Any:
        """Calibrated log-odds of each bag, shape (n_bags,)."""
        return self._read(bags).bag

    def decision_function_instances(self, bags: Any) -> Any:
        """Log-odds of each instance on the bags' scale, aligned with ``bags.instances``."""
        return self._read(bags).instance

    def predict_latent(self, bags: Any) -> tuple[Any, Any]:
        """Mean and variance of the calibrated latent function at every instance."""
        found = self._read(bags)
        return found.instance, found.instance_std**2

    def predict_proba(self, bags: Any, return_std: bool = False) -> Any:
        """Probability of both classes for each bag, and its standard deviation on request.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays, or 3-d array
        return_std : bool
            Also return the standard deviation of the positive probability: each member's
            under q(f), and their disagreement.

        Returns
        -------
        proba : array of shape (n_bags, 2)
        std : array of shape (n_bags,), if ``return_std``
        """
        found = self._read(bags)
        return _probabilities(found.bag, found.bag_std, return_std)

    def predict_proba_instances(self, bags: Any, return_std: bool = False) -> Any:
        """Probability of both classes for each instance; as `predict_proba`.

        One monotone map serves bags and instances: an instance counts as a bag of one, and no
        instance is more probable than its bag.
        """
        found = self._read(bags)
        return _probabilities(found.instance, found.instance_std, return_std)


def _fitted(design: Design, member: Member, fit: Fit) -> dict[str, Any]:
    """What prediction and a reader need of a fitted member, in plain types that can be saved."""
    return {
        **design._asdict(),
        "bag_rule": search.RULES[member.rule],
        "weight": member.weight,
        "slope": member.platt.slope,
        "intercept": member.platt.intercept,
        "posterior_mean": fit.posterior.m,
        "posterior_factor": fit.posterior.W,
        "n_iter": fit.n_iter,
    }


def _some(Z: Any, n: int, rng: Any) -> Any:
    """At most ``n`` of the inducing points."""
    return Z if len(Z) <= n else Z[np.sort(rng.choice(len(Z), n, replace=False))]


def _probabilities(log_odds: Any, std: Any, return_std: bool) -> Any:
    proba = two_columns(expit(log_odds))
    return (proba, sigmoid_moments(log_odds, std**2).std) if return_std else proba
