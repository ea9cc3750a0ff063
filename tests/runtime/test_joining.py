"""Becoming one of several processes: what is compared, shared and different; two ranks tell."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from launching import torchrun

from torchkiln import Options, training_model
from torchkiln.core import DistributedError
from torchkiln.runtime import _joining
from torchkiln.runtime._joining import MAY_DIFFER
from torchkiln.runtime.optim._binding import OptimizerBinding

CHECKS = Path(__file__).with_name("_together_checks.py")
LIMIT_S = 280


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    folder = tmp_path_factory.mktemp("checks")
    torchrun(CHECKS, str(folder), timeout_s=LIMIT_S, env={"OMP_NUM_THREADS": "1"}).ok()
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def same(told: list[dict[str, Any]], name: str) -> Any:
    """Return what both ranks found."""
    first, second = (rank[name] for rank in told)
    assert first == second
    return first


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("another_model", "first.weight) is 'float32[3, 4]' on rank 0, 'float32[4, 4]' on rank 1"),
        ("another_rate", "lr of group 0 is '0.1' on rank 0, '0.2' on rank 1"),
        ("other_groups", "group of second.weight is '0' on rank 0, '1' on rank 1"),
        ("other_options", "option reduction is 'mean' on rank 0, 'sum' on rank 1"),
        ("other_arguments", "argument x is 'float32[5, 4]' on rank 0, 'float32[6, 4]' on rank 1"),
        ("another_layout", "strides of 0.weight is"),
    ],
)
def test_programs_that_differ_are_refused_on_all_ranks(told, name, words):
    error = same(told, name)
    assert error.startswith("DistributedError: the program must be the same on all ranks")
    assert words in error
    assert error.endswith("make model, optimiser and options alike on every rank")


def test_gradients_that_reach_other_parameters_are_refused_on_all_ranks(told):
    error = same(told, "a_forward_that_depends_on_the_rank")
    assert "second.weight is nothing on rank 0, 'reached' on rank 1" in error
    assert "do not let it depend on the rank" in error


def test_folders_and_seeds_may_differ(told):
    assert same(told, "other_folders_are_fine")


def test_options_of_another_rank_are_refused(told):
    error = told[1]["options_of_another_rank"]
    assert error.startswith("OptionsError: the options say process 0 of 2, but this is rank 1 of 2")
    assert "start().options(options)" in error


def test_a_model_of_its_own_for_each_process_is_warned_about_once(told):
    warned, is_alone = same(told, "lone_training_warns_once")
    assert is_alone
    assert len(warned) == 1
    assert "one of 2 processes" in warned[0]
    assert "world.options(options)" in warned[0]


def test_ranks_at_different_updates_are_an_error_that_leaves_no_sums(told):
    error, is_zero, weights = same(told, "different_updates")
    assert "(rank 0 at 2, rank 1 at 3)" in error
    assert is_zero
    assert weights


def test_ranks_with_different_rates_are_an_error_until_they_agree(told):
    error, weights = same(told, "different_rates_later")
    assert error.startswith("DistributedError: rank 1 would update with other numbers than rank 0")
    assert weights


def test_ranks_that_call_different_programs_are_an_error(told):
    error, is_kept = same(told, "programs_in_another_order")
    assert error.startswith("DistributedError: rank 1 would update with other numbers")
    assert "calls another program" in error
    assert is_kept


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("weights_that_one_rank_loads", "first.weight and 3 more"),
        ("weights_that_one_rank_replaces", "first.weight:"),
        ("state_that_one_rank_loads", "momentum_buffer of first.weight and 3 more"),
    ],
)
def test_what_one_rank_changes_between_calls_is_an_error_until_all_do(told, name, words):
    for error, is_kept, later, _ in (rank[name] for rank in told):
        assert f"the ranks no longer have the same {words}" in error
        assert "of rank 1 since the last call" in error
        assert is_kept
        assert later == "no error"
    assert told[0][name][-1] == told[1][name][-1]


def test_weights_that_are_the_same_again_are_no_change(told):
    assert same(told, "weights_that_are_put_back")


def test_an_update_that_was_broken_off_leaves_nothing(told):
    error, is_zero, weights, undisturbed = same(told, "interrupted")
    assert error.startswith("KeyboardInterrupt")
    assert is_zero
    assert weights == undisturbed


def test_as_many_notes_must_be_written_everywhere(told):
    error = same(told, "numbers_of_notes_differ")
    assert "number of notes must be the same on all ranks: 1 on rank 0, 2 on rank 1" in error


def test_notes_are_what_each_rank_wrote(told):
    one, other = (rank["notes_say_what_each_rank_wrote"] for rank in told)
    first, shapes, later, dtype = one
    assert str(one) == str(other)
    tiny = torch.tensor(-1e-30).item()
    for update in first:
        assert [row[0] for row in update] == [0.5, 1.5]
        assert all(math.isnan(row[1]) and row[2] == tiny for row in update)
    assert shapes == [[[2, 3], [], [2, 3], []]] * 2
    assert later == [[[2.0], [2.0]]] * 2
    assert dtype == "torch.float32"


def test_all_ranks_go_on_with_the_state_of_rank_0(told):
    weights, state, noise = same(told, "state_of_rank_0")
    assert weights[0] == [1.0, 1.0]
    assert sorted(state) == ["1", "2", "3", "4"]
    assert {own["step"] for own in state.values()} == {5.0}
    assert len(noise) == 3


def test_a_gradient_on_one_rank_moves_the_parameter_on_all(told):
    (left, right, neither), num_states = same(told, "gradients_that_reach_one_rank_only")
    assert left[0] > 1 > right[0]
    assert neither == [1.0, 1.0]
    assert num_states == 2


def test_lazy_layers_begin_alike_and_keep_their_own_running_statistics(told):
    (weights, mean), (other_weights, other_mean) = (rank["lazy_layers"] for rank in told)
    assert weights == other_weights
    assert mean != other_mean


def test_inference_needs_nobody(told):
    is_alone, error = same(told, "inference_is_nobody_elses_business")
    assert is_alone
    assert "has no updates; use training_model" in error


@pytest.mark.parametrize("name", ["masks_with_a_seed", "masks_after_equal_seeds"])
def test_ranks_draw_different_masks(told, name):
    first, second = (rank[name] for rank in told)
    assert first[0] != first[1]
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_random_numbers_that_differ_already_are_left_alone(told):
    assert [rank["a_state_of_ones_own_is_kept"] for rank in told] == [100, 101]


def test_one_rank_may_profile(told):
    refused, weights = same(told, "a_profile_of_one_rank")
    assert refused.startswith("NotCompiledError")
    assert "on all ranks before profile()" in refused
    assert weights


def test_sums_that_are_exchanged_count_in_a_memory_report(told):
    others, alone, sums = same(told, "memory_of_gradient_sums")
    assert sums > 0
    assert 0 <= others <= alone


def test_collectives_are_traced_and_timed(told):
    num_spans, is_timed = same(told, "collectives_are_traced")
    assert num_spans == 3
    assert is_timed


def test_a_program_is_compiled_once_and_loaded_for_each_rank(told):
    first, second = (rank["one_rank_compiles_and_files_are_loaded"] for rank in told)
    assert (first[0], second[0]) == (1, 0)
    assert (first[1], second[1]) == ([2, 0], [2, 1])
    assert first[2] == first[3] == second[2] == second[3]
    assert first[4] != second[4], "they draw different numbers after loading, too"


def test_several_processes_need_a_group():
    options = Options(num_processes=2, backend="eager")
    with pytest.raises(DistributedError, match=r"start\(\) first.*torchrun.*sync_gradients=False"):
        training_model(torch.nn.Linear(2, 1), options)
    alone = training_model(torch.nn.Linear(2, 1), options.replace(sync_gradients=False))
    assert alone.group is None


def test_options_that_may_differ_exist_and_have_a_reason():
    assert MAY_DIFFER.keys() <= Options().to_dict().keys()
    assert all(len(reason) > 10 for reason in MAY_DIFFER.values())


def test_a_launched_process_that_joined_nobody_is_warned(monkeypatch):
    monkeypatch.setattr(_joining, "_has_warned", False)
    monkeypatch.setattr(_joining, "current", lambda: None)  # other tests may have started a world
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = Options(backend="eager", sync_gradients=False)
        training_model(torch.nn.Linear(2, 1), chosen)
    with pytest.warns(UserWarning, match="one of 2 processes.*model of its own"):
        training_model(torch.nn.Linear(2, 1), Options(backend="eager"))


def test_objects_in_groups_of_the_optimiser_are_not_compared():
    def digest(tag, rate):
        group = {"params": torch.nn.Linear(2, 1).parameters(), "tag": tag}
        binding = OptimizerBinding(torch.optim.SGD([group], lr=rate))
        binding._state = SimpleNamespace(steps=[0])
        return binding.digest_of_numbers()

    assert digest(object(), 0.1) == digest(object(), 0.1)
    assert digest(object(), 0.1) != digest(object(), 0.2)
