"""Checkpoints of a fit: where it stands, written atomically every few iterations.

A fit that finds a checkpoint of the same problem goes on from there and ends with the same
result; a checkpoint of another problem is an error, never silently used or overwritten.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bagwise.core.arrays import Array, Column, Floats, Wholes, concatenate, to_numpy
from bagwise.files import new_file
from bagwise.files.problems import UNREADABLE, one_line
from bagwise.models.drivers import Driver
from bagwise.models.variational.blocks import BagLabels, InducingPosterior, host
from bagwise.models.variational.inference import State, Sums, posteriors
from bagwise.models.variational.noisy_max import BagLikelihood, Moments
from bagwise.models.variational.parts import Part, Sites
from bagwise.models.variational.search import Trial
from bagwise.models.variational.updates import FitState

if TYPE_CHECKING:
    from bagwise.core.kernels import Kernel
    from bagwise.models.variational.engine import Problem
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
    except UNREADABLE as error:
        raise ValueError(f"{path} is not a checkpoint: {one_line(error)}. Remove it.") from error
    if str(saved.get("problem")) != problem:
        raise ValueError(
            f"{path} is a checkpoint of another fit (other data, labels or parameters); "
            "remove it, or give another checkpoint path."
        )
    return saved


class SearchCheckpoint:
    """What a search found and where the fit after it stands, so that a stopped fit goes on.

    ``asked`` describes the settings; another fit's file is an error.
    """

    def __init__(
        self, problem: Problem, asked: str, kernels: list[Kernel], likelihood: Any
    ) -> None:
        path = problem.execution.checkpoint
        self.path = None if path is None else Path(path)
        self.every, self.stored = problem.execution.saves_every, {}
        # What was asked for says which kind of kernel and likelihood the numbers are of.
        self.kernel, self.likelihood = kernels[0].resolve(problem.sample), likelihood
        if self.path is not None:
            arrays = [x for x in (*problem.labels, problem.Z, *problem.scaling) if x is not None]
            self.problem = fingerprint_arrays(arrays, (asked, problem.dtype))
            if self.path.exists():
                self.stored = _load(self.path, self.problem)

    def search(self, compute: Callable[[], Trial]) -> Trial:
        """The result of the search: stored, or computed now and stored."""
        if "theta" not in self.stored:
            trial = compute()
            self._save(
                theta=trial.kernel.theta, f0=trial.f0,
                judged=np.array([trial.bound, trial.loss]), start_m=trial.q.m, start_P=trial.q.P,
            )  # fmt: skip
            return trial
        saved = self.stored
        bound, loss = saved["judged"].tolist()
        return Trial(
            self.kernel.with_theta(saved["theta"]),
            self.likelihood,
            saved["f0"],
            posteriors(saved["start_m"], saved["start_P"]),
            bound,
            loss,
        )

    @property
    def state(self) -> State | None:
        """Where the fit stood; None where it had not begun."""
        if "m" not in self.stored:
            return None
        saved = self.stored
        sums = Sums(saved["value"], saved["linear"], saved["curvature"])
        rest = (saved[name] for name in State._fields[2:])
        return State(posteriors(saved["m"], saved["P"]), sums, *rest)

    def save_state(self, state: State) -> None:
        """Store where the fit stands, every few passes."""
        if self.path is not None and len(state.history) % self.every == 0:
            rest = dict(zip(State._fields[2:], state[2:], strict=True))
            self._save(m=state.q.m, P=state.q.P, **state.sums._asdict(), **rest)

    def _save(self, **arrays: Any) -> None:
        if self.path is None:
            return
        self.stored.update(arrays)
        with new_file(self.path) as draft, draft.open("wb") as stream:
            stored: dict[str, Any] = {**self.stored, "problem": np.array(self.problem)}
            np.savez(stream, **stored)

    def done(self) -> None:
        """Remove the checkpoint of a finished fit."""
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
                self._write(state, read_beliefs(parts, driver))

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

    def resume(self, parts: list[Any], driver: Driver) -> tuple[FitState | None, list[Any]]:
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
        return state, restored(parts, saved, self.likelihood, driver)

    def done(self) -> None:
        """Remove the checkpoint of a finished fit."""
        self.path.unlink(missing_ok=True)


def _belief_type(likelihood: BagLikelihood) -> Any:
    """The NamedTuple in which a likelihood keeps its beliefs, from one instance's worth."""
    one = BagLabels(np.array([0, 1]), np.array([1]), np.array([-1], dtype=np.int8))
    return type(likelihood.start(Moments(np.zeros(1), np.ones(1)), one, np.array([0.5])))


@dataclass(frozen=True)
class _Restore:
    """Puts beliefs and sites, stored in the order of the instances, back into a part."""

    columns: dict[str, Any]  # [N] each
    kind: Any  # of the beliefs

    def __call__(self, part: Part) -> tuple[Part, None]:
        beliefs, sites = [], []
        for block in part.blocks:
            row = host(block.labels.row)
            names = (f"belief_{name}" for name in self.kind._fields)
            beliefs.append(self.kind(*(self.columns[name][row] for name in names)))
            sites.append(Sites(*(self.columns[name][row] for name in Sites._fields)))
        made = part._replace(beliefs=tuple(beliefs), sites=tuple(sites), new_sites=tuple(sites))
        return made, None


def restored(
    parts: list[Any], columns: dict[str, Any], likelihood: BagLikelihood, driver: Driver
) -> list[Any]:
    """Parts that believe what `read_beliefs` read."""
    return driver.sweep(_Restore(columns, _belief_type(likelihood)), parts, lambda _: None)


def _beliefs(part: Part) -> tuple[Part, dict[str, Any]]:
    """What is believed in a part, with the numbers of its instances."""
    assert part.beliefs is not None and part.new_sites is not None
    columns: dict[str, Any] = {
        f"belief_{name}": to_numpy(concatenate(getattr(b, name) for b in part.beliefs))
        for name in part.beliefs[0]._fields
    }
    # The last pass makes no sites: those that made q are the ones to go on from.
    sites = part.sites if isinstance(part.new_sites[0].omega, float) else part.new_sites
    assert sites is not None
    for name in Sites._fields:
        columns[name] = to_numpy(concatenate(getattr(s, name) for s in sites))
    columns["row"] = np.concatenate([host(block.labels.row) for block in part.blocks])
    return part, columns


def read_beliefs(parts: list[Any], driver: Driver) -> dict[str, Floats]:
    """Beliefs and sites of every instance, in the order of the instances."""
    found: list[dict[str, Any]] = []
    driver.sweep(_beliefs, parts, found.append)
    order = np.argsort(np.concatenate([f.pop("row") for f in found]))
    return {name: np.concatenate([f[name] for f in found])[order] for name in found[0]}
