"""One case after another in a process of its own, watched for time, memory and stray writes."""

from __future__ import annotations

import io
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from tests.fuzz.corpus import Case, write_corpus

# Processor time of a case and its peak; on the clock it may take longer, on a busy machine.
SECONDS, CLOCK, PEAK = 30.0, 300.0, 2 * 10**9
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = {
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
    "os.link",
}


class Outcome(NamedTuple):
    """How a case ended: its exit code, what it broke (nothing, if all is well), and its cost."""

    code: int
    broken: str
    detail: str
    seconds: float
    peak: int


class Runner:
    """A worker process that runs cases, started again when one kills it."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="bagwise-fuzz-")).resolve()
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        shutil.rmtree(self.home, ignore_errors=True)

    def corpus(self) -> Path:
        """The valid files; the worker writes them when it first starts."""
        if self._process is None:
            self._start()
        return self.home / "corpus"

    def run(self, case: Case) -> Outcome:
        """Run one case; a worker that hangs or dies is replaced."""
        if self._process is None:
            self._start()
        self._pipe.send(case)
        if not self._pipe.poll(CLOCK):
            self._stop()
            return Outcome(-1, "hang", f"no answer within {CLOCK:g} s", CLOCK, 0)
        try:
            return self._pipe.recv()
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            self._stop()
            return Outcome(code, "crash", f"the process ended with {code}", 0.0, 0)

    def _start(self) -> None:
        self._pipe, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(theirs, self.home), daemon=True)
        self._process.start()
        theirs.close()
        if not self._pipe.poll(1800) or self._pipe.recv() != "ready":
            raise RuntimeError("the worker did not start")

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def _serve(pipe: Any, home: Path) -> None:
    """The worker: import once, then answer cases until it is killed."""
    scratch = home / "scratch"
    scratch.mkdir(exist_ok=True)
    os.environ.update(NUMBA_CACHE_DIR=str(scratch), MPLCONFIGDIR=str(scratch))
    sys.dont_write_bytecode = True
    with Path(os.devnull).open("w") as quiet, redirect_stdout(quiet):
        if not (home / "corpus").exists():
            write_corpus(home / "draft")
            (home / "draft").rename(home / "corpus")
    stray: list[str] = []
    sys.addaudithook(_watch(home, stray))
    pipe.send("ready")
    while True:
        pipe.send(_answer(pipe.recv(), home, stray))


def _watch(home: Path, stray: list[str]) -> Any:
    """An audit hook that notes every change outside the folder of the case."""
    allowed = (str(home), os.devnull, "/proc/self", "/dev/shm", "/dev/fd")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            changes = isinstance(path, (str, bytes)) and isinstance(flags, int) and flags & _WRITES
            paths = [path] if changes else []
        elif event in _CHANGES:
            paths = [p for p in arguments[:2] if isinstance(p, (str, bytes, os.PathLike))]
        else:
            return
        for path in paths:
            full = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - in a hook, so no objects
            if not full.startswith(allowed):
                stray.append(f"{event} {full}")

    return hook


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    tempfile.tempdir = str(folder / "tmp")
    try:
        yield
    finally:
        os.chdir(before)


def _answer(case: Case, home: Path, stray: list[str]) -> Outcome:
    from bagwise.cli import main

    place = home / "case"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(home / "corpus", place)
    (place / "tmp").mkdir()
    for name, content in case.files.items():
        (place / name).write_bytes(content)
    before = _tree(place)
    stray.clear()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of earlier cases
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="replace", write_through=True)
    start = time.process_time()
    with _inside(place), redirect_stdout(said), redirect_stderr(said):
        try:
            code: int | str | None = main(list(case.words))
        except SystemExit as error:
            code = error.code
        except BaseException:  # noqa: BLE001 - whatever escapes is what the fuzzer looks for
            code, escaped = -1, traceback.format_exc()
        else:
            escaped = ""
    seconds = time.process_time() - start
    peak = _peak()
    text = said.buffer.getvalue().decode("utf-8", "replace")  # type: ignore[attr-defined]
    code = code if isinstance(code, int) else 0 if code is None else -2
    escaped = escaped if code == -1 else ""
    broken, detail = _judge(code, text, escaped, before, _tree(place), place)
    if not broken and stray:
        broken, detail = "stray write", stray[0]
    if not broken and seconds > SECONDS:
        broken, detail = "hang", f"{seconds:.0f} s"
    if not broken and peak > PEAK:
        broken, detail = "memory", f"{peak / 1e9:.1f} GB"
    return Outcome(code, broken, detail, seconds, peak)


def _judge(
    code: int, text: str, escaped: str, before: dict[str, Any], after: dict[str, Any], place: Path
) -> tuple[str, str]:
    if escaped or "Traceback (most recent call last)" in text:
        return "traceback", escaped or text
    if code == 1:
        return "unexpected error", text[-700:]
    if code not in (0, 2):
        return "exit code", f"{code}: {text[-500:]}"
    changed = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
    outside = [name for name in changed if name.split("/")[0] != "out"]
    if outside:
        return "stray write", outside[0]
    if code == 2 and changed:
        return "partial output", changed[0]
    if code == 2 and not text.strip():
        return "silence", "exit code 2 without a word"
    return _whole(place / "out")


def _whole(out: Path) -> tuple[str, str]:
    """Whether an output, where there is one, can be read back."""
    if out.is_dir():
        for page in out.glob("*.html"):
            try:
                text = page.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                return "partial output", f"{page.name}: {error}"
            if not text.rstrip().endswith("</html>"):
                return "partial output", page.name
    elif out.is_file() and zipfile.is_zipfile(out):
        from bagwise import persist

        try:
            persist.load(out)
        except ValueError as error:
            return "partial output", str(error)
    return "", ""


def _tree(folder: Path) -> dict[str, Any]:
    """Every path below a folder with its size and time of change."""
    return {
        str(p.relative_to(folder)): None if p.is_dir() else (p.stat().st_size, p.stat().st_mtime_ns)
        for p in folder.rglob("*")
    }


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
