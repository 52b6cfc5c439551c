"""Answers are on disk before anyone is told, survive a kill, and are written once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from bagwise.files import BadFilesError
from bagwise.label import Answer, Journal

CLASSES = ("none", "nine")


def test_round_trip_and_table(tmp_path):
    path = tmp_path / "labels.csv"
    with Journal(path, CLASSES) as journal:
        journal.add(Answer("a,b", 0, "yes"))
        journal.add(Answer('say "x"', 3, "no"))
        journal.add(Answer("c", 1, "skip"))
        journal.add(Answer("c", 2, "yes"))
        journal.add(Answer("c", 2, "clear"))
        state = dict(journal.state)
    assert path.read_text().splitlines() == [
        "slide_id,index,label",
        '"a,b",0,nine',
        '"say ""x""",3,none',
    ]
    with Journal(path, CLASSES) as again:
        assert again.state == state == {("a,b", 0): "yes", ('say "x"', 3): "no", ("c", 1): "skip"}


def test_synced_before_it_returns(tmp_path, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda n: (synced.append(n), real(n))[1])
    with Journal(tmp_path / "labels.csv", CLASSES) as journal:
        before = len(synced)
        journal.add(Answer("a", 0, "yes"))
        assert len(synced) == before + 1


def test_a_line_that_was_cut_off_is_dropped_and_written_over(tmp_path):
    path = tmp_path / "labels.csv"
    with Journal(path, CLASSES) as journal:
        journal.add(Answer("a", 0, "yes"))
    where = tmp_path / "labels.csv.journal"
    with where.open("ab") as file:
        file.write(b'{"bag":"a","index":1,"ans')
    with Journal(path, CLASSES) as journal:
        assert journal.state == {("a", 0): "yes"}
        journal.add(Answer("a", 2, "no"))
    assert [json.loads(line).get("index") for line in where.read_text().splitlines()] == [
        None,
        0,
        2,
    ]


def test_kill_in_the_middle_of_writing_loses_nothing_that_was_told(tmp_path):
    """A process that answers as fast as it can is killed; what it printed is all there."""
    code = (
        "import sys\n"
        "from bagwise.label import Answer, Journal\n"
        f"journal = Journal({str(tmp_path / 'labels.csv')!r}, {CLASSES!r})\n"
        "for i in range(10**6):\n"
        "    journal.add(Answer('a', i, 'yes'))\n"
        "    print(i, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    told = [process.stdout.readline() for _ in range(20)]
    time.sleep(0.05)
    process.kill()
    told += process.stdout.readlines()
    process.wait()
    told = [int(line) for line in told if line.endswith("\n")]
    with Journal(tmp_path / "labels.csv", CLASSES) as journal:
        assert {("a", i) for i in told} <= set(journal.state)
        assert len(journal.state) <= len(told) + 1


def test_one_writer_at_a_time(tmp_path):
    path = tmp_path / "labels.csv"
    with Journal(path, CLASSES), pytest.raises(BadFilesError, match="another bagwise label"):
        Journal(path, CLASSES)


def test_a_table_made_elsewhere_is_taken_over_once(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("slide_id,index,label\ns1,4,nine\ns1,5,none\n")
    with Journal(path, CLASSES) as journal:
        assert journal.state == {("s1", 4): "yes", ("s1", 5): "no"}
        journal.add(Answer("s1", 4, "clear"))
    # The table was cleared of that row; a stale copy of it does not bring the label back.
    path.write_text("slide_id,index,label\ns1,4,nine\ns1,5,none\n")
    with Journal(path, CLASSES) as journal:
        assert journal.state == {("s1", 5): "no"}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("slide_id,index,label\ns1,4,ten\n", "line 2: needs an index and one of the labels"),
        ("slide_id,index,label\ns1,x,nine\n", "line 2: needs an index"),
        ("a,b\n1,2\n", "slide_id"),
    ],
)
def test_a_bad_table_is_one_line(tmp_path, content, what):
    path = tmp_path / "labels.csv"
    path.write_text(content)
    with pytest.raises(BadFilesError, match=what) as error:
        Journal(path, CLASSES)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("nonsense", "line 2 is not JSON"),
        ("[1]", "line 2 is not an object"),
        ('{"bag":"a"}', "line 2 is not an answer"),
        ('{"bag":"a","index":0,"answer":"maybe"}', "has the answer 'maybe'"),
    ],
)
def test_a_bad_journal_is_one_line(tmp_path, line, what):
    path = tmp_path / "labels.csv"
    Journal(path, CLASSES).close()
    with (tmp_path / "labels.csv.journal").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(BadFilesError, match=what):
        Journal(path, CLASSES)


def test_classes_must_be_the_same(tmp_path):
    path = tmp_path / "labels.csv"
    Journal(path, CLASSES).close()
    with pytest.raises(BadFilesError, match="was made for the classes"):
        Journal(path, ("0", "1"))


def test_last_of_a_tab_is_its_own_and_stands(tmp_path):
    with Journal(tmp_path / "labels.csv", CLASSES) as journal:
        journal.add(Answer("a", 0, "yes", tab="one"))
        journal.add(Answer("a", 1, "no", tab="two"))
        journal.add(Answer("a", 2, "skip", tab="one"))
        assert journal.last_of("one").index == 2
        journal.add(Answer("a", 2, "clear", tab="one"))
        assert journal.last_of("one").index == 0
        journal.add(Answer("a", 0, "clear", tab="one"))
        assert journal.last_of("one") is None
        assert journal.last_of("two").index == 1
