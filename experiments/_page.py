"""The results pages of the documentation, generated from the output folder of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bagwise.files.writing import new_file
from experiments._runner import read_about, read_table
from experiments._tables import published_table, to_markdown

# What was tried and on which seeds before the numbers of an experiment were measured.
NOTES = Path(__file__).parent / "notes"

_INDEX = """# Results

Every stored experiment has a page. Its column *ours* was measured on held-out bags by a script of
this repository, with preprocessing inside the fold unless the note says otherwise: the mean ±
standard deviation over the number of seeds in brackets. *Published* is what the paper prints.
Where the two differ, the note says what is known about the reason.

`python -m experiments all` runs all experiments. It can be stopped at any time and continues where
it stopped. The last line of each page says when, where and from which commit it was measured; a
plus after the commit means that files had been changed since, and "code between two commits" that
the code of that run was never committed as a whole. The newest run used {versions}.
{warning}
```{{toctree}}
:maxdepth: 1

{names}
```
"""


def write_pages(run: str | Path, pages: str | Path) -> None:
    """Write one page per experiment, and ``index.md``, from the output folder of `reproduce`.

    Pictures stay in the output folder, and the pages refer to them there.

    Parameters
    ----------
    run : path
        Output folder of `reproduce`.
    pages : path
        Folder for the Markdown pages.
    """
    run, pages = Path(run), Path(pages)
    folders = sorted(place.parent for place in run.glob("*/run.json"))
    if not folders:
        raise FileNotFoundError(f"{run} holds no finished experiment; run reproduce first.")
    pages.mkdir(parents=True, exist_ok=True)
    abouts = {place: about for place in folders if (about := read_about(place)) is not None}
    texts = {place.name: _page(place, about, pages) for place, about in abouts.items()}
    for name, text in (texts | {"index": _index(abouts)}).items():
        with new_file(pages / f"{name}.md") as draft:
            draft.write_text(text, encoding="utf-8")


def _index(abouts: dict[Path, dict[str, Any]]) -> str:
    newest = max((a for a in abouts.values() if a["versions"]), key=lambda about: about["date"])
    versions = ", ".join(f"{name} {number}" for name, number in newest["versions"].items())
    quick = [about["experiment"] for about in abouts.values() if about["quick"]]
    warning = f"\nMeasured in quick mode (fewer seeds): {', '.join(quick)}.\n" if quick else ""
    names = "\n".join(place.name for place in abouts)
    return _INDEX.format(versions=versions, warning=warning, names=names)


def _page(place: Path, about: dict[str, Any], pages: Path) -> str:
    """Title, description, table, pictures, how the numbers were chosen, and origin of a run."""
    lines = [f"# {about['title']}", "", about["about"].strip(), ""]
    lines += [to_markdown(published_table(read_table(place))), ""]
    for picture in sorted(place.glob("*.png")):
        words = picture.stem.replace("_", " ")
        target = Path(os.path.relpath(picture, pages)).as_posix()
        lines += [f"![{about['title']}: {words}]({target})", ""]
    notes = NOTES / f"{place.name}.md"
    if notes.exists():
        words = notes.read_text(encoding="utf-8").strip()
        lines += [f"**How these numbers were chosen.** {words}", ""]
    mode = " --quick" if about["quick"] else ""
    repeat = f"`python -m experiments {about['experiment']}{mode}`"
    if about.get("assembled"):  # not the output of one run of the experiment
        lines += [f"*{about['assembled']} {repeat} measures it in one run.*", ""]
    else:
        where = f"{about['date']} in {about['seconds']:.0f} s on {about['machine']}"
        commit = about.get("commit")
        code = f"commit {commit}" if commit else "code between two commits"
        lines += [f"*Measured {where}, {code}: {repeat}.*", ""]
    return "\n".join(lines)
