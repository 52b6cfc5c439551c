"""What the documentation promises: examples everywhere, links that resolve, the house limits."""

from __future__ import annotations

import doctest
import importlib
import inspect
import io
import json
import pkgutil
import re
import shlex
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import figures

import bagwise
from bagwise.cli import main
from bagwise.cli.commands import build_parser
from tests.checks import CHECKS
from tests.filing import make_folder

ROOT = Path(__file__).parent.parent
PAGES = figures.pages()  # README and what people write below docs/; the rest is generated
MODULES = sorted((ROOT / "src").rglob("*.py"))


def public_names():
    """Every class and function that a public module lists in ``__all__``, once."""
    found = {}
    names = [module.name for module in pkgutil.walk_packages(bagwise.__path__, "bagwise.")]
    for name in ["bagwise", *names]:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in ("torch", "triton"):  # extras whose modules need them at once
                raise
            continue
        for public in getattr(module, "__all__", ()):
            value = getattr(module, public)
            if inspect.isclass(value) or inspect.isfunction(value):
                found.setdefault(value, f"{name}.{public}")
    return sorted((path, value) for value, path in found.items())


PUBLIC = public_names()


def test_public_names_are_found():
    assert {"bagwise.VGPMIL", "bagwise.evaluate.compare", "bagwise.files.read_bags"} <= {
        path for path, _ in PUBLIC
    }


@pytest.mark.parametrize("value", [v for _, v in PUBLIC], ids=[p for p, _ in PUBLIC])
def test_has_a_docstring_with_an_example(value):
    # A class that inherits its docstring has none.
    assert value.__doc__, "no docstring"
    assert ">>>" in value.__doc__, "no example in the docstring"


def test_api_pages_list_every_public_name():
    pages = (ROOT / "docs" / "reference" / "api").glob("*.rst")
    texts = [page.read_text(encoding="utf-8") for page in pages]
    words = set(re.findall(r"^   (\w+)$", "\n".join(texts), re.MULTILINE))
    missing = [path for path, _ in PUBLIC if path.rpartition(".")[2] not in words]
    assert not missing


class Roughly(doctest.OutputChecker):
    """Output as printed, with numbers equal to 0.05: probabilities differ a little by machine."""

    NUMBER = re.compile(r"-?\d+\.\d*")

    def check_output(self, want, got, optionflags):
        if super().check_output(want, got, optionflags):
            return True
        texts = [" ".join(self.NUMBER.sub("#", text).split()) for text in (want, got)]
        numbers = [[float(n) for n in self.NUMBER.findall(text)] for text in (want, got)]
        return re.sub(" ", "", texts[0]) == re.sub(" ", "", texts[1]) and all(
            abs(a - b) <= 0.05 for a, b in zip(*numbers, strict=True)
        )


def test_numbers_in_examples_are_compared():
    check = Roughly().check_output
    assert check("array([0.81, 1.  ])", "array([0.83, 0.99])", 0)
    assert not check("array([0.81, 1.  ])", "array([0.61, 0.99])", 0)
    assert not check("array([0.81, 1.  ])", "array([0.81])", 0)


# The prompts of contributing.md are in the docstring of its example, which has a test of its own.
EXAMPLE_PAGES = [
    page
    for page in PAGES
    if ">>>" in page.read_text(encoding="utf-8") and page.name != "contributing.md"
]


@pytest.mark.parametrize(
    "page", EXAMPLE_PAGES, ids=[p.relative_to(ROOT).as_posix() for p in EXAMPLE_PAGES]
)
def test_page_examples(page):
    text = page.read_text(encoding="utf-8")
    if "bagwise.deep" in text:
        pytest.importorskip("torch", reason="the page needs the extra torch")
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    runner = doctest.DocTestRunner(checker=Roughly(), verbose=False)
    report = io.StringIO()
    runner.run(test, out=report.write)
    assert runner.tries > 3
    assert runner.failures == 0, report.getvalue()


