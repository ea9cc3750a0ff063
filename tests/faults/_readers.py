"""Every reader and every config file, with valid content to begin with.

`READERS` is for files whose bytes are changed, `SEALED` for JSON behind a checksum: there, the
checksum is right and the content odd, as if a program of another version had written it.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import importlib.util
import io
import itertools
import json
import random
import struct
import tarfile
import traceback
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import yaml
from _mutations import (
    Distinct,
    as_text,
    as_words,
    documents,
    from_hypothesis,
    mappings,
    mutations,
)

from torchkiln import Options
from torchkiln.core import TorchkilnError

WATER = "3\nenergy=-76.4\nO 0 0 0\nH 0 0.7 0.6\nH 0 -0.7 0.6\n"
EXTXYZ = (
    '3\nLattice="9 0 0 0 9 0 0 0 9" Properties=species:S:1:pos:R:3:forces:R:3 energy=-76.4 '
    'name="a b" pbc="F F F"\nO 0 0 0 1 2 3\nH 0 0.7 0.6 0 0 0\nH 0 -0.7 0.6 0 0 0\n'
)
SDF = (
    "water\n  made     3D\n\n  3  2  0  0  0  0            999 V2000\n"
    + "".join(
        f"{x:10.4f}{y:10.4f}{z:10.4f} {symbol}   0  0\n"
        for symbol, x, y, z in [("O", 0, 0, 0), ("H", 0, 0.7, 0.6), ("H", 0, -0.7, 0.6)]
    )
    + "  1  2  1\n  1  3  1\nM  END\n> <energy>\n-76.4\n\n$$$$\n"
)
V3000 = (
    "water\n  made     3D\n\n  0  0  0     0  0            999 V3000\nM  V30 BEGIN CTAB\n"
    "M  V30 COUNTS 3 2 0 0 0\nM  V30 BEGIN ATOM\nM  V30 1 O 0 0 0 0\nM  V30 2 H 0 0.7 -\n"
    "M  V30 0.6 0\nM  V30 3 H 0 -0.7 0.6 0 CHG=0\nM  V30 END ATOM\nM  V30 BEGIN BOND\n"
    "M  V30 1 1 1 2\nM  V30 2 1 1 3\nM  V30 END BOND\nM  V30 END CTAB\nM  END\n$$$$\n"
)
CLUSTERS = "3\n0 -76.4\nO 0 0 0\nH 0 0.7 0.6\nH 0 -0.7 0.6\n"
LEFT_OUT = "\n" * 9 + "      21   a b\n      58  c\n3054 compounds\n"
PUBLISHED = "1\ngdb 1 " + " ".join(["1.0"] * 15) + "\nC 0 0 0 0\n1\nC C\nInChI InChI\n"


@dataclass(frozen=True)
class Reader:
    """What is read, and from what.

    Attributes:
        inputs: Returns so many inputs, of which no two are the same.
        read: Reads one of them; a folder of its own is there for files.
        seeds: Valid ones, which are read without an error.
        errors: What a reader may raise.
        may_claim_memory: Whether it may ask for what a file claims to hold, and be refused.
    """

    inputs: Callable[[int], Sequence[Any]]
    read: Callable[[Any, Path], Any]
    seeds: Sequence[Any]
    errors: tuple[type[BaseException], ...] = (TorchkilnError,)
    may_claim_memory: bool = False
    # Where else an error may come from, on purpose: kinds of it, by file and function.
    raised_in: Mapping[tuple[str, str], tuple[type[BaseException], ...]] = field(
        default_factory=dict
    )

    def may_raise(self, error: BaseException) -> bool:
        if isinstance(error, self.errors):
            return True
        last = traceback.extract_tb(error.__traceback__)[-1]
        return isinstance(error, self.raised_in.get((Path(last.filename).name, last.name), ()))


READERS: dict[str, Callable[[], Reader]] = {}


def _reader(make: Callable[[], Reader]) -> Callable[[], Reader]:
    READERS[make.__name__.replace("_", " ")] = make
    return make


def _file(
    name: str, seeds: Sequence[bytes | str], read: Callable[[Path], Any], **more: Any
) -> Reader:
    """Return a reader of one file."""
    contents = [seed.encode() if isinstance(seed, str) else seed for seed in seeds]

    def read_content(content: bytes, folder: Path) -> Any:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return read(path)

    return Reader(lambda count: mutations(contents, count), read_content, contents, **more)


def _words(
    seeds: Sequence[bytes],
    read: Callable[[str], Any],
    becomes: Callable[[bytes], str] = as_words,
    **more: Any,
) -> Reader:
    """Return a reader of text that is in no file."""
    return Reader(
        lambda count: mutations(seeds, count, becomes=becomes),
        lambda text, _folder: read(text),
        [becomes(seed) for seed in seeds],
        **more,
    )


def _arrays(write: Callable[..., None] = np.savez, **arrays: Any) -> bytes:
    content = io.BytesIO()
    write(content, **arrays)
    return content.getvalue()


# -- molecules --------------------------------------------------------------------------------


def _structures(name: str, *texts: str) -> Reader:
    from torchkiln.datasets import read_molecules

    seeds = [text.encode() for text in texts]
    if name.endswith(".gz"):
        seeds = [gzip.compress(seed) for seed in seeds]
    return _file(name, seeds, read_molecules)


@_reader
def xyz() -> Reader:
    return _structures("a.xyz", WATER, WATER + "1\n-3.5\n6 0 0 0\n", "1\n\nHe 0 0 0")


@_reader
def packed_xyz() -> Reader:
    return _structures("a.xyz.gz", WATER * 3)


@_reader
def extxyz() -> Reader:
    return _structures("a.extxyz", EXTXYZ, EXTXYZ * 2)


@_reader
def sdf_v2000() -> Reader:
    return _structures("a.sdf", SDF, SDF * 2)


@_reader
def sdf_v3000() -> Reader:
    return _structures("a.sdf", V3000, V3000 + SDF)


@_reader
def table_of_targets() -> Reader:
    from torchkiln.datasets.files._target_table import read_target_table

    seeds = ["name,U0,gap\na,1.0,2\nb,-3e5,\n", 'id,"U 0"\n"x\ny",1\n', "mol_id,A\ngdb_1,157.7\n"]
    return _file("a.csv", seeds, read_target_table)


@_reader
def smiles() -> Reader:
    from torchkiln.datasets.qm9._smiles import read_smiles

    seeds = [b"C", b"CC(=O)N1CC2CC12", b"[O-]C(=O)C[NH3+]", b"C#N", b"O=C%10CC%10"]
    return _words(seeds, read_smiles)


@_reader
def names_of_elements() -> Reader:
    from torchkiln.datasets.files._elements import atomic_number

    # A ValueError is what its callers, who know file and line, ask it for.
    return _words(
        [b"C", b"He", b"6", b"Cl"],
        atomic_number,
        raised_in={("_elements.py", "atomic_number"): (ValueError,)},
    )


# -- QM9 --------------------------------------------------------------------------------------


@_reader
def tables_of_qm9() -> Reader:
    from torchkiln.datasets.qm9._arrays import build_arrays
    from torchkiln.datasets.qm9._source import PARTS, find_source

    if importlib.util.find_spec("qm9pack") is None:
        pytest.skip("needs qm9pack, the source of QM9 (pip install qm9pack)")
    with (find_source() / PARTS[0]).open("rb") as file:
        lines = list(itertools.islice(file, 4))

    def read(path: Path) -> Any:
        for part in PARTS[1:]:
            (path.parent / part).write_bytes(lines[0])
        return build_arrays(path.parent)

    return _file(PARTS[0], [b"".join(lines), b"".join(lines[:2])], read)


@_reader
def published_xyz_of_qm9() -> Reader:
    from torchkiln.datasets.qm9._folder import molecules_in

    def read(path: Path) -> Any:
        (path.parent / "uncharacterized.txt").write_text(LEFT_OUT)
        return molecules_in(path.parent, progress=False)

    return _file("dsgdb9nsd_000001.xyz", [PUBLISHED, PUBLISHED.replace("1.0", "1*^-6")], read)


@_reader
def list_of_left_out_molecules() -> Reader:
    from torchkiln.datasets.qm9._folder import molecules_in

    def read(path: Path) -> Any:
        (path.parent / "dsgdb9nsd_000001.xyz").write_text(PUBLISHED)
        return molecules_in(path.parent, progress=False)

    return _file("uncharacterized.txt", [LEFT_OUT], read)


@_reader
def processed_qm9() -> Reader:
    from torchkiln.datasets.qm9._folder import molecules_in

    values = {
        "z": torch.tensor([8, 1, 1]),
        "pos": torch.arange(9.0).reshape(3, 3),
        "y": torch.zeros(1, 19),
        "name": ["gdb_1"],
    }
    content = io.BytesIO()
    torch.save((values, {"z": torch.tensor([0, 3])}), content)
    name = "processed/data_v3.pt"
    return _file(name, [content.getvalue()], lambda path: molecules_in(path.parents[1]))


@_reader
def processed_qm9_with_right_checksums() -> Reader:
    """Parts of the archive are changed and packed again, so that damage reaches torch."""
    from torchkiln.datasets.qm9._folder import molecules_in

    content = io.BytesIO()
    values = {"z": torch.tensor([8, 1]), "pos": torch.zeros(2, 3), "y": torch.zeros(1, 19)}
    torch.save((values, {"z": torch.tensor([0, 2])}), content)
    with zipfile.ZipFile(content) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    pickled = next(name for name in parts if name.endswith("data.pkl"))

    def read(path: Path) -> Any:
        changed = path.read_bytes()
        path.unlink()
        target = path.parent / "processed" / "data_v3.pt"
        target.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(target, "w") as archive:
            for name, part in parts.items():
                archive.writestr(name, changed if name == pickled else part)
        return molecules_in(path.parent)

    reader = _file("data.pkl", [parts[pickled]], read)
    # Torch searches a name that it refuses for a pattern, in a time that grows with the square of
    # its length: minutes for 70,000 letters, which chance does not write with a right checksum.
    return dataclasses.replace(
        reader,
        inputs=lambda count: mutations(
            reader.seeds, count, becomes=lambda content: content.replace(b"A" * 99, b"")
        ),
    )


@_reader
def manifest_of_qm9() -> Reader:
    from torchkiln.datasets.qm9._manifest import read_manifest

    old = {"source": "abc", "limit": None, "files": {"raw/gdb9.sdf": "0" * 64}}
    return _file("torchkiln-qm9.json", [json.dumps(old)], lambda path: read_manifest(path.parent))


# -- water, images, events --------------------------------------------------------------------


def _clusters(name: str, *seeds: bytes) -> Reader:
    from torchkiln.datasets.water._hydronet_files import read_file

    return _file(name, seeds, lambda path: list(read_file(path)))


@_reader
def clusters_as_xyz() -> Reader:
    return _clusters("clusters.xyz", CLUSTERS.encode(), (CLUSTERS * 3).encode())


@_reader
def clusters_as_npz() -> Reader:
    arrays = {
        "z": np.array([[8, 1, 1]], np.int8),
        "pos": np.ones((1, 3, 3), np.float16),
        "y": np.ones(1, np.float32),
    }
    return _clusters("W1.npz", _arrays(**arrays), _arrays(np.savez_compressed, **arrays))


@_reader
def clusters_as_zip() -> Reader:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("W1.xyz", CLUSTERS)
        archive.writestr("readme.txt", "hello")
    return _clusters("clusters.zip", packed.getvalue())


@_reader
def clusters_as_tar() -> Reader:
    def packed(mode: str) -> bytes:
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode=mode) as archive:
            info = tarfile.TarInfo("W1.xyz")
            info.size = len(CLUSTERS)
            archive.addfile(info, io.BytesIO(CLUSTERS.encode()))
        return content.getvalue()

    # Python's tarfile asks for as many bytes as a header claims; pages that stay empty cost little.
    reader = _clusters("clusters.tar.gz", packed("w:gz"), packed("w"))
    return dataclasses.replace(reader, may_claim_memory=True)


@_reader
def splits_of_hydronet() -> Reader:
    from torchkiln.datasets.water._hydronet_splits import read_split_file

    arrays = {"train_idx": np.arange(5), "val_idx": np.array([5]), "test_idx": np.array([6])}
    return _file("split.npz", [_arrays(**arrays)], lambda path: read_split_file(path, None))


@_reader
def splits_in_an_archive() -> Reader:
    from torchkiln.datasets.water._hydronet_splits import read_split_file

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("split_00.npz", _arrays(train_idx=np.arange(5)))
    return _file(
        "hydronet_splits.zip",
        [packed.getvalue()],
        lambda path: read_split_file("split_00.npz", path.parent),
    )


def _idx(name: str, change: Callable[[bytes], bytes]) -> Reader:
    from torchkiln.datasets.fashion_mnist import _files

    base = name.removesuffix(".gz")
    small = {base: (_files.FILES[base][0], (12,))}
    content = struct.pack(">2I", small[base][0], 12) + bytes(range(10)) + bytes(2)

    def read(path: Path) -> Any:
        with mock.patch.dict(_files.FILES, small):
            return _files.read_idx(path.parent, base)

    return _file(name, [change(content)], read)


@_reader
def idx_of_fashion_mnist() -> Reader:
    return _idx("train-labels-idx1-ubyte", bytes)


@_reader
def packed_idx_of_fashion_mnist() -> Reader:
    return _idx("train-labels-idx1-ubyte.gz", gzip.compress)


@_reader
def events_of_larcv3() -> Reader:
    import tempfile

    import h5py

    from torchkiln.datasets.cosmic import CosmicEvent, Larcv3Events, write_larcv3
    from torchkiln.datasets.cosmic._files import find_cosmic

    event = CosmicEvent(
        planes=np.repeat(np.arange(3, dtype=np.uint8), 2),
        ticks=np.array([0, 1] * 3, np.int32),
        wires=np.array([0, 1] * 3, np.int32),
        values=np.ones(6, np.float32),
        labels=np.zeros(6, np.uint8),
        height=6,
        width=8,
    )

    def copied(source: Path, target: Path, **settings: Any) -> bytes:
        # As CosmicTagger's own files are: without any checksum, so that damage gets through.
        with h5py.File(source) as old, h5py.File(target, "w") as new:

            def copy(name: str, value: Any) -> None:
                if isinstance(value, h5py.Dataset):
                    new.create_dataset(name, data=value[:], **settings)

            old.visititems(copy)
        return target.read_bytes()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.h5"
        write_larcv3(path, [event, event])
        plain = copied(path, Path(folder) / "plain.h5")
        packed = copied(path, Path(folder) / "packed.h5", compression="gzip", chunks=True)
        seeds = [path.read_bytes(), plain, packed]

    def read(path: Path) -> Any:
        find_cosmic(path)
        events = Larcv3Events(path)
        try:
            return [events[index] for index in range(min(len(events), 5))]
        finally:
            events.close()

    return _file("events.h5", seeds, read)


# -- arrays, plans, sizes, splits -------------------------------------------------------------


@_reader
def npz() -> Reader:
    from torchkiln.core import read_npz

    arrays = {"a": np.arange(9), "b": np.array(["x", "yz"]), "c": np.zeros((0, 3))}
    seeds = [_arrays(**arrays), _arrays(np.savez_compressed, **arrays)]
    return _file("a.npz", seeds, read_npz)


def _npy(array: Any) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


@_reader
def npy() -> Reader:
    from torchkiln.core import read_npy

    table = np.zeros(3, dtype=[("nodes", "<i8"), ("edges", "<i4")])
    return _file("a.npy", [_npy(np.arange(9)), _npy(np.ones((2, 3), "f4")), _npy(table)], read_npy)


@_reader
def npz_with_right_checksums() -> Reader:
    """The array inside of the archive is changed and packed again."""
    from torchkiln.core import read_npz

    def read(path: Path) -> Any:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.npy", path.read_bytes())
        packed.seek(0)
        return read_npz(packed, path)

    return _file("a.npy", [_npy(np.arange(9)), _npy(np.ones((2, 3), "f4"))], read)


@_reader
def plan_file() -> Reader:
    import tempfile

    from torchkiln.packing import PackPlan, pack

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.npz"
        sizes = {"nodes": np.arange(3, 20), "edges": np.arange(17) * 2}
        pack(sizes, slots={"nodes": 80, "edges": 160, "graphs": 9}).save(path)
        return _file("plan.npz", [path.read_bytes()], PackPlan.load)


@_reader
def plan_of_odd_arrays() -> Reader:
    import tempfile

    from torchkiln.packing import PackPlan, pack

    odd = [np.arange(3), np.zeros(0, np.int64), np.array(5), np.array(["a"]), np.array([-1, 2**62])]
    odd += [np.array([np.nan]), np.zeros((2, 2), np.int64), np.array(True), np.array([2**63 - 1])]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.npz"
        pack({"nodes": np.arange(3, 20)}, slots={"nodes": 80, "graphs": 9}).save(path)
        with np.load(path) as file:
            arrays = dict(file)

    def changed(array: Any, kind: int, number: int) -> Any:
        if kind == 0 or array.ndim == 0 or array.dtype.kind not in "iu":
            return odd[number % len(odd)]
        changes = (
            lambda: array[:number],
            lambda: array * (number - 5),
            lambda: array + (number - 5),
            lambda: np.roll(array, number),
            lambda: np.concatenate([array, array[:number]]),
            lambda: array.astype(f"{'iuf'[number % 3]}{(2, 4, 8)[number // 3 % 3]}"),
        )
        return changes[kind - 1]()

    def inputs(count: int) -> list[Any]:
        """Each names arrays, and what becomes of them."""
        chance, kept = random.Random(0), Distinct([()])
        while len(kept.found) < count:
            names = sorted(chance.sample(sorted(arrays), chance.choice((1, 1, 2, 3))))
            kept.add(tuple((n, chance.randrange(7), chance.randrange(11)) for n in names))
        return kept.found

    def read(case: Any, folder: Path) -> Any:
        parts = {name: changed(arrays[name], kind, number) for name, kind, number in case}
        np.savez(folder / "plan.npz", **{**arrays, **parts})
        return PackPlan.load(folder / "plan.npz")

    return Reader(inputs, read, [()])


@_reader
def sizes_as_csv() -> Reader:
    from torchkiln.commands._plan_sizes import read_size_file

    return _file("a.csv", ["nodes,edges\n3,4\n5,6\n", "nodes\n1\n\n2\n"], read_size_file)


@_reader
def sizes_as_npy() -> Reader:
    from torchkiln.commands._plan_sizes import read_size_file

    table = np.zeros(3, dtype=[("nodes", "<i8"), ("edges", "<i4")])
    seeds = [_npy(np.arange(9)), _npy(np.ones((2, 3), int)), _npy(table)]
    return _file("a.npy", seeds, read_size_file)


@_reader
def sizes_that_are_planned() -> Reader:
    """Not only read: whatever the numbers are, a plan or an error comes of them."""
    from torchkiln.commands._plan_sizes import read_size_file
    from torchkiln.packing import pack

    def read(path: Path) -> Any:
        return pack(read_size_file(path), slots={"nodes": 80, "edges": 160, "graphs": 9})

    return _file("a.csv", ["nodes,edges\n3,4\n5,6\n", "nodes,edges\n1,0\n2,70\n"], read)


@_reader
def split_as_json() -> Reader:
    from torchkiln.datasets.molecules._splits import split_indices

    text = json.dumps({"train": [0, 1, 2], "val": [3], "test": []})
    return _file("a.json", [text], lambda path: split_indices(10, path))


@_reader
def split_of_odd_values() -> Reader:
    from torchkiln.datasets.molecules._splits import split_indices

    seeds = [
        {"train": [0, 1, 2], "validation": [3], "test": [4, 5]},
        {"train": [0], "val_idx": [1], "test": []},
    ]
    return _values(seeds, lambda value: split_indices(10, value))


@_reader
def split_as_npz() -> Reader:
    from torchkiln.datasets.molecules._splits import split_indices

    arrays = {"train": np.arange(3), "val": np.array([3]), "test": np.array([4])}
    return _file("a.npz", [_arrays(**arrays)], lambda path: split_indices(10, path))


@_reader
def split_as_shares() -> Reader:
    from torchkiln.datasets.molecules._splits import split_indices

    return _words(
        [b"80/10/10", b"0.8,0.1,0.1", b"5/2/1"],
        lambda text: split_indices(10, text),
        becomes=lambda content: as_words(content).replace("\0", ""),
    )


# -- settings ---------------------------------------------------------------------------------


def _option_texts(dump: Callable[[Any], str], seed: str) -> Callable[[int], list[bytes]]:
    """Return a maker of inputs: most are changed texts, others documents of hypothesis."""

    def inputs(count: int) -> list[bytes]:
        values = from_hypothesis(mappings(list(Options().to_dict())), count // 6)
        return mutations([seed.encode()], count, others=as_text(dump, values))

    return inputs


def _values(seeds: Sequence[Any], read: Callable[[Any], Any]) -> Reader:
    """Return a reader of plain values: some are of hypothesis, most are changed valid ones."""

    def inputs(count: int) -> list[Any]:
        names = sorted({name for seed in seeds for name in seed})
        return documents(seeds, count, others=from_hypothesis(mappings(names), count // 6))

    return Reader(inputs, lambda value, _folder: read(value), seeds)


@_reader
def options_as_json() -> Reader:
    text = Options(device_iterations=4, backend="eager").to_json()
    return Reader(
        _option_texts(json.dumps, text),
        lambda content, _folder: Options.from_json(content.decode("utf-8", "replace")),
        [text.encode()],
    )


def _to_yaml(value: Any) -> str:
    return yaml.dump(value, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper))


@_reader
def options_as_yaml() -> Reader:
    text = "device_iterations: &a 4\nbackend: eager\ngradient_accumulation: *a\n"
    return Reader(
        _option_texts(_to_yaml, text),
        lambda content, _folder: Options.from_yaml(content.decode("utf-8", "replace")),
        [text.encode()],
    )


@_reader
def options_from_values() -> Reader:
    # As files reach it: who calls `from_dict` passes a mapping.
    return _values([Options(device_iterations=4).to_dict()], Options._from_parsed)


_CONFIGS = Path(__file__).parents[2] / "configs"


def _config(
    name: str, read: Callable[[list[str]], Any], names: Sequence[str], short: str
) -> Reader:
    seeds = [short.encode(), (_CONFIGS / name).read_bytes()]

    def inputs(count: int) -> list[bytes]:
        values = from_hypothesis(mappings(names), count // 6)
        return mutations(seeds, count, others=as_text(_to_yaml, values))

    def read_content(content: bytes, folder: Path) -> Any:
        (folder / "config.yml").write_bytes(content)
        return read(["--config", str(folder / "config.yml")])

    return Reader(inputs, read_content, seeds, errors=(TorchkilnError, SystemExit))


@_reader
def config_of_schnet() -> Reader:
    from torchkiln.apps.schnet._arguments import read_settings
    from torchkiln.apps.schnet._config_file import short_names, types_by_key

    names = [*types_by_key(), *short_names(), "bench", "dataset_factory", "model"]
    short = (
        "bench: {num_epochs: 3}\nbatch_size: 64\ndataset_factory:\n  options: {backend: eager}\n"
    )
    return _config("qm9_quick.yml", read_settings, names, short)


@_reader
def config_of_cosmic_tagger() -> Reader:
    from torchkiln.apps.cosmic import _arguments

    make_parser = functools.cache(_arguments.make_parser)  # which takes most of the time

    def read_settings(args: list[str]) -> Any:
        with mock.patch.object(_arguments, "make_parser", make_parser):
            return _arguments.read_settings(args)

    names = ["run", "mode", "data", "network", "id", "epochs", "optimizer", "downsample", "seed"]
    short = "run: {id: a, epochs: 2}\nmode:\n  optimizer: {name: adam}\ndata: {downsample: 4}\n"
    return _config("cosmic_quick.yml", read_settings, names, short)


def _poptorch_errors() -> dict[str, Any]:
    import poptorch
    from poptorch._errors import ConfigFileError

    # What the original raises, as its programs expect it; by mistake, these come from elsewhere.
    return {
        "errors": (TorchkilnError, poptorch.Error, ConfigFileError),
        "raised_in": {
            ("_option_store.py", "__getattr__"): (AttributeError,),
            ("_option_store.py", "require"): (AssertionError,),
            ("_choices.py", "to_choice"): (AttributeError,),
            ("_option_files.py", "apply_json"): (ValueError,),
        },
    }


@_reader
def options_of_poptorch_as_json() -> Reader:
    import poptorch

    seeds = [
        {"deviceIterations": 4, "Training.gradientAccumulation": 2},
        {"outputMode": "OutputMode.All", "replicationFactor": [2], "randomSeed": 3},
    ]
    texts = as_text(json.dumps, seeds)

    def inputs(count: int) -> list[bytes]:
        names = ["deviceIterations", "outputMode", "Training", "Training.gradientAccumulation"]
        values = from_hypothesis(mappings(names), count // 6)
        return mutations(texts, count, others=as_text(json.dumps, values))

    return Reader(
        inputs,
        lambda content, _folder: poptorch.Options().from_json(content.decode("utf-8", "replace")),
        texts,
        **_poptorch_errors(),
    )


@_reader
def options_of_poptorch_as_file() -> Reader:
    import poptorch

    text = "# a comment\ndeviceIterations(4)\nTraining.gradientAccumulation(2)\nrandomSeed(3)\n"
    return _file(
        "options.conf",
        [text, text + 'outputMode(poptorch.OutputMode.All)\nenableExecutableCaching("/tmp/a")\n'],
        lambda path: poptorch.Options().loadFromFile(str(path)),
        **_poptorch_errors(),
        # Python's parser says MemoryError of nested brackets, whatever memory there is.
        may_claim_memory=True,
    )


# -- behind a checksum ------------------------------------------------------------------------


def _sealed(content: Any) -> bytes:
    checksum = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({"sha256": checksum, "content": content}).encode()


def _document(
    name: str,
    seeds: Sequence[Any],
    seal: Callable[[Any], bytes],
    read: Callable[[Path], Any],
    prepare: Callable[[Path], None] = lambda _folder: None,
) -> Reader:
    """Return a reader of JSON: half of the inputs are changed as text, half are sealed anew."""
    valid = [seal(seed) for seed in seeds]

    def inputs(count: int) -> list[bytes]:
        odd = [seal(document) for document in documents(seeds, count // 2)]
        return mutations(valid, count, others=odd)

    def read_content(content: bytes, folder: Path) -> Any:
        prepare(folder)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return read(path)

    return Reader(inputs, read_content, valid)


@_reader
def header_of_a_checkpoint() -> Reader:
    from safetensors.torch import save

    from torchkiln.checkpoints import CheckpointStore

    tensors = save({"a": torch.ones(2)})
    header = {
        "format": 2,
        "tensors": {"sha256": hashlib.sha256(tensors).hexdigest(), "aliases": {"b": "a"}},
        "facts": {"epoch": 3},
    }

    def prepare(folder: Path) -> None:
        (folder / "checkpoint-000001.safetensors").write_bytes(tensors)

    return _document(
        "checkpoint-000001.json",
        [header],
        _sealed,
        lambda path: CheckpointStore(path.parent).load(),
        prepare,
    )


@_reader
def tensors_of_a_checkpoint() -> Reader:
    """The checksum is right and the file is none of safetensors."""
    from safetensors.torch import save

    from torchkiln.checkpoints import CheckpointStore

    def read(path: Path) -> Any:
        checksum = hashlib.sha256(path.read_bytes()).hexdigest()
        header = {"format": 2, "tensors": {"sha256": checksum, "aliases": {}}, "facts": {}}
        path.with_suffix(".json").write_bytes(_sealed(header))
        return CheckpointStore(path.parent).load()

    seed = save({"a": torch.ones(2), "b": torch.zeros(3, dtype=torch.bfloat16)})
    return _file("checkpoint-000001.safetensors", [seed], read)


@_reader
def facts_of_a_trained_model() -> Reader:
    import tempfile

    from torchkiln.apps.schnet._trained import load_trained
    from torchkiln.checkpoints import CheckpointStore
    from torchkiln.datasets import TargetTransform
    from torchkiln.models import SchNet

    sizes = {"hidden_channels": 4, "num_filters": 3, "num_interactions": 1, "num_gaussians": 5}
    network = SchNet(**sizes, cutoff=4.0)
    facts = {
        "model": {**sizes, "cutoff": 4.0},
        "transform": TargetTransform("U0", "eV", {1: -13.6}, True, -3.0, 0.5).to_dict(),
        "dataset": {"k": 3, "cutoff_angstrom": 4.0, "elements": [1, 8]},
    }
    values = {f"model/{name}": value for name, value in network.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        path = CheckpointStore(folder).save(values, facts)
        header = json.loads(path.read_bytes())["content"]
        tensors = path.with_suffix(".safetensors").read_bytes()

    def prepare(folder: Path) -> None:
        (folder / "checkpoint-000001.safetensors").write_bytes(tensors)

    return _document(
        "checkpoint-000001.json", [header], _sealed, lambda path: load_trained(path.parent), prepare
    )


_KEY = "0123456789abcdef" * 4


@_reader
def index_of_the_cache() -> Reader:
    from torchkiln.runtime.cache._cache import ExecutableCache

    return _document(
        f"index/{_KEY}.json",
        [{"format": 2, "graph": _KEY, "program": {"entries": [1]}}],
        _sealed,
        lambda path: ExecutableCache(path.parents[1], 10**9).lookup(_KEY),
    )


@_reader
def program_in_the_index_of_the_cache() -> Reader:
    """What is known of a program without tracing it, and the executable that it names."""
    from torchkiln.data._structure import ConstantNode, MappingNode, SequenceNode, TensorNode
    from torchkiln.runtime.cache._cache import ExecutableCache
    from torchkiln.runtime.call._metadata import node_to_json
    from torchkiln.runtime.compile import _builder

    def prepare(folder: Path) -> None:
        cache, source = ExecutableCache(folder / "cache", 10**9), folder / "made.pt2"
        with cache.holding(_KEY) as package:
            if package is None:
                source.write_bytes(b"code")
                cache.store(_KEY, source, "a model")

    def read(path: Path) -> Any:
        cache = ExecutableCache(path.parents[1], 10**9)
        # Native code is not what is tried here.
        with mock.patch.object(_builder, "NativeExecutable", mock.MagicMock()):
            found = _builder._from_index(cache, _KEY, torch.device("cpu"), show_progress=False)
            return found or "compiled again"

    pair = SequenceNode("out.all", list, (TensorNode("out.all.0"), ConstantNode("out.all.1", 3)))
    outputs = MappingNode("out", dict, ("loss", "all"), (TensorNode("out.loss"), pair), {})
    program = {
        "entries": ["step"],
        "outputs": node_to_json(outputs),
        "updated": ["layer.weight"],
        "reassigned": [],
        "mutated_inputs": [0],
        "constant_outputs": [],
    }
    seed = {"format": 2, "graph": _KEY, "program": program}
    return _document(f"cache/index/{_KEY}.json", [seed], _sealed, read, prepare)


@_reader
def record_of_the_cache() -> Reader:
    from torchkiln.runtime.cache._cache import ExecutableCache

    def read(path: Path) -> Any:
        path.with_suffix(".pt2").write_bytes(b"code")
        cache = ExecutableCache(path.parents[1], 10**9)
        cache.entries()
        with cache.holding(_KEY) as package:
            return package

    facts = {
        "format": 2,
        "sha256": hashlib.sha256(b"code").hexdigest(),
        "size_bytes": 4,
        "created_s": 1.5,
        "description": "a model",
    }
    return _document(f"executables/{_KEY}.json", [facts], _sealed, read)


@_reader
def header_of_a_store() -> Reader:
    import tempfile

    from torch_geometric.data import Data

    from torchkiln.graphs import GraphStore
    from torchkiln.graphs.store._store_files import _digest

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "store"
        graph = Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]), name="a")
        GraphStore.from_dataset([graph, graph]).save(place)
        files = {path.name: path.read_bytes() for path in place.iterdir()}
    header = json.loads(files.pop("store.json"))

    def seal(document: Any) -> bytes:
        if isinstance(document, dict):
            document["digest"] = _digest(document)
        return json.dumps(document).encode()

    def prepare(folder: Path) -> None:
        (folder / "store").mkdir(exist_ok=True)
        for name, content in files.items():
            if not (folder / "store" / name).is_file():
                (folder / "store" / name).write_bytes(content)

    def read(path: Path) -> Any:
        # Not its graphs: who writes a checksum over nonsense is believed from here on.
        return GraphStore.open(path.parent)

    return _document("store/store.json", [header], seal, read, prepare)


def _results() -> tuple[bytes, bytes]:
    """Return the two files of a run."""
    import tempfile

    from torchkiln.report import EpochRecord, RunResult, ValidationResult
    from torchkiln.report._results_file import save_result

    true = np.arange(8.0)
    result = RunResult(
        status="finished",
        settings={"bench": {"learning_rate": 0.001}},
        dataset={"name": "QM9", "unit": "eV"},
        model={"name": "SchNet"},
        machine={"threads": 2},
        compile_seconds=38.4,
        packing={"nodes": 0.983},
        epochs=[EpochRecord(0, 0.5, 4.0, 10_000, 2500.0, 1e-3, 0.9, float("nan"))],
        steps=[(0, 0.5)],
        validation=ValidationResult.compare(true + 0.1, true, baseline_mae=0.4),
        test=None,
    )
    with tempfile.TemporaryDirectory() as folder:
        record, series = (path.read_bytes() for path in save_result(result, Path(folder)))
    return record, series


def _sealed_results(document: Any) -> bytes:
    from torchkiln.report._results_file import checksum_of

    if isinstance(document, dict):
        document.pop("sha256", None)
        document["sha256"] = checksum_of(document)
    return json.dumps(document).encode()


@_reader
def results_of_a_run() -> Reader:
    from torchkiln.report._results_file import load_result

    record, series = _results()

    def prepare(folder: Path) -> None:
        (folder / "results.npz").write_bytes(series)

    return _document("results.json", [json.loads(record)], _sealed_results, load_result, prepare)


@_reader
def series_of_a_run() -> Reader:
    """The checksum is right and the file is none of ours, in place or kept aside."""
    from torchkiln.report._results_file import load_result
    from torchkiln.report._series_aside import _aside

    record, series = _results()
    turns = itertools.count()

    def read(path: Path) -> Any:
        document = json.loads(record)
        document["series"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        (path.parent / "results.json").write_bytes(_sealed_results(document))
        _aside(path).unlink(missing_ok=True)
        if next(turns) % 2:
            path.rename(_aside(path))
            path.write_bytes(b"of another run")
        return load_result(path.parent)

    return _file("results.npz", [series], read)


@_reader
def state_of_a_loader() -> Reader:
    from torch_geometric.data import Data

    from torchkiln.graphs import FixedSizeLoader, GraphStore

    edges = torch.tensor([[0], [1]])
    graphs = [Data(x=torch.full((2, 1), float(i)), edge_index=edges) for i in range(6)]
    loader = FixedSizeLoader(GraphStore.from_dataset(graphs, progress=False), batch_size=2)

    def read(state: Any) -> Any:
        loader.load_state_dict(state)
        return loader.state_dict()

    return _values([json.loads(json.dumps(loader.state_dict()))], read)


@_reader
def facts_of_a_resumed_training() -> Reader:
    import sys
    import tempfile

    sys.path.insert(0, str(Path(__file__).parents[1] / "apps" / "schnet"))
    from _tiny_training import make_dataset, make_job

    from torchkiln.apps.schnet._trainer import make_saver, make_state, train

    settings = {"dataset": make_dataset(), "gamma": 0.9, "num_epochs": 1}
    with tempfile.TemporaryDirectory() as folder:
        train(make_job(root=folder, **settings))
        (path,) = sorted(Path(folder, "tiny").glob("checkpoint-*.json"))[-1:]
        header = json.loads(path.read_bytes())["content"]
        tensors = path.with_suffix(".safetensors").read_bytes()

    def prepare(folder: Path) -> None:
        (folder / "tiny").mkdir(exist_ok=True)
        (folder / "tiny" / "checkpoint-000001.safetensors").write_bytes(tensors)

    def read(path: Path) -> Any:
        job = make_job(root=path.parents[1], resume=True, **settings)
        return make_saver(job, make_state(job)).restore()

    return _document("tiny/checkpoint-000001.json", [header], _sealed, read, prepare)


@_reader
def header_of_an_exported_program() -> Reader:
    import tempfile

    from torchkiln.runtime import inference_model, load
    from torchkiln.runtime._program import Program
    from torchkiln.runtime.compile import _export

    module = torch.nn.Linear(3, 2)
    program = inference_model(module, Options(backend="capture"))
    program(torch.ones(4, 3))
    with tempfile.TemporaryDirectory() as folder:
        package, path = Path(folder) / "code.pt2", Path(folder) / "a.kiln"
        with zipfile.ZipFile(package, "w") as code:
            code.writestr("code.so", b"code")
        with mock.patch.object(Program, "executable_path", package):
            program.export(path)
        with zipfile.ZipFile(path) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(parts.pop("program.json"))

    def seal(document: Any) -> bytes:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr("program.json", json.dumps(document))
            for name, part in parts.items():
                archive.writestr(name, part)
        return content.getvalue()

    def read(path: Path) -> Any:
        # Bytes that have their checksum are native code, which is not what is tried here.
        with mock.patch.object(_export, "NativeExecutable", mock.MagicMock()):
            return load(path, torch.nn.Linear(3, 2))

    return _document("a.kiln", [header], seal, read)
