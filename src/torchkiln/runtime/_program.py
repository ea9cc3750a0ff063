"""`Program`: a module that was fired once, and runs whole steps from then on."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from torchkiln.core import (
    DistributedError,
    ExecutableError,
    NotCompiledError,
    OptimizerError,
    Options,
    OptionsError,
    ScratchDirectory,
    instant,
    review_loss,
    span,
    warn_user,
)
from torchkiln.core._beacon import ProgramBeacon
from torchkiln.core._extensions import provided
from torchkiln.core._tracebacks import short_tracebacks
from torchkiln.data import rebuild
from torchkiln.runtime._arguments import move_module, require_module, resolve_options
from torchkiln.runtime._hooks import build_lock, compile_hooks
from torchkiln.runtime._joining import CommonCache, find_group, seed_generator
from torchkiln.runtime._short_of_memory import naming_memory
from torchkiln.runtime._synthetic import SyntheticData
from torchkiln.runtime._together import JointProgram
from torchkiln.runtime._watching import CallWatcher
from torchkiln.runtime.call._binding import bind, device_of, initialize_lazy
from torchkiln.runtime.call._fake_quantization import fix_fake_quantization
from torchkiln.runtime.call._inputs import InputPreparation
from torchkiln.runtime.call._signature import Signature
from torchkiln.runtime.capture._step import StepFunction
from torchkiln.runtime.compile._builder import build
from torchkiln.runtime.compile._export import CompiledProgram, write_program
from torchkiln.runtime.execute._anchors import (
    as_bound,
    check_anchored_tensors,
    micro_batch_anchors,
)
from torchkiln.runtime.execute._built import Built
from torchkiln.runtime.execute._executor import Executor
from torchkiln.runtime.execute._generator import generator_state, set_generator_state
from torchkiln.runtime.execute._notes import Notes
from torchkiln.runtime.execute._outputs import check_finite
from torchkiln.runtime.execute._precision import warn_if_slow
from torchkiln.runtime.optim._arrangement import Arrangement
from torchkiln.runtime.optim._binding import OptimizerBinding
from torchkiln.torch_internals._tensors import version_of

if TYPE_CHECKING:
    from torchkiln.runtime.pipeline._staged import Pipeline


@final
class Program(JointProgram):
    """A module compiled for one call form. Made by `training_model` and `inference_model`."""

    @short_tracebacks()
    def __init__(
        self,
        module: nn.Module,
        options: Options,
        optimizer: torch.optim.Optimizer | None,
        *,
        training: bool,
        name: str = "program",
    ) -> None:
        require_module(module)
        options = resolve_options(options, training)
        self._synthetic = SyntheticData(module) if options.synthetic_data else None
        if self._synthetic is not None:
            module = self._synthetic.module
            if optimizer is not None:
                optimizer = self._synthetic.optimizer_like(optimizer)
        if options.device is not None:
            move_module(module, options.device)
        # The processes that train this model together with this one; None: it is alone.
        self.group = find_group(options, training=training)
        seed_generator(options)
        self.module = module
        self.options = options
        self.training = training
        self.name = name
        self.num_compiles = 0
        self.num_captures = 0
        self._optimizer = OptimizerBinding(optimizer) if optimizer is not None else None
        self._built: Built | None = None
        self._signature: Signature | None = None
        self._executor: Executor | None = None
        self._compilation_time_s = 0.0
        self._inputs = InputPreparation()
        self._workspace: ScratchDirectory | None = None
        self._common_cache: CommonCache | None = None
        self._notes = Notes()
        self.turn = threading.RLock()
        self._watcher: CallWatcher | None = None
        # Loaded from a file: what calls are like is known from the first one on.
        self._is_unwatched = False
        self._has_checked_updates = not training
        # Seconds inside calls that went into reports and not into steps.
        self.seconds_aside = 0.0
        self._beacon = ProgramBeacon(
            name,
            "training" if training else "inference",
            options.backend.value,
            steps_per_call=options.device_iterations,
            rank=options.process_id,
            num_ranks=options.num_processes,
        )

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimiser that holds the state; None for inference."""
        return self._optimizer.optimizer if self._optimizer is not None else None

    # -- building ---------------------------------------------------------------------------

    @short_tracebacks()
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
        with (
            naming_memory(f"building the program {self.name!r}", self.options, self.training),
            span("compile", self.name),
            build_lock,
            compile_hooks(),
            self._beacon.compiling(),
            torch.inference_mode(False),
        ):
            start = time.perf_counter()
            step, tensors, micro_batch = self._begin(args, kwargs)
            self._join(step)
            self._build(step, micro_batch)
            self._compilation_time_s = time.perf_counter() - start
        self._review(step, tensors)
        self._watch(args, kwargs)
        return tensors

    def _watch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin to measure calls, if that is asked for."""
        self._is_unwatched = False
        if self.options.profile_dir is not None and self._watcher is None:
            self._watcher = provided("profile automatically")(self, args, kwargs)

    def _begin(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[StepFunction, list[Tensor], list[Tensor]]:
        """Return the step for arguments like these, their tensors, and the first micro-batch."""
        signature = Signature(self.module.forward, args, kwargs, self.options)
        tensors = self._accept(signature, args, kwargs)
        micro_batch = [tensor.detach() for tensor in signature.micro_batch(tensors, 0)]
        fix_fake_quantization(self.module)
        initialize_lazy(self.module, *signature.arguments(micro_batch))
        return self._make_step(signature), tensors, micro_batch

    def _make_step(self, signature: Signature) -> StepFunction:
        binding = bind(self.module)
        check_anchored_tensors(self.options, binding, signature)
        anchors = [as_bound(name, binding) for name in micro_batch_anchors(self.options).values()]
        return StepFunction(
            self.module,
            binding,
            signature,
            self.options,
            self.training,
            tuple(anchors),
            name=self.name,
        )

    def _build(self, step: StepFunction, micro_batch: list[Tensor]) -> None:
        device = device_of(step.binding, micro_batch)
        warn_if_slow(device, self.options, step.binding.tensors)
        arrangement = self._arrange(step)
        if self.options.is_divided:
            self._build_stage(step, micro_batch, arrangement, device)
            return

        def make(options: Options) -> Built:
            own = dataclasses.replace(step, options=options)
            return build(own, micro_batch, arrangement, device, self._make_workspace)

        built = self._build_with_others(make)
        self._count(built)
        if not built.compiled and built.package is not None:
            instant("compile", "executable from the cache")
        self._install(step, arrangement, built)

    def _build_stage(
        self,
        step: StepFunction,
        micro_batch: list[Tensor],
        arrangement: Arrangement | None,
        device: torch.device,
    ) -> None:
        """Build what this process runs of a step that several divide."""
        from torchkiln.runtime.pipeline._build import build_stage

        built, pipeline = self._build_stage_with_others(
            step,
            lambda: build_stage(step, micro_batch, arrangement, device, self._make_workspace),
        )
        self._count(built)
        # Before there is memory for optimiser state and gradients.
        pipeline.weights.take_place()
        self._install(step, arrangement, built, pipeline)

    def _count(self, built: Built) -> None:
        self.num_compiles += built.compiled
        self.num_captures += built.captured

    def _review(self, step: StepFunction, tensors: list[Tensor]) -> None:
        """Warn of what other rooms find wrong with the loss; the cache keeps what they look at."""
        told = self.metadata.loss_inputs
        if self.training and told is not None and self._synthetic is None:
            for text in review_loss([form.name for form in step.signature.forms], tensors, told):
                warn_user(text)

    def _make_workspace(self) -> Path:
        self._workspace = ScratchDirectory()
        return self._workspace.path

    def _install(
        self,
        step: StepFunction,
        arrangement: Arrangement | None,
        built: Built,
        stages: Pipeline | None = None,
    ) -> None:
        if self._optimizer is not None and arrangement is not None:
            parts = self.options.num_state_parts
            self._optimizer.install(arrangement, built.metadata.updated, parts, self.group)
        self._built, self._signature = built, step.signature
        self._executor = Executor(
            step.binding if stages is None else stages.own_binding,
            self.options,
            step.signature,
            built,
            self._optimizer,
            self.group,
            self._notes,
            stages,
        )
        self._beacon.is_ready(built.source, str(self._executor.device))

    def adopt_executable(self, built: Built, form: Signature, workspace: ScratchDirectory) -> None:
        """Take over a loaded executable, whose file lies in `workspace`, instead of compiling."""
        if self.options.is_divided:
            raise OptionsError(
                "a program from a file cannot be divided into stages; make it with training_model "
                "or inference_model, which take stages from the cache if they are there"
            )
        fix_fake_quantization(self.module)
        step = self._make_step(form)
        self._workspace = workspace
        self._join(step)
        self._install(step, self._arrange(step), built)
        self._beacon.is_from("file")
        self._is_unwatched = True

    def _arrange(self, step: StepFunction) -> Arrangement | None:
        return self._optimizer.arrange(step.binding) if self._optimizer is not None else None

    def _arrange_as_compiled(self, step: StepFunction) -> Arrangement | None:
        if self._optimizer is None:
            return None
        return self._optimizer.arrange_as_compiled(step.binding)

    def destroy(self) -> None:
        """Drop the executable; weights and optimiser state stay. A later call compiles again."""
        with self.turn, span("program", "destroy"):
            self.finish_profile()
            if self.options.is_divided:
                # If others are lost, so are the weights of their stages.
                with contextlib.suppress(DistributedError):
                    self.gather_weights()
            self._built = self._signature = self._executor = None
            self._beacon.is_destroyed()
            if self._optimizer is not None:
                self._optimizer.release()
            if self._workspace is not None:
                self._workspace.remove()
                self._workspace = None
            self._leave_common_cache()

    # -- running ----------------------------------------------------------------------------

    @short_tracebacks()
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `device_iterations` steps on a combined batch and return the outputs.

        Calls from several threads take turns.
        """
        if torch.is_inference_mode_enabled():
            # State that is made here is used outside as well: ordinary tensors only.
            with torch.inference_mode(False):
                return self(*args, **kwargs)
        with self.turn:
            tensors = self._compile(args, kwargs) if self._signature is None else None
            if self._is_unwatched:
                self._watch(args, kwargs)
            if self._watcher is not None:
                return self._watcher.call(self, lambda: self._run(args, kwargs, tensors))
            return self._run(args, kwargs, tensors)

    def _run(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor] | None
    ) -> Any:
        """Run a call; `tensors` are its arguments if they are prepared already."""
        assert self._signature is not None
        if tensors is None:
            tensors = self._accept(self._signature, args, kwargs)
        executor = self._executor
        assert executor is not None
        step = "training step" if self.training else "inference step"
        memory = naming_memory(f"the {step}", self.options, self.training)
        with memory, span("program", step), self._beacon:
            outputs = executor.run(tensors)
        if not self._has_checked_updates:
            self._check_updates()
        if self._synthetic is None:
            self._write_back(tensors)
        if self.options.check_finite:
            check_finite(outputs)
        return rebuild(executor.output_node, outputs)

    def _check_updates(self) -> None:
        """Warn, after the first call, if training changes nothing."""
        self._has_checked_updates = True
        reached = self.built.executable.reached
        updates = self.metadata.updated if reached is None else reached
        # A stage may have no parameters of its own.
        if not updates and not self.options.is_divided:
            warn_user(
                "nothing is trained: the loss reaches no parameter that requires a gradient and "
                "that the optimiser holds, so calls compute the loss and change no weight. If "
                "that is not meant, check requires_grad flags, detach() and torch.no_grad() in "
                "forward, and the optimiser's groups"
            )

    def _accept(
        self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Tensor]:
        """Return the tensors of a call as the program takes them, or generated ones like them."""
        tensors = signature.accept(args, kwargs)
        if self._executor is not None:
            device = self._executor.device
        else:
            device = next((p.device for p in self.module.parameters()), torch.device("cpu"))
        if self._synthetic is not None:
            return self._synthetic.arguments_like(signature, device)
        return self._inputs.prepare(tensors, device)

    def _write_back(self, tensors: list[Tensor]) -> None:
        """Let the caller see what forward wrote to inputs that had to be copied first."""
        assert self._signature is not None
        assert self._built is not None
        for index, original in self._signature.copied:
            # Backends other than native code count writes; a fresh copy has none.
            if index in self._built.metadata.mutated_inputs or version_of(tensors[index]):
                original.detach().copy_(tensors[index])

    # -- optimiser --------------------------------------------------------------------------

    @short_tracebacks()
    def set_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Use the optimiser's present numbers (learning rate, ...) from the next call on.

        Without recompiling; so its kind, groups and structure must be those that were compiled. An
        optimiser without state of its own takes over the state of the one before. There is one
        exception: a first `loss_scaling` on an optimiser that had no such attribute when the
        program was compiled lets the next call compile again, with a warning.
        """
        if self._optimizer is None:
            raise OptimizerError("an inference program has no optimiser; use training_model")
        if self._synthetic is not None:
            optimizer = self._synthetic.optimizer_like(optimizer)
        with span("program", "set optimizer"):
            self._optimizer.replace(optimizer)
        if self._optimizer.is_compiled_without_scale:
            warn_user(
                "the optimiser has a loss_scaling now, which it had not when the program was "
                "compiled: the next call compiles again; to prevent that, set "
                "optimizer.loss_scaling = 1.0 before the first call"
            )
            self.destroy()

    # -- random numbers and files -----------------------------------------------------------

    @property
    def rng_state(self) -> Tensor:
        """State of the torch generator that random operations draw from."""
        return generator_state(self._generator_device())

    @rng_state.setter
    def rng_state(self, state: Tensor) -> None:
        set_generator_state(self._generator_device(), state)

    def _generator_device(self) -> torch.device:
        return self._executor.device if self._executor is not None else torch.device("cpu")

    @short_tracebacks()
    def export(self, path: str | Path) -> None:
        """Write the compiled program, weights and optimiser state; `torchkiln.load` reads it."""
        if self._signature is None:
            raise NotCompiledError("Model has not been compiled; call compile(...) before export()")
        if self.options.is_divided:
            raise ExecutableError(
                "a program that is divided into stages cannot be exported; save the weights after "
                "gather_weights(), and export from one process"
            )
        if self._synthetic is not None:
            raise ExecutableError(
                "a program with synthetic_data=True has generated weights, which nobody should "
                "load; export one without that option"
            )
        program = CompiledProgram(
            self.training, self.options, self.metadata, self._signature, self.state_dtypes()
        )
        package, optimizer = self.executable_path, self.optimizer
        with span("program", "export"):
            write_program(Path(path), program, package, self.module, optimizer, self.rng_state)

    def __repr__(self) -> str:
        kind = "training" if self.training else "inference"
        state = "compiled" if self.is_compiled else "not compiled"
        return f"Program({kind}, {state}, {self.module})"
