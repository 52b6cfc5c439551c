"""The reference of the command line, written from the parsers when the site is built."""

from __future__ import annotations

import argparse
from pathlib import Path

from bagwise.cli.commands import COMMANDS, build_parser
from bagwise.files.writing import new_file

_HEAD = """# Commands

Every command has `--json` (the result goes to standard output, everything else to standard error),
`--traceback` and `--help`. `python -m bagwise` is the same as `bagwise`. How the commands work
together is in [the command line](../../howto/command-line.md).

"""


def write_commands(page: Path) -> None:
    """A section per command: what it does, its usage, its options, its examples."""
    page.parent.mkdir(parents=True, exist_ok=True)
    parsers = dict(_commands(build_parser(), "bagwise"))
    sections = [_section(name, parser) for name, parser in parsers.items() if name != "bagwise"]
    with new_file(page) as draft:
        draft.write_text(_HEAD + "\n".join(sections), encoding="utf-8")


def _commands(parser, name):
    """A parser and those of its subcommands, by what is typed."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield from _commands(below, f"{name} {word}")


def _section(name, parser):
    about = parser.description or COMMANDS.get(name.split()[-1], "")
    options = [a for a in parser._actions if not isinstance(a, argparse._SubParsersAction)]
    rows = [_row(action) for action in options if action.dest not in ("help", "json", "traceback")]
    table = ["| argument | meaning |", "|---|---|", *rows] if rows else []
    text = [f"## {name}", "", _sentence(about), "", *table, ""]
    if parser.epilog:
        text += ["```text", parser.epilog.replace("%(prog)s", name).strip(), "```", ""]
    return "\n".join(text)


def _row(action):
    names = ", ".join(action.option_strings) or action.dest
    value = "" if action.nargs == 0 else _value(action)
    help_text = (action.help or "") % {"default": action.default, "prog": "bagwise"}
    return f"| `{names}{value}` | {_sentence(help_text.replace('|', chr(92) + '|'))} |"


def _value(action):
    if not action.option_strings:
        return ""
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""
    metavar = action.metavar if isinstance(action.metavar, str) else None
    return " " + (metavar or choices or action.dest.upper()).replace("|", "\\|")


def _sentence(text):
    text = " ".join(text.split())
    return text[:1].upper() + text[1:] if text else ""
