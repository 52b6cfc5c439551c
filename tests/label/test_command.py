"""``bagwise label`` without its page: refusals, files of other tools, and the experiment."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from bagwise import VGPMIL, save
from bagwise.cli import main
from bagwise.files import read_bags
from tests.filing import arrays, make_folder

KILLS = 3  # of a server that two clients talk to


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    root = tmp_path_factory.mktemp("slides")
    folder, labels = make_folder(root)
    bags = read_bags(folder)
    y = np.array([label for _, _, _, label in arrays()])
    save(VGPMIL(n_inducing=10, random_state=0).fit(bags, y), root / "m.bagwise", bags=bags, y=y)
    return root, folder, labels


def run(*words):
    return main(["label", *(str(word) for word in words)])


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "label needs a model file and --bags, or --demo"),
        (["m", "--bags", "b"], "label needs --out"),
        (["m", "--bags", "b", "--out", "o", "--test-bags", "t"], "go together"),
        (["m", "--bags", "b", "--out", "o", "--auto", "-1"], "--auto must be 0 or more"),
        (["nothing", "--bags", "b", "--out", "o"], "nothing"),
    ],
)
def test_refusals_are_one_line_and_write_nothing(tmp_path, monkeypatch, capsys, words, what):
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 2
    said = capsys.readouterr().err
    assert what in said and len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_label_the_model_does_not_know(slides, tmp_path, capsys):
    root, folder, _ = slides
    labels = tmp_path / "l.csv"
    rows = [f"{name},{'odd' if y else 'even'}" for name, _, _, y in arrays()]
    labels.write_text("slide_id,label\n" + "\n".join(rows) + "\n")
    words = root / "m.bagwise", "--bags", folder, "--labels", labels, "--out", tmp_path / "o.csv"
    assert run(*words) == 2
    assert "has the label 'even'; the model knows ['0', '1']" in capsys.readouterr().err


def test_annotations_of_qupath_become_labels(slides, tmp_path):
    root, folder, labels = slides
    square = [[0, 0], [256, 0], [256, 256], [0, 256], [0, 0]]
    feature = {
        "type": "Feature",
        "geometry": {"type": "Polygon", "coordinates": [square]},
        "properties": {"objectType": "annotation", "classification": {"name": "1"}},
    }
    drawn = tmp_path / "001.geojson"
    drawn.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    out = tmp_path / "labels.csv"
    words = [root / "m.bagwise", "--bags", folder, "--labels", labels, "--out", out]
    assert run(*words, "--import", drawn, "--export-only") == 0
    assert out.read_text().splitlines() == ["slide_id,index,label", "001,0,1"]
    # Once more: nothing is said twice.
    assert run(*words, "--import", drawn, "--export-only") == 0
    assert len((tmp_path / "labels.csv.journal").read_text().splitlines()) == 2


def test_tasks_for_label_studio_and_answers_back(slides, tmp_path):
    root, folder, labels = slides
    out, tasks = tmp_path / "labels.csv", tmp_path / "tasks.json"
    words = [root / "m.bagwise", "--bags", folder, "--labels", labels, "--out", out]
    assert run(*words, "--label-studio", tasks) == 0
    content = json.loads(tasks.read_text())
    truth = {name: int(y) for name, _, _, y in arrays()}
    assert content and all(truth[task["data"]["bag"]] == 1 for task in content)
    answer = {"type": "choices", "value": {"choices": ["1"]}}
    content[0]["annotations"] = [{"result": [answer]}]
    tasks.write_text(json.dumps(content))
    assert run(*words, "--import", tasks, "--export-only") == 0
    data = content[0]["data"]
    assert out.read_text().splitlines()[1:] == [f"{data['bag']},{data['index']},1"]


def start(slides, out, *options, **environment):
    """``bagwise label`` in a process of its own, and the first address that it prints."""
    root, folder, labels = slides
    code = "import sys; from bagwise.cli import main; sys.exit(main(sys.argv[1:]))"
    words = [root / "m.bagwise", "--bags", folder, "--labels", labels, "--out", out, *options]
    process = subprocess.Popen(
        [sys.executable, "-c", code, "label", *map(str, words)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    return process, next_address(process)


def next_address(process):
    for line in process.stdout:
        if found := re.search(r"http://127\.0\.0\.1:(\d+)(/\?token=\S+)", line):
            return int(found.group(1)), found.group(2)
    raise AssertionError("no address was printed")


def ask(port, method, path, body=None, cookie=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    headers = {"Origin": f"http://127.0.0.1:{port}", **({"Cookie": cookie} if cookie else {})}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return response, text


def visit(port, path):
    """The cookie that an address is exchanged for, as soon as the server listens."""
    deadline = time.monotonic() + 30
    while True:
        try:
            response, _ = ask(port, "GET", path)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            assert response.status == 200
            return response.getheader("Set-Cookie").split(";")[0]


@pytest.mark.skipif(sys.platform == "win32", reason="the browser is a script")
def test_the_token_is_in_no_childs_arguments_and_works_once(slides, tmp_path):
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    # A browser that notes its arguments, and what it was given to read.
    browser.write_text(
        f"#!{sys.executable}\nimport json, os, pathlib, sys, urllib.request\n"
        'path = urllib.request.url2pathname(sys.argv[1].removeprefix("file://"))\n'
        "told = [sys.argv, dict(os.environ), path, os.stat(path).st_mode, open(path).read()]\n"
        f"pathlib.Path({str(seen)!r}).write_text(json.dumps(told))\n"
    )
    browser.chmod(0o700)
    process, (port, path) = start(slides, tmp_path / "o.csv", BROWSER=str(browser))
    try:
        ticket = path.partition("=")[2]
        cookie = visit(port, path)
        assert ask(port, "GET", path)[0].status == 401
        arguments, environment, page, mode, text = json.loads(seen.read_text())
        assert ticket in text and stat.S_IMODE(mode) == 0o600
        assert not any(ticket in word for word in [*arguments, *environment.values()])
        assert ticket not in cookie
        # Another browser gets an address of its own.
        again, other = next_address(process)
        assert again == port and other != path
        assert visit(port, other) == cookie
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert not Path(page).exists()


@pytest.mark.skipif(sys.platform == "win32", reason="kills as POSIX does")
def test_kill_while_two_clients_answer_loses_nothing_that_was_told(slides, tmp_path):
    """Killed again and again, the server goes on from its journal."""
    out, told = tmp_path / "labels.csv", {}

    def answer(port, cookie, tab, k):
        for i in range(10**6):
            card = json.loads(ask(port, "GET", f"/api/queue?tab={tab}&n=1", cookie=cookie)[1])
            row = card[0]["row"] if card else i % 20
            said = ("yes", "skip", "clear")[(i + k) % 3]
            body = {"row": row, "answer": said, "tab": tab, "id": f"{tab}-{k}-{i}"}
            body["replace"] = True
            if ask(port, "POST", "/api/answer", body, cookie)[0].status == 200:
                told[body["id"]] = said

    def until_killed(*words):
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer(*words)

    for k in range(KILLS):
        process, (port, path) = start(slides, out, "--no-browser", "--auto", "0")
        before, cookie = len(told), visit(port, path)
        clients = [
            threading.Thread(target=until_killed, args=(port, cookie, tab, k)) for tab in "ab"
        ]
        for client in clients:
            client.start()
        while len(told) < before + 10:
            assert all(client.is_alive() for client in clients)
            time.sleep(0.01)
        process.kill()
        process.communicate()
        for client in clients:
            client.join()
        lines = out.with_name("labels.csv.journal").read_bytes().split(b"\n")
        kept = {r["id"]: r["answer"] for r in map(json.loads, lines[1:-1]) if "id" in r}
        assert told.items() <= kept.items()
        assert len(kept) <= len(told) + 2 * (k + 1)  # at most one each that was under way


def test_the_experiment_runs_quickly(tmp_path):
    from experiments.labelling import run as simulate

    table = simulate(quick=True, out=tmp_path)
    assert table["model"].tolist() == [
        "VGPMIL, information",
        "VGPMIL, uncertainty",
        "VGPMIL, random",
    ]
    assert table["mean"].iloc[-1] <= 20  # random reaches itself
    assert (tmp_path / "labelling.png").stat().st_size > 0
