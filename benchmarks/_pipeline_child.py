"""One process of benchmarks/pipeline.py: trains a model, alone or as one stage of two.

    python _pipeline_child.py SETTINGS_JSON

The first process prints what all of them found, as one line of JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from torchkiln.core._threads import pin_threads

SETTINGS = json.loads(sys.argv[1])
pin_threads(SETTINGS["threads"])

import torch
from torch import Tensor, nn

from torchkiln import Options, distributed, training_model
from torchkiln.models import UResNet2D, UResNetSettings


class Tagger(nn.Module):
    """CosmicTagger's network with the mean cross-entropy of all pixels."""

    def __init__(self, sizes: dict[str, Any]) -> None:
        super().__init__()
        self.network = UResNet2D(UResNetSettings(**sizes))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.network(images), labels)


class LanguageModel(nn.Module):
    """A stack of transformer layers over tokens, each of which foretells the next."""

    def __init__(self, width: int, depth: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(depth)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, following: Tensor) -> Tensor:
        h = self.embedding(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for layer in self.layers:
            h = layer(h, src_mask=mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(h).flatten(0, 1), following.flatten())


def make(model: str, sizes: dict[str, Any], count: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a module and the batch of an update of `count` micro-batches."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    batch, shape = sizes.pop("batch") * count, sizes.pop("shape")
    if model == "cosmic":
        images = torch.rand(batch, 3, *shape, generator=generator)
        return Tagger(sizes), (images, (images * 3).long())
    tokens = torch.randint(sizes["vocabulary"], (batch, shape + 1), generator=generator)
    pair = (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    return LanguageModel(**sizes), pair


def rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    world = distributed.start()
    sizes, count = dict(SETTINGS["sizes"]), SETTINGS["accumulation"]
    options = Options(
        gradient_accumulation=count,
        pipeline=SETTINGS["pipeline"],
        recompute=SETTINGS["recompute"],
        cache_dir=Path(SETTINGS["cache"]),
        show_progress=False,
        collective_timeout_s=600.0,
    )
    options = world.options(options)
    before = rss_mib()
    module, batch = make(SETTINGS["model"], sizes, count)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-4)
    program = training_model(module, options, optimizer)
    losses = [float(program(*batch)) for _ in range(2)]
    seconds = []
    waited, busy = program.collective_seconds, time.process_time()
    for _ in range(SETTINGS["updates"]):
        begin = time.perf_counter()
        losses.append(float(program(*batch)))
        seconds.append(time.perf_counter() - begin)
    num_updates = max(len(seconds), 1)
    own = {
        "before_mib": before,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "compiles": program.num_compiles,
        "waiting_s": (program.collective_seconds - waited) / num_updates,
        "processor_s": (time.process_time() - busy) / num_updates,
    }
    if world.size == 1:
        told = [own]
    else:
        assert program.group is not None
        told = program.group.gather(own)
    if world.is_first:
        print(json.dumps({"seconds": seconds, "losses": losses, "processes": told}), flush=True)


if __name__ == "__main__":
    main()
