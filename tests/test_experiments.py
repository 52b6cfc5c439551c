from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from experiments import _runner as module
from experiments._held_out import present
from experiments._page import write_pages
from experiments._runner import (
    PRIVATE,
    absent_data,
    choose,
    find_experiments,
    list_experiments,
    quick_seconds,
    quick_sum,
    reproduce,
    store_quick_seconds,
)
from experiments._tables import RESULT_COLUMNS, published_table, to_markdown, write_table
from rich.console import Console

from bagwise.cli.reproduce import load_runner
from bagwise.datasets.registry import ADDRESSES
from bagwise.report.tables import print_comparison

ROOT = Path(__file__).parents[1]
EXPERIMENT = '''
"""What {name} measures.

More about it.
"""
import time
from pathlib import Path
import pandas as pd

TITLE = "Title of {name}"
PAPER = "Paper of {name}"
NEEDS = ("bundled", "tracking/girl")

def run(quick, out, n_jobs=1):
    with (Path(__file__).parent / "calls.txt").open("a") as log:
        log.write("{name}\\n")
    {body}
    (out / "figure.png").write_bytes(b"png of {name}")
    rows = [("m", "{name}", "accuracy", 0.9, 1 / 3 if quick else 0.1 + 0.2, 0.01, 5, "a note")]
    columns = {columns}
    return pd.DataFrame(rows, columns=columns)
'''


def make_folder(root, **bodies):
    # A package name of its own, since Python keeps imported modules.
    folder = root / f"tables_{root.name.replace('-', '_')}"
    folder.mkdir(exist_ok=True)
    for name, body in bodies.items():
        text = EXPERIMENT.format(name=name, body=body or "pass", columns=list(RESULT_COLUMNS))
        (folder / f"{name}.py").write_text(text)
    (folder / "helper.py").write_text("VALUE = 1\n")
    return folder


def calls(folder):
    path = folder / "calls.txt"
    return path.read_text().split() if path.exists() else []


@pytest.fixture
def console():
    return Console(file=StringIO(), width=160)


def test_experiments_are_found_without_importing(tmp_path):
    folder = make_folder(tmp_path, vgpmil_musk="", mio_musk="", broken="raise SystemError")
    found = find_experiments(folder)
    assert list(found) == ["broken", "mio_musk", "vgpmil_musk"]
    assert found["mio_musk"].title == "Title of mio_musk"
    assert [e.name for e in choose("musk", found)] == ["mio_musk", "vgpmil_musk"]
    assert choose(["broken", "musk"], found)[0].name == "broken"
    assert len(choose("all", found)) == 3
    with pytest.raises(ValueError, match="no table 'mnist'"):
        choose("mnist", found)


def test_repository_experiments_are_declared():
    found = find_experiments()
    assert {"published_arithmetic", "learning_curves", "barrett"} <= set(found)
    known = {"bundled", "synthetic", *ADDRESSES, *PRIVATE}
    for experiment in found.values():
        assert experiment.paper, experiment.name
        assert set(experiment.needs) <= known, experiment.name


def test_list_says_paper_data_and_time(tmp_path, monkeypatch):
    monkeypatch.setenv("BAGWISE_DATA", str(tmp_path / "home"))
    folder = make_folder(tmp_path, alpha="", beta="")
    stored = folder / "results" / "beta"
    stored.mkdir(parents=True)
    (stored / "run.json").write_text('{"seconds": 300.0, "machine": "Linux, some chip, 2 cores"}')
    listing = list_experiments(folder).set_index("experiment")
    assert listing.loc["alpha"].tolist() == [
        *("Title of alpha", "Paper of alpha", "bundled, tracking/girl (absent)", "no stored run"),
        "",
    ]
    assert listing.loc["beta", "time"] == "5 min, 2 cores"
    (line,) = absent_data(folder)
    assert line.startswith("tracking/girl is not in the data home")
    assert ADDRESSES["tracking/girl"] in line
    (tmp_path / "home" / "tracking" / "girl").mkdir(parents=True)
    assert list_experiments(folder)["data"].tolist() == ["bundled, tracking/girl"] * 2
    assert absent_data(folder) == []


