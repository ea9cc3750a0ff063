"""`JointProgram`: the part of a program that talks to the other processes that train its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from torchkiln.checkpoints._divided import Recipients, gather_optimizer_state
from torchkiln.core import OptimizerError, Options
from torchkiln.core._tracebacks import short_tracebacks
from torchkiln.runtime._joining import CommonCache, join, part_random_streams, require_same_updates
from torchkiln.runtime._looking_inside import OpenProgram
from torchkiln.runtime.call._binding import device_of
from torchkiln.runtime.capture._step import StepFunction
from torchkiln.runtime.execute._built import Built
from torchkiln.runtime.execute._notes import Notes, NoteWriter
from torchkiln.runtime.optim._binding import OptimizerBinding
from torchkiln.runtime.pipeline._weights import gather_weights

if TYPE_CHECKING:
    from torchkiln.runtime.pipeline._plan import StagePlan
    from torchkiln.runtime.pipeline._staged import Pipeline


class JointProgram(OpenProgram):
    """What is different about a program that several processes train; how it runs is in `Program`.

    A program that trains alone is one with no others: all of this works, and nobody is waited for.
    """

    _optimizer: OptimizerBinding | None
    _notes: Notes
    _common_cache: CommonCache | None

    # -- what they tell each other ----------------------------------------------------------

    @short_tracebacks()
    def exchange_notes(self, num_notes: int, write: NoteWriter) -> None:
        """Let the processes that train together tell each other numbers with every update.

        They travel with the gradients, so they need no collective of their own. All processes call
        this, with the same number. A program that trains alone takes notes, too.

        Args:
            num_notes: How many numbers each process tells.
            write: Called after the micro-batches of an update, before their gradients are added up,
                with what forward returned for each of them; returns the numbers, which are float32.
        """
        if not self.training:
            raise OptimizerError("an inference program has no updates; use training_model")
        self._notes.agree(num_notes, write)
        if self._executor is None or self._executor.sharing is None:
            return
        if self.group is not None:
            remedy = "call exchange_notes alike on all ranks"
            self.group.require_same("number of notes", num_notes, remedy)
        self._executor.sharing.fit()

    @property
    def notes(self) -> Tensor:
        """What all processes noted in the latest call: [device_iterations, processes, numbers].

        In float32 on the CPU. `exchange_notes` says who writes them.
        """
        return self._notes.told(1 if self.group is None else self.group.world.size)

    @property
    def collective_seconds(self) -> float:
        """Seconds that updates spent in collectives, waiting for other processes included."""
        if self._executor is None or self._executor.sharing is None:
            return 0.0
        return self._executor.sharing.seconds

    @short_tracebacks()
    def gather_optimizer_state(self, to: Recipients = "all") -> None:
        """Make the optimiser's state whole if it is divided (`Options(shard_optimizer=True)`).

        Afterwards, and until the next update, `optimizer.state_dict()` returns all of it in torch's
        format. Called by all processes together; it does nothing if the state is not divided.

        Args:
            to: "all": every rank has the whole state; "first": rank 0 alone.
        """
        if self._optimizer is None:
            raise OptimizerError("an inference program has no optimiser; use training_model")
        with self.turn:
            gather_optimizer_state(self._optimizer.optimizer, to)

    # -- how they become one ----------------------------------------------------------------

    def _join(self, step: StepFunction) -> None:
        """Become the same as the other processes, but for random numbers."""
        if self.group is None:
            return
        # Another program may have left weights with other stages.
        self.gather_weights()
        join(self.group, step, self._optimizer, self._notes.count)
        if self._optimizer is not None:
            device = device_of(step.binding, [])
            part_random_streams(self.group, device, self.options.num_stages)

    def part_random_streams(self) -> None:
        """Draw other random numbers than the other processes, from now on."""
        if self.group is not None:
            part_random_streams(self.group, self.executor.device, self.options.num_stages)

    def _build_with_others(self, make: Callable[[Options], Built]) -> Built:
        """Build, one process of a host before the others, which find the cache filled."""
        if self.group is None:
            return make(self.options)
        self._common_cache = CommonCache(self.group, self.options)
        options = self.options.replace(cache_dir=self._common_cache.path)
        built = self.group.one_after_first("compile", lambda: make(options))
        require_same_updates(self.group, built)
        return built

    def _build_stage_with_others(
        self, step: StepFunction, make: Callable[[], tuple[Built, StagePlan]]
    ) -> tuple[Built, Pipeline]:
        """Build the stage of this process, all processes at the same time."""
        from torchkiln.runtime.pipeline._staged import Pipeline

        assert self.group is not None
        built, plan = self.group.all_at_once("compile", make)
        self.group.require_same(
            "the division into stages",
            plan.describe(step.binding),
            "forward must do the same on every rank; do not let it depend on the rank",
        )
        device = device_of(step.binding, [])
        return built, Pipeline(
            plan, built, step.binding, self._optimizer, self.group, self.options, device
        )

    @short_tracebacks()
    def gather_weights(self) -> None:
        """Give every process the present weights, buffers and optimiser state of all stages.

        While the model is divided into stages, each process has those of its own stage only. Called
        by all processes; the next call of the program sends them away again. Without stages this
        does nothing.

        Raises:
            DistributedError: A process is lost.
        """
        gather_weights(self.module)

    def _leave_common_cache(self) -> None:
        if self._common_cache is not None:
            self._common_cache.remove()
            self._common_cache = None
