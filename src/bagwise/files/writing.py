"""Outputs appear whole or not at all: written beside their place, then renamed into it."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bagwise.files.problems import bad_file


def check_output(path: str | Path, force: bool = False, holds: Collection[str] = ()) -> Path:
    """Refuse an output that exists (unless ``force``) or cannot be written, before any work.

    A folder is replaced only if all it holds is named in ``holds``: never somebody's own files.
    A symbolic link, a device or another special file is never replaced.

    Examples
    --------
    >>> from bagwise.files import check_output
    >>> import tempfile
    >>> check_output(tempfile.mkdtemp())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    bagwise.files.problems.BadFilesError: ...: exists already; ...
    """
    path = Path(path)
    _refuse_special(path)
    if path.exists() and not force:
        raise bad_file(path, "exists already; pass --force to replace it")
    if path.is_dir():
        foreign = sorted(p.name for p in path.iterdir() if p.name not in holds)
        if foreign:
            what = f"holds other files ({foreign[0]}) and is not replaced; choose another place"
            raise bad_file(path, what)
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir():
        raise bad_file(path, f"cannot be written: {parent} is not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise bad_file(path, f"cannot be written: {parent} is read-only")
    return path


@contextmanager
def new_file(path: str | Path) -> Iterator[Path]:
    """A temporary path that becomes ``path`` when the block ends well, and vanishes otherwise.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from bagwise.files import new_file
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "note.txt"
    >>> with new_file(path) as draft:
    ...     _ = draft.write_text("whole")
    >>> path.read_text()
    'whole'
    """
    path = Path(path)
    with _replacing(path):
        if path.is_dir():
            raise bad_file(path, "is a folder; a file is to be written there")
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        draft = Path(name)
        try:
            yield draft
            draft.chmod(0o666 & ~_umask())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> Path:
    """Write a file of UTF-8, whole or not at all; returns its path."""
    with new_file(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return Path(path)


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """A temporary folder that becomes ``path`` when the block ends well, and vanishes otherwise.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from bagwise.files import new_folder
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "results"
    >>> with new_folder(path) as draft:
    ...     _ = (draft / "bags.csv").write_text("id,label")
    >>> [file.name for file in path.iterdir()]
    ['bags.csv']
    """
    path = Path(path)
    with _replacing(path):
        draft = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            yield draft
            draft.chmod(0o777 & ~_umask())
            if not path.exists():
                draft.rename(path)
                return
            # The old folder is removed only when the new one is in its place.
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
            try:
                path.rename(old / path.name)
                try:
                    draft.rename(path)
                except BaseException:
                    (old / path.name).rename(path)
                    raise
            finally:
                shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def plain_json(value: object) -> object:
    """NumPy values as JSON knows them: the ``default`` of ``json.dumps``."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON.")


def _refuse_special(path: Path) -> None:
    """Refuse a place that is neither free, nor a plain file, nor a folder."""
    if path.is_symlink():
        raise bad_file(path, "is a symbolic link and is not replaced; name the place itself")
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise bad_file(path, "is a device or another special file and is not replaced")


@contextmanager
def _replacing(path: Path) -> Iterator[None]:
    """Turn the system's refusals into one line about the output, whose folder is made."""
    _refuse_special(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reasons = {
            errno.ENOSPC: "the disk is full",
            errno.EDQUOT: "the disk quota is used up",
            errno.EROFS: "the file system is read-only",
            errno.EACCES: "permission denied",
            errno.EPERM: "permission denied",
        }
        reason = reasons.get(error.errno or 0, error.strerror or str(error))
        raise bad_file(path, f"cannot be written: {reason}") from error


def _umask() -> int:
    # The umask can only be read by setting it.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
