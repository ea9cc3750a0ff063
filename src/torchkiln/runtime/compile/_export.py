"""A compiled program as one file: a zip of JSON, safetensors and the native package.

Everything but `executable.pt2` is plain data that `unzip` and safetensors show without Torchkiln.
The executable is native code: load only files that you trust.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from torchkiln.checkpoints._divided import require_complete
from torchkiln.core import (
    ExecutableError,
    Options,
    ScratchDirectory,
    TorchkilnError,
    atomic_path,
    check_trusted,
    is_shared,
    parse_json,
)
from torchkiln.distributed import current
from torchkiln.runtime.cache._environment import describe_environment
from torchkiln.runtime.call._binding import bind
from torchkiln.runtime.call._metadata import ProgramMetadata
from torchkiln.runtime.call._signature import Signature
from torchkiln.runtime.compile._helpers import prepare_helpers
from torchkiln.runtime.execute._built import Built
from torchkiln.runtime.execute._executable import NativeExecutable

_FORMAT = 2
# In files of format 1 the number of micro-batches of an update is part of the code.
_FORMATS = (1, 2)
_PARTS = (
    "executable.pt2",
    "weights.safetensors",
    "optimizer.safetensors",
    "rng_state.safetensors",
)


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """All that an exported file tells of a program, beside its weights and its native code."""

    training: bool
    options: Options
    metadata: ProgramMetadata
    signature: Signature
    # Dtypes of optimiser state and gradient sums; None in files of versions that wrote none.
    state_dtypes: dict[str, str] | None


def write_program(
    path: Path,
    program: CompiledProgram,
    package: Path | None,
    module: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    rng_state: Tensor,
) -> None:
    """Write a program to `path` in one step, with the present weights and optimiser state.

    Raises:
        ExecutableError: if the backend makes no native code, or the outputs are custom objects.
        OptimizerError: if this process has only a part of the optimiser's state.
    """
    options = program.options
    if optimizer is not None:
        require_complete(optimizer, "export()")
    if package is None:
        raise ExecutableError(
            f"backend {options.backend.value!r} makes no executable file; export a program "
            "built with backend='inductor'"
        )
    described = program.metadata.to_json()
    if described is None:
        raise ExecutableError(
            "forward returns objects that JSON cannot describe; return tensors in tuples, lists "
            "or dicts to export the program"
        )
    parts = {
        "executable.pt2": _native_code(package),
        "weights.safetensors": _pack({bound.name: bound.tensor for bound in bind(module).bound}),
        "optimizer.safetensors": _pack(_optimizer_tensors(module, optimizer)),
        "rng_state.safetensors": _pack({"rng_state": rng_state}),
    }
    header = {
        "format": _FORMAT,
        "training": program.training,
        "options": options.to_dict(),
        "environment": describe_environment(_device(module)),
        "program": described,
        "signature": program.signature.to_json(),
        "state": program.state_dtypes,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in parts.items()},
    }
    own = not is_shared(path, options.trusted_dirs)
    with atomic_path(path, own=own) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr("program.json", json.dumps(header, indent=2))
        for name, data in parts.items():
            archive.writestr(name, data)


def _native_code(package: Path) -> bytes:
    try:
        content = package.read_bytes()
    except FileNotFoundError:
        raise ExecutableError(
            f"{package} is gone, so there is nothing to export; the cache was cleared or is too "
            "small: destroy() the program, call it again and export it then"
        ) from None
    if not _is_intact_zip(content):
        raise ExecutableError(
            f"{package} was damaged after it was loaded, so it cannot be exported; delete it, "
            "destroy() the program, call it again and export it then"
        )
    return content


def _is_intact_zip(content: bytes) -> bool:
    """Whether all parts of a package have the checksums that torch gave them."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.testzip() is None
    except Exception:  # zipfile has a dozen kinds for bytes that are no archive
        return False


def _device(module: nn.Module) -> torch.device:
    return next((tensor.device for tensor in module.parameters()), torch.device("cpu"))


def _pack(tensors: dict[str, Tensor]) -> bytes:
    return save_tensors(
        {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    )


def _optimizer_tensors(
    module: nn.Module, optimizer: torch.optim.Optimizer | None
) -> dict[str, Tensor]:
    if optimizer is None:
        return {}
    names = {id(bound.tensor): bound.name for bound in bind(module).parameters}
    return {
        f"{names[id(param)]}/{key}": value
        for param, state in optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, Tensor) and id(param) in names
    }


