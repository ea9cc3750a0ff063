"""`Program`: a module that was fired once, and runs whole steps from then on."""

from __future__ import annotations

import threading
import time
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchkiln.checkpoints._precision import keep_state_precision
from torchkiln.core import (
    NotCompiledError,
    OptimizerError,
    Options,
    OptionsError,
    OutputMode,
    ScratchDirectory,
    span,
    warn_user,
)
from torchkiln.data import rebuild
from torchkiln.runtime._hooks import compile_hooks
from torchkiln.runtime.call._binding import bind, device_of, initialize_lazy
from torchkiln.runtime.call._metadata import ProgramMetadata
from torchkiln.runtime.call._signature import Signature
from torchkiln.runtime.capture._step import StepFunction
from torchkiln.runtime.compile._builder import Built, build
from torchkiln.runtime.execute._anchors import (
    check_anchor_names,
    check_anchored_parameters,
    micro_batch_anchors,
)
from torchkiln.runtime.execute._executable import Executable
from torchkiln.runtime.execute._executor import Executor
from torchkiln.runtime.execute._outputs import check_finite
from torchkiln.runtime.execute._precision import warn_if_slow
from torchkiln.runtime.memory._report import MemoryReport
from torchkiln.runtime.optim._optimizers import (
    OptimizerBinding,
    bind_module_optimizer,
    read_hyper,
    read_recipe,
)
from torchkiln.torch_internals._tensors import version_of

_build_lock = threading.RLock()


