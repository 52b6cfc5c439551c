"""Where files are: a path on this machine, or an address such as ``s3://bucket/features``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from bagwise.core.lazy import optional
from bagwise.files.problems import bad_file, one_line

if TYPE_CHECKING:
    from upath import UPath

# What the libraries behind an address raise beside OSError, once they are loaded.
_ERRORS = (
    ("botocore.exceptions", "BotoCoreError"),
    ("aiohttp", "ClientError"),
    ("google.auth.exceptions", "GoogleAuthError"),
)

# A path on this machine, or its like in a store.
AnyPath: TypeAlias = "Path | UPath"


def is_remote(address: object) -> bool:
    """Whether an address names a protocol."""
    return "://" in str(address)


def as_path(address: str | AnyPath) -> AnyPath:
    """A `pathlib.Path`, or its like for an address that fsspec understands.

    Examples
    --------
    >>> from bagwise.files.addresses import as_path
    >>> as_path("features/s1.h5").stem
    's1'
    """
    if not is_remote(address):
        return Path(address)
    try:
        path: UPath = optional("upath", extra="cloud", what="needs fsspec").UPath(str(address))
        _ = path.fs  # loads what the protocol needs
    except (ImportError, ValueError) as error:
        raise bad_file(address, f"cannot be opened: {one_line(error)}") from error
    return path


@contextmanager
def reachable(address: AnyPath) -> Iterator[None]:
    """Turn the errors of a store that cannot be reached into one line about the address."""
    kinds = [
        getattr(sys.modules[module], name) for module, name in _ERRORS if module in sys.modules
    ]
    try:
        yield
    except (OSError, *kinds) as error:
        if not is_remote(address):
            raise
        raise bad_file(address, f"cannot be reached: {one_line(error)}") from error
