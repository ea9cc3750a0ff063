"""`StageWeights`: tensors of a module that live in other processes, and how they come back."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from torchkiln.core import ExecutableError, OptimizerError
from torchkiln.distributed import Group
from torchkiln.distributed._packed import packed, unpacked
from torchkiln.distributed._transfers import Transfer
from torchkiln.runtime.call._binding import Binding, metadata
from torchkiln.runtime.optim._replicas import described_state, memory_for_state
from torchkiln.torch_internals._modules import buffers_of, parameters_of

if TYPE_CHECKING:
    from torchkiln.runtime.optim._binding import OptimizerBinding
    from torchkiln.runtime.pipeline._parts import StagePart
    from torchkiln.runtime.pipeline._routes import Routes

# What a tensor of a divided module says: who keeps others elsewhere. And where its own values are
# elsewhere: what it was like.
_DIVIDED = "_torchkiln_divided"
_ELSEWHERE = "_torchkiln_elsewhere"


@final
class StageWeights:
    """Keeps parameters and buffers of other stages out of the memory of this process.

    A tensor that is elsewhere has its shape, and NaN for values, or the least number of its dtype:
    whoever reads it by mistake does not get old weights. `state_dict` of its module raises.

    Args:
        binding: The module's tensors.
        parts: Of all stages.
        routes: To them.
        group: All processes.
        optimizer: Whose state belongs to the parameters, whichever it is at the time; None: there
            is none.
    """

    def __init__(
        self,
        binding: Binding,
        parts: Sequence[StagePart],
        routes: Routes,
        group: Group,
        optimizer: OptimizerBinding | None,
    ) -> None:
        self._binding = binding
        self._routes = routes
        self._group = group
        self._optimizer = optimizer
        # Of all programs of this division that ran since it began, with the optimiser that each
        # had when its state was divided.
        self._divided: list[tuple[OptimizerBinding, torch.optim.Optimizer]] = []
        self._hooks: list[RemovableHandle] = []
        count = len(binding.parameters) + len(binding.buffers)
        users: dict[int, list[int]] = {}
        for part in parts:
            for index in part.bound:
                users.setdefault(index, []).append(part.stage)
        # By position of a bound tensor: the stages that use it. Nobody's stay where they are, and
        # so do plain attributes, which are constants.
        self.users = {index: users[index] for index in sorted(users) if index < count}
        own = routes.stage
        self._others = [index for index, stages in self.users.items() if own not in stages]

    def take_place(self) -> None:
        """Make sure that this process has the tensors of its stage, and not those of others.

        Called by all processes, which may have been divided in another way before.
        """
        holder = holder_of(self._binding.module)
        if holder is not None and holder.users != self.users:
            holder.gather()
            holder = None
        if holder is None:
            self._release()
            holder = self
        # It may be another program's: one for inference and one for training divide alike.
        if self._optimizer is not None:
            holder.divide_state(self._optimizer)

    def divide_state(self, binding: OptimizerBinding) -> None:
        """Drop the state that belongs to parameters of other stages, until all gather it."""
        optimizer = binding.optimizer
        known = [place for place, (other, _) in enumerate(self._divided) if other is binding]
        if known and self._divided[known[0]][1] is optimizer:
            return
        for place in known:
            del self._divided[place]
        self._divided.append((binding, optimizer))
        for index in self._others:
            optimizer.state.pop(self._binding.bound[index].tensor, None)
        self._hooks.append(optimizer.register_state_dict_pre_hook(_refuse_state))

    @torch.no_grad()
    def _release(self) -> None:
        # Also where a stage has all weights: it takes part when the others gather them.
        for index in self.users:
            setattr(self._binding.bound[index].tensor, _DIVIDED, self)
        for index in self._others:
            tensor = self._binding.bound[index].tensor
            setattr(tensor, _ELSEWHERE, metadata(tensor))
            tensor.data = _nothing(tensor).expand(tensor.shape)
        elsewhere = {id(self._binding.bound[index].tensor) for index in self._others}
        for name, child in self._binding.module.named_modules():
            held = [*parameters_of(child).items(), *buffers_of(child).items()]
            missing = [key for key, tensor in held if id(tensor) in elsewhere]
            if missing:
                full = f"{name}.{missing[0]}" if name else missing[0]
                refuse = functools.partial(_refuse, full)
                self._hooks.append(child.register_state_dict_pre_hook(refuse))
                self._hooks.append(child.register_load_state_dict_pre_hook(refuse))

    @torch.no_grad()
    def gather(self) -> None:
        """Bring values, and the optimiser's state for them, from all stages to all processes.

        Called by all processes. Until the next call of the program each has the whole model.

        Raises:
            DistributedError: One of them is lost.
        """
        for index in self._others:
            tensor = self._binding.bound[index].tensor
            shape, stride, dtype, device = getattr(tensor, _ELSEWHERE)
            tensor.data = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        by_stage: dict[int, list[Tensor]] = {}
        for index, stages in self.users.items():
            by_stage.setdefault(stages[0], []).append(self._binding.bound[index].tensor)
        self._exchange(by_stage)
        # A program may have another optimiser by now, to which its state has moved.
        for optimizer in {id(b.optimizer): b.optimizer for b, _ in self._divided}.values():
            self._exchange(self._state_by_stage(optimizer))
        self._divided.clear()
        for index in self._others:
            delattr(self._binding.bound[index].tensor, _ELSEWHERE)
        for index in self.users:
            delattr(self._binding.bound[index].tensor, _DIVIDED)
        while self._hooks:
            self._hooks.pop().remove()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be copied or written to a file with a tensor whose values are elsewhere."""
        index = next(iter([*self._others, *self.users]))
        _refuse(self._binding.bound[index].name, self._binding.module)

    def _state_by_stage(self, optimizer: torch.optim.Optimizer) -> dict[int, list[Tensor]]:
        """Return the optimiser's state tensors by the stage that has values, with room for them."""
        params = {
            index: bound.tensor
            for index, bound in enumerate(self._binding.parameters)
            if index in self.users
        }
        own = {index: described_state(optimizer.state.get(p) or {}) for index, p in params.items()}
        told = self._group.gather(own)
        by_stage: dict[int, list[Tensor]] = {}
        for index, param in params.items():
            stage = self.users[index][0]
            forms = told[self._routes.rank_of(stage)][index]
            if stage == self._routes.stage:
                state = dict(optimizer.state.get(param) or {})
            else:
                state = {name: memory_for_state(form, param) for name, form in forms.items()}
                if state:
                    optimizer.state[param] = state
            tensors = [value for value in state.values() if isinstance(value, Tensor)]
            by_stage.setdefault(stage, []).extend(tensors)
        return by_stage

    def _exchange(self, by_stage: dict[int, list[Tensor]]) -> None:
        """Give the tensors of each stage to all others of this pipeline."""
        routes = self._routes
        for stage in range(routes.num_stages):
            for some, row in packed(by_stage.get(stage, [])):
                if stage != routes.stage:
                    unpacked(routes.hear(row, stage).wait(), some)
                    continue
                told: list[Transfer] = [
                    routes.tell(row, other) for other in range(routes.num_stages) if other != stage
                ]
                for transfer in told:
                    transfer.wait()


