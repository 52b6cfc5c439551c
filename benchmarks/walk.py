"""How many functions of the package a fit passes through: ``python -m benchmarks.walk``.

Counts the different functions of ``src/bagwise`` that are called, in any thread, by an estimator's
``fit`` and by ``bagwise fit --cv 3 --model vgpmil``. Comprehensions count with the function they
stand in; what runs while a module is imported is left out. ``--list`` prints the functions.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import numpy as np
from numpy.typing import NDArray

from bagwise import VGPMIL, Bags
from bagwise.cli import main as bagwise
from bagwise.datasets import make_gaussian_bags

SOURCE = Path(__file__).resolve().parents[1] / "src" / "bagwise"
_INSIDE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<module>")


def functions_called(run: Callable[[], object]) -> set[tuple[str, str]]:
    """File and qualified name of every function of the package that ``run`` calls."""
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    # A class body is code of its own, too; unlike a function it has no fast local variables.
    functions = (code for code in seen if code.co_flags & 0x02 and code.co_name not in _INSIDE)
    return {
        (str(Path(code.co_filename).relative_to(SOURCE)), code.co_qualname)
        for code in functions
        if Path(code.co_filename).is_relative_to(SOURCE)
    }


def write_bags(root: Path, bags: Bags, y: NDArray[np.int64]) -> list[str]:
    """Bags as files, and the command that trains on them."""
    (root / "features").mkdir()
    for i, x in enumerate(bags):
        np.save(root / "features" / f"s{i:02d}.npy", x)
    lines = ["slide_id,label", *(f"s{i:02d},{label}" for i, label in enumerate(y))]
    (root / "labels.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["fit", "--bags", root / "features", "--labels", root / "labels.csv", "--cv", 3]
    words += ["--model", "vgpmil", "--set", "n_inducing=15", "--out", root / "m.bagwise", "--json"]
    return [str(word) for word in words]


def main() -> None:
    """Print how many functions are called, by package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the functions, too")
    listed = parser.parse_args().list
    bags, y = make_gaussian_bags(n_bags=40, random_state=0, return_X_y=True)
    with tempfile.TemporaryDirectory() as folder:
        words = write_bags(Path(folder), bags, y)
        runs = {
            "VGPMIL().fit": lambda: VGPMIL(n_inducing=15, random_state=0).fit(bags, y),
            "bagwise fit --cv 3 --model vgpmil": lambda: bagwise(words),
        }
        with contextlib.redirect_stdout(io.StringIO()):
            walks = {title: functions_called(run) for title, run in runs.items()}
    for title, called in walks.items():
        packages = Counter(str(Path(file).parent) for file, _ in called)
        print(f"{title}: {len(called)} functions in {len({file for file, _ in called})} files")
        print("  " + ", ".join(f"{name} {n}" for name, n in packages.most_common()))
        if listed:
            print("\n".join(f"    {file}: {name}" for file, name in sorted(called)))


if __name__ == "__main__":
    main()
