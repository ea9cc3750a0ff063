"""Operations on files whose system calls are made to fail."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _fail_calls import Scenario
from torch_geometric.data import Data

from torchkiln.checkpoints import CheckpointStore
from torchkiln.datasets import _array_cache
from torchkiln.datasets.cosmic._event import CosmicEvent
from torchkiln.datasets.cosmic._larcv3 import Larcv3Events
from torchkiln.datasets.cosmic._write import write_larcv3
from torchkiln.datasets.files._read import read_molecules
from torchkiln.datasets.files._write import write_csv, write_extxyz
from torchkiln.datasets.molecules._molecules import Molecules
from torchkiln.graphs import GraphStore
from torchkiln.packing import PackPlan, pack
from torchkiln.runtime.cache._cache import ExecutableCache
from torchkiln.runtime.compile._tracing import _keep


def _tensor_values(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: (str(t.dtype), t.tolist()) for name, t in sorted(tensors.items())}


# -- checkpoints ----------------------------------------------------------------------------------


class CheckpointSave(Scenario):
    """The third save, which also removes the first one."""

    saved_before = 2

    def prepare(self, folder: Path) -> None:
        store = CheckpointStore(folder)
        for number in range(1, self.saved_before + 1):
            store.save(_weights(number), {"step": number})

    def operate(self, folder: Path) -> Any:
        CheckpointStore(folder).save(_weights(9), {"step": 9})

    def state(self, folder: Path) -> Any:
        return _load_checkpoint(folder) if CheckpointStore(folder).exists() else None

    def listing(self, folder: Path) -> list[str]:
        # Numbers go on after a failed save that got as far as its name.
        return [re.sub(r"\d{6}", "N", name) for name in super().listing(folder)]


class FirstCheckpointSave(CheckpointSave):
    saved_before = 0

    def listing(self, folder: Path) -> list[str]:
        return sorted(set(super().listing(folder)))  # the next start adds a second generation


class CheckpointLoad(CheckpointSave):
    writes = False

    def operate(self, folder: Path) -> Any:
        return _load_checkpoint(folder)

    def right_results(self, usual: Any) -> list[Any]:
        # The generation before is a fallback, with a warning.
        return [usual, ({"step": 1}, _tensor_values(_weights(1)))]


def _weights(number: int) -> dict[str, torch.Tensor]:
    steps = torch.arange(300, dtype=torch.float32)
    return {"weight": steps * number, "half": (steps / number).bfloat16(), "step": steps[:number]}


def _load_checkpoint(folder: Path) -> Any:
    checkpoint = CheckpointStore(folder).load()
    return checkpoint.facts, _tensor_values(checkpoint.tensors)


# -- the cache of executables ---------------------------------------------------------------------

_KEYS = [digit * 64 for digit in "abc"]


class CacheStore(Scenario):
    """Storing an executable where another one is; the file itself is of no meaning here."""

    may_lose = never_fails = True
    limit_bytes = 10**9

    def prepare(self, folder: Path) -> None:
        self._store(folder, _KEYS[0], b"first" * 999)

    def operate(self, folder: Path) -> Any:
        self._store(folder, _KEYS[1], b"second" * 999)

    def _store(self, folder: Path, key: str, content: bytes) -> None:
        source = folder.with_name("program.pt2")
        source.write_bytes(content)
        cache = ExecutableCache(folder, self.limit_bytes)
        with cache.holding(key) as package:
            if package is None:
                _keep(cache, key, source, "for a test")

    def state(self, folder: Path) -> Any:
        cache, found = ExecutableCache(folder, 10**9), {}
        for key in _KEYS[:2]:
            with cache.holding(key) as package:
                found[key] = None if package is None else package.read_bytes()
        return found


class CachePrune(CacheStore):
    """Storing an executable that makes the cache too large, so that another one goes."""

    limit_bytes = 6000

    def check_usual(self, folder: Path) -> None:
        assert not (folder / "executables" / f"{_KEYS[0]}.pt2").exists(), "nothing had to go"

    def state(self, folder: Path) -> Any:
        found = super().state(folder)
        # It goes with one of the next ones if it could not go now.
        assert found.pop(_KEYS[0]) in (None, b"first" * 999)
        return found

    def listing(self, folder: Path) -> list[str]:
        return [name for name in super().listing(folder) if _KEYS[0] not in name]


class CacheRemember(Scenario):
    """The index from fast keys to executables; who calls this expects a full disk."""

    may_lose = True

    def prepare(self, folder: Path) -> None:
        ExecutableCache(folder, 10**9).remember(_KEYS[0], {"graph": _KEYS[2], "program": [1]})

    def operate(self, folder: Path) -> Any:
        ExecutableCache(folder, 10**9).remember(_KEYS[1], {"graph": _KEYS[2], "program": [2]})

    def state(self, folder: Path) -> Any:
        cache = ExecutableCache(folder, 10**9)
        return {key: cache.lookup(key) for key in _KEYS[:2]}


class CacheFind(CacheStore):
    refills = writes = False

    def prepare(self, folder: Path) -> None:
        super().prepare(folder)
        ExecutableCache(folder, 10**9).remember(_KEYS[0], {"graph": _KEYS[0], "program": [1]})

    def operate(self, folder: Path) -> Any:
        cache = ExecutableCache(folder, 10**9)
        values = cache.lookup(_KEYS[0])
        if values is None:
            return None
        with cache.holding(values["graph"]) as package:
            return None if package is None else package.name

    def right_results(self, usual: Any) -> list[Any]:
        return [usual, None]  # None: it is compiled again

    def state(self, folder: Path) -> Any:
        # Reading makes the file of a lock, which is no part of this.
        package = folder / "executables" / f"{_KEYS[0]}.pt2"
        return {"package": package.read_bytes() if package.exists() else None}


# -- stores of graphs -----------------------------------------------------------------------------


class StoreBuild(Scenario):
    """Replacing a store by one that is written graph by graph."""

    def prepare(self, folder: Path) -> None:
        GraphStore.build(_graphs(3), folder / "store", progress=False)

    def operate(self, folder: Path) -> Any:
        GraphStore.build(_graphs(5), folder / "store", progress=False, overwrite=True)

    def state(self, folder: Path) -> Any:
        return _read_store(folder / "store")


class StoreSave(StoreBuild):
    """Writing a store that is in memory to a new place."""

    def prepare(self, folder: Path) -> None:
        pass

    def before(self, folder: Path) -> None:
        self._store = GraphStore.from_dataset(_graphs(5), progress=False)

    def operate(self, folder: Path) -> Any:
        self._store.save(folder / "store", overwrite=True)

    def state(self, folder: Path) -> Any:
        return _read_store(folder / "store") if (folder / "store").exists() else None


class StoreRead(StoreBuild):
    writes = False

    def operate(self, folder: Path) -> Any:
        return _read_store(folder / "store")


def _graphs(number: int) -> list[Data]:
    generator = torch.Generator().manual_seed(number)
    return [
        Data(
            x=torch.randn(nodes + 2, 3, generator=generator),
            edge_index=torch.tensor([[0, 1], [1, 0]]),
            name=f"graph {nodes}",
        )
        for nodes in range(number)
    ]


def _read_store(directory: Path) -> Any:
    store = GraphStore.open(directory, verify=True)
    return [(g.x.tolist(), g.edge_index.tolist(), g.name) for g in store]


# -- reports --------------------------------------------------------------------------------------


class ResultsSave(Scenario):
    """Replacing the figures of a run by those of another."""

    def prepare(self, folder: Path) -> None:
        from torchkiln.report._results_file import save_result

        save_result(_run(3), folder)

    def operate(self, folder: Path) -> Any:
        from torchkiln.report._results_file import save_result

        save_result(_run(4), folder)

    def state(self, folder: Path) -> Any:
        return _read_results(folder)


class ResultsLoad(ResultsSave):
    writes = False

    def operate(self, folder: Path) -> Any:
        return _read_results(folder)


class ReportWrite(Scenario):
    """Figures, pictures and page; drawing them is not what is tested, so stand-ins are written."""

    by_file = True

    def prepare(self, folder: Path) -> None:
        self._write(folder, 3)

    def operate(self, folder: Path) -> Any:
        self._write(folder, 4)

    def _write(self, folder: Path, epochs: int) -> None:
        from types import SimpleNamespace
        from unittest import mock

        from torchkiln.report import _write

        content = b"picture %d" % epochs
        pictures = [
            SimpleNamespace(name=name, png=lambda _: content)
            for name in _write.PICTURE_NAMES[: 6 - epochs]
        ]
        with (
            mock.patch.object(_write, "pictures_of", return_value=pictures),
            mock.patch.object(_write, "render_page", return_value=f"page {epochs}"),
        ):
            _write.write_report(_run(epochs), folder / "report")

    def state(self, folder: Path) -> Any:
        files = [path for path in (folder / "report").iterdir() if path.suffix in (".png", ".html")]
        values: dict[str, Any] = {path.name: path.read_bytes() for path in files}
        return {**values, "results": _read_results(folder / "report")}


def _run(epochs: int) -> Any:
    from torchkiln.report import EpochRecord, RunResult, ValidationResult

    true = np.arange(50.0)
    split = ValidationResult.compare(true + 1 / epochs, true, baseline_mae=9.0)
    return RunResult(
        status="finished",
        settings={"epochs": epochs},
        dataset={"name": "QM9", "target": "U0", "unit": "eV", "sizes": {}, "source": "none"},
        model={"name": "SchNet", "parameters": 1},
        machine={"cpu": "one"},
        compile_seconds=1.0,
        packing={"nodes": 0.5},
        epochs=[EpochRecord(i, 0.1, 1.0, 9, 9.0, 1e-3, 0.1, 0.1) for i in range(epochs)],
        steps=[(step, 1.0 / (step + 1)) for step in range(20 * epochs)],
        validation=split,
        test=split,
    )


def _read_results(folder: Path) -> Any:
    from torchkiln.report._results_file import load_result

    result = load_result(folder)
    assert result.test is not None
    return result.settings, result.steps, result.test.predicted.tolist(), len(result.epochs)


# -- smaller files --------------------------------------------------------------------------------


class PlanSave(Scenario):
    def prepare(self, folder: Path) -> None:
        _plan(40).save(folder / "plan.npz")

    def operate(self, folder: Path) -> Any:
        _plan(80).save(folder / "plan.npz")

    def state(self, folder: Path) -> Any:
        return _plan_values(folder)


class PlanLoad(PlanSave):
    writes = False

    def operate(self, folder: Path) -> Any:
        return _plan_values(folder)


def _plan(number: int) -> PackPlan:
    return pack({"nodes": 1 + np.arange(number) % 7}, {"nodes": 16, "graphs": 6})


def _plan_values(folder: Path) -> Any:
    plan = PackPlan.load(folder / "plan.npz")
    return plan.indices.tolist(), plan.offsets.tolist(), plan.slots


class ArraysKeep(Scenario):
    """Arrays that are built, and kept if possible."""

    may_lose = never_fails = True

    def operate(self, folder: Path) -> Any:
        os.environ["TORCHKILN_DATA_DIR"] = str(folder)
        arrays = {"nodes": np.arange(500), "energy": np.linspace(0, 1, 300)}
        kept = _array_cache.cached_arrays("qm9-sizes", lambda: arrays)
        return {name: kept[name].tolist() for name in sorted(kept)}

    def state(self, folder: Path) -> Any:
        path = folder / "qm9-sizes.npz"
        if not path.exists():
            return {"arrays": None}
        with path.open("rb") as file, np.load(file) as kept:
            return {"arrays": {name: kept[name].tolist() for name in sorted(kept)}}


class ArraysFind(ArraysKeep):
    writes = False

    def prepare(self, folder: Path) -> None:
        self.operate(folder)


class CosmicWrite(Scenario):
    """HDF5, whose library reads by itself; it writes to memory, and Python to the file."""

    def prepare(self, folder: Path) -> None:
        write_larcv3(folder / "events.h5", [_event(1)])

    def operate(self, folder: Path) -> Any:
        write_larcv3(folder / "events.h5", [_event(2), _event(3)])

    def state(self, folder: Path) -> Any:
        return _read_events(folder)


class CosmicRead(CosmicWrite):
    """Few pixels: the library reads each of its small parts by itself."""

    writes = False

    def prepare(self, folder: Path) -> None:
        write_larcv3(folder / "events.h5", [_event(1, pixels=5)])

    def operate(self, folder: Path) -> Any:
        return _read_events(folder)


def _event(seed: int, pixels: int = 200) -> CosmicEvent:
    rng = np.random.default_rng(seed)
    planes = np.repeat(np.arange(3, dtype=np.uint8), pixels)
    places = np.concatenate([rng.choice(64 * 64, pixels, replace=False) for _ in range(3)])
    return CosmicEvent(
        planes,
        (places % 64).astype(np.int32),
        (places // 64).astype(np.int32),
        rng.normal(size=3 * pixels).astype(np.float32),
        rng.integers(0, 3, 3 * pixels).astype(np.uint8),
        64,
        64,
    )


def _read_events(folder: Path) -> Any:
    events = Larcv3Events(folder / "events.h5")
    try:
        return [
            tuple(getattr(event, name).tolist() for name in ("planes", "ticks", "values", "labels"))
            for event in (events[index] for index in range(len(events)))
        ]
    finally:
        events.close()


class XyzWrite(Scenario):
    def prepare(self, folder: Path) -> None:
        write_extxyz(folder / "molecules.xyz", _molecules(2))

    def operate(self, folder: Path) -> Any:
        write_extxyz(folder / "molecules.xyz", _molecules(5))

    def state(self, folder: Path) -> Any:
        molecules = read_molecules(folder / "molecules.xyz")
        return molecules.pos.tolist(), molecules.z.tolist(), molecules.targets["energy"].tolist()


class XyzRead(XyzWrite):
    writes = False

    def operate(self, folder: Path) -> Any:
        return self.state(folder)


class PublishedXyzRead(Scenario):
    """A file of QM9's own kind, whose targets another reader would not see."""

    writes = False

    def prepare(self, folder: Path) -> None:
        numbers = "\t".join(str(0.5 + number) for number in range(15))
        text = f"2\ngdb 1\t{numbers}\nH 0 0 0 0.1\nH 0 0 1 0.1\n4000.1\n[H][H]\nInChI=1S\n"
        (folder / "molecule.xyz").write_text(text)

    def operate(self, folder: Path) -> Any:
        molecules = read_molecules(folder / "molecule.xyz")
        return {name: values.tolist() for name, values in sorted(molecules.targets.items())}

    def state(self, folder: Path) -> Any:
        return self.operate(folder)


