"""The words of the documentation: terms of the field instead of private ones."""

from __future__ import annotations

import argparse
import ast
import re
from pathlib import Path

import pytest
from experiments import figures

from bagwise.cli.commands import build_parser
from tests.test_reference import REFERENCE

ROOT = Path(__file__).parent.parent

# What a reader outside of this project cannot know: what to write instead.
INSTEAD = {
    r"maps? of the (bags|instances)|share map|instance_maps?_|\bmaps_": "calibration function",
    r"levels? of (the )?probabilit": "mean calibration error",
    r"\b(price|prices|priced|pay|pays|paid)\b": "shrinkage, penalty",
    r"\b(designs?|finalists?)\b": "candidate, shortlist",
    r"\b(weighs?|weighed|weighing)\b": "averaged with weights",
    r"\b(model|soft|higher|lower)-?\s?temperature": "model averaging weights",
    r"\bwitness(es)?\b": "key instance",
    r"\b(fixed|the|whose|old) sites\b": "site parameters",
    r"question per class|asks one question": "one-vs-rest",
    r"\bthree findings\b|bags? (of|with) a finding": "positive class",
    r"\bobeys?\b|\bobeying\b|but for size": "passes, fails",
    r"\bmade \d": "synthetic bags, k of n positive",
    r"\bstated\b|\bstates? too\b": "report, reported",
    r"\bhonest(ly)?\b": "out-of-fold, leakage-free, calibrated",
    r"\btimid\b|\btoo sure\b": "under-confident, over-confident",
    r"\bcry wolf\b|\bspeaks? up\b": "false positive, detect",
    r"\brivals?\b": "baseline methods",
    r"\b(sparse|linear|convex|deterministic|current|intersection) machines?\b": "SVM",
    r"\bprogrammes?\b": "linear program, quadratic program, software",
    r"\b(rooms?|doors?|house|home workers?|one home)\b": "package, layer, module",
    r"\btwins?\b": "counterpart, reference implementation",
    r"\bprotocols?\b": "cross-validation scheme",
    r"\bfrozen (folds|repetitions)\b": "fixed folds",
    r"\bsweeps?\b|\bdrivers?\b": "iteration, back-end",
    r"\bkin\b|\brelatives\b": "the VGPMIL family",
    r"\b[PV] ?\(\d+|\bof [PV]\b|\bas P does\b": "[Haussmann2017], [CastroMacias2024]",
    r"\b(cooled|bent|lends?|lent)\b": "shrunk slope, compressed tails",
}

# Where a word is right after all: (text it stands in, why).
RIGHT = {
    r"also called (a )?witness": "the glossary links the word of the literature to ours",
    r"\"design\"|'design'": "a value of the parameter `bag_labels`",
    r"drivers? : |driver object|The driver that|driver='?|and driver\b|driver must": "a parameter",
    r"object with map and sweep": "the methods of such an object",
}


def texts():
    """Everything that users read, by the place where it stands."""
    for page in [*figures.pages(), ROOT / "CHANGELOG.md", ROOT / "GLOSSARY.md"]:
        yield page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8")
    for script in sorted((ROOT / "examples").glob("plot_*.py")):
        yield script.relative_to(ROOT).as_posix(), script.read_text(encoding="utf-8")
    for path, value in REFERENCE:
        yield path, value.__doc__ or ""
    yield from help_texts(build_parser(), "bagwise")
    yield from messages()


def help_texts(parser, name):
    """The help of a command and of the commands below it."""
    yield f"{name} --help", parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield from help_texts(below, f"{name} {word}")


def messages():
    """The text of every error and warning of the package, by file."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        raised = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
        warned = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("warn")
        ]
        words = {
            part.value
            for node in [*raised, *warned]
            for part in ast.walk(node)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        }
        yield f"messages of {path.relative_to(ROOT).as_posix()}", "\n".join(sorted(words))


TEXTS = dict(texts())


def hits(pattern, text):
    """Where a private word stands, without code and the exceptions."""
    prose = re.sub(r"```.*?```|`[^`\n]+`|<!--.*?-->|\]\([^)]*\)", " ", text, flags=re.DOTALL)
    for right in RIGHT:
        prose = re.sub(right, " ", prose, flags=re.IGNORECASE)
    return [
        " ".join(prose[max(0, m.start() - 40) : m.end() + 40].split())
        for m in re.finditer(pattern, prose)
    ]


@pytest.mark.parametrize("pattern", INSTEAD, ids=list(INSTEAD.values()))
def test_no_private_words(pattern):
    found = [
        f"{place}: ...{hit}..." for place, text in TEXTS.items() for hit in hits(pattern, text)
    ]
    assert not found, f"say {INSTEAD[pattern]!r} in\n" + "\n".join(found)


def test_a_private_word_is_noticed():
    assert hits(r"\bhonest(ly)?\b", "the honest one")
    assert not hits(r"\bhonest(ly)?\b", "the `honest` one")
