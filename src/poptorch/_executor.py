"""`PoplarExecutor`: a wrapped model, on a Torchkiln program."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import nn

from poptorch import _context, _export, optim
from poptorch._blocks import module_repr
from poptorch._division import Division
from poptorch._errors import Error, translated
from poptorch._inspection import Inspection
from poptorch._logging import logger
from poptorch._optimizer_checks import quiet_engine
from poptorch._optimizer_link import OptimizerLink
from poptorch._option_store import require
from poptorch._outputs import refuse_backward
from poptorch._partition import check_blocks
from poptorch._program_checks import (
    check_division,
    check_inference_options,
    check_program,
    join_other_processes,
    resolve_options,
    warn_about_constant_outputs,
    warn_about_gradients,
)
from poptorch._wrapping import after_forward, shallow_copy, unwrap, wrap
from poptorch.enums import ConnectionType
from poptorch.options import Options
from poptorch.profiling import Channel
from torchkiln import runtime
from torchkiln.core import Backend
from torchkiln.core._tracebacks import short_tracebacks


class PoplarExecutor(Inspection):
    """A model compiled once and called like the module it was made from.

    Made by `trainingModel` and `inferenceModel`. Attributes that it does not have itself are those
    of the user's module.
    """

    @short_tracebacks(Error, AssertionError)
    def __init__(
        self,
        model: nn.Module,
        options: Options | None,
        training: bool,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self._training = training
        self._channel = Channel("poptorch.trainingModel" if training else "poptorch.inferenceModel")
        self._options = resolve_options(options, training)
        executed = shallow_copy(model)
        self._user_model: nn.Module = model if training else executed
        self._attached = False
        self._has_run = False
        self._blocks_checked = False
        self._link = OptimizerLink(self._options)
        settings = self._options._to_torchkiln()
        self._division = Division.of(self._options)
        check_division(self._options, training)
        if self._division is not None:
            join_other_processes(self._options)
        if not training:
            check_inference_options(self._options)
            with translated():
                self._program = runtime.inference_model(executed, settings, **self._names())
            return
        if optimizer is None:
            optimizer = optim.SGD(model.parameters(), lr=0.01)
        self._link.check(optimizer, compiled=False)
        self._link.take(optimizer)
        join_other_processes(self._options)
        with translated(), quiet_engine():
            self._program = runtime.training_model(executed, settings, optimizer, **self._names())
        wrap(model, self)

    def _names(self) -> dict[str, str]:
        """Return the name of the program if the options have one."""
        options = self._options
        return {"name": options.model_name} if options.exists("model_name") else {}

    # the wrapped module

    @property
    def model(self) -> nn.Module:
        """The user's module (training), or the copy that is executed (inference)."""
        return self._user_model

    @property
    def options(self) -> Options:
        """The options in use: frozen, with a definite output mode."""
        return self._options

    def __getattr__(self, name: str) -> Any:
        if "_user_model" not in self.__dict__:
            raise AttributeError(f"PoplarExecutor has no attribute {name!r} yet")
        return getattr(self._user_model, name)

    def __repr__(self) -> str:
        text = module_repr(self._user_model)
        return text if text.startswith("Poptorch") else f"Poptorch{text}"

    def train(self, mode: bool = True) -> Self:
        """Set the module's mode; it counts at the next compilation."""
        self._user_model.train(mode)
        return self

    def eval(self) -> Self:
        """Set the module to evaluation mode; it counts at the next compilation."""
        return self.train(False)

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> Any:
        """Load weights into the module; the program uses them from the next call on."""
        return self._user_model.load_state_dict(state_dict, strict=strict)

    # compiling and running; `Inspection` has the questions

    @short_tracebacks(Error, AssertionError)
    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for arguments like these without running anything."""
        if self.isCompiled():
            logger.warning("The model is compiled already; destroy() it to compile it again")
            return
        with self._channel.tracepoint("compile"):
            warn_about_gradients((args, kwargs))
            with self._forward_runs(), translated(), quiet_engine():
                self._program.compile(*args, **kwargs)
            try:
                check_program(self._program, self._user_model, self._options)
            except Error:
                self._program.destroy()
                raise
            warn_about_constant_outputs(self._program)
            self._attach()

    @short_tracebacks(Error, AssertionError)
    def memory_report(self, *args: Any, **kwargs: Any) -> runtime.MemoryReport:
        """Predict the memory that calls with arguments like these need, without running one."""
        with self._forward_runs(), translated():
            return self._program.memory_report(*args, **kwargs)

    @short_tracebacks(Error, AssertionError)
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run forward (and backward and the update, in training) on all micro-batches."""
        require(
            self._options.connection_type != ConnectionType.Never,
            "Trying to run a model on an offline device",
            "ConnectionType.Never",
            "another connection type, or compile() only",
        )
        if not self.isCompiled():
            self.compile(*args, **kwargs)
        self._attached = True
        # Only the eager backend runs forward itself again.
        eager = self._program.options.backend is Backend.EAGER
        with self._forward_runs() if eager else contextlib.nullcontext(), translated():
            outputs = self._program(*args, **kwargs)
        self._has_run = True
        return refuse_backward(outputs) if self._training else outputs

    @short_tracebacks(Error, AssertionError)
    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Use the optimiser as it is now, from the next call on.

        Later edits of its groups or attributes need another `setOptimizer`.
        """
        if not self._training:
            raise AttributeError("An inference model has no optimizer; use poptorch.trainingModel")
        with self._channel.tracepoint("setOptimizer"):
            self._link.check(optimizer, self.isCompiled())
            with translated(), quiet_engine():
                self._program.set_optimizer(optimizer)
            self._link.take(optimizer)
            if self.isCompiled():
                self._link.bind(self._user_model.named_parameters())

    def destroy(self) -> None:
        """Drop the executable and give the user's module its class back."""
        with self._channel.tracepoint("destroy"):
            self._program.destroy()
            self._attached = False
            self._blocks_checked = False
            if self._training:
                unwrap(self._user_model)
            self._link.release()

    # weights: they live in the user's module, so these only check that they make sense; what other
    # processes have of a model that is divided comes from there

    def copyWeightsToHost(self) -> None:
        """Let the module have all present weights; called by all processes of a divided model."""
        with self._channel.tracepoint("copyWeightsToHost"):
            self._require_compiled()
            with translated():
                self._program.gather_weights()

    def copyWeightsToDevice(self) -> None:
        """Check that the model is compiled; the next call reads the module's weights."""
        with self._channel.tracepoint("copyWeightsToDevice"):
            self._require_compiled()

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Return False: there is never anything to copy."""
        return False

    def copyNamedBuffersToDevice(self) -> None:
        """Check that `updatableNamedBuffers` was set; the next call reads all buffers."""
        self._require_compiled()
        if not self._options.exists("updatable_named_buffers"):
            raise Error(
                "copyNamedBuffersToDevice needs Options.updatableNamedBuffers([...]) to be set"
            )

    # the device: always there, so attaching is a matter of bookkeeping

    def attachToDevice(self) -> None:
        """Attach; a call attaches by itself."""
        self._require_compiled()
        require(
            self._options.connection_type != ConnectionType.Never,
            "Trying to attach to an offline device",
            "ConnectionType.Never",
            "another connection type",
        )
        if self._attached:
            raise Error("Device is already attached")
        self._attached = True

    def detachFromDevice(self) -> None:
        """Detach; nothing is lost."""
        self._require_compiled()
        if not self._attached:
            raise Error("Device is not attached")
        self._attached = False

    def isAttachedToDevice(self) -> bool:
        """Return whether the model is compiled and attached."""
        return self.isCompiled() and self._attached

    # files

    def save(
        self,
        filename: str | os.PathLike[str],
        export_model: bool = True,
        save_rng_state: bool = True,
    ) -> None:
        """Write the compiled model to `filename`, for `poptorch.load`.

        Args:
            filename: Parent directories are made; an existing directory gets `model.poptorch`.
            export_model: Also write the module, options and optimiser (pickled).
            save_rng_state: Also write the state of torch's generator.
        """
        self._require_compiled()
        parts = {
            "model": self._user_model,
            "options": self._options,
            "optimizer": self._link.optimizer,
            "training": self._training,
        }
        _export.save_program(
            self._program,
            filename,
            parts=parts if export_model else None,
            save_rng_state=save_rng_state,
        )

    def compileAndExport(
        self,
        filename: str | os.PathLike[str],
        *args: Any,
        export_model: bool = True,
        **kwargs: Any,
    ) -> None:
        """Compile for arguments like these, and `save`."""
        self.compile(*args, **kwargs)
        self.save(filename, export_model=export_model)

    def loadExecutable(self, filename: str | os.PathLike[str]) -> None:
        """Use the program of a file that was saved for the same module."""
        module, optimizer = self._program.module, self._link.optimizer
        options = self._options._to_torchkiln()
        self._adopt_program(_export.load_executable(filename, module, optimizer, options))

    def __reduce__(self) -> Any:
        if self._training:
            raise Error("Only inference models can be pickled; use save() for a training model")
        return (inferenceModel, (self._user_model, self._options))

    # helpers

    def _adopt_program(self, program: runtime.Program) -> None:
        self._program = program
        self._attach()

    def _attach(self) -> None:
        self._attached = self._options.connection_type != ConnectionType.Never
        self._link.bind(self._user_model.named_parameters())

    @contextlib.contextmanager
    def _forward_runs(self) -> Iterator[None]:
        """Let forward behave as in the original, and check its blocks once it has run.

        That is before what takes long (code generation, compilation) or changes weights.
        """
        with (
            _context.running(self._training, self._begin_block) as run,
            after_forward(self._program.module, lambda: self._check_blocks(run)),
        ):
            yield

    def _begin_block(self, run: _context.Run, block: str, ipu: int | None) -> None:
        if self._division is not None:
            self._division.begin(run, block, ipu)

    def _check_blocks(self, run: _context.Run) -> None:
        if run.blocks and not self._blocks_checked:
            check_blocks(run, self._options)
            self._blocks_checked = True


def trainingModel(
    model: nn.Module | PoplarExecutor,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> PoplarExecutor:
    """Return a model whose call does a whole training step.

    Args:
        model: A module that returns its loss, or an executor whose module is taken.
        options: Frozen by this; None means the defaults.
        optimizer: One of `poptorch.optim` or `torch.optim`; None means SGD with lr 0.01.
    """
    return PoplarExecutor(_module(model), options, training=True, optimizer=optimizer)


def inferenceModel(
    model: nn.Module | PoplarExecutor, options: Options | None = None
) -> PoplarExecutor:
    """Return a model whose call runs forward only.

    Args:
        model: A module, or an executor whose module is taken: weights are shared with it.
        options: Frozen by this; None means the defaults.
    """
    return PoplarExecutor(_module(model), options, training=False)


def _module(model: nn.Module | PoplarExecutor) -> nn.Module:
    if isinstance(model, PoplarExecutor):
        return model._user_model
    if not isinstance(model, nn.Module):
        raise Error(f"model must be a torch.nn.Module or a wrapped model, got {type(model)}")
    return model
