"""Which stage of a pipeline each node of a graph belongs to, noted while it is recorded.

A node of forward belongs to the block that began last. A node of backward belongs to the stage of
the operation that it differentiates: autograd numbers both alike. What is added to the sum of a
parameter's gradients belongs to the parameter.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any
from unittest import mock

import torch
from torch import fx, nn

from torchkiln.core import CaptureError, OptionsError
from torchkiln.runtime.passes._origins import Phase, following_modules, parameter_in_work
from torchkiln.torch_internals._autograd import backward_functions, last_sequence_number
from torchkiln.torch_internals._fx import nodes_given_to

_KEY = "torchkiln_stage"
_SOME = 8


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of a pipeline in order, each with the names of its blocks.

    A block begins where the module of that name is called, or where forward calls
    `torchkiln.begin_block` with that name. What runs before the first block belongs to stage 0.
    """

    blocks: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        seen: dict[str, int] = {}
        for stage, names in enumerate(self.blocks):
            if not names:
                raise OptionsError(
                    f"stage {stage} of the pipeline names no block; name one, or leave it out"
                )
            for name in names:
                if seen.setdefault(name, stage) != stage:
                    raise OptionsError(
                        f"the pipeline names the block {name!r} in stage {seen[name]} and in stage "
                        f"{stage}; a block belongs to one stage"
                    )

    @property
    def num_stages(self) -> int:
        """How many there are."""
        return len(self.blocks)

    def stage_of(self, block: str) -> int | None:
        """Return the stage that a block belongs to; None if no stage names it."""
        for stage, names in enumerate(self.blocks):
            if block in names:
                return stage
        return None

    def divided(self, modules: Iterable[str]) -> set[str]:
        """Return those of the named modules inside which a block begins."""
        names = [name for names in self.blocks for name in names]
        return {
            module
            for module in modules
            if any(not module or name.startswith(f"{module}.") for name in names)
        }


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a node belongs.

    Args:
        stage: Of the operation that was recorded, or of the one that it differentiates.
        phase: When it was recorded; `UPDATE` is what belongs neither to forward nor to backward.
        parameter: Whose gradient is added up; "" for everything else.
    """

    stage: int
    phase: Phase
    parameter: str = ""


def mark_of(node: fx.Node) -> Mark | None:
    """Return where a node belongs; None for a node that a pass put in."""
    found: Mark | None = node.meta.get("custom", {}).get(_KEY)
    return found


class _Recorder:
    """Follows a recording, and knows the stage of the node that comes next."""

    def __init__(self, stages: Stages, forward: CodeType) -> None:
        self.stages = stages
        self.phase = Phase.FORWARD
        self.stage = 0
        self.begun: dict[str, int] = {}
        self._forward = forward
        # The stages of forward's operations, by the number that autograd gave to them.
        self._by_number: dict[int, int] = {}
        # The stage of what is being differentiated, and of what is being repeated.
        self._differentiated: int | None = None
        self.repeated: int | None = None

    def begin(self, block: str, stage: int) -> None:
        """Let what comes next belong to a stage."""
        if self.phase is not Phase.FORWARD:
            return  # forward is repeated
        if stage < self.stage:
            before = next((b for b, s in self.begun.items() if s == self.stage), "")
            raise CaptureError(
                f"block {block!r} of stage {stage} begins after block {before!r} of stage "
                f"{self.stage}; stages run in their order, each in one piece: list the blocks in "
                "the order in which forward calls them, or put these two into one stage"
            )
        self.stage = stage
        self.begun.setdefault(block, stage)

    def note(self, node: fx.Node) -> None:
        """Mark a node that was just recorded."""
        if node.op == "call_function":
            custom = node.meta.get("custom", {})
            node.meta["custom"] = {**custom, _KEY: self._mark()}

    def _mark(self) -> Mark:
        if self.phase is Phase.FORWARD:
            # Operations that autograd does not record see the number of the one before.
            self._by_number.setdefault(last_sequence_number(), self.stage)
            phase = Phase.FORWARD if self.is_in_forward() else Phase.UPDATE
            return Mark(self.stage, phase)
        if self.phase is Phase.UPDATE:
            return Mark(self.stage, Phase.UPDATE, parameter_in_work())
        if self.repeated is not None:
            return Mark(self.repeated, Phase.BACKWARD)
        of = self._differentiated
        return Mark(self.stage if of is None else of, Phase.BACKWARD)

    def differentiating(self, outputs: Any) -> None:
        """Listen to the backward functions of `outputs`, each of which will say what it is."""
        for function, number in backward_functions(outputs).items():

            def begin(gradients: Any, number: int = number) -> None:
                self._differentiated = self._by_number.get(number, self._differentiated)

            function.register_prehook(begin)

    def is_in_forward(self) -> bool:
        """Whether the caller was called by forward."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code is not self._forward:
            frame = frame.f_back  # type: ignore[assignment]
        return frame is not None


