"""Answers are on disk before anyone is told, survive a kill, and are written once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from bagwise import Bags
from bagwise.files import BadFilesError, read_instance_labels
from bagwise.files.problems import bad_file
from bagwise.label import Answer, Journal

CLASSES = ("none", "nine")
# Names that a reader of lines, of CSV or of JSON may take for something else.
ODD = [
    "\x85", "a\x85b", "\u2028", "a\u2029b", "\r", "a\rb", "a\nb", "a\r\nb", "\n", "", "a\x0bb",
    "a\x0cb", "a\x1cb", "a\x1eb", "a\0b", "a\tb", "a,b", 'say "x"', "'a", "NA", "null", "007",
    "1e5", "=1+1", "sep=;", "#a", "\ufeffa", "e\u0301", "\U0001f600",
]  # fmt: skip


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


@pytest.mark.parametrize("name", ODD)
def test_odd_names_are_opened_again(tmp_path, name):
    path = tmp_path / "labels.csv"
    with Journal(path, CLASSES) as journal:
        journal.add(Answer(name, 0, "yes"))
        journal.add(Answer("other", 1, "no"))
        state = dict(journal.state)
    assert (tmp_path / "labels.csv.journal").read_bytes().isascii()
    for _ in range(2):
        with Journal(path, CLASSES) as again:
            assert again.state == state == {(name, 0): "yes", ("other", 1): "no"}
            assert len(again.history) == 2  # the table was not taken for answers made elsewhere


@pytest.mark.parametrize("name", [name for name in ODD if name == name.strip()])
def test_odd_names_are_labels_for_fit(tmp_path, name):
    bags = Bags(np.ones((3, 2)), [0, 1, 3], [name, "other"])
    with Journal(tmp_path / "labels.csv", CLASSES) as journal:
        journal.add(Answer(name, 0, "yes"))
        journal.add(Answer("other", 1, "no"))
    labels = read_instance_labels(tmp_path / "labels.csv", bags)
    assert labels.tolist() == ["nine", None, "none"]


@pytest.mark.parametrize("name", ODD)
def test_journals_of_before_are_read(tmp_path, name):
    """Version 0.2 wrote names as they are, and left an empty one out."""
    bag = {"bag": name} if name else {}
    lines = {"format": "bagwise-labels", "version": 1, "classes": CLASSES}, {
        **bag, "index": 0, "answer": "yes"}  # fmt: skip
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (tmp_path / "labels.csv.journal").write_bytes(text.encode())
    with Journal(tmp_path / "labels.csv", CLASSES) as journal:
        assert journal.state == {(name, 0): "yes"}


def test_a_name_that_is_not_text_is_refused(tmp_path):
    """A file name of other bytes than UTF-8."""
    with Journal(tmp_path / "labels.csv", CLASSES) as journal:
        with pytest.raises(ValueError, match=r"bag '\\udcff' has a name that is not UTF-8"):
            journal.add(Answer("\udcff", 0, "yes"))
        assert journal.history == []
        journal.add(Answer("a", 0, "yes"))


LIMITED = """
import json, resource, sys
from bagwise.label import Answer, Journal
path, limit = sys.argv[1], int(sys.argv[2])
journal = Journal(path, {classes!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
told = {{True: [], False: []}}
for i in range(200):
    try:
        journal.add(Answer("a bag", i, "yes", id=str(i) * (1 + i % 7)))
    except (OSError, ValueError) as error:
        assert path in str(error), error
        told[False].append(i)
    else:
        told[True].append(i)
    if i == 150:  # somebody made room
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(json.dumps([told[True], told[False]]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
@pytest.mark.parametrize("limit", [100, 1000, 2000, 3001])
def test_a_full_disk_loses_nothing_told_and_keeps_nothing_refused(tmp_path, limit):
    path = str(tmp_path / "labels.csv")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED.format(classes=CLASSES), path, str(limit)],
        capture_output=True,
        text=True,
        check=True,
    )
    told, refused = json.loads(done.stdout)
    assert len(refused) > 50 and told[-49:] == list(range(151, 200))
    with Journal(path, CLASSES) as journal:
        assert set(journal.state) == {("a bag", i) for i in told}
        assert [a.index for a in journal.history] == told
    assert sorted(tmp_path.iterdir()) == [tmp_path / "labels.csv", tmp_path / "labels.csv.journal"]


def test_an_answer_without_its_table_is_refused_and_not_kept(tmp_path, monkeypatch):
    path = tmp_path / "labels.csv"
    with Journal(path, CLASSES) as journal:
        journal.add(Answer("a", 0, "yes", id="1"))
        with monkeypatch.context() as patch:
            patch.setattr("bagwise.label.journal.new_file", _full)
            with pytest.raises(BadFilesError, match="the disk is full"):
                journal.add(Answer("a", 0, "clear", id="2"))
        assert (journal.state, journal.has("2")) == ({("a", 0): "yes"}, False)
    with Journal(path, CLASSES) as journal:
        assert journal.state == {("a", 0): "yes"}


def _full(path):
    raise bad_file(path, "cannot be written: the disk is full")


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
        ("[" * 8000, "line 2 is not JSON"),
        ("\x00\x01", "line 2 is not JSON"),
        ('{"bag":"a"}', "line 2 is not an answer"),
        ('{"bag":[],"index":0,"answer":"yes"}', "line 2 is not an answer"),
        ('{"bag":"a","index":true,"answer":"yes"}', "line 2 is not an answer"),
        ('{"bag":"a","index":0.5,"answer":"yes"}', "line 2 is not an answer"),
        ('{"curve":1}', "line 2 is not a point of the curve"),
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
