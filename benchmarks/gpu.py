"""What a user calls on a machine with a GPU, with the bound of the hardware or a peer beside it.

Run by hand: ``python -m benchmarks.gpu [--quick] [--only NAME ...] [--csv FILE]``. Every line is a
public call (``fit``, ``predict_proba``, ...), timed after one warm call; only the line *engine*
times what is inside. 10 million instances x 128 features in bags of ten, 200 inducing points, 20
iterations, TF32, unless the line says otherwise.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bagwise import VGPMIL, AutoVGPMIL, Bags, Execution
from benchmarks import bench_threads
from benchmarks.stored import store

TF32 = Execution(device="cuda", dtype="float32", precision="tf32")
N_INDUCING, N_ITER = 200, 20


class Line(NamedTuple):
    """One measurement."""

    what: str
    seconds: float
    beside: str  # what the bound or the peer is
    theirs: float  # its seconds


def seconds(function: Callable[[], object], repeats: int = 2) -> float:
    """Best wall time of a call that may leave work on the device."""
    import torch

    best = np.inf
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def make_bags(n: int, d: int, size: int = 10, device: str = "cuda") -> tuple[Bags, Any]:
    """Bags of one size, every other one positive: its first instance is moved."""
    import torch

    torch.manual_seed(0)
    X = torch.randn(n, d, device=device)
    y = np.arange(n // size) % 2
    X[::size][torch.as_tensor(y == 1, device=device)] += 1.0
    return Bags(X, np.arange(0, n + 1, size)), y


def model(**parameters: Any) -> VGPMIL:
    """The fit that is timed, by the paper's updates: two products per iteration."""
    defaults = {"n_inducing": N_INDUCING, "max_iter": N_ITER, "tol": 0.0, "random_state": 0}
    defaults |= {"inference": "paper", "execution": TF32, **parameters}
    return VGPMIL(**defaults)


def bare_products(n: int, m: int, n_iter: int) -> float:
    """Seconds of two products per iteration, TF32, and nothing else."""
    import torch

    A, W = torch.randn(m, n, device="cuda"), torch.randn(m, m, device="cuda")

    def run() -> None:
        for _ in range(n_iter):
            for a in A.split(1 << 20, dim=1):
                W @ a
                a @ a.T

    torch.backends.cuda.matmul.allow_tf32 = True
    run()
    best = seconds(run)
    torch.backends.cuda.matmul.allow_tf32 = False
    return best


def products_on_cores(n: int, m: int, dtype: str) -> float:
    """Seconds of the two products of an iteration, by all threads of BLAS and nothing else."""
    chunk = min(n, 65_536)
    A = np.ones((m, chunk), dtype=dtype)
    B, W = A.copy(), A[:, :m].copy()

    def run() -> None:
        W @ A
        A @ B.T

    run()
    return n / chunk * seconds(run, 5)


def calls(quick: bool) -> Iterator[Line]:
    """Fit and predict, data on the device and on the host."""
    import torch

    n = 200_000 if quick else 10_000_000
    bags, y = make_bags(n, 128)
    bare = bare_products(n, N_INDUCING, N_ITER)
    one = bare_products(n, N_INDUCING, 1)
    model(calibrate=False).fit(bags, y)
    torch.cuda.reset_peak_memory_stats()
    plain = seconds(lambda: model(calibrate=False).fit(bags, y))
    peak = torch.cuda.max_memory_allocated() / (4 * n * (128 + N_INDUCING))
    yield Line("VGPMIL(calibrate=False).fit, on the device", plain, "its bare products", bare)
    yield Line("peak on the device over A and X, a ratio", peak, "limit", 1.6)
    fitted = model().fit(bags, y)
    whole = seconds(lambda: model().fit(bags, y))
    yield Line("VGPMIL().fit, calibrated, on the device", whole, "its bare products", 2 * bare)
    for what, call in (
        ("predict_proba, on the device", lambda: fitted.predict_proba(bags)),
        (
            "predict_proba_instances(return_std=True), on the device",
            lambda: fitted.predict_proba_instances(bags, return_std=True),
        ),
    ):
        yield Line(what, seconds(call), "one bare pair of products", one)
    host = bags.with_instances(bags.instances.cpu().numpy())
    copy = seconds(lambda: torch.as_tensor(host.instances).to("cuda"))
    ours = seconds(lambda: model(calibrate=False).fit(host, y), 1)
    yield Line("VGPMIL(calibrate=False).fit, from a host array", ours, "the copy alone", copy)
    ours = seconds(lambda: fitted.predict_proba(host), 1)
    yield Line("predict_proba, from a host array", ours, "the copy alone", copy)


