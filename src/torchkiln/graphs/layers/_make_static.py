"""Rewriting a model of PyG layers so that a program can hold it, with the same parameters."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from torchkiln.core import OptionsError
from torchkiln.graphs._spec import BatchSpec
from torchkiln.graphs.layers._batch_form import BatchForm, find_form, pop_form, push_form
from torchkiln.graphs.layers._batch_norm import MaskedBatchNorm1d
from torchkiln.graphs.layers._self_loops import GHOST_LAYERS, GhostLoops, WeightedLoops
from torchkiln.graphs.layers._substitution import is_recording
from torchkiln.torch_internals._modules import forward_pre_hooks_of


@dataclass(frozen=True, slots=True)
class StaticReport:
    """What `make_static` changed, as (place in the model, what was done); prints itself."""

    changes: tuple[tuple[str, str], ...]
    # What the model needs from its user, such as a transform of the data.
    remaining: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        lines = [f"  {place or '(model)'}: {change}" for place, change in self.changes]
        lines = ["make_static changed:", *lines] if lines else ["make_static: nothing to change"]
        if self.remaining:
            lines.append("left to you:")
            lines += [f"  {place or '(model)'}: {advice}" for place, advice in self.remaining]
        return "\n".join(lines)


class _ShareForm:
    """Forward hooks of the model: its arguments tell all layers about the batch at hand."""

    def __init__(self, form: BatchForm) -> None:
        self._form = form

    def attach(self, model: nn.Module) -> None:
        model.register_forward_pre_hook(self.enter, with_kwargs=True, prepend=True)
        model.register_forward_hook(self.leave, always_call=True)

    def resize(self, form: BatchForm) -> bool:
        """Take the sizes that `form` has; returns whether that changed any."""
        before = self._form
        self._form = replace(
            before,
            num_graphs=form.num_graphs or before.num_graphs,
            max_num_nodes=form.max_num_nodes or before.max_num_nodes,
        )
        return self._form != before

    def enter(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found = find_form(model, args, kwargs)
        # In ordinary PyTorch batches differ in size: there only what the call itself tells counts.
        if is_recording():
            found = replace(
                found,
                num_graphs=found.num_graphs or self._form.num_graphs,
                max_num_nodes=found.max_num_nodes or self._form.max_num_nodes,
            )
        push_form(found)

    def leave(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        pop_form()


def make_static(
    model: nn.Module,
    spec: BatchSpec | None = None,
    *,
    num_graphs: int | None = None,
    max_num_nodes: int | None = None,
    verbose: bool = True,
) -> nn.Module:
    """Change `model` in place so that programs can hold its PyG layers; returns it.

    Parameters, buffers, classes and keys of `state_dict` stay as they are, and so do the numbers:
    outside programs the model gives what it gave. What is changed:

    - layers with `add_self_loops=True` add their loops with fixed sizes;
    - pooling, aggregations and norms called without a size take the number of graphs of the batch;
    - `BatchNorm` takes its statistics over real rows, norms over the whole batch likewise;
    - caches of normalised edges (`cached=True`) are switched off.

    Masks are found in the arguments of the model's own forward, by name (`node_mask`, `edge_mask`,
    `graph_mask`, or PopTorch Geometric's `nodes_mask`, ...): as arguments, in dicts, in PyG's data
    objects. Where forward does not get them, set them with `batch_form(node_mask=...)`.

    Args:
        model: Any module; call this on the outermost one that gets the batch.
        spec: Shape of the batches; gives the number of graphs.
        num_graphs: The same without a spec. A `graph_mask` or a PyG `Batch` tells it, too.
        max_num_nodes: Nodes of the largest graph, for layers that work on dense batches.
        verbose: Print what was changed to stderr. It is also the model's `static_report`.

    Raises:
        OptionsError: if `spec` and `num_graphs` contradict each other.
    """
    if spec is not None and num_graphs is not None and spec.num_graphs != num_graphs:
        raise OptionsError(
            f"num_graphs={num_graphs} contradicts the spec's {spec.num_graphs}; pass one of them"
        )
    num_graphs = spec.num_graphs if spec is not None else num_graphs
    changes: list[tuple[str, str]] = []
    remaining: list[tuple[str, str]] = []
    for place, layer in model.named_modules():
        _rewrite(place, layer, changes, remaining)
    sizes = BatchForm({}, num_graphs, max_num_nodes)
    shared = [hook for hook in _hook_owners(model) if isinstance(hook, _ShareForm)]
    if not shared:
        _ShareForm(sizes).attach(model)
    if not shared or shared[0].resize(sizes):
        changes.append(("", _sizes_in_words(num_graphs, max_num_nodes)))
    report = StaticReport(tuple(changes), tuple(remaining))
    model.static_report = report  # type: ignore[assignment]
    if verbose:
        sys.stderr.write(f"{report}\n")
    return model


def _sizes_in_words(num_graphs: int | None, max_num_nodes: int | None) -> str:
    graphs = "as many graphs as the batch tells" if num_graphs is None else f"{num_graphs} graphs"
    dense = "" if max_num_nodes is None else f", at most {max_num_nodes} nodes each"
    return f"pooling, aggregations and norms without a size take {graphs}{dense}"


def _rewrite(
    place: str,
    layer: nn.Module,
    changes: list[tuple[str, str]],
    remaining: list[tuple[str, str]],
) -> None:
    name = type(layer).__name__
    if type(layer) in (nn.BatchNorm1d, nn.LazyBatchNorm1d):
        if type(layer) is nn.LazyBatchNorm1d:
            remaining.append((place, "lazy BatchNorm: run one forward before make_static"))
            return
        layer.__class__ = MaskedBatchNorm1d
        changes.append((place, "BatchNorm1d takes its statistics over real rows only"))
    elif isinstance(layer, nn.SyncBatchNorm):
        remaining.append((place, "SyncBatchNorm counts filler; use BatchNorm1d"))
    if getattr(layer, "add_self_loops", False) is True:
        _rewrite_loops(place, layer, changes, remaining)
    if getattr(layer, "cached", False) is True:
        layer.cached = False  # type: ignore[assignment]
        changes.append((place, f"{name}(cached=True): normalises edges at each call"))


def _rewrite_loops(
    place: str,
    layer: nn.Module,
    changes: list[tuple[str, str]],
    remaining: list[tuple[str, str]],
) -> None:
    name = type(layer).__name__
    kinds = [kind.__name__ for kind in type(layer).__mro__]
    if any(isinstance(hook, GhostLoops | WeightedLoops) for hook in _hook_owners(layer)):
        return
    if any(kind in GHOST_LAYERS for kind in kinds):
        GhostLoops().attach(layer)
        changes.append((place, f"{name}: self-loops for all nodes, existing ones set aside"))
    elif "ClusterGCNConv" in kinds:
        return  # static in every program
    elif _calls(layer, "gcn_norm"):
        WeightedLoops().attach(layer)
        changes.append((place, f"{name}: self-loops as weights of fixed number"))
    else:
        remaining.append(
            (
                place,
                f"{name} adds self-loops in a way that is not known here; build it with "
                "add_self_loops=False and add them to the data with "
                "torch_geometric.transforms.AddRemainingSelfLoops()",
            )
        )


def _calls(layer: nn.Module, function: str) -> bool:
    code = getattr(type(layer).forward, "__code__", None)
    return code is not None and function in code.co_names


def _hook_owners(layer: nn.Module) -> list[Any]:
    hooks = forward_pre_hooks_of(layer).values()
    return [getattr(hook, "__self__", None) for hook in hooks]
