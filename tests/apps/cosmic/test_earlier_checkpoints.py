"""Checkpoints of CosmicTagger's own training loop are resumed with the same bits."""

import pytest
import torch
from _tiny_events import Stopping, run

from torchkiln import CheckpointStore
from torchkiln.apps.cosmic import CompiledDevice
from torchkiln.training._interrupt import Interrupted

# What `checkpoint-*.json` held then.
OLD_FACTS = {
    *("torchkiln", "network", "identity", "optimizer", "epoch", "done", "seconds", "epochs"),
}
METRICS = ("accuracy", "non_background_accuracy", "cosmic_iou", "neutrino_iou", "mean_iou")


def write_as_before(store):
    """Put what is saved into the layout that earlier versions wrote."""
    tensors, facts = store.load()
    tensors["history/accuracies"] = tensors.pop("history/series/non_background_accuracy")
    del tensors["history/series/mean_iou"]
    counts = tensors.pop("history/totals/counts", torch.zeros(3, 3, dtype=torch.int64))
    tensors["history/counts"] = counts
    sums = facts.pop("sums")
    newer = ("step", "loader", "scheduler", "average_updates", "threads")
    for name in (*newer, "settings", "parameters", "update"):
        del facts[name]
    epochs = [
        {
            **{name: record[name] for name in ("epoch", "loss", "seconds", "learning_rate")},
            "images": record["samples"],
            **{
                which: {name: record["figures"][f"{which}/{name}"] for name in METRICS}
                for which in ("train", "held_out")
            },
        }
        for record in facts["epochs"]
    ]
    facts = {**facts, "done": sums["steps"], "seconds": sums["seconds"], "epochs": epochs}
    assert facts.keys() == OLD_FACTS
    store.save(tensors, facts)


@pytest.mark.parametrize("update", [1, 3, 5])
def test_a_run_of_an_earlier_version_goes_on_with_the_same_bits(tiny, tmp_path, update):
    straight, expected = run(tiny("run.epochs=2", "run.id=straight"))
    settings = tiny("run.epochs=2", "run.id=stopped")
    with pytest.raises(Interrupted):
        run(settings, Stopping(CompiledDevice(settings), update))
    write_as_before(CheckpointStore(tmp_path / "stopped" / "checkpoint"))
    resumed, record = run(tiny("run.epochs=2", "run.id=stopped", "mode.resume=true"))
    assert record.losses == expected.losses
    assert record.accuracies == expected.accuracies
    for mine, theirs in zip(record.epochs, expected.epochs, strict=True):
        assert (mine.loss, mine.train, mine.held_out) == (
            theirs.loss,
            theirs.train,
            theirs.held_out,
        )
    for name, tensor in straight.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], tensor), name
