"""Baseline methods of the papers' tables, under the contract of the other models.

Besides the attributes they name, all have ``classes_``, the two bag classes. A file of this package
is all that a new one takes: its class declares the name that the registry knows it by.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from bagwise.models.comparators.common import BASELINES as BASELINES
from bagwise.models.comparators.common import Comparator

for _found in iter_modules(__path__):
    import_module(f"{__name__}.{_found.name}")
_classes = {cls.__name__: cls for cls in BASELINES.values()}
globals().update(_classes)
__all__ = sorted(_classes)  # noqa: PLE0605

if TYPE_CHECKING:

    def __getattr__(name: str) -> type[Comparator]: ...
