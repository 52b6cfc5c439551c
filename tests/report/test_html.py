"""The report: complete, self-contained, safe, and alive in a real browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from bagwise import Bags
from bagwise.evaluate import Audit, BagFolds, Finding, cross_validate
from bagwise.files import FileProblem
from bagwise.models.registry import make_model
from bagwise.report import payload as payload_module
from bagwise.report.data import data_warnings
from bagwise.report.evaluation import Evaluation
from bagwise.report.html import Report, render_report, write_report
from bagwise.report.predictions import (
    Predictions,
    patient_table,
    predict_tables,
    write_predictions,
)
from tests.filing import arrays

EVIL = "</script><img src=x onerror=alert(1)>"


def make_report(**change):
    made = arrays(n_bags=30)
    coords = np.concatenate([c for _, _, c, _ in made])
    bags = Bags.from_list([x for _, x, _, _ in made], ids=[f"slide_{n}" for n, *_ in made])
    bags = Bags(bags.instances, bags.offsets, bags.ids, columns={"coords": coords})
    y = np.array(["normal", "tumor"])[[t for *_, t in made]]
    model = make_model("vgpmil", n_inducing=20).fit(bags, y)
    folds = cross_validate(clone(model), bags, y, BagFolds(3, (0,)))
    evaluation = Evaluation.from_folds(folds, "3-fold cross-validation")
    about = {"extra": {"name": "vgpmil", "remarks": ["a remark"]}, "steps": ["VGPMIL"]}
    made = predict_tables(model, bags)
    truth = made.targets(y)
    return Report(made, bags, about, truth, evaluation, model.bound_history_)._replace(**change)


@pytest.fixture(scope="module")
def report():
    return make_report()


def payload(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))


def test_the_page_is_self_contained(report):
    page = render_report(report)
    assert not re.search(r"(?:src|href)\s*=\s*[\"'](?!#)", page)
    assert "http" not in page.replace("http-equiv", "")
    assert "default-src 'none'" in page
    assert "<!--" not in page
    for text in ("ROC curve", "Precision and recall", "Training", "a remark", "30", "threshold"):
        assert text in page


def test_the_page_holds_the_predictions(report):
    data = payload(render_report(report))
    np.testing.assert_allclose(data["p"], [report.predictions.bags["probability"]], atol=1e-5)
    assert data["ids"][3] == "slide_003"
    assert (data["negatives"], data["classes"]) == (["normal"], ["tumor"])
    assert data["truth"] == [report.truth[:, 0].tolist()]
    called = report.predictions.bags["label"] == "tumor"
    assert data["called"] == [called.astype(int).tolist()]
    assert sum(data["instances"]["sizes"]) == report.bags.n_instances


def test_names_cannot_become_markup(report):
    bags = Bags(report.bags.instances, report.bags.offsets, [EVIL] + ["a"] * 29)
    table = report.predictions.bags.assign(id=bags.ids, label=EVIL)
    made = report.predictions._replace(bags=table, classes=["no", EVIL])
    about = {"extra": {"name": EVIL, "remarks": [EVIL]}, "steps": [EVIL], "parameters": {"a": EVIL}}
    page = render_report(
        report._replace(
            bags=bags,
            predictions=made,
            about=about,
            truth=None,
            title=EVIL,
            skipped=[FileProblem(EVIL, EVIL)],
            audit=Audit([Finding(EVIL, EVIL, EVIL, EVIL)], [EVIL]),
        )
    )
    assert EVIL not in page
    assert payload(page)["ids"][0] == EVIL


def test_counts_in_a_description_cannot_become_markup(report):
    classes = {EVIL: EVIL}
    training = {"n_bags": 1, "n_instances": 2, "n_features": 3, "classes": classes}
    page = render_report(report._replace(about={"training": training, "bagwise": EVIL}))
    assert EVIL not in page


def test_the_browser_is_told_to_run_this_script_only(report):
    page = render_report(report)
    policy = re.search(r"script-src '(sha256-[^']+)'", page).group(1)
    script = re.findall(r"<script>(.*?)</script>", page, re.S)[-1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == f"sha256-{digest}"
    assert "script-src 'unsafe-inline'" not in page


def slide(n_patches):
    """A report on one slide of many patches."""
    rng = np.random.default_rng(0)
    grid = np.stack([np.arange(n_patches) % 400, np.arange(n_patches) // 400], axis=1)
    bags = Bags(np.zeros((n_patches, 1)), [0, n_patches], ["wide"], columns={"coords": grid})
    table = {"id": ["wide"], "probability": [0.9], "std": [0.1], "label": ["tumor"]}
    p = rng.uniform(size=n_patches)
    patches = {"bag": "wide", "index": np.arange(n_patches), "probability": p, "std": 0.1 * p}
    made = Predictions(pd.DataFrame(table), pd.DataFrame(patches), ["normal", "tumor"], 0.5)
    return Report(made, bags, {}), p


def test_a_slide_of_any_size_has_a_sample_in_the_page():
    report, p = slide(200_000)
    found = payload(render_report(report))["instances"]
    assert found["sizes"] == [30_000]
    assert found["above"] == [[int((p > 0.5).sum())]]
    numbers = np.frombuffer(base64.b64decode(found["numbers"]), "<u4")
    shown = np.frombuffer(base64.b64decode(found["p"][0]), "<u2") / 65535
    np.testing.assert_allclose(shown, p[numbers], atol=1e-5)
    assert len(np.unique(numbers)) == 30_000
    # The most probable half is there, and the rest comes from everywhere.
    assert set(np.argsort(-p)[:15_000]) <= set(numbers)
    assert np.histogram(numbers, 10, (0, 200_000))[0].min() > 2_000


def test_a_slide_that_fits_is_whole():
    report, _ = slide(1_000)
    found = payload(render_report(report))["instances"]
    assert found["sizes"] == [1_000]
    assert "numbers" not in found


def test_many_problems_are_summarised(report):
    skipped = [FileProblem(f"{i}.h5", "is empty (0 bytes)") for i in range(600)]
    page = render_report(report._replace(skipped=skipped))
    assert "Left out: 600 like this: 0.h5" in page
    assert "599.h5" not in page


def test_little_is_needed(report):
    bare = Report(report.predictions, report.bags, {})
    page = render_report(bare)
    assert "ROC curve" not in page
    assert payload(page)["truth"] is None


def test_models_without_instances_or_probabilities(report):
    bags = report.bags
    y = np.arange(30) % 2
    made = predict_tables(make_model("statistics").fit(bags, y), bags)
    assert made.instances is None
    assert "has no predictions of their instances" in render_report(Report(made, bags, {}))
    from sklearn.svm import SVC

    from bagwise import SingleInstance

    with pytest.raises(ValueError, match="gives no probabilities; set calibrate=True"):
        predict_tables(SingleInstance(SVC(), calibrate=False).fit(bags, y), bags)


def test_large_reports_show_the_most_probable_bags(report, monkeypatch):
    monkeypatch.setattr(payload_module, "MAX_INSTANCES", 40)
    page = render_report(report)
    data = payload(page)
    assert sum(data["instances"]["sizes"]) <= 40
    p = np.asarray(data["p"][0])
    shown = data["instances"]["bags"]
    assert p[shown].min() >= np.sort(p)[::-1][len(shown) - 1]
    assert "most probable bags; instances.parquet has all" in page
    # Bags in the page are whole here: none has more than the cap of one bag.
    assert data["instances"]["sizes"] == report.bags.sizes[shown].tolist()


@pytest.mark.parametrize("shape", [(9, 7), (9, 7, 3), (9, 7, 1), (9, 7, 4)])
def test_pictures(report, shape, rng):
    images = rng.uniform(size=(report.bags.n_instances, *shape))
    with_images = report._replace(bags=report.bags.with_columns(images=images))
    found = payload(render_report(with_images))["instances"]["images"]
    assert (found["height"], found["width"]) == (9, 7)
    assert found["channels"] == (3 if shape[2:] in ((3,), (4,)) else 1)


def test_pictures_are_thinned_until_they_fit(report):
    """At most six million pixels, however many there are."""
    n = report.bags.n_instances
    side = int(np.sqrt(7e6 / n))
    images = np.zeros((n, side, side), dtype=np.uint8)
    with_images = report._replace(bags=report.bags.with_columns(images=images))
    found = payload(render_report(with_images))["instances"]["images"]
    assert found["height"] == found["width"] == side // 2
    assert n * side**2 > 6_000_000 >= n * found["height"] * found["width"]


def test_write_report_and_tables(report, tmp_path):
    assert write_report(report, tmp_path / "r.html").stat().st_size > 20_000
    names = [p.name for p in write_predictions(report.predictions, tmp_path)]
    assert names == ["bags.csv", "instances.parquet"]


def test_thresholds_move_labels(report):
    class Fixed:
        classes_ = np.array(["a", "b"])

        def predict(self, bags):
            return self.classes_[(self.predict_proba(bags)[:, 1] > 0.5).astype(int)]

        def predict_proba(self, bags):
            p = np.linspace(0, 1, len(bags))
            return np.column_stack([1 - p, p])

    bags = report.bags
    for threshold in (0.2, 0.5, 0.8):
        made = predict_tables(Fixed(), bags, threshold)
        assert isinstance(made, Predictions)
        assert ((made.bags["label"] == "b") == (np.linspace(0, 1, 30) > threshold)).all()


def test_evaluations_survive_json():
    made = Evaluation("held-out", np.array([0, 1, 1]), np.array([0.2, 0.7, 0.4]))
    again = Evaluation.from_json(json.loads(json.dumps(made.as_json())))
    assert again.metrics() == made.metrics()


def test_data_warnings(rng):
    X = rng.normal(size=(400, 4))
    bags = Bags(X, np.arange(101) * 4)
    y = np.arange(100) % 2
    assert data_warnings(bags, y) == []
    constant = X.copy()
    constant[:, 2] = 7
    (said,) = data_warnings(Bags(constant, bags.offsets), y)
    assert said.startswith("1 of 4 features are constant")
    shared = X.copy()
    shared[4] = shared[0]  # a row of bag 0 in bag 1, of the other class
    (said,) = data_warnings(Bags(shared, bags.offsets), y)
    assert said.startswith("1 distinct instances appear, identical, in bags of both classes")
    (first, second) = data_warnings(bags, (np.arange(100) < 5).astype(int))
    assert "only 5 of 100 bags are 1" in first
    assert "only 5 bags of one class" in second
    sizes = np.where(y, 6, 2)
    told = Bags(X, np.concatenate([[0], np.cumsum(sizes)]))
    (said,) = data_warnings(told, y)
    assert "number of instances alone predicts the label (AUC 1.00)" in said
    twice = Bags(np.tile(X[:200], (2, 1)), bags.offsets)
    assert any("50 of 100 bags repeat" in said for said in data_warnings(twice, None))


# In a browser.

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="drives the browser")
    if CHROMIUM is None:
        pytest.skip("needs chromium on the PATH")
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield made
        made.close()


@pytest.fixture(scope="module")
def page_file(report, tmp_path_factory):
    images = (np.random.default_rng(0).uniform(size=(report.bags.n_instances, 8, 8)) * 255).astype(
        "u1"
    )
    folder = tmp_path_factory.mktemp("pages")
    write_report(report, folder / "map.html")
    bags = Bags(report.bags.instances, report.bags.offsets, report.bags.ids)
    write_report(report._replace(bags=bags), folder / "bars.html")
    write_report(report._replace(bags=bags.with_columns(images=images)), folder / "images.html")
    return folder


def opened(browser, path: Path, width, height):
    page = browser.new_page(viewport={"width": width, "height": height})
    page.faults = []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on(
        "console", lambda m: page.faults.append(m.text) if m.type in ("error", "warning") else None
    )
    page.on(
        "request", lambda r: page.faults.append(r.url) if not r.url.startswith("file:") else None
    )
    page.goto(path.as_uri())
    return page


SIZES = [(1280, 900), (390, 844)]


@pytest.mark.parametrize("kind", ["map", "bars", "images"])
@pytest.mark.parametrize("size", SIZES)
def test_nothing_overflows_and_nothing_fails(browser, page_file, kind, size):
    page = opened(browser, page_file / f"{kind}.html", *size)
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert page.locator("#detail h3").count() == 1
    assert (
        page.locator("#detail canvas").count() == {"map": 2, "bars": 0}.get(kind)
        or kind == "images"
    )
    assert page.screenshot(full_page=True)
    assert page.faults == []
    page.close()


def column(page, k):
    cells = page.locator(f"#table tbody tr > :nth-child({k})").all_inner_texts()
    return [cell.split("\n")[0].strip() for cell in cells]


def test_sorting(browser, page_file):
    page = opened(browser, page_file / "map.html", 1280, 900)
    p = [float(v) for v in column(page, 2)]
    assert p == sorted(p, reverse=True)
    page.get_by_role("button", name="probability").first.click()
    assert [float(v) for v in column(page, 2)] == sorted(p)
    assert page.locator("th[aria-sort=ascending]").inner_text() == "probability"
    page.get_by_role("button", name="bag", exact=True).press("Enter")
    names = column(page, 1)
    assert names == sorted(names)
    assert page.faults == []
    page.close()


def test_opening_a_bag_by_mouse_and_keyboard(browser, page_file):
    page = opened(browser, page_file / "map.html", 1280, 900)
    page.get_by_role("button", name="slide_007").click()
    assert page.locator("#detail h3").inner_text() == "slide_007"
    assert page.locator("tr[aria-current=true]").count() == 1
    page.get_by_role("button", name="slide_004").press("Enter")
    assert page.locator("#detail h3").inner_text() == "slide_004"
    # Enter leads to the map, the arrow keys through it, Escape back to the row.
    assert page.evaluate("document.activeElement.id") == "map"
    page.keyboard.press("ArrowRight")
    first = page.locator("#tip").inner_text()
    assert first.startswith("instance ")
    page.keyboard.press("ArrowRight")
    assert page.locator("#tip").inner_text() != first
    page.locator("#map-std").press("ArrowRight")  # both maps move together
    assert page.locator("#tip").inner_text() not in ("", first)
    legends = page.locator(".map .scale").all_inner_texts()
    assert "probability" in legends[0] and "standard deviation" in legends[1]
    one, two = (page.locator(name).bounding_box() for name in ("#map", "#map-std"))
    assert abs(one["y"] - two["y"]) < 2 and two["x"] > one["x"] + one["width"] - 1
    page.locator("#map").press("Escape")
    assert page.evaluate("document.activeElement.textContent") == "slide_004"
    assert page.faults == []
    page.close()


def wait_for(page, condition):
    """Poll, because the page's own policy forbids the eval that wait_for_function needs."""
    for _ in range(100):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(condition)


