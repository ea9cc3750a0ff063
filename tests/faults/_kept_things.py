"""One small example of everything that Torchkiln writes to files and reads back."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import io
import itertools
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from _damage_to_files import Kept, same

from torchkiln import Options
from torchkiln.core import TorchkilnError
from torchkiln.runtime.execute._executable import Executable

KEPT_THINGS: dict[str, Callable[[Path], Kept]] = {}


def _kept_thing(make: Callable[[Path], Kept]) -> Callable[[Path], Kept]:
    KEPT_THINGS[make.__name__.replace("_", " ")] = make
    return make


def _says(*words: str) -> Callable[[Any, list[str]], bool]:
    """Return whether nothing was found, and a warning said so."""

    def falls_back(value: Any, told: list[str]) -> bool:
        return value is None and any(all(word in text for word in words) for text in told)

    return falls_back


# -- the runtime ------------------------------------------------------------------------------


def _state(number: float) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    tensors = {
        "weight": torch.full((4, 5), number),
        "step": torch.tensor(3, dtype=torch.int64),
        "half": torch.arange(6, dtype=torch.bfloat16),
    }
    return tensors, {"epoch": int(number), "loss": number / 7, "name": "water", "list": [1, None]}


@_kept_thing
def only_checkpoint(folder: Path) -> Kept:
    from torchkiln.checkpoints import CheckpointStore

    header = CheckpointStore(folder).save(*_state(1.0))
    files = [header, header.with_suffix(".safetensors")]
    return Kept(folder, files, lambda: tuple(CheckpointStore(folder).load()))


@_kept_thing
def newest_of_two_checkpoints(folder: Path) -> Kept:
    from torchkiln.checkpoints import CheckpointStore

    store = CheckpointStore(folder)
    store.save(*_state(1.0))
    header = store.save(*_state(2.0))

    def falls_back(value: Any, told: list[str]) -> bool:
        return same(value, _state(1.0)) and any("the one before it is used" in one for one in told)

    return Kept(
        folder,
        [header, header.with_suffix(".safetensors")],
        lambda: tuple(CheckpointStore(folder).load()),
        falls_back,
    )


@_kept_thing
def trained_model(folder: Path) -> Kept:
    from torchkiln.apps.schnet._trained import load_trained
    from torchkiln.checkpoints import CheckpointStore
    from torchkiln.datasets import TargetTransform
    from torchkiln.models import SchNet

    sizes = {"hidden_channels": 4, "num_filters": 3, "num_interactions": 1, "num_gaussians": 5}
    network = SchNet(**sizes, cutoff=4.0)
    transform = TargetTransform("U0", "eV", {1: -13.6, 8: -2040.0}, True, -3.0, 0.5)
    facts = {
        "model": {**sizes, "cutoff": 4.0},
        "transform": transform.to_dict(),
        "dataset": {"k": 3, "cutoff_angstrom": 4.0, "elements": [1, 8]},
    }
    tensors = {f"model/{name}": value for name, value in network.state_dict().items()}
    header = CheckpointStore(folder).save(tensors, facts)

    def read() -> Any:
        trained = load_trained(folder)
        return dict(trained.model.state_dict()), trained.transform.to_dict(), dict(trained.facts)

    return Kept(folder, [header, header.with_suffix(".safetensors")], read)


_KEY = "0123456789abcdef" * 4


@_kept_thing
def executable_in_the_cache(folder: Path) -> Kept:
    from torchkiln.runtime.cache._cache import ExecutableCache

    source = folder.parent / "made.pt2"
    source.write_bytes(bytes(range(256)) * 8)
    with ExecutableCache(folder, 10**9).holding(_KEY):
        ExecutableCache(folder, 10**9).store(_KEY, source, "a model")

    def read() -> Any:
        cache = ExecutableCache(folder, 10**9)
        cache.entries()
        with cache.holding(_KEY) as package:
            return None if package is None else package.read_bytes()

    files = [folder / "executables" / f"{_KEY}.{suffix}" for suffix in ("pt2", "json")]
    return Kept(folder, files, read, _says(f"{_KEY}.pt2", "damaged", "compiled again"))


@_kept_thing
def index_of_the_cache(folder: Path) -> Kept:
    from torchkiln.runtime.cache._cache import ExecutableCache

    ExecutableCache(folder, 10**9).remember(_KEY, {"graph": _KEY, "metadata": {"entries": [1, 2]}})
    return Kept(
        folder,
        [folder / "index" / f"{_KEY}.json"],
        lambda: ExecutableCache(folder, 10**9).lookup(_KEY),
        _says(f"{_KEY}.json", "damaged", "traced again"),
    )


class _Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.linear(x)
        return y, torch.nn.functional.mse_loss(y, torch.ones_like(y))


class _NotLoaded(Executable):
    """Stands for native code: keeps the bytes that would have been loaded."""

    loaded = b""

    def __init__(self, package: Path, *_rest: Any) -> None:
        type(self).loaded = Path(package).read_bytes()

    def entry(self, name: str) -> Any:
        return name


def _package() -> bytes:
    """Return what looks like native code until somebody loads it: packages are zip archives."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("code.so", bytes(range(255, -1, -1)) * 8)
    return content.getvalue()


