"""Which files of a folder are bags, in any of the known layouts.

CLAM puts ``h5_files/`` and ``pt_files/`` beside each other; TRIDENT writes
``features_{encoder}/{slide}.h5``, possibly one level further down.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from bagwise.files.formats import ArrayFormat, format_of, suffixes
from bagwise.files.problems import FileProblem, bad_file

if TYPE_CHECKING:
    from bagwise.files.addresses import AnyPath


def find_bag_files(
    path: AnyPath, encoder: str | None = None, recursive: bool = False
) -> list[AnyPath]:
    """The bag files of a folder, sorted by name.

    With ``recursive`` those of all folders below it too; otherwise files below that no layout
    explains are named in a warning, never ignored in silence.
    """
    kinds = f"bag files ({', '.join(suffixes(ArrayFormat))})"
    here, below = _bag_files(path), _below(path)
    if recursive:
        if not here + below:
            raise bad_file(path, f"has no {kinds}, nor has a folder in it")
        return sorted(here + below, key=lambda file: (file.stem, str(file)))
    if here and below:
        warnings.warn(
            f"{path}: {len(here)} files here are read; {len(below)} in folders below are not, such "
            f"as {below[0]}. Read all with --recursive (recursive=True).",
            UserWarning,
            stacklevel=2,
        )
    # CLAM's .h5 files hold the same features as its .pt files, and the coordinates.
    files = here or _bag_files(path / "h5_files") or _bag_files(path / "pt_files")
    if files:
        return files
    folders = [p for p in [*path.glob("features_*"), *path.glob("*/features_*")] if p.is_dir()]
    if encoder is not None:
        folders = [p for p in folders if p.name == f"features_{encoder}"]
    if len(folders) > 1:
        choices = ", ".join(sorted(str(p.relative_to(path)) for p in folders))
        raise bad_file(path, f"has several feature folders: {choices}; name one")
    files = _bag_files(folders[0]) if folders else []
    if not files:
        wanted = f"features_{encoder} with " if encoder else ""
        hint = f"; {len(below)} lie in folders below it, read with --recursive" if below else ""
        raise bad_file(path, f"has no {wanted}{kinds}{hint}")
    return files


def _bag_files(folder: AnyPath) -> list[AnyPath]:
    if not folder.is_dir():
        return []
    shown = [p for p in folder.iterdir() if not p.name.startswith(".")]
    return sorted(p for p in shown if isinstance(format_of(p), ArrayFormat))


def _below(path: AnyPath) -> list[AnyPath]:
    """Bag files in folders below; a folder that is one bag has none, whatever lies in it."""
    files = []
    for folder in path.iterdir():
        if folder.is_dir() and not is_bag_folder(folder) and folder.name[:1] != ".":
            files += _bag_files(folder) + _below(folder)
    return files


def is_bag_folder(path: AnyPath) -> bool:
    """Whether a folder is itself one bag, as a ``.zarr`` is."""
    kind = format_of(path)
    return isinstance(kind, ArrayFormat) and kind.is_folder


def one_file_per_bag(files: list[AnyPath]) -> tuple[list[AnyPath], list[FileProblem]]:
    """One file for each bag; where a bag is there in several kinds, the preferred one.

    Two files of one kind cannot be told apart, and are problems both.
    """
    by_id: dict[str, list[AnyPath]] = {}
    for file in files:
        by_id.setdefault(file.stem, []).append(file)
    preference = suffixes(ArrayFormat)
    chosen, problems, swaps = [], [], []
    for name, same in by_id.items():
        ranks = [preference.index(file.suffix.lower()) for file in same]
        best = [file for file, rank in zip(same, ranks, strict=True) if rank == min(ranks)]
        if len(best) == 1:
            chosen.append(best[0])
            swaps += [(best[0], file) for file in same if file is not best[0]]
            continue
        problems += [
            FileProblem(str(file), f"bag {name!r} is also in {best[1 - min(i, 1)]}")
            for i, file in enumerate(best)
        ]
    if swaps:
        kept, other = swaps[0]
        warnings.warn(
            f"{len(swaps)} bags are there in several kinds of files; {kept.suffix} files are "
            f"read before others, as {kept.name} and not {other.name}.",
            UserWarning,
            stacklevel=2,
        )
    return chosen, problems
