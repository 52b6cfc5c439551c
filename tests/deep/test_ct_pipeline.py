"""From a folder of DICOM slices to a page and a picture with slices and their uncertainty."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from bagwise import GVGPMIL, make_pipeline
from bagwise.datasets import make_ct_folder
from bagwise.report.html import Report, write_report
from bagwise.report.predictions import predict_tables
from bagwise.vision import label_slices, read_scans

pytest.importorskip("pydicom", reason="the vision extra is missing")
pytest.importorskip("torch", reason="the torch extra is missing")
pytest.importorskip("safetensors", reason="the torch extra is missing")
plt = pytest.importorskip("matplotlib.pyplot", reason="the plots need matplotlib")

from bagwise.deep import AttentionFeatures  # noqa: E402
from bagwise.report import BagImagesDisplay  # noqa: E402


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    root = tmp_path_factory.mktemp("scans")
    truth = make_ct_folder(root, n_scans=30, n_slices=(4, 7), size=16, contrast=60, random_state=0)
    bags = read_scans(root)
    return bags, *label_slices(bags, truth.slice_labels)


@pytest.fixture(scope="module")
def fitted(scans):
    bags, y, _ = scans
    features = AttentionFeatures(
        n_features=8,
        learning_rate=3e-3,
        batch_size=4,
        max_epochs=15,
        validation_fraction=0.0,
        random_state=0,
    )
    return make_pipeline(features, GVGPMIL(n_inducing=20, random_state=0)).fit(bags, y)


def test_lesions_are_found_from_scan_labels(scans, fitted):
    bags, y, slices = scans
    p, std = fitted.predict_proba(bags, return_std=True)
    q, slice_std = fitted.predict_proba_instances(bags, return_std=True)
    assert roc_auc_score(y, p[:, 1]) > 0.9
    assert roc_auc_score(slices, q[:, 1]) > 0.9
    assert std.shape == (len(bags),)
    assert slice_std.shape == (bags.n_instances,)
    assert (slice_std >= 0).all()


def test_report_shows_the_slices(scans, fitted, tmp_path):
    bags, y, _ = scans
    shown = bags.with_columns(images=np.moveaxis(bags.instances, 1, -1))
    report = Report(predict_tables(fitted, shown), shown, {"model": "G-VGPMIL"}, truth=y)
    page = write_report(report, tmp_path / "scans.html").read_text(encoding="utf-8")
    assert '"channels":3' in page
    assert all(name in page for name in bags.ids)


def test_figure_frames_the_true_slices(scans, fitted):
    bags, y, slices = scans
    scan = int(np.flatnonzero(y)[0])
    mine = slice(int(bags.offsets[scan]), int(bags.offsets[scan + 1]))
    q, std = fitted.predict_proba_instances(bags[scan : scan + 1], return_std=True)
    display = BagImagesDisplay(bags.instances[mine, 0], q[:, 1], std, truth=slices[mine]).plot()
    widths = [axes.spines["left"].get_linewidth() for axes in display.axes_]
    np.testing.assert_array_equal(np.array(widths) > 1, slices[mine] == 1)
    assert display.axes_[0].get_title() == f"{q[0, 1]:.2f} ± {std[0]:.2f}"
    plt.close(display.figure_)
