import subprocess
import sys

import pytest
import torch

from torchkiln import CheckpointError, CheckpointStore
from torchkiln.checkpoints._generations import list_generations, read_newest


@pytest.fixture
def store(tmp_path):
    store = CheckpointStore(tmp_path / "one")
    for epoch in (1, 2):
        store.save({"model/w": torch.ones(3, 4), "model/b": torch.ones(())}, {"epoch": epoch})
    return store


def test_facts_and_sizes_are_read(store):
    newest = read_newest(store.directory)
    assert newest.facts == {"epoch": 2}
    assert newest.sizes() == {"model/w": 12, "model/b": 1}
    assert list_generations(store.directory) == [1, 2]


def test_a_damaged_generation_is_passed_over(store):
    tensors = store.directory / "checkpoint-000002.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1])
    assert read_newest(store.directory).facts == {"epoch": 1}
    (store.directory / "checkpoint-000001.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"every checkpoint in .* is damaged: .*checksum"):
        read_newest(store.directory)


def test_nothing_saved_is_said(tmp_path):
    assert list_generations(tmp_path) == []
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        read_newest(tmp_path)


def test_no_torch_is_needed(store):
    code = (
        "import sys; from pathlib import Path\n"
        "from torchkiln.checkpoints._generations import read_newest\n"
        "print(read_newest(Path(sys.argv[1])).facts, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(store.directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'epoch': 2} False"
