"""Parts of torch's library of functions that have no public name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint as torch_checkpoint

# torch: the CTC loss before its reduction, with the table of forward variables, and its gradient
# from both. for: `static_ctc_loss`, whose shapes do not depend on the targets' lengths.
ctc_forward = torch._ctc_loss
ctc_backward = torch.ops.aten._ctc_loss_backward.Tensor


def checks_arguments(kind: Any) -> bool:
    """Whether new distributions check their arguments; `kind` is torch's class `Distribution`.

    torch: `set_default_validate_args` sets `Distribution._validate_args`, and nothing reads it.
    for: the checks read values, so they are off while a program is recorded, and put back.
    """
    return bool(kind._validate_args)


@contextlib.contextmanager
def checkpoint_contexts_replaced(
    replace: Callable[[Callable[[], tuple[Any, Any]]], Callable[[], tuple[Any, Any]]],
) -> Iterator[None]:
    """Let `replace(context_fn)` give the contexts of blocks that are checkpointed meanwhile.

    Blocks that do not keep the random state, and those in debug mode, keep their contexts.

    torch: `checkpoint(use_reentrant=False)` runs `_checkpoint_without_reentrant_generator`, which
        takes `context_fn` third: contexts for the forward and for the recomputation.
    for: dropout draws the same mask in backward as in forward.
    """
    original = torch_checkpoint._checkpoint_without_reentrant_generator

    def generator(
        function: Callable[..., Any],
        preserve_rng_state: bool,
        context_fn: Callable[[], tuple[Any, Any]],
        determinism_check: str,
        debug: bool,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if preserve_rng_state and not debug:
            context_fn = replace(context_fn)
        return original(
            function, preserve_rng_state, context_fn, determinism_check, debug, *args, **kwargs
        )

    with mock.patch.object(torch_checkpoint, "_checkpoint_without_reentrant_generator", generator):
        yield
