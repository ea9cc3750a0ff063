"""A folder that `torch_geometric.datasets.QM9` opens without a download."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchkiln.core import (
    OptionsError,
    StoreError,
    WriteError,
    atomic_path,
    clean_leftovers_once,
    file_lock,
    sha256_file,
)
from torchkiln.core._progress import progress_bar
from torchkiln.datasets.qm9._arrays import QM9Arrays, qm9_arrays, source_key
from torchkiln.datasets.qm9._manifest import read_manifest, write_manifest
from torchkiln.datasets.qm9._pyg import write_list_of_dicts, write_processed
from torchkiln.datasets.qm9._raw import write_list_of_missing, write_sdf, write_target_table
from torchkiln.datasets.qm9._source import find_source

# Processed by PyG at the user's wish, they differ from what was written here and are kept.
_PROCESSED = ("processed/data_v3.pt", "processed/pre_transform.pt", "processed/pre_filter.pt")


def write_qm9_root(
    root: Path,
    *,
    source: Path | None = None,
    limit: int | None = None,
    force: bool = False,
    progress: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write the raw and processed files of QM9 below `root`, and return `root`.

    Files that an earlier call wrote are verified and kept, so an interrupted call goes on
    where it was; each file appears whole or not at all.

    Args:
        root: What is passed to `QM9(root=...)`.
        source: Folder with the tables of qm9pack; default: that of the installed package.
        limit: Take only the first molecules of the tables.
        force: Write all files anew, also over files that came from elsewhere.
        progress: Whether to show progress bars.
        say: Called with one line about each finding.

    Raises:
        StoreError: if the tables are missing or damaged, or `root` holds QM9 from elsewhere.
    """
    if limit is not None and limit < 1:
        raise OptionsError(f"limit must be at least 1, got {limit}")
    if root.exists() and not root.is_dir():
        raise StoreError(f"{root} is a file; choose a directory to write QM9 to")
    folder = find_source(source)
    facts = {"source": source_key(folder), "limit": limit}
    try:
        with file_lock(root / ".torchkiln-qm9.lock"):
            _complete(root, facts, folder, force, progress, say)
    except WriteError:
        raise
    except OSError as error:
        raise StoreError(f"{root} cannot be written: {error}") from error
    return root


def _complete(
    root: Path,
    facts: dict[str, Any],
    folder: Path,
    force: bool,
    progress: bool,
    say: Callable[[str], None],
) -> None:
    for parent in {root, *((root / name).parent for name in _WRITERS)}:
        clean_leftovers_once(parent)  # where nothing is missing, nothing is written
    recorded = {} if force else _recorded_files(root, facts)
    missing = [name for name in _WRITERS if not _is_kept(root, name, recorded, say)]
    if missing:
        _write_files(root, missing, recorded, facts, folder, progress, say)
    else:
        say(f"everything is in place in {root}; --force writes it anew")


def _write_files(
    root: Path,
    names: list[str],
    recorded: dict[str, str],
    facts: dict[str, Any],
    folder: Path,
    progress: bool,
    say: Callable[[str], None],
) -> None:
    arrays = qm9_arrays(folder, progress=progress)
    if facts["limit"] is not None:
        arrays = arrays.first(min(facts["limit"], len(arrays)))
    done = {name: digest for name, digest in recorded.items() if name not in names}
    write_manifest(root, facts, done)
    for name in (bar := progress_bar(names, unit="file", show=progress)):
        bar.set_description(f"Writing {name}")
        with atomic_path(root / name) as temporary:
            _WRITERS[name](arrays, temporary)
        done[name] = sha256_file(root / name)
        write_manifest(root, facts, done)
    say(f"{len(arrays):,} molecules are ready: torch_geometric.datasets.QM9({str(root)!r})")


def _is_kept(root: Path, name: str, recorded: dict[str, str], say: Callable[[str], None]) -> bool:
    path = root / name
    if name not in recorded or not path.is_file():
        return False
    if sha256_file(path) == recorded[name]:
        say(f"{path} is there and unchanged")
        return True
    if name in _PROCESSED:
        say(f"{path} was changed since (QM9 with a pre_transform?) and is kept")
        return True
    say(f"{path} is damaged and will be written anew")
    return False


def _recorded_files(root: Path, facts: dict[str, Any]) -> dict[str, str]:
    """Return the checksums of what an earlier call with the same facts wrote."""
    found = read_manifest(root)
    if found is not None:
        return found[1] if found[0] == facts else {}
    foreign = [name for name in _WRITERS if (root / name).exists()]
    if foreign:
        raise StoreError(
            f"{root / foreign[0]} was not written by torchkiln; choose another folder, or "
            f"overwrite it with force=True (--force)"
        )
    return {}


def _write_no_transform(arrays: QM9Arrays, path: Path) -> None:
    """Tell PyG that nothing was transformed, so that it warns who asks for a transform."""
    import torch

    with path.open("wb") as file:
        torch.save("None", file)


_Writer = Callable[[QM9Arrays, Path], None]
_WRITERS: dict[str, _Writer] = {
    "raw/uncharacterized.txt": write_list_of_missing,
    "raw/gdb9.sdf.csv": write_target_table,
    "raw/gdb9.sdf": write_sdf,
    "raw/qm9_v3.pt": write_list_of_dicts,
    "processed/data_v3.pt": write_processed,
    "processed/pre_transform.pt": _write_no_transform,
    "processed/pre_filter.pt": _write_no_transform,
}
