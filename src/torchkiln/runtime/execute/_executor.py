"""The loop around an executable: iterations, accumulation, replicas, outputs.

Nothing here is done per parameter: lists of tensors are put together once and reused.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchkiln.core import ExecutableError, Options, OutputMode
from torchkiln.data import rebuild
from torchkiln.data._structure import Node, paths
from torchkiln.distributed import Group
from torchkiln.runtime.call._binding import Binding, metadata, refresh
from torchkiln.runtime.call._signature import Signature
from torchkiln.runtime.execute._anchors import (
    copies_of,
    input_anchors,
    micro_batch_anchors,
    own_anchors,
    update_anchors,
)
from torchkiln.runtime.execute._built import Built
from torchkiln.runtime.execute._clocked import Run
from torchkiln.runtime.execute._collection import Collection
from torchkiln.runtime.execute._generator import generator_state, set_generator_state
from torchkiln.runtime.execute._notes import Notes
from torchkiln.runtime.execute._sharing import Sharing
from torchkiln.runtime.execute._slices import slice_order
from torchkiln.runtime.execute._staged_calls import SharedSums, StagedCalls
from torchkiln.runtime.optim._binding import OptimizerBinding
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
        group: Group | None = None,
        notes: Notes | None = None,
        stages: StagedCalls | None = None,
    ) -> None:
        self._binding = binding
        self._options = options
        # Who has the other stages of the model; None: this process has all of it.
        self._stages = stages
        self._signature = signature
        self._built = built
        self.optimizer = optimizer
        self._runs = {name: built.executable.entry(name) for name in built.metadata.entries}
        self._tensors = binding.tensors
        self._forms = [metadata(tensor) for tensor in self._tensors]
        self._pointers = [tensor.data_ptr() for tensor in self._tensors]
        self._trainable = self._trainable_flags()
        self._constants = [bound.tensor.detach().clone() for bound in binding.attributes]
        self._use_constants()
        self._notes = notes or Notes()
        self.sharing: SharedSums | None = None
        if optimizer is not None and stages is not None:
            self.sharing = stages.make_sums(optimizer, self._notes)
        elif optimizer is not None:
            self.sharing = Sharing(
                optimizer, built, self.device, self._notes, group, options, binding
            )
        self._num_anchors = len(micro_batch_anchors(options))
        self._order = slice_order(options)
        self._anchors: dict[str, Tensor] = {}
        self._clock: list[tuple[float, float]] = []
        self._num_kept = 0

    def snapshot(self) -> Callable[[], None]:
        """Copy everything that a call changes, and return what puts it back.

        Arguments are not part of it, though forward may write to them. Until then calls exchange
        nothing with other processes: this one may make as many as it likes.

        Raises:
            ExecutableError: Other processes would have to take part.
        """
        self._refuse_alone()
        # What was replaced or loaded since the last call is what must be there afterwards.
        self._follow()
        kept = [(tensor, tensor.detach().clone()) for tensor in self._tensors]
        optimizer = self.optimizer
        put_back = optimizer.snapshot() if optimizer is not None else lambda: None
        come_back = self.sharing.go_apart() if self.sharing is not None else lambda: None
        generator = generator_state(self.device)

        def restore() -> None:
            come_back()
            with torch.no_grad():
                for tensor, value in kept:
                    tensor.copy_(value)
            put_back()
            set_generator_state(self.device, generator)

        return restore

    @property
    def device(self) -> torch.device:
        return self._tensors[0].device if self._tensors else torch.device("cpu")

    @property
    def _accumulates(self) -> bool:
        return "update" in self._built.metadata.entries

    def state_dtypes(self) -> dict[str, str]:
        """Return dtypes of optimiser state and gradient sums by name of parameter and tensor."""
        if self.optimizer is None:
            return {}
        kept = {name: {**state} for name, state in self.optimizer.state_by_name().items()}
        sums = self.sharing.sums if self.sharing is not None else []
        for state, total in zip(kept.values(), sums, strict=False):
            state[SUMS] = total
        return {
            f"{name}/{key}": str(tensor.dtype)
            for name, state in kept.items()
            for key, tensor in state.items()
        }

    def _use_constants(self) -> None:
        """Plain tensor attributes are constants: what they were at compile time, every call."""
        start = len(self._tensors) - len(self._constants)
        written = self._built.executable.writes_constants
        self._tensors[start:] = [t.clone() for t in self._constants] if written else self._constants

    def run(self, tensors: list[Tensor]) -> list[Tensor]:
        """Consume one combined batch and return the outputs by output mode."""
        if self._stages is not None:
            with self._stages.calling(tensors):
                self._begin_call()
                return self._run_all(tensors)
        self._begin_call()
        if len(self._order) == 1 and not self._options.anchors and not self._accumulates:
            return self._run_one(tensors)
        return self._run_all(tensors)

    def _begin_call(self) -> None:
        self._follow()
        self._clock.clear()
        if self._constants:
            self._use_constants()
        if self.sharing is not None:
            self.sharing.begin_call()

    def _run_all(self, tensors: list[Tensor]) -> list[Tensor]:
        slices = self._signature.micro_batches(tensors)
        constant = self._built.metadata.constant_outputs
        collection = Collection(self._options, self.optimizer is not None, constant)
        if self.optimizer is not None:
            self._train(collection, slices)
        elif self._stages is not None:
            chosen = [slices[index] for index in self._order]
            with self._clocked_together(len(chosen)):
                results = self._stages.infer(self._tensors, chosen)
            for outputs in results:
                collection.add_micro_batch(outputs)
        else:
            for position, index in enumerate(self._order):
                is_first = position % self._options.micro_batches_per_update == 0
                self._keep_anchors(collection, [slices[index]], is_first)
                inputs = [*self._tensors, *slices[index]]
                collection.add_micro_batch(self._timed("infer", inputs))
        self._anchors = collection.anchored()
        self._num_kept = collection.num_kept
        if self.sharing is not None:
            self.sharing.end_call()
        return collection.outputs()

    def _run_one(self, tensors: list[Tensor]) -> list[Tensor]:
        """Run a call of a single micro-batch: every output mode returns just its outputs."""
        optimizer, sharing = self.optimizer, self.sharing
        self._num_kept = 1
        if optimizer is None or sharing is None:
            return self._timed("infer", [*self._tensors, *tensors])
        (tables,) = optimizer.next_tables(1)
        inputs = [*self._tensors, *optimizer.state_tensors, *tables, *tensors]
        outputs = self._timed("step", inputs)
        optimizer.count_update(self._built.executable.reached)
        if sharing.wants_outputs:
            sharing.note(self._structures([outputs]))
        return outputs

    @property
    def output_node(self) -> Node:
        """The structure of the outputs."""
        return self._built.executable.output_node(self._built.metadata.node)

    def _train(self, collection: Collection, slices: list[Any]) -> None:
        optimizer, sharing = self.optimizer, self.sharing
        assert optimizer is not None
        assert sharing is not None
        iterations = self._options.device_iterations
        per_update = self._options.micro_batches_per_update
        hyper = optimizer.next_tables(iterations, self._options.total_micro_batches_per_update)
        state = optimizer.state_tensors
        for iteration in range(iterations):
            tables = hyper[iteration]
            chosen = self._order[iteration * per_update : (iteration + 1) * per_update]
            self._keep_anchors(collection, [slices[index] for index in chosen])
            if not self._accumulates:
                inputs = [*self._tensors, *state, *tables, *slices[chosen[0]]]
                outputs = self._timed("step", inputs)
                collection.add_micro_batch(outputs)
                if sharing.wants_outputs:
                    sharing.note(self._structures([outputs]))
            else:
                is_last = iteration == iterations - 1
                batches = [slices[index] for index in chosen]
                self._update(sharing, collection, batches, tables, is_last=is_last)
            optimizer.count_update(self._built.executable.reached)
            if self._options.anchors:
                names = update_anchors(self._options).values()
                collection.add_update(copies_of(names, self._binding, self._tensors))

    def _update(
        self,
        sharing: SharedSums,
        collection: Collection,
        micro_batches: list[Any],
        tables: list[Tensor],
        *,
        is_last: bool,
    ) -> None:
        """Sum up the gradients of micro-batches, here and in other processes, and use them."""
        sums = sharing.sums
        kept: list[list[Tensor]] = []
        is_noted = sharing.wants_outputs
        try:
            for outputs in self._accumulated(sums, tables[-1], micro_batches, is_last, is_noted):
                collection.add_micro_batch(outputs)
                if is_noted:
                    kept.append(outputs)
            sharing.share(self._structures(kept) if is_noted else [])
            sharing.update(self._runs["update"], tables)
        except BaseException:
            # An interrupt must not leave half a sum for the next update.
            sharing.clear_()
            raise

    def _accumulated(
        self,
        sums: list[Tensor],
        scalars: Tensor,
        micro_batches: list[Any],
        is_last: bool,
        is_noted: bool,
    ) -> Iterator[list[Tensor]]:
        """Add the gradients of micro-batches to the sums, and yield the outputs of each."""
        if self._stages is None:
            for batch in micro_batches:
                yield self._timed("accumulate", [*self._tensors, *sums, scalars, *batch])
            return
        count = len(micro_batches)
        # Outputs that are not looked at need not go to all stages.
        first = 0
        if self._options.output_mode is OutputMode.FINAL and not is_noted:
            first = count - self._options.replication_factor if is_last else count
        with self._clocked_together(count):
            results = self._stages.accumulate(
                self._tensors, sums, scalars, micro_batches, range(first, count)
            )
        yield from results

    @contextlib.contextmanager
    def _clocked_together(self, count: int) -> Iterator[None]:
        """Take the time of several micro-batches that stages work on at once."""
        start = time.perf_counter()
        yield
        self._clock += [(start, time.perf_counter())] * count

    def _structures(self, results: list[list[Tensor]]) -> list[Any]:
        """Return what forward returned for each micro-batch, without anchored tensors."""
        node, num_anchors = self.output_node, self._num_anchors
        return [rebuild(node, values[: len(values) - num_anchors]) for values in results]

    def _timed(self, entry: str, inputs: list[Tensor]) -> list[Tensor]:
        start = time.perf_counter()
        outputs = self._runs[entry](inputs)
        self._clock.append((start, time.perf_counter()))
        return outputs

    # -- looking inside ---------------------------------------------------------------------

    def check_clocked(self) -> None:
        """Raise ExecutableError if calls cannot be timed one by one."""
        self._refuse_alone()
        for name in self._runs:
            self._built.executable.clocked(name)

    def _refuse_alone(self) -> None:
        if self._stages is not None:
            raise ExecutableError(
                "a program that is divided into stages cannot be profiled: its steps need all "
                "processes; profile it in one process, where pipeline=[...] changes nothing"
            )

    @contextlib.contextmanager
    def clocked(self, tell: Callable[[str, Callable[[], np.ndarray]], None]) -> Iterator[None]:
        """Time what runs meanwhile.

        Args:
            tell: Called after each run of an entry point with its name, and a function that returns
                the nanoseconds of each call that it made.
        """
        original = self._runs
        timed = {name: self._built.executable.clocked(name) for name in original}

        def clock(name: str) -> Run:
            def run(inputs: list[Tensor]) -> list[Tensor]:
                outputs = timed[name](inputs)
                tell(name, timed[name].durations_ns)
                return outputs

            return run

        self._runs = {name: clock(name) for name in original}
        try:
            yield
        finally:
            self._runs = original

    def _keep_anchors(
        self, collection: Collection, micro_batches: list[Any], is_first: bool = True
    ) -> None:
        """Keep what is anchored of arguments, and of the module if an iteration begins."""
        if not self._options.anchors:
            return
        if is_first:
            names = own_anchors(self._options).values()
            collection.add_iteration(copies_of(names, self._binding, self._tensors))
        position = {form.name: index for index, form in enumerate(self._signature.forms)}
        chosen = [position[name] for name in input_anchors(self._options).values()]
        for tensors in micro_batches:
            collection.add_inputs([tensors[index].detach().clone() for index in chosen])

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

    def _follow(self) -> None:
        """Take over what happened to module and optimiser between calls."""
        self._refresh_module()
        if self.optimizer is not None:
            self.optimizer.begin_call()

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
        for bound, tensor, form in zip(
            self._binding.bound, self._tensors, self._forms, strict=True
        ):
            if metadata(tensor) != form:
                raise ExecutableError(
                    f"{bound.name!r} changed from {form} to {metadata(tensor)} after compilation; "
                    "call destroy() on the program to compile again"
                )
        if self.optimizer is not None:
            by_name = {bound.name: bound.tensor for bound in self._binding.parameters}
            self.optimizer.follow_parameters(by_name)
        self._pointers = pointers

    def _trainable_flags(self) -> list[bool]:
        """Return which parameters take part in training."""
        if self.optimizer is None:
            return []
        return [bound.tensor.requires_grad for bound in self._binding.parameters]
