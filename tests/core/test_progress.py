"""The progress bar: what it shows, and that it shows nothing unasked."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from bagwise import VGPMIL
from bagwise.core.progress import progress, tracked
from bagwise.datasets import make_gaussian_bags
from bagwise.report import predictions


def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=120)


def test_a_bar_shows_name_text_and_both_times():
    console = terminal()
    with progress("fitting [x] {y}", 4, console=console, estimate="at most") as report:
        for done in range(1, 5):
            report(done, f"bound {done}")
    shown = console.file.getvalue()
    for part in ("fitting [x] {y}", "bound 4", "passed, at most", "0:00:00"):
        assert part in shown


def test_without_a_length_only_the_time_that_passed_is_shown():
    console = terminal()
    with progress("reading", console=console):
        pass
    assert "passed" in console.file.getvalue() and "about" not in console.file.getvalue()


def test_nothing_is_shown_unasked(capsys):
    with progress("fitting", 3, shown=False) as report:
        report(1)
    assert capsys.readouterr() == ("", "")


def test_a_bar_that_goes_leaves_nothing_in_a_file():
    console = Console(file=io.StringIO())
    with progress("fitting", 3, console=console, transient=True) as report:
        report(3)
    assert console.file.getvalue() == ""


def test_items_pass_through_and_are_counted():
    console = terminal()
    assert list(tracked(iter("abc"), 3, "reading", console=console)) == ["a", "b", "c"]
    assert "3 of 3" in console.file.getvalue()


@pytest.mark.parametrize("rows", [1, 50, 10**6])
def test_tables_are_the_same_with_a_bar(rows, monkeypatch):
    monkeypatch.setattr(predictions, "_ROWS", rows)
    bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    model = VGPMIL(n_inducing=8, random_state=0).fit(bags, y)
    lengths = []

    def watched(runs, n_runs):
        assert len(runs) == n_runs
        lengths.append(n_runs)
        return runs

    alone = predictions.predict_tables(model, bags)
    with_bar = predictions.predict_tables(model, bags, progress=watched)
    for a, b in ((alone.bags, with_bar.bags), (alone.instances, with_bar.instances)):
        assert a.columns.tolist() == b.columns.tolist()
        numbers = a.select_dtypes("number").columns
        np.testing.assert_allclose(a[numbers], b[numbers], atol=1e-10)
    (n_runs,) = lengths
    assert n_runs == 1 if rows == 10**6 else 1 < n_runs <= len(bags)