def engine(quick: bool) -> Iterator[Line]:
    """Projection and iterations with given points, without anything around them."""
    from bagwise.core.kernels import RBF
    from bagwise.models.drivers import Serial
    from bagwise.models.execution import DEVICE_CHUNK_SIZE, device_settings
    from bagwise.models.scaling import FeatureScaling
    from bagwise.models.variational import NoisyMax, Sech
    from bagwise.models.variational.blocks import BagLabels
    from bagwise.models.variational.paper import begin, iterate
    from bagwise.models.variational.projection import make_parts, make_projector, materialised

    n = 200_000 if quick else 10_000_000
    bags, y = make_bags(n, 128)
    Z = bags.instances[:N_INDUCING].double().cpu().numpy()
    scaling = FeatureScaling(np.zeros(128), np.ones(128))
    projector = make_projector(RBF(128**0.5, 1.0), Z, scaling, "float32").to("cuda")
    labels = BagLabels(bags.offsets, y[:, None]).dealt()
    start = partial(begin, task=0, start=np.full(n, 0.5, dtype=np.float32))

    def run() -> None:
        with device_settings("tf32", n):
            parts = make_parts(bags.instances, labels, projector, DEVICE_CHUNK_SIZE, 1)
            parts = materialised(parts, "memory", Serial())
            parts = Serial().sweep(start, parts, lambda _: None)
            iterate(parts, NoisyMax(), Sech(), max_iter=N_ITER, tol=0.0, driver=Serial())

    run()
    bare = bare_products(n, N_INDUCING, N_ITER)
    yield Line("engine: projection and iterations", seconds(run), "its bare products", bare)


def folder(quick: bool) -> Iterator[Line]:
    """A folder of 400 HDF5 files of 5,000 x 512, in the page cache."""
    import h5py

    from bagwise.files import read_bags

    n_files, rows = (8, 500) if quick else (400, 5000)
    rng = np.random.default_rng(0)
    base = rng.standard_normal((rows, 512), dtype=np.float32)
    y = np.arange(n_files) % 2
    with tempfile.TemporaryDirectory() as root:
        for i in range(n_files):
            with h5py.File(Path(root) / f"{i:03d}.h5", "w") as file:
                file["features"] = base + np.float32(0.01 * i + 0.5 * y[i] * (i % 50 == 0))
        start = time.perf_counter()
        for path in sorted(Path(root).iterdir()):
            path.read_bytes()
        reading = time.perf_counter() - start
        bags = read_bags(root, lazy=True)
        few = slice(0, 60)  # enough for every compiled pass to be loaded
        model().fit(bags[few], y[few])
        ours = seconds(lambda: model().fit(bags, y), 1)
        yield Line(f"VGPMIL().fit, {n_files} files, GPU", ours, "reading the files", reading)
        for name, dtype in (("cores", "float64"), ("cores, float32", "float32")):
            execution = Execution(dtype=dtype)  # type: ignore[arg-type]
            model(execution=execution).fit(bags[few], y[few])
            ours = seconds(partial(model(execution=execution).fit, bags, y))
            bare = 2 * N_ITER * products_on_cores(n_files * rows, N_INDUCING, dtype)
            what = f"VGPMIL().fit, {n_files} files, {name}"
            yield Line(what, ours, "bare products of a fit and its refit", bare)


def threads(quick: bool) -> Iterator[Line]:
    """Iterations on the cores, and what bare products gain by as many threads."""
    n = 20_000 if quick else 250_000
    counts = [1, 2, 4, 8, 16]
    executions = [*(Execution(n_jobs=k) for k in counts), None]
    one, *more = bench_threads.iterations(*bench_threads.make_bags(n), executions)
    for name, ours in zip(
        [*(f"{k} threads" for k in counts[1:]), "default settings"], more, strict=True
    ):
        yield Line(f"one iteration, {n} x 128, {name}", ours, "1 thread", one)
    one, *more = bench_threads.bare_products(n, counts)
    for k, bare in zip(counts[1:], more, strict=True):
        yield Line(f"bare products, {n} x 200, {k} threads", bare, "1 thread", one)


def auto(quick: bool) -> Iterator[Line]:
    """The automatic model on a million instances."""
    bags, y = make_bags(20_000 if quick else 1_000_000, 128)
    plain = seconds(lambda: VGPMIL(random_state=0, execution=TF32).fit(bags, y), 1)
    ours = seconds(lambda: AutoVGPMIL(random_state=0, execution=TF32).fit(bags, y), 1)
    yield Line("AutoVGPMIL().fit, 1 million x 128", ours, "one VGPMIL().fit", plain)