_CODE = _package()


@_kept_thing
def exported_program(folder: Path) -> Kept:
    from torchkiln.runtime import load, training_model
    from torchkiln.runtime._program import Program
    from torchkiln.runtime.compile import _export

    path, package = folder / "program.kiln", folder.parent / "code.pt2"
    package.write_bytes(_CODE)
    module = _Line()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    program = training_model(module, Options(backend="capture"), optimizer)
    program(torch.ones(4, 3))
    with mock.patch.object(Program, "executable_path", package):
        program.export(path)

    def read() -> Any:
        fresh = _Line()
        other = torch.optim.Adam(fresh.parameters(), lr=0.01)
        # What a file of native code would do stays out of here, and damaged bytes even more so.
        with mock.patch.object(_export, "NativeExecutable", _NotLoaded):
            _NotLoaded.loaded = b""
            program = load(path, fresh, other)
        assert _NotLoaded.loaded == _CODE, "damaged native code was loaded"
        state = {name: dict(other.state[value]) for name, value in fresh.named_parameters()}
        return dict(fresh.state_dict()), state, program.rng_state, program.options.to_dict()

    return Kept(folder, [path], read)


@_kept_thing
def model_of_poptorch(folder: Path) -> Kept:
    import poptorch
    from torchkiln.runtime._program import Program
    from torchkiln.runtime.compile import _export

    path, package = folder / "model.poptorch", folder.parent / "code.pt2"
    package.write_bytes(_CODE)
    with mock.patch.dict(os.environ, {"TORCHKILN_BACKEND": "capture"}):
        model = poptorch.inferenceModel(torch.nn.Linear(3, 2), poptorch.Options())
        model.compile(torch.ones(4, 3))
    with mock.patch.object(Program, "executable_path", package):
        model.save(path)

    def read() -> Any:
        with mock.patch.object(_export, "NativeExecutable", _NotLoaded):
            _NotLoaded.loaded = b""
            found = poptorch.load(path)
        assert _NotLoaded.loaded == _CODE, "damaged native code was loaded"
        return dict(found.state_dict()), found.options.toDict()

    # The original asserts that versions fit.
    errors = (poptorch.Error, TorchkilnError, AssertionError)
    return Kept(folder, [path], read, errors=errors)


@_kept_thing
def native_helper(folder: Path) -> Kept:
    from torchkiln.ops import _native

    code = bytes(range(256)) * 8
    whole = code + _native._SEAL + hashlib.sha256(code).digest()

    def path_of(name: str) -> Path:
        source = Path(_native.__file__).with_name(f"{name}.c")
        return folder / f"{name}-{_native._digest(source, _native._LANGUAGES['.c'][2])}.so"

    path = path_of("_mt19937")
    path.write_bytes(whole)
    path.chmod(0o700)

    def read() -> Any:
        loaded: list[bytes] = []

        def build(
            _command: list[str], library: Path, *, finish: Callable[[Path], None], **_rest: Any
        ) -> None:
            library.write_bytes(code)
            finish(library)

        def load(name: str) -> str:
            loaded.append(Path(name).read_bytes())
            return "a library"

        with (
            mock.patch.dict(os.environ, {"TORCHKILN_NATIVE_DIR": str(folder)}),
            mock.patch.object(ctypes, "CDLL", load),
            mock.patch.object(_native, "run_compiler", build),
        ):
            assert _native.load_native.__wrapped__("_mt19937") == "a library"
        return loaded

    return Kept(folder, [path], read)


