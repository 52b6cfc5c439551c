"""The results file: one finished fit per line, replaced as a whole, never half-written."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bagwise.core.arrays import is_sparse
from bagwise.files.writing import plain_json, write_text
from bagwise.models.base import Model


class RecordFile:
    """Finished fits by key, kept in a JSON-lines file that a restarted run reads first.

    Every change writes a new file beside the old one and renames it over, so that a killed
    process leaves either the old file or the new one.

    Parameters
    ----------
    path : path or None, default=None
        With None the records live in memory only.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._lines: dict[str, str] = {}
        if self.path is None or not self.path.exists():
            return
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                self._lines[json.loads(line)["key"]] = line
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(
                    f"{self.path}: line {number} is not a result of compare; "
                    "give another results file, or delete this one."
                ) from error

    def __contains__(self, key: str) -> bool:
        return key in self._lines

    def get(self, key: str) -> Any:
        """The record of a key."""
        return json.loads(self._lines[key])

    def add(self, record: dict[str, Any]) -> None:
        """Keep one record (with its ``key``) and write the file."""
        self._lines[record["key"]] = json.dumps(record, default=plain_json)
        if self.path is not None:
            write_text(self.path, "\n".join(self._lines.values()) + "\n")


def fingerprint(parts: Iterable[object]) -> str:
    """A short digest of settings and arrays; equal content gives equal digests across runs."""
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype}{part.shape}".encode())
            if part.dtype == object:
                digest.update(repr(part.tolist()).encode())
            else:
                digest.update(np.ascontiguousarray(part).tobytes())
        elif is_sparse(part):
            digest.update(fingerprint([part.data, part.indices, part.indptr]).encode())
        else:
            # Memory addresses in default reprs differ from run to run.
            digest.update(re.sub(r" at 0x[0-9a-f]+", "", str(part)).encode())
    return digest.hexdigest()


def describe_model(model: Model) -> str:
    """Class and every parameter of an estimator, nested ones included, in a fixed order."""

    def described(value: object) -> str:
        if hasattr(value, "get_params") and not isinstance(value, type):
            return type(value).__qualname__  # its own parameters are listed by their own keys
        return fingerprint([value]) if isinstance(value, np.ndarray) else repr(value)

    params = model.get_params(deep=True)
    listed = ", ".join(f"{k}={described(params[k])}" for k in sorted(params))
    return f"{type(model).__module__}.{type(model).__qualname__}({listed})"
