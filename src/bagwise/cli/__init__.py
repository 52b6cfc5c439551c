"""The command line: ``bagwise COMMAND``.

Parsing is in `parser`, what the commands do with the rooms below in `commands` and `vision`.
"""

from bagwise.cli.parser import main

__all__ = ["main"]
