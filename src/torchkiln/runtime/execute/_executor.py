"""The loop around an executable: iterations, accumulation, replicas, outputs.

Nothing here is done per parameter: lists of tensors are put together once and reused.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from torchkiln.core import (
    ExecutableError,
    InputGrouping,
    OptimizerError,
    Options,
)
from torchkiln.data._structure import Node, paths
from torchkiln.runtime.call._binding import Binding, metadata, refresh
from torchkiln.runtime.call._signature import Signature
from torchkiln.runtime.execute._anchors import update_anchors
from torchkiln.runtime.execute._built import Built
from torchkiln.runtime.execute._collection import Collection
from torchkiln.runtime.execute._executable import EagerExecutable
from torchkiln.runtime.optim._optimizers import Hyper, OptimizerBinding, Recipe
from torchkiln.runtime.optim._state_dtypes import SUMS


class Executor:
    """Runs one program."""

    def __init__(
        self,
        binding: Binding,
        options: Options,
        signature: Signature,
        built: Built,
        optimizer: OptimizerBinding | None,
    ) -> None:
        self._binding = binding
        self._options = options
        self._signature = signature
        self._built = built
        self.optimizer = optimizer
        self._runs = {name: built.executable.entry(name) for name in built.metadata.entries}
        self._tensors = binding.tensors
        self._forms = [metadata(tensor) for tensor in self._tensors]
        self._pointers = [tensor.data_ptr() for tensor in self._tensors]
        self._trainable = self._trainable_flags()
        self._constants = [slot.tensor.detach().clone() for slot in binding.attributes]
        self._use_constants()
        self._sums: list[Tensor] = []
        if optimizer is not None and self._accumulates:
            self._sums = [optimizer.empty_sum(param).zero_() for param in optimizer.params]
        self._order = self._slice_order()
        self._anchors: dict[str, Tensor] = {}
        self._clock: list[tuple[float, float]] = []
        self._num_kept = 0
        groups = optimizer.optimizer.param_groups if optimizer is not None else []
        self._group_sizes = [len(group["params"]) for group in groups]

    @property
    def device(self) -> torch.device:
        return self._tensors[0].device if self._tensors else torch.device("cpu")

    @property
    def _accumulates(self) -> bool:
        return "accumulate" in self._built.metadata.entries

    def state_dtypes(self) -> dict[str, str]:
        """Return dtypes of optimiser state and gradient sums by name of parameter and tensor."""
        bound = self.optimizer
        if bound is None:
            return {}
        kept = [{**state} for state in bound.state]
        for state, total in zip(kept, self._sums, strict=False):
            state[SUMS] = total
        return {
            f"{name}/{key}": str(tensor.dtype)
            for name, state in zip(bound.names, kept, strict=True)
            for key, tensor in state.items()
        }

    def _use_constants(self) -> None:
        """Plain tensor attributes are constants: what they were at compile time, every call."""
        start = len(self._tensors) - len(self._constants)
        eager = isinstance(self._built.executable, EagerExecutable)
        self._tensors[start:] = [t.clone() for t in self._constants] if eager else self._constants

    def _slice_order(self) -> list[int]:
        """Return, for each micro-batch in order, which slice of the inputs it consumes."""
        options = self._options
        size = options.input_group_size
        groups = options.replication_factor // size
        steps = options.device_iterations * options.gradient_accumulation
        consecutive = options.input_grouping is InputGrouping.CONSECUTIVE
        return [
            step * groups + (replica // size if consecutive else replica % groups)
            for step in range(steps)
            for replica in range(options.replication_factor)
        ]

    def run(self, tensors: list[Tensor]) -> list[Tensor]:
        """Consume one combined batch and return the outputs by output mode."""
        self._refresh_module()
        if self.optimizer is not None:
            self._check_groups(self.optimizer)
            if self.optimizer.changed_outside():
                self.optimizer.adopt()
        self._clock.clear()
        if self._constants:
            self._use_constants()
        if len(self._order) == 1 and not self._options.anchors:
            return self._run_one(tensors)
        slices = self._signature.micro_batches(tensors)
        constant = self._built.metadata.constant_outputs
        collection = Collection(self._options, self.optimizer is not None, constant)
        if self.optimizer is None:
            for index in self._order:
                inputs = [*self._tensors, *slices[index]]
                collection.add_micro_batch(self._timed("infer", inputs))
        else:
            self._train(collection, slices)
        self._anchors = collection.anchored()
        self._num_kept = collection.num_kept
        return collection.outputs()

    def _check_groups(self, optimizer: OptimizerBinding) -> None:
        sizes = [len(group["params"]) for group in optimizer.optimizer.param_groups]
        if sizes != self._group_sizes:
            raise OptimizerError(
                f"the optimiser's groups changed from {self._group_sizes} to {sizes} parameters "
                "after compilation; call destroy() on the program to compile again"
            )

    def _run_one(self, tensors: list[Tensor]) -> list[Tensor]:
        """Run a call of a single micro-batch: every output mode returns just its outputs."""
        optimizer = self.optimizer
        self._num_kept = 1
        if optimizer is None:
            return self._timed("infer", [*self._tensors, *tensors])
        (tables,) = optimizer.next_hyper(1)
        inputs = [*self._tensors, *optimizer.state_tensors, *tables, *tensors]
        outputs = self._timed("step", inputs)
        self._count_update(optimizer)
        return outputs

    @property
    def output_node(self) -> Node:
        """The structure of the outputs."""
        executable = self._built.executable
        if isinstance(executable, EagerExecutable):
            return executable.node
        return self._built.metadata.node

    def _train(self, collection: Collection, slices: list[Any]) -> None:
        optimizer = self.optimizer
        assert optimizer is not None
        iterations = self._options.device_iterations
        per_update = self._options.micro_batches_per_update
        hyper = optimizer.next_hyper(iterations)
        state = optimizer.state_tensors
        for iteration in range(iterations):
            tables = hyper[iteration]
            chosen = self._order[iteration * per_update : (iteration + 1) * per_update]
            if not self._accumulates:
                inputs = [*self._tensors, *state, *tables, *slices[chosen[0]]]
                collection.add_micro_batch(self._timed("step", inputs))
            else:
                self._accumulate(collection, [slices[index] for index in chosen], tables[-1])
                self._runs["update"]([*optimizer.params, *self._sums, *state, *tables])
            self._count_update(optimizer)
            if self._options.anchors:
                collection.add_update(self._anchored_parameters())

    def _count_update(self, optimizer: OptimizerBinding) -> None:
        executable = self._built.executable
        if isinstance(executable, EagerExecutable):
            optimizer.unreached = set(range(len(optimizer.params))) - executable.with_gradient
        optimizer.advance(1)

    def _accumulate(
        self, collection: Collection, micro_batches: list[Any], scalars: Tensor
    ) -> None:
        try:
            for batch in micro_batches:
                inputs = [*self._tensors, *self._sums, scalars, *batch]
                collection.add_micro_batch(self._timed("accumulate", inputs))
        except BaseException:
            # An interrupt must not leave half a sum for the next update.
            for total in self._sums:
                total.zero_()
            raise

    def _timed(self, entry: str, inputs: list[Tensor]) -> list[Tensor]:
        start = time.perf_counter()
        outputs = self._runs[entry](inputs)
        self._clock.append((start, time.perf_counter()))
        return outputs

    # -- looking inside ---------------------------------------------------------------------

    def _anchored_parameters(self) -> list[Tensor]:
        by_name = {p.name: slot for slot in self._binding.parameters for p in slot.places}
        names = update_anchors(self._options).values()
        return [by_name[name].tensor.detach().clone() for name in names]

    def anchored(self, name: str) -> Tensor:
        return self._anchors[name]

    def perf_counters(self) -> dict[str, list[list[float]]]:
        """Return clock times per tensor and micro-batch; inputs are there when a call begins."""
        starts = [start for start, _ in self._clock]
        ends = [end for _, end in self._clock][len(self._clock) - self._num_kept :]
        num_outputs = len(paths(self.output_node))
        return {
            "input": [list(starts) for _ in self._signature.forms],
            "input_complete": [list(starts) for _ in self._signature.forms],
            "output": [list(ends) for _ in range(num_outputs)],
            "output_complete": [list(ends) for _ in range(num_outputs)],
        }

    # -- state ------------------------------------------------------------------------------

    def _refresh_module(self) -> None:
        """Follow weights that the user replaced; refuse what native code could not read."""
        replaced = refresh(self._binding)
        count = len(self._tensors) - len(self._binding.attributes)
        if replaced:
            self._tensors[:count] = self._binding.tensors[:count]
        if self._trainable_flags() != self._trainable:
            raise ExecutableError(
                "requires_grad of a parameter changed after compilation; call destroy() on the "
                "program to compile again"
            )
        pointers = [tensor.data_ptr() for tensor in self._tensors]
        if not replaced and pointers == self._pointers:
            return
        for slot, tensor, form in zip(self._binding.slots, self._tensors, self._forms, strict=True):
            if metadata(tensor) != form:
                raise ExecutableError(
                    f"{slot.name!r} changed from {form} to {metadata(tensor)} after compilation; "
                    "call destroy() on the program to compile again"
                )
        self._rebind_parameters()
        self._pointers = pointers

    def _trainable_flags(self) -> list[bool]:
        """Return which parameters take part in training."""
        if self.optimizer is None:
            return []
        return [slot.tensor.requires_grad for slot in self._binding.parameters]

    def _rebind_parameters(self) -> None:
        if self.optimizer is None:
            return
        by_name = {slot.name: slot.tensor for slot in self._binding.parameters}
        held = {id(p) for group in self.optimizer.optimizer.param_groups for p in group["params"]}
        for name in self.optimizer.names:
            if id(by_name[name]) not in held:
                raise ExecutableError(
                    f"parameter {name!r} was replaced by another object, but the optimiser still "
                    "holds the old one; load with assign=False, or make a new optimiser and program"
                )
        self.optimizer.params = [by_name[name] for name in self.optimizer.names]
        if self.optimizer.published:
            self.optimizer.publish()

    def set_hyper(self, hyper: Hyper | None) -> None:
        if self.optimizer is not None and hyper is not None:
            self.optimizer.hyper = hyper

    def check_recipe(self, recipe: Recipe) -> None:
        """Raise `OptimizerError` if the compiled update could not stand for `recipe`."""
        assert self.optimizer is not None
        mine = self.optimizer.recipe
        if recipe.kind != mine.kind:
            raise OptimizerError(
                f"the program was compiled for {mine.kind}, got {recipe.kind}; create a new "
                "program, or destroy() this one first"
            )
        if len(recipe.rules) != len(mine.rules):
            raise OptimizerError(
                f"the program was compiled for {len(mine.rules)} parameter groups, got "
                f"{len(recipe.rules)}; create a new program, or destroy() this one first"
            )
        if recipe != mine:
            raise OptimizerError(
                f"the structure of the optimiser changed ({mine.difference(recipe)}); numbers may "
                "change without recompiling, but momentum, clipping or loss scaling cannot be "
                "switched on or off: create a new program, or destroy() this one first"
            )

    def move_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Let another optimiser object own the state."""
        bound = self.optimizer
        assert bound is not None
        groups = enumerate(optimizer.param_groups)
        group_of = {id(param): index for index, group in groups for param in group["params"]}
        for row in bound.rows:
            for member in row.members:
                if group_of.get(id(bound.params[member])) != row.group:
                    raise OptimizerError(
                        f"the new optimiser does not hold {bound.names[member]!r} in group "
                        f"{row.group}; build it from the parameters of the same module, in the "
                        "same groups"
                    )
        has_own = any(optimizer.state.get(param) for param in bound.params)
        for param in bound.params:
            # The one before keeps a copy: two owners of one tensor would spoil each other's state.
            state = bound.optimizer.state.get(param) or {}
            for name, value in state.items():
                if isinstance(value, Tensor):
                    state[name] = value.clone()
        bound.optimizer = optimizer
        if has_own:
            bound.adopt()
        elif bound.published:
            bound.publish()
