"""An optimiser that is divided among ranks trains what a whole one trains, bit by bit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from _sharding_cases import CASES, NUM_CALLS
from launching import torchrun

TRAINER = Path(__file__).with_name("_sharding_cases.py")
LIMIT_S = 280
LONG = [name for name in CASES if name.startswith("long")]
SHORT = [name for name in CASES if name not in LONG]


class Runs:
    """What ranks found in cases that they trained with whole and with divided state."""

    def __init__(self, folder: Path, num_ranks: int, names: list[str], limit_s: float) -> None:
        self._folder = folder
        self._num_ranks = num_ranks
        env = {"OMP_NUM_THREADS": "1"}
        words = [str(folder), *names]
        torchrun(TRAINER, *words, ranks=num_ranks, timeout_s=limit_s, env=env).ok()

    def of(self, name: str) -> list[dict[str, Any]]:
        paths = [self._folder / f"{name}-{rank}.pt" for rank in range(self._num_ranks)]
        return [torch.load(path) for path in paths]

    def compare(self, name: str) -> None:
        """Check that ranks are equal after every call, and train what whole state trains."""
        tolerance = CASES[name].tolerance
        ranks = self.of(name)
        for rank in ranks:
            same(rank["divided"]["weights"], ranks[0]["divided"]["weights"])
            same(rank["divided"]["state"], ranks[0]["divided"]["state"])
            same(rank["divided"]["losses"], ranks[0]["divided"]["losses"])
        whole, divided = ranks[0]["whole"], ranks[0]["divided"]
        assert len(divided["weights"]) == NUM_CALLS
        same(divided["weights"], whole["weights"], tolerance)
        same(divided["losses"], whole["losses"], 10 * tolerance)
        assert divided["state"]["param_groups"] == whole["state"]["param_groups"]
        same(divided["state"]["state"], whole["state"]["state"], tolerance)
        assert divided["dtypes"] == whole["dtypes"]
        assert all(math.isfinite(float(part.sum())) for part in divided["weights"][-1])
        assert not torch.equal(divided["weights"][0][0], divided["weights"][-1][0])


def same(found: Any, expected: Any, tolerance: float = 0.0) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("sharding"), 2, SHORT, LIMIT_S)


@pytest.mark.parametrize("name", SHORT)
def test_two_ranks_train_the_same_with_divided_state(runs, name):
    runs.compare(name)


def test_one_executable_serves_all_ranks(runs):
    first, second = (rank["divided"]["compiles"] for rank in runs.of("native adamw"))
    assert (first, second) == (1, 0)


@pytest.mark.slow
@pytest.mark.timeout(1300)
def test_native_code_has_the_bits_of_whole_state(tmp_path):
    runs = Runs(tmp_path, 2, LONG, 1200)
    for name in LONG:
        runs.compare(name)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_ranks", [3, 4])
def test_more_ranks_train_the_same_with_divided_state(tmp_path, num_ranks):
    # Whole sums are added in the library's order then, those of parts in that of ranks.
    names = [name for name in SHORT if name != "fastest"]
    runs = Runs(tmp_path, num_ranks, names, 800)
    for name in names:
        runs.compare(name)
