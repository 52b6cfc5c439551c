"""What the page works on: a learner, a journal, and who was asked what. No web in here."""

from __future__ import annotations

import datetime
import threading
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit
from sklearn.metrics import log_loss, roc_auc_score

from bagwise.bags import Bags
from bagwise.core.arrays import Bools, Column, Ints
from bagwise.label.journal import ANSWERS, Answer, Journal, check_ids
from bagwise.label.learner import Learner, LearnerScores
from bagwise.label.neighbours import Neighbours
from bagwise.label.pictures import ArrayPictures, FolderPictures
from bagwise.label.strategies import STRATEGIES, suggest_for

_CODES = {"yes": 1, "no": 0, "skip": -1, "clear": -1}
# A question that a tab holds and has not answered is open to others after this time.
_HOLD = datetime.timedelta(minutes=10)


class ConflictError(ValueError):
    """The answer contradicts one that another tab gave, or the labels of the bags."""


class CurveBags(NamedTuple):
    """Labelled bags apart from those that are answered about, for the curve.

    Examples
    --------
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.label import CurveBags
    >>> bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> len(CurveBags(bags, y).bags)
    20
    """

    bags: Bags
    y: Column  # [B] classes of the model


class Session:
    """One labelling session.

    Parameters
    ----------
    learner : Learner
    journal : Journal
        Its answers are taken over, so that a session goes on where it stopped. Its names of the
        classes are those of the page.
    pictures : source of pictures or None, default=None
    test : CurveBags or None, default=None
        Held-out bags for the curve; by default the bags of the learner, each left out.
    strategy : str, default="information"
        See `suggest`.
    auto : int, default=10
        Learn by itself after so many answers; 0 does not.
    random_state : int, default=0

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from bagwise import VGPMIL
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.label import Journal, Learner, Session
    >>> data = make_gaussian_bags(n_bags=30, random_state=0)
    >>> learner = Learner(VGPMIL(n_inducing=20).fit(data.bags, data.y), data.bags, data.y)
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "labels.csv"
    >>> session = Session(learner, Journal(path, learner.classes))
    >>> question = session.queue("tab", 1)[0]
    >>> session.answer(question["row"], "yes", tab="tab", answer_id="1")["n_yes"]
    1
    """

    def __init__(
        self,
        learner: Learner,
        journal: Journal,
        *,
        pictures: ArrayPictures | FolderPictures | None = None,
        test: CurveBags | None = None,
        strategy: str = "information",
        auto: int = 10,
        random_state: int = 0,
    ) -> None:
        if strategy not in STRATEGIES:
            raise ValueError(f"strategy must be one of {list(STRATEGIES)}; got {strategy!r}.")
        check_ids(learner.bags.ids)
        self.journal, self.pictures, self.test = journal, pictures, test
        self.strategy, self.auto = strategy, auto
        self.bags = learner.bags
        self._learner = learner
        self._first = {str(name): i for i, name in enumerate(learner.bags.ids)}
        self._neighbours = Neighbours(learner.bags)
        self._rng = np.random.RandomState(random_state)
        self._lock = threading.RLock()
        self._held: dict[int, tuple[str, datetime.datetime]] = {}  # row: its tab, since when
        self._since_learning = 0
        self._progress: float | None = None
        self._error: str | None = None
        self._thread: threading.Thread | None = None
        self._scores: LearnerScores | None = None
        answered = {self.row(*place): answer for place, answer in journal.state.items()}
        if answered:
            learner.set_known(list(answered), [_CODES[answer] for answer in answered.values()])
            learner.learn()
        if not journal.curve or journal.curve[-1]["n"] != int((learner.known >= 0).sum()):
            self._add_point(learner)

    def row(self, bag: str, index: int) -> int:
        """Row of an instance in the bags."""
        i = self._first.get(bag)
        if i is None:
            raise ValueError(f"{self.journal.where}: there is no bag {bag!r} here.")
        if not 0 <= index < self.bags.sizes[i]:
            raise ValueError(
                f"{self.journal.where}: bag {bag!r} has instances 0 to {self.bags.sizes[i] - 1}; "
                f"got {index}."
            )
        return int(self.bags.offsets[i]) + index

    def place(self, row: int) -> tuple[str, int]:
        """Bag and index of a row."""
        if not 0 <= row < self.bags.n_instances:
            raise ValueError(f"instances have numbers 0 to {self.bags.n_instances - 1}; got {row}.")
        i = int(self.bags.bag_index[row])
        return str(self.bags.ids[i]), row - int(self.bags.offsets[i])

    # Answers.

    def answer(
        self, row: int, answer: str, *, tab: str = "", answer_id: str = "", replace: bool = False
    ) -> dict[str, object]:
        """Take an answer: checked, synced to disk, learned from; returns the state.

        The same ``answer_id`` is taken once. An instance that another tab has answered otherwise
        is a conflict, unless ``replace``.
        """
        if answer not in ANSWERS:
            raise ValueError(f"an answer is yes, no, skip or clear; got {answer!r}.")
        bag, index = self.place(row)
        with self._lock:
            if self.journal.has(answer_id):
                return self.state()
            before = self.journal.state.get((bag, index))
            if before in ("yes", "no") and before != answer and not replace:
                raise ConflictError(f"{bag}, instance {index}, was answered {before} already.")
            old = int(self._learner.known[row])
            code = _CODES[answer]
            try:
                self._learner.set_known([row], [code])
            except ValueError as error:
                raise ConflictError(str(error)) from error
            now = datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="milliseconds")
            try:
                self.journal.add(Answer(bag, index, answer, tab, answer_id, now))
            except BaseException:
                self._learner.set_known([row], [old])
                raise
            self._held.pop(row, None)
            if code != old:
                self._learner.answer([row], [code])
                self._scores = None
                self._since_learning += 1
            if self.auto and self._since_learning >= self.auto:
                self.start_learning()
            return self.state()

    def undo(self, tab: str) -> dict[str, object] | None:
        """Take the last answer of a tab back; returns its question, or None."""
        with self._lock:
            last = self.journal.last_of(tab)
            if last is None:
                return None
            row = self.row(last.bag, last.index)
            self.answer(row, "clear", tab=tab, replace=True)
            self._hold(row, tab)
            return self.cards(np.array([row]))[0]

    # Questions.

    def queue(self, tab: str, n: int = 5, keep: int | None = None) -> list[dict[str, object]]:
        """The next questions of a tab; another tab gets others. ``keep`` is on its screen."""
        with self._lock:
            # Questions that wait for too long are open again, and so are those of this tab, which
            # gets new ones, but the one that it shows.
            start = datetime.datetime.now(tz=datetime.UTC) - _HOLD
            self._held = {
                row: (owner, since)
                for row, (owner, since) in self._held.items()
                if since >= start and (owner != tab or row == keep)
            }
            skipped = [place for place, answer in self.journal.state.items() if answer == "skip"]
            closed = [*self._held, *(self.row(*place) for place in skipped)]
            rows = suggest_for(
                self._learner, n, self.strategy, closed=closed, random_state=self._rng
            )
            for row in rows:
                self._hold(int(row), tab)
            return self.cards(rows)

    def _hold(self, row: int, tab: str) -> None:
        self._held[row] = tab, datetime.datetime.now(tz=datetime.UTC)

    def scores(self) -> LearnerScores:
        """Probabilities under what is known now."""
        with self._lock:
            if self._scores is None:
                self._scores = self._learner.scores()
            return self._scores

    def cards(self, rows: Ints) -> list[dict[str, object]]:
        """What the page shows of some instances."""
        with self._lock:
            p, std = self._learner.instance_scores(rows)
            known = self._known_rows() if self.pictures is None else {}
        cards = []
        for k, row in enumerate(int(row) for row in rows):
            bag, index = self.place(row)
            card = {
                "row": row,
                "bag": bag,
                "bag_number": self._first[bag],
                "index": index,
                "p": round(float(p[k]), 4),
                "std": round(float(std[k]), 4),
                "answer": self.journal.state.get((bag, index)),
                "picture": self.pictures is not None,
            }
            if self.pictures is None:
                card["neighbours"] = self._neighbours.of(row, known)
            cards.append(card)
        return cards

    def _known_rows(self) -> dict[int, int]:
        """Labelled instances, and a few of negative bags, which are negative."""
        labelled = np.flatnonzero(self._learner.known >= 0)
        known = {int(row): int(self._learner.known[row]) for row in labelled}
        if self._learner.y is not None:
            negative = np.flatnonzero(np.repeat(self._learner.y == 0, self.bags.sizes))
            step = max(1, len(negative) // 200)
            known.update({int(row): 0 for row in negative[::step]})
        return known

    def fitted_model(self) -> Any:
        """The model with everything learned so far."""
        with self._lock:
            return self._learner.fitted_model()

    # Bags.

    def bag_list(self) -> list[dict[str, object]]:
        """All bags, those with most that is undecided first."""
        scores = self.scores()
        # 1 where the probability is one half, 0 where it is certain.
        undecided = 4 * scores.instance * (1 - scores.instance) * self._open_rows()
        rows: list[dict[str, Any]] = []
        for i in range(len(self.bags)):
            part = slice(int(self.bags.offsets[i]), int(self.bags.offsets[i + 1]))
            known = self._learner.known[part]
            rows.append(
                {
                    **self._summary(i),
                    "size": int(self.bags.sizes[i]),
                    "yes": int((known == 1).sum()),
                    "no": int((known == 0).sum()),
                    "undecided": round(float(undecided[part].sum()), 2),
                }
            )
        return sorted(rows, key=lambda row: -row["undecided"])

    def _open_rows(self) -> Bools:
        """Instances that are neither answered nor in a negative bag, [N]."""
        unknown = self._learner.known < 0
        y = self._learner.y
        return unknown if y is None else unknown & np.repeat(y == 1, self.bags.sizes)

    def _summary(self, i: int) -> dict[str, object]:
        """What the page shows of a bag in the list and beside a question."""
        scores, y = self.scores(), self._learner.y
        return {
            "number": i,
            "bag": str(self.bags.ids[i]),
            "label": None if y is None else self.journal.classes[int(y[i])],
            "p": round(float(scores.bag[i]), 4),
            "std": round(float(scores.bag_std[i]), 4),
        }

    def bag(self, number: int) -> dict[str, object]:
        """One bag with its instances."""
        if not 0 <= number < len(self.bags):
            raise ValueError(f"bags have numbers 0 to {len(self.bags) - 1}; got {number}.")
        scores = self.scores()
        part = slice(int(self.bags.offsets[number]), int(self.bags.offsets[number + 1]))
        coords = self.bags.columns.get("coords")
        size = self.bags.columns.get("patch_size")
        name = str(self.bags.ids[number])
        answers = [self.journal.state.get((name, k)) for k in range(int(self.bags.sizes[number]))]
        return {
            **self._summary(number),
            "first": part.start,
            "instance": np.round(scores.instance[part], 4).tolist(),
            "instance_std": np.round(scores.instance_std[part], 4).tolist(),
            "answers": answers,
            "xy": None if coords is None else np.asarray(coords)[part, :2].astype(float).tolist(),
            "patch": None if size is None else float(size[part.start]),
            "picture": self.pictures is not None,
        }

    # Learning.

    def start_learning(self) -> bool:
        """Begin to learn in the background, unless that is under way."""
        with self._lock:
            if self._progress is not None:
                return False
            self._progress, self._error, self._since_learning = 0.0, None, 0
            self._thread = threading.Thread(target=self._learn, daemon=True)
            self._thread.start()
            return True

    def wait(self) -> None:
        """Wait until learning has ended."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _learn(self) -> None:
        """Learn on a copy, so that answers are taken meanwhile; they are put in at the end."""
        try:
            with self._lock:
                work = self._learner.copy()
            work.learn(self._tell)
            with self._lock:
                late = np.flatnonzero(work.known != self._learner.known)
                if len(late):
                    work.answer(late.tolist(), self._learner.known[late].tolist())
                self._learner, self._scores = work, None
                self._add_point(work)
        except (ValueError, np.linalg.LinAlgError, OSError) as error:
            self._error = str(error)
        finally:
            self._progress = None

    def _tell(self, share: float) -> None:
        self._progress = min(0.99, share)

    def _add_point(self, learner: Learner) -> None:
        """Held-out figures after a round, on disk."""
        point: dict[str, object] = {"n": int((learner.known >= 0).sum())}
        if self.test is None:
            out_of_fold = learner.out_of_fold()
            y, p, source = out_of_fold.y, expit(out_of_fold.log_odds), out_of_fold.source
        else:
            model = learner.fitted_model()
            y = (np.asarray(self.test.y) == learner.classes[1]).astype(int)
            p = model.predict_proba(self.test.bags)[:, 1]
            source = f"{len(y)} bags apart"
            truth = self.test.bags.instance_labels
            if truth is not None and len(np.unique(truth)) == 2:
                q = model.predict_proba_instances(self.test.bags)[:, 1]
                positive = np.asarray(truth) == np.max(truth)
                point["instance_auc"] = round(float(roc_auc_score(positive, q)), 4)
        point["source"] = source
        if len(np.unique(y)) == 2:
            point["auc"] = round(float(roc_auc_score(y, p)), 4)
            point["log_loss"] = round(float(log_loss(y, np.clip(p, 1e-12, 1 - 1e-12))), 4)
        self.journal.add_curve(point)

    def state(self) -> dict[str, object]:
        """Counts, progress and the curve."""
        with self._lock:
            answers = list(self.journal.state.values())
            return {
                "classes": self.journal.classes,
                "out": self.journal.path.name,
                "n_yes": answers.count("yes"),
                "n_no": answers.count("no"),
                "n_skip": answers.count("skip"),
                "n_open": int(self._open_rows().sum()) - answers.count("skip"),
                "n_bags": len(self.bags),
                "n_instances": self.bags.n_instances,
                "auto": self.auto,
                "since": self._since_learning,
                "learning": self._progress,
                "error": self._error,
                "strategy": self.strategy,
                "curve": self.journal.curve,
            }
