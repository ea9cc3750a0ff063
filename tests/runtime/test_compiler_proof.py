"""After compiling, no Python of the model or optimiser runs: here, and in another process."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from _parity import assert_close_states
from _proof_child import batches, forbid_python, make_program, train

HOME = str(Path(__file__).parent)
BACKENDS = ["capture", pytest.param("inductor", marks=pytest.mark.inductor)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_goes_on_without_forward_and_step(backend, cache_dir):
    program = make_program(backend, cache_dir)
    reference = make_program("eager", cache_dir)
    expected = train(reference, 6)
    program.compile(*batches(1)[0])
    before = copy.deepcopy(program.module.state_dict())
    forbid_python(program)
    losses = train(program, 6)
    assert losses == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert_close_states(program.module.state_dict(), reference.module.state_dict())
    assert not torch.equal(program.module.state_dict()["head.weight"], before["head.weight"])
    assert program.num_compiles <= 1
    with pytest.raises(AssertionError, match="Python code of the model"):
        program.module(*batches(1)[0])


@pytest.mark.inductor
def test_second_process_trains_from_the_cache_alone(cache_dir):
    expected = train(make_program("inductor", cache_dir), 6)
    # Imported, not run as a script: the class must have the same home in both processes.
    code = f"import sys; sys.path.insert(0, {HOME!r}); import _proof_child; _proof_child.main()"
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code, str(cache_dir)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["losses"] == pytest.approx(expected, rel=1e-6)
    assert (result["compiles"], result["captures"], result["forward_calls"]) == (0, 0, 0)
    assert not result["inductor_imported"]


@pytest.mark.inductor
def test_exported_program_trains_without_compiling(cache_dir, tmp_path):
    from torchkiln.runtime import load

    program = make_program("inductor", cache_dir)
    train(program, 2)
    path = tmp_path / "program.kiln"
    program.export(path)
    expected = train(program, 4)
    fresh = make_program("inductor", cache_dir)
    loaded = load(path, fresh.module, fresh.optimizer)
    forbid_python(loaded)
    assert train(loaded, 4) == pytest.approx(expected, rel=1e-6)
    assert (loaded.num_compiles, loaded.num_captures) == (0, 0)
    assert_close_states(loaded.module.state_dict(), program.module.state_dict())


def test_one_compile_for_a_whole_run(cache_dir):
    program = make_program("capture", cache_dir)
    train(program, 20)
    for group in program.optimizer.param_groups:
        group["lr"] = 0.001
    program.set_optimizer(program.optimizer)
    train(program, 5)
    assert (program.num_compiles, program.num_captures) == (1, 1)
    program.destroy()
    assert not program.is_compiled
    train(program, 1)
    assert (program.num_compiles, program.num_captures) == (2, 2)
