"""Every section, equation, table and figure that is cited exists in the paper it is cited from.

`fixtures/papers.json` has the headings of the five papers and how many equations, tables, figures
and algorithms each prints. A citation names its paper by key (Eq. 29 of [CastroMacias2024]) or, on
the same line, by the name of its method (MIO paper, Table 1); in the modules and pages of
`OF_PAPER` everything that is not said otherwise is of one paper, also a bare equation number.
"""

from __future__ import annotations

import io
import json
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAPERS = json.loads((Path(__file__).parent / "fixtures" / "papers.json").read_text("utf-8"))
SRC = "src/bagwise"
OF_PAPER = {
    f"{SRC}/models/variational/paper.py": "CastroMacias2024",
    f"{SRC}/models/variational/paper_likelihoods.py": "CastroMacias2024",
    f"{SRC}/models/variational/hyper.py": "CastroMacias2024",
    "tests/reference/hyper.py": "CastroMacias2024",
    f"{SRC}/models/mio.py": "Li2010",
    f"{SRC}/models/embedded.py": "Li2010",
    f"{SRC}/models/miles.py": "Li2010",
    f"{SRC}/core/mio.py": "Li2010",
    f"{SRC}/vision/haar.py": "Li2010",
    f"{SRC}/vision/voters.py": "Li2010",
    f"{SRC}/models/dpmil.py": "Kandemir2014",
    f"{SRC}/core/dirichlet.py": "Kandemir2014",
    f"{SRC}/core/constrained.py": "Kandemir2014",
    f"{SRC}/report/mixtures.py": "Kandemir2014",
    "experiments/dpmil_newsgroups.py": "Kandemir2014",
    f"{SRC}/models/micrf/": "Deselaers2010",
    f"{SRC}/report/energies.py": "Deselaers2010",
    "experiments/micrf.py": "Deselaers2010",
    "experiments/kernel_learning.py": "CastroMacias2024",
    "experiments/barrett.py": "Haussmann2017",
    "experiments/mio_musk.py": "Li2010",
    "experiments/mio_regret.py": "Li2010",
    "experiments/psi_": "CastroMacias2024",
    "experiments/vgpmil_kpca.py": "Haussmann2017",
    "experiments/vgpmil_newsgroups.py": "Haussmann2017",
    "experiments/tracking.py": "Li2010",
    "experiments/notes/psi_vgpmil.md": "CastroMacias2024",
    f"{SRC}/core/distances.py": "Li2010",
    f"{SRC}/core/l1_svm.py": "Li2010",
    "docs/explanation/mio.md": "Li2010",
    "docs/explanation/miles.md": "Li2010",
    "docs/guide/tracking.md": "Li2010",
    "docs/guide/dpmil.md": "Kandemir2014",
    "docs/explanation/micrf.md": "Deselaers2010",
    "docs/explanation/vgpmil.md": "CastroMacias2024",
    "docs/guide/ct.md": "CastroMacias2024",
}
# Papers whose text is not listed: nothing can be said of what is cited from them.
NOT_LISTED = ("Ilse", "Raff", "Wang", "Nocedal")
_N = r"(?:[A-B]\.)?\d+(?:\.\d+)*"
_KINDS = {
    "sections": r"[Ss]ections?|[Ss]ec\.",
    "equations": r"[Ee]qs?\.|[Ee]quations?",
    "tables": r"[Tt]ables?",
    "figures": r"[Ff]igures?|[Ff]ig\.",
    "algorithms": r"Algorithm",
    "theorems": r"Theorem",
    "propositions": r"Prop(?:osition|\.)",
    "lemmas": r"Lemma",
}
_KIND = "|".join(f"(?P<{name}>{words})" for name, words in _KINDS.items())
_CITED = re.compile(
    rf"(?P<supplement>[Ss]upplement,? |supplement's )?\b(?:{_KIND})[ \n]"
    rf"\(?(?P<numbers>{_N}(?:(?:, | and | to )\(?{_N})*)\)?"
    r"(?:(?:,| and \d+)? of(?: the)?\s+\[(?P<key>\w+)\])?"
)
_BARE = re.compile(rf"(?<![\w\])])\((?P<numbers>{_N}(?:, {_N})*)\)(?: of \[(?P<key>\w+)\])?")
# The papers were once called by one letter.
_OLD = re.compile(r"\b[PV](?:\(\d+[),]| section \d)")
_NAMES = [(name, key) for key, paper in PAPERS.items() for name in (*paper["names"], f"[{key}]")]
_NAMES = sorted(_NAMES, key=lambda pair: -len(pair[0]))  # psi-VGPMIL before VGPMIL


