import json

import numpy as np
import pytest
import torch
from _tiny_files import LARGEST, QUICK, write_molecules

from torchkiln.apps.schnet import _experiment, _loaders
from torchkiln.apps.schnet._arguments import read_settings
from torchkiln.apps.schnet._experiment import (
    checkpoint_plan,
    load_dataset,
    make_job,
    run_name,
)
from torchkiln.apps.schnet._program_options import training_options
from torchkiln.core import Backend, Options, OptionsError, Precision, default_cache_dir


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_molecules(tmp_path_factory.mktemp("molecules"))


@pytest.fixture(scope="module")
def job_of(root):
    """Build the job of a command line; the same one is built once."""
    known = {}

    def build(*flags):
        if flags not in known:
            settings = read_settings([*QUICK, "--root", str(root), *flags])
            dataset = load_dataset(settings)
            options = training_options(settings)
            known[flags] = make_job(settings, dataset, options, checkpoint_plan(settings))
        return known[flags]

    return build


def nodes(job):
    return job.train_loader.spec.num_nodes


def pairs(job):
    return int(job.dataset.store.sizes["edges"].sum())


def weights(job):
    return [param.detach().clone() for param in job.regression.parameters()]


# Flags, what to look at, and what it must be; with the defaults it must be something else.
CHANGES = [
    ("--batch_size 2", lambda job: nodes(job) <= 2 * LARGEST + 1, True),
    ("--max_num_atoms 9", nodes, 4 * 9 + 1),
    ("--use_packing false", lambda job: job.train_loader.plan.algorithm, "padded"),
    ("--splits 50/30/20", lambda job: [len(i) for i in job.dataset.splits.values()], [30, 18, 12]),
    ("--splits [40,10,5]", lambda job: [len(i) for i in job.dataset.splits.values()], [40, 10, 5]),
    ("--limit 30", lambda job: len(job.dataset), 30),
    ("--cutoff 2.5", lambda job: job.regression.model.cutoff, 2.5),
    ("--cutoff 2.5", lambda job: job.dataset.cutoff_angstrom, 2.5),
    ("--k 1", lambda job: job.dataset.k, 1),
    ("--target gap", lambda job: job.dataset.target, "gap"),
    ("--unit Ha", lambda job: job.dataset.unit, "Ha"),
    ("--references atoms", lambda job: sorted(job.dataset.transform.references), [1, 6, 7, 8, 9]),
    ("--use_qm9_energy false", lambda job: job.dataset.transform.references, {}),
    ("--use_qm9_energy false", lambda job: job.dataset.transform.per_atom, False),
    ("--per_atom false", lambda job: job.dataset.transform.per_atom, False),
    ("--use_standardized_energy false", lambda job: job.dataset.transform.std, 1.0),
    ('--options {"check_finite":true}', lambda job: job.options.check_finite, True),
    ("--num_features 6", lambda job: job.regression.model.hidden_channels, 6),
    ("--num_filters 7", lambda job: job.regression.model.num_filters, 7),
    ("--num_interactions 1", lambda job: len(job.regression.model.interactions), 1),
    ("--num_gaussians 4", lambda job: job.regression.model.num_gaussians, 4),
    ("--readout add", lambda job: job.regression.model.readout, "add"),
    ("--filter exact", lambda job: job.model_arguments["filter"], "exact"),
    ("--synthetic_data", lambda job: job.synthetic_data, True),
    ("--replication_factor 3", lambda job: job.options.replication_factor, 3),
    ("--replication_factor -1", lambda job: job.eager, True),
    ("--replication_factor -1", lambda job: job.model_arguments["filter"], "exact"),
    ("--device_iterations 5", lambda job: job.options.device_iterations, 5),
    ("--gradient_accumulation 1", lambda job: job.options.gradient_accumulation, 1),
    ("--learning_rate 0.01", lambda job: job.optimizer.param_groups[0]["lr"], 0.01),
    ("--learning_rate_decay 0.9", lambda job: job.scheduler and job.scheduler.gamma, 0.9),
    ("--num_epochs 3", lambda job: job.num_epochs, 3),
    ("--profile_dir prof", lambda job: str(job.profile_dir), "prof"),
    ("--half_precision", lambda job: job.options.precision in HALF, True),
    ("--loss mae", lambda job: job.regression.loss, "mae"),
    ("--ema_decay 0.9", lambda job: job.ema_decay, 0.9),
    ("--backend capture", lambda job: job.options.backend, Backend.CAPTURE),
    ("--validation false", lambda job: (job.validation_loader, job.test_loader), (None, None)),
    ("--checkpoint", lambda job: job.checkpoint is not None, True),
    ("--resume", lambda job: job.checkpoint is not None and job.checkpoint.resume, True),
]
HALF = (Precision.FLOAT16, Precision.BFLOAT16)


