"""MI-CRF: bags as the nodes of a conditional random field, instances as their states."""

from bagwise.models.micrf.estimator import MICRF

__all__ = ["MICRF"]
