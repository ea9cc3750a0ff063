"""`torchkiln data`: prepares and checks datasets, tells where they are, and clears them.

The command line is derived from these functions, so importing them must load nothing heavy.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Literal

from torchkiln.core import OptionsError, StoreError
from torchkiln.core._console import make_console
from torchkiln.core._progress import say


def data_qm9(
    root: Path | None = None,
    source: Path | None = None,
    limit: int | None = None,
    force: bool = False,
) -> None:
    """Prepare QM9: parse its tables once, or write it as torch_geometric.datasets.QM9 expects it.

    Args:
        root: The folder to write for PyG (0.9 GB), later the root of QM9(root=...). What an earlier
            call wrote is verified and kept. Without it only the parsed tables are kept (0.1 GB) in
            the data directory (TORCHKILN_DATA_DIR, default: ~/.cache/torchkiln).
        source: Folder with the tables of qm9pack; default: where the package is installed.
        limit: With --root: write only so many molecules, the first of 130,831.
        force: Do everything anew, also over files from elsewhere.
    """
    if root is not None:
        _write_qm9(root, source, limit, force)
        return
    if limit is not None:
        raise OptionsError("--limit is for files of PyG: name a folder to write with --root")
    from torchkiln.datasets import QM9_TARGETS, qm9_arrays
    from torchkiln.datasets.qm9._arrays import NUM_MOLECULES, kept_path
    from torchkiln.datasets.qm9._source import find_source

    path = kept_path(find_source(source))
    if force:
        path.unlink(missing_ok=True)
    known = path.is_file()
    begin = time.perf_counter()
    arrays = qm9_arrays(source)
    seconds = time.perf_counter() - begin
    if source is None and len(arrays) != NUM_MOLECULES:
        raise StoreError(
            f"the tables of qm9pack hold {len(arrays):,} molecules instead of {NUM_MOLECULES:,}; "
            "install qm9pack anew"
        )
    rows = [
        ("molecules", f"{len(arrays):,}"),
        ("atoms", f"{len(arrays.z):,}, {arrays.num_atoms.min()} to {arrays.num_atoms.max()} each"),
        ("targets", f"{len(QM9_TARGETS)}: {', '.join(QM9_TARGETS)}"),
        ("source", str(find_source(source))),
        ("kept in", f"{path} ({_megabytes([path])})"),
        ("seconds", f"{seconds:.1f}, {'read from there' if known else 'parsed and kept'}"),
    ]
    _print_rows("QM9 is ready: torchkiln.datasets.load_qm9()", rows)


def _write_qm9(root: Path, source: Path | None, limit: int | None, force: bool) -> None:
    """Write QM9 below `root`, telling what happens on stderr and the folder on stdout."""
    from torchkiln.datasets import write_qm9_root

    written = write_qm9_root(root, source=source, limit=limit, force=force, say=say)
    sys.stdout.write(f"{written}\n")


def data_water(
    subset: Literal["debug", "test", "train", "all"] = "debug",
    root: Path | None = None,
    seed: int = 0,
) -> None:
    """Generate water clusters, or read those of the HydroNet release, and check them.

    Args:
        subset: Which clusters: debug, test, train or all.
        root: Folder of the HydroNet release; default: clusters are generated, once, and kept in
            the data directory (TORCHKILN_DATA_DIR, default: ~/.cache/torchkiln).
        seed: Chooses other generated clusters.
    """
    from torchkiln.datasets.water import prepare_water as prepare

    sys.stdout.write(f"{prepare(subset, root, seed, say=say)}\n")


def data_fashion_mnist(root: Path | None = None) -> None:
    """Check the four files of Fashion-MNIST and tell where they are.

    Args:
        root: Folder with the files, plain or .gz; default: that of Debian's package
            dataset-fashion-mnist.
    """
    from torchkiln.datasets.fashion_mnist._files import find_fashion_mnist

    files = find_fashion_mnist(root)
    rows = [(file.path.name, f"{' x '.join(map(str, file.sizes))}") for file in files]
    paths = [file.path for file in files]
    rows.append(("in", f"{paths[0].parent} ({_megabytes(paths)})"))
    _print_rows("Fashion-MNIST is complete: datasets.fashion_mnist.load_fashion_mnist()", rows)


def data_cosmic(root: Path | None = None) -> None:
    """Check files of cosmic-ray events (CosmicTagger's larcv3 HDF5).

    Args:
        root: Folder with the .h5 files.
    """
    from torchkiln.datasets.cosmic._files import find_cosmic

    if root is None:
        raise OptionsError(
            "name the folder with CosmicTagger's larcv3 files (.h5): --root FOLDER; none is "
            "looked for elsewhere"
        )
    files = find_cosmic(root)
    rows = [
        (file.path.name, f"{file.num_events:,} events, {file.num_voxels:,} pixels with a signal")
        for file in files
    ]
    rows.append(("in", f"{root} ({_megabytes([file.path for file in files])})"))
    _print_rows("Cosmic events are complete: torchkiln.datasets.cosmic.load_cosmic(root)", rows)


def data_list() -> None:
    """Tell of each dataset whether it is here, how large it is and where."""
    from rich.table import Table

    from torchkiln.datasets._array_cache import data_dir, kept_files
    from torchkiln.datasets.fashion_mnist._files import find_fashion_mnist
    from torchkiln.datasets.qm9._arrays import kept_path
    from torchkiln.datasets.qm9._source import find_source

    table = Table(title=f"Datasets (data directory: {data_dir()})", title_justify="left")
    table.add_column("dataset", no_wrap=True)
    for column in ("state", "size", "where"):
        table.add_column(
            column,
            justify="right" if column == "size" else "left",
            overflow="fold",
            min_width=len("fashion_mnist") if column == "state" else None,
        )
    try:
        ready = kept_path(find_source()).is_file()
        state = "ready" if ready else "not prepared: torchkiln data qm9"
        table.add_row("qm9", state, *_kept("qm9"))
    except StoreError:
        table.add_row("qm9", "no source: torchkiln data qm9 says more", *_kept("qm9"))
    water = "ready" if kept_files("water") else "not generated: torchkiln data water"
    table.add_row("water", water, *_kept("water"))
    try:
        paths = [file.path for file in find_fashion_mnist()]
        table.add_row("fashion_mnist", "complete", _megabytes(paths), str(paths[0].parent))
    except StoreError:
        table.add_row("fashion_mnist", "not here: torchkiln data fashion_mnist says more", "", "")
    table.add_row("cosmic", "torchkiln data cosmic --root FOLDER checks yours", "", "")
    make_console().print(table)


def data_sample(output: Path = Path("molecules.xyz"), force: bool = False) -> None:
    """Write some well-known molecules to a file, for example to try `torchkiln predict` with.

    Args:
        output: The file to write, an extended xyz file: .xyz or .extxyz.
        force: Replace another file of that name.
    """
    from torchkiln.datasets import sample_molecules
    from torchkiln.datasets.files._sample import write_sample

    written = write_sample(output, force=force)
    names = sample_molecules().names or []
    sys.stderr.write(f"{len(names)} molecules: {', '.join(names)}\n")
    sys.stdout.write(f"{written}\n")


def data_clear(dry_run: bool = False) -> None:
    """Delete what the data directory holds of all datasets; files elsewhere are left alone.

    Args:
        dry_run: Only show what would be deleted.
    """
    from torchkiln.datasets._array_cache import clear_kept, data_dir

    cleared = clear_kept(dry_run=dry_run)
    for path, size in cleared:
        sys.stdout.write(f"{path} ({size / 1e6:.1f} MB)\n")
    total = sum(size for _, size in cleared) / 1e6
    deed = "would be deleted" if dry_run else "deleted"
    say(f"{len(cleared)} files {deed}, {total:.1f} MB in {data_dir()}")


def _kept(dataset: str) -> tuple[str, str]:
    from torchkiln.datasets._array_cache import kept_files

    files = kept_files(dataset)
    where = ", ".join(dict.fromkeys(str(path.parent) for path in files))
    return (f"{_megabytes(files)}, {len(files)} files", where) if files else ("", "")


def _megabytes(paths: list[Path]) -> str:
    return f"{sum(path.stat().st_size for path in paths) / 1e6:,.1f} MB"


def _print_rows(title: str, rows: list[tuple[str, str]]) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column("what", style="bold", no_wrap=True)
    table.add_column("finding", overflow="fold")
    for name, finding in rows:
        table.add_row(name, finding)
    make_console().print(table)