# Follows what is being recorded in stages.
_recorder: _Recorder | None = None


@contextlib.contextmanager
def recorded_stages(module: nn.Module, stages: Stages, forward: CodeType) -> Iterator[None]:
    """Mark the nodes that are recorded meanwhile with their stages.

    Args:
        module: Whose step is recorded.
        stages: That it is cut into.
        forward: The code of the function that calls the module's forward.

    Raises:
        CaptureError: if blocks do not begin in the order of the stages, or not at all.
    """
    global _recorder
    gradients = torch.autograd.grad
    recorder = _Recorder(stages, forward)

    @contextlib.contextmanager
    def enter(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        stage = stages.stage_of(name)
        if stage is not None:
            recorder.begin(name, stage)
        yield

    def grad(*args: Any, **kwargs: Any) -> Any:
        # A gradient that forward itself takes (forces of a potential) is part of forward.
        if recorder.phase is not Phase.FORWARD or recorder.is_in_forward():
            return gradients(*args, **kwargs)
        recorder.phase = Phase.BACKWARD
        recorder.differentiating(args[0] if args else kwargs["outputs"])
        result = gradients(*args, **kwargs)
        recorder.phase = Phase.UPDATE
        return result

    before, _recorder = _recorder, recorder
    try:
        with (
            nodes_given_to(recorder.note),
            following_modules(module, enter),
            mock.patch.object(torch.autograd, "grad", grad),
        ):
            yield
    finally:
        _recorder = before
    _check_blocks(module, recorder)


def _check_blocks(module: nn.Module, recorder: _Recorder) -> None:
    """Raise if a name means nothing, or if a stage never began."""
    known = [name for name, _ in module.named_modules() if name]
    for stage, names in enumerate(recorder.stages.blocks):
        for name in names:
            if name not in recorder.begun and name not in known:
                raise CaptureError(
                    f"stage {stage} of the pipeline names the block {name!r}, but "
                    f"{type(module).__name__} has no module of that name, and forward calls no "
                    f"begin_block({name!r}); its modules are {_some(known)}"
                )
        if not any(name in recorder.begun for name in names):
            raise CaptureError(
                f"stage {stage} of the pipeline has no work: forward calls none of its blocks "
                f"({_some(names)}); name modules that forward calls (not a list that holds them), "
                "or leave the stage out"
            )


def _some(names: Any) -> str:
    shown = ", ".join(repr(name) for name in list(names)[:_SOME])
    return f"{shown}, ..." if len(names) > _SOME else shown


def begin_block(block: str | int) -> None:
    """Let what forward computes from here on belong to a block of a pipeline.

    `Options.pipeline` says in which stage the block runs. In a program without stages this does
    nothing.

    Args:
        block: Its name; a number counts as its digits.

    Raises:
        CaptureError: if no stage names the block, or if an earlier stage does.
    """
    if _recorder is None:
        return
    stage = _recorder.stages.stage_of(str(block))
    if stage is None:
        names = [name for names in _recorder.stages.blocks for name in names]
        raise CaptureError(
            f"forward begins the block {str(block)!r}, which no stage of the pipeline names; add "
            f"it to one of them (they name {_some(names)})"
        )
    _recorder.begin(str(block), stage)


class Region:
    """A part of forward that backward will repeat: which stage it belongs to."""

    def __init__(self) -> None:
        self._stage: int | None = None

    def begin(self) -> None:
        """Note the stage that the part begins in."""
        if _recorder is not None:
            self._stage = _recorder.stage

    def end(self) -> None:
        """Look whether the part lies in one stage.

        Raises:
            CaptureError: if it does not.
        """
        if _recorder is None or _recorder.phase is not Phase.FORWARD:
            return
        if self._stage not in (None, _recorder.stage):
            raise CaptureError(
                f"a part of forward that is recomputed as a whole begins in stage {self._stage} "
                f"of the pipeline and ends in stage {_recorder.stage}, so neither of them could "
                "repeat it; let recompute (or torch.utils.checkpoint) cover modules that lie "
                "inside one stage"
            )

    @contextlib.contextmanager
    def repeated(self) -> Iterator[None]:
        """Enter while backward repeats the part."""
        recorder = _recorder
        if recorder is None:
            yield
            return
        before, recorder.repeated = recorder.repeated, self._stage
        try:
            yield
        finally:
            recorder.repeated = before
