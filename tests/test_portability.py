"""What Windows and macOS lack is simulated: missing calls, the spawn start method, encodings."""

from __future__ import annotations

import builtins
import multiprocessing
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import psutil
import pytest

from bagwise import VGPMIL, Bags
from bagwise.datasets import make_gaussian_bags
from bagwise.evaluate.measure import Measure
from bagwise.files import map_rows_of, read_bags
from bagwise.label.journal import Answer, Journal
from bagwise.models.execution import free_memory
from tests.filing import make_folder

SOURCES = Path(__file__).parents[1] / "src"


@pytest.fixture
def without_posix(monkeypatch):
    """Take away what POSIX systems have and others may not."""
    for name in ("preadv", "pread", "sysconf", "sysconf_names", "fork"):
        monkeypatch.delattr(os, name, raising=False)
    importing = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name in ("fcntl", "resource", "pwd", "termios"):
            raise ImportError(f"No module named {name!r}")
        return importing(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_free_memory_without_sysconf(without_posix):
    assert 0 < free_memory() <= psutil.virtual_memory().total


def test_rows_are_read_without_preadv(without_posix, tmp_path, rng):
    X = rng.normal(size=(50, 3))
    np.save(tmp_path / "rows.npy", X)
    rows = map_rows_of(np.load(tmp_path / "rows.npy", mmap_mode="r"))
    assert np.array_equal(rows[10:20], X[10:20])
    assert np.array_equal(rows[[40, 3, 3]], X[[40, 3, 3]])


def test_fit_from_disk_without_posix(without_posix, tmp_path):
    made = make_gaussian_bags(n_bags=20, random_state=0)
    np.save(tmp_path / "rows.npy", made.bags.instances)
    on_disk = Bags(np.load(tmp_path / "rows.npy", mmap_mode="r"), made.bags.offsets)
    model = VGPMIL(n_inducing=10, max_iter=3, tol=0, random_state=0)
    scores = [model.fit(bags, made.y).decision_function(made.bags) for bags in (on_disk, made.bags)]
    np.testing.assert_allclose(*scores)


def test_peak_memory_is_measured_without_resource(without_posix, monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda self: False)  # no /proc either
    monkeypatch.setattr(sys, "platform", "win32")
    with Measure() as measured:
        block = np.ones(1 << 20)
    assert block.sum() > 0
    assert np.isfinite(measured.peak_mb)


def test_a_journal_is_locked_without_fcntl(without_posix, monkeypatch, tmp_path):
    taken = set()

    def locking(descriptor, mode, n_bytes):
        place = (os.fstat(descriptor).st_ino, os.lseek(descriptor, 0, os.SEEK_CUR))
        if place in taken:
            raise OSError("locked")
        taken.add(place)

    windows = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
    monkeypatch.setitem(sys.modules, "msvcrt", windows)
    with Journal(tmp_path / "labels.csv", ["no", "yes"]) as journal:
        journal.add(Answer("bag", 0, "yes"))
        with pytest.raises(ValueError, match="another bagwise label"):
            Journal(tmp_path / "labels.csv", ["no", "yes"])
    assert (tmp_path / "labels.csv").exists()


def scores_of_files(folder):
    """Fit and score in another process; at module level, so that spawn can import it."""
    bags = read_bags(folder)
    y = np.arange(len(bags)) % 2
    model = VGPMIL(n_inducing=5, max_iter=3, tol=0, random_state=0)
    return model.fit(bags, y).decision_function(bags)


def test_bags_of_files_under_spawn(tmp_path):
    folder, _ = make_folder(tmp_path)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        spawned = pool.apply(scores_of_files, (folder,))
    np.testing.assert_allclose(spawned, scores_of_files(folder))


def test_import_is_quick():
    code = "import time; t = time.process_time(); import bagwise; print(time.process_time() - t)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
    )
    assert float(done.stdout) < 0.15


def test_files_are_opened_with_an_encoding(tmp_path):
    """Text must be read as UTF-8 on systems whose default is another encoding."""
    labels = tmp_path / "labels.csv"
    labels.write_text("slide_id,label\nMüller_α,1\n", encoding="utf-8")
    code = (
        "import sys; from bagwise.files import read_labels; "
        "print(ascii(read_labels(sys.argv[1]).ids[0]))"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-X", "warn_default_encoding"),
            *("-W", "error::EncodingWarning:bagwise", "-c", code, str(labels)),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCES), "PYTHONUTF8": "0", "LC_ALL": "C"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ascii("Müller_α") in done.stdout
