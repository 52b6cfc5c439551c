"""The page, driven in a real browser: keys, undo, learning, a killed server, a narrow screen."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from bagwise import Bags, save
from bagwise.datasets import load_digit_bags
from bagwise.models.registry import make_model

pytest.importorskip("starlette", reason="the page needs bagwise[label]")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
EVIL = "<img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="drives the browser")
    if CHROMIUM is None:
        pytest.skip("needs chromium on the PATH")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A folder of digit bags with pictures, a model, and the truth."""
    folder = tmp_path_factory.mktemp("digits")
    data = load_digit_bags(n_bags=40, random_state=0)
    ids = [EVIL.replace("/", ""), *(f"bag_{i:02d}" for i in range(1, 40))]
    bags = Bags(data.bags.instances, data.bags.offsets, ids)
    model = make_model("vgpmil", n_inducing=30, random_state=0).fit(bags, data.y)
    names = ["other", "nine"]
    save(model, folder / "model.bagwise", bags=bags, y=data.y, extra={"class_names": names})
    pictures = (data.images * 255).astype(np.uint8)
    (folder / "bags").mkdir()
    for name, x, images in zip(ids, bags, bags.split(pictures), strict=True):
        with h5py.File(folder / "bags" / f"{name}.h5", "w") as file:
            file["features"], file["images"] = x, images
    rows = zip(ids, data.y, strict=True)
    lines = ["slide_id,label", *(f"{name},{names[label]}" for name, label in rows)]
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    truth = dict(zip(ids, bags.split(data.instance_labels), strict=True))
    return folder, truth


