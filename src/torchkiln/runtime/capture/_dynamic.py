"""Explaining what cannot be static: the user's line, why, and the rewrite."""

from __future__ import annotations

import linecache
import re
import traceback
from dataclasses import dataclass
from types import FrameType, TracebackType

from torchkiln.core import CaptureError, DynamicShapeError, TorchkilnError
from torchkiln.core._tracebacks import is_users
from torchkiln.torch_internals._autograd import schema_of
from torchkiln.torch_internals._fake_tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)


@dataclass(frozen=True, slots=True)
class Remedy:
    """Why an operation is dynamic, and what to write instead."""

    why: str
    rewrite: str


_POOLING = Remedy(
    "pooling counts the graphs of the batch by reading its values",
    "pass the number of graphs, padding included: global_mean_pool(x, batch, size=batch_size), or "
    "let torchkiln.graphs.make_static(model, num_graphs=batch_size) give it to all layers",
)
_SELF_LOOPS = Remedy(
    "the layer adds self-loops only to nodes that lack one, so the number of edges depends on data",
    "build the layer with add_self_loops=False and add the loops to the data with "
    "torch_geometric.transforms.AddRemainingSelfLoops(), or let "
    "torchkiln.graphs.make_static(model) rewrite the layer",
)
_SELECTION = Remedy(
    "pooling keeps a number of nodes that depends on the data",
    "pool to a fixed number of clusters (dense_mincut_pool, dense_diff_pool, DMoNPooling, "
    "MemPooling) or by a fixed number per graph (SortAggregation); docs/layers.md lists what is "
    "static",
)
_BOOLEAN = Remedy(
    "the number of selected rows depends on the values of the mask",
    "keep every row and switch off the unwanted ones: y = torch.where(mask, y, -100) with the "
    "loss' ignore_index, or multiply by the mask and divide by mask.sum()",
)
_ITEM = Remedy(
    "a tensor's value becomes a Python number while the program has shapes but no values",
    "keep it a tensor (use torch ops on it, return it as an output), or pass the number to forward",
)
_BRANCH = Remedy(
    "Python decides by a tensor's value, and a static program takes one path only",
    "compute both sides and choose with torch.where(condition, a, b), or decide before the call",
)

# Functions of PyG, recognised by name in the traceback, tell more than the operator inside them.
# Methods are looked up by their full name, functions by their own.
_BY_FUNCTION = {
    "ASAPooling.forward": _SELECTION,
    "TopKPooling.forward": _SELECTION,
    "SAGPooling.forward": _SELECTION,
    "PANPooling.forward": _SELECTION,
    "EdgePooling.forward": _SELECTION,
    "ClusterPooling.forward": _SELECTION,
    "add_remaining_self_loops": _SELF_LOOPS,
    "add_self_loops": _SELF_LOOPS,
    "remove_self_loops": _SELF_LOOPS,
    "gcn_norm": _SELF_LOOPS,
    "global_add_pool": _POOLING,
    "global_mean_pool": _POOLING,
    "global_max_pool": _POOLING,
    "scatter": Remedy(
        "the number of results is the largest index",
        "pass dim_size=, padding included: scatter(x, index, dim_size=n)",
    ),
    "maybe_num_nodes": Remedy(
        "the number of nodes is read from edge_index",
        "pass num_nodes= (or dim_size=) explicitly",
    ),
}
_BY_OPERATOR = {
    "nonzero": Remedy(
        "the number of non-zero entries depends on the values",
        "use torch.where(condition, a, b), or torch.nonzero_static(x, size=n) with a fixed size",
    ),
    "masked_select": _BOOLEAN,
    "index": _BOOLEAN,
    "unique": Remedy(
        "the number of distinct values depends on the data",
        "compute it in a dataset transform, or use a one-hot / scatter form of fixed size",
    ),
    "repeat_interleave": Remedy(
        "the length of the result is the sum of the repeats",
        "pass output_size= to torch.repeat_interleave",
    ),
    "bincount": Remedy(
        "the number of bins is the largest value",
        "use torch.zeros(n).index_add_(0, x, ones) with a fixed number of bins",
    ),
}
_BY_SOURCE = (
    (
        re.compile(r"\bone_hot\("),
        Remedy("the number of classes is the largest value", "pass num_classes= to one_hot"),
    ),
    (re.compile(r"\.(tolist|item|numpy)\("), _ITEM),
    (re.compile(r"^\s*(if|elif|while|assert)\b|\bif\b.*\belse\b|\b(and|or|not)\b"), _BRANCH),
    (re.compile(r"\bunique"), _BY_OPERATOR["unique"]),
    (re.compile(r"\bnonzero\b|\bargwhere\b"), _BY_OPERATOR["nonzero"]),
)
_DEFAULT = Remedy(
    "the size of a result, or a Python decision, depends on the values of tensors",
    "rewrite it with operations of fixed size (torch.where, masks, explicit sizes)",
)


