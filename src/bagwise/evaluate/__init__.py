"""Metrics, cross-validation and comparisons that keep preprocessing inside the fold."""

from bagwise.evaluate.assumptions import (
    check_mil,
    make_assumption_bags,
)
from bagwise.evaluate.audit import Audit, Finding, audit, best_epoch_gain
from bagwise.evaluate.boxes import (
    box_iou,
    centre_error,
    corloc,
    detection_ap,
    detection_curve,
    tracking_success,
)
from bagwise.evaluate.comparison import Comparison, corrected_resampled_t, wilcoxon_p
from bagwise.evaluate.cross_validation import Fold, HeldOut, cross_validate
from bagwise.evaluate.metrics import (
    METRIC_NAMES,
    average_precision,
    bag_metrics,
    expected_calibration_error,
    instance_metrics,
    make_instance_scorer,
    reliability_curve,
    score_predictions,
)
from bagwise.evaluate.protocols import (
    BagFolds,
    FixedSplits,
    GroupFolds,
    Nested,
    PublishedFolds,
    Split,
    check_model,
)
from bagwise.evaluate.ranking import Ranking, rank_models
from bagwise.evaluate.run import compare
from bagwise.evaluate.thresholds import (
    Goal,
    Proportion,
    Rates,
    choose_threshold,
    cross_fitted_rates,
    proportion,
    rates_at,
)

__all__ = [
    "METRIC_NAMES",
    "Audit",
    "BagFolds",
    "Comparison",
    "Finding",
    "FixedSplits",
    "Fold",
    "Goal",
    "GroupFolds",
    "HeldOut",
    "Nested",
    "Proportion",
    "PublishedFolds",
    "Ranking",
    "Rates",
    "Split",
    "audit",
    "average_precision",
    "bag_metrics",
    "best_epoch_gain",
    "box_iou",
    "centre_error",
    "check_mil",
    "check_model",
    "choose_threshold",
    "compare",
    "corloc",
    "corrected_resampled_t",
    "cross_fitted_rates",
    "cross_validate",
    "detection_ap",
    "detection_curve",
    "expected_calibration_error",
    "instance_metrics",
    "make_assumption_bags",
    "make_instance_scorer",
    "proportion",
    "rank_models",
    "rates_at",
    "reliability_curve",
    "score_predictions",
    "tracking_success",
    "wilcoxon_p",
]
