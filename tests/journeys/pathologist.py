"""A pathologist with Excel labels and patch features: from a TRIDENT folder to a report.

Run in an empty folder: ``python pathologist.py``. It uses the command only, as one types it; a
step that does not give what the user wants ends the script with an error.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd

from bagwise.cli import main as command
from bagwise.datasets import make_slides

N_PATIENTS = 30


def by_patient(slides: list[tuple[Path, int]], folder: Path, first: int) -> pd.DataFrame:
    """Move slides to a folder, two a patient, which both hold tumour or both do not."""
    folder.mkdir(parents=True)
    rows = []
    for sick in (0, 1):
        for k, path in enumerate(path for path, y in slides if y == sick):
            patient = first + k // 2 * 2 + sick
            name = f"{patient:04d}_{'AB'[k % 2]}"
            path.rename(folder / f"{name}.h5")
            rows.append((name, f"P{patient}", "Tumor" if sick else "normal"))
    return pd.DataFrame(sorted(rows), columns=["Slide ID", "Patient", "Label"])


def bagwise(line: str, expect: int = 0) -> tuple[dict, str]:
    """Run the command as it is typed; returns its JSON and what it said."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = command([*shlex.split(line), "--json"])
    print(f"$ bagwise {line}\n{err.getvalue()}")
    assert code == expect, f"exit code {code}: {err.getvalue()}"
    return (json.loads(out.getvalue()) if expect == 0 else {}), " ".join(err.getvalue().split())


def main() -> dict[str, float]:
    n, made = 2 * N_PATIENTS, Path("made")
    truth = make_slides(2 * n, (20, 40), 16, rate=(0.1, 0.2), to=made, random_state=0)
    slides = list(zip(sorted(made.glob("*.h5")), truth.y.tolist(), strict=True))
    old = by_patient(slides[:n], Path("job/20x_256px/features_uni_v1"), first=0)
    new = by_patient(slides[n:], Path("new"), first=100)

    # 1. Labels as Excel saves them in Europe: semicolons, a byte order mark, a blank, a slip.
    lines = [";".join(old.columns), *(";".join(row) for row in old.to_numpy())]
    lines[4] = lines[4].replace("normal", "").replace("Tumor", "")
    swapped = {"normal": "Tumor", "Tumor": "normal"}
    lines += [re.sub("normal|Tumor", lambda word: swapped[word[0]], lines[-1]), ";;", ";;"]
    Path("labels.csv").write_bytes("\r\n".join(lines).encode("utf-8-sig"))

    # 2. All that is wrong comes in one list before anything is trained; the rest can be used.
    fit = "fit --bags job --labels labels.csv --patient-column patient --cv 3 --out tumor.bagwise"
    settings = "--model vgpmil --set n_inducing=30 --set max_iter=30"
    _, said = bagwise(f"{fit} {settings}", expect=2)
    assert "2 problems" in said, said
    assert not Path("tumor.bagwise").exists()
    result, said = bagwise(f"{fit} {settings} --skip-bad")
    assert "positive class: Tumor" in said, said
    assert "skipped 2" in said, said
    cross_validated = result["metrics"]["auc"]

    # 3. Measuring on the training slides is possible, and said to be worthless.
    _, said = bagwise("evaluate tumor.bagwise --bags job --labels labels.csv --skip-bad")
    assert "trained on 58 of these 58 bags" in said, said

    # 4. New slides, some of them labelled in a workbook: all are predicted.
    new.head(40).to_excel("new.xlsx", index=False)
    result, said = bagwise("predict tumor.bagwise --bags new --labels new.xlsx --out results")
    assert "20 of 60 bags have no label" in said, said
    assert "trained on" not in said, said
    slides = pd.read_csv("results/bags.csv", dtype={"id": str})
    assert len(slides) == 60
    patches = pd.read_parquet("results/instances.parquet")
    assert {"x", "y"} <= set(patches.columns), list(patches.columns)
    assert Path("results/report.html").stat().st_size > 10_000
    truth = new.set_index("Slide ID")["Label"].loc[slides["id"]].to_numpy()
    accuracy = float(np.mean((slides["probability"] > 0.5) == (truth == "Tumor")))
    return {"cross_validated_auc": cross_validated, "new_slides_accuracy": accuracy}


if __name__ == "__main__":
    print(main())
