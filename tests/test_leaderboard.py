from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from experiments import leaderboard
from experiments.leaderboard import Fit, Fits
from scipy.stats import binom
from sklearn.base import clone
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold

from bagwise.evaluate import expected_calibration_error
from bagwise.models.registry import make_model

ROOT = Path(__file__).parents[1]
MODELS, SETS = ("single-instance", "statistics"), ("musk1", "musk2")


@pytest.fixture
def fits():
    return leaderboard.plan(MODELS, SETS, 2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("leaderboard")
    fits = leaderboard.plan(MODELS, SETS, 2)
    assert leaderboard.run_fits(fits, Fits(folder))
    return folder


def test_frozen_folds_are_what_they_claim():
    folds = leaderboard.frozen_folds()
    assert set(folds) == set(leaderboard.SETS) - {"musk1", "elephant", "fox", "tiger"}
    for name, of_set in folds.items():
        assert of_set.shape == (5, 102 if name == "musk2" else len(of_set[0]))
        if name in ("musk2", "digits"):
            y = leaderboard.load(name).y
            for repetition, row in enumerate(of_set):
                splitter = StratifiedKFold(10, shuffle=True, random_state=repetition)
                for fold, (_, test) in enumerate(splitter.split(y, y)):
                    assert set(np.flatnonzero(row == fold)) == set(test)


def test_order_covers_all_models_and_sets_fold_by_fold(fits):
    assert [(f.repetition, f.fold) for f in fits] == [(0, 0)] * 4 + [(0, 1)] * 4
    assert [(f.model, f.data) for f in fits[:4]] == [(m, d) for d in SETS for m in MODELS]
    whole = leaderboard.plan(MODELS, SETS)
    assert len(whole) == 2 * 2 * 50
    assert whole[-1].repetition == 4


def test_rows_equal_a_plain_loop(finished):
    rows = Fits(finished).rows.set_index(["model", "data", "repetition", "fold"])
    data = leaderboard.load("musk2")
    test = np.flatnonzero(np.asarray(data.published_folds)[0] == 1)
    train = np.setdiff1d(np.arange(len(data.bags)), test)
    model = clone(make_model("single-instance")).fit(data.bags[train], data.y[train])
    row = rows.loc[("single-instance", "musk2", 0, 1)]
    p = model.predict_proba(data.bags[test])[:, 1]
    assert row["auc"] == pytest.approx(
        roc_auc_score(data.y[test], model.decision_function(data.bags[test])), rel=1e-4
    )
    assert row["log_loss"] == pytest.approx(log_loss(data.y[test], p), rel=1e-4)
    np.testing.assert_allclose([float(v) for v in row["probabilities"].split()], p, atol=1e-5)


def test_stopped_run_goes_on_and_a_new_model_is_the_only_one_fitted(
    finished, fits, tmp_path, monkeypatch
):
    path = tmp_path / "fits.csv"
    lines = (finished / "fits.csv").read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4]) + lines[4][:30])  # killed while writing the fourth fit
    called = []
    measure = leaderboard.measure
    monkeypatch.setattr(
        leaderboard, "measure", lambda fit, limit: called.append(fit) or measure(fit, limit)
    )
    assert leaderboard.run_fits(fits, Fits(tmp_path))
    assert called == fits[3:]
    columns = ["model", "data", "fold", "auc", "log_loss", "probabilities"]
    pd.testing.assert_frame_equal(Fits(tmp_path).rows[columns], Fits(finished).rows[columns])
    called.clear()
    more = leaderboard.plan((*MODELS, "setkernel"), ("musk1",), 2)
    assert leaderboard.run_fits(more, Fits(tmp_path))
    assert [(f.model, f.data) for f in called] == [("setkernel", "musk1")] * 2
    called.clear()
    changed = [f._replace(settings="other") if f.model == "statistics" else f for f in fits]
    leaderboard.run_fits(changed, Fits(tmp_path))
    assert {f.model for f in called} == {"statistics"}
    assert len(Fits(tmp_path).read(changed)) == len(changed)


