"""Run experiments and set ours beside what was published.

An experiment is a module of this folder with a ``TITLE``, the ``PAPER`` it repeats, what it
``NEEDS`` (names of `bagwise.datasets.registry.ADDRESSES`, or "bundled", "synthetic") and a function
``run(quick, out, n_jobs) -> DataFrame``. Each gets a folder of its own under the output folder;
the folder is complete when its ``run.json`` exists, and a restarted run skips complete ones.
"""

from __future__ import annotations

import ast
import datetime
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from rich.console import Console

from bagwise.datasets import data_home
from bagwise.datasets.registry import ADDRESSES
from bagwise.files.writing import new_file
from experiments._source import digest, package_digest
from experiments._tables import published_table, to_markdown, to_rich, write_table

HERE = Path(__file__).parent
# Processor time of the quick forms in a folder of experiments, by `store_quick_seconds`.
QUICK = "quick.csv"
# Sets that no one can download.
PRIVATE = ("barrett",)


class Experiment(NamedTuple):
    """One experiment, known from its source alone."""

    name: str
    title: str
    paper: str
    needs: tuple[str, ...]
    about: str  # module docstring
    path: Path

    @property
    def time(self) -> str:
        """How long the stored run took, and where."""
        about = read_about(self.path.parent / "results" / self.name)
        if about is None:
            return "no stored run"
        minutes = about["seconds"] / 60
        cores = about["machine"].rpartition(",")[2].strip()
        return f"{about['seconds']:.0f} s" if minutes < 2 else f"{minutes:.0f} min, {cores}"

    @property
    def quick(self) -> str:
        """How long its quick form took one core; empty where that was not measured."""
        seconds = quick_seconds(self.path.parent).get(self.name)
        return "" if seconds is None else f"{seconds:.0f} s"

    @property
    def needs_no_download(self) -> bool:
        """Whether the package brings all its data."""
        return set(self.needs) <= {"bundled", "synthetic"}

    @property
    def data(self) -> str:
        """What it needs, and which of that is not in the data home."""
        known = (*ADDRESSES, *PRIVATE)
        names = (
            f"{name} (absent)" if name in known and not _is_present(name) else name
            for name in self.needs
        )
        return ", ".join(names) or "none"


def _is_present(name: str) -> bool:
    home = data_home()
    return (home / name).is_dir() or (home / f"{name}.npz").is_file()


def find_experiments(folder: Path = HERE) -> dict[str, Experiment]:
    """The experiments of a folder by name, without importing them."""
    experiments = {}
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        title = _constant(tree, "TITLE")
        has_run = any(isinstance(n, ast.FunctionDef) and n.name == "run" for n in tree.body)
        if title is not None and has_run:
            paper, needs = _constant(tree, "PAPER") or "", _constant(tree, "NEEDS") or ()
            about = ast.get_docstring(tree) or ""
            experiments[path.stem] = Experiment(
                path.stem, title, paper, tuple(needs), about, path.absolute()
            )
    return experiments


def list_experiments(folder: Path = HERE) -> pd.DataFrame:
    """Every experiment with its paper, its data, the time of its stored run and of --quick."""
    return pd.DataFrame(
        {"experiment": e.name, "what": e.title, "paper": e.paper, "data": e.data, "time": e.time}
        | {"quick": e.quick}
        for e in find_experiments(folder).values()
    )


def quick_seconds(folder: Path = HERE) -> dict[str, float]:
    """Processor time of the quick forms that were measured, by experiment."""
    if not (folder / QUICK).exists():
        return {}
    table = pd.read_csv(folder / QUICK)
    return dict(zip(table["experiment"], table["seconds"], strict=True))


def store_quick_seconds(run: Path, folder: Path = HERE) -> None:
    """Keep the processor times of a quick run in one process."""
    abouts = [read_about(place.parent) for place in sorted(run.glob("*/run.json"))]
    rows = [
        {"experiment": a["experiment"], "seconds": a["processor_seconds"], "date": a["date"]}
        | {"machine": a["machine"], "bagwise": a["versions"]["bagwise"]}
        for a in abouts
        if a is not None and a["quick"]
    ]
    with new_file(folder / QUICK) as draft:
        pd.DataFrame(rows).to_csv(draft, index=False)


def quick_sum(folder: Path = HERE) -> str:
    """How long all experiments whose data the package brings take in their quick form."""
    times = quick_seconds(folder)
    names = [e.name for e in find_experiments(folder).values() if e.needs_no_download]
    known = [times[name] for name in names if name in times]
    return (
        f"The {len(names)} experiments that need no download take {sum(known) / 60:.0f} minutes "
        f"of one core with --quick ({len(known)} of them measured)."
    )


def absent_data(folder: Path = HERE) -> list[str]:
    """One line for each set that some experiment needs and the data home lacks."""
    needed = {name for e in find_experiments(folder).values() for name in e.needs}
    return [
        f"{name} is not in the data home {data_home()}; it is public at {address}."
        for name, address in ADDRESSES.items()
        if name in needed and not _is_present(name)
    ]


def choose(tables: str | Sequence[str], known: dict[str, Experiment]) -> list[Experiment]:
    """Experiments by name, by a word of their name ("musk"), or all of them."""
    chosen: dict[str, Experiment] = {}
    for table in [tables] if isinstance(tables, str) else tables:
        if table == "all":
            names = list(known)
        elif table in known:
            names = [table]
        else:
            names = [name for name in known if table in name.split("_")]
        if not names:
            raise ValueError(
                f"there is no table {table!r}; choose 'all', one of {list(known)}, or a word of "
                "their names."
            )
        chosen.update({name: known[name] for name in names})
    return list(chosen.values())


