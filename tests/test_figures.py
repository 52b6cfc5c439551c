"""Figures on the pages come from stored results, and no two pages disagree."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import pkgutil
import re
from types import SimpleNamespace

import pandas as pd
import pytest
from benchmarks import (
    bench_defaults,
    bench_files,
    bench_micrf,
    bench_mio,
    bench_peers,
    bench_svm,
    decide,
    gpu,
)
from benchmarks.stored import MEASURED, store
from experiments import figures, published, stored, tables
from experiments._page import NOTES, write_pages

import bagwise

SPAN = re.compile(r"<!-- figure: ([^>]*?) -->(.*?)<!-- /figure -->", re.DOTALL)
GENERATED = re.compile(r"<!-- (figure|table): .*?<!-- /\1 -->", re.DOTALL)
# A score with three decimals, as results are written; settings have fewer.
SCORE = re.compile(r"(?<![\w.])0?\.\d{3}(?![\w.])")
# Pages whose figures are not yet written from stored results.
BY_HAND = {"detection.md", "uncertainty.md"}


def shown(page):
    """What a reader of the page sees, without code."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def test_pages_show_the_stored_results():
    assert figures.main(["--check"]) == 0


def test_a_changed_result_is_noticed_and_written(tmp_path, monkeypatch, capsys):
    page = tmp_path / "README.md"
    key = "misvm; musk1; MI-SVM; accuracy; % ±"
    page.write_text(
        f"It is <!-- figure: {key} -->12.3 ± 4.5<!-- /figure --> here.", encoding="utf-8"
    )
    monkeypatch.setattr(figures, "pages", lambda: [page])
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    assert figures.main(["--check"]) == 1
    assert "12.3" in page.read_text(encoding="utf-8")
    assert figures.main([]) == 0
    row = stored.row("misvm", "musk1", "MI-SVM", "accuracy")
    expected = f"{100 * row['mean']:.1f} ± {100 * row['spread']:.1f}"
    assert expected in page.read_text(encoding="utf-8")
    assert figures.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("misvm; musk1; MI-SVM", "needs experiment; data; model; metric"),
        ("misvm; musk1; MI-SVM; beauty", "0 rows"),
        ("nothing; musk1; MI-SVM; auc", "no stored results"),
        ("misvm; musk1; MI-SVM; accuracy; loud", "no option 'loud'"),
        ("misvm; musk1; set kernel; accuracy; published", "no published value"),
        ("benchmarks; the moon", "no line 'the moon'"),
    ],
)
def test_what_no_result_has_is_an_error(words, error):
    with pytest.raises(stored.UnknownFigureError, match=error):
        stored.figure(words)


def test_an_unknown_figure_is_one_line(tmp_path, monkeypatch, capsys):
    page = tmp_path / "README.md"
    page.write_text("<!-- table: no-such -->\n<!-- /table -->", encoding="utf-8")
    monkeypatch.setattr(figures, "pages", lambda: [page])
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    assert figures.main([]) == 2
    assert capsys.readouterr().err.strip() == "README.md: experiments.tables makes no 'no-such'."


def test_means_over_sets():
    one = [float(stored.value("auto", d, "AutoVGPMIL", "auc", "6")) for d in tables.SETS]
    mean = stored.value("auto", f"mean of {', '.join(tables.SETS)}", "AutoVGPMIL", "auc", "6")
    assert float(mean) == pytest.approx(sum(one) / len(one), abs=1e-6)


def test_no_figure_differs_between_pages():
    """One key, one value; and the same value in whatever table names it."""
    values = {}
    for page in figures.pages():
        for key, value in SPAN.findall(page.read_text(encoding="utf-8")):
            values.setdefault(key, set()).add(value)
    assert values
    assert all(len(v) == 1 for v in values.values())


@pytest.mark.parametrize(
    "page",
    [p for p in figures.pages() if p.name not in BY_HAND],
    ids=lambda p: p.name,
)
def test_scores_are_not_written_by_hand(page):
    text = GENERATED.sub("", shown(page))
    assert not SCORE.findall(text)


