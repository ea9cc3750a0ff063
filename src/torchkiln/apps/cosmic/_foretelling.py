"""The mode fit: how much memory a training step needs, and where to cut it into stages."""

from __future__ import annotations

import psutil
import torch

from torchkiln.apps.cosmic._devices import NETWORK, CompiledDevice, MakeDevice
from torchkiln.apps.cosmic._settings import ComputeMode, Settings
from torchkiln.apps.cosmic._tagger import TaggerWithLoss, make_tagger
from torchkiln.core import OptionsError
from torchkiln.core._progress import say
from torchkiln.core._sizes import parse_size
from torchkiln.datasets.cosmic import NUM_PLANES, NUM_TICKS, NUM_WIRES
from torchkiln.profiling.graph._module_times import module_times
from torchkiln.report._memory_verdict import available_bytes, print_memory_report
from torchkiln.report._stage_verdict import print_stage_plan
from torchkiln.runtime import Program
from torchkiln.runtime._staging import StagePlan
from torchkiln.training._ranks import Ranks


def foretell_memory(
    settings: Settings, make_ipu: MakeDevice = CompiledDevice, ranks: Ranks | None = None
) -> bool:
    """Say how much memory a training step needs, and what helps if that is too much.

    Returns:
        Whether that is there.

    Raises:
        OptionsError: The compute mode has no static program, whose memory could be foretold.
    """
    return (ranks or Ranks()).first_does("plan a step", lambda: _foretell_memory(settings))


def _foretell_memory(settings: Settings) -> bool:
    if settings.run.compute_mode is not ComputeMode.IPU:
        raise OptionsError(
            f"mode=fit needs run.compute_mode=IPU: the memory of plain PyTorch "
            f"({settings.run.compute_mode.name}) is only known after it ran"
        )
    mode = settings.mode
    limit_bytes = available_bytes()
    if mode.memory_limit is not None:
        # A limit counts Python and its libraries; what is available does not: they run already.
        limit_bytes = max(parse_size(mode.memory_limit) - psutil.Process().memory_info().rss, 0)
    device = CompiledDevice(settings)
    module = TaggerWithLoss(make_tagger(settings), mode.optimizer.loss_balance_scheme).train()
    size = settings.run.minibatch_size * mode.optimizer.gradient_accumulation
    rule = device.make_optimizer(
        mode.optimizer.name, module.parameters(), mode.optimizer.learning_rate
    )
    program = device.make_program(module, rule)
    if mode.stages is not None:
        return _foretell_stages(settings, program, mode.stages, limit_bytes)
    images, labels = _batch(settings, size)
    return print_memory_report(program.memory_report(images, labels), limit_bytes)


def _foretell_stages(
    settings: Settings, program: Program, num_stages: int, limit_bytes: int
) -> bool:
    mode = settings.mode
    # A plan looks at one micro-batch of the least accumulation that keeps the stages at work.
    images, labels = _batch(
        settings, settings.run.minibatch_size * mode.optimizer.gradient_accumulation
    )
    is_per_process = mode.memory_limit is not None
    plan = program.plan_stages(
        num_stages,
        (images, labels),
        measured=None if mode.profile is None else module_times(mode.profile),
        limit_bytes=limit_bytes if is_per_process else None,
    )
    return print_stage_plan(
        plan, limit_bytes, is_per_process=is_per_process, lines=_lines(settings, plan)
    )


def _batch(settings: Settings, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return as many images as an update has, with their labels; all are zero."""
    height, width = (side // settings.data.downsample for side in (NUM_TICKS, NUM_WIRES))
    say(f"planning a step with {size} images of 3 planes of {height} x {width}: about a minute")
    images = torch.zeros(size, NUM_PLANES, height, width)
    return images, torch.zeros_like(images, dtype=torch.uint8)


def _lines(settings: Settings, plan: StagePlan) -> list[str]:
    """Return the settings that divide the network as a plan says.

    Raises:
        OptionsError: A stage begins behind the network, where settings cannot let one begin.
    """
    # Whatever comes before the network belongs to the first stage.
    names = ["first", *(name.removeprefix(NETWORK) for name in plan.pipeline[1:])]
    if not all(name.startswith(NETWORK) for name in plan.pipeline[1:]):
        raise OptionsError(
            f"a stage would begin with {plan.pipeline[-1]}, behind the network; use fewer "
            "mode.stages"
        )
    lines = [f"  run.pipeline={','.join(names)}"]
    if plan.adds_recomputation:
        lines[0] += " run.recompute=auto"
    if plan.gradient_accumulation > settings.mode.optimizer.gradient_accumulation:
        lines[0] += f" mode.optimizer.gradient_accumulation={plan.gradient_accumulation}"
    start = f"torchrun --standalone --nproc-per-node {len(names)} -m torchkiln bench cosmic"
    return [*lines, f"and start it with {start}"]