def test_quick_times_are_stored_and_summed(tmp_path, console):
    folder = make_folder(tmp_path, alpha="sum(range(10**6))")
    (folder / "gamma.py").write_text(
        (folder / "alpha.py").read_text().replace('("bundled", "tracking/girl")', '("bundled",)')
    )
    reproduce("all", quick=True, out=tmp_path / "out", folder=folder, console=console)
    about = json.loads((tmp_path / "out" / "gamma" / "run.json").read_text())
    about["processor_seconds"] = 150.0
    (tmp_path / "out" / "gamma" / "run.json").write_text(json.dumps(about))
    store_quick_seconds(tmp_path / "out", folder)
    listing = list_experiments(folder).set_index("experiment")
    assert listing.loc["gamma", "quick"] == "150 s"
    # Alpha needs a film that must be downloaded.
    assert quick_sum(folder) == (
        "The 1 experiments that need no download take 2 minutes of one core with --quick "
        "(1 of them measured)."
    )


def test_sets_that_are_absent_become_rows(tmp_path):
    def load(name):
        if name != "here":
            raise FileNotFoundError(f"{name} is nowhere")

    usable, absent = present(["here", "there"], load)
    assert usable == ["here"]
    table = published_table(pd.DataFrame(absent))
    assert table.iloc[0].tolist()[0] == "there"
    assert table.iloc[0].tolist()[4:] == ["not measured", "its data is missing: there is nowhere"]
    with pytest.raises(FileNotFoundError, match="there is nowhere"):
        present(["there"], load)