def test_readme_has_the_flagship():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "AutoVGPMIL(" in text
    assert ROOT / "README.md" in EXAMPLE_PAGES


def commands(page):
    """The lines of a page's shell blocks as words, without comments."""
    blocks = re.findall(
        r"```(?:sh|bash)\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.fixture
def small_search(monkeypatch):
    """AutoVGPMIL with few inducing points: the commands are tested, not the search."""
    from bagwise import AutoVGPMIL

    monkeypatch.setitem(AutoVGPMIL.__init__.__kwdefaults__, "n_inducing", 20)


def test_readme_commands(tmp_path, monkeypatch, capsys, small_search):
    monkeypatch.chdir(tmp_path)
    ran = []
    for words in commands(ROOT / "README.md"):
        if words[0] == "bagwise":
            few = ["--bags", "24"] if words[1:] == ["demo"] else []  # instead of 150
            assert main([*words[1:], *few]) == 0, capsys.readouterr().err
            ran.append(words[1])
    assert ran == ["demo", "fit", "predict"]
    assert (tmp_path / "predictions" / "report.html").exists()


TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.mark.parametrize("page", [p for p in TUTORIALS if p.stem != "index"], ids=lambda p: p.stem)
def test_tutorial(page, tmp_path, monkeypatch, capsys):
    """Every block runs in turn, in an empty folder, and prints what the page says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    text, names, printed, n_compared = page.read_text(encoding="utf-8"), {}, None, 0
    for language, block in re.findall(r"```(\w+)\n(.*?)```", text, flags=re.DOTALL):
        if language == "python":
            capsys.readouterr()
            exec(compile(block, page.name, "exec"), names)
            printed = capsys.readouterr().out
        elif language == "text" and printed is not None:
            assert Roughly().check_output(block, printed, 0), printed
            printed, n_compared = None, n_compared + 1
        elif language == "sh" and page.stem in ("pathology", "ct"):
            for words in (shlex.split(line, comments=True) for line in block.splitlines()):
                assert main(words[1:]) == 0, capsys.readouterr().err
    assert n_compared >= 2


@pytest.mark.parametrize("page", PAGES, ids=[p.relative_to(ROOT).as_posix() for p in PAGES])
def test_commands_exist(page):
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for words in commands(page):
        if words[0] == "make":
            assert words[1] in targets
        elif words[0] == "bagwise":
            build_parser().parse_args(words[1:])


@pytest.fixture
def slides(tmp_path, monkeypatch):
    """The folder that the pages speak of: features/, labels.csv and new/."""
    features, _ = make_folder(tmp_path)
    features.rename(tmp_path / "features")
    shutil.copytree(tmp_path / "features", tmp_path / "new")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_getting_started_from_files(slides):
    page = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (block,) = [block for block in blocks if "read_training" in block]
    exec(compile(block, "getting-started.md", "exec"), {})
    assert (slides / "model.bagwise").exists()


@pytest.mark.parametrize("page", ["getting-started.md", "howto/command-line.md"])
def test_commands_from_files(page, slides, capsys, small_search):
    ran = [words for words in commands(ROOT / "docs" / page) if words[0] == "bagwise"]
    for words in ran[:2]:
        assert main(words[1:]) == 0, capsys.readouterr().err
    assert [words[1] for words in ran[:2]] == ["fit", "predict"]


def links(page):
    """Targets of inline links and images outside of code."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    return re.findall(r"\]\(([^)\s]+)\)", text)


@pytest.mark.parametrize("page", PAGES, ids=[p.relative_to(ROOT).as_posix() for p in PAGES])
def test_links_resolve(page):
    for target in links(page):
        path = target.partition("#")[0]
        if not path or re.match(r"[a-z]+:", path):
            continue
        # Gallery pages are made from the scripts.
        gallery = re.fullmatch(r".*auto_examples/(\w+)\.\w+", path)
        # Pages of results are generated from the stored runs.
        result = re.fullmatch(r"(?:\.\./)*results/(\w+)\.md", path)
        if "index" in (match[1] for match in (gallery, result) if match):
            continue
        if gallery:
            assert (ROOT / "examples" / f"{gallery[1]}.py").exists(), target
        elif result:
            run = ROOT / "experiments" / "results" / result[1] / "run.json"
            assert run.exists(), target
        else:
            assert (page.parent / path).exists(), target