def growth(quick: bool) -> Iterator[Line]:
    """Seconds of a fit as one size grows; the ratio is the exponent against the line above."""
    position = {"instances": 0, "inducing points": 2, "features": 3}  # which size grows
    sizes = {
        "instances": [(10**k, 10, 100, 64) for k in ((4, 5) if quick else (4, 5, 6, 7))],
        "instances, in bags of 10,000": [
            (10**k, 10_000, 100, 64) for k in ((5,) if quick else (5, 6, 7))
        ],
        "inducing points": [(10**6, 10, m, 64) for m in ((50,) if quick else (50, 200, 1000))],
        "features": [(10**6, 10, 100, d) for d in ((32,) if quick else (32, 256, 2048))],
    }
    for name, runs in sizes.items():
        last: tuple[int, float] | None = None
        for run in runs:
            n, size, m, d = run
            bags, y = make_bags(n, d, size)
            grown = run[position[name.split(",")[0]]]
            fit = model(n_inducing=m, calibrate=False)
            fit.fit(bags, y)
            ours = seconds(lambda fit=fit, bags=bags, y=y: fit.fit(bags, y), 1)
            exponent = np.nan
            if last is not None:
                exponent = float(np.log(ours / last[1]) / np.log(grown / last[0]))
            yield Line(f"growth in {name}: {grown}", ours, "exponent", exponent)
            last = (grown, ours)
            del bags


def peers(quick: bool) -> Iterator[Line]:
    """GPyTorch's SVGP on instance labels, and the attention network, for one epoch."""
    n = 100_000 if quick else 1_000_000
    bags, y = make_bags(n, 128)
    ours = seconds(lambda: model().fit(bags, y))
    yield Line(f"VGPMIL().fit, {n} x 128", ours, "GPyTorch SVGP, one epoch", svgp_epoch(bags, y))
    yield Line(
        f"VGPMIL().fit, {n} x 128", ours, "AttentionMIL, one epoch", attention_epoch(bags, y)
    )


