"""Recording a step in stages, and running its parts one after the other in one process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchkiln.core import Options
from torchkiln.data import flatten
from torchkiln.runtime import inference_model, training_model
from torchkiln.runtime.capture._capture import Captured, capture, recomputed_modules
from torchkiln.runtime.capture._step import StepFunction
from torchkiln.runtime.optim._arrangement import Arrangement
from torchkiln.runtime.passes._stages import Stages
from torchkiln.runtime.pipeline._cut import cut_step
from torchkiln.runtime.pipeline._parts import (
    Argument,
    Bound,
    Kept,
    Received,
    Scalars,
    StagePart,
    Sum,
)

Run = Callable[[list[Tensor]], list[Tensor]]


class Recorded:
    """A step, its whole graph, and its parts."""

    def __init__(
        self,
        module: nn.Module,
        micro_batch: tuple[Tensor, ...],
        blocks: tuple[tuple[str, ...], ...],
        training: bool = True,
        loss_scaling: float = 1.0,
        **options: object,
    ) -> None:
        self.stages = Stages(blocks)
        values = {"backend": "capture", "show_progress": False, **options}
        if training:
            values.setdefault("gradient_accumulation", 2 * len(blocks) - 1)
        chosen = Options(**values)  # type: ignore[arg-type]
        optimizer = torch.optim.Adam([p for p in module.parameters() if p.requires_grad])
        optimizer.loss_scaling = loss_scaling  # type: ignore[attr-defined]
        program = (
            training_model(module, chosen, optimizer)
            if training
            else inference_model(module, chosen)
        )
        count = chosen.gradient_accumulation
        batch = tuple(torch.cat([tensor] * count) for tensor in micro_batch)
        self.training = training
        self.micro_batch = micro_batch
        self.step: StepFunction
        self.step, _, own = program._begin(batch, {})
        self.arrangement: Arrangement | None = program._arrange(self.step)
        if chosen.recompute == "auto":
            # The choice is made with the stages in mind.
            names = recomputed_modules(self.step, own, self.stages)
            self.step = dataclasses.replace(
                self.step, options=chosen.replace(recompute=names or None)
            )
        self.whole = capture(self.step, own, self.arrangement)
        self.parts = self.cut(own)

    def cut(self, micro_batch: list[Tensor]) -> list[StagePart]:
        captured: Captured = capture(self.step, micro_batch, self.arrangement, stages=self.stages)
        return cut_step(captured, self.step, self.arrangement, self.stages)

    # -- running ----------------------------------------------------------------------------

    def values(self) -> tuple[list[Tensor], dict[str, Tensor], Tensor]:
        """Return copies of the module's tensors, sums of gradients, and the scalars."""
        tensors = [bound.tensor.detach().clone() for bound in self.step.binding.bound]
        if not self.training:
            return tensors, {}, torch.zeros(0)
        entry = self.whole.entries["accumulate"]
        first = len(tensors)
        names = self.whole.updated
        made = entry.inputs[first : first + len(names)]
        sums = {
            name: torch.empty_strided(like.shape, like.stride(), dtype=like.dtype).zero_()
            for name, like in zip(names, made, strict=True)
        }
        scalars = entry.inputs[first + len(names)]
        return tensors, sums, torch.full(scalars.shape, 0.5, dtype=scalars.dtype)

    def run_whole(self, batches: list[tuple[Tensor, ...]]) -> Result:
        tensors, sums, scalars = self.values()
        outputs = []
        for batch in batches:
            copies = [tensor.clone() for tensor in batch]
            if self.training:
                inputs = [*tensors, *sums.values(), scalars, *copies]
                outputs += self.whole.entries["accumulate"].graph(*inputs)
            else:
                outputs += self.whole.entries["infer"].graph(*tensors, *copies)
        return Result(list(outputs), sums, tensors)

    def run_parts(self, batches: list[tuple[Tensor, ...]], ahead: int = 1) -> Result:
        """Run forward of `ahead` micro-batches before their backward, as a pipeline does."""
        tensors, sums, scalars = self.values()
        outputs: list[Tensor] = []
        for start in range(0, len(batches), ahead):
            turn = [Turn(self, tensors, sums, scalars, batch) for batch in batches[start:][:ahead]]
            for one in turn:
                one.run("forward" if self.training else "infer", self.parts)
            for one in turn:
                if self.training:
                    one.run("backward", self.parts[::-1])
                outputs += one.outputs()
        return Result(outputs, sums, tensors)


