import copy

import pytest
import torch

import poptorch
from poptorch import ConnectionType, OutputMode
from torchkiln import core


def test_setters_chain_and_values_are_attributes():
    opts = poptorch.Options().deviceIterations(4).replicationFactor(2)
    assert opts.Training.gradientAccumulation(3) is opts.Training
    assert (opts.device_iterations, opts.replication_factor) == (4, 2)
    assert opts.Training.gradient_accumulation == 3
    assert opts("device_iterations") == 4


def test_attributes_can_be_assigned_and_keep_their_type():
    opts = poptorch.Options()
    opts.device_iterations = 7
    assert opts.device_iterations == 7
    with pytest.raises(AssertionError, match="Unexpected type"):
        opts.device_iterations = 2.0


@pytest.mark.parametrize("value", [2.0, "2", None])
def test_counts_must_be_ints(value):
    with pytest.raises(AssertionError, match="Unexpected type"):
        poptorch.Options().replicationFactor(value)


def test_a_bool_counts_as_an_int():
    assert poptorch.Options().deviceIterations(True)._to_torchkiln().device_iterations == 1


@pytest.mark.parametrize("count", [0, -1])
def test_bad_counts_are_tolerated_until_a_program_is_built(count):
    opts = poptorch.Options().deviceIterations(count)
    with pytest.raises(poptorch.Error, match="deviceIterations must be a whole number"):
        poptorch.inferenceModel(torch.nn.Linear(1, 1), opts)


def test_unknown_names_are_refused_on_write_and_read():
    opts = poptorch.Options()
    with pytest.raises(AssertionError, match="Unknown option 'device_iteration'"):
        opts.device_iteration = 1
    with pytest.raises(AttributeError, match="random_seed"):
        _ = opts.random_seed
    assert not opts.exists("random_seed")


def test_values_created_on_demand_can_be_deleted():
    opts = poptorch.Options().useIpuId(3)
    assert opts.ipu_id == 3
    opts.deleteIfExists("ipu_id")
    assert not opts.exists("ipu_id")


def test_use_by_a_model_or_loader_freezes_everything():
    dataset = torch.utils.data.TensorDataset(torch.zeros(4, 1))
    for use in (
        lambda o: poptorch.inferenceModel(torch.nn.Linear(1, 1), o),
        lambda o: poptorch.trainingModel(torch.nn.Linear(1, 1), o),
        lambda o: poptorch.DataLoader(o, dataset),
    ):
        opts = poptorch.Options()
        use(opts)
        for change in (
            lambda o=opts: o.deviceIterations(2),
            lambda o=opts: o.Training.gradientAccumulation(2),
            lambda o=opts: o.Precision.enableStochasticRounding(True),
            lambda o=opts: o._Popart.set("key", 1),
            lambda o=opts: o.TensorLocations.numIOTiles(32),
            lambda o=opts: o.enableExecutableCaching("x"),
            lambda o=opts: o.randomSeed(1),
        ):
            with pytest.raises(AttributeError, match="Can't modify frozen Options"):
                change()


def test_anchors_can_still_be_added_to_frozen_options():
    opts = poptorch.Options()
    opts.freeze()
    assert opts.anchorTensor("grad", "Gradient___w") is None
    assert opts.anchored_tensors["grad"] == ["Gradient___w", True, OutputMode.All, 1]


@pytest.mark.parametrize("copier", [copy.deepcopy, poptorch.Options.clone])
def test_copies_are_unfrozen_and_independent(copier):
    opts = poptorch.Options().deviceIterations(2)
    opts.freeze()
    twin = copier(opts)
    twin.deviceIterations(5)
    twin.Precision.enableStochasticRounding(True)
    twin.Training.setAutomaticLossScaling(True)
    assert opts.device_iterations == 2
    assert "enableStochasticRounding" not in opts._Popart.options
    assert twin._Popart.options["enableStochasticRounding"] is True
    assert twin._Popart.options["automaticLossScalingSettings.enabled"] is True


def test_repr_shows_values_and_groups_and_is_equal_for_equal_options():
    def build():
        return poptorch.Options().deviceIterations(3)._Popart.set("outlineThreshold", 10.0)

    text = repr(poptorch.Options().deviceIterations(3))
    assert text.startswith("Options(")
    for part in ("device_iterations=3", "Distributed=", "Jit=", "Precision=", "TensorLocations="):
        assert part in text
    assert repr(build()) == repr(build())
    opts = poptorch.Options()
    opts._Popart.set("outlineThreshold", 10.0)
    assert "outlineThreshold=10.0" in repr(opts)
    assert text != repr(poptorch.Options())


