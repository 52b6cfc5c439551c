"""The baseline methods of the papers as bag classifiers: `bagwise.models.comparators` for short."""

from bagwise.models.comparators import *  # noqa: F403
from bagwise.models.comparators import __all__ as __all__  # noqa: PLC0414