def test_the_best_of_a_column_is_bold():
    rows = [["a", "0.1", "3"], ["b", "0.2", "2"]]
    bold = tables._bold_best(rows, largest={2: False})
    assert bold == [["a", "0.1", "3"], ["b", "**0.2**", "**2**"]]


def test_every_stored_result_has_a_page(tmp_path):
    write_pages(stored.RESULTS, tmp_path)
    runs = {place.parent.name for place in stored.RESULTS.glob("*/run.json")}
    assert {page.stem for page in tmp_path.iterdir()} == runs | {"index", "published"}
    texts = {page.stem: page.read_text(encoding="utf-8") for page in tmp_path.iterdir()}
    assert set(texts["index"].split("```")[1].split()[3:]) == runs | {"published"}
    for name in runs:
        assert re.search(r"bagwise \d+\.\d+\.\d+", texts[name]), name
    assert any(", commit " in text for text in texts.values())
    assert "How these numbers were chosen" in texts["misvm"]
    pictures = [name for text in texts.values() for name in re.findall(r"!\[.*\]\((.+)\)", text)]
    assert len(pictures) > 10
    assert all((tmp_path / name).exists() for name in pictures)


def test_the_table_of_published_figures_is_what_the_runs_give():
    pytest.importorskip("pyarrow")
    assert published.TABLE.read_text(encoding="utf-8") == published.compared().to_csv(index=False)


def test_every_published_figure_has_a_verdict_and_its_reason():
    table = published.read()
    lines = table[["paper", "table", "row", "column"]].drop_duplicates()
    assert len(lines) == len(published.printed())
    assert set(table["verdict"]) <= {"reached", "above", "below", "not run", "not compared"}
    explained = table[table["verdict"].isin(["below", "not run", "not compared"])]
    assert (explained["why"] != "").all()
    runs = table[~table["why"].str.contains("does not have|another method|measured on|leaderboard")]
    assert (runs["command"] != "").all()
    tracked = table[table["command"].str.endswith("tracking") & (table["row"] == "MIO")]
    assert (tracked["verdict"] != "reached").all()


@pytest.mark.parametrize(
    ("mean", "error", "expected"),
    [(0.85, 0.03, "reached"), (0.85, 0.02, "below"), (0.95, 0.02, "above")],
)
def test_a_verdict_allows_two_standard_errors(mean, error, expected):
    line = SimpleNamespace(value="0.900", spread=float("nan"), row="a", column="accuracy")
    ours = published.Ours(mean, error, 0.0, 5, "ours", "misvm")
    assert published.verdict(line, ours)[0] == expected
    # Of times the smaller one is better.
    line.column = "seconds"
    turned = {"below": "above", "above": "below"}
    assert published.verdict(line, ours)[0] == turned.get(expected, expected)


def test_every_stored_run_says_its_version():
    for path in stored.RESULTS.glob("*/run.json"):
        about = json.loads(path.read_text(encoding="utf-8"))
        assert re.fullmatch(r"\d+\.\d+\.\d+", about["versions"]["bagwise"]), path


# A module of bagwise and what is named in it; and a function named by a verb of this library.
PACKAGES = "bagwise|core|bags|datasets|deep|evaluate|files|models|report|vision"
DOTTED = re.compile(rf"\b((?:{PACKAGES})(?:\.[a-z_]+)*)\.([A-Za-z_]\w+)")
VERB = re.compile(r"\b(?:read|load|fetch|make|write)_\w+\b")


def texts_about_results():
    """What stored runs, their tables, notes and published rows say."""
    for path in sorted(stored.RESULTS.glob("*/run.json")):
        yield path, json.loads(path.read_text(encoding="utf-8"))["about"]
    for path in sorted([*stored.RESULTS.glob("*/table.csv"), *NOTES.glob("*.md")]):
        yield path, path.read_text(encoding="utf-8")
    yield (
        published.PRINTED,
        " ".join(a for value in vars(published).values() for a in absent(value)),
    )


def absent(value):
    return [*value] if isinstance(value, published.Absent) else []