def test_folded_fits_are_those_of_the_journal(finished, fits, tmp_path):
    before = Fits(finished).rows
    (tmp_path / "fits.csv").write_text((finished / "fits.csv").read_text())
    Fits(tmp_path).fold()
    assert [path.name for path in tmp_path.iterdir()] == ["fits.parquet"]
    pd.testing.assert_frame_equal(Fits(tmp_path).rows, before, check_dtype=False)
    again = {**before.iloc[0].to_dict(), "auc": 0.25, "error": None}
    Fits(tmp_path).add(again)  # the later of two rows of a fit counts
    Fits(tmp_path).fold()
    rows = Fits(tmp_path).read(fits)
    assert len(rows) == len(fits)
    assert rows["auc"].tolist() == [0.25, *before["auc"].iloc[1:]]


def test_failures_and_slow_fits_are_rows(fits, tmp_path, monkeypatch):
    def fit_fold(model, bags, y, split, protocol):
        time.sleep(30)

    monkeypatch.setattr(leaderboard, "fit_fold", fit_fold)
    assert leaderboard.run_fits(fits[:1] + fits[4:5], Fits(tmp_path), limit=0.2)
    (row,) = Fits(tmp_path).rows.to_dict("records")  # the second fold of that set was not tried
    assert row["error"] == "TimeoutError: longer than 0.2 s"
    monkeypatch.setattr(
        leaderboard, "fit_fold", lambda *_: (_ for _ in ()).throw(ValueError("no luck,\ntoday"))
    )
    assert leaderboard.measure(fits[0])["error"] == "ValueError: no luck, today"


def test_failed_fits_count_as_the_constant_predictor(finished, fits):
    rows = Fits(finished).read(fits)
    bad = rows.index[(rows["model"] == "statistics") & (rows["data"] == "musk1")][0]
    rows.loc[bad, ["auc", "accuracy", "log_loss"]] = np.nan
    rows.loc[bad, "error"] = "TimeoutError: longer than 1 s"
    filled = leaderboard.fill_failures(rows)
    # The fold that timed out counts as constant, the other one was measured.
    (row,) = filled[filled["settings"].isna()].to_dict("records")
    data = leaderboard.load("musk1")
    test = np.asarray(data.published_folds)[0] == rows.loc[bad, "fold"]
    share = data.y[~test].mean()
    assert row["auc"] == 0.5
    assert row["accuracy"] == np.mean(data.y[test] == (share > 0.5))
    assert row["log_loss"] == pytest.approx(log_loss(data.y[test], np.full(test.sum(), share)))
    table = leaderboard.result_rows(rows).set_index(["model", "metric", "data"])
    assert "1 fits failed" in table.loc[("statistics", "auc", "2 sets"), "note"]
    unfinished = rows.drop(index=bad)
    assert len(leaderboard.shared_folds(unfinished)) == 6  # two models on three shared cells


def test_tables_say_ranks_folds_and_what_was_published(finished, fits, tmp_path):
    rows = Fits(finished).read(fits)
    table = leaderboard.write_results(rows, tmp_path)
    names = {"per_set.csv", "per_set.md", "pairs_auc.csv", "ranks_auc.png", "ranks_log_loss.png"}
    assert names <= {path.name for path in tmp_path.iterdir()}
    per_set = leaderboard.summarise(leaderboard.shared_folds(rows)).set_index(["model", "data"])
    part = rows[(rows["model"] == "statistics") & (rows["data"] == "musk1")]
    cell = per_set.loc[("statistics", "musk1")]
    assert cell["auc"] == pytest.approx(part["auc"].mean())
    y, p = [], []
    for row in part.itertuples():
        y += [*leaderboard.load("musk1").y[leaderboard.splits("musk1")[0, row.fold].test]]
        p += [float(v) for v in row.probabilities.split()]
    assert cell["ece"] == pytest.approx(expected_calibration_error(y, p))
    published = table[table["metric"] == "accuracy, %"].set_index(["model", "data"])
    assert published.loc[("single-instance", "musk1"), "published"] == 78.3
    assert "MI-CRF paper" in published.loc[("single-instance", "musk1"), "note"]
    auc = table[table["metric"] == "auc"]
    assert auc["note"].str.contains("; 2 folds of each set").all()


