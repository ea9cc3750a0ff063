import json

import pytest
import torch

from torchkiln import CheckpointStore, cli

FACTS = {
    "dataset": {"name": "QM9", "target": "U0", "unit": "eV"},
    "epoch": 2,
    "epochs": [{"validation_mae": 0.5}, {"validation_mae": 0.25}],
    "sums": {"steps": 0},
    "parameters": 12,
}


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # a pipe gets whole lines
    for name in ("good", "hurt", "lost"):
        store = CheckpointStore(tmp_path / "checkpoints" / name)
        for _ in range(2):
            store.save({"model/w": torch.ones(3, 4), "optimizer/0": torch.ones(3)}, FACTS)
    for name, number in (("hurt", 2), ("lost", 1), ("lost", 2)):
        path = tmp_path / f"checkpoints/{name}/checkpoint-00000{number}.safetensors"
        path.write_bytes(b"damaged")
    (tmp_path / "checkpoints/empty").mkdir()
    return tmp_path / "checkpoints"


def call(capsys, *args):
    code = cli.main(["models", *args])
    out, err = capsys.readouterr()
    assert err == ""
    assert code == 0
    return out


def test_all_models_are_listed_with_what_they_predict(models, capsys):
    out = call(capsys, "list")
    assert "3 models in checkpoints" in out
    (line,) = (line for line in out.splitlines() if "checkpoints/good" in line)
    for text in ("good", "U0", "eV", "QM9", "12", "2", "250 meV"):
        assert text in line


def test_damaged_ones_are_named_as_such(models, capsys):
    out = call(capsys, "list")
    assert "hurt: its newest checkpoint is damaged (checkpoint-000002.safetensors" in out
    assert "the one before it is whole and is used" in out
    assert "lost: every checkpoint in checkpoints/lost is damaged" in out
    (line,) = (line for line in out.splitlines() if line.endswith("checkpoints/lost  "))
    assert "damaged" in line


def test_the_error_is_that_of_the_weights_which_predict(tmp_path, capsys):
    epochs = [{"validation_mae": error} for error in (0.5, 0.1, 0.3)]
    facts = {**FACTS, "epochs": epochs, "best": {"epoch": 1, "error": 0.1}}
    CheckpointStore(tmp_path / "one").save({"model/w": torch.ones(3)}, facts)
    out = call(capsys, "list", "--checkpoint_dir", str(tmp_path), "--json")
    assert json.loads(out)[0]["validation_mae"] == 0.1


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": [{"validation_mae": 0.5}, {"validation_mae": None}]},  # switched off on resume
        {"sums": {"steps": 7}},  # interrupted within an epoch
    ],
)
def test_weights_that_nobody_validated_have_no_error(tmp_path, capsys, changes):
    CheckpointStore(tmp_path / "one").save({"model/w": torch.ones(3)}, {**FACTS, **changes})
    out = call(capsys, "list", "--checkpoint_dir", str(tmp_path), "--json")
    assert json.loads(out)[0]["validation_mae"] is None


def test_the_list_is_there_for_scripts_too(models, capsys):
    records = {record["name"]: record for record in json.loads(call(capsys, "list", "--json"))}
    assert records["good"]["validation_mae"] == 0.25
    assert records["good"]["parameters"] == 12
    assert records["lost"]["parameters"] is None
    assert "damaged" in records["lost"]["problem"]


def test_older_checkpoints_that_do_not_say_their_size_are_counted(tmp_path, capsys):
    store = CheckpointStore(tmp_path / "run/checkpoint")  # as Trainer and CosmicTagger keep it
    store.save({"model/w": torch.ones(3, 4), "optimizer/0": torch.ones(3)}, {"epoch": 1})
    out = call(capsys, "list", "--checkpoint_dir", str(tmp_path), "--json")
    (record,) = json.loads(out)
    assert (record["name"], record["parameters"]) == ("run", 12)


def test_no_models_say_how_to_get_one(tmp_path, capsys):
    out = call(capsys, "list", "--checkpoint_dir", str(tmp_path / "none"))
    assert "--checkpoint true --model_name NAME` saves one" in out