def prose(path):
    """Lines that people read: comments and strings of a module, all of a page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        text = re.sub(r"```.*?```|<!-- table:.*?<!-- /table -->", "", text, flags=re.DOTALL)
        return list(enumerate(text.split("\n\n"), 1))
    pieces = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            # A short string is read with the rest of its line, which may name the paper.
            whole = token.string if "\n" in token.string else token.line
            kept = (s for s in whole.split("\n") if not re.match(r"\s*(>>>|\.\.\.|\()", s))
            pieces[token.start[0]] = "\n".join(kept)
    return list(pieces.items())


def exists(key, kind, number, supplement):
    """Whether a paper has a heading or a numbered thing."""
    paper = PAPERS[key]
    if kind == "sections":
        return number in paper["supplement sections" if supplement else kind]
    return 1 <= int(number) <= paper.get(f"supplement {kind}" if supplement else kind, 0)


def own_paper(name):
    """The paper of a module or page, if it has one."""
    return next((key for start, key in OF_PAPER.items() if name.startswith(start)), None)


def named_paper(text):
    """The paper of the last method that is named in a piece of text."""
    at = [(text.rfind(name), -i, key) for i, (name, key) in enumerate(_NAMES) if name in text]
    # psi-VGPMIL ends where VGPMIL does: the longer name, which comes first, wins.
    ends = [(place + len(_NAMES[-i][0]), i, key) for place, i, key in at]
    return max(ends)[2] if ends else None


def citations(name, text):
    """Paper, kind and number of everything a piece of text cites, and the words."""
    default = own_paper(name)
    for match in _CITED.finditer(text):
        kind = next(kind for kind in _KINDS if match[kind])
        sentence = text[max(0, match.start() - 160) : match.end() + 100]
        if match["key"] is None and any(word in sentence for word in NOT_LISTED):
            continue
        after = re.match(r"[^.\n]{0,30}? of\s+\[(\w+)\]", text[match.end() :])
        of = re.match(r"\s+(?:of|in)\s[^.,)]{0,30}", text[match.end() :])  # "of the MIO paper"
        before = text[max(0, match.start() - 160) : match.start()]
        key = match["key"] or (after and after[1]) or named_paper(of[0] if of else "")
        key = key or named_paper(before) or named_paper(sentence)
        key = key or default
        for number in re.findall(_N, match["numbers"]):
            # "supplement Figure 4", "section 2 of the supplement", "supplement Figures 1 and 4"
            right = re.match(r"\s+of\s+(?:the|its) supplement", text[match.end() :])
            near = right or ("upplement" in before and kind != "sections")
            supplement = bool(match["supplement"] or near)
            yield key, kind, number, supplement, match[0]
    if default is not None and not name.startswith("experiments"):
        for match in _BARE.finditer(text):
            numbers = re.findall(_N, match["numbers"])
            if len(numbers) > 2 or any("." in n or not 0 < int(n) < 100 for n in numbers):
                continue  # a tuple of values, or a year
            for number in numbers:
                yield match["key"] or default, "equations", number, False, match[0]


def files():
    places = [*ROOT.glob("src/**/*.py"), *ROOT.glob("experiments/*.py")]
    places += [*ROOT.glob("docs/*.md"), *ROOT.glob("experiments/notes/*.md"), ROOT / "README.md"]
    for folder in ("guide", "howto", "explanation", "tutorials", "benchmarks", "reference"):
        places += ROOT.glob(f"docs/{folder}/*.md")
    return [*sorted(places), ROOT / "GLOSSARY.md"]


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_what_is_cited_exists(path):
    name = str(path.relative_to(ROOT))
    wrong = []
    for match in _OLD.finditer(path.read_text(encoding="utf-8")):
        wrong.append(f"{match[0]!r}: name the paper by its key")
    for line, text in prose(path):
        for key, kind, number, supplement, words in citations(name, text):
            if key is None and not name.startswith("experiments"):  # a table there has a column
                wrong.append(f"{line}: {words!r} names no paper")
            if key in PAPERS and not exists(key, kind, number, supplement):
                wrong.append(f"{line}: {words!r}: {key} has no {kind} {number}")
    assert not wrong


def test_citations_are_seen():
    """What the test reads out of sentences; a wrong number in each is noticed."""
    for text, name, expected in [
        ("Eq. 29 of [CastroMacias2024]", "docs/x.md", ("CastroMacias2024", "equations", "29")),
        ("sections 6.1 to 6.3 of [CastroMacias2024]", "x", ("CastroMacias2024", "sections", "6.3")),
        ("Table 2 of the MI-CRF paper", "x", ("Deselaers2010", "tables", "2")),
        ("psi-VGPMIL, Tables 4 and 5", "x", ("CastroMacias2024", "tables", "5")),
        ("supplement Figure 4 of VGPMIL", "x", ("Haussmann2017", "figures", "4")),
        (
            "theta (28)",
            f"{SRC}/models/variational/paper.py",
            ("CastroMacias2024", "equations", "28"),
        ),
        (
            "(14) of [Haussmann2017]",
            f"{SRC}/models/variational/paper.py",
            ("Haussmann2017", "equations", "14"),
        ),
    ]:
        assert expected in [c[:3] for c in citations(name, text)], text
    assert not exists("CastroMacias2024", "sections", "3.2", False)
    assert not exists("CastroMacias2024", "equations", "65", False)
    assert exists("Haussmann2017", "sections", "2", True)
    assert not exists("Haussmann2017", "sections", "4", True)
    assert named_paper("psi-VGPMIL") == "CastroMacias2024"
    assert named_paper("the VGPMIL paper") == "Haussmann2017"
    assert named_paper("attention") is None
