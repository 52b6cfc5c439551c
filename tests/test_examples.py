"""Every gallery example runs from start to end."""

from __future__ import annotations

import runpy
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("plot_*.py"))


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    """An example may write files where it runs, and leaves figures open for the gallery."""
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("Agg")
    yield
    plt.close("all")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs(path, empty_folder):
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # a reader sees them; they stop nothing
        runpy.run_path(str(path), run_name="__main__")
