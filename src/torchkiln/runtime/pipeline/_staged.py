"""`Pipeline`: calls of a program whose stages run in several processes."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Collection, Iterator, Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor

from torchkiln.core import DistributedError, Options
from torchkiln.distributed import Group
from torchkiln.distributed._transfers import in_memory_order
from torchkiln.runtime.call._binding import Binding
from torchkiln.runtime.execute._built import Built
from torchkiln.runtime.execute._generator import generator_state, set_generator_state
from torchkiln.runtime.execute._heap import give_back_freed_memory
from torchkiln.runtime.execute._notes import Notes
from torchkiln.runtime.execute._staged_calls import SharedSums, StagedCalls
from torchkiln.runtime.optim._binding import OptimizerBinding
from torchkiln.runtime.pipeline._parts import Bound, Scalars, Sum
from torchkiln.runtime.pipeline._plan import StagePlan
from torchkiln.runtime.pipeline._routes import Routes
from torchkiln.runtime.pipeline._schedule import inference_turns, training_turns
from torchkiln.runtime.pipeline._stage_run import StageRun
from torchkiln.runtime.pipeline._stage_sums import StageSums
from torchkiln.runtime.pipeline._weights import StageWeights

# Bytes of an argument that are compared among stages; of a longer one, so many spread over it.
_COMPARED = 2**16


@final
class Pipeline(StagedCalls):
    """Runs the stage of this process, together with the processes that have the others.

    Args:
        plan: How the step was cut.
        built: The stage, ready to run.
        binding: All tensors of the module.
        optimizer: That the program trains with; None: inference.
        group: All processes.
        options: Of the program.
        device: Where it runs.
    """

    def __init__(
        self,
        plan: StagePlan,
        built: Built,
        binding: Binding,
        optimizer: OptimizerBinding | None,
        group: Group,
        options: Options,
        device: torch.device,
    ) -> None:
        self._options = options
        self._group = group
        self._device = device
        # The module's tensors that this stage uses.
        self.own_binding = plan.own_binding(binding)
        self._places, self._draws = plan.places, plan.draws
        # The graphs of all stages are code by now: they go with the plan.
        part = plan.part.without_graphs()
        self._parameters = part.parameters
        first_rank = options.pipeline_id * options.num_stages
        self._routes = Routes(plan.parts, options.stage, group, first_rank, device)
        give_back_freed_memory()
        runs = {name: built.executable.entry(name) for name in part.entries}
        self._run = StageRun(part, runs, self._routes, plan.outputs)
        self.weights = StageWeights(binding, plan.parts, self._routes, group, optimizer)

    def make_sums(self, optimizer: OptimizerBinding, notes: Notes) -> SharedSums:
        return StageSums(optimizer, self._device, notes, self._group, self._options)

    @contextlib.contextmanager
    def calling(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Be in a call with these arguments.

        Raises:
            DistributedError: They are others than in the first stage, or a process is lost.
        """
        try:
            self.weights.take_place()
            self._require_same(tensors)
            with self._own_random_numbers():
                yield
        except DistributedError:
            raise
        except BaseException as error:
            # What the others sent would be taken for what belongs to the next call.
            self._group.abandon(error)
            raise

    def infer(
        self, bound: Sequence[Tensor], batches: Sequence[Sequence[Tensor]]
    ) -> list[list[Tensor]]:
        def lookup(source: Bound | Sum | Scalars) -> Tensor:
            assert isinstance(source, Bound)
            return bound[self._places[source.index]]

        turns = inference_turns(len(batches))
        return self._run.run(turns, batches, lookup, range(len(batches)))

    def accumulate(
        self,
        bound: Sequence[Tensor],
        sums: Sequence[Tensor],
        scalars: Tensor,
        batches: Sequence[Sequence[Tensor]],
        wanted: Collection[int],
    ) -> list[list[Tensor]]:
        sum_of = dict(zip(self._parameters, sums, strict=True))

        def lookup(source: Bound | Sum | Scalars) -> Tensor:
            if isinstance(source, Bound):
                return bound[self._places[source.index]]
            return sum_of[source.name] if isinstance(source, Sum) else scalars

        options = self._options
        schedule, stages = options.pipeline_schedule, options.num_stages
        turns = training_turns(schedule, options.stage, stages, len(batches))
        return self._run.run(turns, batches, lookup, wanted)

    def _require_same(self, tensors: Sequence[Tensor]) -> None:
        """Compare the arguments of the call: stages would work on parts of different batches."""
        routes = self._routes
        own = torch.tensor([_digest(tensors)])
        if routes.stage == 0:
            told = [routes.tell(own, stage) for stage in range(1, routes.num_stages)]
            for transfer in told:
                transfer.wait()
            return
        first = routes.hear(torch.zeros_like(own), 0).wait()
        if not torch.equal(first, own):
            error = DistributedError(
                f"rank {self._group.world.rank}, which runs stage {routes.stage}, was called with "
                f"other arguments than rank {routes.rank_of(0)}, which runs stage 0 of the same "
                "pipeline; all stages must be called with the same batches: give loaders the same "
                "options.random_seed, and draw what is random in your own code from torch's "
                "generator, in the same order on all ranks"
            )
            self._group.abandon(error)
            raise error

    @contextlib.contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """Let the stage draw other numbers than the others, and then go on with common ones.

        So what the user's own code draws between calls is the same in all stages, however many
        numbers a stage needs; and the numbers of a call depend on the common ones only.
        """
        if not self._draws:
            yield
            return
        seed = int(torch.randint(2**62, ()))
        common = generator_state(self._device)
        words = np.random.SeedSequence((seed, self._routes.stage)).generate_state(1, np.uint64)
        torch.manual_seed(int(words[0]))
        try:
            yield
        finally:
            set_generator_state(self._device, common)


def _digest(tensors: Sequence[Tensor]) -> int:
    """Return a number that differs for other arguments."""
    digest = 0
    for tensor in tensors:
        if tensor.numel():
            content = in_memory_order(tensor).view(torch.uint8)
            step = max(content.numel() // _COMPARED, 1) | 1
            sample = content[::step].contiguous().cpu().numpy()
            digest = zlib.crc32(sample.tobytes(), digest)
    return digest
