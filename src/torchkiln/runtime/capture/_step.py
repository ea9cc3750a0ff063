"""The step as one function of tensors: what is captured, compiled and run.

`StepFunction` is written once. The eager backend calls it on real tensors; capture calls it once
on tensors without values and records it. Its inputs, in order: the module's tensors, optimiser
state, gradient accumulators, hyper-parameter tables, the micro-batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from torchkiln.core import CaptureError, Options, Precision, Reduction
from torchkiln.data import flatten
from torchkiln.data._structure import ConstantNode, MappingNode, Node, SequenceNode
from torchkiln.runtime.call._binding import Binding, current_buffers, stand_ins
from torchkiln.runtime.call._signature import Signature
from torchkiln.runtime.capture._losses import LossRecorder, find_loss
from torchkiln.runtime.optim._arrangement import Arrangement
from torchkiln.runtime.optim._state_dtypes import HALVES, widened
from torchkiln.runtime.optim._tables import (
    inverse_scale,
    limit_of_norm,
    scalars_of,
    share_of_micro_batch,
)
from torchkiln.runtime.optim._update_rules import LAMBRule
from torchkiln.runtime.passes._origins import updating
from torchkiln.runtime.recompute._choice import Survey, surveyed
from torchkiln.runtime.recompute._modules import recomputed
from torchkiln.torch_internals._fake_tensors import FakeTensor
from torchkiln.torch_internals._tensors import is_view, storage_key

# What has a `__dict__`, but cannot be where a forward leaves its results.
_WITHOUT_RESULTS = (type, ModuleType, FunctionType)
_DTYPES = {Precision.BFLOAT16: torch.bfloat16, Precision.FLOAT16: torch.float16}

_forward_depth = 0


def is_inside_program() -> bool:
    """Whether Python code is the forward (or backward) of a program at this moment.

    So it is while a program records its step, and in every call of the eager backend; compiled
    calls run no Python.
    """
    return _forward_depth > 0


@contextlib.contextmanager
def _inside_forward() -> Iterator[None]:
    global _forward_depth
    _forward_depth += 1
    try:
        yield
    finally:
        _forward_depth -= 1


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """What a run of the step gave, and what only the run could tell."""

    # In memory of their own, anchored tensors last.
    outputs: list[Tensor]
    # The structure that forward returned.
    node: Node
    # Names of the buffers that forward replaced by new tensors.
    reassigned: list[str]
    # Of every trainable parameter; None where the loss does not reach it. Empty without training.
    gradients: tuple[Tensor | None, ...] = ()
    # What is trained on, and the names of torch's loss functions that forward called.
    loss: Tensor | None = None
    loss_functions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class StepFunction:
    """Forward, loss and backward of one micro-batch, on explicit tensors."""

    forward: Callable[..., Any]
    binding: Binding
    signature: Signature
    options: Options
    training: bool
    # Tensors that are kept beside the outputs: the loss, or gradients by the name of a parameter.
    anchors: tuple[str, ...] = ()
    # Names of the modules that compute their intermediates again in backward.
    recompute: tuple[str, ...] = ()
    # How the bar of its build calls it.
    name: str = "program"

    @contextlib.contextmanager
    def _inside(self, tensors: list[Tensor]) -> Iterator[LossRecorder]:
        """Let the user's code see stand-ins for the module's tensors.

        Backward belongs inside too: a checkpointed block runs again there, and so do hooks.
        """
        with (
            stand_ins(self.binding, tensors),
            recomputed(self.binding.module, self.recompute),
            _inside_forward(),
            LossRecorder() as recorder,
        ):
            yield recorder

    def _run_forward(
        self, tensors: list[Tensor], batch: list[Tensor], recorder: LossRecorder
    ) -> tuple[list[Tensor], Node, Tensor | None]:
        """Return the outputs, in memory of their own, their structure, and the loss."""
        args, kwargs = self.signature.arguments(batch)
        with self._autocast(tensors, batch), torch.enable_grad():
            result = self.forward(*args, **kwargs)
        self._refuse_new_parameters(tensors)
        outputs, node = flatten(result, "output")
        _refuse_opaque(node)
        loss = find_loss(recorder, outputs) if self.training else None
        return _own(outputs, [*tensors, *batch]), node, loss

    def _autocast(self, tensors: list[Tensor], batch: list[Tensor]) -> Any:
        dtype = _DTYPES.get(self.options.precision) if self.options.precision else None
        if dtype is None:
            return contextlib.nullcontext()
        device = next((t.device.type for t in [*tensors, *batch]), "cpu")
        return torch.autocast(device, dtype=dtype, cache_enabled=False)

    def _keep_buffers(self, tensors: list[Tensor]) -> list[str]:
        """Write a buffer that forward replaced by another tensor back into the original."""
        start = len(self.binding.parameters)
        own = {_storage(tensor) for tensor in tensors}
        names, values = [], []
        for offset, now in enumerate(current_buffers(self.binding)):
            bound, before = self.binding.buffers[offset], tensors[start + offset]
            if now is before:
                continue
            if now is None:
                raise CaptureError(
                    f"buffer {bound.name!r} is removed from the model by forward; set it to zero "
                    "instead"
                )
            if now.shape != before.shape or now.dtype != before.dtype:
                raise CaptureError(
                    f"buffer {bound.name!r} is reassigned within the model with another shape or "
                    f"dtype ({tuple(before.shape)} {before.dtype} -> {tuple(now.shape)} "
                    f"{now.dtype}); keep its size fixed"
                )
            # Forward may have swapped two buffers: read both before writing one.
            value = now.detach()
            values.append((before, value.clone() if _storage(now) in own else value))
            names.append(bound.name)
        with torch.no_grad():
            for before, value in values:
                before.copy_(value)
        return names

    def _refuse_new_parameters(self, tensors: list[Tensor]) -> None:
        for bound, tensor in zip(self.binding.parameters, tensors, strict=False):
            place = bound.places[0]
            if place.holder.get(place.key) is not tensor:
                raise CaptureError(
                    f"parameter {bound.name!r} is reassigned within the model; change it in place "
                    "under torch.no_grad(), or make it a buffer"
                )

    def survey(self, tensors: list[Tensor], batch: list[Tensor]) -> Survey:
        """Run forward and tell what autograd would keep of it."""
        args, kwargs = self.signature.arguments(batch)
        with (
            self._inside(tensors),
            surveyed(self.binding.module, [*tensors, *batch]) as survey,
            self._autocast(tensors, batch),
            torch.enable_grad(),
        ):
            self.forward(*args, **kwargs)
        return survey

    def infer(self, tensors: list[Tensor], batch: list[Tensor]) -> StepResult:
        """Run forward."""
        with self._inside(tensors) as recorder:
            outputs, node, _ = self._run_forward(tensors, batch, recorder)
            reassigned = self._keep_buffers(tensors)
        return StepResult(outputs, node, reassigned)

    def gradients(
        self, tensors: list[Tensor], batch: list[Tensor], scale: Tensor | None
    ) -> StepResult:
        """Run forward and backward, the loss multiplied with `scale`."""
        with self._inside(tensors) as recorder:
            outputs, node, loss = self._run_forward(tensors, batch, recorder)
            assert loss is not None
            grads = self._differentiate(loss, self.trainable(tensors), scale)
            # Last: backward may need the values that forward replaced.
            reassigned = self._keep_buffers(tensors)
        kept = [*outputs, *self._anchored(loss, grads, scale)]
        return StepResult(kept, node, reassigned, grads, loss, tuple(recorder.functions))

    @staticmethod
    def _differentiate(
        loss: Tensor, trainable: list[Tensor], scale: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of the loss multiplied with `scale`; None where it does not reach.

        Of frozen parameters, and of a loss that is computed without gradients, there are none.
        """
        if not loss.requires_grad or not trainable:
            return (None,) * len(trainable)
        # The loss may be a vector: a gradient of ones sums it.
        seed = torch.ones_like(loss)
        if scale is not None:
            seed = seed * scale.to(seed.dtype)
        return torch.autograd.grad(loss, trainable, grad_outputs=seed, allow_unused=True)

    def trainable(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return the stand-ins of parameters that require a gradient."""
        count = len(self.binding.parameters)
        return [tensor for tensor in tensors[:count] if tensor.requires_grad]

    def trainable_names(self) -> list[str]:
        return [bound.name for bound in self.binding.parameters if bound.tensor.requires_grad]

    def _anchored(
        self, loss: Tensor, grads: tuple[Tensor | None, ...], scale: Tensor | None
    ) -> list[Tensor]:
        """Return the anchored tensors: the loss, and gradients of it without its scale."""
        by_name = dict(zip(self.trainable_names(), grads, strict=True))
        kept = []
        for anchor in self.anchors:
            value = loss if anchor == "loss" else by_name.get(anchor.removeprefix("Gradient___"))
            if value is None:
                raise CaptureError(
                    f"there is no tensor {anchor!r} to anchor; tensor_names() lists those that are"
                )
            if value is loss or scale is None:
                kept.append(value.detach().clone())
            else:
                kept.append((widened(value.detach()) / scale).to(value.dtype))
        return kept


def apply_update(
    arrangement: Arrangement,
    options: Options,
    params: list[Tensor],
    gradients: list[Tensor | None],
    state: list[dict[str, Tensor]],
    tables: list[Tensor],
    norm: Tensor | None = None,
) -> list[Tensor]:
    """Change parameters and optimiser state in place from (summed) gradients; None skips one.

    Args:
        arrangement: Of the parameters.
        options: Of the program.
        params: The parameters.
        gradients: Of each of them.
        state: Of each of them.
        tables: The numbers of the update.
        norm: Of all gradients together, if these parameters are parts of others. None: they are
            whole.

    Returns:
        Of parts, for each one that changes as a whole, where it goes; it is not changed here.
    """
    *hyper, global_scalars = tables
    recipe = arrangement.recipe
    grads = {member: grad for member, grad in enumerate(gradients) if grad is not None}
    directions: list[Tensor] = []

    def change(function: Callable[[Tensor], Tensor]) -> None:
        for member, grad in grads.items():
            with updating(arrangement.names[member]):
                grads[member] = function(grad)

    with torch.no_grad():
        if options.reduction is Reduction.MEAN and options.total_micro_batches_per_update > 1:
            # Sums in half precision are means already, see `Entries.accumulate`.
            change(lambda grad: grad if grad.dtype in HALVES else _mean(grad, global_scalars))
        change(widened)
        if recipe.scales_loss:
            inverse = inverse_scale(global_scalars)
            change(lambda grad: grad * inverse.to(grad.dtype))
        if recipe.clips and grads:
            factor = _clip_factor(grads, limit_of_norm(global_scalars), norm)
            change(lambda grad: grad * factor.to(grad.dtype))
        for row, scalars in zip(arrangement.rows, scalars_of(arrangement, hyper), strict=True):
            rule = recipe.rules[row.group]
            used = scalars[: rule.num_hyper]
            for member in row.members:
                if member in grads:
                    with updating(arrangement.names[member]):
                        own = params[member], grads[member], state[member], used
                        if norm is not None and isinstance(rule, LAMBRule):
                            directions.append(rule.direction(*own))
                        else:
                            rule.update(*own)
    return directions


def _mean(total: Tensor, scalars: Tensor) -> Tensor:
    """Return a sum over micro-batches as their mean.

    How many there are is an input, so accumulation, replicas and processes never recompile.
    """
    return total * share_of_micro_batch(scalars, total.dtype)


def _clip_factor(grads: dict[int, Tensor], limit: Tensor, norm: Tensor | None) -> Tensor:
    """Return what makes the joint norm of gradients at most `limit`, as `clip_grad_norm_` does."""
    if norm is None:
        norms = [torch.linalg.vector_norm(grad.to(limit.dtype)) for grad in grads.values()]
        norm = torch.linalg.vector_norm(torch.stack(norms))
    return torch.clamp(limit / (norm + 1e-6), max=1.0)


def _refuse_opaque(node: Node) -> None:
    """Raise if an object hides recorded tensors: nobody would ever fill in their values."""
    if isinstance(node, SequenceNode | MappingNode):
        for child in node.children:
            _refuse_opaque(child)
    elif isinstance(node, ConstantNode) and _hides_tensors(node.value, set()):
        kind = type(node.value).__name__
        raise CaptureError(
            f"{node.path} is a {kind} that holds tensors; return them in a tuple, list or dict, or "
            f"call register_container({kind}, ...) to let programs look inside"
        )


def _hides_tensors(value: Any, seen: set[int]) -> bool:
    """Whether recorded tensors lie in attributes of an object, at any depth."""
    if id(value) in seen or isinstance(value, _WITHOUT_RESULTS):
        return False
    seen.add(id(value))
    for entry in getattr(value, "__dict__", {}).values():
        tensors, node = flatten(entry)
        if any(isinstance(tensor, FakeTensor) for tensor in tensors):
            return True
        # Modules that an object only knows hold stand-ins until forward is recorded.
        inside = (one for one in _constants(node) if not isinstance(one, nn.Module))
        if any(_hides_tensors(one, seen) for one in inside):
            return True
    return False


def _constants(node: Node) -> Iterator[Any]:
    if isinstance(node, SequenceNode | MappingNode):
        for child in node.children:
            yield from _constants(child)
    elif isinstance(node, ConstantNode):
        yield node.value


def _own(outputs: list[Tensor], foreign: list[Tensor]) -> list[Tensor]:
    """Return outputs that share no memory with inputs, weights or each other.

    The update changes weights in place, and a caller may write into what it was given.
    """
    taken = {_storage(tensor) for tensor in foreign}
    owned = []
    for output in outputs:
        # Views of an intermediate are copied too: native code returns whole buffers.
        shares = _storage(output) in taken or is_view(output)
        result = output.detach().clone() if shares else output.detach()
        taken.add(_storage(result))
        owned.append(result)
    return owned


def _storage(tensor: Tensor) -> int:
    return storage_key(tensor)


# The functions that call the module's forward, and that run backward: what runs inside them is the
# user's model.
FORWARD_CODE = StepFunction._run_forward.__code__
BACKWARD_CODE = StepFunction.gradients.__code__