# -- graphs and plans -------------------------------------------------------------------------


@_kept_thing
def graph_store(folder: Path) -> Kept:
    from torch_geometric.data import Data

    from torchkiln.graphs import GraphStore

    graphs = [
        Data(
            x=torch.arange(2.0 * nodes).reshape(nodes, 2),
            z=torch.arange(nodes, dtype=torch.int8),
            edge_index=torch.arange(nodes).repeat(2, 1),
            y=torch.tensor([nodes / 7]),
            name=f"graph {nodes}",
        )
        for nodes in range(1, 9)
    ]
    place = folder / "store"
    GraphStore.from_dataset(graphs).save(place)

    def read() -> Any:
        store = GraphStore.open(place)
        return [store[index].to_dict() for index in range(len(store))], dict(store.sizes)

    return Kept(folder, sorted(place.iterdir()), read, names=(str(place),))


@_kept_thing
def plan(folder: Path) -> Kept:
    from torchkiln.packing import PackPlan, pack

    path = folder / "plan.npz"
    sizes = {"nodes": np.arange(3, 40), "edges": np.arange(37) * 2}
    pack(sizes, slots={"nodes": 80, "edges": 160, "graphs": 9}).save(path)
    return Kept(folder, [path], lambda: vars_of(PackPlan.load(path)))


def vars_of(value: Any) -> dict[str, Any]:
    import dataclasses

    return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}


@_kept_thing
def sizes_in_npz(folder: Path) -> Kept:
    from torchkiln.commands._plan_sizes import read_size_file

    path = folder / "sizes.npz"
    np.savez(path, nodes=np.arange(50), edges=np.arange(50) ** 2)
    return Kept(folder, [path], lambda: read_size_file(path))


# -- datasets ---------------------------------------------------------------------------------


def _in_data_dir(folder: Path, read: Callable[[], Any]) -> Callable[[], Any]:
    def reading() -> Any:
        with mock.patch.dict(os.environ, {"TORCHKILN_DATA_DIR": str(folder)}):
            return read()

    return reading


@_kept_thing
def kept_arrays(folder: Path) -> Kept:
    from torchkiln.datasets._array_cache import cached_arrays

    builds = itertools.count()

    def build() -> dict[str, np.ndarray]:
        next(builds)
        return {"pos": np.arange(60.0).reshape(20, 3), "z": np.ones(20, np.uint8)}

    read = _in_data_dir(folder, lambda: cached_arrays("qm9-test", build, names=("pos", "z")))
    read()
    return Kept(folder, [folder / "qm9-test.npz"], read)


def _molecules() -> Any:
    from torchkiln.datasets import Molecules

    return Molecules(
        offsets=np.array([0, 3, 4]),
        z=np.array([8, 1, 1, 6]),
        pos=np.arange(12.0).reshape(4, 3),
        names=["water", "carbon"],
        targets={"U0": np.array([-76.4, -37.8]), "gap": np.array([0.1, np.nan])},
        source="test",
    )


@_kept_thing
def kept_molecules(folder: Path) -> Kept:
    from torchkiln.datasets.files import _kept

    source = folder.parent / "molecules.xyz"
    source.write_text("the file that they came from\n")

    def read() -> Any:
        with mock.patch.object(_kept, "_WORTH_BYTES", 0):
            return _kept.kept_molecules([source], _molecules)

    reading = _in_data_dir(folder, read)
    reading()
    return Kept(folder, list(folder.glob("*.npz")), reading)


