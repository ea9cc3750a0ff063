"""A run of CosmicTagger that is continued has the settings of its checkpoint."""

import dataclasses
import json
import shlex

import pytest
from _tiny_events import Stopping, run

from torchkiln import CheckpointStore
from torchkiln.apps.cosmic import CompiledDevice, main, read_settings
from torchkiln.apps.cosmic._stored import is_cosmic, read_cosmic
from torchkiln.core import CheckpointError, StoreError
from torchkiln.training._interrupt import Interrupted


@pytest.fixture
def stopped(tiny):
    """The settings of a run that Ctrl-C stopped, and what it said at the end."""
    settings = tiny("run.epochs=2", "mode.optimizer.name=rmsprop", "run.id=my run")
    said = []
    with pytest.raises(Interrupted):
        run(settings, Stopping(CompiledDevice(settings), 2), said.append)
    return settings, said[-1]


def test_the_hint_is_a_whole_command_and_works(stopped, tmp_path):
    settings, said = stopped
    python, script, *arguments = shlex.split(said.partition("; go on with ")[2])
    assert (python, script) == ("python", "cosmic_tagger.py")
    assert arguments == ["mode.resume=true", "run.id=my run", f"run.output_dir={tmp_path}"]
    resumed = read_settings(arguments)
    mode = dataclasses.replace(settings.mode, resume=True)
    assert resumed == dataclasses.replace(settings, mode=mode)
    _, record = run(resumed)
    assert len(record.losses) == 6


def test_what_is_given_wins_and_contradictions_are_named_as_they_are_written(stopped, tmp_path):
    again = ["mode.resume=true", "run.id=my run", f"run.output_dir={tmp_path}"]
    assert read_settings([*again, "run.backend=eager"]).run.backend == "eager"
    expected = r"run\.epochs=3 \(the checkpoint has 2\)"
    with pytest.raises(CheckpointError, match=expected):
        run(read_settings([*again, "run.epochs=3"]))


def test_checkpoints_of_earlier_versions_kept_less_and_still_go_on(stopped, tmp_path):
    settings, _ = stopped
    store = CheckpointStore(settings.run.directory / "checkpoint")
    tensors, facts = store.load()
    del facts["settings"]
    store.save(tensors, facts)
    resumed = read_settings(["mode.resume=true", "run.id=my run", f"run.output_dir={tmp_path}"])
    assert resumed.mode.optimizer == settings.mode.optimizer
    assert resumed.network == settings.network
    assert resumed.data == settings.data


def test_its_results_are_read_as_those_of_any_run(tiny_args, tmp_path):
    assert main([*tiny_args, "run.id=first", "mode.num_pictures=0"]) == 0
    path = tmp_path / "first/results.json"
    assert is_cosmic(path)
    result = read_cosmic(path)
    assert result.counted == "images"
    assert len(result.steps) == 3
    assert result.epochs[0].samples == 6
    assert 0 <= result.epochs[0].figures["held_out/mean_iou"] <= 1
    path.write_text(path.read_text().replace('"images": 6', '"images": 7'))
    with pytest.raises(StoreError, match="does not have its checksum"):
        read_cosmic(path)
    path.write_text(json.dumps({"metrics": {}}))
    with pytest.raises(StoreError, match="is damaged"):
        read_cosmic(path)
    path.write_text("no json")
    assert not is_cosmic(path)
