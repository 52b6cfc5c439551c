"""How often the bytes of a folder are read, by what the system counts."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

from bagwise.cli import main
from bagwise.files import read_bags, reading
from bagwise.models import levels

N_BAGS, SIZE, WIDTH = 8, 1000, 400
COUNTER = Path("/proc/self/io")

pytestmark = pytest.mark.skipif(not COUNTER.exists(), reason="needs Linux's counters of bytes read")


def bytes_read() -> int:
    line = COUNTER.read_text(encoding="ascii").splitlines()[0]
    return int(line.removeprefix("rchar: "))


def write(folder: Path, n_bags: int, size: int, **how) -> float:
    """Bags of which every second one has a few rows that are moved; their bytes on disk."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for i in range(n_bags):
        X = rng.normal(size=(size, WIDTH)).astype(np.float32)
        X[: i % 2 * 20, :20] += 2
        with h5py.File(folder / f"b{i}.h5", "w") as file:
            file.create_dataset("features", data=X, **how)
    return sum(file.stat().st_size for file in folder.iterdir())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model file, made by the commands, which have then imported all that they need."""
    place = tmp_path_factory.mktemp("model")
    write(place / "bags", N_BAGS, 20)
    lines = [f"b{i},{i % 2}" for i in range(N_BAGS)]
    (place / "labels.csv").write_text("\n".join(["slide_id,label", *lines]), encoding="utf-8")
    fit = ["fit", "--model", "vgpmil", "--set", "n_inducing=5", "--set", "max_iter=2"]
    fit += [
        "--bags",
        place / "bags",
        "--labels",
        place / "labels.csv",
        "--out",
        place / "m.bagwise",
    ]
    assert main([str(word) for word in fit]) == 0
    predict(place / "m.bagwise", place / "bags", place / "out")
    return place / "m.bagwise"


def predict(model: Path, bags: Path, out: Path, *options) -> int:
    """Bytes that ``bagwise predict`` reads."""
    before = bytes_read()
    assert main(["predict", str(model), "--bags", str(bags), "--out", str(out), *options]) == 0
    return bytes_read() - before


@pytest.mark.parametrize("how", [{}, {"chunks": (20, WIDTH), "compression": "gzip"}], ids=str)
@pytest.mark.parametrize("level", ["bag", "patient"])
def test_predicting_reads_what_fits_memory_once_and_else_twice(
    level, how, model, tmp_path, monkeypatch
):
    size, options = write(tmp_path / "bags", N_BAGS, SIZE, **how), []
    if level == "patient":  # two bags each, which are not neighbours
        lines = ["slide_id,patient_id", *(f"b{i},p{i % 4}" for i in range(N_BAGS))]
        (tmp_path / "patients.csv").write_text("\n".join(lines), encoding="utf-8")
        options = ["--level", "patient", "--patients", str(tmp_path / "patients.csv")]
        monkeypatch.setattr(levels, "_MOST_NUMBERS", 3 * SIZE * WIDTH)
    assert predict(model, tmp_path / "bags", tmp_path / "first", *options) <= 1.2 * size
    monkeypatch.setattr(reading, "_IN_MEMORY", 0)
    assert predict(model, tmp_path / "bags", tmp_path / "second", *options) <= 2.1 * size
    tables = (tmp_path / out / "instances.parquet" for out in ("first", "second"))
    first, second = map(pd.read_parquet, tables)
    pd.testing.assert_frame_equal(first, second, rtol=1e-6)


def test_rows_are_in_memory_once_and_read_once(tmp_path, monkeypatch):
    size = write(tmp_path / "bags", N_BAGS, SIZE)
    before = bytes_read()
    bags = read_bags(tmp_path / "bags")
    assert bytes_read() - before <= 1.05 * size
    monkeypatch.setattr(reading, "_IN_MEMORY", bags.instances.nbytes - 1)
    on_disk = read_bags(tmp_path / "bags")
    assert type(on_disk.instances).__name__ == "LazyRows"
    np.testing.assert_array_equal(on_disk.instances[:], bags.instances)
