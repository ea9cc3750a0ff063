"""Divided state of an optimiser: saved, loaded, gathered, lost; two ranks tell."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import bare, start_bare, torchrun

CHECKS = Path(__file__).with_name("_sharding_checks.py")
FAULTS = Path(__file__).with_name("_sharding_faults.py")
LIMIT_S = 280
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
ALONE = {**ONE_THREAD, "RANK": "", "WORLD_SIZE": ""}


def on_ranks(folder: Path, *names: str, ranks: int = 2) -> list[dict[str, Any]]:
    """Return what each rank found in checks."""
    torchrun(CHECKS, str(folder), *names, ranks=ranks, timeout_s=LIMIT_S, env=ONE_THREAD).ok()
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def alone(folder: Path, num_ranks: int) -> None:
    """Let one process train in the place of several."""
    words = [str(folder), "alone", str(num_ranks)]
    bare(CHECKS, *words, ranks=1, timeout_s=LIMIT_S, env=ALONE)[0].ok()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sharded_state")


@pytest.fixture(scope="module")
def told(folder: Path) -> list[dict[str, Any]]:
    """What each of two ranks found, where one process had left a state."""
    alone(folder, 2)
    return on_ranks(folder)


def same(told: list[dict[str, Any]], name: str) -> Any:
    """Return what both ranks found."""
    first, second = (rank[name] for rank in told)
    assert first == second
    return first


def test_state_is_shown_only_when_it_was_gathered(told):
    for rank, found in enumerate(told):
        texts, num_states, wrong, is_same = found["state_is_shown_when_it_was_gathered"]
        refused = ["no error", "state_dict() needs", "step() outside", "", "no error", "state_dict"]
        refused[3] = "state_dict() needs" if rank else "no error"
        for text, words in zip(texts, refused, strict=True):
            assert words in text
        assert "gather_optimizer_state() of the program" in texts[1]
        assert "on all ranks first" in texts[1]
        # Nothing before the first update; the layer that nobody uses has no state.
        assert num_states == ([0, 6] if rank else [0, 6, 6])
        assert 'to must be "all" or "first"' in wrong
        assert is_same


def test_divided_state_is_never_left_behind_by_a_copy(told):
    texts, num_states, is_same, is_undisturbed = same(told, "copies_of_the_optimizer")
    # There is nothing to lose before the first update.
    assert texts[:3] == ["no error"] * 3
    assert texts[-1] == "no error", "nobody divides the state of a copy"
    for text in texts[3:-1]:
        assert text.startswith(
            "OptimizerError: a copy or a pickle of the optimiser needs the whole"
        )
        assert "gather_optimizer_state() of the program" in text
    assert num_states == 6
    assert is_same == [True, True]
    assert is_undisturbed


def test_each_rank_has_its_share_of_the_state_and_nothing_else(told):
    parameters, own, predicted, left = same(told, "bytes_of_state")
    # Adam keeps two numbers for each parameter: one of them is here, the other one there.
    assert parameters <= own < 1.01 * parameters
    assert predicted == pytest.approx(parameters, rel=0.001)
    assert left == 0


def test_saved_state_goes_on_with_the_same_bits_divided_or_whole(told):
    assert same(told, "saved_state_goes_on") == [True] * 4


def test_state_of_one_process_goes_on_in_several(told):
    assert same(told, "state_of_others_goes_on") is True


def test_divided_state_goes_on_in_one_process(told, folder):
    alone(folder, 2)
    reached = json.loads((folder / "alone.json").read_text())
    expected = same(told, "straight_run")
    for one, other in zip(reached, expected, strict=True):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_ranks", [3, 4])
def test_state_of_two_ranks_goes_on_in_more(told, folder, tmp_path, num_ranks):
    (tmp_path / "foreign.pt").write_bytes((folder / "divided.pt").read_bytes())
    found = on_ranks(
        tmp_path,
        "state_of_others_goes_on",
        "saved_state_goes_on",
        "bytes_of_state",
        ranks=num_ranks,
    )
    for rank in found:
        assert rank["state_of_others_goes_on"] is True
        assert rank["saved_state_goes_on"] == [True] * 4
        parameters, own, *_ = rank["bytes_of_state"]
        assert 2 * parameters <= num_ranks * own < 2.02 * parameters


@pytest.mark.parametrize(
    "name",
    [
        "state_that_rank_0_alone_has",
        "a_step_of_torch_between_calls",
        "a_profile_of_one_rank",
        "weights_that_were_replaced",
    ],
)
def test_a_run_has_the_weights_of_one_with_whole_state(told, name):
    assert same(told, name) is True


def test_state_that_is_loaded_in_the_middle_counts(told):
    is_kept, is_same, is_fresh = same(told, "state_that_is_loaded_in_the_middle")
    assert is_kept
    assert is_same
    assert is_fresh


def test_state_that_all_ranks_change_counts_and_that_of_one_is_an_error(told):
    first, second = (rank["state_that_was_changed_by_hand"] for rank in told)
    assert first[:2] == second[:2] == [True, True]
    assert 'gather it to="all" and change it on all ranks' in first[2]


def test_state_outlives_the_executable(told):
    refused, num_states, is_same, num_left = same(told, "compiled_again")
    assert "OptimizerError: state_dict() needs" in refused
    assert num_states == num_left == 6
    assert is_same


def test_a_part_that_is_lost_with_its_program_is_an_error_until_a_state_is_loaded(told):
    *refused, is_same = same(told, "a_program_that_is_gone")
    for text in refused:
        assert "the program that held this rank's part of the optimiser's state is gone" in text
    assert is_same


def test_programs_that_share_an_optimiser_are_refused(told):
    other, lone = same(told, "two_programs_with_one_optimizer")
    assert "another program divides the state of this optimiser" in other
    assert "needs the whole state" in lone


def test_state_moves_to_another_optimiser(told):
    assert same(told, "another_optimizer") == [True, True]


def test_an_update_that_is_broken_off_leaves_nothing_behind(told):
    error, is_zero, is_same = same(told, "an_interrupted_update")
    assert error.startswith("KeyboardInterrupt")
    assert is_zero
    assert is_same


def test_ranks_at_different_updates_are_told_so(told):
    (updates, rates), is_zero = same(told, "different_updates")
    assert "rank 0 at 3, rank 1 at 4" in updates
    assert "rank 1 would update with other numbers" in rates
    assert is_zero


def test_what_cannot_be_divided_is_refused_with_a_remedy(told):
    for found in told:
        eager, gaps, differing = found["what_cannot_be_divided"]
        assert "use backend='inductor' or backend='capture'" in eager
        assert "'second.weight' has strides (74, 2)" in gaps
        assert "tensor.contiguous()" in gaps
        assert "option shard_optimizer is 'True' on rank 0, 'False' on rank 1" in differing


def test_programs_in_files_need_whole_state_and_as_many_parts(told):
    (export, other_parts), is_same, is_divided = same(told, "files_of_programs")
    assert "export() needs the whole state" in export
    assert "compiled for optimiser state in 2 part(s), but the options make 1" in other_parts
    assert is_same
    assert is_divided


@pytest.mark.parametrize(
    "where", ["sum_own_part_", pytest.param("gather_parts", marks=pytest.mark.slow)]
)
def test_a_rank_that_is_killed_in_an_update_is_named(where):
    with start_bare(FAULTS, where, ranks=2, env=ONE_THREAD) as running:
        survivor = running[0].wait(60)
    words = r"rank 0: rank 1 \(process \d+ on .*\) was lost while rank 0 was at update 2"
    assert re.search(words, survivor.output), survivor.output
    assert survivor.returncode == 3
