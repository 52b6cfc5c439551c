"""Calls into compiled solvers that Ctrl-C ends at once."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any, TypeVar

Result = TypeVar("Result")
# Seconds between two looks: on Windows a wait without an end cannot be interrupted.
_WAIT = 0.2


def interruptible(function: Callable[..., Result], *arguments: Any, **settings: Any) -> Result:
    """The result of ``function(*arguments, **settings)``, computed in a thread.

    Python raises `KeyboardInterrupt` in the main thread and between two bytecodes, so a solver
    in compiled code would have to return first. Here the main thread only waits. The call must
    release the interpreter lock; after an interrupt its result is dropped when it ends.

    Examples
    --------
    >>> from bagwise.core.interrupts import interruptible
    >>> interruptible(sum, [1, 2], start=3)
    6
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function(*arguments, **settings))
        except BaseException as error:  # noqa: BLE001 (raised again below)
            errors.append(error)

    thread = Thread(target=run, name="bagwise-solver", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_WAIT)
    if errors:
        raise errors[0]
    return results[0]
