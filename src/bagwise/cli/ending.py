"""How a command ends: done, refused in one line, interrupted, or stopped, with its exit code."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

EXIT_CODES = """exit codes:
  0    done
  1    an error in bagwise itself; nothing was written
  2    the arguments, files or labels cannot be used; nothing was written
  130  interrupted with Ctrl-C; nothing was written
  143  stopped by SIGTERM; nothing was written"""

# What bad input raises; the message was written for the user.
_EXPECTED = (ValueError, OSError, ImportError)


class _Stopped(BaseException):
    """SIGTERM or SIGHUP, as something that unwinds and so removes every draft on the way."""


class Ending:
    """Turns whatever a command raises into an exit code and one line on stderr.

    As a context manager it sees every exception once, at the outermost place. Inside the
    command, only the errors that are expected are caught.

    Examples
    --------
    >>> from bagwise.cli.ending import Ending
    >>> with Ending() as ending:
    ...     ending.code = 1 // 0  # says on stderr what happened
    >>> ending.code
    1
    """

    def __init__(self, traceback: bool = False) -> None:
        self.traceback = traceback
        self.code = 0

    def __enter__(self) -> Ending:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if error is None:
            return True
        if isinstance(error, KeyboardInterrupt):
            return self._end(130, "interrupted; nothing was written")
        if isinstance(error, _Stopped):
            return self._end(143, "stopped; nothing was written")
        if isinstance(error, BrokenPipeError):  # the reader of our output went away, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return True
        if self.traceback or not isinstance(error, Exception):
            return False
        if isinstance(error, MemoryError):
            return self._end(2, "error: there is not enough memory for this")
        if isinstance(error, _EXPECTED):
            return self._end(2, f"error: {message(error)}")
        what = " ".join(message(error).split())
        return self._end(
            1,
            f"error: unexpected {type(error).__name__}: {what[:500]} (this is a fault in bagwise; "
            "run again with --traceback and report what it prints)",
        )

    def _end(self, code: int, text: str) -> bool:
        self.code = code
        # A name in a file may hold what the terminal cannot show.
        encoding = sys.stderr.encoding or "utf-8"
        shown = text.encode(encoding, "backslashreplace").decode(encoding)
        print(f"bagwise: {shown}", file=sys.stderr)
        return True


def message(error: BaseException) -> str:
    """What an error says, with the file it is about."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error).strip() or type(error).__name__


@contextmanager
def unwinding_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the command, so that it removes its drafts and workers."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    numbers = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.signal(number, _stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> None:
    # A second signal must not interrupt the cleaning up after the first.
    signal.signal(number, signal.SIG_IGN)
    raise _Stopped
