"""Record the outputs of one checkout, compare those of another.

``python -m tests.golden record FILE.json`` before a change, ``compare FILE.json`` after it: every
registered model on two classes, three classes and an indicator matrix, from dense rows, sparse rows
and rows on disk; what the commands print as JSON; the tables of their reports. A comparison prints
every difference above ``--tolerance`` and exits with 1 if there is one. ``--only WORD`` restricts
both to the cases whose name has the word, such as ``misvm`` or ``command``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from bagwise import Bags
from bagwise.cli import main as bagwise
from bagwise.files import read_bags
from bagwise.models.one_vs_rest import OneVsRest
from bagwise.models.registry import MODELS, load_class, make_model

# Small settings: what is compared is the work, not the quality of a fit.
QUICK: dict[str, dict[str, Any]] = {
    "auto": {"n_inducing": 12, "max_iter": 20},
    "vgpmil": {"n_inducing": 12},
    "lm-vgpmil": {"n_inducing": 12},
    "g-vgpmil": {"n_inducing": 12},
    "dpmil": {"n_components": 3, "max_iter": 10},
    "mi-forest": {"n_estimators": 8, "n_steps": 2},
    "forest": {"n_estimators": 20},
    "blrt": {"n_estimators": 20},
    "dd-svm": {"n_starts": 4},
}
METHODS = ("decision_function", "predict_proba", "predict_proba_instances")
NAMES = np.array(["normal", "adeno", "squamous"])


def made_bags(n_bags: int = 36, seed: int = 0) -> tuple[Bags, Any]:
    """Bags of three classes; an instance of the second or third class is shifted by 5."""
    rng = np.random.default_rng(seed)
    code = np.arange(n_bags) % 3
    arrays = [rng.normal(size=(rng.integers(3, 6), 3)) for _ in code]
    for x, c in zip(arrays, code, strict=True):
        if c:
            x[0, c - 1] += 5
    return Bags.from_list(arrays), code


def rows_of(kind: str, bags: Bags, folder: Path) -> Bags:
    """The same bags as dense rows, sparse rows or files on disk."""
    if kind == "dense":
        return bags
    if kind == "csr":
        return bags.with_instances(sp.csr_matrix(np.asarray(bags.instances)))
    folder = folder / "bags"
    if not folder.exists():
        folder.mkdir()
        for i, x in enumerate(bags):
            np.save(folder / f"{i:03d}.npy", np.asarray(x))
    return read_bags(folder, lazy=True)


def fit_outputs(name: str, target: str, kind: str) -> dict[str, Any]:
    """Every output of one model on one kind of target and rows; or its error."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bags, code = made_bags()
        rows = rows_of(kind, bags, Path(folder))
        model: Any = make_model(name, **QUICK.get(name, {}), random_state=0)
        y: Any = {
            "two": code > 0,
            "three": NAMES[code],
            "labels": np.stack([code == 1, code == 2], axis=1).astype(int),
        }[target]
        own = load_class(MODELS[name])
        if target != "two" and not (own._multi_class if target == "three" else own._multi_label):
            model = OneVsRest(model)
        try:
            model.fit(rows, y)
            return {
                m: np.asarray(getattr(model, m)(rows), dtype=float).ravel().tolist()
                for m in METHODS
                if hasattr(model, m)
            }
        except ValueError as error:
            return {"error": str(error)}


