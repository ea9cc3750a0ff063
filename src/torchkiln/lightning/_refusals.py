"""What Lightning offers and a compiled step cannot do: errors that say what to do instead."""

from __future__ import annotations

import inspect
from typing import Any

import lightning.pytorch as pl

from torchkiln.core import Options, OptionsError

# Hooks between the parts of a step: a program has no such places.
_HOOKS = (
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
)
_METHODS = (
    *_HOOKS,
    "backward",
    "configure_gradient_clipping",
    "optimizer_step",
    "optimizer_zero_grad",
)


def check_options(options: Options) -> None:
    """Refuse options that make Lightning count or log something else than what happened."""
    for name in ("device_iterations", "gradient_accumulation", "replication_factor"):
        if getattr(options, name) != 1:
            raise OptionsError(
                f"Options({name}={getattr(options, name)}) under Lightning: one batch of the "
                "trainer is one update, or its counts of steps were wrong; leave it at 1, and use "
                "larger batches, or torchkiln.training.Trainer"
            )
    if options.num_processes != 1 or options.pipeline is not None:
        raise OptionsError(
            "TorchkilnStrategy trains in one process; use torchkiln.training.Trainer for several"
        )


def check_fit(trainer: pl.Trainer, module: pl.LightningModule) -> None:
    """Refuse what training through a compiled step would silently do differently."""
    if not module.automatic_optimization:
        raise OptionsError(
            "manual optimisation runs Python code between forward, backward and update, which a "
            "compiled step does not have; set self.automatic_optimization = True and return the "
            "loss, or train with strategy='auto'"
        )
    if len(trainer.optimizers) != 1:
        raise OptionsError(
            f"configure_optimizers returned {len(trainer.optimizers)} optimisers; a compiled step "
            "has one: put the parameters into groups of one optimiser"
        )
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        raise OptionsError(
            "training_step takes dataloader_iter and so reads its batches itself, which a compiled "
            "step would do only once; write training_step(self, batch, batch_idx)"
        )
    if getattr(module, "_compiler_ctx", None) is not None:
        raise OptionsError(
            "the module went through torch.compile, and the whole step is compiled anyway; pass "
            "the module itself to fit"
        )
    if trainer.world_size != 1:
        raise OptionsError(
            f"TorchkilnStrategy trains in one process, and the trainer has {trainer.world_size} "
            "devices; use Trainer(devices=1), or torchkiln.training.Trainer for several processes"
        )
    if trainer.precision != "32-true":
        raise OptionsError(
            f"Trainer(precision={trainer.precision!r}) is not compiled; use "
            "TorchkilnStrategy(Options(precision='bfloat16')) and leave out precision="
        )
    if trainer._detect_anomaly:
        raise OptionsError(
            "detect_anomaly looks at PyTorch's backward, which a compiled step does not run; use "
            "TorchkilnStrategy(Options(check_finite=True))"
        )
    check_accumulation(trainer)
    _check_clipping(trainer)
    _check_overridden(trainer, module)


def check_accumulation(trainer: pl.Trainer) -> None:
    """Refuse updates that are not made after each batch; callbacks may ask for them at any time."""
    if trainer.accumulate_grad_batches != 1:
        raise OptionsError(
            f"accumulate_grad_batches={trainer.accumulate_grad_batches}: a compiled step updates "
            "the weights after each batch; use 1, and larger batches"
        )


def _check_clipping(trainer: pl.Trainer) -> None:
    if trainer.gradient_clip_val and (trainer.gradient_clip_algorithm or "norm") != "norm":
        raise OptionsError(
            "gradient_clip_algorithm='value' is not compiled; use 'norm', or clip inside "
            "training_step with a custom autograd function"
        )


def _check_overridden(trainer: pl.Trainer, module: pl.LightningModule) -> None:
    for name in _METHODS:
        if _is_own(module, name, pl.LightningModule):
            raise _hook_error(type(module).__name__, name)
    for callback in trainer.callbacks:
        for name in _HOOKS:
            if _is_own(callback, name, pl.Callback):
                raise _hook_error(type(callback).__name__, name)


def _is_own(owner: Any, name: str, base: type) -> bool:
    """Whether the object has another method of that name than the one that does nothing."""
    return getattr(getattr(owner, name), "__func__", None) is not getattr(base, name)


def _hook_error(owner: str, name: str) -> OptionsError:
    return OptionsError(
        f"{owner}.{name} runs between forward and update, and a compiled step has no such place; "
        "move it to on_train_batch_start or on_train_batch_end, or train with strategy='auto'"
    )