def explain(error: BaseException) -> TorchkilnError | None:
    """Return the error to raise for a failed capture; None if it is the user's own exception."""
    text = str(error)
    disabled = isinstance(error, ValueError) and "Dynamic shapes disabled" in text
    if isinstance(error, DynamicOutputShapeException | DataDependentOutputException) or disabled:
        return _dynamic(error)
    if isinstance(error, RuntimeError) and (
        ".numpy() is not supported for tensor subclasses" in text
        or ".tolist() is not supported for tensor subclasses" in text
    ):
        return _dynamic(error)
    if isinstance(error, UnsupportedOperatorException):
        return CaptureError(
            f"operator {error.func} has no implementation for tensors without values"
            f"{_where(error.__traceback__)}\n  rewrite: register a fake implementation with "
            "torch.library.register_fake"
        )
    return None


def _dynamic(error: BaseException) -> DynamicShapeError:
    frames = _frames(error.__traceback__)
    source = _user_source(frames)
    remedy = _choose(error, frames, source)
    detail = str(error) if "Dynamic shapes disabled" in str(error) else ""
    heading = detail or "Dynamic shapes disabled: this operation cannot be part of a static program"
    return DynamicShapeError(
        f"{heading}{_where(error.__traceback__)}\n  why: {remedy.why}\n  rewrite: {remedy.rewrite}"
    )


def _choose(error: BaseException, frames: list[tuple[FrameType, int]], source: str) -> Remedy:
    # What the user's line called comes first: it tells more than its own helpers.
    inner = next((i for i in reversed(range(len(frames))) if is_users(frames[i][0])), -1)
    for frame, _ in frames[inner + 1 :]:
        code = frame.f_code
        remedy = _BY_FUNCTION.get(code.co_qualname) or _BY_FUNCTION.get(code.co_name)
        if remedy is not None:
            return _name_layer(frames) if remedy is _SELF_LOOPS else remedy
    if "Dynamic shapes disabled" in str(error):
        return _missing_size(frames)
    operator = schema_of(getattr(error, "func", None))
    name = operator.name.removeprefix("aten::").lstrip("_") if operator is not None else ""
    if name != "local_scalar_dense":
        for key, remedy in _BY_OPERATOR.items():
            if name.startswith(key):
                if key == "nonzero" and _indexes_by_mask(source):
                    return _BOOLEAN
                return remedy
    for pattern, remedy in _BY_SOURCE:
        if pattern.search(source):
            return remedy
    reads_value = isinstance(error, DataDependentOutputException)
    return _ITEM if reads_value else _DEFAULT


def _name_layer(frames: list[tuple[FrameType, int]]) -> Remedy:
    """Say which layer adds self-loops: the innermost one that was asked to."""
    for frame, _ in reversed(frames):
        layer = frame.f_locals.get("self")
        if getattr(layer, "add_self_loops", False) is True:
            why = _SELF_LOOPS.why.replace("the layer", type(layer).__name__, 1)
            return Remedy(why, _SELF_LOOPS.rewrite)
    return _SELF_LOOPS


def _indexes_by_mask(source: str) -> bool:
    return bool(re.search(r"\[[^\]]", source)) and not re.search(
        r"nonzero|argwhere|where\(", source
    )


def _missing_size(frames: list[tuple[FrameType, int]]) -> Remedy:
    """Explain PyG's own check of size arguments; it runs in a wrapper around the function."""
    values = frames[-1][0].f_locals
    function = getattr(values.get("func"), "__name__", "the function")
    wanted = values.get("required_args") or ["size", "dim_size", "batch_size", "num_nodes"]
    return Remedy(
        "PyG would read a size from the data",
        f"pass {' and '.join(f'{name}=' for name in wanted)} to {function}, padding included, or "
        "let torchkiln.graphs.make_static(model, num_graphs=..., max_num_nodes=...) give the sizes "
        "of the batch to all layers",
    )


def _frames(trace: TracebackType | None) -> list[tuple[FrameType, int]]:
    return list(traceback.walk_tb(trace))


def _user_source(frames: list[tuple[FrameType, int]]) -> str:
    for frame, line in reversed(frames):
        if is_users(frame):
            return linecache.getline(frame.f_code.co_filename, line).strip()
    return ""


def _where(trace: TracebackType | None) -> str:
    """Return the innermost line of the user's own code, as Python would print it."""
    for frame, line in reversed(_frames(trace)):
        if is_users(frame):
            code = frame.f_code
            source = linecache.getline(code.co_filename, line).strip()
            return f'\n  File "{code.co_filename}", line {line}, in {code.co_name}\n    {source}'
    return ""
