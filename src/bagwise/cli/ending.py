"""How a command ends: done, refused in one line, interrupted, or stopped, with its exit code."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

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


def exit_code(error: BaseException, traceback: bool = False) -> int:
    """Exit code for what ended a command, which is said in one line on stderr.

    With ``traceback``, and where the error is no concern of the user, it is raised again.

    Examples
    --------
    >>> from bagwise.cli.ending import exit_code
    >>> exit_code(ValueError("labels.csv: has no rows"))  # says so on stderr
    2
    """
    if isinstance(error, BrokenPipeError):  # the reader of our output went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, KeyboardInterrupt):
        code, text = 130, "interrupted; nothing was written"
    elif isinstance(error, _Stopped):
        code, text = 143, "stopped; nothing was written"
    elif traceback or not isinstance(error, Exception):
        raise error
    elif isinstance(error, MemoryError):
        code, text = 2, "error: there is not enough memory for this"
    elif isinstance(error, _EXPECTED):
        code, text = 2, f"error: {message(error)}"
    else:
        code, what = 1, " ".join(message(error).split())[:500]
        text = f"error: unexpected {type(error).__name__}: {what} (this is a fault in bagwise; "
        text += "run again with --traceback and report what it prints)"
    # A name in a file may hold what the terminal cannot show.
    encoding = sys.stderr.encoding or "utf-8"
    shown = text.encode(encoding, "backslashreplace").decode(encoding)
    print(f"bagwise: {shown}", file=sys.stderr)
    return code


def message(error: BaseException) -> str:
    """What an error says, with the file it is about."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error).strip() or type(error).__name__


@contextmanager
def unwinding_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the command, so that it removes its drafts and workers."""

    def stop(number: int, frame: FrameType | None) -> None:
        # A second signal must not interrupt the cleaning up after the first.
        signal.signal(number, signal.SIG_IGN)
        raise _Stopped

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    numbers = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