@pytest.mark.parametrize(("flags", "look", "expected"), CHANGES, ids=[c[0] for c in CHANGES])
def test_a_flag_changes_what_is_trained(flags, look, expected, job_of):
    assert look(job_of()) != expected
    assert look(job_of(*flags.split())) == expected


def test_fewer_neighbours_and_a_shorter_cutoff_leave_fewer_pairs(job_of):
    assert pairs(job_of("--k", "1")) < pairs(job_of())
    assert pairs(job_of("--cutoff", "2.5")) < pairs(job_of())


def test_seeds_decide_weights_order_and_splits_apart(job_of):
    base, weighty, split = job_of(), job_of("--bench.seed", "1"), job_of("--dataset_factory.seed=1")
    assert not all(map(torch.equal, weights(base), weights(weighty)))
    assert not np.array_equal(base.train_loader.plan.indices, weighty.train_loader.plan.indices)
    assert np.array_equal(base.dataset.splits["test"], weighty.dataset.splits["test"])
    assert not np.array_equal(base.dataset.splits["test"], split.dataset.splits["test"])
    assert all(map(torch.equal, weights(base), weights(split)))


def test_names_and_places_of_checkpoints(job_of):
    job = job_of("--checkpoint", "--checkpoint_epochs", "4", "--model_name", "mine")
    assert job.checkpoint.model_name == "mine"
    assert job.checkpoint.every_epochs == 4
    assert str(job.checkpoint.directory) == "checkpoints/mine"
    moved = job_of("--checkpoint", "--checkpoint_dir", "saved")
    assert str(moved.checkpoint.directory) == "saved/schnet"


def test_packed_and_padded_batches_have_the_same_atom_slots_but_not_as_many_molecules(job_of):
    packed, padded = job_of().train_loader, job_of("--use_packing", "false").train_loader
    assert padded.spec.num_nodes == 4 * LARGEST + 1
    assert padded.spec.num_nodes * 0.9 <= packed.spec.num_nodes <= padded.spec.num_nodes
    used = [int((np.diff(loader.plan.offsets) > 0).sum()) for loader in (packed, padded)]
    assert used[0] < used[1] == 12


def test_all_splits_have_batches_of_one_size_and_every_molecule(job_of):
    job = job_of()
    loaders = [job.train_loader, job.validation_loader, job.test_loader]
    assert len({loader.spec for loader in loaders}) == 1
    for split, loader in zip(("train", "validation", "test"), loaders, strict=True):
        found = np.concatenate([batch.index[batch.graph_mask].numpy() for batch in loader])
        assert sorted(found.ravel()) == sorted(job.dataset.splits[split])


@pytest.mark.parametrize("packing", ["true", "false"])
def test_too_small_a_limit_on_atoms_names_the_molecule(packing, job_of):
    with pytest.raises(OptionsError, match=r"tiny_\d+\) has 6 atoms, but max_num_atoms is 5"):
        job_of("--max_num_atoms", "5", "--use_packing", packing)


def test_an_empty_split_is_not_evaluated(job_of, capsys):
    job = job_of("--splits", "[50,10,0]")
    assert job.validation_loader is not None
    assert job.test_loader is None
    assert "the test split is empty" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--num_workers", "2"], ["--bench.num_workers", "2"]])
def test_workers_make_the_training_batches(flags, root, monkeypatch):
    asked = []
    original = _loaders.FixedSizeLoader

    def record(*args, num_workers, **kwargs):
        asked.append(num_workers)
        return original(*args, num_workers=num_workers, **kwargs)

    monkeypatch.setattr(_loaders, "FixedSizeLoader", record)
    settings = read_settings([*QUICK, "--root", str(root), *flags])
    make_job(settings, load_dataset(settings), training_options(settings))
    assert asked == [2, 0, 0]  # evaluation is short: it has none


