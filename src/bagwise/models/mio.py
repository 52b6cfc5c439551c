"""MIO: multiple-instance learning online, one bag at a time, with no regret.

Li, Kwok and Lu, "Online multiple instance learning with no regret" (2010). The mathematics is
in `bagwise.core.mio`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions

from bagwise.core import distances, mio
from bagwise.core.arrays import Floats, Ints, RandomState
from bagwise.models.base import TrainingData, two_class_data
from bagwise.models.calibration.fit import Calibrator, fit_calibrator
from bagwise.models.embedded import EmbeddedClassifier, Examples, make_examples
from bagwise.models.parameters import AT_LEAST_1, NOT_NEGATIVE, POSITIVE, parameter
from bagwise.models.scaling import ScalesFeatures, learn_scaling

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from bagwise.bags import BagsLike, InstanceLabels
    from bagwise.core.mio import ElasticNet


# Bags whose scores, taken before learning from them, calibrate a stream.
_WINDOW = 1000


@dataclass(kw_only=True, eq=False, repr=False)
class MIO(ScalesFeatures, EmbeddedClassifier):
    """Online multiple-instance learning with an elastic net.

    The features are those of `MILES`: similarity to every instance seen. A bag is predicted,
    its label is received, and the one new multiplier that raises the dual most is found
    exactly (15). Sum of losses and best weights in hindsight differ by O(sqrt(T)).

    Parameters
    ----------
    sigma : float or "scale", default="scale"
        Width of the similarity ``exp(-d² / sigma²)``. "scale" (half the total variance is
        sigma²) needs all data at once, so a stream needs a number.
    alpha, beta : float, default=0.1, 1.0
        Elastic net (8): ``alpha |w|_1 + beta / 2 |w|²``.
    bias : float, default=1.0
        Value of a constant feature, without which the boundary goes through zero similarity.
    horizon : int or None, default=None
        Number of bags T to come, where known: alpha and beta are multiplied by sqrt(T), which
        gives the regret bound of section 3.4.1.
    n_passes : int, default=10
        Passes of ``fit`` over the bags, at most.
    passes : {"accumulate", "refine"}, default="accumulate"
        Later passes add further multipliers, as the paper does; or re-optimise the multiplier
        of each bag, which is dual coordinate ascent and ends at the optimum of (3).
    max_instances : int or None, default=None
        Most instances to keep: those whose weight has been 0 for longest are dropped.
    class_weight : dict, "balanced" or None, default=None
        C1 and C2; "balanced" needs all labels at once, so a stream needs a dict.
    shuffle : bool, default=True
        Visit the bags of ``fit`` in random order. ``partial_fit`` never does.
    tol : float, default=1e-06
        "refine" ends when the duality gap falls below it.
    distance : as in `MILES`, default="sqeuclidean"
    scale : {"feature", "global", None}, default="feature"
        Standardise each feature, or divide all by one number; learned from the training bags.
    calibrate : bool, default=True
        Give ``predict_proba``. ``fit`` calibrates by an inner cross-validation,
        ``partial_fit`` on the last 1000 scores given before the label was received.
    calibration, cv : as in `MISVM`, default="platt", None
    random_state : int, RandomState or None, default=None
        Of the shuffling.

    Attributes
    ----------
    coef_ : sparse array of shape (1, n_kept)
        Weights of the kept instances.
    intercept_ : float
    selected_instances_ : array of int
        Numbers, in the order they were given, of the instances with a weight.
    cumulative_loss_ : float
        Sum of the weighted hinge losses before each update, on the first visit of each bag.
    n_bags_seen_, n_kept_, n_dropped_ : int
        Bags learned from; instances kept; instances dropped for ``max_instances``.
    duality_gap_ : float
        After ``fit`` with "refine"; otherwise infinite, for not known.
    n_iter_ : int
        Passes made by ``fit``.
    sigma_ : float
    classes_ : the two bag classes

    See Also
    --------
    MILES, bagwise.vision.MIOTracker

    References
    ----------
    [Li2010]_

    Notes
    -----
    A step costs O(kept instances), memory too; without ``max_instances`` both grow with the
    stream. ``|z_t|²`` grows as well, so L of Theorem 1 is not a constant here. A labelled
    instance of a positive bag is learned from as a bag of one, after its bag.

    Examples
    --------
    >>> from bagwise import MIO
    >>> from bagwise.datasets import make_two_concept_bags
    >>> bags, y = make_two_concept_bags(300, random_state=0, return_X_y=True)
    >>> model = MIO(sigma=3.0, bias=10, scale=None)
    >>> for i in range(len(bags)):
    ...     model = model.partial_fit(bags[i : i + 1], y[i : i + 1], classes=[0, 1])
    >>> model.n_bags_seen_, model.score(bags, y) > 0.9
    (300, True)
    """

    # The bags visited last pull the bias their way.
    _level_drifts = True
    alpha: float = parameter(0.1, NOT_NEGATIVE)
    beta: float = parameter(1.0, POSITIVE)
    bias: float = parameter(1.0, NOT_NEGATIVE)
    horizon: int | None = parameter(None, AT_LEAST_1, None)
    n_passes: int = parameter(10, AT_LEAST_1)
    passes: str = parameter("accumulate", StrOptions({"accumulate", "refine"}))
    max_instances: int | None = parameter(None, AT_LEAST_1, None)
    shuffle: bool = parameter(True, "boolean")
    tol: float = parameter(1e-6, NOT_NEGATIVE)
    random_state: RandomState = parameter(None, "random_state")

    def _fit(self, data: TrainingData) -> None:
        """Forget everything and learn from the bags in ``n_passes`` passes."""
        self.sigma_ = self._resolve_sigma(data.bags.instances)
        examples = make_examples(data)
        one_visit = self.n_passes == 1 and self.passes == "accumulate"
        D = None if one_visit else self._training_distances(data.bags, examples)
        self._learn(data, examples, D)

    def partial_fit(
        self,
        bags: BagsLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        instance_labels: InstanceLabels = None,
    ) -> MIO:
        """Learn from the bags in the order given, one visit each.

        Bad input raises before anything is learned, so the model is as it was.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays or 3-d array
        y : array of shape (n_bags,)
        classes : sequence of two classes or None, default=None
            Needed in the first call, unless ``y`` holds both.
        instance_labels : optional, one per instance; missing means unknown or None, default=None
        """
        first = not hasattr(self, "state_")
        if first and self.sigma == "scale":
            raise ValueError(
                "a stream needs sigma as a number: sigma='scale' is taken from all training "
                "bags at once, in fit."
            )
        if self.scale is not None:
            raise ValueError(
                f"a stream needs scale=None: scale={self.scale!r} is taken from all training bags "
                "at once, in fit. Scale the features before they enter the stream."
            )
        if self.class_weight == "balanced":
            raise ValueError(
                "a stream needs class_weight as a dict: 'balanced' counts all labels at once."
            )
        names, bags, labels = self._validate_stream(bags, y, classes, instance_labels, first)
        data = two_class_data(bags, labels)
        examples = make_examples(data)
        costs = self._costs(examples.signs, data.y, names)
        if first:
            self.classes_, self.n_features_in_ = names, data.bags.n_features
            self.sigma_ = float(self.sigma)
            self.scaling_ = learn_scaling(data.bags.instances, None)
            self._start(data.bags.n_features)
        first_id = self.state_.n_seen
        margins = np.empty(len(examples))
        for e in range(len(examples)):
            margins[e] = self._visit(data, examples, e, costs[e], first_id=first_id)[1]
        if self.calibrate:
            scores = (examples.signs * margins)[examples.brings_anchors]
            self.calibrator_ = self._fit_calibrator(scores, data)
        return self

    def _start(self, n_features: int) -> None:
        self.state_ = mio.init(n_features)
        self.cumulative_loss_ = 0.0
        self.n_bags_seen_ = 0
        self.duality_gap_ = np.inf
        self.calibrator_ = None
        self.recent_scores_ = np.empty((0, 2))  # score before learning, code

    def _net(self) -> ElasticNet:
        growth = 1.0 if self.horizon is None else float(np.sqrt(self.horizon))
        return mio.ElasticNet(self.alpha * growth, self.beta * growth)

    def _learn(self, data: TrainingData, examples: Examples, D: Floats | None) -> None:
        """All passes; without distances D it is one visit of each example."""
        self._start(data.bags.n_features)
        rng = check_random_state(self.random_state)
        costs = self._costs(examples.signs, data.y, self.classes_)
        Z = None if D is None else distances.similarity(D, self.sigma_)  # [E, N]
        # Of each example its multiplier, and when it came.
        theta, step = np.zeros(len(examples)), np.zeros(len(examples), dtype=np.int64)
        bag = np.cumsum(examples.brings_anchors) - 1  # [E]
        for n_iter in range(1, self.n_passes + 1):
            order = np.arange(len(examples))
            if self.shuffle:  # the bags, each still followed by its labelled instances
                order = np.argsort(rng.permutation(bag[-1] + 1)[bag], kind="stable")
            for e in order.tolist():
                if n_iter == 1:
                    step[e] = self.state_.n_steps
                    theta[e], _ = self._visit(data, examples, e, costs[e], Z=Z)
                elif Z is not None and self.passes == "refine":
                    # The example's own multiplier is optimised again.
                    z = self._as_first_seen(Z[e], step[e])
                    theta[e] = mio.revise(
                        self.state_, z, examples.signs[e], costs[e], self._net(), theta[e]
                    )
                elif Z is not None:
                    # A further multiplier over all features.
                    z = np.append(self.bias, Z[e, self.state_.ids[: self.state_.n_anchors]])
                    mio.step(self.state_, z, examples.signs[e], costs[e], self._net())
            self.n_iter_ = n_iter
            if self.passes == "refine" and Z is not None:
                self.duality_gap_ = self._duality_gap(Z, examples.signs, costs, theta, step)
                if self.duality_gap_ <= self.tol:
                    break

    def _visit(
        self,
        data: TrainingData,
        examples: Examples,
        e: int,
        cost: float,
        Z: Floats | None = None,
        first_id: int = 0,
    ) -> tuple[float, float]:
        """Meet an example for the first time: predict it, then learn; theta and margin."""
        state, net = self.state_, self._net()
        rows = examples.rows_of(e)
        x = np.asarray(data.bags.instances[rows], dtype=np.float64)
        if examples.brings_anchors[e]:
            state = mio.add_anchors(state, x, first_id + rows)
        if Z is not None:
            similar = Z[e, state.ids[: state.n_anchors]]
        else:
            d = self._instance_distance()(x, state.anchors[: state.n_anchors])
            similar = distances.similarity(d.min(axis=0), self.sigma_)
        theta, margin = mio.step(state, np.append(self.bias, similar), examples.signs[e], cost, net)
        state = state._replace(n_steps=state.n_steps + 1)
        if self.max_instances is not None:  # memory stays bounded
            state = mio.drop_anchors(state, net, self.max_instances)
        self.state_ = state
        self.cumulative_loss_ += cost * max(0.0, 1 - margin)
        self.n_bags_seen_ += int(examples.brings_anchors[e])
        return theta, margin

    def _as_first_seen(self, z: Floats, step: int) -> Floats:
        """Features of a bag when it came: zero for instances that came later (Prop. 3)."""
        n = self.state_.n_anchors
        came = self.state_.born[:n] <= step
        return np.append(self.bias, np.where(came, z[self.state_.ids[:n]], 0))

    def _duality_gap(
        self, Z: Floats, signs: Floats, costs: Floats, theta: Floats, step: Ints
    ) -> float:
        # Primal (3) less dual (4) at the weights (6) of the sum of multipliers.
        net, pi = self._net(), self.state_.pi[: self.state_.n_anchors + 1]
        w = mio.weights(pi, net)
        scores = np.array(
            [self._as_first_seen(z, came) @ w for z, came in zip(Z, step, strict=True)]
        )
        hinges = costs * np.maximum(0, 1 - signs * scores)
        return mio.primal_objective(pi, hinges, net) - mio.dual_objective(pi, theta, net)

    def _fit_calibrator(self, scores: Floats, data: TrainingData) -> Calibrator:
        """Calibrate on the latest scores that were given without knowing the label."""
        new = np.column_stack([scores, data.y])
        self.recent_scores_ = np.concatenate([self.recent_scores_, new])[-_WINDOW:]
        scores, codes = self.recent_scores_.T
        return fit_calibrator(scores, codes, kind=self.calibration)

    def _kept_weights(self) -> Floats:
        """Weights of the constant and of the kept instances, [1 + n_anchors]."""
        return mio.weights(self.state_.pi[: self.state_.n_anchors + 1], self._net())

    def _anchors_and_weights(self) -> tuple[Floats, Floats]:
        w = self._kept_weights()[1:]
        used = np.flatnonzero(w)
        return self.state_.anchors[used], w[used]

    @property
    def coef_(self) -> csr_array:
        """Weights of the kept instances, sparse, shape (1, n_kept)."""
        return sp.csr_array(self._kept_weights()[None, 1:])

    @property
    def intercept_(self) -> float:
        """The constant feature times its weight."""
        return float(self.bias * self._kept_weights()[0])

    @property
    def selected_instances_(self) -> Ints:
        """Numbers of the instances with a weight, in the order the data were given."""
        return self.state_.ids[np.flatnonzero(self._kept_weights()[1:])]

    @property
    def n_kept_(self) -> int:
        """Instances kept."""
        return int(self.state_.n_anchors)

    @property
    def n_dropped_(self) -> int:
        """Instances dropped to stay within ``max_instances``."""
        return int(self.state_.n_dropped)
