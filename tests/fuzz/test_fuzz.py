"""A short run of the fuzzer, and proof that it sees what it looks for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="spoils .pt files")
pytest.importorskip("cv2", reason="spoils pictures")
pytest.importorskip("zarr", reason="spoils .zarr folders")
pytest.importorskip("openpyxl", reason="spoils .xlsx files")
if not Path("/proc/self/clear_refs").exists():
    pytest.skip("reads peak memory from /proc", allow_module_level=True)

import bagwise.cli
from tests.fuzz import runner
from tests.fuzz.__main__ import fuzz
from tests.fuzz.corpus import Case


def test_a_short_run_breaks_nothing(capsys):
    tally = fuzz(40, seed=7)
    tally.report()
    said = capsys.readouterr().out
    assert "40 cases in" in said
    assert tally.broken == [], said
    assert len(tally.kinds) > 10
    assert tally.ends["exit code 2"] > 10
    assert tally.ends["exit code 0"] > 3


FAULTS = {
    "traceback": lambda: 1 // 0,
    "unexpected error": lambda: 1,
    "exit code": lambda: 77,
    "silence": lambda: 2,
    "partial output": lambda: (Path("out").write_text("half"), print("no"), 2)[-1],
    "stray write": lambda: (Path("beside").write_text("x"), 0)[-1],
    "hang": lambda: (sum(range(10**8)), 0)[-1],
    "memory": lambda: len(bytearray(10**8)) * 0,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_seen(fault, tmp_path, monkeypatch):
    (tmp_path / "corpus").mkdir()
    monkeypatch.setattr(bagwise.cli, "main", lambda words: FAULTS[fault]())
    monkeypatch.setattr(runner, "SECONDS", 0.5)
    monkeypatch.setattr(runner, "PEAK", runner._peak() + 5 * 10**7)
    monkeypatch.setattr(runner.tempfile, "tempdir", None)
    assert runner._answer(Case("", ("fit",), {}), tmp_path, []).broken == fault


def test_writes_outside_the_place_are_seen(tmp_path):
    (tmp_path / "case").mkdir()
    stray: list[str] = []
    hook = runner._watch(tmp_path / "case", stray)
    hook("open", (str(tmp_path / "elsewhere"), "w", os.O_WRONLY | os.O_CREAT))
    hook("os.rename", (str(tmp_path / "case" / "a"), str(tmp_path / "b"), -1, -1))
    hook("open", (str(tmp_path / "case" / "fine"), "w", os.O_WRONLY | os.O_CREAT))
    hook("open", ("/etc/hostname", "r", os.O_RDONLY))
    assert stray == [f"open {tmp_path / 'elsewhere'}", f"os.rename {tmp_path / 'b'}"]
