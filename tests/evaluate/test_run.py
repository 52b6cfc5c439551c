from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.base import BaseEstimator
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.utils import Bunch

from bagwise import BagStatistics, SingleInstance, make_pipeline
from bagwise.datasets import make_gaussian_bags
from bagwise.evaluate import (
    METRIC_NAMES,
    BagFolds,
    Comparison,
    Nested,
    bag_metrics,
    check_model,
    compare,
    corrected_resampled_t,
    wilcoxon_p,
)
from bagwise.evaluate.measure import Measure
from bagwise.evaluate.run import RecordFile, describe_model, fingerprint
from bagwise.models.registry import MODELS, make_model
from tests.checks.contract import make_problem
from tests.reference import metrics as naive

TWO = np.zeros((2, 2, 3))


def models():
    return {
        "single": SingleInstance(LogisticRegression()),
        "stats": make_pipeline(BagStatistics(), LogisticRegression()),
    }


@pytest.fixture(scope="module")
def data():
    return {
        "easy": make_gaussian_bags(n_bags=30, random_state=0),
        "hard": make_gaussian_bags(n_bags=30, separation=0.5, random_state=1),
    }


@pytest.fixture(scope="module")
def made(data):
    return compare(models(), data, BagFolds(3, (0, 1)), progress=False)


class Failing(BaseEstimator):
    """Learns until told to stop."""

    def __init__(self, fail=False):
        self.fail = fail

    def fit(self, bags, y):
        if self.fail:
            raise RuntimeError("power cut")
        self.classes_ = np.unique(y)
        warnings.warn("almost there", stacklevel=2)
        return self

    def decision_function(self, bags):
        return bags.sizes.astype(float)

    def predict(self, bags):
        return self.classes_[(bags.sizes > 6).astype(int)]


def test_rows_are_tidy_and_equal_a_plain_loop(made, data):
    rows = made.rows
    assert len(rows) == 2 * 2 * 2 * 3 * (7 + 7) - 2 * 2 * 3 * 7  # "stats" ranks no instances
    assert {"model", "data", "seed", "fold", "metric", "value", "fit_seconds", "peak_mb"} <= set(
        rows.columns
    )
    bags, y = data["hard"].bags, data["hard"].y
    for split in BagFolds(3, (0, 1)).splits(bags, y):
        model = models()["single"].fit(bags[split.train], y[split.train])
        for metric, value in bag_metrics(model, bags[split.test], y[split.test]).items():
            row = rows.query(
                "model == 'single' and data == 'hard' and level == 'bags' and "
                f"seed == {split.seed} and fold == {split.fold} and metric == '{metric}'"
            )
            assert row["value"].item() == value


def test_summary_names_mean_and_spread_over_seeds(made):
    summary = made.summary(["accuracy", "ece"]).set_index(["model", "data", "metric"])
    row = summary.loc[("single", "easy", "accuracy")]
    values = made.per_seed("single", "easy", "accuracy")
    assert row["mean"] == values.mean()
    assert row["spread"] == values.std(ddof=1)
    assert row["n_seeds"] == 2
    # The calibration error is pooled over the folds of a seed.
    pooled = made.per_seed("single", "easy", "ece", averaging="pooled")
    assert summary.loc[("single", "easy", "ece")]["mean"] == pooled.mean()
    assert (made.per_seed("single", "easy", "ece", averaging="fold-mean") != pooled).any()


def test_table_has_a_row_per_model_and_data(made):
    table = made.table()
    assert table.columns.tolist() == [
        *("model", "data", "accuracy", "auc", "log_loss", "ece"),
        *("fit s", "peak MB", "seeds"),
    ]
    assert len(table) == 4
    assert "±" in table["auc"][0]


def test_instance_level(made):
    instances = made.summary(["auc"], level="instances")
    assert set(instances["model"]) == {"single"}
    assert instances.set_index("data").loc["easy", "mean"] > 0.9


def test_resumed_run_equals_an_uninterrupted_one(tmp_path, data, made):
    path = tmp_path / "results.jsonl"
    part = {"single": models()["single"]}
    compare(part, data, BagFolds(3, (0, 1)), results=path, progress=False)
    lines = path.read_text().splitlines()
    assert len(lines) == 12
    path.write_text("\n".join(lines[:5]) + "\n")  # as after a kill
    before = {json.loads(line)["key"]: line for line in lines[:5]}
    again = compare(models(), data, BagFolds(3, (0, 1)), results=path, progress=False)
    pd.testing.assert_frame_equal(
        again.rows.drop(columns=["fit_seconds", "predict_seconds", "peak_mb"]),
        made.rows.drop(columns=["fit_seconds", "predict_seconds", "peak_mb"]),
    )
    # What was done before was not done again.
    after = {json.loads(line)["key"]: line for line in path.read_text().splitlines()}
    assert all(after[key] == line for key, line in before.items())


