"""The results pages of the documentation, generated from the output folder of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bagwise.files.writing import new_file
from experiments import published
from experiments._runner import read_about, read_table
from experiments._tables import published_table, to_markdown

# What was tried and on which seeds before the numbers of an experiment were measured.
NOTES = Path(__file__).parent / "notes"
_MOST_ROWS, _MOST_WORDS = 12, 120  # of a card; its CSV and its script have the rest

_INDEX = """# Results

Every stored experiment has a page. Its column *ours* was measured on held-out bags by a script of
this repository, with preprocessing inside the fold unless the note says otherwise: the mean ±
standard deviation over the number of seeds in brackets. *Published* is what the paper prints.
Where the two differ, the note says what is known about the reason.

`python -m experiments all` runs all experiments. It can be stopped at any time and continues where
it stopped. The last line of each page says when, where, with which version of bagwise and from
which commit it was measured; a plus after the commit means that files had been changed since, and
"code between two commits" that the code of that run was never committed as a whole. The newest run
used {versions}. [Every printed figure](published.md) of the papers stands beside ours in one table.
{warning}
```{{toctree}}
:maxdepth: 1

published
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
    more = {"index": _index(abouts)}
    if published.TABLE.exists():
        more["published"] = published_page()
    for name, text in (texts | more).items():
        with new_file(pages / f"{name}.md") as draft:
            draft.write_text(text, encoding="utf-8")


def _index(abouts: dict[Path, dict[str, Any]]) -> str:
    newest = max(abouts.values(), key=lambda about: about["date"])
    versions = ", ".join(f"{name} {number}" for name, number in newest["versions"].items())
    quick = [about["experiment"] for about in abouts.values() if about["quick"]]
    warning = f"\nMeasured in quick mode (fewer seeds): {', '.join(quick)}.\n" if quick else ""
    names = "\n".join(place.name for place in abouts)
    return _INDEX.format(versions=versions, warning=warning, names=names)


def _first_words(text: str) -> str:
    """The first paragraphs of a description, as many as a card shows; the script has all."""
    paragraphs = text.split("\n\n")
    lengths = [len(" ".join(paragraphs[: k + 1]).split()) for k in range(len(paragraphs))]
    return "\n\n".join(paragraphs[: max(1, sum(length <= _MOST_WORDS for length in lengths))])


def _page(place: Path, about: dict[str, Any], pages: Path) -> str:
    """Title, description, table, pictures, how the numbers were chosen, and origin of a run."""
    lines = [f"# {about['title']}", "", _first_words(about["about"].strip()), ""]
    table = published_table(read_table(place))
    lines += [to_markdown(table.head(_MOST_ROWS)), ""]
    csv = Path(os.path.relpath(place / "table.csv", pages)).as_posix()
    lines += [f"[All {len(table)} rows]({csv})", ""]
    for picture in sorted(place.glob("*.png")):
        words = picture.stem.replace("_", " ")
        target = Path(os.path.relpath(picture, pages)).as_posix()
        lines += [f"![{about['title']}: {words}]({target})", ""]
    notes = NOTES / f"{place.name}.md"
    if notes.exists():
        words = notes.read_text(encoding="utf-8").strip()
        lines += [f"**How these numbers were chosen.** {words}", ""]
    version = f"bagwise {about['versions']['bagwise']}"
    mode = " --quick" if about["quick"] else ""
    repeat = f"`python -m experiments {about['experiment']}{mode}`"
    if about.get("assembled"):  # not the output of one run of the experiment
        origin = f"{about['assembled']} {version}, {about['date']}."
        lines += [f"*{origin} {repeat} measures it in one run.*", ""]
    else:
        where = f"{about['date']} with {version} in {about['seconds']:.0f} s on {about['machine']}"
        commit = about.get("commit")
        code = f"commit {commit}" if commit else "code between two commits"
        lines += [f"*Measured {where}, {code}: {repeat}.*", ""]
    return "\n".join(lines)


_PUBLISHED = """# Published figures

Every figure that the five papers print in a table, beside the stored run that repeats it
(`python -m experiments.published` makes this page; its rows as a
[CSV file](../../experiments/results/published/table.csv)). *Paper* are the settings that the paper
prints, *program* those of the authors' released program, *ours* defaults or settings of this
library. **Reached**: ours differs by at most two standard errors. **Above** and **below**: ours is
better or worse by more. A standard error is that of a share of so many bags, for accuracies, or
that of the means over splits, repetitions and folds, whichever is larger.

{counts}

## Below

{below}

## Not run or not compared

{absent}
"""
_MARKS = {"reached": "=", "above": "+", "below": "**−**", "not run": "", "not compared": "≠"}


def published_page() -> str:
    """Counts of the verdicts, reasons, and one table for each table of a paper."""
    table = published.read()
    counts = table.groupby(["paper", "settings", "verdict"], sort=False).size()
    wide = counts.unstack(fill_value=0).reindex(columns=list(_MARKS), fill_value=0).reset_index()
    below = table[table["verdict"] == "below"]
    absent = table[table["verdict"].isin(["not run", "not compared"])]
    text = _PUBLISHED.format(
        counts=to_markdown(wide), below=_reasons(below), absent=_reasons(absent)
    )
    lines = [text, "## All tables", "", "`published / ours`, then = reached, + above, − below.", ""]
    for (paper, name), part in table.groupby(["paper", "table"], sort=False):
        cells = [
            line.published if line.ours == "" else _cell(line)
            for line in part.astype({"ours": object}).fillna({"ours": ""}).itertuples()
        ]
        rows = part["row"] + part["settings"].map(lambda s: f" ({s})" if s else "")
        grid = part.assign(cell=cells, line=rows).pivot_table(
            index="line", columns="column", values="cell", aggfunc="first", sort=False
        )
        grid = grid.fillna("").rename_axis(None, axis="columns").rename_axis("").reset_index()
        lines += [f"### {paper}, {name}", "", to_markdown(grid), ""]
    return "\n".join(lines)


def _cell(line: Any) -> str:
    digits = len(str(line.published).partition(".")[2])
    return f"{line.published} / {float(line.ours):.{digits}f} {_MARKS[line.verdict]}"


def _reasons(part: Any) -> str:
    """Rows that share a reason, in one line of a list."""
    lines = []
    for (paper, name, why, command), rows in part.groupby(
        ["paper", "table", "why", "command"], sort=False
    ):
        named = ", ".join(dict.fromkeys(rows["row"]))
        settings = ", ".join(filter(None, dict.fromkeys(rows["settings"])))
        what = f"{paper}, {name}: {named}" + (f" ({settings})" if settings else "")
        run = f" (`{command}`)" if command else ""
        lines.append(f"- **{what}**, {len(rows)} figures: {why}{run}.")
    return "\n".join(lines) or "None."