class Result:
    """All that a step changes or returns."""

    def __init__(
        self, outputs: list[Tensor], sums: dict[str, Tensor], tensors: list[Tensor]
    ) -> None:
        self.outputs, self.sums, self.tensors = outputs, sums, tensors

    def assert_equal(self, other: Result) -> None:
        mine, _ = flatten((self.outputs, list(self.sums.values()), self.tensors))
        theirs, _ = flatten((other.outputs, list(other.sums.values()), other.tensors))
        assert len(mine) == len(theirs)
        names = [f"output {i}" for i in range(len(self.outputs))]
        names += [f"sum of {name}" for name in self.sums]
        names += [f"tensor {i}" for i in range(len(self.tensors))]
        for name, one, two in zip(names, mine, theirs, strict=True):
            assert one.dtype == two.dtype, name
            assert torch.equal(one, two), (name, (one - two).abs().max())


class Turn:
    """One micro-batch on its way through all stages; values go by the names of the interface."""

    def __init__(
        self,
        recorded: Recorded,
        tensors: list[Tensor],
        sums: dict[str, Tensor],
        scalars: Tensor,
        batch: tuple[Tensor, ...],
    ) -> None:
        self.recorded, self.tensors, self.sums, self.scalars = recorded, tensors, sums, scalars
        count = len(recorded.parts)
        self.arguments = [[tensor.clone() for tensor in batch] for _ in range(count)]
        self.received: list[dict[str, Tensor]] = [{} for _ in range(count)]
        self.made: list[dict[str, Tensor]] = [{} for _ in range(count)]

    def run(self, name: str, parts: list[StagePart]) -> None:
        for part in parts:
            entry = part.entries[name]
            for receive in part.receives[name]:
                value = self.received[part.stage][receive.name]
                form = (tuple(value.shape), value.stride(), value.dtype)
                assert form == (receive.shape, receive.stride, receive.dtype), receive
            inputs = [self._find(part.stage, source) for source in entry.inputs]
            for given, like in zip(inputs, entry.entry.inputs, strict=True):
                # Not the dtype: torch's CPU kernel of BatchNorm keeps statistics of half-precision
                # values in float32, its form for shapes (and native code) in half precision.
                assert (given.shape, given.stride()) == (like.shape, like.stride())
            results = entry.entry.graph(*inputs)
            self.made[part.stage].update(zip(entry.results, results, strict=True))
            for send in part.sends[name]:
                for stage in send.to:
                    value = self.made[part.stage][send.name]
                    assert send.name not in self.received[stage], "sent twice"
                    self.received[stage][send.name] = value.clone()
            if name == "forward":
                self.forget(part)

    def forget(self, part: StagePart) -> None:
        """Keep of forward only what the part says that it keeps."""
        stage = part.stage
        final = {*part.kept, *part.outputs.values()}
        self.made[stage] = {n: v for n, v in self.made[stage].items() if n in final}
        self.received[stage] = {n: v for n, v in self.received[stage].items() if n in final}

    def _find(self, stage: int, source: object) -> Tensor:
        if isinstance(source, Bound):
            assert source.index in self.recorded.parts[stage].bound
            return self.tensors[source.index]
        if isinstance(source, Sum):
            assert source.name in self.recorded.parts[stage].parameters
            return self.sums[source.name]
        if isinstance(source, Scalars):
            return self.scalars
        if isinstance(source, Argument):
            return self.arguments[stage][source.index]
        if isinstance(source, Received):
            return self.received[stage][source.name]
        assert isinstance(source, Kept)
        assert source.name in self.recorded.parts[stage].kept
        return {**self.received[stage], **self.made[stage]}[source.name]

    def outputs(self) -> list[Tensor]:
        found = {
            position: self.made[part.stage][name]
            for part in self.recorded.parts
            for position, name in part.outputs.items()
        }
        assert sorted(found) == list(range(len(found)))
        return [found[position] for position in sorted(found)]


def assert_parts_do_the_same(recorded: Recorded, ahead: int = 1) -> None:
    """Compare outputs, gradient sums and buffers of parts in turn with those of the whole."""
    batches = [recorded.micro_batch, *(_other(recorded.micro_batch, seed) for seed in range(3))]
    torch.manual_seed(1)
    expected = recorded.run_whole(batches)
    torch.manual_seed(1)
    recorded.run_parts(batches, ahead).assert_equal(expected)
    assert all(total.abs().sum() > 0 for total in expected.sums.values()), "nothing was learnt"


def _other(batch: tuple[Tensor, ...], seed: int) -> tuple[Tensor, ...]:
    """Return the same rows in another order."""

    def order(tensor: Tensor) -> Tensor:
        return torch.randperm(len(tensor), generator=torch.Generator().manual_seed(seed))

    return tuple(tensor[order(tensor)] for tensor in batch)