def training_model(
    module: nn.Module,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Program:
    """Return a program that runs forward, loss, backward and update of `module` in one call.

    Forward computes the loss and returns it (alone, or anywhere in its outputs). The first call
    compiles for the shapes it gets. Weights live in `module` and optimiser state in `optimizer`
    (default: SGD, lr 0.01), always current.
    """
    _require_module(module)
    if optimizer is None:
        if next(module.parameters(), None) is None:
            raise OptimizerError(
                f"{type(module).__name__} has no parameters to train; use inference_model"
            )
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    return Program(module, options or Options(), optimizer, training=True)


def inference_model(module: nn.Module, options: Options | None = None) -> Program:
    """Return a program that runs forward of `module`; weights are shared, never copied."""
    return Program(module, options or Options(), None, training=False)


class Program:
    """A module compiled for one call form. Made by `training_model` and `inference_model`."""

    def __init__(
        self,
        module: nn.Module,
        options: Options,
        optimizer: torch.optim.Optimizer | None,
        *,
        training: bool,
    ) -> None:
        _require_module(module)
        if not isinstance(options, Options):
            raise OptionsError(f"options must be torchkiln.Options, got {type(options).__name__}")
        if not training and options.gradient_accumulation != 1:
            raise OptionsError(
                "gradient_accumulation must be 1 for inference; use device_iterations to run "
                "several batches a call"
            )
        check_anchor_names(options, training)
        if options.output_mode is OutputMode.DEFAULT:
            mode = OutputMode.FINAL if training else OutputMode.ALL
            options = options.replace(output_mode=mode)
        if options.device is not None:
            _move(module, options.device)
        if options.random_seed is not None:
            torch.manual_seed(options.random_seed)
        self.module = module
        self.options = options
        self.optimizer = optimizer
        self.training = training
        self.num_compiles = 0
        self.num_captures = 0
        self._recipe = read_recipe(optimizer) if optimizer is not None else None
        self._hyper = read_hyper(optimizer) if optimizer is not None else None
        if optimizer is not None:
            self._watch(optimizer)
        self._hyper_is_new = False
        self._built: Built | None = None
        self._signature: Signature | None = None
        self._executor: Executor | None = None
        self._compilation_time_s = 0.0
        self._warned_gradient = False
        self._workspace: ScratchDirectory | None = None

    # -- building ---------------------------------------------------------------------------

    @property
    def is_compiled(self) -> bool:
        """Whether the program can run without compiling."""
        return self._executor is not None

    @property
    def compilation_time(self) -> float:
        """Seconds that the build took (or loading from the cache)."""
        self._require_compiled()
        return self._compilation_time_s

    @property
    def reassigned_buffers(self) -> list[str]:
        """Names of buffers that forward replaces by new tensors instead of writing to them."""
        return self._require_compiled().metadata.reassigned

    @property
    def metadata(self) -> ProgramMetadata:
        """What is known about the executable."""
        return self._require_compiled().metadata

    @property
    def executable_path(self) -> Path | None:
        """The package file of the native code; None for backends that generate none."""
        return self._require_compiled().package

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Build the program for arguments like these, without running it."""
        if self.is_compiled:
            warn_user(
                "the program is compiled already and this call is ignored; destroy() it first to "
                "compile for other arguments"
            )
            return
        self._compile(args, kwargs)

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        # Capture swaps tensors of modules and functions of torch: one build at a time.
        with _build_lock, compile_hooks(), torch.inference_mode(False):
            start = time.perf_counter()
            step, tensors, micro_batch = self._begin(args, kwargs)
            self._build(step, micro_batch)
            self._compilation_time_s = time.perf_counter() - start
        return tensors

    def _begin(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[StepFunction, list[Tensor], list[Tensor]]:
        """Return the step for arguments like these, their tensors, and the first micro-batch."""
        signature = Signature(self.module.forward, args, kwargs, self.options)
        tensors = self._to_device(signature.accept(args, kwargs))
        micro_batch = [tensor.detach() for tensor in signature.micro_batch(tensors, 0)]
        initialize_lazy(self.module, *signature.arguments(micro_batch))
        binding = bind(self.module)
        step = StepFunction(self.module, binding, signature, self.options, self.training)
        step.anchors = tuple(micro_batch_anchors(self.options).values())
        return step, tensors, micro_batch

    def _build(self, step: StepFunction, micro_batch: list[Tensor]) -> None:
        device = device_of(step.binding, micro_batch)
        warn_if_slow(device, self.options, step.binding.tensors)
        optimizer = self._bind_optimizer(step)
        built = build(step, micro_batch, optimizer, device, self._make_workspace)
        self.num_compiles += built.compiled
        self.num_captures += built.captured
        self._install(step.signature, step, optimizer, built)

    def _make_workspace(self) -> Path:
        self._workspace = ScratchDirectory()
        return self._workspace.path

    def _install(
        self,
        signature: Signature,
        step: StepFunction,
        optimizer: OptimizerBinding | None,
        built: Built,
    ) -> None:
        if optimizer is not None:
            optimizer = optimizer.select(built.metadata.updated)
            if optimizer.recipe == self._recipe and self._hyper is not None:
                optimizer.hyper = self._hyper  # edits since then wait for `set_optimizer`
            else:
                self._recipe, self._hyper = optimizer.recipe, optimizer.hyper
            self._hyper_is_new = False
            optimizer.allocate()
        self._built, self._signature = built, signature
        check_anchored_parameters(self.options, step.binding)
        self._executor = Executor(step.binding, self.options, signature, built, optimizer)

    def memory_report(self, *args: Any, **kwargs: Any) -> MemoryReport:
        """Predict the memory that calls with arguments like these need, without running one.

        Captures the step and asks Inductor for its plan, which takes seconds to a minute and no
        more memory than module and arguments; nothing is compiled, and the program stays as it is.
        """
        from torchkiln.runtime.memory._prediction import report_memory

        with _build_lock, compile_hooks(), torch.inference_mode(False):
            step, tensors, micro_batch = self._begin(args, kwargs)
            return report_memory(step, tensors, micro_batch, self._bind_optimizer(step))

    def describe_signature(self) -> dict[str, Any]:
        """Return the compiled call form as plain values."""
        self._require_compiled()
        assert self._signature is not None
        return self._signature.to_json()

    def describe_state(self) -> dict[str, str]:
        """Return the dtypes of the optimiser state and gradient sums that the executable takes."""
        self._require_compiled()
        assert self._executor is not None
        return self._executor.state_dtypes()

    def adopt_executable(
        self,
        executable: Executable,
        metadata: ProgramMetadata,
        form: Signature,
        package: Path,
        workspace: ScratchDirectory,
    ) -> None:
        """Take over a loaded executable instead of compiling one."""
        step = StepFunction(self.module, bind(self.module), form, self.options, self.training)
        self._workspace = workspace
        built = Built(executable, metadata, package)
        self._install(form, step, self._bind_optimizer(step), built)

    def _bind_optimizer(self, step: StepFunction) -> OptimizerBinding | None:
        if self.optimizer is None:
            return None
        return bind_module_optimizer(self.optimizer, step.binding)

    def _watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Notice `optimizer.load_state_dict`: it brings state, and numbers such as the rate."""
        keep_state_precision(optimizer)
        program = weakref.ref(self)

        def loaded(changed: torch.optim.Optimizer) -> None:
            owner = program()
            if owner is None or owner.optimizer is not changed:
                return
            owner._hyper, owner._hyper_is_new = read_hyper(changed), True
            if owner._executor is not None and owner._executor.optimizer is not None:
                owner._executor.optimizer.stale = True

        optimizer.register_load_state_dict_post_hook(loaded)

    def _require_compiled(self) -> Built:
        if self._built is None:
            raise NotCompiledError(
                "Model has not been compiled or has been destroyed. Call it, or compile(...), first"
            )
        return self._built

    def destroy(self) -> None:
        """Drop the executable; weights and optimiser state stay. A later call compiles again."""
        self._built = self._signature = self._executor = None
        if self._workspace is not None:
            self._workspace.remove()
            self._workspace = None

    # -- running ----------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `device_iterations` steps on a combined batch and return the outputs."""
        if torch.is_inference_mode_enabled():
            # State that is made here is used outside as well: ordinary tensors only.
            with torch.inference_mode(False):
                return self(*args, **kwargs)
        if self._signature is None:
            tensors = self._compile(args, kwargs)
        else:
            tensors = self._to_device(self._signature.accept(args, kwargs))
        executor = self._executor
        assert executor is not None
        if self._hyper_is_new:
            executor.set_hyper(self._hyper)
            self._hyper_is_new = False
        with span("program", "training step" if self.training else "inference step"):
            outputs = executor.run(tensors)
        self._write_back(tensors)
        if self.options.check_finite:
            check_finite(outputs)
        return rebuild(executor.output_node, outputs)

    def _to_device(self, tensors: list[Tensor]) -> list[Tensor]:
        if any(tensor.requires_grad for tensor in tensors):
            if not self._warned_gradient:
                self._warned_gradient = True
                warn_user(
                    "inputs that require a gradient are detached; a program differentiates with "
                    "respect to parameters only"
                )
            tensors = [tensor.detach() for tensor in tensors]
        if any(tensor.is_inference() for tensor in tensors):
            tensors = [t.clone() if t.is_inference() else t for t in tensors]
        if self._executor is not None:
            device = self._executor.device
        else:
            device = next((p.device for p in self.module.parameters()), torch.device("cpu"))
        if device.type == "cpu" and all(tensor.device.type == "cpu" for tensor in tensors):
            return tensors
        return [tensor.to(device, non_blocking=True) for tensor in tensors]

    def _write_back(self, tensors: list[Tensor]) -> None:
        """Let the caller see what forward wrote to inputs that had to be copied first."""
        assert self._signature is not None
        assert self._built is not None
        for index, original in self._signature.copied:
            # Backends other than native code count writes; a fresh copy has none.
            if index in self._built.metadata.mutated_inputs or version_of(tensors[index]):
                original.detach().copy_(tensors[index])

    # -- optimiser --------------------------------------------------------------------------

    def set_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Use the optimiser's present numbers (learning rate, ...) from the next call on.

        Without recompiling; so its kind, groups and structure must be those that were compiled. An
        optimiser without state of its own takes over the state of the one before.
        """
        if self.optimizer is None:
            raise OptimizerError("an inference program has no optimiser; use training_model")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise OptimizerError(
                f"expected a torch optimiser, got {type(optimizer).__name__}; use one of SGD, "
                "Adam, AdamW, RMSprop or LAMB"
            )
        recipe, hyper = read_recipe(optimizer), read_hyper(optimizer)
        if self._executor is not None:
            self._executor.check_recipe(recipe)
            if optimizer is not self.optimizer:
                self._executor.move_state(optimizer)
        if optimizer is not self.optimizer:
            self._watch(optimizer)
        self.optimizer, self._recipe = optimizer, recipe
        self._hyper, self._hyper_is_new = hyper, True

    # -- looking inside ---------------------------------------------------------------------

    def anchored(self, name: str) -> Tensor:
        """Return the anchored tensor `name` of the latest call."""
        if name not in self.options.anchors:
            raise KeyError(
                f"{name!r} is not anchored; anchored tensors: {sorted(self.options.anchors)}"
            )
        self._require_compiled()
        assert self._executor is not None
        return self._executor.anchored(name)

    def tensor_names(self) -> list[str]:
        """Return the names of internal tensors, among them those that can be anchored."""
        metadata = self._require_compiled().metadata
        assert self._signature is not None
        names = [f"input/{form.name}" for form in self._signature.forms]
        names += [slot.name for slot in bind(self.module).slots]
        if self.training:
            names += ["loss"]
            for prefix in ("Gradient___", "UpdatedVar___"):
                names += [prefix + name for name in metadata.updated]
        return names

    def perf_counters(self) -> dict[str, list[list[float]]]:
        """Return when inputs and outputs of the latest call's micro-batches moved, in seconds."""
        if self._executor is None:
            keys = ("input", "input_complete", "output", "output_complete")
            return {key: [[]] for key in keys}
        return self._executor.perf_counters()

    @property
    def rng_state(self) -> Tensor:
        """State of the torch generator that random operations draw from."""
        device = self._executor.device if self._executor is not None else torch.device("cpu")
        if device.type == "cuda":
            return torch.cuda.get_rng_state(device)
        return torch.get_rng_state()

    @rng_state.setter
    def rng_state(self, state: Tensor) -> None:
        device = self._executor.device if self._executor is not None else torch.device("cpu")
        if device.type == "cuda":
            torch.cuda.set_rng_state(state, device)
        else:
            torch.set_rng_state(state)

    def export(self, path: str | Path) -> None:
        """Write the compiled program, weights and optimiser state; `torchkiln.load` reads it."""
        from torchkiln.runtime.compile._export import export_program

        export_program(self, Path(path))

    def __repr__(self) -> str:
        kind = "training" if self.training else "inference"
        state = "compiled" if self.is_compiled else "not compiled"
        return f"Program({kind}, {state}, {self.module})"


def _require_module(module: Any) -> None:
    if isinstance(module, nn.Module):
        return
    hint = "; create an instance first" if isinstance(module, type) else ""
    raise TypeError(f"expected a torch.nn.Module, got {type(module).__name__}{hint}")


def _move(module: nn.Module, device: str) -> None:
    try:
        module.to(device)
    except (RuntimeError, AssertionError) as error:  # whatever torch says of a device it lacks
        raise OptionsError(f"device {device!r} cannot be used here ({error})") from error