class ExportedProgram:
    """A file that `write_program` wrote, checked: what it tells, and what it can fill."""

    def __init__(self, path: Path, module: nn.Module, options: Options | None) -> None:
        """Read a file for a module of the same architecture; `options` replace the stored ones.

        Raises:
            ExecutableError: if the file is damaged or from another version.
            TrustError: if somebody else could have written it.
        """
        self._path = path
        self._module = module
        header, self._parts = _read(path)
        check_trusted(path, () if options is None else options.trusted_dirs)
        self.program = self._interpret(header, options)

    def _interpret(self, header: dict[str, Any], options: Options | None) -> CompiledProgram:
        try:
            _check_environment(header, self._module)
            training = bool(header["training"])
            stored = Options.from_dict(header["options"])
            options = options or _options_here(stored)
            metadata = ProgramMetadata.from_json(header["program"])
            self._check_updates(header["format"], metadata, stored, options)
            signature = Signature.from_json(self._module.forward, header["signature"], options)
            if not all(isinstance(entry, str) for entry in metadata.entries):
                raise TypeError(f"entries are {metadata.entries}")
            state = header.get("state")
            if not isinstance(state, dict | None):
                raise TypeError(f"state is {type(state).__name__}")
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, ImportError) as error:
            if isinstance(error, TorchkilnError):
                raise
            raise ExecutableError(
                f"{self._path} was written by another version of Torchkiln "
                f"({type(error).__name__}: {error}); export it again"
            ) from error
        return CompiledProgram(training, options, metadata, signature, state)

    def _check_updates(
        self, version: int, metadata: ProgramMetadata, stored: Options, wanted: Options
    ) -> None:
        """Refuse code that would take a wrong mean of gradients, or parts of another length."""
        before, now = (o.total_micro_batches_per_update for o in (stored, wanted))
        is_counted = "accumulate" in metadata.entries and version > 1
        if before != now and "infer" not in metadata.entries and not is_counted:
            raise ExecutableError(
                f"{self._path} was compiled for updates of {before} micro-batches, but the options "
                f"make {now} of one update (gradient_accumulation x replication_factor x "
                f"processes); choose them so that there are {before}, or compile again"
            )
        parts, wanted_parts = stored.num_state_parts, wanted.num_state_parts
        if parts != wanted_parts and "update" in metadata.entries:
            raise ExecutableError(
                f"{self._path} was compiled for optimiser state in {parts} part(s), but the "
                f"options make {wanted_parts} (shard_optimizer, one for each process); use as many "
                "processes and the same shard_optimizer, or compile again"
            )

    def fill_module(self) -> None:
        """Give the module's tensors the stored values."""
        stored, path = self._tensors("weights.safetensors"), self._path
        own = {bound.name: bound.tensor for bound in bind(self._module).bound}
        if set(own) != set(stored):
            raise ExecutableError(
                f"{path} holds {sorted(stored)}, the module has {sorted(own)}; pass a module of "
                "the same architecture"
            )
        with torch.no_grad():
            for name, tensor in own.items():
                if tensor.shape != stored[name].shape or tensor.dtype != stored[name].dtype:
                    raise ExecutableError(
                        f"{name!r} is {tuple(stored[name].shape)} {stored[name].dtype} in {path}, "
                        f"but {tuple(tensor.shape)} {tensor.dtype} in the module"
                    )
                tensor.copy_(stored[name])

    def fill_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Give the optimiser the stored state."""
        by_name = {bound.name: bound.tensor for bound in bind(self._module).parameters}
        for key, value in self._tensors("optimizer.safetensors").items():
            name, _, field = key.rpartition("/")
            optimizer.state[by_name[name]][field] = value

    def load_executable(self, workspace: ScratchDirectory) -> Built:
        """Load the native code, which is unpacked into `workspace`."""
        package = workspace.path / "program.pt2"
        try:
            package.write_bytes(self._parts["executable.pt2"])
        except OSError as error:
            raise ExecutableError(
                f"the executable in {self._path} cannot be unpacked to {package} ({error}); free "
                "some space, or set TMPDIR to another place"
            ) from error
        metadata, options = self.program.metadata, self.program.options
        prepare_helpers(set(metadata.natives), show_progress=options.show_progress)
        executable = NativeExecutable(package, _device(self._module), metadata.entries)
        return Built(executable, metadata, package)

    def check_state(self, here: dict[str, str]) -> None:
        """Refuse native code that would misread the optimiser's state, whose dtypes are `here`."""
        stored = self.program.state_dtypes
        if stored is None:
            # Versions that wrote no dtypes kept state in the dtype of the parameters.
            params = {bound.name: bound.tensor for bound in bind(self._module).parameters}
            stored = {key: str(params[key.rpartition("/")[0]].dtype) for key in here}
        for key in sorted({*here, *stored}):
            if here.get(key) != stored.get(key):
                raise ExecutableError(
                    f"{self._path} was compiled with {key!r} of the optimiser in "
                    f"{stored.get(key)}, here it is {here.get(key)}; pass an optimiser like the "
                    "one it was exported with. If a version of Torchkiln that kept state in half "
                    "precision wrote it, compile and export again"
                )

    def rng_state(self) -> Tensor:
        return self._tensors("rng_state.safetensors")["rng_state"]

    def _tensors(self, part: str) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = load_tensors(self._parts[part])
        return tensors


def _options_here(stored: Options) -> Options:
    """Return the options of a file for this process: other folders, its own place in a group."""
    # Those of the file are folders of the machine that it was made on.
    options = stored.replace(cache_dir=None, profile_dir=None)
    world = current() if stored.num_processes > 1 else None
    return options if world is None else world.options(options)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    try:
        with zipfile.ZipFile(path) as archive:
            header: dict[str, Any] = parse_json(archive.read("program.json"), "program.json")
            parts = {name: archive.read(name) for name in _PARTS}
            sums = {name: header["sha256"][name] for name in _PARTS}
            found = header["format"]
    except FileNotFoundError:
        raise ExecutableError(f"{path} does not exist; export() writes such files") from None
    except Exception as error:  # zipfile has a dozen kinds for bytes that are no archive
        raise ExecutableError(
            f"{path} is not an exported program, or is damaged ({error}); export it again"
        ) from error
    if found not in _FORMATS:
        known = " and ".join(map(str, _FORMATS))
        raise ExecutableError(
            f"{path} has format {found!r}, this version reads {known}; export it again"
        )
    for name, data in parts.items():
        if hashlib.sha256(data).hexdigest() != sums[name]:
            raise ExecutableError(f"{name} in {path} is damaged (wrong checksum); export it again")
    return header, parts


def _check_environment(header: dict[str, Any], module: nn.Module) -> None:
    here = json.loads(json.dumps(describe_environment(_device(module))))
    there = header["environment"]
    for key in ("torch", "cpu", "device", "capability"):
        if here[key] != there.get(key):
            raise ExecutableError(
                f"the program was exported with {key} {there.get(key)!r}, here it is "
                f"{here[key]!r}; native code does not move between them: compile again"
            )