def test_glossary_names_exist():
    words = set(re.findall(r"\w+", "".join(path.read_text(encoding="utf-8") for path in MODULES)))
    rows = [
        row.split("|") for row in (ROOT / "GLOSSARY.md").read_text(encoding="utf-8").splitlines()
    ]
    named = [cells[2] for cells in rows if len(cells) > 3]  # on paper | in code | shape | ...
    code = " ".join(span for cell in named for span in re.findall(r"`([^`]+)`", cell))
    missing = set(re.findall(r"[A-Za-z_]\w*", code)) - words
    assert not missing


def test_gallery_is_rich():
    assert len(list((ROOT / "examples").glob("plot_*.py"))) >= 14


def contributing_example():
    """The model and the mathematics of docs/contributing.md, executed."""
    text = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    # A real module, so that its classes can be pickled.
    module = sys.modules["contributing_example"] = types.ModuleType("contributing_example")
    for block in blocks:
        if not any(
            word in block for word in ("CHECKS", "Comparator", "FORMATS", "METRICS", "RULES")
        ):
            exec(compile(block, "contributing.md", "exec"), vars(module))
    return module


EXAMPLE = contributing_example()


def make_example():
    return EXAMPLE.KeyInstanceMeans()


@pytest.mark.parametrize("check", CHECKS)
def test_contributing_model_keeps_the_contract(check):
    check(make_example)


def test_contributing_docstring_example():
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    for test in finder.find(EXAMPLE.KeyInstanceMeans, globs=dict(vars(EXAMPLE))):
        runner.run(test)
    assert runner.tries > 0
    assert runner.failures == 0