def _molecules(number: int) -> Molecules:
    pos = np.arange(number * 6, dtype=np.float64).reshape(-1, 3) * 0.7
    offsets = np.arange(0, 2 * number + 1, 2)
    targets = {"energy": np.linspace(-1, 0, number)}
    return Molecules(offsets, np.full(2 * number, 8), pos, None, targets, "test")


class CsvWrite(Scenario):
    def prepare(self, folder: Path) -> None:
        write_csv(folder / "table.csv", {"a": [1, 2], "b": [0.5, float("nan")]})

    def operate(self, folder: Path) -> Any:
        write_csv(folder / "table.csv", {"a": list(range(900)), "b": [0.25] * 900})

    def state(self, folder: Path) -> Any:
        return (folder / "table.csv").read_text()


class RootWrite(Scenario):
    """The files of QM9, one by one: fewer molecules were there before."""

    by_file = True

    def before(self, folder: Path) -> None:
        os.environ["TORCHKILN_DATA_DIR"] = str(folder.with_name("data"))

    def prepare(self, folder: Path) -> None:
        from torchkiln.datasets.qm9._source import PARTS, find_source

        self._tables = folder.with_name("tables")
        self._tables.mkdir()
        for number, name in enumerate(PARTS):
            with (find_source() / name).open() as whole:
                lines = itertools.islice(whole, 1 if number else 4)
                (self._tables / name).write_text("".join(lines))
        self.before(folder)
        self._write(folder, 2)

    def operate(self, folder: Path) -> Any:
        self._write(folder, 3)

    def _write(self, folder: Path, limit: int) -> None:
        from torchkiln.datasets.qm9._root import write_qm9_root

        write_qm9_root(folder / "QM9", source=self._tables, limit=limit, progress=False)

    def state(self, folder: Path) -> Any:
        # Not the manifest, which tells what is done: it differs with each file.
        files = [
            path for part in ("raw", "processed") for path in (folder / "QM9" / part).iterdir()
        ]
        return {path.name: path.read_bytes() for path in files if path.is_file()}


SCENARIOS: dict[str, type[Scenario]] = {
    "saving a checkpoint": CheckpointSave,
    "saving the first checkpoint": FirstCheckpointSave,
    "loading a checkpoint": CheckpointLoad,
    "storing an executable": CacheStore,
    "storing an executable in a full cache": CachePrune,
    "remembering a program": CacheRemember,
    "finding an executable": CacheFind,
    "replacing a store": StoreBuild,
    "saving a store": StoreSave,
    "reading a store": StoreRead,
    "saving results": ResultsSave,
    "loading results": ResultsLoad,
    "writing a report": ReportWrite,
    "saving a plan": PlanSave,
    "loading a plan": PlanLoad,
    "keeping arrays": ArraysKeep,
    "finding arrays": ArraysFind,
    "writing HDF5": CosmicWrite,
    "reading HDF5": CosmicRead,
    "writing xyz": XyzWrite,
    "reading xyz": XyzRead,
    "reading QM9's xyz": PublishedXyzRead,
    "writing CSV": CsvWrite,
    "writing QM9's files": RootWrite,
}