def test_a_phone_goes_to_the_bag_and_back(browser, page_file):
    page = opened(browser, page_file / "images.html", 390, 844)
    page.get_by_role("button", name="slide_009").click()
    wait_for(page, "document.getElementById('detail').getBoundingClientRect().top < 100")
    page.get_by_role("button", name="All bags").click()
    wait_for(page, "document.getElementById('bags').getBoundingClientRect().top > -100")
    page.close()


def test_finding_and_filtering(browser, page_file):
    page = opened(browser, page_file / "bars.html", 1280, 900)
    page.get_by_label("Find a bag").fill("slide_02")
    assert len(column(page, 1)) == 10
    page.get_by_label("Find a bag").fill("")
    page.get_by_label("Show").select_option(label="called tumor")
    assert set(column(page, 4)) == {"tumor"}
    page.get_by_label("Show").select_option("wrong")
    assert page.locator("#count").inner_text().endswith("of 30 bags")
    page.close()


def test_the_threshold_moves_the_counts(browser, page_file, report):
    page = opened(browser, page_file / "map.html", 1280, 900)
    page.locator("#threshold").fill("0.9")
    y, p = report.evaluation.y[:, 0], np.round(report.evaluation.probability[:, 0], 5)
    assert int(page.locator("#tp").inner_text()) == int(((p > 0.9) & (y == 1)).sum())
    assert int(page.locator("#tn").inner_text()) == int(((p <= 0.9) & (y == 0)).sum())
    page.close()


