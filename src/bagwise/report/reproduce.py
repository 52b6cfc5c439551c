"""`reproduce`: run the experiments of a checkout and set ours beside what was published.

An experiment is a module in the ``experiments/`` folder with a ``TITLE`` and a function
``run(quick, out, n_jobs) -> DataFrame``. Each gets a folder of its own under the output folder;
the folder is complete when its ``run.json`` exists, and a restarted run skips complete ones.
"""

from __future__ import annotations

import ast
import datetime
import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bagwise.files.writing import new_file
from bagwise.report.tables import published_table, to_markdown, to_rich, write_table


class Experiment(NamedTuple):
    """One experiment, known from its source alone."""

    name: str
    title: str
    about: str  # module docstring
    path: Path


def find_experiments(folder: Any = None) -> dict[str, Experiment]:
    """The experiments of a folder by name, without importing them.

    Parameters
    ----------
    folder : path, optional
        Defaults to ``experiments/`` in the working directory, then in the checkout that the
        package was installed from.

    Examples
    --------
    >>> from bagwise.report.reproduce import find_experiments
    >>> find_experiments("no/such/folder")
    Traceback (most recent call last):
    FileNotFoundError: there is no folder of experiments at no/such/folder; ...
    """
    folder = _experiments_folder(folder)
    found = {}
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        title = _constant(tree, "TITLE")
        has_run = any(isinstance(n, ast.FunctionDef) and n.name == "run" for n in tree.body)
        if title is not None and has_run:
            found[path.stem] = Experiment(
                path.stem, title, ast.get_docstring(tree) or "", path.absolute()
            )
    return found


def choose(tables: str | Sequence[str], found: dict[str, Experiment]) -> list[Experiment]:
    """Experiments by name, by a word of their name ("musk"), or all of them."""
    chosen: dict[str, Experiment] = {}
    for table in [tables] if isinstance(tables, str) else tables:
        if table == "all":
            names = list(found)
        elif table in found:
            names = [table]
        else:
            names = [name for name in found if table in name.split("_")]
        if not names:
            raise ValueError(
                f"there is no table {table!r}; choose 'all', one of {list(found)}, or a word of "
                "their names."
            )
        chosen.update({name: found[name] for name in names})
    return list(chosen.values())


def reproduce(
    tables: str | Sequence[str] = "all",
    *,
    quick: bool = False,
    out: Any = "reproduction",
    n_jobs: int = 1,
    fresh: bool = False,
    folder: Any = None,
    console: Any = None,
) -> Any:
    """Run experiments, print *published | ours | note*, write tables and figures.

    Parameters
    ----------
    tables : str or sequence of str
        "all", names of experiments, or words of their names: "musk" is every experiment with
        that word in its name.
    quick : bool
        Fewer seeds and sets: to see that everything runs.
    out : path
        Folder for results; one folder per experiment with ``table.csv``, ``table.md``, figures
        and ``run.json``, and ``results.csv`` and ``results.md`` of everything.
    n_jobs : int
    fresh : bool
        Run again what is already complete.
    folder : path, optional
        Where the experiments are.
    console : rich.console.Console, optional

    Returns
    -------
    pandas.DataFrame
        All rows, with an ``experiment`` column.
    """
    import pandas as pd
    from rich.console import Console

    console = console or Console()
    out = Path(out)
    parts = []
    for experiment in choose(tables, find_experiments(folder)):
        console.rule(f"{experiment.name}: {experiment.title}", align="left")
        frame = None if fresh else _finished(experiment, out, quick, console)
        if frame is None:
            frame = _measure(experiment, out, quick, n_jobs, console)
        if frame is not None:
            console.print(to_rich(published_table(frame)))
            parts.append(frame.assign(experiment=experiment.name))
    if not parts:
        raise FileNotFoundError("no experiment could run: the data is missing (see above).")
    results = pd.concat(parts, ignore_index=True)
    _write_all(results, out)
    console.print(f"Tables and figures are in {out}.", markup=False)
    return results


def _measure(
    experiment: Experiment, out: Path, quick: bool, n_jobs: int, console: Any
) -> Any | None:
    """Run one experiment; None where its data cannot be had."""
    place = out / experiment.name
    place.mkdir(parents=True, exist_ok=True)
    (place / "run.json").unlink(missing_ok=True)  # incomplete from here on
    start = time.perf_counter()
    try:
        frame = _load(experiment).run(quick=quick, out=place, n_jobs=n_jobs)
    except FileNotFoundError as error:
        console.print(f"not run, its data is missing: {error}", style="yellow", markup=False)
        return None
    seconds = time.perf_counter() - start
    write_table(frame, place, "table")
    about = {
        "experiment": experiment.name,
        "title": experiment.title,
        "about": experiment.about,
        "quick": quick,
        "source": _digest([experiment.path]),
        "package": _package_digest(),
        "seconds": round(seconds, 1),
        **environment(),
    }
    with new_file(place / "run.json") as draft:
        draft.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    # Read back, so that a first and a resumed run print and return the same numbers.
    return _read_table(place)


