"""The command line: ``bagwise COMMAND``, one module per command."""

from bagwise.cli.commands import main

__all__ = ["main"]
