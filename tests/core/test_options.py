"""Options: validated values that print themselves and survive being written down."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from torchkiln.core import (
    Anchor,
    Backend,
    InputGrouping,
    Options,
    OptionsError,
    OutputMode,
    PipelineSchedule,
    Precision,
    Reduction,
    ReductionOrder,
)

FULL = {
    "device_iterations": 4,
    "gradient_accumulation": 3,
    "replication_factor": 4,
    "input_group_size": 2,
    "input_grouping": InputGrouping.ORTHOGONAL,
    "output_mode": OutputMode.EVERY_N,
    "output_period": 2,
    "reduction": Reduction.SUM,
    "backend": Backend.EAGER,
    "precision": Precision.BFLOAT16,
    "device": "cpu",
    "cache_dir": Path("/somewhere/cache"),
    "cache_limit_bytes": 1000,
    "trusted_dirs": (Path("/shared/cache"),),
    "random_seed": 5,
    "synthetic_data": True,
    "check_finite": True,
    "show_progress": False,
    "profile_dir": Path("/somewhere/profile"),
    "num_processes": 6,
    "process_id": 5,
    # Otherwise stages and divided optimiser state would not go together.
    "sync_gradients": False,
    "reduction_order": ReductionOrder.FASTEST,
    "shard_optimizer": True,
    "collective_timeout_s": 30.0,
    "pipeline": (("encoder", "bridge"), ("decoder",)),
    "pipeline_schedule": PipelineSchedule.SEQUENTIAL,
    "recompute": ("encoder", "decoder"),
    "anchors": {"w": Anchor("UpdatedVar___w", OutputMode.ALL), "loss": Anchor("loss")},
    "recorded": {"tiles": 32},
}


def test_every_field_is_covered_by_the_round_trip_tests():
    assert {field.name for field in dataclasses.fields(Options)} == set(FULL)


@pytest.mark.parametrize("options", [Options(), Options(**FULL)], ids=["default", "full"])
def test_round_trips(options):
    assert Options.from_dict(options.to_dict()) == options
    assert Options.from_json(options.to_json()) == options
    assert Options.from_yaml(options.to_yaml()) == options
    assert Options.from_dict(json.loads(json.dumps(options.to_dict()))) == options


def test_enumerations_accept_their_names():
    options = Options(output_mode="All", reduction="SUM", backend="eager", precision="float16")
    assert options.output_mode is OutputMode.ALL
    assert options.reduction is Reduction.SUM
    assert options.backend is Backend.EAGER
    assert options.precision is Precision.FLOAT16


def test_options_are_read_only_and_replace_makes_another():
    options = Options()
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.device_iterations = 2
    assert options.replace(device_iterations=2).device_iterations == 2
    assert options.device_iterations == 1


def test_replace_validates():
    with pytest.raises(OptionsError, match="at least 1, got 0"):
        Options().replace(gradient_accumulation=0)


@pytest.mark.parametrize(
    "name",
    [
        "device_iterations",
        "gradient_accumulation",
        "replication_factor",
        "input_group_size",
        "output_period",
        "num_processes",
        "cache_limit_bytes",
    ],
)
@pytest.mark.parametrize("value", [0, -1, 1.0, "2", None, True])
def test_counts_must_be_positive_whole_numbers(name, value):
    with pytest.raises(OptionsError, match=f"{name} must be a whole number"):
        Options(**{name: value})


def test_environment_gives_backend_and_cache(monkeypatch, tmp_path):
    assert Options().backend is Backend.INDUCTOR
    assert Options().cache_dir is None
    monkeypatch.setenv("TORCHKILN_BACKEND", "capture")
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path))
    assert Options().backend is Backend.CAPTURE
    assert Options().cache_dir == tmp_path
    assert Options(backend="eager", cache_dir=None).backend is Backend.EAGER
    monkeypatch.setenv("TORCHKILN_BACKEND", "gpu")
    with pytest.raises(OptionsError, match="TORCHKILN_BACKEND must be one of"):
        Options()


def test_executable_caching_is_switched_on_and_off(tmp_path):
    on = Options().enable_executable_caching(str(tmp_path))
    assert on.cache_dir == tmp_path
    assert on.enable_executable_caching(None).cache_dir is None


def test_home_directory_is_expanded():
    assert Options(cache_dir="~/kiln").cache_dir == Path.home() / "kiln"


def test_combined_factor_counts_groups_once():
    options = Options(
        device_iterations=3, gradient_accumulation=2, replication_factor=4, input_group_size=2
    )
    assert options.combined_factor == 12
    assert options.micro_batches_per_update == 8


def test_printing_shows_what_differs_from_the_default():
    assert str(Options()) == "Options (all defaults)"
    text = str(Options(device_iterations=7, reduction="sum"))
    assert text.splitlines() == ["Options", "  device_iterations: 7", "  reduction: sum"]


def test_unknown_names_get_a_suggestion():
    with pytest.raises(OptionsError, match="did you mean 'gradient_accumulation'"):
        Options.from_dict({"gradient_acumulation": 2})


def test_settings_without_meaning_here_are_recorded():
    options = Options(recorded={"numIOTiles": 32})
    assert "numIOTiles" in str(options)
    assert options != Options()


YAML_BOMB = "\n".join(
    ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30))]
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "just words",
        "- 1",
        "a: [",
        "\0",
        YAML_BOMB,
        "recorded: " + "[" * 3000 + "]" * 3000,
        "!!bool x",
        "1: 2",
        "null: 2",
        "[1, 2]: 3",
        "backend: [eager]",
        "backend: {a: 1}",
        "device_iterations: 2\ndevice_iterations: 3",
        "cache_dir: 3",
        "cache_dir: [a]",
        "device: 3",
        "recorded: 3",
        "anchors: 3",
        "anchors: {a: 3}",
        "anchors: {a: {output_mode: all}}",
        "anchors: {a: {tensor: 3}}",
        "anchors: {a: {tensor: loss, output_mode: maybe}}",
        "anchors: {a: {tensor: loss, output_period: 0}}",
        "anchors: {a: {tensor: loss, period: 2}}",
        "random_seed: true",
        "process_id: true",
    ],
)
def test_yaml_that_says_nothing_sensible_is_our_error(text):
    with pytest.raises(OptionsError) as caught:
        Options.from_yaml(text)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "text", ["", "3", "[1]", "null", "{", "[" * 100_000, '{"recorded":' * 2000, '{"a": 1}']
)
def test_json_that_says_nothing_sensible_is_our_error(text):
    with pytest.raises(OptionsError) as caught:
        Options.from_json(text)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("value", [0, 1, "no"])
def test_sync_gradients_is_no_number(value):
    with pytest.raises(OptionsError, match="sync_gradients must be True, False or None"):
        Options(sync_gradients=value)
