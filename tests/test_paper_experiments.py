"""Experiments of the papers' sweeps and grids: their choices, and that quick modes run."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from experiments import (
    annealed_svm,
    barrett,
    comparators,
    margin_sweep,
    micrf,
    psi_vgpmil,
    psi_vgpmil_mnist,
    vgpmil_kpca,
)
from experiments._tables import RESULT_COLUMNS

from bagwise.datasets import data_home, load_digit_bags


def test_best_threshold_equals_trying_all():
    pytest.importorskip("torch")
    from experiments.attention_oracle import best_threshold_accuracy

    rng = np.random.default_rng(0)
    for _ in range(20):
        y, p = rng.integers(0, 2, 9), np.round(rng.random(9), 1)
        cuts = np.linspace(-0.05, 1.05, 23)
        expected = max(np.mean((p > cut) == (y == 1)) for cut in cuts)
        assert best_threshold_accuracy(y, p) == pytest.approx(expected)


def test_oracles_of_attention_networks_are_not_below_the_honest_figures(tmp_path):
    pytest.importorskip("torch")
    from experiments import attention_oracle as oracle

    table = oracle.run(quick=True, out=tmp_path).set_index("model")["mean"]
    value = {way: table[f"attention network, {way}"] for way in oracle.NOTES}
    assert value[oracle.LAST] <= value[oracle.BEST_EPOCH] <= value[oracle.BEST_BOTH]


def test_a_watched_network_is_seen_after_every_epoch():
    pytest.importorskip("torch")
    from experiments.attention_oracle import Watched

    from bagwise.deep import AttentionMIL

    bags, y = load_digit_bags(random_state=0, return_X_y=True)
    options = {"validation_fraction": 0.0, "patience": 9, "random_state": 0}
    after = Watched(max_epochs=3, **options).watch(bags[40:50], bags[:40], y[:40])
    for epoch in (1, 2, 3):
        stopped = AttentionMIL(max_epochs=epoch, **options).fit(bags[:40], y[:40])
        if np.argmin(stopped.validation_loss_history_) == epoch - 1:  # it keeps the best epoch
            expected = stopped.predict_proba(bags[40:50])[:, 1]
            np.testing.assert_allclose(after[epoch - 1], expected, atol=1e-6)
    assert after.shape == (3, 10)
    assert np.abs(after[0] - after[2]).max() > 1e-3


def test_the_grid_of_the_paper_runs(tmp_path):
    table = psi_vgpmil.run(quick=True, out=tmp_path)
    assert list(table.columns) == list(RESULT_COLUMNS)
    value = table[table["metric"] == "bag accuracy"].set_index("model")["mean"]
    for kind in psi_vgpmil.KINDS:
        name = f"G-VGPMIL, M = 50, {kind}"
        assert value[name] <= value[f"{name}, {psi_vgpmil.ON_TEST}"]


def test_the_margin_sweep_runs(tmp_path):
    table = margin_sweep.run(quick=True, out=tmp_path)
    assert len(table) == 8
    assert table["mean"].between(0, 1).all()
    assert {p.name for p in tmp_path.iterdir()} == {"margin_sweep.png", "instances_tsne.png"}


def test_newsgroups_after_kernel_pca(tmp_path):
    if not (data_home() / "newsgroups").is_dir():
        pytest.skip("the newsgroups are not in the data home")
    table = vgpmil_kpca.run(quick=True, out=tmp_path).set_index("model")["mean"]
    assert table[vgpmil_kpca.IN_FOLD] > 0.5
    assert table[vgpmil_kpca.OF_ALL] > 0.5


def test_the_field_of_bags_goes_on_where_it_was(tmp_path, monkeypatch):
    calls = []

    def accuracy(model, data, seed, n_folds):
        calls.append((model, seed))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return 50.0 + len(calls)

    monkeypatch.setattr(micrf, "accuracy", accuracy)
    with pytest.raises(KeyboardInterrupt):
        micrf.run(quick=True, out=tmp_path)
    table = micrf.run(quick=True, out=tmp_path)
    assert calls == [(micrf.QUICK[0], 0), (micrf.QUICK[1], 0), (micrf.QUICK[1], 0)]
    assert table["mean"].tolist() == [51.0, 53.0]


def test_a_search_on_the_test_folds_is_marked_as_an_oracle(tmp_path):
    row = comparators.search_row("APR", quick=True, out=tmp_path, n_jobs=1)
    assert row["model"] == "APR, settings by test folds"
    assert "not a result" in row["note"]
    tried = list(comparators.searched("PPMM", quick=False).values())
    assert len(tried) == 192
    assert tried[0].powers == (1.0,)


def test_the_papers_k_beside_the_default(tmp_path):
    pytest.importorskip("cv2")
    from experiments import tracking_k

    table = tracking_k.run(quick=True, out=tmp_path)
    assert table["model"].tolist() == list(tracking_k.MODELS)
    assert table["mean"].between(0, 50).all()


def test_new_large_bags_have_probabilities_beside_the_base_rate(tmp_path):
    from experiments import large_bags

    table = large_bags.run(quick=True, out=tmp_path)
    assert table["metric"].tolist() == large_bags.METRICS
    assert table["mean"].between(0, 1.5).all()


def test_another_classifier_learns_from_the_same_regions(tmp_path, data_home, monkeypatch):
    pytest.importorskip("cv2")
    from experiments import detection_ablation

    one = dict([*detection_ablation.SETTINGS.items()][:1])
    monkeypatch.setattr(detection_ablation, "SETTINGS", one)
    table = detection_ablation.run(quick=True, out=tmp_path)
    assert [name.split(",")[0] for name in table["model"][::2]] == [
        "VGPMIL (the detector's own)",
        "single-instance",
    ]
    assert table["metric"].tolist() == ["CorLoc", "AP"] * 2
    assert table["mean"].between(0, 1).all()
    assert len(pd.read_csv(tmp_path / "detection_ablation.csv")) == len(table)


def test_barretts_cancer_runs_on_a_file_of_its_layout(tmp_path):
    digits = load_digit_bags(random_state=0)
    bags, y = digits.bags[:40], digits.y[:40]
    arrays = {"X": bags.instances, "bag": bags.bag_index, "bag_label": y}
    np.savez(tmp_path / "barrett.npz", **arrays, instance_label=bags.instance_labels)
    loaded, labels = barrett.load(tmp_path / "barrett.npz")
    np.testing.assert_array_equal(loaded.offsets, bags.offsets)
    np.testing.assert_array_equal(labels, y)
    table = barrett.run(quick=True, out=tmp_path, path=tmp_path / "barrett.npz")
    assert list(table["model"].unique()) == [row for _, row in barrett.models()]
    value = table.set_index(["model", "metric"])["mean"]
    assert value["VGPMIL", "instance accuracy"] > 0.85
    assert table["published"].notna().all()
    steps = {row: model for (_, row), model in barrett.models().items()}
    assert steps["VGPMIL"][-1].n_inducing == 50
    assert steps["VGPMIL"][-1].inducing == "class-kmeans"
    with pytest.raises(FileNotFoundError, match="private"):
        barrett.load(tmp_path / "nothing.npz")


def test_annealed_weights_keep_the_bags_in_balance():
    offsets = np.array([0, 1, 4, 9])
    scores = np.random.default_rng(0).normal(size=9)
    key = annealed_svm.key_weights(scores, offsets, 0.01)
    np.testing.assert_allclose(np.add.reduceat(key, offsets[:-1]), 1.0)
    assert key[1:4].argmax() == scores[1:4].argmax()
    p = annealed_svm.label_weights(scores, offsets, 0.5, 0.4)
    np.testing.assert_allclose(np.add.reduceat(p, offsets[:-1]), [1.0, 1.2, 2.0], atol=1e-9)
    assert (np.argsort(p[4:]) == np.argsort(scores[4:])).all()
    # Hot weights know nothing of the scores.
    np.testing.assert_allclose(annealed_svm.key_weights(scores, offsets, 1e9)[4:], 0.2, atol=1e-6)


def test_psi_vgpmil_chooses_alpha_and_beta_on_validation_bags():
    made = [("a", 0, 0.9, 0.5), ("b", 0, 0.5, 0.9), ("a", 1, 0.5, 0.7), ("b", 1, 0.9, 0.8)]
    names = {"a": (0.5, 1.0), "b": (1.0, 4.0)}
    rows = [
        {"alpha": names[n][0], "beta": names[n][1], "split": split}
        | {"validation accuracy": watch, "bag accuracy": test}
        for n, split, watch, test in made
    ]
    fits = pd.DataFrame(rows)
    assert psi_vgpmil.pick(fits, "")["bag accuracy"].tolist() == [0.5, 0.8]
    assert psi_vgpmil.pick(fits, psi_vgpmil.ON_TEST)["bag accuracy"].tolist() == [0.9, 0.8]
    every = psi_vgpmil.cells("MUSK1", quick=False)
    assert len(every) == 2 * 3 * 5 * (1 + 6)
    choices = psi_vgpmil_mnist.first_cells(psi_vgpmil_mnist.SETS, 7000, quick=False)
    assert len(choices) == 2 * 6
    scored = pd.DataFrame(choices).assign(**{"validation accuracy": [*range(12)][::-1]})
    tables = psi_vgpmil_mnist.table_cells(scored, quick=False)
    assert len(tables) == 2 * 2 * 3 * (1 + 5)
    assert {(cell.alpha, cell.beta) for cell in tables} == {(None, None), psi_vgpmil.GRID[0]}