class Tables(HTMLParser):
    """The text of every table cell of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        """A cell begins."""
        if tag in ("td", "th"):
            self.inside = True
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        """A cell ends."""
        if tag in ("td", "th"):
            self.inside = False

    def handle_data(self, data: str) -> None:
        """Text, kept inside a cell."""
        if self.inside:
            self.cells[-1] += data.strip()


def write_files(root: Path) -> None:
    """Folders of bags to train on and to predict, with labels of every kind."""
    bags, code = made_bags(48, seed=1)
    rows = []
    for i, (x, c) in enumerate(zip(bags, code, strict=True)):
        place = root / ("train" if i < 30 else "test")
        place.mkdir(exist_ok=True)
        np.save(place / f"s{i:02d}.npy", np.asarray(x))
        two = "tumour" if c else "normal"
        rows.append((f"s{i:02d}", two, NAMES[c], int(c == 1), int(c == 2), f"p{i // 2:02d}"))
    columns = ["slide_id", "label", "kind", "adeno", "squamous", "patient"]
    frame = pd.DataFrame(rows, columns=columns)
    frame[:30].to_csv(root / "train.csv", index=False)
    frame[30:].to_csv(root / "test.csv", index=False)


def command_outputs(target: str, model: str) -> dict[str, Any]:
    """What every command prints as JSON, and the tables that ``predict`` writes."""
    column = {"two": "label", "three": "kind", "labels": "adeno,squamous"}[target]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_files(root)
        options = ["--label-column", column, "--patient-column", "patient"]
        train = ["--bags", root / "train", "--labels", root / "train.csv", *options]
        test = ["--bags", root / "test", "--labels", root / "test.csv", *options]
        file = root / "m.bagwise"
        quick = ["--set", "n_inducing=12"] if model in ("vgpmil", "auto") else []
        lines: dict[str, list[Any]] = {
            "fit": ["fit", *train, "--model", model, *quick, "--cv", "3", "--out", file],
            "predict": ["predict", file, *test, "--out", root / "out"],
            "evaluate": ["evaluate", file, *test, "--min-sensitivity", "0.9"],
            "compare": ["compare", *train, "--models", "statistics,single-instance", "--cv", "3"],
            "info": ["info", file],
        }
        if target == "two":
            lines["audit"] = ["audit", *train]
        found: dict[str, Any] = {}
        for name, line in lines.items():
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = bagwise([*map(str, line), "--json"])
            said = (out.getvalue() or err.getvalue()).replace(str(root), "ROOT")
            found[name] = json.loads(said) if code == 0 else {"code": code, "said": said}
        for page in sorted((root / "out").rglob("*.html")):
            parser = Tables()
            parser.feed(page.read_text(encoding="utf-8"))
            found[f"page {page.relative_to(root / 'out')}"] = parser.cells
        for table in sorted((root / "out").rglob("*.csv")):
            found[f"table {table.relative_to(root / 'out')}"] = table.read_text(encoding="utf-8")
        return found


def cases() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Name and function of every case."""
    for name in MODELS:
        for target in ("two", "three", "labels"):
            for kind in ("dense", "csr", "disk"):
                yield (
                    f"{name}/{target}/{kind}",
                    lambda n=name, t=target, k=kind: fit_outputs(n, t, k),
                )
    for target in ("two", "three", "labels"):
        for model in ("vgpmil", "statistics", "misvm"):
            yield f"command/{target}/{model}", lambda t=target, m=model: command_outputs(t, m)


def differences(old: Any, new: Any, tolerance: float, where: str = "") -> Iterator[str]:
    """Every place where two recordings differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if key in old and key in new:
                yield from differences(old[key], new[key], tolerance, f"{where}/{key}")
            else:
                yield f"{where}/{key}: {'is gone' if key in old else 'is new'}"
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{where}: {len(old)} values, now {len(new)}"
        elif old and all(isinstance(x, int | float) for x in old + new):
            a, b = np.array(old, dtype=float), np.array(new, dtype=float)
            if not np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True):
                yield f"{where}: differs by {np.nanmax(np.abs(a - b)):.3g}"
        else:
            for i, (a, b) in enumerate(zip(old, new, strict=True)):
                yield from differences(a, b, tolerance, f"{where}[{i}]")
    elif isinstance(old, float) and isinstance(new, int | float):
        if not np.isclose(old, new, rtol=tolerance, atol=tolerance, equal_nan=True):
            yield f"{where}: {old!r}, now {new!r}"
    elif old != new:
        yield f"{where}: {str(old)[:90]!r}, now {str(new)[:90]!r}"


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--tolerance", type=float, default=1e-8)
    given = parser.parse_args()
    made = {name: make() for name, make in cases() if given.only in name}
    if given.what == "record":
        given.file.write_text(json.dumps(made), encoding="utf-8")
        print(f"{len(made)} cases recorded")
        return 0
    old = json.loads(given.file.read_text(encoding="utf-8"))
    new = json.loads(json.dumps(made))
    found = [
        line for name in new for line in differences(old[name], new[name], given.tolerance, name)
    ]
    print("\n".join(found))
    print(f"{len(new)} cases, {len(found)} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
