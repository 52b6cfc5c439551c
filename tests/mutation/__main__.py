"""How much of a module the tests guard: the share of its mutants that some test notices.

    python -m tests.mutation src/bagwise/core/rules.py tests/core/test_rules.py --sample 60

Each mutant is run, in a copy of the repository, against the tests that reach its line, the quick
ones first, until one fails. A mutant that nothing reaches counts as unnoticed. Mutants that change
no result (a ``<`` for a ``<=`` between floats) are not told apart, so 100 % is out of reach.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import coverage
import pytest

from tests.mutation.mutants import Mutant, mutants

ROOT = Path(__file__).parents[2]
# Packages that are never mutated and take long to import: loaded once, before the forks.
_HEAVY = ("numpy", "scipy", "sklearn", "numba", "pandas", "matplotlib", "torch", "rich", "skops")


class _Durations:
    """Collects what each test took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration


def main() -> int:
    """Parse the arguments, mutate, print."""
    parser = argparse.ArgumentParser(prog="tests.mutation", description=__doc__)
    parser.add_argument("module", type=Path)
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--sample", type=int, help="mutants drawn at random (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of tests per mutant")
    arguments = parser.parse_args()
    every = list(mutants(arguments.module.read_text(encoding="utf-8")))
    chosen = every
    if arguments.sample is not None and arguments.sample < len(every):
        chosen = random.Random(arguments.seed).sample(every, arguments.sample)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("src", "tests", "pyproject.toml"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, Path(folder) / name)
        os.chdir(folder)
        sys.dont_write_bytecode = True
        reach = _tests_by_line(arguments.module, arguments.tests)
        survivors = []
        for i, mutant in enumerate(sorted(chosen, key=lambda m: m.line)):
            tests = _within(reach.get(mutant.line, []), arguments.budget)
            if not tests or not _noticed(arguments.module, mutant, tests):
                survivors.append(mutant)
                why = "survived" if tests else "not reached"
                print(f"{arguments.module}:{mutant.line}: {why}: {mutant.what}", flush=True)
            elif i % 20 == 0:
                print(f"... {i} of {len(chosen)}", file=sys.stderr, flush=True)
    killed = len(chosen) - len(survivors)
    share = f"{100 * killed / len(chosen):.0f} %"
    print(f"{arguments.module}: {killed} of {len(chosen)} noticed, {share} ({len(every)} in all)")
    return 0


def _tests_by_line(module: Path, tests: list[str]) -> dict[int, list[tuple[float, str]]]:
    """For every line of the module the tests that run it, with what they take, quick ones first."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        durations = _Durations()
        _forget_tests()
        options = [f"--cov={module.parent}", "--cov-context=test", "--cov-report="]
        options += ["--cov-fail-under=0", "-q"]
        code = pytest.main([*options, "-p", "no:cacheprovider", *tests], plugins=[durations])
        if code != 0:
            print("the tests fail before anything is changed", file=sys.stderr)
        with os.fdopen(writer, "w") as pipe:
            pipe.writelines(f"{s} {name}\n" for name, s in durations.seconds.items())
            loaded = [name for name in sys.modules if name.split(".")[0] in _HEAVY]
            pipe.writelines(f"import {name}\n" for name in loaded)
        os._exit(int(code))
    os.close(writer)
    with os.fdopen(reader) as pipe:
        pairs = [line.rstrip("\n").split(" ", 1) for line in pipe]
    if os.wait()[1] != 0:
        raise SystemExit(1)
    seconds = {name: float(s) for s, name in pairs if s != "import"}
    for word, name in pairs:
        if word == "import":
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    data = coverage.CoverageData(".coverage")
    data.read()
    found: dict[int, list[tuple[float, str]]] = {}
    for line, contexts in data.contexts_by_lineno(str(module.resolve())).items():
        names = {context.rsplit("|", 1)[0] for context in contexts} & set(seconds)
        if "" in contexts:  # runs on import: any test can notice
            names = set(seconds)
        found[line] = sorted((seconds[name], name) for name in names)
    return found


def _forget_tests() -> None:
    """Let pytest import the tests, this package among them, from the copy."""
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]


def _within(tests: list[tuple[float, str]], budget: float) -> list[str]:
    chosen, total = [], 0.0
    for seconds, name in tests:
        total += seconds
        if chosen and total > budget:
            break
        chosen.append(name)
    return chosen


def _noticed(module: Path, mutant: Mutant, tests: list[str], limit: float = 120.0) -> bool:
    """Whether a test fails, or does not end."""
    original = module.read_text(encoding="utf-8")
    module.write_text(mutant.source, encoding="utf-8")
    try:
        child = os.fork()
        if child == 0:
            os.setsid()
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            _forget_tests()
            os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests])))
        end = time.monotonic() + limit
        while time.monotonic() < end:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return status != 0
            time.sleep(0.05)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return True
    finally:
        module.write_text(original, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
