"""A whole calibrated ``VGPMIL().fit`` beside what else one would call on the same bags.

Bags of ten instances with 32 features, made; every peer gets what it can bear, and ours the same:

- scikit-learn's ``GaussianProcessClassifier`` on instances that inherit their bag's label, of a
  size that it still bears (its cost grows with the third power), kernel not learned;
- MI-SVM as the published package solves it: the witness of every positive bag is chosen by the last
  solution, and each round is a dense quadratic programme for a general solver (``cvxopt``);
- one epoch of torchmil's ``ABMIL``, one bag per step; a network needs tens of them.

A peer that is not installed has no row: ``pip install cvxopt torchmil``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.metrics.pairwise import rbf_kernel

from bagwise import VGPMIL, Bags
from bagwise.core import segments
from bagwise.datasets import make_gaussian_bags
from benchmarks.timing import best_of

Peer = Callable[[Bags, Any], object]

GPC, QP, ABMIL = (
    "GaussianProcessClassifier",
    "MI-SVM by a general solver",
    "an epoch of torchmil's ABMIL",
)
QUOTED = {name: f"{name}, times VGPMIL's fit" for name in (GPC, QP, ABMIL)}


def run(quick: bool) -> list[dict[str, Any]]:
    peers: dict[str, tuple[Peer, int]] = {GPC: (gaussian_process, 200)}
    for name, module, peer, n_bags in (
        (QP, "cvxopt", svm_by_quadratic_programming, 200),
        (ABMIL, "torchmil", epoch_of_abmil, 500),
    ):
        try:
            __import__(module)
        except ImportError:
            continue
        peers[name] = peer, n_bags
    rows = []
    for name, (peer, n_bags) in peers.items():
        data = make_gaussian_bags(20 if quick else n_bags, 32, bag_size=(10, 10), random_state=0)
        y = np.asarray(data.y)
        ours, theirs = best_of(
            [partial(VGPMIL(random_state=0).fit, data.bags, y), partial(peer, data.bags, y)], 2
        )
        rows.append(
            {
                "what": f"{name} / VGPMIL().fit, {data.bags.n_instances} instances",
                "value": theirs / ours,
                "must": "",
                "ok": True,
                "quoted": {QUOTED[name]: theirs / ours},
            }
        )
    return rows


def gaussian_process(bags: Bags, y: Any) -> object:
    """Laplace's approximation on all instances, which inherit the label of their bag."""
    kernel = RBF(np.sqrt(bags.n_features))
    return GaussianProcessClassifier(kernel, optimizer=None).fit(bags.instances, y[bags.bag_index])


def svm_by_quadratic_programming(bags: Bags, y: Any, C: float = 1.0, most: int = 10) -> Any:
    """MI-SVM: all instances of negative bags, one witness of each positive bag."""
    from cvxopt import matrix, solvers

    X, offsets = bags.instances, bags.offsets
    negative = np.flatnonzero(y[bags.bag_index] == 0)
    positive = np.flatnonzero(y == 1)
    witnesses = np.array([X[offsets[i] : offsets[i + 1]].mean(0) for i in positive])
    chosen = None
    for _ in range(most):
        rows = np.concatenate([witnesses, X[negative]])
        sign = np.repeat([1.0, -1.0], [len(witnesses), len(negative)])
        n, K = len(rows), rbf_kernel(rows, gamma=1 / bags.n_features)
        limits = np.concatenate([-np.eye(n), np.eye(n)]), np.repeat([0.0, C], n)
        solved = solvers.qp(
            *(matrix(np.outer(sign, sign) * K), matrix(-np.ones(n))),
            *map(matrix, limits),
            *(matrix(sign[None]), matrix(0.0)),
            options={"show_progress": False},
        )
        weights = sign * np.array(solved["x"])[:, 0]
        score = rbf_kernel(X, rows, gamma=1 / bags.n_features) @ weights
        best = segments.argmax(score, offsets)[positive]
        if chosen is not None and np.array_equal(best, chosen):
            break
        chosen, witnesses = best, X[best]
    return weights


def epoch_of_abmil(bags: Bags, y: Any) -> object:
    """One pass of the attention network of torchmil, a step of Adam per bag."""
    import torch
    from torchmil import models

    network = models.ABMIL(in_shape=(bags.n_features,))
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    X, labels = torch.as_tensor(bags.instances, dtype=torch.float32), torch.as_tensor(y).float()
    for i in range(len(bags)):
        optimiser.zero_grad()
        bag = X[int(bags.offsets[i]) : int(bags.offsets[i + 1])][None]
        torch.nn.functional.binary_cross_entropy_with_logits(
            network(bag).reshape(1), labels[i : i + 1]
        ).backward()
        optimiser.step()
    return network
