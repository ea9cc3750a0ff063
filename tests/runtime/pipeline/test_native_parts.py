"""Parts of a step as native code."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from _models import CASES
from _parts_in_turn import Recorded
from torch import fx

from torchkiln.runtime.compile._inductor import build_package
from torchkiln.runtime.compile._progress import CompileProgress
from torchkiln.runtime.execute._executable import NativeExecutable
from torchkiln.runtime.pipeline._parts import StagePart

# Of float32 sums in another order.
_TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def compiled(recorded: Recorded, part: StagePart, folder) -> StagePart:
    """Return the part with native code in the place of its graphs."""
    entries = {name: entry.entry for name, entry in part.entries.items()}
    captured = dataclasses.replace(recorded.whole, entries=entries)
    path = folder / f"stage{part.stage}.pt2"
    with CompileProgress(False, "stage") as progress:
        build_package(captured, path, recorded.step.binding.module, progress)
    executable = NativeExecutable(path, torch.device("cpu"), list(entries))

    def call(name: str):
        run = executable.entry(name)
        return lambda *inputs: run(list(inputs))

    return dataclasses.replace(
        part,
        entries={
            name: dataclasses.replace(
                entry, entry=dataclasses.replace(entry.entry, graph=_Native(call(name)))
            )
            for name, entry in part.entries.items()
        },
    )


class _Native(fx.GraphModule):
    def __init__(self, run) -> None:
        super().__init__(torch.nn.Module(), fx.Graph())
        self.run = run

    def __call__(self, *inputs):
        return self.run(*inputs)


@pytest.mark.slow
@pytest.mark.inductor
def test_compiled_parts_do_what_the_whole_does(tmp_path):
    torch.manual_seed(0)
    batches = [CASES["cnn"].batch(torch.Generator().manual_seed(seed), 1) for seed in range(2)]
    recorded = Recorded(CASES["cnn"].make(), batches[0], (("conv",), ("head",)))
    expected = recorded.run_whole(batches)
    recorded.parts = [compiled(recorded, part, tmp_path) for part in recorded.parts]
    result = recorded.run_parts(batches)
    torch.testing.assert_close(result.outputs, expected.outputs, **_TOLERANCE)
    torch.testing.assert_close(result.sums, expected.sums, **_TOLERANCE)
    torch.testing.assert_close(result.tensors, expected.tensors, **_TOLERANCE)
