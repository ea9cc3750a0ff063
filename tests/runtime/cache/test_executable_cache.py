"""The cache around real programs: hits, misses, damage, several processes at once."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import torchkiln
from torchkiln import Options, training_model
from torchkiln.core import ExecutableError, TrustError, read_sealed, write_sealed
from torchkiln.runtime.cache._cache import ExecutableCache

pytestmark = pytest.mark.inductor

PROGRAM = """
    import json, sys, time
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torchkiln import Options, training_model

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 2)

        def forward(self, x, y):
            out = self.layer(x)
            return out, F.mse_loss(out, y)

    import torchkiln.runtime
    torch.manual_seed(0)
    model = Model()
    x, y = torch.randn(4, 6), torch.randn(4, 2)
    start = time.perf_counter()
    options = Options(cache_dir=sys.argv[1], show_progress=False)
    program = training_model(model, options, torch.optim.Adam(model.parameters()))
    losses = [float(program(x, y)[1]) for _ in range(3)]
    print(json.dumps({
        "compiles": program.num_compiles,
        "captures": program.num_captures,
        "losses": losses,
        "imported_inductor": "torch._inductor.compile_fx" in sys.modules,
    }))
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("programs") / "user_program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    return path


def start(script, directory):
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script), str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def result_of(process):
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module")
def filled(script, tmp_path_factory):
    """A cache that four processes filled at the same time, and what each of them did."""
    directory = tmp_path_factory.mktemp("shared_cache")
    processes = [start(script, directory) for _ in range(4)]
    return directory, [result_of(process) for process in processes]


def test_four_processes_at_once_compile_once(filled):
    _, results = filled
    assert sum(result["compiles"] for result in results) == 1
    assert all(result["losses"] == results[0]["losses"] for result in results)


def test_a_later_process_neither_traces_nor_compiles(filled, script):
    directory, results = filled
    later = result_of(start(script, directory))
    assert (later["compiles"], later["captures"]) == (0, 0)
    assert not later["imported_inductor"]
    assert later["losses"] == results[0]["losses"]


def test_another_helper_is_traced_and_the_same_graph_is_found(filled, script, tmp_path):
    directory, _ = filled
    renamed = tmp_path / "other_program.py"
    source = script.read_text().replace("out = self.layer(x)", "out = self.layer(x) ; unused = 1")
    renamed.write_text(source)
    result = result_of(start(renamed, directory))
    assert (result["compiles"], result["captures"]) == (0, 1)


@pytest.mark.slow
def test_a_damaged_executable_is_compiled_again_with_a_warning(tmp_path, recwarn):
    def run():
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        wrapped = WithLoss(model)
        program = training_model(wrapped, Options(cache_dir=tmp_path, show_progress=False))
        loss = program(torch.ones(2, 3), torch.zeros(2, 1))
        return float(loss), program.num_compiles

    first, compiles = run()
    assert compiles == 1
    (package,) = Path(tmp_path).glob("executables/*.pt2")
    package.write_bytes(package.read_bytes()[:1000])
    with pytest.warns(UserWarning, match="damaged"):
        again, compiles = run()
    assert (again, compiles) == (first, 1)
    assert run() == (first, 0)


def test_a_cache_that_cannot_be_written_costs_time_but_not_the_program(tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    program = training_model(
        WithLoss(nn.Linear(3, 1)), Options(cache_dir=tmp_path / "cache", show_progress=False)
    )
    with pytest.warns(UserWarning, match="could not be kept in .*the next start compiles again"):
        program(torch.ones(2, 3), torch.zeros(2, 1))
    assert program.num_compiles == 1


def test_an_index_file_that_does_not_fit_is_removed_and_traced_again(filled, script):
    directory, results = filled
    for index in directory.glob("index/*.json"):
        write_sealed(index, {**read_sealed(index), "program": {"entries": "nonsense"}})
    process = start(script, directory)
    again = result_of(process)
    assert (again["compiles"], again["captures"]) == (0, 1)
    assert again["losses"] == results[0]["losses"]


def test_exporting_after_the_cache_was_damaged_or_cleared_says_so(tmp_path):
    program = training_model(
        WithLoss(nn.Linear(3, 1)), Options(cache_dir=tmp_path / "cache", show_progress=False)
    )
    arguments = torch.ones(2, 3), torch.zeros(2, 1)
    program(*arguments)
    program.destroy()
    program(*arguments)  # from the cache
    package = program.executable_path
    content = bytearray(package.read_bytes())
    content[len(content) // 2] ^= 1
    package.write_bytes(content)
    with pytest.raises(ExecutableError, match="was damaged after it was loaded"):
        program.export(tmp_path / "program.kiln")
    ExecutableCache(tmp_path / "cache", 1).clear()
    program(*arguments)  # what is loaded needs no file
    with pytest.raises(ExecutableError, match="is gone, so there is nothing to export"):
        program.export(tmp_path / "program.kiln")


class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        return nn.functional.mse_loss(self.model(x), y)


def test_an_exported_program_continues_where_it_was(tmp_path):
    torch.manual_seed(0)
    module = WithLoss(nn.Linear(5, 1))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    program = training_model(module, Options(show_progress=False), optimizer)
    x, y = torch.randn(4, 5), torch.randn(4, 1)
    for _ in range(2):
        program(x, y)
    path = tmp_path / "program.kiln"
    before = os.umask(0)  # what is exported can be loaded all the same
    try:
        program.export(path)
    finally:
        os.umask(before)
    expected = [float(program(x, y)) for _ in range(3)]

    other = WithLoss(nn.Linear(5, 1))
    loaded = torchkiln.load(path, other, torch.optim.Adam(other.parameters(), lr=0.1))
    assert [float(loaded(x, y)) for _ in range(3)] == expected
    assert (loaded.num_compiles, loaded.num_captures) == (0, 0)
    for one, same in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, same)
    with pytest.raises(torchkiln.ShapeChanged):
        loaded(x[:2], y[:2])

    import zipfile

    from safetensors.torch import load

    with zipfile.ZipFile(path) as archive:
        header = json.loads(archive.read("program.json"))
        weights = load(archive.read("weights.safetensors"))
    assert header["signature"]["tensors"][0]["shape"] == [4, 5]
    assert set(weights) == {"model.weight", "model.bias"}

    path.chmod(0o666)
    with pytest.raises(TrustError, match="is native code and is not run"):
        torchkiln.load(path, other)
    path.chmod(0o644)

    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(torchkiln.TorchkilnError, match="damaged"):
        torchkiln.load(path, other)