def reproduce(
    tables: str | Sequence[str] = "all",
    *,
    quick: bool = False,
    out: str | Path = "reproduction",
    n_jobs: int = 1,
    fresh: bool = False,
    folder: Path = HERE,
    console: Console | None = None,
) -> pd.DataFrame:
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
    folder : path
        Where the experiments are.
    console : rich.console.Console, optional

    Returns
    -------
    pandas.DataFrame
        All rows, with an ``experiment`` column.
    """
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
        raise FileNotFoundError("no experiment could run: data or packages are missing, see above.")
    results = pd.concat(parts, ignore_index=True)
    _write_all(results, out)
    console.print(f"Tables and figures are in {out}.", markup=False)
    return results


def _measure(
    experiment: Experiment, out: Path, quick: bool, n_jobs: int, console: Console
) -> pd.DataFrame | None:
    """Run one experiment; None where its data cannot be had."""
    place = out / experiment.name
    place.mkdir(parents=True, exist_ok=True)
    (place / "run.json").unlink(missing_ok=True)  # incomplete from here on
    start, began = time.perf_counter(), _processor_seconds()
    try:
        frame = _load(experiment).run(quick=quick, out=place, n_jobs=n_jobs)
    except FileNotFoundError as error:
        console.print(f"not run, its data is missing: {error}", style="yellow", markup=False)
        return None
    except ModuleNotFoundError as error:
        console.print(f"not run, a package is missing: {error}", style="yellow", markup=False)
        return None
    write_table(frame, place, "table")
    about = _describe(experiment, quick, time.perf_counter() - start)
    about["processor_seconds"] = round(_processor_seconds() - began, 1)
    with new_file(place / "run.json") as draft:
        draft.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    # Read back, so that a first and a resumed run print and return the same numbers.
    return read_table(place)


def describe_run(name: str, quick: bool, seconds: float) -> dict[str, Any]:
    """What ``run.json`` says of a run of an experiment of this folder."""
    return _describe(find_experiments()[name], quick, seconds)


def _describe(experiment: Experiment, quick: bool, seconds: float) -> dict[str, Any]:
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "about": experiment.about,
        "quick": quick,
        "source": digest([experiment.path]),
        "package": package_digest(),
        "seconds": round(seconds, 1),
        **environment(),
    }


def _processor_seconds() -> float:
    """Of this process and of those that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _finished(
    experiment: Experiment, out: Path, quick: bool, console: Console
) -> pd.DataFrame | None:
    """The rows of a complete earlier run of the same experiment, else None."""
    about = read_about(out / experiment.name)
    if about is None:
        return None
    if about["quick"] != quick or about["source"] != digest([experiment.path]):
        return None
    console.print(f"already measured on {about['date']}, in {about['seconds']} s", style="dim")
    if about["package"] != package_digest():
        console.print(
            "bagwise has changed since; pass --fresh to measure again", style="yellow", markup=False
        )
    return read_table(out / experiment.name)


def read_table(place: Path) -> pd.DataFrame:
    """The rows of a finished experiment."""
    return pd.read_csv(place / "table.csv")


def read_about(place: Path) -> dict[str, Any] | None:
    """What ``run.json`` says of a finished experiment."""
    path = place / "run.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _write_all(results: pd.DataFrame, out: Path) -> None:
    with new_file(out / "results.csv") as draft:
        results.to_csv(draft, index=False)
    parts = []
    for name, frame in results.groupby("experiment", sort=False):
        about = read_about(out / str(name)) or {"title": name}
        table = to_markdown(published_table(frame))
        parts.append(f"## {about['title']}\n\n{table}\n\n{_origin(about)}\n")
    with new_file(out / "results.md") as draft:
        draft.write_text("\n".join(parts), encoding="utf-8")


def _origin(about: dict[str, Any]) -> str:
    """When and from which code a run is; `_commit` puts a plus where files had been changed."""
    commit = about.get("commit")
    code = f"commit {commit}" if commit else "code that git does not know"
    return f"Measured {about.get('date', 'at an unknown date')} from {code}."


def environment() -> dict[str, Any]:
    """Date, machine and versions, for the record."""
    # By import, not by metadata: a source folder on the path has none.
    packages = {name: name for name in ("bagwise", "numpy", "scipy", "numba")}
    packages["scikit-learn"] = "sklearn"
    versions = {"Python": platform.python_version()}
    versions |= {name: importlib.import_module(m).__version__ for name, m in packages.items()}
    cores = os.cpu_count()
    return {
        "date": datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{platform.system()} {platform.machine()}, {_processor()}, {cores} cores",
        "versions": versions,
        "commit": _commit(),
    }


def _commit() -> str | None:
    """The commit of this checkout, with a plus where files differ from it; None without git."""
    try:
        head = _git("rev-parse", "--short=10", "HEAD")
        changed = _git("status", "--porcelain", "--", "src", "experiments/*.py")
        return f"{head}+" if changed else head
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=HERE.parent, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def _load(experiment: Experiment) -> Any:
    """Import an experiment as a module of its folder, so that it can import its neighbours."""
    folder = experiment.path.parent
    root = str(folder.parent)
    if root not in sys.path:
        sys.path.insert(0, root)  # worker processes inherit it
    return importlib.import_module(f"{folder.name}.{experiment.name}")


def _constant(tree: ast.Module, name: str) -> Any:
    """The value of a module constant that is written as a literal."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        named = any(isinstance(t, ast.Name) and t.id == name for t in targets)
        if named:
            return ast.literal_eval(getattr(node, "value", None))  # type: ignore[arg-type]
    return None
