"""Metrics, cross-validation and comparisons that keep preprocessing inside the fold."""

from bagwise.core.lazy import public_names
from bagwise.evaluate.assumptions import check_mil as check_mil
from bagwise.evaluate.assumptions import make_assumption_bags as make_assumption_bags
from bagwise.evaluate.audit import Audit as Audit
from bagwise.evaluate.audit import Finding as Finding
from bagwise.evaluate.audit import audit as audit
from bagwise.evaluate.audit import best_epoch_gain as best_epoch_gain
from bagwise.evaluate.boxes import box_iou as box_iou
from bagwise.evaluate.boxes import centre_error as centre_error
from bagwise.evaluate.boxes import corloc as corloc
from bagwise.evaluate.boxes import detection_ap as detection_ap
from bagwise.evaluate.boxes import detection_curve as detection_curve
from bagwise.evaluate.boxes import tracking_success as tracking_success
from bagwise.evaluate.comparison import Comparison as Comparison
from bagwise.evaluate.comparison import corrected_resampled_t as corrected_resampled_t
from bagwise.evaluate.comparison import wilcoxon_p as wilcoxon_p
from bagwise.evaluate.cross_validation import Fold as Fold
from bagwise.evaluate.cross_validation import HeldOut as HeldOut
from bagwise.evaluate.cross_validation import cross_validate as cross_validate
from bagwise.evaluate.metrics import METRIC_NAMES as METRIC_NAMES
from bagwise.evaluate.metrics import bag_metrics as bag_metrics
from bagwise.evaluate.metrics import expected_calibration_error as expected_calibration_error
from bagwise.evaluate.metrics import instance_metrics as instance_metrics
from bagwise.evaluate.metrics import make_instance_scorer as make_instance_scorer
from bagwise.evaluate.metrics import reliability_curve as reliability_curve
from bagwise.evaluate.metrics import score_predictions as score_predictions
from bagwise.evaluate.protocols import BagFolds as BagFolds
from bagwise.evaluate.protocols import FixedSplits as FixedSplits
from bagwise.evaluate.protocols import GroupFolds as GroupFolds
from bagwise.evaluate.protocols import Nested as Nested
from bagwise.evaluate.protocols import PublishedFolds as PublishedFolds
from bagwise.evaluate.protocols import Split as Split
from bagwise.evaluate.protocols import check_model as check_model
from bagwise.evaluate.ranking import Ranking as Ranking
from bagwise.evaluate.ranking import rank_models as rank_models
from bagwise.evaluate.run import compare as compare
from bagwise.evaluate.thresholds import Goal as Goal
from bagwise.evaluate.thresholds import Proportion as Proportion
from bagwise.evaluate.thresholds import Rates as Rates
from bagwise.evaluate.thresholds import choose_threshold as choose_threshold
from bagwise.evaluate.thresholds import cross_fitted_rates as cross_fitted_rates
from bagwise.evaluate.thresholds import proportion as proportion
from bagwise.evaluate.thresholds import rates_at as rates_at

__all__ = public_names(globals())  # noqa: PLE0605
