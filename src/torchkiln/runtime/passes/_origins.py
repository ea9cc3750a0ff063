"""Which module, line and phase of the step recorded each node of a graph.

A node of backward belongs to the operation of forward that it differentiates: autograd numbers both
alike. A node of the update belongs to the parameter that is updated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any
from unittest import mock

import torch
from torch import fx, nn
from torch.fx import traceback

from torchkiln.runtime.passes._source_lines import (
    Line,
    current_line,
    is_of_model,
    is_repeated,
)
from torchkiln.torch_internals._autograd import backward_functions, last_sequence_number
from torchkiln.torch_internals._fx import nodes_given_to
from torchkiln.torch_internals._modules import calls_replaced

_KEY = "torchkiln"


class Phase(enum.Enum):
    """When a node runs."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


_ORDER = list(Phase)


@dataclass(frozen=True, slots=True)
class Origin:
    """Who recorded a node.

    Args:
        module: Its name in the recorded module, "" for the outermost.
        phase: When the node runs.
        line: Of the model; in backward that of the operation in forward. None: not known.
        parameter: That is updated; "" in other phases.
    """

    module: str = ""
    phase: Phase = Phase.UPDATE
    line: Line | None = None
    parameter: str = ""


@contextlib.contextmanager
def following_modules(
    module: nn.Module, around: Callable[[str, tuple[Any, ...], dict[str, Any]], Any]
) -> Iterator[None]:
    """Enter `around(name, args, kwargs)` around every call of a module inside `module`.

    By the class and not by hooks: a recomputation may leave a module by an exception.
    """
    names = {id(child): name for name, child in module.named_modules()}

    def make_call(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(child: nn.Module, *args: Any, **kwargs: Any) -> Any:
            name = names.get(id(child))
            if name is None:
                return original(child, *args, **kwargs)
            with around(name, args, kwargs):
                return original(child, *args, **kwargs)

        return call

    with calls_replaced(make_call):
        yield


# The parameter whose update is being recorded.
_updated = ""


@contextlib.contextmanager
def updating(parameter: str) -> Iterator[None]:
    """Say which parameter the operations belong to that are recorded meanwhile."""
    global _updated
    before, _updated = _updated, parameter
    try:
        yield
    finally:
        _updated = before


def parameter_in_work() -> str:
    """Return the parameter whose update is being recorded; "" if there is none."""
    return _updated


class _Recorder:
    """Follows a recording, and knows the origin of the node that comes next."""

    def __init__(self, outermost: Collection[CodeType]) -> None:
        self._outermost = outermost
        self.phase = Phase.FORWARD
        # What forward recorded, by the number that autograd gave to it.
        self._by_number: dict[int, Origin] = {}
        # The operation that is being differentiated.
        self._differentiated: Origin | None = None
        # Modules that a line of forward ran in.
        self._modules: dict[Line, set[str]] = {}

    def note(self, node: fx.Node) -> None:
        if node.op not in ("call_function", "get_attr"):
            return
        custom = node.meta.get("custom", {})
        found: Origin | None = custom.get(_KEY)
        if found is None:
            found = Origin("", self.phase)
        node.meta["custom"] = {**custom, _KEY: self._complete(found)}

    def _complete(self, found: Origin) -> Origin:
        if self.phase is Phase.UPDATE:
            module = _updated.rpartition(".")[0]
            return Origin(module, Phase.UPDATE, parameter=_updated)
        if self.phase is Phase.BACKWARD and not found.module:
            return self._of_backward(found)
        origin = dataclasses.replace(found, line=self._line())
        if origin.line is not None and self.phase is Phase.FORWARD:
            self._modules.setdefault(origin.line, set()).add(origin.module)
        # Operations that autograd does not record see the number of the one before.
        self._by_number.setdefault(last_sequence_number(), origin)
        return origin

    def _of_backward(self, found: Origin) -> Origin:
        """Return the origin of what no call of a module repeats."""
        of = self._differentiated
        if of is None:
            return found
        line = current_line(self._outermost) if is_repeated(self._outermost) else None
        if line is None or not is_of_model(line):
            return dataclasses.replace(of, phase=Phase.BACKWARD)
        # A function is repeated that a module gave to `checkpoint`: the module that was at this
        # line in forward, and around the operation that needs the repetition.
        around = [name for name in self._modules.get(line, ()) if _is_inside(of.module, name)]
        return Origin(min(around, key=len, default=of.module), Phase.BACKWARD, line)

    def _line(self) -> Line | None:
        line, of = current_line(self._outermost), self._differentiated
        if self.phase is Phase.BACKWARD and not is_of_model(line) and of is not None:
            # A layer is repeated whose caller does not run now; all of it has the caller's line.
            return of.line if is_of_model(of.line) else line
        return line

    def differentiating(self, outputs: Any) -> None:
        """Listen to the backward functions of `outputs`, each of which will say what it is."""
        for function, number in backward_functions(outputs).items():

            def begin(gradients: Any, number: int = number) -> None:
                self._differentiated = self._by_number.get(number)

            function.register_prehook(begin)


def _is_inside(module: str, outer: str) -> bool:
    return not outer or module == outer or module.startswith(outer + ".")


@contextlib.contextmanager
def recorded_origins(module: nn.Module, forward: CodeType, backward: CodeType) -> Iterator[None]:
    """Note the origins of the nodes that are recorded meanwhile.

    Args:
        module: Whose step is recorded.
        forward: The code of the function that calls the module's forward.
        backward: The code of the function that runs backward, in which forward may be repeated.
    """
    gradients = torch.autograd.grad
    recorder = _Recorder((forward, backward))

    def enter(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return traceback.annotate({_KEY: Origin(name, recorder.phase)})

    def grad(*args: Any, **kwargs: Any) -> Any:
        # A gradient that forward itself takes (forces of a potential) is part of forward.
        outer = traceback.get_current_meta().get("custom", {}).get(_KEY)
        if outer is not None or current_line((forward,)) is not None:
            return gradients(*args, **kwargs)
        recorder.phase = Phase.BACKWARD
        recorder.differentiating(args[0] if args else kwargs["outputs"])
        with traceback.annotate({_KEY: Origin("", Phase.BACKWARD)}):
            result = gradients(*args, **kwargs)
        recorder.phase = Phase.UPDATE
        return result

    with (
        traceback.preserve_node_meta(),
        nodes_given_to(recorder.note),
        following_modules(module, enter),
        mock.patch.object(torch.autograd, "grad", grad),
    ):
        yield


def origin(node: fx.Node) -> Origin:
    """Return who recorded `node`."""
    found: Origin | None = node.meta.get("custom", {}).get(_KEY)
    return found if found is not None else Origin()


def origins_of(graph: fx.GraphModule) -> list[Origin]:
    """Return the origins of all nodes of a graph, in order.

    A node that a pass put in has none of its own: it counts as what it reads, or else as what reads
    it.
    """
    nodes = list(graph.graph.nodes)
    known = {node: origin(node) for node in nodes if _KEY in node.meta.get("custom", {})}
    for node in nodes:
        inherited = [known[parent] for parent in node.all_input_nodes if parent in known]
        if node not in known and inherited and node.op != "output":
            known[node] = max(inherited, key=_by_phase)
    for node in reversed(nodes):
        readers = [known[reader] for reader in node.users if reader in known]
        if node not in known and readers and node.op != "placeholder":
            known[node] = min(readers, key=_by_phase)
    return [known.get(node, Origin()) for node in nodes]


def joint_origin(nodes: Iterable[fx.Node]) -> Origin:
    """Return the origin of something computed by several nodes: the latest counts.

    A kernel of backward may repeat a cheap piece of forward; it still runs in backward.
    """
    return latest([origin(node) for node in nodes if node.op != "placeholder"])


def latest(origins: Iterable[Origin]) -> Origin:
    """Return the origin of the latest phase; the first of several."""
    return max(origins, key=_by_phase, default=Origin())


def _by_phase(found: Origin) -> int:
    return _ORDER.index(found.phase)