def test_contributing_baseline_method_is_one_class(monkeypatch):
    """The class of the page is a model by its name, like all others."""
    from bagwise.datasets import make_gaussian_bags
    from bagwise.evaluate import BagFolds, compare
    from bagwise.models.comparators import BASELINES
    from bagwise.models.registry import MODELS

    text = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n((?:(?!```).)*?Comparator.*?)```", text, flags=re.DOTALL)
    monkeypatch.setitem(BASELINES, "nearest-mean", None)  # what the page sets is taken back
    exec(compile(block, "contributing.md", "exec"), vars(EXAMPLE))
    assert MODELS["nearest-mean"].assumption == "standard"
    assert "nearest-mean" in list(MODELS)
    data = {"toy": make_gaussian_bags(n_bags=30, random_state=0)}
    made = compare(["nearest-mean"], data, BagFolds(3, seeds=(0,)), progress=False)
    assert made.summary(["auc"])["mean"].item() > 0.7


def test_contributing_bag_rule_is_one_entry(monkeypatch):
    """The rule of the page is a value of every ``bag_rule``."""
    from bagwise import DPMIL, VGPMIL, SingleInstance
    from bagwise.core import rules, segments
    from bagwise.datasets import make_gaussian_bags

    text = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n((?:(?!```).)*?RULES.*?)```", text, flags=re.DOTALL)
    monkeypatch.setitem(rules.RULES, "mean", None)  # what the page sets is taken back
    exec(compile(block, "contributing.md", "exec"), {"Any": Any, "segments": segments})
    bags, y = make_gaussian_bags(n_bags=30, random_state=0, return_X_y=True)
    for model in (
        SingleInstance(bag_rule="mean"),
        DPMIL(n_components=2, bag_rule="mean", random_state=0),
        VGPMIL(inference="paper", bag_rule="mean", n_inducing=8, random_state=0),
    ):
        odds = model.fit(bags, y).decision_function(bags)
        assert np.isfinite(odds).all()
        if not isinstance(model, VGPMIL):  # whose instances share what the bag has
            instances = model.decision_function_instances(bags)
            np.testing.assert_allclose(odds, segments.mean(instances, bags.offsets), atol=1e-9)


def test_contributing_kind_of_file_is_one_entry(tmp_path, monkeypatch):
    """The kind of the page is found in folders, checked, sliced on disk and named."""
    from bagwise.files import BadFilesError, formats, read_bags

    monkeypatch.setattr(formats, "FORMATS", dict(formats.FORMATS))
    text = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n((?:(?!```).)*?FORMATS.*?)```", text, flags=re.DOTALL)
    exec(compile(block, "contributing.md", "exec"), {"np": np})
    for name, rows in {"s1": [[1, 2], [3, 4]], "s2": [[5, 6]]}.items():
        content = {"features": rows, "coords": [[0, 0]] * len(rows)}
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    bags = read_bags(tmp_path, lazy=True)
    assert bags.ids.tolist() == ["s1", "s2"]
    assert bags[["s2", "s1"]].instances[:].tolist() == [[5, 6], [1, 2], [3, 4]]
    assert bags.coords.shape == (3, 2)
    (tmp_path / "s2.json").write_text('{"features": [[1, 2, 3]]}')
    (tmp_path / "s3.json").write_text("no")
    said = r"s3.json: Expecting value.*\n.*s2.json: has 3 features but 1 other files have 2"
    with pytest.raises(BadFilesError, match=said):
        read_bags(tmp_path)


def test_contributing_metric_is_one_entry(monkeypatch):
    """The metric of the page is one of bags, instances, folds, comparisons and searches."""
    from sklearn.metrics import hinge_loss

    from bagwise import MISVM, OneVsRest, SingleInstance, evaluate
    from bagwise.datasets import make_gaussian_bags
    from bagwise.evaluate import metrics
    from bagwise.report.tables import comparison_table

    text = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n((?:(?!```).)*?METRICS.*?)```", text, flags=re.DOTALL)
    monkeypatch.setitem(metrics.METRICS, "hinge", None)  # what the page sets is taken back
    exec(compile(block, "contributing.md", "exec"), {})
    bags, y = make_gaussian_bags(n_bags=30, random_state=0, return_X_y=True)
    model = SingleInstance().fit(bags, y)
    expected = hinge_loss(y, model.decision_function(bags))
    assert evaluate.bag_metrics(model, bags, y, ["hinge"])["hinge"] == pytest.approx(expected)
    scorer = evaluate.make_instance_scorer("hinge")
    assert (
        scorer(model, bags) == -evaluate.instance_metrics(model, bags, metrics=["hinge"])["hinge"]
    )
    three = OneVsRest(MISVM(calibrate=False)).fit(bags, np.arange(30) % 3)
    assert evaluate.bag_metrics(three, bags, np.arange(30) % 3, ["hinge"])["hinge"] > 0
    scheme = evaluate.BagFolds(2, (0,))
    models = {"a": SingleInstance(), "b": SingleInstance(bag_rule="noisy-or")}
    made = evaluate.compare(models, {"toy": (bags, y)}, scheme, metrics=["hinge"], progress=False)
    means = made.summary()["mean"]
    assert made.paired("hinge")["better"].item() == "ab"[int(means.argmin())]
    assert comparison_table(made, ["hinge"]).columns[2].header == "hinge"


def test_contributing_lists_where_things_are_registered():
    """Every place in the table exists, holds names, and what it names can be made."""
    text = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    places = re.findall(r"^\| [\w ]+ \| `([\w.]+):(\w+)` \|$", text, re.MULTILINE)
    assert len(places) >= 6
    for module, name in places:
        registered = getattr(importlib.import_module(module), name)
        assert len(registered) > 1
        assert all(isinstance(key, str) for key in registered)
