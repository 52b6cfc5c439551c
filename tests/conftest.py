"""Shared fixtures. Data beyond the wheel is found through BAGWISE_DATA; absent, tests skip."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# Compilation and loaded machines make single examples slow; correctness is what is tested.
settings.register_profile(
    "bagwise", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("bagwise")


def pytest_addoption(parser):
    parser.addoption(
        "--without-posix",
        action="store_true",
        help="run without os.preadv and os.sysconf, and start processes by spawn",
    )


def pytest_collection_modifyitems(config, items):
    """Examples of networks are run where torch is installed, and not collected elsewhere."""
    if importlib.util.find_spec("torch") is not None:
        return
    networks = [
        item
        for item in items
        if isinstance(item, pytest.DoctestItem) and item.name.startswith("bagwise.deep.")
    ]
    config.hook.pytest_deselected(items=networks)
    items[:] = [item for item in items if item not in networks]


def pytest_configure(config):
    if config.getoption("--without-posix"):
        import psutil  # noqa: F401  On this system it reads sysconf itself, when it is imported.

        for name in ("preadv", "pread", "sysconf", "sysconf_names"):
            if hasattr(os, name):
                delattr(os, name)
        multiprocessing.set_start_method("spawn")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def data_home() -> Path:
    """The folder with the published sets, or a skip with the reason."""
    home = os.environ.get("BAGWISE_DATA")
    if not home or not Path(home).is_dir():
        pytest.skip("set BAGWISE_DATA to the folder with the published sets")
    return Path(home)
