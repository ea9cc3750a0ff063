"""A compiled program as one file: a zip of JSON, safetensors and the native package.

Everything but `executable.pt2` is plain data that `unzip` and safetensors show without Torchkiln.
The executable is native code: load only files that you trust.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from torchkiln.core import (
    ExecutableError,
    NotCompiledError,
    Options,
    ScratchDirectory,
    TorchkilnError,
    atomic_path,
    check_trusted,
    is_shared,
    parse_json,
)
from torchkiln.runtime.cache._environment import describe_environment
from torchkiln.runtime.call._binding import bind
from torchkiln.runtime.call._metadata import ProgramMetadata
from torchkiln.runtime.call._signature import Signature
from torchkiln.runtime.execute._executable import NativeExecutable

if TYPE_CHECKING:
    from torchkiln.runtime._program import Program

_FORMAT = 1
_PARTS = (
    "executable.pt2",
    "weights.safetensors",
    "optimizer.safetensors",
    "rng_state.safetensors",
)


def export_program(program: Program, path: Path) -> None:
    """Write `program` to `path` in one step.

    Raises:
        NotCompiledError: if there is nothing to export yet.
        ExecutableError: if the backend makes no native code, or the outputs are custom objects.
    """
    if not program.is_compiled:
        raise NotCompiledError("Model has not been compiled; call compile(...) before export()")
    package = program.executable_path
    if package is None:
        raise ExecutableError(
            f"backend {program.options.backend.value!r} makes no executable file; export a program "
            "built with backend='inductor'"
        )
    described = program.metadata.to_json()
    if described is None:
        raise ExecutableError(
            "forward returns objects that JSON cannot describe; return tensors in tuples, lists "
            "or dicts to export the program"
        )
    try:
        native_code = package.read_bytes()
    except FileNotFoundError:
        raise ExecutableError(
            f"{package} is gone, so there is nothing to export; the cache was cleared or is too "
            "small: destroy() the program, call it again and export it then"
        ) from None
    if not _is_intact_zip(native_code):
        raise ExecutableError(
            f"{package} was damaged after it was loaded, so it cannot be exported; delete it, "
            "destroy() the program, call it again and export it then"
        )
    weights = {slot.name: slot.tensor for slot in bind(program.module).slots}
    parts = {
        "executable.pt2": native_code,
        "weights.safetensors": _pack(weights),
        "optimizer.safetensors": _pack(_optimizer_tensors(program)),
        "rng_state.safetensors": _pack({"rng_state": program.rng_state}),
    }
    header = {
        "format": _FORMAT,
        "training": program.training,
        "options": program.options.to_dict(),
        "environment": describe_environment(_device(program.module)),
        "program": described,
        "signature": program.describe_signature(),
        "state": program.describe_state(),
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in parts.items()},
    }
    own = not is_shared(path, program.options.trusted_dirs)
    with atomic_path(path, own=own) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr("program.json", json.dumps(header, indent=2))
        for name, data in parts.items():
            archive.writestr(name, data)


def load_program(
    path: str | Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    options: Options | None = None,
) -> Program:
    """Return the program exported to `path`, with its weights loaded into `module`.

    Nothing is traced or compiled. The file holds native code, which is executed, so it must be
    yours or root's, and nobody else may be able to write it.

    Args:
        path: What `Program.export` wrote.
        module: A module of the same architecture; its tensors take the stored values.
        optimizer: For a training program: an optimiser of the same kind over the module's
            parameters; it takes the stored state.
        options: Replaces the stored options; what shapes the program must stay the same.

    Raises:
        ExecutableError: if the file is damaged, from another version, or does not fit the module.
        TrustError: if somebody else could have written it; `Options(trusted_dirs=...)` or
            `TORCHKILN_TRUSTED_DIRS` accept what others wrote.
    """
    from torchkiln.runtime._program import Program

    header, parts = _read(Path(path))
    check_trusted(Path(path), () if options is None else options.trusted_dirs)
    try:
        _check_environment(header, module)
        training = bool(header["training"])
        options = options or Options.from_dict({**header["options"], "cache_dir": None})
        metadata = ProgramMetadata.from_json(header["program"])
        signature = Signature.from_json(module.forward, header["signature"], options)
        if not all(isinstance(entry, str) for entry in metadata.entries):
            raise TypeError(f"entries are {metadata.entries}")
        state = header.get("state")
        if not isinstance(state, dict | None):
            raise TypeError(f"state is {type(state).__name__}")
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ImportError) as error:
        if isinstance(error, TorchkilnError):
            raise
        raise ExecutableError(
            f"{path} was written by another version of Torchkiln ({type(error).__name__}: "
            f"{error}); export it again"
        ) from error
    if training and optimizer is None:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    program = Program(module, options, optimizer if training else None, training=training)
    _load_weights(module, load_tensors(parts["weights.safetensors"]), Path(path))
    if optimizer is not None and training:
        _load_optimizer(program, optimizer, load_tensors(parts["optimizer.safetensors"]))
    workspace = ScratchDirectory()
    package = workspace.path / "program.pt2"
    try:
        package.write_bytes(parts["executable.pt2"])
    except OSError as error:
        raise ExecutableError(
            f"the executable in {path} cannot be unpacked to {package} ({error}); free some space, "
            "or set TMPDIR to another place"
        ) from error
    program.adopt_executable(
        NativeExecutable(package, _device(module), metadata.entries),
        metadata,
        signature,
        package,
        workspace,
    )
    _check_state(program, state, Path(path))
    program.rng_state = load_tensors(parts["rng_state.safetensors"])["rng_state"]
    return program


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


def _optimizer_tensors(program: Program) -> dict[str, Tensor]:
    if program.optimizer is None:
        return {}
    names = {id(slot.tensor): slot.name for slot in bind(program.module).parameters}
    return {
        f"{names[id(param)]}/{key}": value
        for param, state in program.optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, Tensor) and id(param) in names
    }


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
    if found != _FORMAT:
        raise ExecutableError(
            f"{path} has format {found!r}, this version reads {_FORMAT}; export it again"
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


def _load_weights(module: nn.Module, stored: dict[str, Tensor], path: Path) -> None:
    slots = {slot.name: slot.tensor for slot in bind(module).slots}
    if set(slots) != set(stored):
        raise ExecutableError(
            f"{path} holds {sorted(stored)}, the module has {sorted(slots)}; pass a module of the "
            "same architecture"
        )
    with torch.no_grad():
        for name, tensor in slots.items():
            if tensor.shape != stored[name].shape or tensor.dtype != stored[name].dtype:
                raise ExecutableError(
                    f"{name!r} is {tuple(stored[name].shape)} {stored[name].dtype} in {path}, but "
                    f"{tuple(tensor.shape)} {tensor.dtype} in the module"
                )
            tensor.copy_(stored[name])


def _check_state(program: Program, stored: dict[str, str] | None, path: Path) -> None:
    """Refuse native code that would misread the optimiser's state."""
    here = program.describe_state()
    if stored is None:
        # Versions that wrote no dtypes kept state in the dtype of the parameters.
        params = {slot.name: slot.tensor for slot in bind(program.module).parameters}
        stored = {key: str(params[key.rpartition("/")[0]].dtype) for key in here}
    for key in sorted({*here, *stored}):
        if here.get(key) != stored.get(key):
            program.destroy()
            raise ExecutableError(
                f"{path} was compiled with {key!r} of the optimiser in {stored.get(key)}, here it "
                f"is {here.get(key)}; pass an optimiser like the one it was exported with. If a "
                "version of Torchkiln that kept state in half precision wrote it, compile and "
                "export again"
            )


def _load_optimizer(
    program: Program, optimizer: torch.optim.Optimizer, stored: dict[str, Tensor]
) -> None:
    by_name = {slot.name: slot.tensor for slot in bind(program.module).parameters}
    for key, value in stored.items():
        name, _, field = key.rpartition("/")
        optimizer.state[by_name[name]][field] = value
