"""A tiny program in native code, compiled once for all tests that need one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import torchkiln


class Tiny(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))


def batch() -> Tensor:
    return torch.linspace(-1, 1, 8).reshape(2, 4)


def compiled(folder: Path, seed: int = 0) -> Any:
    """Return the program, from the cache in `folder` if it is there."""
    torch.set_num_threads(1)  # a part of what tells programs apart
    options = torchkiln.Options(cache_dir=folder / "cache", show_progress=False)
    program = torchkiln.inference_model(Tiny(seed), options)
    program.compile(batch())
    return program


def build(folder: Path) -> None:
    """Fill `folder`: a cache with the program, and the files that its package is made of."""
    from torch._inductor.package import package

    usual, seen = package.package_aoti, {}

    def watch(path: str, files: dict[str, Any]) -> Any:
        seen.update(files)
        return usual(path, files)

    with mock.patch.object(package, "package_aoti", watch):
        compiled(folder)
    parts: dict[str, list[str]] = {}
    for name, files in seen.items():
        (folder / name).mkdir()
        parts[name] = [f"{name}/{Path(shutil.copy(file, folder / name)).name}" for file in files]
    (folder / "parts.json").write_text(json.dumps(parts))
