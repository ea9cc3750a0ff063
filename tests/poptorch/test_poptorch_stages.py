"""Several processes divide a PopTorch program at its blocks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from launching import bare, torchrun

SCRIPT = Path(__file__).with_name("_staged_program.py")
EVERYWHERE = {"OMP_NUM_THREADS": "1", "TORCHKILN_BACKEND": "capture"}
TOLD = ["automatic", "increment"]
NAMED = ["pipelined", "sharded"]
WRONG = ["too few", "unknown", "automatic"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What one process found, and two, with stages by name and as many as poprun says."""
    places = {name: tmp_path_factory.mktemp(name) for name in ("one", "named", "told")}
    alone = {**EVERYWHERE, "RANK": "", "WORLD_SIZE": ""}
    bare(SCRIPT, str(places["one"]), *NAMED, *TOLD, ranks=1, env=alone, timeout_s=120)[0].ok()
    torchrun(SCRIPT, str(places["named"]), *NAMED, *WRONG, env=EVERYWHERE, timeout_s=120).ok()
    told = {**EVERYWHERE, "POPDIST_NUM_IPUS_PER_REPLICA": "2"}
    torchrun(SCRIPT, str(places["told"]), *TOLD, env=told, timeout_s=120).ok()
    return {
        name: [torch.load(path) for path in sorted(place.iterdir())]
        for name, place in places.items()
    }


@pytest.mark.parametrize(
    ("place", "name"), [("named", name) for name in NAMED] + [("told", name) for name in TOLD]
)
def test_two_processes_train_what_one_does(found, place, name):
    (one,), ranks = found["one"], found[place]
    assert len(ranks) == 2
    for rank in ranks:
        torch.testing.assert_close(rank[name]["losses"], one[name]["losses"], rtol=0, atol=1e-5)
        torch.testing.assert_close(rank[name]["weights"], one[name]["weights"], rtol=0, atol=1e-5)


def test_too_little_accumulation_is_refused_in_the_originals_words(found):
    for rank in found["named"]:
        assert "gradientAccumulation must be greater than or equal" in rank["too few"]["error"]
        assert "need 3, got 2" in rank["too few"]["error"]


def test_a_block_that_no_stage_names_is_refused_in_the_originals_words(found):
    for rank in found["named"]:
        assert "Unknown block id 'other' in PipelinedExecution" in rank["unknown"]["error"]


def test_automatic_stages_need_to_be_told_how_many_processes_share_a_replica(found):
    for rank in found["named"]:
        assert "poprun --ipus-per-replica=2, or name the stages" in rank["automatic"]["error"]