def test_bundled_parts_run_without_the_data_home(tmp_path, monkeypatch):
    """Experiments with a part that needs no data run it; the others say what is missing."""
    from experiments import auto, learning_curves

    def offline(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setenv("BAGWISE_DATA", str(tmp_path / "home"))
    monkeypatch.setattr("sklearn.datasets.fetch_20newsgroups", offline)
    made = pd.DataFrame({"y": [0, 1], "score": [0.1, 0.9], "p": [0.1, 0.9], "fold": 0})
    drawn = [made.assign(model=m, data="musk1", seed=0) for m in ("AutoVGPMIL", "MI-SVM, Platt")]
    drawn += [made.assign(model=m, data="musk1", seed=0) for m in auto.FIXED]
    monkeypatch.setattr(auto, "one_fold", lambda *job: pd.concat(drawn))
    table = auto.run(True, tmp_path, data=("musk1", "sci_med"))
    assert table["data"].tolist()[-1] == "sci_med"
    assert "could not be downloaded" in table["note"].iloc[-1]
    usable, absent = present(learning_curves.DATA, learning_curves.load_dataset)
    assert usable == ["musk1", "digits"]
    assert absent[0]["data"] == "newsgroups/rec_sport_hockey"


def test_digit_canvases_need_no_mnist(tmp_path, monkeypatch):
    pytest.importorskip("cv2")
    from experiments.detection_digits import canvases

    monkeypatch.setenv("BAGWISE_DATA", str(tmp_path))
    assert len(canvases(4, "train", 0).images) == len(canvases(4, "test", 0).images) == 4


def test_clips_are_tracked_without_the_data_home(tmp_path, monkeypatch):
    pytest.importorskip("cv2")
    from experiments import tracking

    monkeypatch.setenv("BAGWISE_DATA", str(tmp_path))
    table = tracking.run(True, tmp_path, trackers=["CSRT (OpenCV)"])
    assert {"plain", "hidden"} <= set(table["data"])
    assert table.loc[table["data"] == "david", "note"].item().startswith("its data is missing")


def test_runner_is_found_in_a_checkout_only(tmp_path):
    assert load_runner(tmp_path, ROOT).reproduce is reproduce
    with pytest.raises(FileNotFoundError, match="clone the repository"):
        load_runner(tmp_path)


def test_writes_and_prints_tables(tmp_path, console):
    folder = make_folder(tmp_path, alpha="", beta="")
    out = tmp_path / "out"
    results = reproduce("all", quick=True, out=out, folder=folder, console=console)
    assert results["experiment"].tolist() == ["alpha", "beta"]
    assert {p.name for p in (out / "alpha").iterdir()} == {
        *("table.csv", "table.md", "run.json", "figure.png")
    }
    printed = console.file.getvalue()
    assert "published" in printed
    assert "0.333 ± 0.010 (5)" in printed
    assert (
        "| beta | m | accuracy | 0.9 | 0.333 ± 0.010 (5) | a note |"
        in (out / "results.md").read_text()
    )
    about = json.loads((out / "alpha" / "run.json").read_text())
    origin = f"Measured {about['date']} from "
    origin += f"commit {about['commit']}" if about["commit"] else "code that git does not know"
    assert (out / "results.md").read_text().count(origin) >= 1
    assert {"date", "machine", "versions", "seconds", "quick", "source"} <= set(about)


def test_finished_experiments_are_not_run_again(tmp_path, console):
    folder = make_folder(tmp_path, alpha="", beta="")
    out = tmp_path / "out"
    first = reproduce("all", out=out, folder=folder, console=console)
    again = reproduce("all", out=out, folder=folder, console=console)
    pd.testing.assert_frame_equal(first, again)
    assert calls(folder) == ["alpha", "beta"]
    reproduce("alpha", out=out, folder=folder, console=console, fresh=True)
    reproduce("alpha", quick=True, out=out, folder=folder, console=console)
    assert calls(folder) == ["alpha", "beta", "alpha", "alpha"]
    # Another source is another experiment.
    path = folder / "beta.py"
    path.write_text(path.read_text() + "# changed\n")
    reproduce("beta", out=out, folder=folder, console=console)
    assert calls(folder)[-1] == "beta"


def test_stale_package_is_named(tmp_path, console, monkeypatch):
    folder = make_folder(tmp_path, alpha="")
    reproduce("alpha", out=tmp_path / "out", folder=folder, console=console)
    monkeypatch.setattr(module, "package_digest", lambda: "other")
    reproduce("alpha", out=tmp_path / "out", folder=folder, console=console)
    assert "bagwise has changed since" in console.file.getvalue()


def test_killed_run_continues_to_the_same_table(tmp_path, console):
    """A real process killed inside the second experiment."""
    wait = "import time; marker = Path(__file__).parent / 'go'\n    while not marker.exists(): "
    wait += "time.sleep(0.02)"
    folder = make_folder(tmp_path, alpha="", beta=wait)
    out = tmp_path / "out"
    script = (
        "import sys; from pathlib import Path; from experiments._runner import reproduce; "
        "reproduce('all', out=sys.argv[1], folder=Path(sys.argv[2]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(out), str(folder)],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    deadline = time.monotonic() + 60
    while calls(folder) != ["alpha", "beta"] and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (out / "beta" / "run.json").exists()
    (folder / "go").touch()
    resumed = reproduce("all", out=out, folder=folder, console=console)
    assert calls(folder) == ["alpha", "beta", "beta"]
    whole = reproduce("all", out=tmp_path / "whole", folder=folder, console=console)
    pd.testing.assert_frame_equal(resumed, whole)
    assert (out / "results.md").read_text() == (tmp_path / "whole" / "results.md").read_text()


def test_missing_data_is_named_and_the_rest_goes_on(tmp_path, console):
    missing = "raise FileNotFoundError('mnist.npz is not in the data home')"
    folder = make_folder(tmp_path, alpha=missing, beta="")
    results = reproduce("all", out=tmp_path / "out", folder=folder, console=console)
    assert results["experiment"].tolist() == ["beta"]
    assert "mnist.npz is not in the data home" in console.file.getvalue()
    with pytest.raises(FileNotFoundError, match="no experiment could run"):
        reproduce("alpha", out=tmp_path / "out", folder=folder, console=console)


def test_a_missing_package_is_named_and_the_rest_goes_on(tmp_path, console):
    folder = make_folder(tmp_path, alpha="import a_package_nobody_has", beta="")
    results = reproduce("all", out=tmp_path / "out", folder=folder, console=console)
    assert results["experiment"].tolist() == ["beta"]
    assert "a package is missing: No module named 'a_package_nobody_has'" in " ".join(
        console.file.getvalue().split()
    )
    assert not (tmp_path / "out" / "alpha" / "run.json").exists()


def test_a_table_without_a_column_is_refused(tmp_path, console):
    folder = make_folder(tmp_path, alpha="return pd.DataFrame({'model': ['a']})")
    with pytest.raises(ValueError, match="needs the column 'data'"):
        reproduce("alpha", out=tmp_path / "out", folder=folder, console=console)
    assert not (tmp_path / "out" / "alpha" / "run.json").exists()


def test_page_from_a_run(tmp_path, console):
    folder = make_folder(tmp_path, alpha="", beta="")
    reproduce("alpha", out=tmp_path / "out", folder=folder, console=console)
    reproduce("beta", quick=True, out=tmp_path / "out", folder=folder, console=console)
    pages = tmp_path / "docs" / "results"
    write_pages(tmp_path / "out", pages)
    text = (pages / "alpha.md").read_text()
    assert text.startswith("# Title of alpha\n")
    assert "What alpha measures." in text
    assert "[All 1 rows](" in text
    (picture,) = re.findall(r"!\[Title of alpha: figure\]\((.*)\)", text)
    assert (pages / picture).read_bytes() == b"png of alpha"
    assert "`python -m experiments beta --quick`" in (pages / "beta.md").read_text()
    index = (pages / "index.md").read_text()
    assert "\nalpha\nbeta\n" in index
    assert "quick mode (fewer seeds): beta" in index
    assert "scikit-learn" in index
    with pytest.raises(FileNotFoundError, match="no finished experiment"):
        write_pages(tmp_path / "nothing", pages)


def test_published_arithmetic_finds_what_is_possible():
    from experiments.published_arithmetic import ways

    # Five accuracies on 18 and 19 bags, rounded as a paper would.
    folds = np.array([16 / 18, 15 / 18, 17 / 19, 18 / 19, 16 / 18])
    mean, std = round(folds.mean(), 4), round(folds.std(ddof=1), 4)
    assert ways(mean, std, (18, 19)) >= 1
    assert ways(mean, round(folds.std(), 4), (18, 19)) >= 1
    assert ways(0.8832, 0.0202, (18, 19)) == 0
    assert ways(0.8832, 0.0202, (73, 74)) > 0


def test_published_arithmetic_equals_brute_force():
    from itertools import product

    from experiments.published_arithmetic import ways

    sizes = (4, 5)
    # Every number of right bags in five folds of every shape: shares [n, 5], and the folds' key.
    made = [
        (np.array(counts) / shape, tuple(sorted(zip(shape, counts, strict=True))))
        for shape in product(sizes, repeat=5)
        for counts in product(*(range(n + 1) for n in shape))
    ]
    shares, keys = np.array([share for share, _ in made]), [key for _, key in made]
    spreads = np.stack([shares.std(axis=1), shares.std(axis=1, ddof=1)])
    for mean, std in ((0.79, 0.0735), (0.8, 0.0), (0.77, 0.0872), (0.7, 0.1), (0.71, 0.0583)):
        fits = (abs(shares.mean(axis=1) - mean) <= 5e-5 + 1e-12) & (
            abs(spreads - std) <= 5e-5 + 1e-12
        ).any(axis=0)
        assert ways(mean, std, sizes) == len({keys[i] for i in np.flatnonzero(fits)})


def test_missing_numbers_in_tables(tmp_path):
    rows = [
        ("a", "d", "auc", np.nan, 0.5, np.nan, 1, None),
        ("b", "d", "auc", "0.96 ± 0.01", np.nan, np.nan, np.nan, "private"),
        ("c", "d", "ways", 6, 37, np.nan, np.nan, ""),
        ("e", "d", "accuracy in %", 88.3, 87.42, 1.26, 3, ""),
    ]
    frame = pd.DataFrame(rows, columns=RESULT_COLUMNS)
    table = published_table(frame)
    assert table["published"].tolist() == ["-", "0.96 ± 0.01", "6", "88.3"]
    assert table.iloc[:, 4].tolist() == ["0.500 (1)", "not measured", "37", "87.4 ± 1.3 (3)"]
    write_table(frame, tmp_path, "t")
    assert (tmp_path / "t.md").read_text() == to_markdown(table) + "\n"
    assert len(pd.read_csv(tmp_path / "t.csv")) == 4


def test_comparison_is_printed_with_the_best_in_bold():
    from bagwise.datasets import make_gaussian_bags
    from bagwise.evaluate import BagFolds, compare

    data = {"toy": make_gaussian_bags(n_bags=30, random_state=0)}
    made = compare(["statistics", "single-instance"], data, BagFolds(3, (0, 1)), progress=False)
    console = Console(file=StringIO(), width=160, force_terminal=True)
    print_comparison(made, console)
    printed = console.file.getvalue()
    for word in ("accuracy", "auc", "log_loss", "ece", "fit s", "statistics", "single-instance"):
        assert word in printed
    assert "\x1b[1m" in printed


def test_quick_forms_without_a_download_take_at_most_two_hours_of_one_core():
    """An hour of two cores, of those whose time is stored."""
    times = quick_seconds()
    known = [times[e.name] for e in find_experiments().values() if e.name in times]
    assert len(known) >= 15
    assert sum(known) <= 2 * 3600