@functools.cache
def names_of_bagwise():
    """Functions and classes of all modules, and their parameters and methods."""
    names = set()
    for info in pkgutil.walk_packages(bagwise.__path__, "bagwise."):
        if not info.name.endswith("__main__"):
            try:
                names |= set(dir(importlib.import_module(info.name)))
            except ImportError:
                continue  # an extra is not installed
    return names


def unknown_names(text):
    """Functions and modules of bagwise that a text names and that do not import."""
    unknown = []
    for module, name in DOTTED.findall(text):
        path = module if module.startswith("bagwise") else f"bagwise.{module}"
        try:
            found = importlib.import_module(path)
        except ImportError:
            unknown.append(f"{module}.{name}")
            continue
        if not hasattr(found, name):
            try:
                importlib.import_module(f"{path}.{name}")
            except ImportError:
                unknown.append(f"{module}.{name}")
    return unknown + [name for name in VERB.findall(text) if name not in names_of_bagwise()]


def test_unknown_names_are_noticed():
    said = "vision.read_scans then vision.read_rsna_labels, bagwise.nothing.here, read_cq500_labels"
    assert unknown_names(said) == [
        *("vision.read_rsna_labels", "bagwise.nothing.here"),
        *("read_rsna_labels", "read_cq500_labels"),
    ]


def test_stored_texts_name_what_imports():
    unknown = {path: unknown_names(text) for path, text in texts_about_results()}
    assert not {path: names for path, names in unknown.items() if names}


def test_a_benchmark_replaces_its_own_lines(tmp_path):
    path = tmp_path / "measured.csv"
    path.write_text('what,value,command,where\n"a, b",1 to 2,old,there\nc,3,old,there\n')
    store({"a, b": 1.23456, "new": 7.0}, "python -m benchmarks x", "2 cores", path)
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    assert table["what"].tolist() == ["a, b", "c", "new"]
    assert table["value"].tolist() == ["1.23", "3", "7"]
    assert table["command"].tolist() == ["python -m benchmarks x", "old", "python -m benchmarks x"]
    assert list(tmp_path.iterdir()) == [path]


def test_every_quoted_figure_has_a_benchmark_that_writes_it():
    quoted = {name for names in gpu.QUOTED.values() for name in names}
    quoted |= {*bench_svm.QUOTED.values(), *bench_defaults.QUOTED.values()}
    quoted |= {*bench_peers.QUOTED.values(), *decide.QUOTED.values()}
    quoted |= set(bench_mio._passes(quick=True)["quoted"])
    quoted |= set(re.findall(r'"(MI-CRF, .*?)"', inspect.getsource(bench_micrf)))
    quoted |= {*bench_files.QUOTED.values(), bench_files.SIZE}
    quoted |= {"Dask, one worker, seconds", "Dask, two workers, seconds"}
    quoted |= {f"CT, forty studies, ct {command}, peak MB" for command in ("fit", "predict")}
    grown = gpu.Line("growth in features: 256", 2.0, "exponent", 0.5)
    assert gpu.quoted(grown) == {
        "GPU growth in features: 256, seconds": 2.0,
        "GPU growth in features: 256, exponent": 0.5,
    }
    assert len(gpu.quoted(grown._replace(theirs=float("nan")))) == 1
    for peer in ("GPyTorch SVGP, one epoch", "AttentionMIL, one epoch"):
        quoted |= set(gpu.quoted(gpu.Line("VGPMIL().fit, 1000000 x 128", 2.0, peer, 0.5)))
    named = {what for what in pd.read_csv(MEASURED)["what"] if not what.startswith("GPU growth in")}
    assert named <= quoted
    assert gpu.quoted(gpu.Line("VGPMIL().fit, 400 files, GPU", 2.0, "reading the files", 0.5)) == {
        "GPU fit from a folder, seconds": 2.0,
        "reading the folder, seconds": 0.5,
    }
    line = gpu.Line("one iteration, 250000 x 128, 2 threads", 2.0, "1 thread", 3.0)
    assert gpu.quoted(line) == {"16 cores, 2 threads, times one thread": 1.5}
