"""`torchkiln.load`: a program from the file that `Program.export` wrote."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from torchkiln.core import ExecutableError, Options, ScratchDirectory, span
from torchkiln.core._tracebacks import short_tracebacks
from torchkiln.runtime._program import Program
from torchkiln.runtime.compile._export import ExportedProgram


@short_tracebacks()
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
    with span("program", "load"):
        return _load(Path(path), module, optimizer, options)


def _load(
    path: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    options: Options | None,
) -> Program:
    exported = ExportedProgram(path, module, options)
    stored = exported.program
    if not stored.training:
        optimizer = None
    elif optimizer is None:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    name = "training step" if stored.training else "inference"
    program = Program(module, stored.options, optimizer, training=stored.training, name=name)
    exported.fill_module()
    if optimizer is not None:
        exported.fill_optimizer(optimizer)
    workspace = ScratchDirectory()
    program.adopt_executable(exported.load_executable(workspace), stored.signature, workspace)
    try:
        exported.check_state(program.state_dtypes())
    except ExecutableError:
        program.destroy()
        raise
    program.rng_state = exported.rng_state()
    program.part_random_streams()
    return program
