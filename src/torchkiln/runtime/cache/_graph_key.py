"""The key that proves two programs the same: a digest of the captured graphs themselves."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor, fx

from torchkiln.runtime.cache._environment import describe_environment
from torchkiln.runtime.capture._capture import Captured, Entry


def graph_key(captured: Captured, device: torch.device) -> str:
    """Return a digest of graphs, shapes, constants, versions and hardware."""
    digest = hashlib.sha256()
    environment = describe_environment(device)
    digest.update(json.dumps(environment, sort_keys=True).encode())
    for name, entry in captured.entries.items():
        digest.update(name.encode())
        _add_entry(digest, entry)
    return digest.hexdigest()


def _add_entry(digest: Any, entry: Entry) -> None:
    for tensor in entry.inputs:
        digest.update(_form(tensor).encode())
    numbers: dict[fx.Node, int] = {}
    for node in entry.graph.graph.nodes:
        numbers[node] = len(numbers)
        digest.update(f"{node.op} {_target(node)}".encode())
        digest.update(repr(_plain((node.args, node.kwargs), numbers)).encode())
        if node.op == "get_attr":
            _add_constant(digest, getattr(entry.graph, node.target))


def _target(node: fx.Node) -> str:
    # Placeholders and attributes are told apart by position; their names may vary.
    return "" if node.op in ("placeholder", "output", "get_attr") else str(node.target)


def _plain(value: Any, numbers: dict[fx.Node, int]) -> Any:
    if isinstance(value, fx.Node):
        return f"%{numbers[value]}"
    if isinstance(value, list | tuple):
        return [_plain(entry, numbers) for entry in value]
    if isinstance(value, dict):
        return {key: _plain(entry, numbers) for key, entry in sorted(value.items())}
    return value


def _add_constant(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        digest.update(_form(value).encode())
        data = value.detach().cpu().contiguous()
        digest.update(data.view(-1).view(torch.uint8).numpy().tobytes() if data.numel() else b"")
    else:
        digest.update(repr(value).encode())


def _form(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.stride()} {tensor.dtype} {tensor.device.type}"
