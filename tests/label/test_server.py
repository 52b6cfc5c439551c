"""The server refuses what does not come from its own page; each attack has a test."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time

import numpy as np
import pytest

from bagwise import VGPMIL, Bags
from bagwise.datasets import make_gaussian_bags
from bagwise.files.problems import bad_file
from bagwise.label import ArrayPictures, FolderPictures, Journal, Learner, Session

pytest.importorskip("starlette", reason="the page needs bagwise[label]")
from bagwise.label import LabelServer
from bagwise.label.server import MAX_BODY

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    found = make_gaussian_bags(n_bags=20, random_state=0)
    ids = [EVIL, "../../etc/passwd", *(f"bag_{i}" for i in range(18))]
    bags = Bags(found.bags.instances, found.bags.offsets, ids)
    model = VGPMIL(n_inducing=10, random_state=0).fit(bags, found.y)
    images = np.random.default_rng(0).integers(0, 255, (bags.n_instances, 8, 8), dtype=np.uint8)
    with Journal(folder / "labels.csv", ["no <b>", EVIL]) as journal:
        session = Session(
            Learner(model, bags, found.y),
            journal,
            pictures=ArrayPictures(images),
            auto=0,
        )
        server = LabelServer(session)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.server.started:
            time.sleep(0.01)
        yield server, session
        server.server.should_exit = True
        thread.join(timeout=10)


def ask(server, method, path, body=None, token=True, host=None, origin="ours", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    headers = {"Host": host or f"127.0.0.1:{server.port}", **headers}
    if token:
        headers["Cookie"] = f"bagwise-{server.port}={server.token if token is True else token}"
    if origin is not None and method == "POST":
        headers["Origin"] = f"http://127.0.0.1:{server.port}" if origin == "ours" else origin
    content = json.dumps(body) if isinstance(body, dict) else body
    connection.request(method, path, body=content, headers=headers)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return response, text


PATHS = ["/", "/api/state", "/api/queue?n=1", "/api/bags", "/api/bags/0", "/api/pictures/0",
         "/static/page.js"]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_nothing_without_the_token(place, path):
    server, _ = place
    assert ask(server, "GET", path, token=False)[0].status == 401
    assert ask(server, "GET", path, token="guess")[0].status == 401
    assert ask(server, "GET", path)[0].status == 200


@pytest.mark.parametrize("path", ["/api/answer", "/api/undo", "/api/learn", "/api/settings"])
def test_nothing_is_changed_without_token_or_from_elsewhere(place, path):
    server, session = place
    before = len(session.journal.history)
    body = {"row": 0, "answer": "yes", "tab": "t", "id": "x", "auto": 5}
    assert ask(server, "POST", path, body, token=False)[0].status == 401
    assert ask(server, "POST", path, body, origin="http://evil.example")[0].status == 403
    assert ask(server, "POST", path, body, origin="null")[0].status == 403
    assert ask(server, "POST", path, body, origin=None)[0].status == 403
    crossed = {"Sec-Fetch-Site": "cross-site"}
    assert ask(server, "POST", path, body, **crossed)[0].status == 403
    assert len(session.journal.history) == before
    assert session.auto == 0


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1"])
def test_a_foreign_host_is_refused(place, host):
    """DNS rebinding: the browser believes the page is evil.example and sends its name."""
    server, _ = place
    response, text = ask(server, "GET", "/api/state", host=host)
    assert response.status == 421
    assert b"n_yes" not in text


def test_a_foreign_origin_is_refused_for_reading_too(place):
    server, _ = place
    response, _ = ask(server, "GET", "/api/state", **{"Origin": "http://evil.example"})
    assert response.status == 403
    assert response.getheader("Access-Control-Allow-Origin") is None


def test_the_first_visit_exchanges_the_token_for_a_cookie(place):
    server, _ = place
    path = server.url.removeprefix(f"http://127.0.0.1:{server.port}")
    assert ask(server, "GET", "/?token=wrong", token=False)[0].status == 401
    for method, host in [("HEAD", None), ("POST", None), ("GET", "evil.example")]:
        assert ask(server, method, path, token=False, host=host)[0].status in (401, 421)
    # A browser that was sent here by a file says so, and must be let in.
    visit = {"Sec-Fetch-Site": "cross-site"}
    response, text = ask(server, "GET", path, token=False, **visit)
    assert response.status == 200 and b'content="0; url=/"' in text
    cookie = response.getheader("Set-Cookie")
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    value = cookie.split(";")[0].partition("=")[2]
    assert ask(server, "GET", "/api/state", token=value)[0].status == 200


def test_the_token_works_once(place):
    server, _ = place
    first = server.url.removeprefix(f"http://127.0.0.1:{server.port}")
    assert ask(server, "GET", first, token=False)[0].status == 200
    response, text = ask(server, "GET", first, token=False)
    assert response.status == 401 and response.getheader("Set-Cookie") is None
    assert b"works once" in text
    assert ask(server, "GET", first)[0].status == 200  # who has the cookie may reload
    second = server.url.removeprefix(f"http://127.0.0.1:{server.port}")
    assert second != first and server.token not in (first + second)
    assert ask(server, "GET", second, token=False)[0].status == 200


def test_an_address_holds_no_other_credential(place):
    """What the address shows is neither the cookie nor good for the header."""
    server, _ = place
    ticket = server.url.partition("token=")[2]
    assert ask(server, "GET", "/api/state", token=ticket)[0].status == 401
    header = {"Authorization": f"Bearer {ticket}"}
    assert ask(server, "GET", "/api/state", token=False, **header)[0].status == 401


def test_a_program_may_use_a_header(place):
    server, _ = place
    header = {"Authorization": f"Bearer {server.token}"}
    assert ask(server, "GET", "/api/state", token=False, **header)[0].status == 200
    assert ask(server, "GET", "/api/state", token=False, Authorization="Bearer x")[0].status == 401


def test_listens_on_loopback_only(place):
    server, _ = place
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert len(server.token) >= 32
    assert LabelServer(None).token != server.token


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e/server.py",
        "/static//etc/passwd",
        "/static/page.html",
        "/../../etc/passwd",
        "/api/pictures/..%2f..%2fetc%2fpasswd",
        "/api/pictures/-1",
        "/api/pictures/999999999",
        "/api/bags/999999999",
        "/api/bags/..%2f0",
    ],
)
def test_no_file_or_instance_outside_what_was_given(place, path):
    server, _ = place
    response, text = ask(server, "GET", path)
    assert response.status == 404
    assert b"root:" not in text and b"import" not in text


def test_every_answer_carries_the_policy(place):
    server, _ = place
    for path, token in [("/", True), ("/api/state", True), ("/nothing", True), ("/", False)]:
        response, _ = ask(server, "GET", path, token=token)
        policy = response.getheader("Content-Security-Policy")
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert response.getheader("X-Content-Type-Options") == "nosniff"
        assert response.getheader("Referrer-Policy") == "no-referrer"
        assert response.getheader("Cache-Control") == "no-store"


def test_nothing_is_loaded_from_other_hosts():
    from importlib.resources import files

    for name in ("page.html", "page.js", "page.css"):
        text = (files("bagwise.label") / "assets" / name).read_text()
        text = text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text and "https://" not in text and "innerHTML" not in text


def test_a_large_body_is_refused_before_it_is_read(place):
    server, session = place
    before = len(session.journal.history)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        head = (
            f"POST /api/answer HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
            f"Origin: http://127.0.0.1:{server.port}\r\n"
            f"Cookie: bagwise-{server.port}={server.token}\r\n"
            "Content-Length: 1073741824\r\n\r\n"
        )
        connection.sendall(head.encode())
        assert b" 413 " in connection.recv(4096)
    assert len(session.journal.history) == before


def test_a_large_body_in_chunks_is_cut_off(place):
    server, _ = place
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        head = (
            f"POST /api/answer HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
            f"Origin: http://127.0.0.1:{server.port}\r\n"
            f"Cookie: bagwise-{server.port}={server.token}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n"
        )
        connection.sendall(head.encode())
        part = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
        answer = b""
        for _ in range(1024 * 1024 * 1024 // len(part)):
            try:
                connection.sendall(part)
                connection.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    answer += connection.recv(4096)
                connection.setblocking(True)
            except (BrokenPipeError, ConnectionResetError):
                break
            if answer:
                break
    assert b" 413 " in answer or answer == b""
    assert MAX_BODY < 0x1000 * 16
    assert ask(server, "GET", "/api/state")[0].status == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("not json", 400),
        ("[]", 400),
        ("[" * 8000, 400),
        ('{"row":' * 2000, 400),
        ('{"row": NaN, "answer": "yes"}', 400),
        ('{"row": ' + "9" * 5000 + "}", 400),
        (b"\xff\xfe", 400),
        ({}, 400),
        ({"row": -1, "answer": "yes"}, 400),
        ({"row": True, "answer": "yes"}, 400),
        ({"row": "0; drop", "answer": "yes"}, 400),
        ({"row": 0, "answer": EVIL}, 400),
        ({"row": 0, "answer": "perhaps"}, 400),
        ({"row": 0, "answer": "yes", "tab": "x" * 65}, 400),
        ({"row": 0, "answer": "yes", "tab": {"a": 1}}, 400),
    ],
)
def test_bad_answers_are_one_line_and_change_nothing(place, body, status):
    server, session = place
    before = len(session.journal.history)
    response, text = ask(server, "POST", "/api/answer", body)
    assert response.status == status
    assert "\n" not in json.loads(text)["error"]
    assert len(session.journal.history) == before


def test_markup_in_names_travels_as_text(place):
    """JSON with its own type and nosniff; the page puts names into text nodes only."""
    server, _ = place
    response, text = ask(server, "GET", "/api/bags")
    assert response.getheader("Content-Type") == "application/json"
    assert EVIL in {row["bag"] for row in json.loads(text)}


def test_an_answer_is_on_disk_when_the_server_says_so(place):
    server, session = place
    card = json.loads(ask(server, "GET", "/api/queue?tab=t&n=1")[1])[0]
    body = {"row": card["row"], "answer": "yes", "tab": "t", "id": "on-disk"}
    response, _ = ask(server, "POST", "/api/answer", body)
    assert response.status == 200
    lines = session.journal.where.read_text().splitlines()
    assert json.loads(lines[-1])["id"] == "on-disk"
    other = {**body, "answer": "no", "tab": "other", "id": "2"}
    assert ask(server, "POST", "/api/answer", other)[0].status == 409
    undone = json.loads(ask(server, "POST", "/api/undo", {"tab": "t"})[1])
    assert undone["card"]["row"] == card["row"]


def test_a_full_disk_is_not_the_fault_of_the_request(place, monkeypatch):
    server, session = place
    card = json.loads(ask(server, "GET", "/api/queue?tab=d&n=1")[1])[0]
    body = {"row": card["row"], "answer": "yes", "tab": "d", "id": "full"}

    def full(path):
        raise bad_file(path, "cannot be written: the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("bagwise.label.journal.new_file", full)
        response, text = ask(server, "POST", "/api/answer", body)
        assert response.status == 507 and b"the disk is full" in text
    place_of = (card["bag"], card["index"])
    assert place_of not in session.journal.state
    assert ask(server, "POST", "/api/answer", body)[0].status == 200
    assert session.journal.state[place_of] == "yes"
    ask(server, "POST", "/api/undo", {"tab": "d"})


def test_pictures_of_a_folder_stay_inside_it(tmp_path):
    from PIL import Image

    secret = tmp_path / "secret"
    secret.mkdir()
    Image.new("L", (4, 4)).save(secret / "0.png")
    folder = tmp_path / "patches"
    (folder / "a").mkdir(parents=True)
    Image.new("L", (4, 4), 7).save(folder / "a" / "0.png")
    Image.new("L", (4, 4), 7).save(folder / "b_1.png")
    (folder / "a" / "1.png").symlink_to(secret / "0.png")
    (folder / "a" / "9.png").write_bytes(b"beyond the bag")
    bags = Bags(np.ones((4, 2)), [0, 2, 4], ["a", "b"])
    pictures = FolderPictures(folder, bags)
    assert set(pictures.paths) == {0, 3}
    assert pictures.read(0).media_type == "image/png"
    assert pictures.read(1) is None
