"""The results file: one finished fit per line, replaced as a whole, never half-written."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp


class RecordFile:
    """Finished fits by key, kept in a JSON-lines file that a restarted run reads first.

    Every change writes a new file beside the old one and renames it over, so that a killed
    process leaves either the old file or the new one.

    Parameters
    ----------
    path : path or None
        With None the records live in memory only.
    """

    def __init__(self, path: Any = None) -> None:
        self.path = None if path is None else Path(path)
        self._lines: dict[str, str] = {}
        if self.path is not None and self.path.exists():
            self._read()

    def _read(self) -> None:
        assert self.path is not None
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                key = json.loads(line)["key"]
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(
                    f"{self.path}: line {number} is not a result of compare; "
                    "give another results file, or delete this one."
                ) from error
            self._lines[key] = line

    def __contains__(self, key: str) -> bool:
        return key in self._lines

    def get(self, key: str) -> Any:
        """The record of a key."""
        return json.loads(self._lines[key])

    def add(self, record: dict[str, Any]) -> None:
        """Keep one record (with its ``key``) and write the file."""
        self._lines[record["key"]] = json.dumps(record, default=_plain)
        if self.path is not None:
            write_atomically(self.path, "\n".join(self._lines.values()) + "\n")


def write_atomically(path: Any, text: str) -> None:
    """Write a text file so that readers see the old one or the new one, never a part."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(0o644)  # mkstemp makes files that only their owner may read
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def fingerprint(parts: Iterable[Any]) -> str:
    """A short digest of settings and arrays; equal content gives equal digests across runs."""
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype}{part.shape}".encode())
            if part.dtype == object:
                digest.update(repr(part.tolist()).encode())
            else:
                digest.update(np.ascontiguousarray(part).tobytes())
        elif sp.issparse(part):
            digest.update(fingerprint([part.data, part.indices, part.indptr]).encode())
        else:
            # Memory addresses in default reprs differ from run to run.
            digest.update(re.sub(r" at 0x[0-9a-f]+", "", str(part)).encode())
    return digest.hexdigest()


def describe_model(model: Any) -> str:
    """Class and every parameter of an estimator, nested ones included, in a fixed order."""
    params = model.get_params(deep=True)
    listed = ", ".join(f"{k}={_describe(params[k])}" for k in sorted(params))
    return f"{type(model).__module__}.{type(model).__qualname__}({listed})"


def _describe(value: Any) -> str:
    if hasattr(value, "get_params") and not isinstance(value, type):
        return type(value).__qualname__  # its own parameters are listed by their own keys
    if isinstance(value, np.ndarray):
        return fingerprint([value])
    return repr(value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written to a results file.")
