"""The shape of the documentation: lengths of pages, tables, pictures."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
from experiments import figures

ROOT = Path(__file__).parent.parent
# Lists with a row for every setting or rule, to look things up.
LISTS = {"docs/guide/presets.md", "docs/methods.md", "docs/methods-vision.md"}
MOST_WORDS, MOST_OF_A_PAGE, MOST_OF_A_HOWTO = 36_000, 1_800, 600


def n_words(page):
    """Words of prose: without code, injected tables and figures, and comments."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"<!-- table: .*?<!-- /table -->|```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    return len(text.split())


PAGES = {page.relative_to(ROOT).as_posix(): page for page in figures.pages()}


def test_the_documentation_can_be_read():
    counts = {name: n_words(page) for name, page in PAGES.items() if name not in LISTS}
    longest = sorted(counts.items(), key=lambda item: -item[1])[:8]
    assert sum(counts.values()) <= MOST_WORDS, longest


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_read(name):
    most = MOST_OF_A_HOWTO if name.startswith("docs/howto/") else MOST_OF_A_PAGE
    assert name in LISTS or n_words(PAGES[name]) <= most


def test_tables_of_the_readme_are_narrow():
    rows = re.findall(r"^\|.*\|$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows
    assert max(row.count("|") - 1 for row in rows) <= 5


def test_the_picture_of_the_readme_shows_its_numbers():
    """`docs/pictures.py` draws it from the README's code; the numbers are kept in the file."""
    image = pytest.importorskip("PIL.Image", reason="reading the picture needs pillow")
    with image.open(ROOT / "docs" / "_static" / "mil.png") as picture:
        drawn = [float(number) for number in picture.text["Description"].split()]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    examples = doctest.DocTestParser().get_examples(text)
    printed = [e.want for e in examples if e.want.startswith("array")]
    assert drawn == [float(number) for want in printed for number in re.findall(r"\d\.\d*", want)]


@pytest.mark.parametrize("name", PAGES)
def test_pictures_have_words_and_a_dark_side(name):
    text = PAGES[name].read_text(encoding="utf-8")
    for block in re.findall(r"```\{image\} (.*?)```", text, flags=re.DOTALL):
        path, alt = block.split()[0], re.search(r":alt: (.+)", block)
        assert alt, path
        if ":class: only-light" in block:
            dark = path.replace(".png", "-dark.png")
            assert f"```{{image}} {dark}" in text, path
            assert (PAGES[name].parent / dark).exists()


def test_the_reference_of_commands_has_every_command(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from commands import write_commands

    from bagwise.cli.commands import COMMANDS

    write_commands(tmp_path / "commands.md")
    text = (tmp_path / "commands.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert re.search(rf"^## bagwise {name}\b", text, re.MULTILINE), name
    assert "%(default)s" not in text
    assert "| `--min-sensitivity" in text
