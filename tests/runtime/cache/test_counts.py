"""How many micro-batches share an update is no reason to compile: one executable serves any count.

Plain SGD: Adam hides a wrong divisor of the gradients.
"""

import json
import zipfile

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import nn

import torchkiln
from torchkiln import Options, training_model
from torchkiln.core import ExecutableError

pytestmark = pytest.mark.inductor

RATE = 0.1
# Rounding of a few updates, in the order of another loop.
TOLERANCE = 1e-6


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.last = nn.Linear(8, 2).double()

    def forward(self, x, y):
        out = self.last(torch.tanh(self.first(x)).double())
        return out, F.mse_loss(out, y)


def make():
    torch.manual_seed(0)
    module = Model()
    return module, torch.optim.SGD(module.parameters(), lr=RATE)


def batches(count, num_updates=3):
    generator = torch.Generator().manual_seed(1)
    for _ in range(num_updates):
        x = torch.randn(4 * count, 6, generator=generator)
        yield x, torch.randn(4 * count, 2, generator=generator).double()


def train_plainly(count, divisor):
    """Return the weights after updates of plain PyTorch."""
    module, optimizer = make()
    for x, y in batches(count):
        optimizer.zero_grad()
        for part, target in zip(x.split(4), y.split(4), strict=True):
            (module(part, target)[1] / divisor).backward()
        optimizer.step()
    return [p.detach() for p in module.parameters()]


def train(count, **options):
    module, optimizer = make()
    program = training_model(module, Options(show_progress=False, **options), optimizer)
    for x, y in batches(count):
        program(x, y)
    return program, [p.detach() for p in module.parameters()]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache that holds the program for two micro-batches."""
    folder = tmp_path_factory.mktemp("cache")
    program, weights = train(2, gradient_accumulation=2, cache_dir=folder)
    assert program.num_compiles == 1
    torch.testing.assert_close(weights, train_plainly(2, 2), rtol=0, atol=TOLERANCE)
    return folder


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_accumulation": 2},
        {"gradient_accumulation": 4},
        {"replication_factor": 3},
        {"gradient_accumulation": 2, "replication_factor": 3},
    ],
    ids=str,
)
def test_another_count_comes_from_the_cache_and_divides_by_itself(cache, options):
    count = Options(**options).micro_batches_per_update
    program, weights = train(count, cache_dir=cache, **options)
    assert (program.num_compiles, program.num_captures) == (0, 0)
    torch.testing.assert_close(weights, train_plainly(count, count), rtol=0, atol=TOLERANCE)


def test_iterations_come_from_the_cache(cache):
    module, optimizer = make()
    options = Options(
        device_iterations=3, gradient_accumulation=2, cache_dir=cache, show_progress=False
    )
    program = training_model(module, options, optimizer)
    program(*(torch.cat(parts) for parts in zip(*batches(2), strict=True)))
    assert (program.num_compiles, program.num_captures) == (0, 0)
    weights = [p.detach() for p in module.parameters()]
    torch.testing.assert_close(weights, train_plainly(2, 2), rtol=0, atol=TOLERANCE)


def test_one_micro_batch_is_another_program(cache):
    program, weights = train(1, cache_dir=cache)
    assert program.num_compiles == 1
    assert program.metadata.entries == ["step"]
    torch.testing.assert_close(weights, train_plainly(1, 1), rtol=0, atol=TOLERANCE)


@pytest.mark.slow
def test_a_sum_is_another_program(cache):
    program, weights = train(2, gradient_accumulation=2, reduction="sum", cache_dir=cache)
    assert program.num_compiles == 1
    torch.testing.assert_close(weights, train_plainly(2, 1), rtol=0, atol=TOLERANCE)


def test_an_exported_program_runs_with_another_count(cache, tmp_path):
    program, _ = train(2, gradient_accumulation=2, cache_dir=cache)
    program.export(tmp_path / "program.kiln")
    module, optimizer = make()
    start = [p.detach().clone() for p in module.parameters()]
    # The form of a call is that of the file: two micro-batches, now one for each of two replicas.
    options = Options(replication_factor=2, show_progress=False)
    loaded = torchkiln.load(tmp_path / "program.kiln", module, optimizer, options)
    with torch.no_grad():
        for p, value in zip(module.parameters(), start, strict=True):
            p.copy_(value)
    for x, y in batches(2):
        loaded(x, y)
    weights = [p.detach() for p in module.parameters()]
    torch.testing.assert_close(weights, train_plainly(2, 2), rtol=0, atol=TOLERANCE)


def test_an_exported_fused_step_refuses_another_count(cache, tmp_path):
    program, _ = train(1, cache_dir=cache)
    program.export(tmp_path / "program.kiln")
    module, optimizer = make()
    with pytest.raises(ExecutableError, match=r"updates of 1 micro-batches, but .* make 2"):
        torchkiln.load(
            tmp_path / "program.kiln", module, optimizer, Options(gradient_accumulation=2)
        )


def test_a_file_with_the_count_compiled_in_refuses_another_one(cache, tmp_path):
    program, _ = train(2, gradient_accumulation=2, cache_dir=cache)
    program.export(tmp_path / "program.kiln")
    with (
        zipfile.ZipFile(tmp_path / "program.kiln") as archive,
        zipfile.ZipFile(tmp_path / "earlier.kiln", "w") as earlier,
    ):
        for name in archive.namelist():
            content = archive.read(name)
            if name == "program.json":
                content = json.dumps({**json.loads(content), "format": 1}).encode()
            earlier.writestr(name, content)
    (tmp_path / "earlier.kiln").chmod(0o600)
    assert torchkiln.load(tmp_path / "earlier.kiln", *make()).is_compiled
    with pytest.raises(ExecutableError, match=r"updates of 2 micro-batches, but .* make 4"):
        torchkiln.load(
            tmp_path / "earlier.kiln",
            *make(),
            Options(gradient_accumulation=2, replication_factor=2),
        )