class Server:
    """``bagwise label`` in a process of its own, so that it can be killed."""

    def __init__(self, folder: Path, out: Path, *options: str) -> None:
        code = "import sys; from bagwise.cli import main; sys.exit(main(sys.argv[1:]))"
        words = ["label", str(folder / "model.bagwise"), "--bags", str(folder / "bags")]
        words += ["--labels", str(folder / "labels.csv"), "--images", "images", "--no-browser"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *words, "--out", str(out), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        )
        self._addresses, self._said = queue.Queue(), ""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.process.stdout:
            self._said += line
            if found := re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", line):
                self._addresses.put(found.group())

    def new_url(self) -> str:
        """An address that nobody has used: each works once, and then the next one is printed."""
        try:
            url = self._addresses.get(timeout=60)
        except queue.Empty:
            raise AssertionError(self._said) from None
        self._wait_until_it_listens(int(re.search(r":(\d+)/", url).group(1)))
        return url

    def _wait_until_it_listens(self, port: int) -> None:
        """The address is printed just before the socket opens."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError(f"nothing listens at port {port}")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def open_page(browser, url, width=1280, height=900):
    page = browser.new_page(viewport={"width": width, "height": height})
    page.problems = []
    page.on("console", lambda m: m.type in ("error", "warning") and page.problems.append(m.text))
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.goto(url)
    page.wait_for_selector("#subject img")
    return page


def wait_text(page, element, start):
    """Wait until the text of an element starts so."""
    condition = "([id, start]) => document.getElementById(id).textContent.startsWith(start)"
    page.wait_for_function(condition, arg=[element, start])


def counts(page):
    numbers = [int(t.replace(",", "")) for t in page.locator("#counts b").all_inner_texts()]
    return dict(zip(("yes", "no", "skip", "open"), numbers, strict=True))


def answer_truly(page, truth):
    """Press the key that is right for the question on the screen, and wait until it is saved."""
    where = page.locator("#where").inner_text()
    bag, index = re.fullmatch(r"(.+), instance (\d+)", where, re.DOTALL).groups()
    before = sum(counts(page)[k] for k in ("yes", "no"))
    page.keyboard.press("y" if truth[bag][int(index)] else "n")
    page.wait_for_function(
        "n => [...document.querySelectorAll('#counts b')].slice(0, 2)"
        ".reduce((s, b) => s + Number(b.textContent), 0) > n",
        arg=before,
    )
    page.wait_for_function("w => document.getElementById('where').textContent !== w", arg=where)


@pytest.fixture
def start(digits):
    """Starts servers, and leaves none behind."""
    servers = []

    def one(out):
        servers.append(Server(digits[0], out, "--auto", "0"))
        return servers[-1]

    yield one
    for server in servers:
        server.kill()


def test_twenty_answers_undo_learn_kill_and_go_on(browser, start, digits, tmp_path):
    truth = digits[1]
    out = tmp_path / "labels.csv"
    server = start(out)
    page = open_page(browser, server.new_url())
    assert "token" not in page.url
    for _ in range(20):
        answer_truly(page, truth)
    assert counts(page)["yes"] + counts(page)["no"] == 20
    assert len(out.read_text().splitlines()) == 21
    wait_text(page, "status", "saved")
    # Undo by keyboard: the question comes back, the row goes.
    page.keyboard.press("u")
    wait_text(page, "status", "taken back")
    assert len(out.read_text().splitlines()) == 20
    answer_truly(page, truth)
    page.keyboard.press("s")
    page.wait_for_function("() => document.querySelectorAll('#counts b')[2].textContent === '1'")
    # Learn: the curve gets a second point.
    assert page.locator("#curve svg").first.locator("circle").count() == 1
    page.keyboard.press("l")
    page.wait_for_function("() => document.querySelectorAll('#curve circle').length > 2")
    wait_text(page, "status", "learned")
    assert page.problems == []
    # The threshold slider highlights, the list opens a bag.
    page.locator("#threshold").fill("1")
    assert page.locator("#bag-view li:not(.below)").count() == 0
    page.locator("#threshold").fill("0")
    assert page.locator("#bag-view li.below").count() == 0
    name = page.locator("#bags tbody button").nth(3).inner_text()
    page.locator("#bags tbody button").nth(3).click()
    wait_text(page, "bag-title", name)
    # Killed while an answer is on its way: the page says that it is not saved.
    said = out.read_text()
    server.kill()
    page.keyboard.press("y")
    page.wait_for_selector("#banner:not([hidden])")
    assert "not saved" in page.locator("#banner").inner_text()
    page.close()
    assert out.read_text() == said
    page = open_page(browser, start(out).new_url())
    assert counts(page)["yes"] + counts(page)["no"] == 20
    assert counts(page)["skip"] == 1
    assert page.locator("#curve svg").first.locator("circle").count() == 2
    assert page.problems == []
    page.close()


@pytest.fixture(scope="module")
def running(digits, tmp_path_factory):
    server = Server(digits[0], tmp_path_factory.mktemp("out") / "labels.csv", "--auto", "0")
    yield server
    server.kill()


def test_narrow_screen_and_keyboard_alone(browser, running, digits):
    page = open_page(browser, running.new_url(), 390, 844)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    box = page.locator("#yes").bounding_box()
    assert box["y"] + box["height"] <= 844 and box["height"] >= 44  # within reach of a thumb
    seen = []
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"yes", "no", "skip", "threshold", "learn", "auto"} <= set(seen)
    page.locator("#no").focus()
    before = counts(page)["no"]
    page.keyboard.press("Enter")
    condition = "n => Number(document.querySelectorAll('#counts b')[1].textContent) > n"
    page.wait_for_function(condition, arg=before)
    assert page.problems == []
    page.close()


def test_every_control_has_a_name(browser, running):
    page = open_page(browser, running.new_url())
    page.wait_for_selector("#bags tbody button")  # the list of bags comes after the question
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "slider", "combobox", "link", "textbox", "checkbox", "progressbar"}
    controls = [n for n in nodes if n.get("role", {}).get("value") in roles and not n["ignored"]]
    assert len(controls) > 15
    nameless = [n for n in controls if not n.get("name", {}).get("value")]
    assert nameless == []
    pictures = [n for n in nodes if n.get("role", {}).get("value") == "image" and not n["ignored"]]
    assert all(n.get("name", {}).get("value") for n in pictures)
    page.close()


def test_names_with_markup_are_shown_as_they_are(browser, running, digits):
    page = open_page(browser, running.new_url())
    evil = EVIL.replace("/", "")
    page.locator("#bags tbody button", has_text="onerror").click()
    wait_text(page, "bag-title", evil)
    assert page.evaluate("window.hacked") is None
    assert page.problems == []
    page.close()


def test_two_tabs_answer_different_questions_and_keep_both(browser, running, digits):
    one, two = open_page(browser, running.new_url()), open_page(browser, running.new_url())
    assert one.locator("#where").inner_text() != two.locator("#where").inner_text()
    before = sum(counts(one)[k] for k in ("yes", "no"))
    answer_truly(one, digits[1])
    answer_truly(two, digits[1])
    state = json.loads(one.evaluate("fetch('/api/state').then(r => r.text())"))
    assert state["n_yes"] + state["n_no"] >= before + 2
    one.close()
    two.close()