def holder_of(module: nn.Module) -> StageWeights | None:
    """Return who keeps some of the module's tensors elsewhere; None: it is not divided."""
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        holder: StageWeights | None = getattr(tensor, _DIVIDED, None)
        if holder is not None:
            return holder
    return None


def gather_weights(module: nn.Module) -> None:
    """Give every process the present weights, buffers and optimiser state of all stages.

    Called by all processes that train the module. If it is not divided, nothing happens.

    Raises:
        DistributedError: One of them is lost.
    """
    holder = holder_of(module)
    if holder is not None:
        holder.gather()


def _nothing(tensor: Tensor) -> Tensor:
    """Return a number that nobody takes for a weight."""
    if tensor.is_floating_point() or tensor.is_complex():
        value: Any = float("nan")
    else:
        value = False if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).min
    return torch.full((), value, dtype=tensor.dtype, device=tensor.device)


def _refuse_state(optimizer: torch.optim.Optimizer) -> None:
    raise OptimizerError(
        "this process has the optimiser's state of its own stage alone; call "
        "program.gather_weights() on all ranks first: until the next call of the program, each of "
        "them has the whole state"
    )


def _refuse(name: str, module: nn.Module, *_: Any) -> None:
    raise ExecutableError(
        f"the values of {name!r} are in the process that runs its stage; call "
        "program.gather_weights() on all ranks first: until the next call of the program, each of "
        "them has the whole model"
    )