def test_every_n_needs_a_positive_period():
    opts = poptorch.Options()
    for period in (None, 0, -2):
        with pytest.raises(AssertionError, match="positive"):
            opts.outputMode(OutputMode.EveryN, period)
    opts.outputMode(OutputMode.EveryN, 2)
    assert (opts.output_mode, opts.output_return_period) == (OutputMode.EveryN, 2)
    with pytest.raises(AssertionError):
        opts.outputMode(2)


def test_default_output_mode_is_reported_and_blocks_to_dict():
    opts = poptorch.Options()
    assert opts.defaultOutputMode()
    with pytest.raises(AssertionError, match="output mode"):
        opts.toDict()
    flat = opts.outputMode(OutputMode.Sum).toDict()
    assert flat["output_mode"] == 3
    assert flat["gradient_accumulation"] == 1


def test_random_seed_seeds_torch():
    poptorch.Options().randomSeed(5)
    first = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(first, torch.rand(1))
    with pytest.raises(AssertionError):
        poptorch.Options().randomSeed(0.5)


def test_input_grouping_is_checked_against_the_replicas():
    opts = poptorch.Options().replicationFactor(4)
    opts.inputReplicaGrouping(2, poptorch.CommGroupType.Orthogonal)
    assert opts._to_torchkiln().input_grouping is core.InputGrouping.ORTHOGONAL
    for size, kind in (
        (8, poptorch.CommGroupType.Consecutive),
        (3, poptorch.CommGroupType.Consecutive),
        (2, poptorch.CommGroupType.All),
    ):
        with pytest.raises(ValueError, match="group"):
            opts.inputReplicaGrouping(size, kind)
    opts.inputReplicaGrouping(4, poptorch.CommGroupType.NoGrouping)
    assert (opts.input_group_size, opts.input_cgt) == (1, poptorch.CommGroupType.Consecutive)


def test_caching_from_the_setter_and_the_environment(monkeypatch, tmp_path):
    assert poptorch.Options()._to_torchkiln().cache_dir is None
    opts = poptorch.Options().enableExecutableCaching(str(tmp_path))
    assert opts._to_torchkiln().cache_dir == tmp_path
    assert opts.enableExecutableCaching(None)._to_torchkiln().cache_dir is None
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path / "env"))
    assert poptorch.Options()._Popart.options["cachePath"] == str(tmp_path / "env")
    assert poptorch.Options()._to_torchkiln().cache_dir == tmp_path / "env"
    assert poptorch.Options().enableExecutableCaching(None)._to_torchkiln().cache_dir is None


