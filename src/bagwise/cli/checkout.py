"""The experiments of a checkout, which are not part of the installed package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

_RUNNER = Path("experiments") / "_runner.py"


def load_runner(*roots: Path) -> ModuleType:
    """The module that runs the experiments, from the first of the folders that has it.

    Parameters
    ----------
    *roots : path
        Defaults to the working directory, then the checkout that holds this very file.

    Examples
    --------
    >>> from pathlib import Path
    >>> from bagwise.cli.checkout import load_runner
    >>> load_runner(Path("no/such/folder"))
    Traceback (most recent call last):
    FileNotFoundError: the experiments are not part of the installed package: ...
    """
    # src/bagwise/cli/checkout.py -> the checkout
    for root in roots or (Path.cwd(), Path(__file__).resolve().parents[3]):
        if (root / _RUNNER).is_file():
            if str(root) not in sys.path:
                sys.path.insert(0, str(root))  # worker processes inherit it
            return importlib.import_module("experiments._runner")
    raise FileNotFoundError(
        "the experiments are not part of the installed package: clone the repository of bagwise, "
        "change into it and run `bagwise reproduce` there."
    )
