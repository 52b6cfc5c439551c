"""Where and how the work over instances runs: device, driver, cache, memory, checkpoints.

Nothing here knows a family of models. An estimator takes one ``execution`` parameter; `resolve`
turns its short forms into an `Execution`, which is checked when it is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from os import PathLike, fspath
from typing import Literal

import numpy as np

from bagwise.core.arrays import Rows, is_tensor
from bagwise.models.drivers import (
    CHUNKS_PER_SPAN,
    DRIVERS,
    LONG_CHUNK,
    Driver,
    make_driver,
    one_blas_thread,
)

# Instances from which a product in TF32 is quicker than one in float32.
TF32_FROM = 262_144
CACHES = ("auto", "memory", "disk", "none")
# Instances per chunk: in long ones threads meet at the interpreter's lock less often, still longer
# ones leave the cache and take memory. Short ones give every thread its share of few instances.
CHUNK_SIZE = 1024
_LONGEST_CHUNK = 8192
# Fewer instances are cut into short chunks.
_LONG_FROM = 8192
# On a GPU launches cost more than the cache saves.
DEVICE_CHUNK_SIZE = 1 << 24
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True)
class Execution:
    """How a fit and its predictions are run; the result does not depend on it.

    Parameters
    ----------
    device : str or None, default=None
        A torch device such as "cuda". Default: where the instances are (torch tensors stay on
        their device), else plain NumPy. A missing GPU is an error.
    dtype : {"float64", "float32"} or None, default=None
        Storage of the projected instances; small matrices are always float64. Default: the
        model's own choice.
    precision : {"tf32"} or None, default=None
        Allow products in TF32 on a GPU; the precision of the posterior of the papers' updates is
        made in float32 all the same.
    n_jobs : int or None, default=None
        Threads over blocks of bags; -1 means every core. Default: as many as BLAS may use where
        the work is large enough to gain from them.
    driver : {"serial", "threads", "dask"} or driver object or None, default=None
        Who runs the work. Default: the active Dask client where there is one, else threads as
        ``n_jobs`` says.
    cache : {"auto", "memory", "disk", "none"}, default="auto"
        Keep the projected instances in memory, in a temporary file, or project them anew in
        each iteration. "auto" is memory where they fit ``memory_limit``, else disk.
    memory_limit : int or str or None, default=None
        Bytes, or such as "2GB", that the projected instances may take. Default: half of what is
        free where they are kept, on the host or on the device.
    chunk_size : int or None, default=None
        Instances per chunk of work. Default: 1024, up to 8192 where there are enough for every
        thread, and 2^24 on a GPU.
    checkpoint : path or None, default=None
        Save the state of the fit there; a fit of the same problem that finds the file goes on
        from it. Removed when the fit ends.
    checkpoint_every : int or None, default=None
        Iterations between two checkpoints; default 10.

    Examples
    --------
    >>> from bagwise import Execution
    >>> Execution(cache="disk", n_jobs=2).cache
    'disk'
    >>> Execution(cache="disk", memory_limit="2GB")
    Traceback (most recent call last):
    ...
    ValueError: memory_limit has no effect with cache='disk'; drop one of them.
    """

    device: str | None = None
    dtype: Literal["float64", "float32"] | None = None
    precision: Literal["tf32"] | None = None
    n_jobs: int | None = None
    driver: str | Driver | None = None
    cache: Literal["auto", "memory", "disk", "none"] = "auto"
    memory_limit: int | float | str | None = None
    chunk_size: int | None = None
    checkpoint: str | PathLike[str] | None = None
    checkpoint_every: int | None = None

    def __post_init__(self) -> None:
        choices: dict[str, tuple[str | None, ...]] = {
            "dtype": ("float64", "float32", None),
            "precision": ("tf32", None),
            "cache": CACHES,
        }
        if isinstance(self.driver, str) or self.driver is None:
            choices["driver"] = (*DRIVERS, None)
        elif not (hasattr(self.driver, "map") and hasattr(self.driver, "sweep")):
            raise ValueError(
                f"driver must be one of {list(DRIVERS)} or an object with map and sweep; got "
                f"{self.driver!r}."
            )
        for name, known in choices.items():
            value = getattr(self, name)
            if value not in known:
                raise ValueError(f"{name} must be one of {list(known)}; got {value!r}.")
        for name in ("chunk_size", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and not (_is_whole(value) and value >= 1):
                raise ValueError(f"{name} must be a whole number of at least 1; got {value!r}.")
        if self.n_jobs is not None and (not _is_whole(self.n_jobs) or self.n_jobs == 0):
            raise ValueError(f"n_jobs must be a whole number other than 0; got {self.n_jobs!r}.")
        parse_bytes(self.memory_limit)
        # A setting that would have no effect is an error.
        if self.memory_limit is not None and self.cache in ("disk", "none"):
            raise ValueError(
                f"memory_limit has no effect with cache={self.cache!r}; drop one of them."
            )
        if self.n_jobs not in (None, 1) and self.driver not in (None, "threads"):
            raise ValueError(f"n_jobs has no effect with driver={self.driver!r}; drop one of them.")
        if self.checkpoint_every is not None and self.checkpoint is None:
            raise ValueError("checkpoint_every has no effect without checkpoint; give it a path.")
        on_gpu = self.device is not None and self.device.startswith("cuda")
        if on_gpu and (self.driver == "threads" or self.n_jobs not in (None, 1)):
            raise ValueError(
                f"threads have no effect with device={self.device!r}, which does the work itself; "
                "drop n_jobs and driver."
            )
        if self.precision is not None and (self.dtype == "float64" or self.device == "cpu"):
            raise ValueError(
                "precision='tf32' speeds up float32 products on a GPU; it has no effect with "
                f"dtype={self.dtype!r} and device={self.device!r}."
            )

    def make_driver(self, size: int = 0, device: str | None = None) -> Driver:
        """The driver that runs work over ``size`` numbers, on a torch device or on the host."""
        return make_driver(self.n_jobs, self.driver, size if device is None else 0)

    def chunk(self, on_device: bool, driver: Driver, n_rows: int) -> int:
        """Instances per chunk: a span of them for each worker, or what keeps a device busy."""
        if self.chunk_size is not None:
            return self.chunk_size
        if on_device:
            return DEVICE_CHUNK_SIZE
        share = n_rows // driver.n_parts
        if n_rows < _LONG_FROM:
            return max(share // CHUNKS_PER_SPAN, CHUNK_SIZE)
        # Bags do not end where shares do: a span that may be no longer would be cut in two.
        return min(max(share + share // 4, LONG_CHUNK), _LONGEST_CHUNK)

    def torch_device(self, instances: Rows | None) -> str | None:
        """The torch device to work on, or None for plain NumPy.

        A missing GPU is an error, never a silent step back to the CPU.
        """
        if self.device in (None, "cpu"):
            device = None
            if instances is not None and is_tensor(instances):
                device = str(instances.device)
        else:
            device = str(self.device)
            try:
                import torch
            except ImportError as error:
                raise ValueError(
                    f"device={device!r} needs torch: pip install '.[torch]' in a checkout."
                ) from error
            if device.startswith("cuda") and not torch.cuda.is_available():
                raise ValueError(
                    f"device={device!r} was asked for, but torch sees no GPU on this machine; use "
                    "device='cpu'."
                )
        if self.precision is not None and not str(device).startswith("cuda"):
            raise ValueError(
                "precision='tf32' has no effect without a GPU; pass device='cuda' or drop it."
            )
        return device

    def plan_cache(self, n_bytes: int, device: str | None = None) -> str:
        """Where ``n_bytes`` of projected instances are kept: "memory", "disk" or "none".

        "auto" is memory where they fit the limit, which defaults to half of what is free on the
        device, or on the host; else disk, or projecting anew on a device.
        """
        limit = parse_bytes(self.memory_limit)
        if self.cache == "auto":
            limit = free_memory(device) // 2 if limit is None else limit
            if n_bytes <= limit:
                return "memory"
            return "disk" if device is None else "none"
        if self.cache == "disk" and device is not None:
            raise ValueError(
                f"cache='disk' keeps projections of NumPy arrays; the work runs on {device!r}. "
                "Use cache='memory' or 'none' there."
            )
        if self.cache == "memory" and limit is not None and n_bytes > limit:
            raise ValueError(
                f"cache='memory' would hold {n_bytes / 1e9:.2f} GB of projected instances, more "
                f"than memory_limit ({limit / 1e9:.2f} GB); use cache='disk' or 'none', or fewer "
                "inducing points."
            )
        return self.cache

    def numbered(self, number: int) -> Execution:
        """The same for one of several fits, each of which keeps a checkpoint of its own."""
        if self.checkpoint is None:
            return self
        return replace(self, checkpoint=f"{fspath(self.checkpoint)}.{number}")

    def restricted(self, usable: tuple[str, ...], model: str) -> Execution:
        """The same, after checking that a model can use every setting that was made."""
        for field in fields(self):
            if field.name not in usable and getattr(self, field.name) != field.default:
                raise ValueError(
                    f"execution.{field.name} has no effect on {model}, which can use "
                    f"{', '.join(usable)}."
                )
        return self


_SHORT_FORMS = ("serial", "threads", "dask", "cpu", "cuda")


def resolve(execution: Execution | str | None) -> Execution:
    """The `Execution` meant by a parameter: itself, a short form, or the default.

    Examples
    --------
    >>> from bagwise.models.execution import resolve
    >>> resolve("threads").driver, resolve("cuda:1").device, resolve(None).cache
    ('threads', 'cuda:1', 'auto')
    """
    if execution is None:
        return Execution()
    if isinstance(execution, Execution):
        return execution
    if isinstance(execution, str):
        if execution in DRIVERS:
            return Execution(driver=execution)
        if execution == "cpu" or execution.split(":")[0] == "cuda":
            return Execution(device=execution)
    raise ValueError(
        f"execution must be an Execution or one of {list(_SHORT_FORMS)}; got {execution!r}."
    )


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def parse_bytes(size: int | float | str | None) -> int | None:
    """Bytes from a number or a string such as "1.5GB".

    Examples
    --------
    >>> from bagwise.models.execution import parse_bytes
    >>> parse_bytes("1.5 GB"), parse_bytes(100)
    (1500000000, 100)
    """
    if size is None:
        return None
    if isinstance(size, str):
        text = size.strip().upper()
        unit = next((u for u in sorted(_UNITS, key=len, reverse=True) if text.endswith(u)), "")
        try:
            amount = float(text.removesuffix(unit)) * _UNITS.get(unit, 1)
        except ValueError as error:
            raise ValueError(
                f"memory_limit must be bytes or such as '2GB'; got {size!r}."
            ) from error
    else:
        amount = float(size)
    if not amount > 0:
        raise ValueError(f"memory_limit must be larger than 0; got {size!r}.")
    return int(amount)


def free_memory(device: str | None = None) -> int:
    """Bytes that are free now, on the host or on a torch device."""
    if device is not None and device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    import psutil  # what the page cache would give up counts as free

    return int(psutil.virtual_memory().available)


@contextmanager
def device_settings(precision: str | None, n_instances: int) -> Iterator[None]:
    """TF32 where asked for and worth it, and one BLAS thread: the host only does M x M algebra.

    Short numbers keep three digits. Fewer instances are worked on in full float32, which is as
    quick there. Threads that spin between two small factorisations take the host from feeding
    the device.
    """
    import torch

    before = torch.backends.cuda.matmul.allow_tf32
    short = precision == "tf32" and n_instances >= TF32_FROM
    torch.backends.cuda.matmul.allow_tf32 = before or short
    try:
        with one_blas_thread():
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
