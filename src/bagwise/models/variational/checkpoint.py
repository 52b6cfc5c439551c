"""Checkpoints of a fit: where it stands, written atomically every few iterations.

A fit that finds a checkpoint of the same problem goes on from there and ends with the same
result; a checkpoint of another problem is an error, never silently used or overwritten.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bagwise.core.arrays import Column, to_numpy
from bagwise.files import new_file
from bagwise.files.problems import UNREADABLE, one_line
from bagwise.models.execution import Execution

# Iterations between two checkpoints, unless set otherwise.
_EVERY = 10


class Checkpoint:
    """The arrays that a stopped fit goes on from; without a path nothing is stored.

    ``arrays`` and ``settings`` name the problem: equal if, and only if, all of them are.
    """

    def __init__(self, execution: Execution, arrays: Iterable[Any], settings: object) -> None:
        self.path = None if execution.checkpoint is None else Path(execution.checkpoint)
        self.every = execution.checkpoint_every or _EVERY
        self.stored = dict[str, Column]()
        if self.path is None:
            return
        digest = hashlib.sha256()
        for array in arrays:
            if array is not None:
                digest.update(np.ascontiguousarray(to_numpy(array)).tobytes())
        digest.update(repr(settings).encode())
        self.problem = digest.hexdigest()
        if not self.path.exists():
            return
        try:
            with np.load(self.path, allow_pickle=False) as file:
                self.stored = {name: file[name] for name in file.files}
        except UNREADABLE as error:
            raise ValueError(
                f"{self.path} is not a checkpoint: {one_line(error)}. Remove it."
            ) from error
        if str(self.stored.pop("problem", "")) != self.problem:
            raise ValueError(
                f"{self.path} is a checkpoint of another fit (other data, labels or parameters); "
                "remove it, or give another checkpoint path."
            )

    def save(self, **arrays: Any) -> None:
        """Store arrays beside those stored before."""
        if self.path is None:
            return
        self.stored.update(arrays)
        with new_file(self.path) as draft, draft.open("wb") as stream:
            np.savez(stream, allow_pickle=False, problem=np.array(self.problem), **self.stored)

    def done(self) -> None:
        """Remove the checkpoint of a finished fit."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
