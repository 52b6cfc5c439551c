"""The command line: ``bagwise COMMAND``. Parsing is here, the work is in the rooms below."""

from bagwise.cli.parser import main

__all__ = ["main"]
