"""The results page of the documentation, made from the output folder of a run."""

from __future__ import annotations

import shutil
from pathlib import Path

from bagwise.files.writing import new_file
from bagwise.report.tables import published_table, to_markdown
from experiments._runner import read_about, read_table

# What was tried and on which seeds before the numbers of an experiment were measured.
NOTES = Path(__file__).parent / "notes"


def write_page(run: str | Path, page: str | Path) -> None:
    """Make a documentation page from the output folder of `reproduce`.

    Figures are copied into a folder beside the page. The page names date, machine and versions
    of each experiment, and the command that repeats it.

    Parameters
    ----------
    run : path
        Output folder of `reproduce`.
    page : path
        Markdown file to write.
    """
    run, page = Path(run), Path(page)
    folders = sorted(p.parent for p in run.glob("*/run.json"))
    if not folders:
        raise FileNotFoundError(f"{run} holds no finished experiment; run reproduce first.")
    figures = page.with_suffix("")
    sections = [_section(place, figures) for place in folders]
    with new_file(page) as draft:
        draft.write_text("\n".join([_page_head(folders), *sections]), encoding="utf-8")


def _page_head(folders: list[Path]) -> str:
    runs = [read_about(place) for place in folders]
    about = max((r for r in runs if r is not None and r["versions"]), key=lambda r: r["date"])
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    quick = [r["experiment"] for r in runs if r is not None and r["quick"]]
    warning = f"\nMeasured in quick mode (fewer seeds): {', '.join(quick)}.\n" if quick else ""
    return f"""# Results

This page lists every stored experiment. The column *ours* was measured on held-out bags by a
script of this repository, with preprocessing inside the fold unless the note says otherwise. It is
the mean ± standard deviation over the number of seeds in brackets. *Published* is what the paper
prints. Where the two differ, the note says what is known about the reason.

`bagwise reproduce all` runs everything in one go. It can be stopped at any time and goes on where
it was. The line under each table says when, where and from which commit it was measured; a plus
after the commit means that files had been changed since, and "code between two commits" that the
code of that run was never committed as a whole. The newest run used {versions}.
{warning}"""


def _section(place: Path, figures: Path) -> str:
    about = read_about(place)
    assert about is not None
    lines = [f"## {about['title']}", "", about["about"].strip(), ""]
    lines += [to_markdown(published_table(read_table(place))), ""]
    for figure in sorted(place.glob("*.png")):
        target = figures / f"{place.name}_{figure.name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(figure, target)
        words = figure.stem.replace("_", " ")
        lines += [f"![{about['title']}: {words}]({figures.name}/{target.name})", ""]
    notes = NOTES / f"{place.name}.md"
    if notes.exists():
        words = notes.read_text(encoding="utf-8").strip()
        lines += [f"**How these numbers were chosen.** {words}", ""]
    mode = " --quick" if about["quick"] else ""
    repeat = f"`bagwise reproduce {about['experiment']}{mode}`"
    if about.get("assembled"):  # not the output of one run of the experiment
        lines += [f"*{about['assembled']} {repeat} measures it in one run.*", ""]
    else:
        where = f"{about['date']} in {about['seconds']:.0f} s on {about['machine']}"
        commit = about.get("commit")
        code = f"commit {commit}" if commit else "code between two commits"
        lines += [f"*Measured {where}, {code}: {repeat}.*", ""]
    return "\n".join(lines)