def test_distributed_layout_from_the_environment_and_setters(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    opts = poptorch.Options()
    assert (opts.Distributed.processId, opts.Distributed.numProcesses) == (3, 4)
    assert opts._to_torchkiln().num_processes == 4
    opts.Distributed.disable()
    assert (opts.Distributed.processId, opts.Distributed.numProcesses) == (0, 1)
    monkeypatch.setenv("SIZE", "2")
    opts.Distributed.setEnvVarNames("SIZE", "RANK")
    assert (opts.Distributed.processId, opts.Distributed.numProcesses) == (0, 2)


def test_the_layout_of_torchrun_counts_before_that_of_open_mpi(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert poptorch.Options().Distributed.numProcesses == 2  # half of it says nothing
    monkeypatch.setenv("RANK", "3")
    opts = poptorch.Options()
    assert (opts.Distributed.processId, opts.Distributed.numProcesses) == (3, 4)


def test_the_layout_of_a_step_of_slurm_counts(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert poptorch.Options().Distributed.numProcesses == 1  # the shell of salloc
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_PROCID", "3")
    opts = poptorch.Options()
    assert (opts.Distributed.processId, opts.Distributed.numProcesses) == (3, 4)


def test_everything_that_matters_reaches_torchkiln():
    opts = (
        poptorch.Options()
        .deviceIterations(6)
        .replicationFactor(2)
        .outputMode(OutputMode.EveryN, 3)
        .showCompilationProgressBar(False)
        .randomSeed(9)
    )
    opts.Training.gradientAccumulation(4)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    opts.Precision.enableFloatingPointExceptions(True)
    opts.anchorTensor("g", "Gradient___w", OutputMode.Sum)
    translated = opts._to_torchkiln()
    assert translated.combined_factor == 6 * 2 * 4
    assert (translated.output_mode, translated.output_period) == (core.OutputMode.EVERY_N, 3)
    assert translated.reduction is core.Reduction.SUM
    assert (translated.check_finite, translated.show_progress) == (True, False)
    assert translated.random_seed == 9
    assert translated.anchors["g"] == core.Anchor("Gradient___w", core.OutputMode.SUM, 1)
    assert translated.recorded == {}


def test_optimiser_state_is_divided_among_processes_and_other_sharding_recorded():
    opts = poptorch.Options()
    sharded = poptorch.TensorLocationSettings().useReplicatedTensorSharding()
    opts.TensorLocations.setWeightLocation(sharded)
    assert opts._to_torchkiln().shard_optimizer is False
    opts.TensorLocations.setOptimizerLocation(sharded.useOnChipStorage(False))
    translated = opts._to_torchkiln()
    assert translated.shard_optimizer is True
    assert translated.recorded == {
        "TensorLocations.location_weight": {"useReplicatedTensorSharding": 1},
        "TensorLocations.location_optimizer": {"onChip": 0},
    }
    opts.TensorLocations.setOptimizerLocation(sharded.useReplicatedTensorSharding(False))
    assert opts._to_torchkiln().shard_optimizer is False


def test_hardware_settings_are_recorded():
    opts = poptorch.Options().useIpuModel(True).autoRoundNumIPUs().logDir("logs")
    opts.setAvailableMemoryProportion({"IPU1": 0.5})
    opts.Precision.setPartialsType(torch.half)
    opts.TensorLocations.numIOTiles(64)
    opts._Popart.set("outlineThreshold", 3)
    recorded = opts._to_torchkiln().recorded
    assert recorded == {
        "use_model": True,
        "auto_round_num_ipus": True,
        "log_dir": "logs",
        "available_memory_proportion": {1: 0.5},
        "TensorLocations.numIOTiles": 64,
        "_Popart.partialsTypeMatMuls": "half",
        "_Popart.convolutionOptions": {"partialsType": "half"},
        "_Popart.outlineThreshold": 3,
    }
    for name in ("use_model=True", "numIOTiles=64", "outlineThreshold=3"):
        assert name in repr(opts)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda o: o.setExecutionStrategy("sharded"), AssertionError),
        (lambda o: o.setAvailableMemoryProportion({"GPU0": 1.0}), AssertionError),
        (lambda o: o.connectionType(2), AssertionError),
        (lambda o: o.syncPattern(0), AssertionError),
        (lambda o: o.useIpuId("0"), AssertionError),
        (lambda o: o.TensorLocations.numIOTiles(33), AssertionError),
        (lambda o: o.TensorLocations.numIOTiles(30), AssertionError),
        (lambda o: o.TensorLocations.setWeightLocation({}), AssertionError),
        (lambda o: o.Precision.setPartialsType(torch.int8), ValueError),
        (lambda o: o.Precision.enableFloatingPointExceptions(1), AssertionError),
        (lambda o: o.Precision.runningStatisticsAlwaysFloat(1), ValueError),
        (lambda o: o.Jit.traceModel(True), ValueError),
        (
            lambda o: o.Training.accumulationAndReplicationReductionType(
                poptorch.ReductionType.NoReduction
            ),
            ValueError,
        ),
        (lambda o: o._Popart.setPatterns({}, "2"), AssertionError),
        (lambda o: o.anchorTensor("a", "b", OutputMode.EveryN, 0), AssertionError),
    ],
)
def test_wrong_arguments_are_refused_when_set(call, error):
    with pytest.raises(error):
        call(poptorch.Options())


def test_tensor_location_settings_store_zeros_and_ones():
    settings = poptorch.TensorLocationSettings().useOnChipStorage(False).useIOTilesToLoad()
    assert settings.toDict() == {"onChip": 0, "useIOTilesToLoad": 1}
    assert settings.useOnChipStorage(None).toDict() == {"useIOTilesToLoad": 1}
    opts = poptorch.Options()
    opts.TensorLocations.setOptimizerLocation(settings)
    assert opts.TensorLocations.location_optimizer == {"useIOTilesToLoad": 1}
    with pytest.raises(AssertionError):
        settings.useOnChipStorage(1)


def test_offline_target_sets_the_connection_type():
    opts = poptorch.Options().useOfflineIpuTarget()
    assert (opts.connection_type, opts.ipu_version) == (ConnectionType.Never, 2)


