"""Networks trained on bag labels, as features and as a classifier; needs the ``torch`` extra.

torch itself is imported when a network is first trained or used, never by importing this.
"""

from bagwise.deep.estimators import (
    DSMIL,
    AttentionFeatures,
    AttentionMIL,
    MaxPoolingMIL,
    MeanPoolingMIL,
)

__all__ = ["DSMIL", "AttentionFeatures", "AttentionMIL", "MaxPoolingMIL", "MeanPoolingMIL"]
