"""`Trainer` under torchrun, with a module that two processes divide into stages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from launching import torchrun

from torchkiln import CheckpointStore

SCRIPT = Path(__file__).with_name("_staged_trainer.py")


@pytest.fixture(scope="module")
def alone():
    """The script's functions, in this process."""
    patch = pytest.MonkeyPatch()
    patch.setenv("RANK", "0")
    patch.setenv("WORLD_SIZE", "1")
    before = torch.get_num_threads()
    import _staged_trainer

    yield _staged_trainer
    torch.set_num_threads(before)
    patch.undo()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, alone):
    path = tmp_path_factory.mktemp("staged")
    stopped = alone.stop_after(8, alone.STAGES, path / "one", dropout=0.0)
    assert stopped["status"] == "interrupted"
    torchrun(SCRIPT, str(path), timeout_s=240).ok()
    return path


@pytest.fixture
def ranks(folder):
    """What each rank found."""
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


def assert_same(one, other):
    for name in ("steps", "epochs", "status"):
        assert one[name] == other[name]
    assert_same_tensors(one, other)


def assert_same_tensors(one, other, tolerance=0.0):
    for name in ("state", "optimizer"):
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=tolerance)


def assert_close(one, other):
    torch.testing.assert_close(one["epochs"], other["epochs"], rtol=1e-5, atol=1e-5)
    assert_same_tensors(one, other, tolerance=1e-5)


def test_all_stages_tell_the_same_and_have_the_whole_model_in_the_end(ranks):
    first, second = ranks
    for name in ("plain", "whole", "stopped", "resumed", "from one"):
        assert_same(first[name], second[name])
    assert len(first["whole"]["steps"]) == 18
    assert first["whole"]["world"].size == 2


def test_a_divided_run_equals_one_of_one_process(ranks, alone):
    assert_close(ranks[0]["plain"], alone.fit(alone.STAGES, dropout=0.0))


def test_a_signal_at_one_stage_lets_all_leave_after_the_same_step(ranks):
    for rank in ranks:
        assert rank["stopped"]["status"] == "interrupted"
        assert len(rank["stopped"]["steps"]) == 9


def test_a_resumed_run_has_the_same_bits_with_dropout_and_batch_norm(ranks):
    for rank in ranks:
        assert_same(rank["resumed"], rank["whole"])


def test_a_checkpoint_of_stages_is_that_of_a_run_of_one_process(ranks, folder, alone):
    tensors, facts = CheckpointStore(folder / "plain" / "checkpoint").load()
    assert facts["update"] == {"processes": 1, "replicas": 1, "accumulation": 3}
    assert not [name for name in tensors if name.startswith("ranks/")]
    for name, value in ranks[0]["plain"]["state"].items():
        assert torch.equal(tensors[f"model/{name}"], value)
    # One process goes on where two stages were stopped, and stages where one process was.
    assert_close(alone.fit(alone.STAGES, folder / "plain stopped", dropout=0.0), ranks[0]["plain"])
    assert_close(ranks[0]["from one"], ranks[0]["plain"])


def test_a_loss_that_is_not_finite_ends_all_stages(ranks):
    for rank in ranks:
        assert rank["spoiled"]["status"] == "failed"
        assert "loss" in rank["spoiled"]["note"]


def test_an_average_needs_the_whole_model(ranks):
    assert all("leave out average, or pipeline" in rank["average"] for rank in ranks)
