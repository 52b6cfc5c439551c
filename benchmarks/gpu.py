"""VGPMIL on one GPU: kernel and 20 iterations over 10 million instances, beside bare products.

Run by hand where there is a GPU: ``python -m benchmarks.gpu [--quick]``. Prints a table; the data
are on the device before the clock starts. GPyTorch's SVGP epoch on the same data stands beside.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np


def sync_seconds(function: Any, repeats: int = 3) -> float:
    """Median wall time of a function that leaves work on the device."""
    import torch

    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def make_data(n: int, d: int, m: int) -> Any:
    """Bags of ten on the device, half of them positive, labels, a start, and inducing points."""
    import torch

    from bagwise.models.variational.blocks import BagLabels

    torch.manual_seed(0)
    X = torch.randn(n, d, device="cuda")
    y = np.arange(n // 10) % 2
    X[::10][torch.as_tensor(y == 1)] += 1.0
    Z = X[torch.randperm(n, device="cuda")[:m]].double().cpu().numpy()
    labels = BagLabels(np.arange(0, n + 1, 10), y, np.full(n, -1, dtype=np.int8))
    return X, labels, np.full(n, 0.5, dtype=np.float32), Z


def engine(X: Any, labels: Any, pi: Any, Z: Any, n_iter: int, precision: str | None) -> Any:
    """Kernel, projection and ``n_iter`` iterations, to the final q(u)."""
    from bagwise.core.kernels import RBF
    from bagwise.models.drivers import Serial
    from bagwise.models.execution import DEVICE_CHUNK_SIZE, device_settings
    from bagwise.models.scaling import FeatureScaling
    from bagwise.models.variational import NoisyMax, Sech
    from bagwise.models.variational.parts import make_parts, materialised
    from bagwise.models.variational.projection import make_projector
    from bagwise.models.variational.updates import iterate

    d = X.shape[1]
    scaling = FeatureScaling(np.zeros(d), np.ones(d))
    kernel = RBF(float(np.sqrt(d)), 1.0)
    projector = make_projector(kernel, Z, scaling, "float32").to("cuda")
    with device_settings(precision):
        parts = make_parts(X, labels, projector, pi, DEVICE_CHUNK_SIZE, 1)
        parts = materialised(parts, "memory", Serial())
        return iterate(parts, len(Z), NoisyMax(), Sech(), max_iter=n_iter, tol=0.0, driver=Serial())


def bare_products(n: int, m: int, n_iter: int) -> float:
    """Seconds of two products per iteration, TF32, and nothing else."""
    import torch

    A = torch.randn(m, n, device="cuda")
    W = torch.randn(m, m, device="cuda")

    def run() -> None:
        for _ in range(n_iter):
            for a in A.split(1 << 20, dim=1):
                W @ a
                a @ a.T

    torch.backends.cuda.matmul.allow_tf32 = True
    seconds = sync_seconds(run)
    torch.backends.cuda.matmul.allow_tf32 = False
    return seconds


def svgp_epoch(X: Any, y: Any, Z: Any, batch: int = 8192) -> float:
    """Seconds of one epoch of GPyTorch's SVGP on instance labels, from a tenth of the batches."""
    import gpytorch
    import torch

    class SVGP(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            points = torch.as_tensor(Z, dtype=torch.float32, device="cuda")
            q = gpytorch.variational.CholeskyVariationalDistribution(len(Z))
            strategy = gpytorch.variational.VariationalStrategy(self, points, q)
            super().__init__(strategy)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    model, likelihood = SVGP().cuda(), gpytorch.likelihoods.BernoulliLikelihood().cuda()
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, X.shape[0])
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    target = torch.as_tensor(np.repeat(y, 10), dtype=torch.float32, device="cuda")
    n_batches = max(2, X.shape[0] // batch // 10)

    def run() -> None:
        for i in range(n_batches):
            rows = slice(i * batch, (i + 1) * batch)
            optimiser.zero_grad()
            loss = -objective(model(X[rows]), target[rows])
            loss.backward()
            optimiser.step()

    run()
    return sync_seconds(run, 1) / n_batches * (X.shape[0] / batch)


def agreement() -> float:
    """Largest difference in probability between float64 on the CPU and float32 on the GPU."""
    from bagwise import VGPMIL, Execution
    from bagwise.datasets import load_musk2

    bags, y = load_musk2(return_X_y=True)
    options: dict[str, Any] = {"n_inducing": 50, "random_state": 0, "max_iter": 20, "tol": 0.0}
    cpu = VGPMIL(**options).fit(bags, y)
    gpu = VGPMIL(**options, execution=Execution(device="cuda", dtype="float32")).fit(bags, y)
    gaps = [
        np.abs(getattr(cpu, name)(bags) - getattr(gpu, name)(bags)).max()
        for name in ("predict_proba", "predict_proba_instances")
    ]
    return float(max(gaps))


def attention_ratio(n_bags: int) -> dict[str, float]:
    """Seconds per epoch of the attention network on the CPU and on the GPU."""
    from bagwise.bags import Bags
    from bagwise.deep import AttentionMIL

    rng = np.random.default_rng(0)
    images = rng.random((n_bags * 10, 1, 28, 28), dtype=np.float32)
    bags, y = Bags(images, np.arange(n_bags + 1) * 10), np.arange(n_bags) % 2
    seconds = {}
    for name, options in {
        "cpu": {"execution": "cpu"},
        "gpu": {"execution": "cuda"},
        "gpu-bf16": {"execution": "cuda", "mixed_precision": True},
    }.items():
        model = AttentionMIL(max_epochs=2, batch_size=64, random_state=0, **options)
        model.fit(bags[:64], y[:64])
        start = time.perf_counter()
        model.fit(bags, y)
        seconds[name] = (time.perf_counter() - start) / model.n_iter_
    return seconds


def profile(X: Any, labels: Any, pi: Any, Z: Any, n_iter: int) -> str:
    """Device and host time by operation."""
    import torch
    from torch.profiler import ProfilerActivity

    engine(X, labels, pi, Z, 2, "tf32")
    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        engine(X, labels, pi, Z, n_iter, "tf32")
        torch.cuda.synchronize()
    events = seen.key_averages()
    return "\n".join(
        events.table(sort_by=by, row_limit=25, max_name_column_width=60)
        for by in ("self_cuda_time_total", "self_cpu_time_total")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--profile", action="store_true", help="where the device time goes")
    parser.add_argument("--skip", nargs="*", default=[])
    arguments = parser.parse_args()
    import torch

    n, d, m, n_iter = (200_000 if arguments.quick else 10_000_000), 128, 200, 20
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    print("float32 on the GPU against float64 on the CPU, in probability:", agreement(), flush=True)
    X, labels, pi, Z = make_data(n, d, m)
    if arguments.profile:
        print(profile(X, labels, pi, Z, n_iter))
        return
    found: dict[str, Any] = {"instances": n, "features": d, "inducing": m, "iterations": n_iter}
    found["bare products, TF32"] = bare_products(n, m, n_iter)
    for name, precision in (("TF32", "tf32"), ("float32", None)):
        engine(X, labels, pi, Z, 2, precision)
        found[f"bagwise, {name}"] = sync_seconds(
            lambda precision=precision: engine(X, labels, pi, Z, n_iter, precision)
        )
        print(json.dumps(found), flush=True)
    found["peak GB"] = torch.cuda.max_memory_allocated() / 1e9
    if "svgp" not in arguments.skip:
        found["GPyTorch SVGP, one epoch"] = svgp_epoch(X, labels.y, Z)
    if "attention" not in arguments.skip:
        found["attention network, seconds per epoch"] = attention_ratio(
            200 if arguments.quick else 2000
        )
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