def _qm9_root(folder: Path) -> tuple[Path, Path]:
    """Write QM9's first molecules as `torchkiln data qm9` does; return the tables and the root."""
    from torchkiln.datasets.qm9._root import write_qm9_root
    from torchkiln.datasets.qm9._source import PARTS, find_source

    if importlib.util.find_spec("qm9pack") is None:
        pytest.skip("needs qm9pack, the source of QM9 (pip install qm9pack)")
    tables = folder.parent / "tables"
    tables.mkdir()
    for number, name in enumerate(PARTS):
        with (find_source() / name).open() as whole:
            (tables / name).write_text("".join(itertools.islice(whole, 1 if number else 7)))
    with mock.patch.dict(os.environ, {"TORCHKILN_DATA_DIR": str(folder.parent / "data")}):
        return tables, write_qm9_root(folder / "QM9", source=tables, progress=False)


@_kept_thing
def raw_files_of_qm9(folder: Path) -> Kept:
    from torchkiln.datasets.qm9._folder import molecules_in

    _, root = _qm9_root(folder)
    names = ("gdb9.sdf", "gdb9.sdf.csv", "uncharacterized.txt")
    return Kept(
        folder, [root / "raw" / name for name in names], lambda: molecules_in(root, progress=False)
    )


@_kept_thing
def processed_file_of_qm9(folder: Path) -> Kept:
    from torchkiln.datasets.qm9._folder import molecules_in

    _, root = _qm9_root(folder)
    for path in (root / "raw").iterdir():
        path.unlink()
    path = root / "processed" / "data_v3.pt"
    return Kept(folder, [path], lambda: molecules_in(root, progress=False))


@_kept_thing
def root_of_qm9_written_again(folder: Path) -> Kept:
    """A second `torchkiln data qm9` mends what is damaged, or says what is."""
    from torchkiln.datasets.qm9._root import write_qm9_root

    tables, root = _qm9_root(folder)

    def read() -> Any:
        said: list[str] = []
        write_qm9_root(root, source=tables, progress=False, say=said.append)
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        manifest = json.loads((root / "torchkiln-qm9.json").read_bytes())["content"]
        parts = {path.name: path.read_bytes() for path in paths if path.suffix != ".json"}
        return manifest, parts

    files = [root / name for name in ("raw/gdb9.sdf.csv", "raw/qm9_v3.pt", "torchkiln-qm9.json")]
    return Kept(folder, files, _in_data_dir(folder.parent / "data", read))


@_kept_thing
def events(folder: Path) -> Kept:
    from torchkiln.datasets.cosmic import CosmicEvent, Larcv3Events, write_larcv3

    chance = np.random.default_rng(0)

    def event() -> CosmicEvent:
        planes = np.repeat(np.arange(3, dtype=np.uint8), 5)
        pixels = np.concatenate([np.sort(chance.choice(48, 5, replace=False)) for _ in range(3)])
        return CosmicEvent(
            planes=planes,
            ticks=(pixels % 6).astype(np.int32),
            wires=(pixels // 6).astype(np.int32),
            values=chance.random(15).astype(np.float32),
            labels=chance.integers(3, size=15).astype(np.uint8),
            height=6,
            width=8,
        )

    path = folder / "events.h5"
    write_larcv3(path, [event(), event()])

    def read() -> Any:
        found = Larcv3Events(path)
        try:
            return [found[index] for index in range(len(found))]
        finally:
            found.close()

    return Kept(folder, [path], read)


# -- reports ----------------------------------------------------------------------------------


@_kept_thing
def results_of_a_run(folder: Path) -> Kept:
    from torchkiln.report import EpochRecord, RunResult, ValidationResult
    from torchkiln.report._results_file import load_result, save_result

    true = np.arange(8.0)
    save_result(
        RunResult(
            status="finished",
            settings={"bench": {"learning_rate": 0.001, "profile_dir": None}},
            dataset={"name": "QM9", "unit": "eV"},
            model={"name": "SchNet"},
            machine={"cpu": "AMD EPYC", "threads": 2},
            compile_seconds=38.4,
            packing={"nodes": 0.983},
            epochs=[EpochRecord(0, 0.5, 4.0, 10_000, 2500.0, 1e-3, 0.9, float("nan"))],
            steps=[(0, 0.5), (1, 0.25)],
            validation=ValidationResult.compare(true + 0.1, true, baseline_mae=0.4),
            test=None,
        ),
        folder,
    )
    return Kept(folder, sorted(folder.iterdir()), lambda: load_result(folder))