def test_water_is_asked_for_by_subset(monkeypatch):
    import torchkiln.datasets.water

    asked = {}
    monkeypatch.setattr(
        torchkiln.datasets.water, "load_water", lambda subset, **rest: asked.update(rest, s=subset)
    )
    load_dataset(read_settings(["--factory", "water", "--water_dataset", "test", "--limit", "7"]))
    assert asked["s"] == "test"
    assert asked["limit"] == 7
    assert asked["target"] == "energy"


def test_options_of_the_program_count_where_flags_are_silent():
    flags = ["--options", "{device_iterations: 3, output_mode: all}"]
    options = training_options(read_settings(flags))
    assert options.device_iterations == 3
    assert options.gradient_accumulation == 2
    with pytest.raises(OptionsError, match=r"--bench.device_iterations is 4 but .* say 3"):
        training_options(read_settings([*flags, "--device_iterations", "4"]))


def test_executables_are_kept_below_the_users_cache_unless_told_otherwise(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert training_options(read_settings([])).cache_dir == tmp_path / "torchkiln" / "executables"
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path / "mine"))
    assert default_cache_dir() == tmp_path / "mine"
    named = ["--options", f"{{cache_dir: {tmp_path}/options}}"]
    assert training_options(read_settings(named)).cache_dir == tmp_path / "options"


def test_a_run_gets_a_name_that_tells_what_it_is():
    name = run_name(
        read_settings(["--target", "gap", "--use_packing", "false", "--replication_factor", "-1"])
    )
    assert name.startswith("qm9-gap-padded-eager-2")
    assert run_name(read_settings(["--run_name", "mine"])) == "mine"


def test_monitors_get_what_the_flags_say(root, tmp_path, monkeypatch):
    asked = {}

    def record(directory, **arguments):
        asked.update(arguments, directory=directory)
        raise KeyboardInterrupt

    monkeypatch.setattr(_experiment, "make_monitor", record)
    flags = [
        "--use_wandb",
        "--use_tensorboard",
        "--project",
        "p",
        "--run_name",
        "r",
        "--output_dir",
    ]
    settings = read_settings([*QUICK, "--root", str(root), *flags, str(tmp_path)])
    with pytest.raises(KeyboardInterrupt):
        _experiment.run_experiment(settings)
    assert asked["directory"] == tmp_path / "r"
    assert (asked["use_wandb"], asked["use_tensorboard"]) == (True, True)
    assert (asked["project"], asked["run_name"], asked["unit"]) == ("p", "r", "")
    assert asked["settings"]["bench"]["use_wandb"] is True


def test_settings_in_the_result_can_be_a_config_file(job_of, tmp_path):
    path = tmp_path / "again.json"
    path.write_text(json.dumps(dict(job_of().settings)))
    again = read_settings(["--config", str(path)])
    assert again.to_dict() == dict(job_of().settings)
    assert again.dataset_factory.options is None or isinstance(
        again.dataset_factory.options, Options
    )


def test_a_run_on_own_molecules_is_named_after_their_file(root):
    settings = read_settings(["--root", str(root), "--target", "dipole moment"])
    assert run_name(settings).startswith("molecules-dipole_moment-packed-2")


def test_labels_that_are_not_learnt_are_named(tmp_path, capsys):
    frame = 'Properties=species:S:1:pos:R:3:forces:R:3 energy={} dipole="1 2 3" charge=0'
    atoms = "O 0 0 0 0 0 0\nH 0 0.8 0.6 0 0 0\nH 0 -0.8 0.6 0 0 0"
    frames = [f"3\n{frame.format(-76.0 - i)}\n{atoms}" for i in range(12)]
    path = tmp_path / "my.extxyz"
    path.write_text("\n".join(frames) + "\n")
    dataset = load_dataset(read_settings(["--root", str(path), "--target", "energy"]))
    _experiment._mention_unused_labels(dataset)
    said = capsys.readouterr().err
    assert "energy is learnt; not used are these labels of the file: charge, dipole, forces" in said


@pytest.mark.parametrize(("factory", "unit"), [("water", "kcal/mol"), ("qm9", "eV")])
def test_a_unit_that_cannot_be_right_is_refused(factory, unit):
    flags = ["--factory", factory, "--unit", "Ha", "--limit", "20"]
    with pytest.raises(OptionsError, match=rf"Ha.*{unit}.*leave"):
        load_dataset(read_settings(flags))
