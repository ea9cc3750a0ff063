"""Several processes train what one process with all their replicas trains, bit by bit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from _together_cases import CASES
from launching import bare, torchrun

TRAINER = Path(__file__).with_name("_together_cases.py")
# As many threads in one process as in each of several: matrix products add up in the same order.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
LIMIT_S = 280
LONG = [name for name in CASES if name.startswith("long")]
SHORT = [name for name in CASES if name not in LONG]


class Runs:
    """What cases left that were trained in one process, and in several."""

    def __init__(self, folder: Path, num_ranks: int, names: list[str], limit_s: float) -> None:
        self._folder = folder
        self._num_ranks = num_ranks
        for part in ("folded", "together"):
            (folder / part).mkdir()
        words = [str(num_ranks), *names]
        # What one process compiled serves several.
        shared = {**ONE_THREAD, "POPTORCH_CACHE_DIR": str(folder / "cache")}
        alone = {**shared, "RANK": "", "WORLD_SIZE": ""}
        place = str(folder / "folded")
        (folded,) = bare(TRAINER, place, *words, ranks=1, timeout_s=limit_s, env=alone)
        folded.ok()
        place = str(folder / "together")
        torchrun(TRAINER, place, *words, ranks=num_ranks, timeout_s=limit_s, env=shared).ok()

    def folded(self, name: str) -> dict[str, Any]:
        loaded: dict[str, Any] = torch.load(self._folder / "folded" / f"{name}-0.pt")
        return loaded

    def together(self, name: str) -> list[dict[str, Any]]:
        paths = [self._folder / "together" / f"{name}-{r}.pt" for r in range(self._num_ranks)]
        return [torch.load(path) for path in paths]

    def compare(self, name: str) -> None:
        """Check that ranks are equal after every call, and train what one process trains."""
        tolerance = CASES[name].tolerance
        folded, ranks = self.folded(name), self.together(name)
        assert len(folded["weights"]) == CASES[name].num_calls
        for rank in ranks:
            torch.testing.assert_close(rank["weights"], ranks[0]["weights"], rtol=0, atol=0)
            torch.testing.assert_close(rank["losses"], ranks[0]["losses"], rtol=0, atol=0)
            torch.testing.assert_close(rank["state"], ranks[0]["state"], rtol=0, atol=0)
        first = ranks[0]
        torch.testing.assert_close(first["weights"], folded["weights"], rtol=0, atol=tolerance)
        scale = float(folded["losses"].max())
        atol = 10 * tolerance * max(scale, 1.0)
        torch.testing.assert_close(first["losses"], folded["losses"], rtol=0, atol=atol)
        assert math.isfinite(float(folded["losses"].sum()))
        assert not torch.equal(first["weights"][0][0], first["weights"][-1][0])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"), 2, SHORT, LIMIT_S)


@pytest.mark.parametrize("name", SHORT)
def test_two_ranks_train_what_one_process_with_their_replicas_trains(runs, name):
    runs.compare(name)


def test_the_executable_of_one_process_serves_several(runs):
    native = [name for name in SHORT if CASES[name].options["backend"] == "inductor"]
    assert sum(runs.folded(name)["compiles"] for name in native) == len(native) > 1
    assert not any(rank["compiles"] for name in native for rank in runs.together(name))


@pytest.mark.slow
@pytest.mark.timeout(1300)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_schnet_has_the_bits_of_folded_replicas(tmp_path, num_ranks):
    runs = Runs(tmp_path, num_ranks, LONG, 600)
    for name in LONG:
        runs.compare(name)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_ranks", [3, 4])
def test_more_ranks_train_what_one_process_with_their_replicas_trains(tmp_path, num_ranks):
    # Only "folded" promises an order of more than two summands.
    names = [name for name in SHORT if name != "fastest"]
    runs = Runs(tmp_path, num_ranks, names, 400)
    for name in names:
        runs.compare(name)
