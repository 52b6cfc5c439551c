"""Label what matters: suggestions, learning in seconds, and a local page.

`suggest` says which instances to ask about, `Learner` takes the answers in without reading the
data again, and ``bagwise label`` shows both as a page in the browser. Names are imported when
first used; the page needs the extra ``bagwise[label]``.
"""

from __future__ import annotations

from bagwise.core.lazy import lazy_names

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
__getattr__, __dir__ = lazy_names(__name__, _HOME)
