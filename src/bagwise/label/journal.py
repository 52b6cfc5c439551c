"""Answers on disk: an append-only journal that is synced before anyone is told, and labels.csv.

The journal (``labels.csv.journal``, one JSON object a line) is the truth; ``labels.csv`` is made
from it, whole or not at all, and is what ``bagwise fit --instance-labels`` reads.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bagwise.core.arrays import Column
from bagwise.files import new_file
from bagwise.files.problems import bad_file
from bagwise.files.tables import named_columns, read_frame

FORMAT = "bagwise-labels"
ANSWERS = ("yes", "no", "skip", "clear")
_COLUMNS = ("slide_id", "index", "label")


@dataclass(frozen=True)
class Answer:
    """What was said about an instance; ``clear`` takes an earlier answer back.

    Examples
    --------
    >>> from bagwise.label import Answer
    >>> Answer("bag_001", 4, "yes").answer
    'yes'
    """

    bag: str
    index: int
    answer: str
    tab: str = ""
    id: str = ""
    time: str = ""


def check_ids(ids: Iterable[object]) -> None:
    """Refuse names of bags that labels.csv, which is UTF-8, cannot hold."""
    for name in ids:
        try:
            str(name).encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"bag {name!r} has a name that is not UTF-8 text, which labels.csv cannot hold; "
                "rename its file."
            ) from error


class Journal:
    """The answers of one labels.csv.

    Parameters
    ----------
    path : path
        Where ``labels.csv`` is, or will be; the journal lies beside it.
    classes : (str, str)
        Names of the negative and the positive class, as they stand in ``labels.csv``.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from bagwise.label import Answer, Journal
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "labels.csv"
    >>> with Journal(path, ("none", "nine")) as journal:
    ...     _ = journal.add(Answer("bag_001", 4, "yes"))
    >>> path.read_text().splitlines()
    ['slide_id,index,label', 'bag_001,4,nine']
    """

    def __init__(self, path: str | Path, classes: Sequence[object] | Column) -> None:
        self.path = Path(path)
        self.classes = [str(c) for c in classes]
        self.where = self.path.with_name(self.path.name + ".journal")
        self.history: list[Answer] = []
        self.curve: list[dict[str, object]] = []
        self.state: dict[tuple[str, int], str] = {}
        self._ids: set[str] = set()
        if self.path.is_dir():
            raise bad_file(self.path, "is a folder; a file is to be written there")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: what a full disk refused must not be written later.
        self._file = self.where.open("a+b", buffering=0)
        try:
            _lock(self._file, self.where)
            self._read()
            self._adopt()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _read(self) -> None:
        self._file.seek(0)
        content = self._file.read()
        # A line without its end was cut off while it was written: nobody was told about it.
        self._length = content.rfind(b"\n") + 1
        self._file.truncate(self._length)
        # JSON ends a line with \n alone; str.splitlines also ends it inside of some names.
        lines = content[: self._length].split(b"\n")[:-1]
        if not lines:
            self._write({"format": FORMAT, "version": 1, "classes": self.classes})
            return
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line.decode("utf-8"))
            except (ValueError, RecursionError) as error:
                raise bad_file(self.where, f"line {number} is not JSON") from error
            if not isinstance(record, dict):
                raise bad_file(self.where, f"line {number} is not an object")
            self._take(record, number)

    def _take(self, record: dict[str, Any], number: int) -> None:
        if number == 1:
            if record.get("format") != FORMAT:
                raise bad_file(self.where, "is not a journal of bagwise label")
            if record.get("classes") != self.classes:
                what = f"was made for the classes {record.get('classes')}, not {self.classes}"
                raise bad_file(self.where, what)
        elif "curve" in record:
            if not isinstance(record["curve"], dict) or "n" not in record["curve"]:
                raise bad_file(self.where, f"line {number} is not a point of the curve")
            self.curve.append(record["curve"])
        else:
            answer = _answer(record)
            if answer is None:
                raise bad_file(self.where, f"line {number} is not an answer")
            if answer.answer not in ANSWERS:
                raise bad_file(self.where, f"line {number} has the answer {answer.answer!r}")
            self._remember(answer)

    def _remember(self, answer: Answer) -> None:
        self.history.append(answer)
        self._ids.add(answer.id)
        key = answer.bag, answer.index
        if answer.answer == "clear":
            self.state.pop(key, None)
        else:
            self.state[key] = answer.answer

    def _adopt(self) -> None:
        """Rows of a labels.csv that the journal never wrote are answers, too: made elsewhere."""
        if not self.path.exists() or self.path.stat().st_size == 0:
            return
        frame = named_columns(read_frame(self.path), str(self.path), list(_COLUMNS))
        earlier = {(a.bag, a.index, a.answer) for a in self.history}
        rows = frame[list(_COLUMNS)].astype(str).itertuples(index=False, name=None)
        for line, (bag, index, label) in enumerate(rows, start=2):
            if label not in self.classes or not index.isdecimal():
                what = f"line {line}: needs an index and one of the labels {self.classes}"
                raise bad_file(self.path, what)
            answer = "yes" if label == self.classes[1] else "no"
            if (bag, int(index), answer) not in earlier:
                self.add(Answer(bag, int(index), answer, tab="file"), table=False)

    def _write(self, record: Mapping[str, object]) -> None:
        text = json.dumps(record, separators=(",", ":"), allow_nan=False)
        line = memoryview(text.encode("ascii") + b"\n")
        whole = self._length + len(line)
        self._file.truncate(self._length)  # what an earlier error may have left
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except BaseException as error:
            self._cut(self._length)
            if isinstance(error, OSError):
                raise OSError(error.errno, error.strerror, str(self.where)) from error
            raise
        self._length = whole

    def _cut(self, length: int) -> None:
        """Take back what was written beyond a length."""
        self._length = length
        self._file.truncate(length)
        os.fsync(self._file.fileno())

    def has(self, answer_id: str) -> bool:
        """Whether an answer with this id is on disk already: a browser may send one twice."""
        return bool(answer_id) and answer_id in self._ids

    def add(self, answer: Answer, table: bool = True) -> Answer:
        """Put an answer on disk: it is synced when this returns, and not there when it raises."""
        if answer.answer not in ANSWERS:
            raise ValueError(f"an answer is one of {list(ANSWERS)}; got {answer.answer!r}.")
        check_ids([answer.bag])
        before = self._length
        self._write({k: v for k, v in asdict(answer).items() if v != "" or k == "bag"})
        self._remember(answer)
        if table:
            try:
                self.write_table()
            except BaseException:  # taken back: nobody was told about it
                history = self.history[:-1]
                self.history, self.state, self._ids = [], {}, set()
                for earlier in history:
                    self._remember(earlier)
                self._cut(before)
                raise
        return answer

    def add_new(self, answers: Iterable[Answer]) -> int:
        """Add those answers that do not stand already; returns how many."""
        new = 0
        for answer in answers:
            if self.state.get((answer.bag, answer.index)) != answer.answer:
                self.add(answer, table=False)
                new += 1
        self.write_table()
        return new

    def add_curve(self, point: dict[str, object]) -> None:
        """Put a point of the learning curve on disk."""
        self._write({"curve": point})
        self.curve.append(point)

    def last_of(self, tab: str) -> Answer | None:
        """The last answer of a tab that was not taken back, and still stands."""
        taken_back = 0
        for answer in reversed(self.history):
            if answer.tab != tab:
                continue
            if answer.answer == "clear":
                taken_back += 1
            elif taken_back:
                taken_back -= 1
            elif self.state.get((answer.bag, answer.index)) == answer.answer:
                return answer
        return None

    def write_table(self) -> None:
        """Write labels.csv from what stands, whole or not at all; skipped ones are left out."""
        label = {"no": self.classes[0], "yes": self.classes[1]}
        # The csv module quotes \n, its own line end, but not \r, which readers take for one, too.
        names = *self.classes, *(bag for bag, _ in self.state)
        returns = any("\r" in name for name in names)
        with new_file(self.path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(
                file,
                lineterminator="\n",
                quoting=csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL,
            )
            rows.writerow(_COLUMNS)
            for (bag, index), answer in self.state.items():
                if answer in label:
                    rows.writerow([bag, index, label[answer]])


def _answer(record: dict[str, Any]) -> Answer | None:
    """The answer that a line of the journal holds; None where it holds something else."""
    try:
        answer = Answer(**{"bag": "", **record})  # 0.2 left an empty name out
    except TypeError:
        return None
    typed = all(
        type(getattr(answer, field.name)).__name__ == field.type for field in fields(Answer)
    )
    return answer if typed else None


def _lock(file: Any, path: Path) -> None:
    """One process at a time: a second server on the same file would not see our answers."""
    try:
        try:
            import fcntl
        except ImportError:  # Windows: one byte far behind the end, so that no read waits for it
            import msvcrt

            place = file.tell()
            file.seek(1 << 40)
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
            finally:
                file.seek(place)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        what = "another bagwise label is writing it; close that one first"
        raise bad_file(path, what) from error
