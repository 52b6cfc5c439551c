"""Options of a model and of its execution, written side by side in tests."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from bagwise import Execution

_EXECUTION = {field.name for field in fields(Execution)}


def gathered(**options: Any) -> dict[str, Any]:
    """The options with those of `Execution` moved into ``execution``."""
    where = {name: value for name, value in options.items() if name in _EXECUTION}
    rest = {name: value for name, value in options.items() if name not in _EXECUTION}
    return {**rest, "execution": Execution(**where)} if where else rest
