"""Stages in several processes train, and infer, what one process does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from _staged_cases import CASES
from launching import bare, torchrun

SCRIPT = Path(__file__).with_name("_staged_cases.py")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
NATIVE = [name for name, case in CASES.items() if case.options["backend"] == "inductor"]
RECORDED = [name for name in CASES if name not in NATIVE]
LIMIT_S = 280


class Runs:
    """What cases left that ran in one process, and in several."""

    def __init__(self, folder: Path, num_stages: int, num_pipelines: int, names: list[str]) -> None:
        self._folder = folder
        self._size = num_stages * num_pipelines
        for part in ("alone", "together"):
            (folder / part).mkdir(parents=True)
        words = [str(num_stages), str(num_pipelines), *names]
        shared = {**ONE_THREAD, "POPTORCH_CACHE_DIR": str(folder / "cache")}
        alone = {**shared, "RANK": "", "WORLD_SIZE": ""}
        place = str(folder / "alone")
        (one,) = bare(SCRIPT, place, *words, ranks=1, timeout_s=LIMIT_S, env=alone)
        one.ok()
        place = str(folder / "together")
        torchrun(SCRIPT, place, *words, ranks=self._size, timeout_s=LIMIT_S, env=shared).ok()

    def alone(self, name: str) -> dict[str, Any]:
        loaded: dict[str, Any] = torch.load(self._folder / "alone" / f"{name}-0.pt")
        return loaded

    def together(self, name: str) -> list[dict[str, Any]]:
        paths = [self._folder / "together" / f"{name}-{rank}.pt" for rank in range(self._size)]
        return [torch.load(path) for path in paths]

    def compare(self, name: str, num_pipelines: int = 1) -> None:
        tolerance = CASES[name].tolerance
        alone, ranks = self.alone(name), self.together(name)
        for rank in ranks:
            for part in ("weights", "last", "state"):
                if not _has_averages(name) or num_pipelines == 1:
                    torch.testing.assert_close(rank[part], ranks[0][part], rtol=0, atol=0)
        first = ranks[0]
        for part in ("weights", "last"):
            ours, theirs = _without_counts(first[part]), _without_counts(alone[part])
            if num_pipelines > 1 and _has_averages(name):
                continue  # each pipeline has averages of its own
            torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)
        torch.testing.assert_close(first["state"], alone["state"], rtol=1e-3, atol=tolerance)
        if num_pipelines == 1:
            for rank in ranks:
                torch.testing.assert_close(rank["outputs"], ranks[0]["outputs"], rtol=0, atol=0)
            torch.testing.assert_close(
                first["outputs"], alone["outputs"], rtol=1e-5, atol=tolerance
            )
        if first["notes"] is not None:
            size = CASES[name].options.get("gradient_accumulation", 1)
            count = size * CASES[name].options.get("replication_factor", 1)
            iterations = CASES[name].options.get("device_iterations", 1)
            assert first["notes"].tolist() == [[[count]] * self._size] * iterations


def _has_averages(name: str) -> bool:
    return "tagger" in name


def _without_counts(weights: Any) -> Any:
    """Return weights without counters, which count the calls of each pipeline."""
    if isinstance(weights, list):
        return [_without_counts(one) for one in weights]
    return {name: value for name, value in weights.items() if value.is_floating_point()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"), 2, 1, RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_two_stages_do_what_one_process_does(runs, name):
    runs.compare(name)


def test_buffers_count_as_in_one_process(runs):
    together, alone = runs.together("skipping")[1]["last"], runs.alone("skipping")["last"]
    assert int(together["num_calls"]) == int(alone["num_calls"]) == 50
    assert torch.equal(together["frozen"], alone["frozen"])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.inductor
def test_native_stages_do_what_one_process_does(tmp_path):
    runs = Runs(tmp_path, 2, 1, NATIVE)
    for name in NATIVE:
        runs.compare(name)
        assert all(rank["compiles"] == 1 for rank in runs.together(name))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_stages_do_what_one_process_does(tmp_path):
    runs = Runs(tmp_path, 3, 1, RECORDED)
    for name in RECORDED:
        runs.compare(name)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_pipelines_do_what_two_replicas_do(tmp_path):
    names = [name for name in RECORDED if CASES[name].optimizer is not None]
    runs = Runs(tmp_path, 2, 2, names)
    for name in names:
        runs.compare(name, num_pipelines=2)