def svgp_epoch(bags: Bags, y: Any, batch: int = 8192) -> float:
    """Seconds of one epoch of GPyTorch's SVGP on inherited labels, from a tenth of the batches."""
    import gpytorch
    import torch

    X, Z = bags.instances, bags.instances[:N_INDUCING].clone()

    class SVGP(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            q = gpytorch.variational.CholeskyVariationalDistribution(len(Z))
            super().__init__(gpytorch.variational.VariationalStrategy(self, Z, q))
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    svgp, likelihood = SVGP().cuda(), gpytorch.likelihoods.BernoulliLikelihood().cuda()
    objective = gpytorch.mlls.VariationalELBO(likelihood, svgp, X.shape[0])
    optimiser = torch.optim.Adam(svgp.parameters(), lr=0.01)
    target = torch.as_tensor(np.repeat(y, 10), dtype=torch.float32, device="cuda")
    n_batches = max(2, X.shape[0] // batch // 10)

    def run() -> None:
        for i in range(n_batches):
            rows = slice(i * batch, (i + 1) * batch)
            optimiser.zero_grad()
            (-objective(svgp(X[rows]), target[rows])).backward()
            optimiser.step()

    run()
    return seconds(run, 1) / n_batches * (X.shape[0] / batch)


def attention_epoch(bags: Bags, y: Any) -> float:
    """Seconds of one epoch of the attention network on the same features."""
    from bagwise.deep import AttentionMIL

    some = bags[: min(len(bags), 10_000)].with_instances(
        bags.instances[: 10 * min(len(bags), 10_000)].cpu().numpy()
    )
    net = AttentionMIL(max_epochs=2, batch_size=64, random_state=0, execution="cuda")
    net.fit(some[:64], y[:64])
    start = time.perf_counter()
    net.fit(some, y[: len(some)])
    return (time.perf_counter() - start) / net.n_iter_ * len(bags) / len(some)


def agreement(quick: bool) -> Iterator[Line]:
    """Largest difference in probability from float64: on MUSK2, and where sums are long."""
    from bagwise.datasets import load_musk2

    bags, y = load_musk2(return_X_y=True)
    options: dict[str, Any] = {"n_inducing": 50, "calibrate": False}
    exact = model(**options, execution="cpu").fit(bags, y)
    for name, execution, limit in (
        ("TF32", TF32, 1e-4),
        ("float32", Execution(device="cuda", dtype="float32"), 1e-5),
    ):
        fitted = model(**options, execution=execution).fit(bags, y)
        gap = max(
            float(np.abs(getattr(exact, f)(bags) - getattr(fitted, f)(bags)).max())
            for f in ("predict_proba", "predict_proba_instances")
        )
        yield Line(f"difference in probability, {name} against float64", gap, "limit", limit)
    for n, d in [(20_000, 64)] if quick else [(2_000_000, 64), (2_000_000, 128), (10_000_000, 128)]:
        bags, y = make_bags(n, d)
        float64 = model(calibrate=False, execution=Execution(device="cuda", dtype="float64"))
        p = float64.fit(bags, y).predict_proba_instances(bags)
        for name, execution, limit in (
            ("TF32", TF32, 1e-4),
            ("float32", Execution(device="cuda", dtype="float32"), 1e-5),
        ):
            fitted = model(calibrate=False, execution=execution).fit(bags, y)
            gap = float(np.abs(p - fitted.predict_proba_instances(bags)).max())
            yield Line(f"difference in probability, {name}, {n} x {d}", gap, "limit", limit)


# What guides quote of a line: its seconds, what stands beside it, or how many times quicker it is.
QUOTED: dict[str, dict[str, Callable[[Line], float]]] = {
    "VGPMIL(calibrate=False).fit, on the device": {
        "GPU fit without calibration, seconds": lambda line: line.seconds,
        "GPU bare products, seconds": lambda line: line.theirs,
    },
    "peak on the device over A and X, a ratio": {
        "GPU peak memory over A and X": lambda line: line.seconds,
    },
    "VGPMIL().fit, calibrated, on the device": {"GPU fit, seconds": lambda line: line.seconds},
    "predict_proba, on the device": {"GPU predict_proba, seconds": lambda line: line.seconds},
    "predict_proba_instances(return_std=True), on the device": {
        "GPU predict_proba_instances with std, seconds": lambda line: line.seconds,
    },
    "VGPMIL(calibrate=False).fit, from a host array": {
        "GPU fit from a host array without calibration, seconds": lambda line: line.seconds,
    },
    "engine: projection and iterations": {"GPU engine, seconds": lambda line: line.seconds},
    "VGPMIL().fit, 400 files, GPU": {
        "GPU fit from a folder, seconds": lambda line: line.seconds,
        "reading the folder, seconds": lambda line: line.theirs,
    },
    "VGPMIL().fit, 400 files, cores": {
        "16 cores, fit from a folder, seconds": lambda line: line.seconds,
    },
    "VGPMIL().fit, 400 files, cores, float32": {
        "16 cores, fit from a folder in float32, seconds": lambda line: line.seconds,
    },
    **{
        f"one iteration, 250000 x 128, {name}": {
            f"16 cores, {name}, times one thread": lambda line: line.theirs / line.seconds,
        }
        for name in ("2 threads", "16 threads", "default settings")
    },
    **{
        f"difference in probability, {name} against float64": {
            f"GPU {name}, difference in probability": lambda line: line.seconds,
        }
        for name in ("float32", "TF32")
    },
    **{
        f"difference in probability, {name}, {n}000000 x 128": {
            f"GPU {name}, difference in probability, {n} million instances": lambda line: (
                line.seconds
            ),
        }
        for name in ("float32", "TF32")
        for n in (2, 10)
    },
    "AutoVGPMIL().fit, 1 million x 128": {
        "GPU AutoVGPMIL fit of a million, seconds": lambda line: line.seconds,
    },
}


def quoted(line: Line) -> dict[str, float]:
    """The figures of a line that guides quote, by their names in ``measured.csv``."""
    if line.what.startswith("growth"):
        figures = {f"GPU {line.what}, seconds": line.seconds}
        return figures | (
            {f"GPU {line.what}, exponent": line.theirs} if np.isfinite(line.theirs) else {}
        )
    if line.beside.endswith("one epoch"):
        ours = {"GPU VGPMIL fit of a million, seconds": line.seconds}
        return ours | {f"GPU {line.beside} of a million, seconds": line.theirs}
    return {name: value(line) for name, value in QUOTED.get(line.what, {}).items()}


SECTIONS = {f.__name__: f for f in (agreement, calls, engine, folder, threads, auto, growth, peers)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--only", nargs="*", choices=sorted(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--csv", help="write the lines to this file, too")
    parser.add_argument("--store", action="store_true", help="keep figures that guides quote")
    arguments = parser.parse_args()
    if arguments.quick and arguments.store:
        parser.error("--store keeps what full sizes measure; leave out --quick.")
    import torch

    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    where = f"one {torch.cuda.get_device_name()}, {os.cpu_count()} cores"
    lines: list[Line] = []
    for name in arguments.only:
        for line in SECTIONS[name](arguments.quick):
            lines.append(line)
            ratio = line.seconds / line.theirs
            print(
                f"{line.what}: {line.seconds:.4g} ({line.beside}: {line.theirs:.4g}, "
                f"ratio {ratio:.3g})",
                flush=True,
            )
            if arguments.store:
                store(quoted(line), "python -m benchmarks.gpu", where)
            if arguments.csv:
                with Path(arguments.csv).open("w", newline="") as file:
                    csv.writer(file).writerows([Line._fields, *lines])
    return 0


if __name__ == "__main__":
    sys.exit(main())
