"""Operations on files of native code whose system calls are made to fail."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from _fail_calls import Scenario
from _native_program import Tiny, batch, compiled

import poptorch
import torchkiln
from torchkiln.core import CompileError, TorchkilnError
from torchkiln.ops._native import load_native
from torchkiln.runtime.compile import _export, _inductor, _tracing
from torchkiln.runtime.compile._progress import CompileProgress


class HelperBuild(Scenario):
    """A small C library: compiled (here by a copying stand-in), sealed, loaded and called."""

    never_fails = may_lose = True

    def before(self, folder: Path) -> None:
        compiler, library = folder.with_name("compiler"), folder.with_name("library.so")
        if not compiler.exists():
            source = folder.with_name("library.c")
            source.write_text("int torchkiln_answer(void) { return 42; }\n")
            subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", library], check=True)
            compiler.write_text(f'#!/bin/sh\nfor last; do :; done\ncp {library} "$last"\n')
            compiler.chmod(stat.S_IRWXU)
        os.environ["CC"] = str(compiler)
        os.environ["TORCHKILN_NATIVE_DIR"] = str(folder / "native")

    def operate(self, folder: Path) -> Any:
        library = load_native.__wrapped__("_mt19937")
        return None if library is None else library.torchkiln_answer()

    def right_results(self, usual: Any) -> list[Any]:
        return [usual, None]  # None: plain torch is used

    def state(self, folder: Path) -> Any:
        return {path.name: path.read_bytes() for path in (folder / "native").glob("*.so")}


class PackageBuild(Scenario):
    """Putting what the C++ compiler made into one file; whoever fails does not use the file."""

    may_lose = True

    def before(self, folder: Path) -> None:
        self._done = False

    def operate(self, folder: Path) -> Any:
        named = json.loads((self.native / "parts.json").read_text())
        parts = {name: [str(self.native / file) for file in named[name]] for name in named}
        captured: Any = SimpleNamespace(entries=dict.fromkeys(parts), recomputed=[])
        with mock.patch.object(_inductor, "compile_entry", side_effect=list(parts.values())):
            _inductor.build_package(
                captured, folder / "program.pt2", Tiny(), CompileProgress(show=False)
            )
        self._done = True

    def state(self, folder: Path) -> Any:
        if not self._done:
            return {}
        with zipfile.ZipFile(folder / "program.pt2") as archive:
            assert archive.testzip() is None
            return {part.filename: part.CRC for part in archive.infolist()}


class NativeFind(Scenario):
    """Finding a program in the cache, loading and running it."""

    may_lose = True
    refills = writes = False

    def prepare(self, folder: Path) -> None:
        shutil.copytree(self.native / "cache", folder / "cache")

    def operate(self, folder: Path) -> Any:
        again = CompileError("compiled again")
        with mock.patch.object(_tracing, "build_package", side_effect=again):
            try:
                return compiled(folder)(batch()).tolist()
            except CompileError as error:
                if error is not again:
                    raise
                return None

    def right_results(self, usual: Any) -> list[Any]:
        # Native code and torch may round the last digit otherwise, as processors do.
        eager = torch.tanh(Tiny().layer(batch()))
        torch.testing.assert_close(torch.tensor(usual), eager)
        return [usual, None]  # None: it is compiled again

    def state(self, folder: Path) -> Any:
        packages = (folder / "cache" / "executables").glob("*.pt2")
        return {path.name: path.read_bytes() for path in packages}


class ExportWrite(Scenario):
    """Replacing an exported program."""

    def prepare(self, folder: Path) -> None:
        self._programs = [compiled(self.native, seed) for seed in (0, 1)]
        self._programs[0].export(folder / "program.kiln")

    def operate(self, folder: Path) -> Any:
        self._programs[1].export(folder / "program.kiln")

    def state(self, folder: Path) -> Any:
        return _export._read(folder / "program.kiln")


class ExportLoad(ExportWrite):
    writes = False

    def operate(self, folder: Path) -> Any:
        return torchkiln.load(folder / "program.kiln", Tiny(9))(batch()).tolist()


class PoptorchSave(Scenario):
    """Replacing a model of PopTorch, which is pickled with its program."""

    errors = (TorchkilnError, poptorch.Error)
    most_faults = 60

    def prepare(self, folder: Path) -> None:
        self._models = [self._model(seed) for seed in (0, 1)]
        self._models[0].save(folder / "model.poptorch")

    def _model(self, seed: int) -> Any:
        os.environ["TORCHKILN_BACKEND"] = "inductor"
        options = poptorch.Options().enableExecutableCaching(str(self.native / "cache"))
        model = poptorch.inferenceModel(Tiny(seed), options)
        model.compile(batch())
        return model

    def operate(self, folder: Path) -> Any:
        self._models[1].save(folder / "model.poptorch")

    def state(self, folder: Path) -> Any:
        with zipfile.ZipFile(folder / "model.poptorch") as archive:
            assert archive.testzip() is None
            parts = {part.filename: part.CRC for part in archive.infolist()}
            # An archive itself, with the time of each part.
            del parts["program.torchkiln"]
            with (
                archive.open("program.torchkiln") as file,
                zipfile.ZipFile(file) as program,
            ):
                return parts, {part.filename: part.CRC for part in program.infolist()}


class PoptorchLoad(PoptorchSave):
    writes = False

    def operate(self, folder: Path) -> Any:
        return poptorch.load(folder / "model.poptorch")(batch()).tolist()


NATIVE_SCENARIOS: dict[str, type[Scenario]] = {
    "building a native helper": HelperBuild,
    "packaging a program": PackageBuild,
    "finding a program": NativeFind,
    "exporting a program": ExportWrite,
    "loading an exported program": ExportLoad,
    "saving a model of PopTorch": PoptorchSave,
    "loading a model of PopTorch": PoptorchLoad,
}