def test_from_json_splats_lists_and_knows_enums(monkeypatch):
    text = (
        '{"deviceIterations": 3, "Training.gradientAccumulation": 2,'
        ' "outputMode": "OutputMode.Sum", "Distributed.configureProcessId": [1, 4]}'
    )
    opts = poptorch.Options().from_json(text)
    assert (opts.device_iterations, opts.Training.gradient_accumulation) == (3, 2)
    assert opts.output_mode == OutputMode.Sum
    assert opts.Distributed.numProcesses == 4
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"replicationFactor": 2}')
    assert poptorch.Options().replication_factor == 2
    with pytest.raises(AttributeError):
        poptorch.Options().from_json('{"noSuchOption": 1}')


def test_load_from_file_applies_lines_and_names_the_bad_one(tmp_path):
    good = tmp_path / "good.conf"
    good.write_text(
        "# a comment\n\n  deviceIterations(4)  # trailing\n"
        "setExecutionStrategy(poptorch.ShardedExecution())\n"
        "Training.gradientAccumulation(2)\n"
    )
    opts = poptorch.Options().loadFromFile(good)
    assert (opts.device_iterations, opts.Training.gradient_accumulation) == (4, 2)
    bad = tmp_path / "bad.conf"
    bad.write_text("\ndeviceIterations(4)\nreplicationFactor(2\n")
    with pytest.raises(poptorch.ConfigFileError, match=r"SyntaxError at line 2 of bad.conf"):
        opts.loadFromFile(bad)


def test_profiling_sets_engine_options(caplog, monkeypatch):
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.all": "false"}')
    opts = poptorch.Options().enableProfiling("reports")
    engine = opts._Popart.options["engineOptions"]
    assert engine["autoReport.directory"] == "reports"
    assert engine["autoReport.all"] == "true"
    assert "autoReport.all, and the environment wins" in caplog.text


@pytest.mark.parametrize(
    "setter",
    [
        lambda opts: opts.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.Default),
        lambda opts: opts.Precision.runningStatisticsAlwaysFloat(True),
        lambda opts: opts.Jit.traceModel(False),
    ],
)
def test_deprecated_setters_are_frozen_too(setter, caplog):
    opts = poptorch.Options()
    opts.freeze()
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        setter(opts)
    assert not caplog.messages


@pytest.mark.parametrize("size", [0, -1])
def test_group_sizes_are_positive(size):
    opts = poptorch.Options().replicationFactor(2)
    with pytest.raises(ValueError, match=f"input_group_size {size}"):
        opts.inputReplicaGrouping(size, poptorch.CommGroupType.Consecutive)


@pytest.mark.parametrize("text", ["[1]", '{"deviceIterations": 7, "bad'])
def test_bad_default_options_name_the_variable(text, monkeypatch):
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", text)
    with pytest.raises(ValueError, match="POPTORCH_DEFAULT_OPTIONS"):
        poptorch.Options()


def test_json_names_the_members_of_an_enum():
    with pytest.raises(AttributeError, match=r"'EveryN', 'All', .*got 'Al'; did you mean 'All'"):
        poptorch.Options().from_json('{"outputMode": "OutputMode.Al"}')


def test_files_may_name_dtypes(tmp_path):
    path = tmp_path / "options.cfg"
    path.write_text("Precision.setPartialsType(torch.half)  # less memory\n")
    opts = poptorch.Options().loadFromFile(path)
    assert opts._Popart.options["partialsTypeMatMuls"] == "half"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 3000 + "1" + "}" * 3000, "\0", ""])
def test_endless_json_names_its_source(text):
    with pytest.raises(ValueError, match="the JSON of options"):
        poptorch.Options().from_json(text)


@pytest.mark.parametrize("content", [b"\xff\xfe\0", b"deviceIterations(4)\n\xff"])
def test_files_that_are_no_text_are_named(content, tmp_path):
    path = tmp_path / "options.cfg"
    path.write_bytes(content)
    with pytest.raises(poptorch.ConfigFileError, match=r"options\.cfg, line \d: this is no text"):
        poptorch.Options().loadFromFile(path)


def test_deep_lines_of_a_file_are_named(tmp_path):
    path = tmp_path / "options.cfg"
    path.write_text("deviceIterations(" + "(" * 1000 + "4" + ")" * 1000 + ")\n")
    with pytest.raises(poptorch.ConfigFileError, match=r"line 1 of options\.cfg"):
        poptorch.Options().loadFromFile(path)