def test_failure_keeps_what_was_done_and_names_the_fit(tmp_path, data):
    path = tmp_path / "results.jsonl"
    both = {"ok": Failing(), "bad": Failing(fail=True)}
    one = {"easy": data["easy"]}
    with pytest.raises(RuntimeError, match="power cut") as caught:
        compare(both, one, BagFolds(3, (0,)), results=path, progress=False)
    assert "while fitting 'bad' on 'easy', seed 0, fold 0" in "".join(caught.value.__notes__)
    assert len(path.read_text().splitlines()) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["results.jsonl"]


def test_killed_process_resumes(tmp_path, data, made):
    """A real process, killed while it fits, leaves a file that the next run completes."""
    path = tmp_path / "results.jsonl"
    script = """
import sys, time
from sklearn.linear_model import LogisticRegression
from bagwise import SingleInstance
from bagwise.datasets import make_gaussian_bags
from bagwise.evaluate import BagFolds, compare
from tests.evaluate.test_run import models
class Slow(SingleInstance):
    def fit(self, bags, y):
        time.sleep(0.2)
        return super().fit(bags, y)
data = {"easy": make_gaussian_bags(n_bags=30, random_state=0)}
compare({"single": models()["single"], "slow": Slow(LogisticRegression())}, data,
        BagFolds(3, (0, 1)), results=sys.argv[1], progress=False)
"""
    process = subprocess.Popen([sys.executable, "-c", script, str(path)])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if path.exists() and len(path.read_text().splitlines()) >= 7:
            break
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = len(path.read_text().splitlines())
    assert 7 <= done < 12
    subset = {"easy": data["easy"]}
    again = compare(
        {"single": models()["single"]}, subset, BagFolds(3, (0, 1)), results=path, progress=False
    )
    np.testing.assert_array_equal(
        again.per_seed("single", "easy", "auc"), made.per_seed("single", "easy", "auc")
    )
    assert len(path.read_text().splitlines()) == done  # nothing was fitted twice


def test_changed_settings_are_fitted_anew(tmp_path, data):
    path = tmp_path / "results.jsonl"
    one = {"easy": data["easy"]}
    for C in (1.0, 0.001, 1.0):
        made = compare(
            {"m": SingleInstance(LogisticRegression(C=C))},
            one,
            BagFolds(3, (0,)),
            results=path,
            progress=False,
        )
        assert len(made.records) == 3
    assert len(path.read_text().splitlines()) == 6


def test_two_processes_give_the_same_rows(data, made):
    parallel = compare(models(), data, BagFolds(3, (0, 1)), n_jobs=2, progress=False)
    pd.testing.assert_series_equal(parallel.rows["value"], made.rows["value"])


def test_open_seeds_follow_the_repetition(data):
    class Recorder(SingleInstance):
        seen: list = []  # noqa: RUF012

        def fit(self, bags, y):
            self.seen.append(self.estimator.random_state)
            return super().fit(bags, y)

    one = {"easy": data["easy"]}
    protocol = BagFolds(2, (4, 9))
    compare({"m": Recorder(SGDClassifier(), calibrate=False)}, one, protocol, progress=False)
    compare(
        {"m": Recorder(SGDClassifier(random_state=1), calibrate=False)},
        one,
        protocol,
        progress=False,
    )
    assert Recorder.seen == [4, 4, 9, 9, 1, 1, 1, 1]


def test_nested_choice_inside_compare(data):
    protocol = Nested(BagFolds(3, (0,)), {"single": {"estimator__C": [1e-6, 1.0]}})
    made = compare(models(), {"easy": data["easy"]}, protocol, progress=False)
    assert made.summary(["auc"]).set_index("model").loc["single", "mean"] > 0.8
    assert made.records[0]["instances"] is not None  # the winner's twins are kept


def test_warnings_are_counted_not_lost(data):
    made = compare({"m": Failing()}, {"easy": data["easy"]}, BagFolds(3, (0,)), progress=False)
    assert made.warnings == {"m: UserWarning: almost there": 3}
    assert np.isnan(made.per_seed("m", "easy", "log_loss")).all()  # it has no probabilities
    assert made.table()["log_loss"][0] == "-"


