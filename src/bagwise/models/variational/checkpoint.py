"""Checkpoints of a fit: where it stands, written atomically every few iterations.

A fit that finds a checkpoint of the same problem goes on from there and ends with the same
result; a checkpoint of another problem is an error, never silently used or overwritten.
"""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np

from bagwise.core.arrays import concatenate, to_numpy
from bagwise.files import new_file
from bagwise.models.drivers import Driver
from bagwise.models.variational.likelihoods import Labels, Moments
from bagwise.models.variational.updates import Part, Posterior, Sites, State


def fingerprint(labels: Labels, pi: Any, projector: Any, *objects: Any) -> str:
    """Names a problem: its bags, labels, start, inducing points, kernel and likelihood."""
    digest = hashlib.sha256()
    for array in (*labels, pi, projector.Z, *projector.scaling):
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(repr((projector.kernel, str(projector.dtype), *objects)).encode())
    return digest.hexdigest()


class Checkpoint:
    """Saves a fit every ``every`` iterations; hands back the saved state once."""

    def __init__(self, path: Any, every: int, problem: str, likelihood: Any) -> None:
        self.path, self.every, self.problem = Path(path), every, problem
        self.likelihood = likelihood
        self.resumed_at = 0

    def saver(self, driver: Driver) -> Any:
        """The ``on_state`` of `fit_parts`."""

        def save(state: State, parts: list[Any]) -> None:
            if state.n_iter % self.every == 0 and state.n_iter > self.resumed_at:
                self._write(state, _read(parts, driver))

        return save

    def _write(self, state: State, columns: dict[str, Any]) -> None:
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

    def resume(self, parts: list[Part]) -> tuple[State | None, list[Part]]:
        """The saved state and the parts with their beliefs; None where nothing was saved."""
        if not self.path.exists():
            return None, parts
        try:
            with np.load(self.path, allow_pickle=False) as stored:
                saved = {name: stored[name] for name in stored.files}
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(f"{self.path} is not a checkpoint: {error}. Remove it.") from error
        if str(saved.get("problem")) != self.problem:
            raise ValueError(
                f"{self.path} is a checkpoint of another fit (other data, labels or parameters); "
                "remove it, or give another checkpoint path."
            )
        state = State(
            int(saved["n_iter"]),
            Posterior(saved["m"], np.asfortranarray(saved["W"])),
            saved["history"].tolist(),
            float(saved["change"]),
            bool(saved["converged"]),
        )
        self.resumed_at = state.n_iter
        return state, self._restore(parts, saved)

    def _restore(self, parts: list[Part], saved: dict[str, Any]) -> list[Part]:
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


def _belief_type(likelihood: Any) -> Any:
    """The NamedTuple in which a likelihood keeps its beliefs, from one instance's worth."""
    one = Labels(np.array([0, 1]), np.array([1]), np.array([-1], dtype=np.int8))
    return type(likelihood.start(Moments(np.zeros(1), np.ones(1)), one, np.array([0.5])))


class _Beliefs:
    """Reads what is believed in a part; picklable."""

    def __call__(self, part: Part) -> tuple[Part, dict[str, Any]]:
        assert part.beliefs is not None and part.new_sites is not None
        columns: dict[str, Any] = {
            f"belief_{name}": to_numpy(concatenate(getattr(b, name) for b in part.beliefs))
            for name in part.beliefs[0]._fields
        }
        for name in Sites._fields:
            columns[name] = to_numpy(concatenate(getattr(s, name) for s in part.new_sites))
        return part, columns


def _read(parts: list[Any], driver: Driver) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    driver.sweep(_Beliefs(), parts, found.append)
    return {name: np.concatenate([f[name] for f in found]) for name in found[0]}
