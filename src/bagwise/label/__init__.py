"""Label what matters: suggestions, learning in seconds, and a local page.

`suggest` says which instances to ask about, `Learner` takes the answers in without reading the
data again, and ``bagwise label`` shows both as a page in the browser. Names are imported when
first used; the page needs the extra ``label``.
"""

from __future__ import annotations

from bagwise.core.lazy import lazy_names

# Module -> the public names that it defines.
__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "journal": ("Answer", "Journal"),
        "learner": ("Learner",),
        "members": ("project",),
        "pictures": ("ArrayPictures", "FolderPictures"),
        "server": ("LabelServer",),
        "session": ("CurveBags", "Session"),
        "strategies": ("STRATEGIES", "suggest", "suggest_for"),
    },
)