def test_names_of_models_and_sets():
    made = compare(["statistics"], "musk1", BagFolds(2, (0,)), progress=False)
    assert made.models == ["statistics"]
    assert made.datasets == ["musk1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "no model 'nothing'"),
        ((["statistics"], "nothing"), "no data set 'nothing'"),
        (({}, "musk1"), "at least one model"),
        ((["statistics"], []), "at least one data set"),
        ((["statistics"], {"a": (np.zeros((4, 2, 3)), [0, 1])}), "2 labels for 4 bags"),
        ((["statistics"], {"a": Bunch(bags=TWO, y=[0, 1], groups=[1])}), "1 groups for 2 bags"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        compare(*arguments, progress=False)


def test_foreign_results_file_is_refused(tmp_path, data):
    path = tmp_path / "labels.csv"
    path.write_text("slide_id,label\n")
    with pytest.raises(ValueError, match=r"labels.csv: line 1 is not a result of compare"):
        compare(models(), data, results=path, progress=False)
    assert path.read_text() == "slide_id,label\n"


def test_corrected_t_equals_the_definition(rng):
    d = rng.normal(0.05, 0.1, 15)
    t, p = corrected_resampled_t(d, 0.25)
    assert t == pytest.approx(naive.corrected_t(d.tolist(), 0.25))
    assert p == pytest.approx(2 * stats.t.sf(abs(t), 14))
    # Less sure than the plain paired t-test.
    assert p > stats.ttest_1samp(d, 0).pvalue


def test_corrected_t_limits():
    assert corrected_resampled_t([0.0, 0.0, 0.0], 0.25) == (0.0, 1.0)
    assert corrected_resampled_t([0.1, 0.1], 0.25) == (np.inf, 0.0)
    assert np.isnan(corrected_resampled_t([0.1], 0.25)).all()


def test_wilcoxon_handles_zeros_and_ties():
    assert wilcoxon_p([0.1, 0.2, 0.3]) == pytest.approx(0.25)
    assert wilcoxon_p([0.0, 0.0]) == 1
    assert wilcoxon_p([0.1, 0.1, -0.1, 0.1]) == pytest.approx(10 / 16)
    assert 0 < wilcoxon_p([0.0, 0.1, 0.2, 0.2, 0.3]) <= 0.125 + 1e-9
    assert np.isnan(wilcoxon_p([]))


def test_paired_tests(made):
    paired = made.paired("auc")
    assert len(paired) == 2
    assert set(paired["better"]) <= {"single", "stats", "-"}
    assert paired["p"].between(0, 1).all()
    over = made.over_datasets("log_loss")
    assert over["n_datasets"].item() == 2
    # For a loss, lower is better.
    shared = {"data": "d", "seed": 0, "n_test": 1, "n_train": 4}
    rows = [
        {**shared, "model": model, "fold": fold, "bags_metrics": {"log_loss": value}}
        for model, value in (("a", 0.1), ("b", 0.7))
        for fold in range(3)
    ]
    assert Comparison(rows, ["log_loss"]).paired("log_loss")["better"].item() == "a"


def test_measured_memory_is_that_of_the_block():
    with Measure() as small:
        np.ones(10)
    with Measure() as large:
        block = np.ones(8_000_000)  # 61 MB
        block.sum()
    if sys.platform == "linux":
        assert 50 < large.peak_mb < 100
        assert small.peak_mb < 20
    with Measure() as after:
        np.ones(10)
    assert after.peak_mb < 30


def test_record_file_survives_reopening(tmp_path):
    path = tmp_path / "deep" / "file.jsonl"
    first = RecordFile(path)
    first.add({"key": "a", "value": np.float64(0.1), "array": np.arange(2), "none": np.nan})
    again = RecordFile(path)
    assert "a" in again
    assert again.get("a")["array"] == [0, 1]
    with pytest.raises(TypeError, match="cannot be written"):
        again.add({"key": "b", "value": object()})
    assert "b" not in RecordFile(path)


def test_fingerprints_tell_content_apart(rng):
    X = rng.normal(size=(4, 3))
    assert fingerprint([X]) == fingerprint([X.copy()])
    assert fingerprint([X]) != fingerprint([X + 1e-12])
    assert fingerprint([X]) != fingerprint([X.astype(np.float32)])
    assert fingerprint([object()]) == fingerprint([object()])
    a = describe_model(make_pipeline(BagStatistics(), LogisticRegression(C=1)))
    assert a != describe_model(make_pipeline(BagStatistics(), LogisticRegression(C=2)))


@pytest.mark.parametrize("name", MODELS)
def test_every_named_model_fits_and_gives_probabilities(name):
    home = MODELS[name].home.partition(":")[0]
    pytest.importorskip(f"{home}.auto" if name == "auto" else home)
    bags, y, _ = make_problem()
    model = check_model(make_model(name)).fit(bags, y)
    assert model.predict_proba(bags).shape == (len(bags), 2)
    assert set(bag_metrics(model, bags, y)) == set(METRIC_NAMES)


@pytest.mark.parametrize("name", MODELS)
def test_a_name_means_the_class_with_its_own_defaults(name):
    model = make_model(name)
    assert model.get_params() == type(model)().get_params()


def test_registry_takes_parameters_and_refuses_unknown_ones():
    assert make_model("single-instance", bag_rule="noisy-or").bag_rule == "noisy-or"
    with pytest.raises(ValueError, match="has no parameter 'colour'"):
        make_model("statistics", colour=1)
    # A seed is for the models that draw; the others have nothing to do with it.
    assert make_model("auto", random_state=3).random_state == 3
    assert "random_state" not in make_model("statistics", random_state=3).get_params()
    assert {"auto", "vgpmil", "dpmil", "miles", "mio", "misvm", "micrf", "setkernel"} <= set(MODELS)
