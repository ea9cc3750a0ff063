"""`Trainer` under torchrun, with a module that has dropout and BatchNorm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from launching import torchrun

from torchkiln import CheckpointStore

SCRIPT = Path(__file__).with_name("_trainer_ranks.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("trainer")
    torchrun(SCRIPT, str(path), timeout_s=240).ok()
    return path


@pytest.fixture
def ranks(folder):
    """What each rank found."""
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


@pytest.fixture
def alone(monkeypatch):
    """The script's functions, in this process."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    import _trainer_ranks

    yield _trainer_ranks
    torch.set_num_threads(before)


def same(one, other, *names):
    return all(one[name] == other[name] for name in names or ("steps", "epochs", "status"))


def same_tensors(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def test_a_run_equals_one_with_as_many_replicas(ranks, alone):
    options = alone.PLAIN.replace(replication_factor=2)
    one = alone.fit(options, **alone.FOLDED)
    for rank in ranks:
        assert same(rank["folded"], one)
        assert same_tensors(rank["folded"]["state"], one["state"])


def test_all_ranks_tell_the_same(ranks):
    first, second = ranks
    for name in ("whole", "stopped", "resumed"):
        assert same(first[name], second[name])
    assert first["whole"]["world"].size == 2
    assert len(first["whole"]["steps"]) == 36


def test_a_resumed_run_has_the_same_bits_with_dropout_and_batch_norm(ranks):
    for rank in ranks:
        assert rank["stopped"]["status"] == "interrupted"
        assert len(rank["stopped"]["epochs"]) == 2
        assert same(rank["resumed"], rank["whole"])
        assert same_tensors(rank["resumed"]["state"], rank["whole"]["state"])
        assert not same_tensors(rank["stopped"]["state"], rank["whole"]["state"])


@pytest.mark.parametrize("name", ["divided, resumed", "divided, resumed whole"])
def test_a_run_with_divided_optimiser_state_is_resumed_with_the_same_bits(ranks, name):
    for rank in ranks:
        assert rank["divided, stopped"]["status"] == "interrupted"
        assert same(rank[name], rank["captured"])
        assert same_tensors(rank[name]["state"], rank["captured"]["state"])


def test_a_run_that_was_stopped_in_a_validation_has_the_same_bits(ranks):
    for rank in ranks:
        stopped, resumed = rank["stopped while judging"], rank["resumed while judging"]
        assert stopped["status"] == "interrupted"
        assert stopped["epochs"][-1][1] is None
        assert same(resumed, rank["whole"])
        assert same_tensors(resumed["state"], rank["whole"]["state"])


def test_ranks_draw_different_numbers(ranks, folder):
    tensors, _ = CheckpointStore(folder / "whole" / "checkpoint").load()
    assert not torch.equal(tensors["random/cpu"], tensors["ranks/1/random/cpu"])


def test_buffers_of_the_model_are_the_mean_of_all_ranks(ranks, folder):
    tensors, facts = CheckpointStore(folder / "whole" / "checkpoint").load()
    own = [tensors[f"ranks/{rank}/buffers/module/norm.running_mean"] for rank in (0, 1)]
    assert not torch.equal(*own)
    saved = tensors["model/norm.running_mean"]
    assert torch.equal(saved, torch.stack(own).double().mean(dim=0).float())
    assert torch.equal(tensors["average/norm.running_mean"], saved)
    assert facts["update"] == {"processes": 2, "replicas": 1, "accumulation": 1}
    # Whoever uses the model after training has them, too.
    for rank in ranks:
        assert torch.equal(rank["whole"]["state"]["norm.running_mean"], saved)


def test_wrong_options_name_the_remedy(ranks):
    for rank, found in enumerate(ranks):
        told = found["alone"]
        assert told.startswith("OptionsError: ")
        assert f"this is rank {rank} of 2 processes, but the options say num_processes=1" in told
        assert "options = torchkiln.distributed.start().options(options)" in told


def test_loaders_that_do_not_fit_each_other_are_refused(ranks):
    for found in ranks:
        assert "loader was made with options that say num_processes=1" in found["loader"]
        assert "the number of batches of epoch 1 must be the same on all ranks" in found["lists"]
        assert "4 on rank 0, 6 on rank 1" in found["lists"]


def test_another_model_or_other_options_at_a_rank_are_named_by_all(ranks):
    for found in ranks:
        assert found["options"].startswith("DistributedError: what a loader reads must be the same")
        assert "6 on rank 0, 3 on rank 1" in found["options"]
        assert found["model"].startswith("DistributedError: the program must be the same")
        assert "norm.weight" in found["model"]


def test_weights_that_differ_are_an_error(ranks, folder):
    for found in ranks:
        assert found["diverged"].startswith("DistributedError: the weights after epoch 1 must be")
    assert not CheckpointStore(folder / "lost" / "checkpoint").exists()


def test_results_have_the_figures_of_all(folder):
    record = json.loads((folder / "whole" / "results.json").read_text())
    assert record["world"]["size"] == 2
    assert [rank["samples"] for rank in record["world"]["ranks"]] == [72, 72]  # of two epochs
    assert record["epochs"][0]["samples"] == 72


def test_a_rank_without_held_out_batches_does_not_hang(ranks):
    losses, told = ranks[0]["few held out"]
    assert len(losses) == 3
    assert ranks[1]["few held out"] == (losses, [])
    assert told == []


@pytest.mark.parametrize("name", ["undivided", "undivided loader"])
def test_ranks_that_train_on_the_same_data_are_warned_of(ranks, name):
    _, told = ranks[0][name]
    assert len(told) == 1
    assert "all 2 processes seem to train on the same data" in told[0]
    assert "DistributedSampler" in told[0]
    assert ranks[1][name][1] == [], "rank 0 speaks for all"