@pytest.fixture(scope="module")
def three_classes(report):
    """A report on three classes, one of them with a name that tries to be markup."""
    classes = np.array(["normal", "adeno", EVIL])
    y = classes[np.arange(30) % 3]
    model = make_model("vgpmil", n_inducing=20).fit(report.bags, y)
    tables = predict_tables(model, report.bags, patients=np.arange(30) // 2)
    folds = cross_validate(clone(model), report.bags, y, BagFolds(3, (0,)))
    names = tables.classes
    evaluation = Evaluation.from_folds(folds, "3 folds", np.arange(30) // 2, names)
    return Report(tables, report.bags, {}, tables.targets(y), evaluation)


def test_several_classes_are_on_one_page(three_classes):
    page = render_report(three_classes)
    assert EVIL not in page
    data = payload(page)
    names = three_classes.predictions.classes
    assert data["classes"] == names and data["negatives"][0] == f"not {names[0]}"
    for f, name in enumerate(names):
        column = three_classes.predictions.bags[f"probability_{name}"]
        np.testing.assert_allclose(data["p"][f], column, atol=1e-5)
    assert np.sum(data["called"], axis=0).tolist() == [1] * 30
    assert len(data["instances"]["p"]) == len(data["instances"]["above"]) == 3
    assert page.count("ROC curve</h3>") == 3


@pytest.mark.parametrize("size", SIZES)
def test_the_figures_follow_the_chosen_class(browser, three_classes, size, tmp_path):
    page = opened(browser, write_report(three_classes, tmp_path / "r.html"), *size)
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    for number in ("1", "2"):
        page.locator("[data-choice]").last.select_option(number)
        shown = "[...document.querySelectorAll('[data-class]')].filter(n => !n.hidden)"
        numbers = page.evaluate(f"{shown}.map(n => n.dataset.class)")
        assert numbers == [number, number]  # of patients, and of figures
        y = three_classes.evaluation.y[:, int(number)]
        counts = [int(page.locator(f"#{name}").inner_text()) for name in ("tp", "fn")]
        assert sum(counts) == y.sum()
    # The instances of a bag can be looked at by any class.
    page.locator("#seen").select_option("1")
    name = three_classes.predictions.classes[1]
    assert name in page.locator(".map .scale").first.inner_text()
    shown = page.locator("#detail h3").inner_text()
    row = three_classes.predictions.bags.set_index("id").loc[shown]
    assert page.locator(".big").inner_text().startswith(f"{row[f'probability_{name}']:.3f}")
    page.get_by_label("Show").select_option(label=f"called {name}")
    assert len(column(page, 1)) == (three_classes.predictions.bags["label"] == name).sum()
    assert page.faults == []
    page.close()


CONTRAST = """() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const c = parse(getComputedStyle(node).backgroundColor);
      if (c.length === 3 || c[3] > 0.99) return c;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const node of document.querySelectorAll("h1,h2,h3,p,td,th,button,label,span,li,b,a,small")) {
    if (![...node.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    if (!node.getClientRects().length) continue;
    const back = getComputedStyle(node).backgroundColor.startsWith("color(") ? null : ground(node);
    if (!back || getComputedStyle(node).color.startsWith("color(")) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(back)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) low.push([node.tagName, node.textContent.trim().slice(0, 30), ratio]);
  }
  return low;
}"""


@pytest.fixture(scope="module")
def full_file(report, tmp_path_factory):
    """Everything at once: patients, figures of both kinds, bags that were trained on."""
    patients = [f"a patient with a long name {i // 2}" for i in range(30)]
    classes = report.predictions.classes
    table = patient_table(report.predictions.bags, patients, classes, 0.5)
    groups = np.arange(30) // 2
    held = replace(report.evaluation, groups=groups)
    made = report.predictions._replace(patients=table)
    path = tmp_path_factory.mktemp("full") / "full.html"
    full = report._replace(predictions=made, evaluation=held, cross_validated=held, n_seen=30)
    return write_report(full, path)


def test_no_table_or_card_is_cut_on_a_phone(browser, full_file):
    page = opened(browser, full_file, 390, 844)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    cut = (
        "[...document.querySelectorAll('.scroll,.card')]"
        ".filter(n => n.scrollWidth > n.clientWidth).map(n => n.textContent.slice(0, 40))"
    )
    assert page.evaluate(cut) == []
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_printed_page(browser, full_file, scheme, tmp_path):
    if shutil.which("pdftotext") is None:
        pytest.skip("needs pdftotext from poppler-utils")
    page = opened(browser, full_file, 1280, 900)
    page.emulate_media(media="print", color_scheme=scheme)
    white = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert white == "rgb(255, 255, 255)"
    adjust = "getComputedStyle(document.querySelector('.key.pos')).printColorAdjust"
    assert page.evaluate(adjust) == "exact"
    page.pdf(path=tmp_path / "r.pdf", format="A4")
    text = subprocess.run(
        ["pdftotext", "-layout", tmp_path / "r.pdf", "-"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    sheets = text.split("\f")
    # The title of a card and its last words are on one sheet.
    ends = {"Precision and recall": "Guessing", "Training": "iterations"}
    for first, last in ends.items():
        assert any(first in sheet and last in sheet for sheet in sheets)
    assert "Show more" not in text
    page.close()


def test_three_thousand_bags_load_fast(browser, tmp_path):
    rng = np.random.default_rng(0)
    n_bags, size = 3_000, 200
    grid = np.stack([np.arange(size) % 15, np.arange(size) // 15], axis=1) * 256.0
    bags = Bags(
        np.zeros((n_bags * size, 1), np.float32),
        np.arange(n_bags + 1) * size,
        [f"slide_{i:04d}" for i in range(n_bags)],
        columns={"coords": np.tile(grid, (n_bags, 1))},
    )
    y = np.arange(n_bags) % 2
    p = np.clip(0.3 + 0.4 * y + 0.15 * rng.normal(size=n_bags), 0.001, 0.999)
    names = np.array(["normal", "tumor"])
    called = names[(p > 0.5).astype(int)]
    table = pd.DataFrame({"id": bags.ids, "probability": p, "std": 0.1, "label": called})
    q = rng.uniform(size=n_bags * size)
    patches = pd.DataFrame({"bag": "", "probability": q, "std": 0.1 * q})
    made = Predictions(table, patches, ["normal", "tumor"], 0.5)
    path = tmp_path / "big.html"
    write_report(Report(made, bags, {}, y[:, None], Evaluation("3,000 bags", y, p)), path)
    assert path.stat().st_size < 5_000_000
    page = opened(browser, path, 1280, 900)
    session = page.context.new_cdp_session(page)
    # In the page's own processor time: the machine may be busy with something else.
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.reload()
    spent = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    assert spent["TaskDuration"] < 1.5
    assert page.locator("#table tbody tr").count() == 200
    assert page.faults == []
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_and_pictures_have_words(browser, page_file, scheme):
    page = opened(browser, page_file / "map.html", 1280, 900)
    page.emulate_media(color_scheme=scheme)
    assert page.evaluate(CONTRAST) == []
    unnamed = "[...document.querySelectorAll('[role=img],canvas')].filter(n => !n.ariaLabel).length"
    assert page.evaluate(unnamed) == 0
    unlabelled = (
        "[...document.querySelectorAll('input,select,button')]"
        ".filter(n => !(n.labels?.length || n.textContent.trim() || n.ariaLabel)).length"
    )
    assert page.evaluate(unlabelled) == 0
    assert page.evaluate("document.documentElement.lang") == "en"
    page.close()
