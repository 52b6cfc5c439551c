"""Label what matters: suggestions, learning in seconds, and a local page.

`suggest` says which instances to ask about, `Learner` takes the answers in without reading the
data again, and ``bagwise label`` shows both as a page in the browser. Names are imported when
first used; the page needs the extra ``bagwise[label]``.
"""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> the module that defines it.
_HOME = {
    "Answer": "journal",
    "ArrayPictures": "pictures",
    "FolderPictures": "pictures",
    "Journal": "journal",
    "LabelServer": "server",
    "Learner": "learner",
    "STRATEGIES": "strategies",
    "Session": "session",
    "CurveBags": "session",
    "project": "members",
    "suggest": "strategies",
    "suggest_for": "strategies",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"bagwise.label.{_HOME[name]}"), name)
    raise AttributeError(f"module 'bagwise.label' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_HOME)
