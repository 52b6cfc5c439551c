"""Figures on the pages come from stored results, and no two pages disagree."""

from __future__ import annotations

import inspect
import re

import pandas as pd
import pytest
from benchmarks import (
    bench_defaults,
    bench_files,
    bench_micrf,
    bench_mio,
    bench_peers,
    bench_svm,
    gpu,
)
from benchmarks.stored import MEASURED, store
from experiments import figures, stored, tables
from experiments._page import write_pages

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
    assert {page.stem for page in tmp_path.iterdir()} == runs | {"index"}
    texts = {page.stem: page.read_text(encoding="utf-8") for page in tmp_path.iterdir()}
    assert set(texts["index"].split("```")[1].split()[3:]) == runs
    assert any(", commit " in text for text in texts.values())
    assert "How these numbers were chosen" in texts["misvm"]
    pictures = [name for text in texts.values() for name in re.findall(r"!\[.*\]\((.+)\)", text)]
    assert len(pictures) > 10
    assert all((tmp_path / name).exists() for name in pictures)


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
    quoted |= {*bench_peers.QUOTED.values()}
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
