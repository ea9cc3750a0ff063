"""Programs of the public kind run unchanged under poprun, with the weights of one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from launching import SOURCE, Outcome, command, torchrun

PROGRAMS = Path(__file__).parent / "programs"
POPRUN = "import sys; from torchkiln.commands._poprun import poprun; sys.exit(poprun())"
# No code is generated; lines of two processes are not written into each other.
ENVIRONMENT = {"TORCHKILN_BACKEND": "capture", "PYTHONUNBUFFERED": ""}


def run_alone(program: str, output: Path, *arguments: str) -> dict:
    """Run a program without any launcher, and return what it found."""
    words = [sys.executable, PROGRAMS / program, "--output", output, *arguments]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return torch.load(output / "instance0.pt")


def run_instances(
    program: str, output: Path, *arguments: str, instances: int, replicas: int
) -> tuple[list[dict], Outcome]:
    """Run it under poprun, and return what each instance found, and what they said."""
    counts = [f"--num-instances={instances}", f"--num-replicas={replicas}"]
    words = [sys.executable, "-c", POPRUN, *counts, "python3", str(PROGRAMS / program)]
    with command([*words, "--output", str(output), *arguments], ENVIRONMENT) as running:
        done = running.wait(timeout_s=100).ok()
    return [torch.load(output / f"instance{number}.pt") for number in range(instances)], done


def assert_same_weights(found: dict, expected: dict) -> None:
    assert found["weights"].keys() == expected["weights"].keys()
    for name, weight in expected["weights"].items():
        assert torch.equal(found["weights"][name], weight), name


def folded_losses(ranks: list[dict], local_replicas: int) -> list[torch.Tensor]:
    """Return the losses of each call in the order of one process with all replicas."""
    parts = zip(*(one["losses"] for one in ranks), strict=True)
    return [torch.stack([p.view(-1, local_replicas) for p in part], 1).flatten() for part in parts]


@pytest.mark.parametrize(
    "program", ["train_classifier.py", pytest.param("train_graphs.py", marks=pytest.mark.slow)]
)
def test_two_instances_give_the_weights_of_one_process_with_two_replicas(program, tmp_path):
    alone = run_alone(program, tmp_path, "--replicas", "2")
    ranks, _ = run_instances(program, tmp_path, instances=2, replicas=2)
    for one in ranks:
        assert_same_weights(one, alone)
    folded = folded_losses(ranks, 1)
    assert len(folded) == len(alone["losses"])
    for found, expected in zip(folded, alone["losses"], strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_under_a_shuffle_instances_agree_and_share_the_data(tmp_path):
    program = "train_classifier.py"
    ranks, done = run_instances(program, tmp_path, "--shuffle", instances=2, replicas=4)
    assert_same_weights(*ranks)
    # Both validated half of the 64 samples.
    assert [one["counts"][1].item() for one in ranks] == [64, 64]
    assert done.stdout.count("accuracy") == 1
    assert "overridden by poprun. The new value is 4." in done.stderr


WITHOUT_POPDIST = """
import sys, warnings
import torch, poptorch

warnings.simplefilter("error")

def train(options, seed):
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 1)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.nn.MSELoss()
    class Training(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model
        def forward(self, x, y):
            out = self.model(x)
            return out, loss(out, y)
    program = poptorch.trainingModel(Training(), options, optimizer=optimizer)
    x = torch.arange(48.0).reshape(16, 3) / 48
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    for batch in poptorch.DataLoader(options, data, batch_size=4):
        program(*batch)
    return model.weight.detach().flatten().tolist()

together = poptorch.Options()
rank = together.Distributed.processId
alone = poptorch.Options()
alone.Distributed.disable()
folded = poptorch.Options().replicationFactor(2)
folded.Distributed.disable()
found = {
    "together": train(together, seed=rank),
    "alone": train(alone, seed=rank),
    "folded": train(folded, seed=0),
}
torch.save(found, f"{sys.argv[1]}/rank{rank}.pt")
"""


def test_options_without_popdist_join_the_processes_that_torchrun_started(tmp_path):
    torchrun(WITHOUT_POPDIST, str(tmp_path), env=ENVIRONMENT).ok()
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2))
    assert first["together"] == second["together"] == first["folded"]
    assert first["alone"] != second["alone"]


@pytest.mark.slow
def test_four_replicas_in_four_and_in_two_instances_give_the_weights_of_one_process(tmp_path):
    program = "train_classifier.py"
    alone = run_alone(program, tmp_path, "--replicas", "4")
    ranks, _ = run_instances(program, tmp_path, instances=4, replicas=4)
    for one in ranks:
        assert_same_weights(one, alone)
    ranks, _ = run_instances(program, tmp_path, instances=2, replicas=4)
    assert_same_weights(*ranks)
    # Each instance first sums its own two gradients: another order, another rounding.
    torch.testing.assert_close(ranks[0]["weights"], alone["weights"], rtol=0, atol=1e-6)