def _finished(experiment: Experiment, out: Path, quick: bool, console: Any) -> Any | None:
    """The rows of a complete earlier run of the same experiment, else None."""
    about = _about(out / experiment.name)
    if about is None:
        return None
    if about["quick"] != quick or about["source"] != _digest([experiment.path]):
        return None
    console.print(f"already measured on {about['date']}, in {about['seconds']} s", style="dim")
    if about["package"] != _package_digest():
        console.print(
            "bagwise has changed since; pass --fresh to measure again", style="yellow", markup=False
        )
    return _read_table(out / experiment.name)


def _read_table(place: Path) -> Any:
    import pandas as pd

    return pd.read_csv(place / "table.csv")


def _about(place: Path) -> Any | None:
    path = place / "run.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _write_all(results: Any, out: Path) -> None:
    with new_file(out / "results.csv") as draft:
        results.to_csv(draft, index=False)
    parts = []
    for name, frame in results.groupby("experiment", sort=False):
        about = _about(out / str(name)) or {"title": name}
        parts.append(f"## {about['title']}\n\n{to_markdown(published_table(frame))}\n")
    with new_file(out / "results.md") as draft:
        draft.write_text("\n".join(parts), encoding="utf-8")


def write_page(run: Any, page: Any) -> None:
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
    runs = [_about(place) for place in folders]
    about = max((r for r in runs if r is not None and r["versions"]), key=lambda r: r["date"])
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    quick = [r["experiment"] for r in runs if r is not None and r["quick"]]
    warning = f"\nMeasured in quick mode (fewer seeds): {', '.join(quick)}.\n" if quick else ""
    return f"""# Results

What stands under *ours* was measured on held-out bags by a script of this repository, with
preprocessing inside the fold unless the note says otherwise; `bagwise reproduce all` repeats it.
It is mean ± standard deviation over the number of seeds in brackets. *Published* is what the
paper prints. Where the two differ the note says what is known about the reason.

Under each table stands when and where it was measured. Where versions were recorded, the newest
run used {versions}.
{warning}"""


def _section(place: Path, figures: Path) -> str:
    about = _about(place)
    assert about is not None
    lines = [f"## {about['title']}", "", about["about"].strip(), ""]
    lines += [to_markdown(published_table(_read_table(place))), ""]
    for figure in sorted(place.glob("*.png")):
        target = figures / f"{place.name}_{figure.name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(figure, target)
        words = figure.stem.replace("_", " ")
        lines += [f"![{about['title']}: {words}]({figures.name}/{target.name})", ""]
    mode = " --quick" if about["quick"] else ""
    repeat = f"`bagwise reproduce {about['experiment']}{mode}`"
    if about.get("assembled"):  # not the output of one run of the experiment
        lines += [f"*{about['assembled']} {repeat} measures it in one run.*", ""]
    else:
        where = f"{about['date']} in {about['seconds']:.0f} s on {about['machine']}"
        lines += [f"*Measured {where}: {repeat}.*", ""]
    return "\n".join(lines)


def environment() -> dict[str, Any]:
    """Date, machine and versions, for the record.

    Examples
    --------
    >>> from bagwise.report.reproduce import environment
    >>> sorted(environment())
    ['date', 'machine', 'versions']
    """
    packages = ("bagwise", "numpy", "scipy", "scikit-learn", "numba")
    versions = {"Python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in packages}
    cores = os.cpu_count()
    return {
        "date": datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{platform.system()} {platform.machine()}, {_processor()}, {cores} cores",
        "versions": versions,
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def _experiments_folder(folder: Any) -> Path:
    if folder is not None:
        places = [Path(folder)]
    else:
        # src/bagwise/report/reproduce.py -> the checkout
        places = [Path("experiments"), Path(__file__).parents[3] / "experiments"]
    for place in places:
        if place.is_dir():
            return place
    raise FileNotFoundError(
        f"there is no folder of experiments at {places[0]}; they are not part of the installed "
        "package: clone the repository and run this in it."
    )


def _load(experiment: Experiment) -> Any:
    """Import an experiment as a module of its folder, so that it can import its neighbours."""
    folder = experiment.path.parent
    root = str(folder.parent)
    if root not in sys.path:
        sys.path.insert(0, root)  # worker processes inherit it
    return importlib.import_module(f"{folder.name}.{experiment.name}")


def _constant(tree: ast.Module, name: str) -> str | None:
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        named = any(isinstance(t, ast.Name) and t.id == name for t in targets)
        value = getattr(node, "value", None)
        if named and isinstance(value, ast.Constant):
            return str(value.value)
    return None


def _digest(paths: Sequence[Path]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(paths):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _package_digest() -> str:
    return _digest(list(Path(__file__).parents[1].rglob("*.py")))