def test_the_calibration_error_of_right_probabilities_is_not_zero():
    """Two levels of 50 bags: how far a share of 50 is from its level, by the binomial law."""
    p = np.repeat([0.25, 0.75], 50)
    k = np.arange(51)
    expected = binom.pmf(k, 50, 0.25) @ np.abs(k / 50 - 0.25)
    assert leaderboard.ece_if_right(p, n_draws=2000) == pytest.approx(expected, rel=0.03)
    assert leaderboard.ece_if_right(np.repeat(p, 100)) < 0.2 * expected


def test_the_spread_is_of_whole_repetitions():
    """Two repetitions of two sets by two folds; of the third one fold is there, far away."""
    auc = {(0, "a"): 0.6, (0, "b"): 0.8, (1, "a"): 0.7, (1, "b"): 0.9}
    cells = [(k, d, f, v + (0.05 if f else -0.05)) for (k, d), v in auc.items() for f in (0, 1)]
    rows = pd.DataFrame([*cells, (2, "a", 0, 0.0)], columns=["repetition", "data", "fold", "auc"])
    assert set(leaderboard.whole_repetitions(rows)["repetition"]) == {0, 1}
    spread = leaderboard.spread_over_sets(rows.assign(model="m"), "auc")
    assert spread == {"m": pytest.approx(np.std([0.7, 0.8], ddof=1))}


def test_worse_than_best_needs_more_than_luck():
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(
        {"model": m, "data": "d", "repetition": k // 10, "fold": k % 10, "auc": level + noise[k]}
        for m, level, noise in (
            ("best", 0.9, 0.05 * rng.standard_normal(50)),
            ("near", 0.895, 0.05 * rng.standard_normal(50)),
            ("far", 0.6, 0.05 * rng.standard_normal(50)),
        )
        for k in range(50)
    )
    counts = leaderboard.worse_than_best(rows)
    assert counts["far"] == 1
    assert counts["best"] + counts["near"] == 0


def command(tmp_path, *words):
    """A real run, in which the imports that a bare machine lacks are refused."""
    blocked = tmp_path / "blocked"
    for name in ("rich", "skops", "pooch", "pyarrow", "matplotlib"):
        (blocked / name).mkdir(parents=True)
        (blocked / name / "__init__.py").write_text("raise ImportError('not on this machine')\n")
    return subprocess.run(
        [sys.executable, "-m", "experiments.leaderboard", "--out", str(tmp_path), *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(blocked), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )


def test_command_fits_on_a_bare_machine(tmp_path):
    made = command(tmp_path, "--quick")
    assert made.returncode == 0, made.stderr
    assert "8 of 8 fits" in made.stdout
    assert Fits(tmp_path).rows["error"].isna().all()


def test_command_stops_at_its_deadline_with_two_processes(tmp_path):
    start = time.monotonic()
    words = ["--jobs", "2", "--deadline", "8", "--models", "statistics", "auto", "--sets", "musk1"]
    made = command(tmp_path, *words)
    assert made.returncode == 3, made.stderr
    assert time.monotonic() - start < 40  # fifty fits of auto take minutes
    assert "of 100 fits" in made.stdout
    assert made.stdout.rstrip().endswith("run again")
    assert Fits(tmp_path).rows["error"].isna().all()


def test_published_figures_belong_to_registered_models():
    assert set(leaderboard.PUBLISHED) <= set(leaderboard.MODELS)


def test_bad_names_are_refused(tmp_path):
    with pytest.raises(ValueError, match="'atlantis' is neither a model"):
        leaderboard.chosen_fits(True, models=["atlantis"])
    (tmp_path / "fits.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="is not a table of fits"):
        Fits(tmp_path)
    assert Fit("a", "b", 0, 0, "c").model == "a"


def test_an_alarm_inside_compiled_code_is_still_a_time_limit():
    """Compiled code turns the alarm's TimeoutError into a SystemError; a run must end cleanly."""
    with pytest.raises(TimeoutError, match="longer than 9 s"), leaderboard._time_limit(100):
        raise SystemError("a result with an exception set") from TimeoutError("longer than 9 s")
    with pytest.raises(SystemError, match="something else"), leaderboard._time_limit(100):
        raise SystemError("something else")
