"""Blocks: named parts of a model. They change no value; their structure is checked and kept."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from torch import nn

from poptorch import _context
from poptorch._errors import Error
from torchkiln.torch_internals._modules import children_of, class_name_of, forward_pre_hooks_of

BlockId = str


class Block(nn.Module):
    """Context manager: operations in its body belong to one block.

    Blocks without an id are numbered "0", "1", ... in the order in which forward enters them.
    """

    def __init__(self, user_id: BlockId | None = None, ipu_id: int | None = None) -> None:
        super().__init__()
        self._user_id = user_id
        self._ipu_id = ipu_id

    def __enter__(self) -> Self:
        _enter(self._user_id, self._ipu_id)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    @staticmethod
    def useAutoId() -> None:
        """Start numbering at "0" again."""
        run = _context.current()
        if run is not None:
            run.num_automatic_ids = 0

    @staticmethod
    def start(user_id: BlockId | None = None, ipu_id: int | None = None) -> None:
        """Begin a block that lasts until the next one begins."""
        _enter(user_id, ipu_id)


class _BlockHook:
    """The forward-pre-hook of an annotated module; a plain object, so that it can be saved."""

    def __init__(self, user_id: BlockId | None, ipu_id: int | None) -> None:
        self.user_id = user_id
        self.ipu_id = ipu_id

    def __call__(self, module: nn.Module, args: Any) -> None:
        _enter(self.user_id, self.ipu_id)

    def __repr__(self) -> str:
        return f"BeginBlock(user_id={self.user_id}, ipu_id={self.ipu_id})"


class LegacyBeginBlockFn(nn.Module):
    """A callable that begins a block before it runs."""

    def __init__(
        self,
        layer_to_call: Callable[..., Any],
        user_id: BlockId | None = None,
        ipu_id: int | None = None,
    ) -> None:
        super().__init__()
        self._layer_to_call = layer_to_call
        self._user_id = user_id
        self._ipu_id = ipu_id

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        _enter(self._user_id, self._ipu_id)
        return self._layer_to_call(*args, **kwargs)


def BeginBlock(
    layer_to_call: nn.Module | Callable[..., Any],
    user_id: BlockId | None = None,
    ipu_id: int | None = None,
) -> nn.Module:
    """Begin a block whenever `layer_to_call` runs.

    A module is annotated and returned itself: its class, parameters and state-dict keys stay.

    Raises:
        Error: if it is neither a module nor callable, or already begins a block.
    """
    if isinstance(layer_to_call, nn.Module):
        if block_of(layer_to_call) is not None:
            raise Error(
                f"{type(layer_to_call).__name__} has already been assigned to a block; call "
                "removeBlocks on it first"
            )
        layer_to_call.register_forward_pre_hook(_BlockHook(user_id, ipu_id))
        return layer_to_call
    if callable(layer_to_call):
        return LegacyBeginBlockFn(layer_to_call, user_id, ipu_id)
    raise Error(
        f"BeginBlock takes a torch.nn.Module or a callable, got {type(layer_to_call).__name__}"
    )


def BlockFunction(
    user_id: BlockId | None = None, ipu_id: int | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function whose body is a block."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def in_block(*args: Any, **kwargs: Any) -> Any:
            with Block(user_id, ipu_id):
                return function(*args, **kwargs)

        return in_block

    return decorate


def removeBlocks(module: nn.Module) -> None:
    """Take every `BeginBlock` annotation off `module` and its children."""
    for child in module.modules():
        hooks = forward_pre_hooks_of(child)
        for key, hook in list(hooks.items()):
            if isinstance(hook, _BlockHook):
                del hooks[key]


def block_of(module: nn.Module) -> _BlockHook | None:
    """Return the annotation of the module itself, if it has one."""
    hooks = forward_pre_hooks_of(module).values()
    return next((hook for hook in hooks if isinstance(hook, _BlockHook)), None)


def module_repr(m: nn.Module) -> str:
    """Return the module tree as torch prints it, with annotations before the names.

    As in the original, it is a tree throughout: a `__repr__` of a module's own is not asked.
    """
    annotation = block_of(m)
    text = _tree(m)
    return f"{annotation!r} {text}" if annotation else text


def _tree(module: nn.Module) -> str:
    lines = module.extra_repr().splitlines() if children_of(module) else []
    for key, child in _children(module):
        lines += f"({key}): {module_repr(child)}".splitlines()
    if not lines:
        return f"{class_name_of(module)}({module.extra_repr()})"
    indented = "\n".join(f"  {line}" for line in lines)
    return f"{class_name_of(module)}(\n{indented}\n)"


def _children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(key, child) for key, child in children_of(module).items() if child is not None]


def print_module(m: nn.Module) -> None:
    """Print `module_repr(m)`."""
    print(module_repr(m))  # noqa: T201 - printing is what it is for


def _enter(user_id: BlockId | None, ipu_id: int | None) -> None:
    run = _context.current()
    if run is None:
        return
    if user_id is None:
        user_id = str(run.num_automatic_ids)
        run.num_automatic_ids += 1
    run.blocks.append((user_id, ipu_id))
    if run.begin_block is not None:
        run.begin_block(run, user_id, ipu_id)
