"""Two tabs, undo, restart, learning in the background."""

from __future__ import annotations

import numpy as np
import pytest

from bagwise import Bags
from bagwise.label import CurveBags, Journal, Learner, Session
from bagwise.label.session import ConflictError


def positive_row(session):
    return session.queue("somebody", 1)[0]["row"]


def learned(session):
    """How many instances the learner takes for positive, and for negative."""
    bags = session.bag_list()
    return sum(bag["yes"] for bag in bags), sum(bag["no"] for bag in bags)


def test_two_tabs_get_different_questions(session):
    first = {card["row"] for card in session.queue("one", 4)}
    second = {card["row"] for card in session.queue("two", 4)}
    assert len(first) == len(second) == 4
    assert not first & second


def test_a_tab_keeps_what_is_on_its_screen(session):
    shown = session.queue("one", 2)[0]["row"]
    new = {card["row"] for card in session.queue("one", 3, keep=shown)}
    other = {card["row"] for card in session.queue("two", 20)}
    assert shown not in new
    assert shown not in other


def test_two_tabs_do_not_overwrite_each_other(session):
    row = positive_row(session)
    session.answer(row, "yes", tab="one", answer_id="1")
    with pytest.raises(ConflictError, match="was answered yes already"):
        session.answer(row, "no", tab="two", answer_id="2")
    assert session.journal.state[session.place(row)] == "yes"
    session.answer(row, "no", tab="two", answer_id="3", replace=True)
    assert session.journal.state[session.place(row)] == "no"


def test_an_answer_sent_twice_counts_once(session):
    row = positive_row(session)
    session.answer(row, "yes", answer_id="same")
    session.answer(row, "yes", answer_id="same")
    assert len(session.journal.history) == 1


def test_undo_takes_back_the_tabs_own_answer(session):
    one, two = (card["row"] for card in session.queue("one", 2))
    session.answer(one, "yes", tab="one", answer_id="1")
    session.answer(two, "no", tab="two", answer_id="2")
    assert session.undo("one")["row"] == one
    assert session.undo("one") is None
    assert session.journal.state == {session.place(two): "no"}
    assert learned(session) == (0, 1)


def test_what_contradicts_the_labels_of_bags_is_refused_and_not_written(session, data):
    bags, y, _ = data
    negative = int(bags.offsets[np.flatnonzero(y == 0)[0]])
    with pytest.raises(ConflictError, match="none of its"):
        session.answer(negative, "yes")
    i = int(np.flatnonzero(y == 1)[0])
    rows = range(int(bags.offsets[i]), int(bags.offsets[i + 1]))
    for row in rows[:-1]:
        session.answer(row, "no")
    with pytest.raises(ConflictError, match="not every"):
        session.answer(rows[-1], "no")
    assert len(session.journal.history) == len(rows) - 1
    assert learned(session) == (0, len(rows) - 1)


def test_nothing_is_left_to_ask(session):
    for _ in range(session.bags.n_instances):
        cards = session.queue("tab", 5)
        if not cards:
            break
        for card in cards:
            session.answer(card["row"], "skip")
    assert session.queue("tab") == [] and session.state()["n_open"] == 0


def test_names_that_labels_cannot_hold_are_refused_at_the_start(model, data, tmp_path):
    bags, y, _ = data
    odd = Bags(bags.instances, bags.offsets, ["\udcff", *bags.ids[1:]])
    learner = Learner(model, odd, y)
    with (
        Journal(tmp_path / "labels.csv", learner.classes) as journal,
        pytest.raises(ValueError, match="has a name that is not UTF-8 text"),
    ):
        Session(learner, journal)


def test_a_full_disk_is_said_and_the_label_is_not_kept(session, monkeypatch):
    row = positive_row(session)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(session.journal, "add", full)
    with pytest.raises(OSError, match="No space left"):
        session.answer(row, "yes")
    assert learned(session) == (0, 0)


def test_a_new_session_goes_on(model, data, tmp_path):
    bags, y, truth = data
    path = tmp_path / "labels.csv"
    with Journal(path, model.classes_) as journal:
        session = Session(Learner(model, bags, y), journal, auto=0)
        for card in session.queue("t", 6):
            session.answer(card["row"], "yes" if truth[card["row"]] else "no", tab="t")
        skipped = session.queue("t", 1)[0]["row"]
        session.answer(skipped, "skip", tab="t")
        session.start_learning()
        session.wait()
        scores, curve = session.scores(), session.state()["curve"]
    with Journal(path, model.classes_) as journal:
        again = Session(Learner(model, bags, y), journal, auto=0)
        state = again.state()
        assert (state["n_yes"] + state["n_no"], state["n_skip"]) == (6, 1)
        assert state["curve"] == curve and [p["n"] for p in curve] == [0, 6]
        # The order of the answers does not matter to where the sweeps end.
        np.testing.assert_allclose(again.scores().instance, scores.instance, atol=0.02)
        asked = {card["row"] for card in again.queue("t", 100)}
        assert skipped not in asked


def test_answers_during_learning_are_kept(session, monkeypatch):
    one, two = (card["row"] for card in session.queue("t", 2))
    session.answer(one, "yes")
    learn = Learner.learn

    def slow(self, progress=None):
        learn(self, progress)
        session.answer(two, "no", answer_id="once")

    monkeypatch.setattr(Learner, "learn", slow)
    session.start_learning()
    session.wait()
    assert learned(session) == (1, 1)
    assert session.state()["error"] is None
    assert session.state()["learning"] is None


def test_learns_by_itself_after_k_answers(session):
    session.auto = 3
    for card in session.queue("t", 3):
        session.answer(card["row"], "yes")
    session.wait()
    assert [point["n"] for point in session.state()["curve"]] == [0, 3]


def test_curve_on_bags_apart_has_instance_auc(model, data, tmp_path):
    bags, y, truth = data
    apart = CurveBags(bags.with_columns(instance_labels=truth), y)
    with Journal(tmp_path / "labels.csv", model.classes_) as journal:
        session = Session(Learner(model, bags, y), journal, test=apart)
        (point,) = session.state()["curve"]
    assert point["source"] == "30 bags apart"
    assert {"auc", "log_loss", "instance_auc"} <= set(point)


def test_bags_are_sorted_by_what_is_undecided(session, data):
    rows = session.bag_list()
    undecided = [row["undecided"] for row in rows]
    assert undecided == sorted(undecided, reverse=True)
    negative = {i for i in range(len(data[1])) if data[1][i] == 0}
    assert all(row["undecided"] == 0 for row in rows if row["number"] in negative)


def test_neighbours_are_the_nearest_of_all(session, data):
    bags = data[0]
    X = bags.instances
    width = X.std(axis=0)
    row = positive_row(session)
    answered = session.queue("t", 1)[0]["row"]
    session.answer(answered, "yes")
    nearest = session.cards(np.array([row]))[0]["neighbours"]
    assert (nearest["yes"]["bag"], nearest["yes"]["index"]) == session.place(answered)
    no = np.flatnonzero(np.repeat(data[1] == 0, bags.sizes))  # those of negative bags
    best = min(no.tolist(), key=lambda r: np.mean(((X[row] - X[r]) / width) ** 2))
    assert (nearest["no"]["bag"], nearest["no"]["index"]) == session.place(best)
    top = np.argmax(np.abs(X[row] - X[best]) / width)
    assert nearest["no"]["features"][0]["name"] == f"feature {top}"
