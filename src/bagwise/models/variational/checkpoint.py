"""Checkpoints of a fit: where it stands, written atomically every few iterations.

A fit that finds a checkpoint of the same problem goes on from there and ends with the same
result; a checkpoint of another problem is an error, never silently used or overwritten.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bagwise.core.arrays import Array, Column, Floats, Wholes, concatenate, to_numpy
from bagwise.files import new_file
from bagwise.models.drivers import Driver
from bagwise.models.variational.blocks import BagLabels
from bagwise.models.variational.likelihoods import BagLikelihood, Moments
from bagwise.models.variational.parts import Part, Sites
from bagwise.models.variational.updates import FitState, InducingPosterior

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from bagwise.models.variational.projection import Projector


def fingerprint(labels: BagLabels, pi: Floats, projector: Projector, *objects: object) -> str:
    """Names a problem: its bags, labels, start, inducing points, kernel and likelihood."""
    arrays = [to_numpy(x) for x in (*labels, pi, projector.Z, *projector.scaling) if x is not None]
    return fingerprint_arrays(arrays, (projector.kernel, str(projector.dtype), *objects))


def fingerprint_arrays(arrays: Sequence[Array | Wholes], settings: object) -> str:
    """A name for arrays and settings: equal if, and only if, all of them are."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(repr(settings).encode())
    return digest.hexdigest()


def _load(path: Path, problem: str) -> dict[str, Column]:
    """The arrays of a checkpoint of this problem; a file that is none is an error."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            saved = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} is not a checkpoint: {error}. Remove it.") from error
    if str(saved.get("problem")) != problem:
        raise ValueError(
            f"{path} is a checkpoint of another fit (other data, labels or parameters); "
            "remove it, or give another checkpoint path."
        )
    return saved


class StageCheckpoint:
    """Keeps the results of finished stages, so that a stopped search goes on after the last."""

    def __init__(self, path: str | PathLike[str] | None, problem: str) -> None:
        self.path = None if path is None else Path(path)
        self.problem = problem
        self.stored: dict[str, Array] = {}
        if self.path is not None and self.path.exists():
            self.stored = _load(self.path, problem)

    def stage(self, name: str, compute: Callable[[], Sequence[Floats]]) -> list[Floats]:
        """The arrays of a stage: stored, or computed now and stored."""
        stored = self.load(name)
        if stored is None:
            stored = {f"array_{i}": array for i, array in enumerate(compute())}
            self.save(name, stored)
        return [np.asarray(stored[f"array_{i}"], dtype=np.float64) for i in range(len(stored))]

    def load(self, name: str) -> dict[str, Array] | None:
        """What a stage stored, or None."""
        prefix = f"{name}/"
        stage = {
            key.removeprefix(prefix): value
            for key, value in self.stored.items()
            if key.startswith(prefix)
        }
        return stage or None

    def save(self, name: str, arrays: dict[str, Array]) -> None:
        """Store the arrays of a stage beside those of the others."""
        if self.path is None:
            return
        self.stored.update({f"{name}/{key}": np.asarray(value) for key, value in arrays.items()})
        with new_file(self.path) as draft, draft.open("wb") as stream:
            stored: dict[str, ArrayLike] = {**self.stored, "problem": np.array(self.problem)}
            np.savez(stream, allow_pickle=True, **stored)

    def done(self) -> None:
        """Remove the checkpoint of a finished search."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class Checkpoint:
    """Saves a fit every ``every`` iterations; hands back the saved state once."""

    def __init__(self, path: Any, every: int, problem: str, likelihood: BagLikelihood) -> None:
        self.path, self.every, self.problem = Path(path), every, problem
        self.likelihood = likelihood
        self.resumed_at = 0

    def saver(self, driver: Driver) -> Any:
        """The ``on_state`` of `fit_parts`."""

        def save(state: FitState, parts: list[Any]) -> None:
            if state.n_iter % self.every == 0 and state.n_iter > self.resumed_at:
                self._write(state, _read(parts, driver))

        return save

    def _write(self, state: FitState, columns: dict[str, Any]) -> None:
        with new_file(self.path) as draft, draft.open("wb") as stream:
            np.savez(
                stream,
                problem=self.problem,
                n_iter=state.n_iter,
                m=state.q.m,
                W=state.q.W,
                history=np.array(state.history),
                change=state.change,
                converged=state.converged,
                **columns,
            )

    def resume(self, parts: list[Part]) -> tuple[FitState | None, list[Part]]:
        """The saved state and the parts with their beliefs; None where nothing was saved."""
        if not self.path.exists():
            return None, parts
        saved = _load(self.path, self.problem)
        state = FitState(
            int(saved["n_iter"]),
            InducingPosterior(saved["m"], np.asfortranarray(saved["W"])),
            saved["history"].tolist(),
            float(saved["change"]),
            bool(saved["converged"]),
        )
        self.resumed_at = state.n_iter
        return state, self._restore(parts, saved)

    def _restore(self, parts: list[Part], saved: dict[str, Column]) -> list[Part]:
        kind = _belief_type(self.likelihood)
        beliefs = [saved[f"belief_{name}"] for name in kind._fields]
        restored, start = [], 0
        for part in parts:
            edges = start + np.cumsum([0] + [len(pi) for pi in part.pis])
            rows = [slice(a, b) for a, b in itertools.pairwise(edges)]
            restored.append(
                part._replace(
                    beliefs=tuple(kind(*(column[r] for column in beliefs)) for r in rows),
                    new_sites=tuple(Sites(saved["omega"][r], saved["rho"][r]) for r in rows),
                )
            )
            start = int(edges[-1])
        return restored

    def done(self) -> None:
        """Remove the checkpoint of a finished fit."""
        self.path.unlink(missing_ok=True)


def _belief_type(likelihood: BagLikelihood) -> Any:
    """The NamedTuple in which a likelihood keeps its beliefs, from one instance's worth."""
    one = BagLabels(np.array([0, 1]), np.array([1]), np.array([-1], dtype=np.int8))
    return type(likelihood.start(Moments(np.zeros(1), np.ones(1)), one, np.array([0.5])))


class _Beliefs:
    """Reads what is believed in a part; picklable."""

    def __call__(self, part: Part) -> tuple[Part, dict[str, Floats]]:
        assert part.beliefs is not None and part.new_sites is not None
        columns: dict[str, Floats] = {
            f"belief_{name}": to_numpy(concatenate(getattr(b, name) for b in part.beliefs))
            for name in part.beliefs[0]._fields
        }
        for name in Sites._fields:
            columns[name] = to_numpy(concatenate(getattr(s, name) for s in part.new_sites))
        return part, columns


def _read(parts: list[Any], driver: Driver) -> dict[str, Floats]:
    found: list[dict[str, Floats]] = []
    driver.sweep(_Beliefs(), parts, found.append)
    return {name: np.concatenate([f[name] for f in found]) for name in found[0]}
