"""The options that divide a model into stages, and who runs which."""

from __future__ import annotations

import pytest

from torchkiln.core import Options, OptionsError, PipelineSchedule
from torchkiln.core._pipeline_options import check_micro_batches

THREE = ("encoder", ["bridge", "neck"], "decoder")


def test_a_stage_may_be_one_name():
    options = Options(pipeline=list(THREE))
    assert options.pipeline == (("encoder",), ("bridge", "neck"), ("decoder",))
    assert Options.from_json(options.to_json()) == options


def test_stages_of_a_pipeline_are_neighbouring_ranks():
    places = [
        (options.pipeline_id, options.stage)
        for options in (Options(pipeline=THREE, num_processes=6, process_id=r) for r in range(6))
    ]
    assert places == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_an_update_counts_pipelines_and_not_processes():
    options = Options(
        pipeline=THREE, num_processes=6, gradient_accumulation=5, replication_factor=2
    )
    assert (options.num_stages, options.num_pipelines) == (3, 2)
    assert options.total_micro_batches_per_update == 20


@pytest.mark.parametrize(
    "changes",
    [{}, {"num_processes": 4, "process_id": 3, "sync_gradients": False}],
    ids=["one process", "models of their own"],
)
def test_without_others_annotations_change_nothing(changes):
    divided, plain = Options(pipeline=THREE, **changes), Options(**changes)
    assert not divided.is_divided
    assert divided.num_pipelines == plain.num_pipelines == plain.num_processes
    assert divided.pipeline_id == plain.pipeline_id == plain.process_id
    assert divided.stage == 0
    assert divided.total_micro_batches_per_update == plain.total_micro_batches_per_update


def test_a_single_stage_divides_nothing():
    options = Options(pipeline=["all"], num_processes=2, process_id=1)
    assert not options.is_divided
    assert (options.num_pipelines, options.pipeline_id, options.stage) == (2, 1, 0)


@pytest.mark.parametrize("wrong", ["encoder", [], [[]], [["a", 1]], {"a": 1}, 3])
def test_what_is_no_list_of_stages_is_refused(wrong):
    with pytest.raises(OptionsError, match="list of stages"):
        Options(pipeline=wrong)


def test_a_block_belongs_to_one_stage():
    with pytest.raises(OptionsError, match="'b' twice"):
        Options(pipeline=["a", ["b", "c"], "b"])


def test_processes_must_make_whole_pipelines():
    with pytest.raises(OptionsError, match="start 3 or 6 processes"):
        Options(pipeline=THREE, num_processes=4)
    with pytest.raises(OptionsError, match="start 3 processes"):
        Options(pipeline=THREE, num_processes=2)


def test_an_update_must_have_work_for_all_stages():
    check_micro_batches(2, 3)
    with pytest.raises(OptionsError, match=r"at least 3 micro-batches.*is 2.*sequential"):
        check_micro_batches(2, 2)


def test_schedules_have_names():
    assert Options(pipeline_schedule="sequential").pipeline_schedule is PipelineSchedule.SEQUENTIAL
    with pytest.raises(OptionsError, match="pipeline_schedule"):
        Options(pipeline_schedule="gpipe")


def test_stages_and_divided_optimiser_state_are_refused_together():
    both = {"pipeline": ["a", "b"], "shard_optimizer": True, "gradient_accumulation": 4}
    with pytest.raises(OptionsError, match="do not work together yet"):
        Options(**both, num_processes=2)
    Options(**both)  # alone neither of them changes anything
