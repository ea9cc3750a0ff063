"""Checkpoints of before there was one training loop are resumed with the same bits."""

import json
import signal

import pytest
import torch
from _tiny_training import SIGNAL_AT, SignalMonitor, facts_of, make_full_job

from torchkiln import CheckpointStore
from torchkiln.apps.schnet._trainer import train

# What `checkpoint-*.json` and `.safetensors` held then.
OLD_FACTS = {
    *("torchkiln", "model_name", "model", "transform", "dataset", "epoch", "step", "sums"),
    *("epochs", "loader", "optimizer", "scheduler", "average_updates", "threads", "identity"),
    "settings",
}
OLD_EPOCH = {
    *("epoch", "loss", "seconds", "molecules", "molecules_per_s", "learning_rate"),
    *("validation_mae", "validation_loss"),
}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def write_as_before(store):
    """Put what is saved into the layout that earlier versions wrote."""
    tensors, facts = store.load()
    del facts["best"]
    tensors = {name: t for name, t in tensors.items() if not name.startswith("best/")}
    facts["sums"]["molecules"] = facts["sums"].pop("samples")
    for record in facts["epochs"]:
        record["molecules"] = record.pop("samples")
        record["molecules_per_s"] = record.pop("samples_per_s")
        assert record.keys() == OLD_EPOCH
    for name in ("parameters", "update"):
        del facts[name]
    assert facts.keys() == OLD_FACTS
    assert {name.split("/")[0] for name in tensors} == {
        *("model", "average", "optimizer", "random", "history")
    }
    store.save(tensors, facts)


def test_a_run_of_an_earlier_version_goes_on_with_the_same_bits(tmp_path):
    expected = train(make_full_job(None))
    stopped = train(make_full_job(tmp_path), SignalMonitor(signal.SIGINT, SIGNAL_AT))
    assert stopped.status == "interrupted"
    write_as_before(CheckpointStore(tmp_path / "tiny"))
    resumed = train(make_full_job(tmp_path, resume=True))
    assert json.dumps(facts_of(resumed)) == json.dumps(facts_of(expected))
