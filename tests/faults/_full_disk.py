"""Write what Torchkiln writes to a disk that is full: python _full_disk.py FOLDER WHAT N.

FOLDER becomes a small disk in memory that only this process sees; so it must be started in a mount
namespace of its own (`unshare`). Each writer is called with N amounts of room, from none to enough
for most of what it writes. Prints how many of the calls failed and how many succeeded.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

_PAGE = 4096
_DISK_PAGES = 512


def mount(folder: Path) -> None:
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_DISK_PAGES * _PAGE}", "tmpfs", str(folder)],
        check=True,
    )


@contextlib.contextmanager
def room(folder: Path, pages: int) -> Iterator[None]:
    """Leave so many free pages on the disk while the block runs."""
    ballast = folder / "ballast"
    status = os.statvfs(folder)
    taken = status.f_bavail * status.f_frsize - pages * _PAGE
    ballast.write_bytes(bytes(max(taken, 0)))
    try:
        yield
    finally:
        ballast.unlink()


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def leftovers(folder: Path, *, ok: bool) -> list[str]:
    # What is old is still needed where its successor could not be written.
    endings = ("torchkiln-tmp", "torchkiln-old") if ok else ("torchkiln-tmp",)
    return [name for name in listing(folder) if name.endswith(endings)]


def disk_is_full(error: Exception | Warning) -> OSError:
    """Return what the loop below expects, if that is what the error says."""
    assert "No space left" in str(error), error
    return OSError(errno.ENOSPC, str(error))


def checkpoints(disk: Path) -> tuple[Callable[[], object], Callable[[bool], None]]:
    import torch

    from torchkiln import CheckpointError, CheckpointStore

    store, saved = CheckpointStore(disk / "run"), [0]

    def save(number: int) -> None:
        tensors = {"a": torch.full((3000,), float(number)), "b": torch.arange(200) + number}
        store.save(tensors, {"number": number, "text": "x" * 5000})
        saved[0] = number

    save(1)

    def write() -> object:
        try:
            save(saved[0] + 1)
        except CheckpointError as error:
            raise disk_is_full(error) from error
        return None

    def check(ok: bool) -> None:
        tensors, facts = CheckpointStore(disk / "run").load()
        assert facts["number"] == saved[0]
        assert torch.equal(tensors["a"], torch.full((3000,), float(saved[0])))
        assert torch.equal(tensors["b"], torch.arange(200) + saved[0])

    return write, check


def cache(disk: Path) -> tuple[Callable[[], object], Callable[[bool], None]]:
    import hashlib

    from torchkiln.runtime.cache._cache import ExecutableCache

    count = [0]
    package = Path(os.environ["PACKAGE"])
    content = bytes(range(256)) * 120
    package.write_bytes(content)

    def key(number: int) -> str:
        return hashlib.sha256(str(number).encode()).hexdigest()

    def write() -> object:
        count[0] += 1
        executables = ExecutableCache(disk / "cache", 10**9)
        with executables.holding(key(count[0])) as found:
            assert found is None
            executables.store(key(count[0]), package, "tiny")
        executables.remember(key(-count[0]), {"graph": key(count[0])})

    def check(ok: bool) -> None:
        executables = ExecutableCache(disk / "cache", 10**9)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a package whose record found no room
            with executables.holding(key(count[0])) as found:
                assert found is not None or not ok
                if found is not None:
                    assert found.read_bytes() == content
            values = executables.lookup(key(-count[0]))
        assert (values is not None) or not ok
        assert values is None or values["graph"] == key(count[0])
        executables.clear()

    return write, check


def store(disk: Path) -> tuple[Callable[[], object], Callable[[bool], None]]:
    import torch
    from torch_geometric.data import Data

    from torchkiln.core import StoreError
    from torchkiln.graphs import GraphStore

    count = [0]

    def graphs(number: int) -> list[Data]:
        edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
        return [Data(x=torch.full((3, 40), float(number + i)), edge_index=edges) for i in range(30)]

    GraphStore.build(graphs(0), disk / "store", progress=False)

    def write() -> object:
        try:
            GraphStore.build(graphs(count[0] + 1), disk / "store", overwrite=True, progress=False)
        except StoreError as error:
            raise disk_is_full(error) from error
        count[0] += 1
        return None

    def check(ok: bool) -> None:
        opened = GraphStore.open(disk / "store", verify=True)
        for got, expected in zip(opened, graphs(count[0]), strict=True):
            assert torch.equal(got.x, expected.x)
            assert torch.equal(got.edge_index, expected.edge_index)

    return write, check


def report(disk: Path) -> tuple[Callable[[], object], Callable[[bool], None]]:
    from _sample_runs import sample_run

    from torchkiln.report import load_result, write_report

    first, second = (sample_run(num_epochs=n, num_molecules=200) for n in (2, 3))
    write_report(first, disk / "runs")
    latest = [first]
    turn = [0]

    def write() -> object:
        turn[0] += 1
        write_report((first, second)[turn[0] % 2], disk / "runs")
        latest[:] = [(first, second)[turn[0] % 2]]
        return None

    def check(ok: bool) -> None:
        # Files are replaced one by one; the figures first, each as it was or as it is to be.
        epochs = len(load_result(disk / "runs").epochs)
        assert epochs == len(latest[0].epochs) or (not ok and epochs in (2, 3))
        for picture in (disk / "runs").glob("*.png"):
            content = picture.read_bytes()
            assert content.startswith(b"\x89PNG")
            assert content.rstrip().endswith(b"IEND\xaeB`\x82")
        assert (disk / "runs" / "report.html").read_text().rstrip().endswith("</html>")

    return write, check


def arrays(disk: Path) -> tuple[Callable[[], object], Callable[[bool], None]]:
    import numpy as np

    from torchkiln.datasets._array_cache import cached_arrays

    os.environ["TORCHKILN_DATA_DIR"] = str(disk / "data")
    expected = {"a": np.arange(5000), "b": np.linspace(0, 1, 3000)}
    path = disk / "data" / "qm9-test.npz"

    def write() -> object:
        path.unlink(missing_ok=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            got = cached_arrays("qm9-test", lambda: expected)
        assert all(np.array_equal(got[name], expected[name]) for name in expected)
        if caught:
            assert "cannot be written" in str(caught[0].message), caught[0].message
            raise disk_is_full(caught[0].message)
        return None

    def check(ok: bool) -> None:
        assert path.exists() == ok
        if ok:
            again = cached_arrays("qm9-test", dict)
            assert all(np.array_equal(again[name], expected[name]) for name in expected)

    return write, check


def text_in_place(disk: Path) -> tuple[Callable[[], object], Callable[[bool], None]]:
    """Do harm: overwrite what is there. Who finds nothing wrong with this would find nothing."""
    path, texts = disk / "text", ["a" * 20_000]
    path.write_text(texts[-1])

    def write() -> object:
        longer = texts[-1] + "b" * 20_000
        path.write_text(longer)
        texts.append(longer)
        return None

    def check(ok: bool) -> None:
        assert path.read_text() == texts[-1], "what was written before is lost"

    return write, check


def text_with_litter(disk: Path) -> tuple[Callable[[], object], Callable[[bool], None]]:
    """Do harm: leave a temporary file behind where there is no room for it."""
    path = disk / "text"
    path.write_text("a")

    def write() -> object:
        unfinished = disk / "text.torchkiln-tmp"
        unfinished.write_text("b" * 20_000)
        unfinished.replace(path)
        return None

    return write, lambda ok: None


WRITERS = {
    "checkpoints": checkpoints,
    "cache": cache,
    "store": store,
    "report": report,
    "arrays": arrays,
    "text in place": text_in_place,
    "text with litter": text_with_litter,
}


def main() -> None:
    disk, what, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    mount(disk)
    os.environ["PACKAGE"] = str(disk.with_name("package.pt2"))
    write, check = WRITERS[what](disk)
    failed = succeeded = 0
    # Page by page from none, then in larger steps to room for everything.
    steps = {*range(number * 2 // 3), *(int(200 * (i / number) ** 2) for i in range(number)), 300}
    for pages in sorted(steps):
        with room(disk, pages):
            try:
                write()
                ok = True
            except OSError as error:
                if error.errno != errno.ENOSPC and "No space left" not in str(error):
                    raise
                ok = False
            left = leftovers(disk, ok=ok)
            assert not left, f"{pages} pages of room: {left}"
            check(ok)
        failed, succeeded = failed + (not ok), succeeded + ok
    write()  # with room again, it just works
    check(True)
    assert not leftovers(disk, ok=True), listing(disk)
    print(f"{failed} {succeeded}")


if __name__ == "__main__":
    main()
