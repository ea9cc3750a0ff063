import dataclasses
import json
import re
import subprocess
import sys
import typing

import pytest

from torchkiln.apps.schnet._arguments import make_parser, read_settings
from torchkiln.apps.schnet._config_file import read_config, short_names
from torchkiln.apps.schnet._settings import Settings
from torchkiln.core import Backend, Options, OptionsError

# A value other than the default for every setting, by its dotted name.
VALUES = {
    "dataset_factory.root": "data",
    "dataset_factory.splits": "schnet",
    "dataset_factory.batch_size": 7,
    "dataset_factory.use_packing": False,
    "dataset_factory.k": 5,
    "dataset_factory.cutoff": 4.5,
    "dataset_factory.max_num_atoms": 32,
    "dataset_factory.use_qm9_energy": False,
    "dataset_factory.use_standardized_energy": False,
    "dataset_factory.options": {"check_finite": True},
    "dataset_factory.target": "gap",
    "dataset_factory.references": "fitted",
    "dataset_factory.unit": "Ha",
    "dataset_factory.per_atom": True,
    "dataset_factory.seed": 3,
    "bench.synthetic_data": True,
    "bench.replication_factor": -1,
    "bench.device_iterations": 4,
    "bench.gradient_accumulation": 3,
    "bench.learning_rate": 0.0005,
    "bench.num_epochs": 2,
    "bench.profile_dir": "graph_profile",
    "bench.factory": "water",
    "bench.water_dataset": "train",
    "bench.half_precision": True,
    "bench.num_workers": 2,
    "bench.use_wandb": True,
    "bench.use_tensorboard": True,
    "bench.loss": "mae",
    "bench.learning_rate_decay": 0.9,
    "bench.ema_decay": 0.99,
    "bench.seed": 4,
    "bench.backend": "capture",
    "bench.collective_timeout_s": 30.0,
    "model.num_features": 64,
    "model.num_filters": 32,
    "model.num_interactions": 3,
    "model.num_gaussians": 20,
    "model.readout": "add",
    "model.filter": "exact",
    "time_dataloader": True,
    "project": "water-project",
    "run_name": "first",
    "validation": False,
    "num_workers": 1,
    "checkpoint": True,
    "checkpoint_epochs": 5,
    "model_name": "gap-model",
    "checkpoint_dir": "saved",
    "resume": True,
    "limit": 100,
    "output_dir": "elsewhere",
    "threads": 1,
    "device": "cuda:1",
    "verbose": True,
    "quiet": True,
    "log_level": "debug",
    "json": True,
}
SHORT_USAGE = """
usage: bench.py [-h] [--config CONFIG]
                [--print_config [={comments,skip_null}+]]
                [--use_packing {true,false}] [--synthetic_data {true,false}]
                [--batch_size BATCH_SIZE]
                [--replication_factor REPLICATION_FACTOR]
                [--device_iterations DEVICE_ITERATIONS]
                [--gradient_accumulation GRADIENT_ACCUMULATION]
                [--learning_rate LEARNING_RATE] [--num_epochs NUM_EPOCHS]
                [--profile_dir PROFILE_DIR] [--use_wandb {true,false}]
"""
NESTED_USAGE = """
usage: bench.py [-h] [--dataset_factory.root ROOT]
                [--dataset_factory.splits SPLITS]
                [--dataset_factory.batch_size BATCH_SIZE]
                [--dataset_factory.use_packing {true,false}]
                [--dataset_factory.k K] [--dataset_factory.cutoff CUTOFF]
                [--dataset_factory.max_num_atoms MAX_NUM_ATOMS]
                [--dataset_factory.use_qm9_energy {true,false}]
                [--dataset_factory.use_standardized_energy {true,false}]
                [--dataset_factory.options.help CLASS]
                [--dataset_factory.options OPTIONS]
                [--bench.synthetic_data {true,false}]
                [--bench.replication_factor REPLICATION_FACTOR]
                [--bench.device_iterations DEVICE_ITERATIONS]
                [--bench.gradient_accumulation GRADIENT_ACCUMULATION]
                [--bench.learning_rate LEARNING_RATE]
                [--bench.num_epochs NUM_EPOCHS]
                [--bench.profile_dir PROFILE_DIR] [--bench.factory FACTORY]
                [--bench.water_dataset WATER_DATASET]
                [--bench.half_precision {true,false}]
                [--bench.num_workers NUM_WORKERS]
                [--bench.use_wandb {true,false}] [--config CONFIG]
                [--print_config [={comments,skip_null}+]]
                [--time_dataloader {true,false}] [--project PROJECT]
                [--run_name RUN_NAME] [--validation {true,false}]
                [--num_workers NUM_WORKERS] [--checkpoint {true,false}]
                [--checkpoint_epochs CHECKPOINT_EPOCHS]
                [--model_name MODEL_NAME]
"""


def setting(settings: Settings, key: str) -> typing.Any:
    """Return a setting in JSON types."""
    values: typing.Any = settings.to_dict()
    for name in key.split("."):
        values = values[name]
    return values


def text_of(value: typing.Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def assert_changed(settings: Settings, key: str) -> None:
    expected = VALUES[key]
    if key == "dataset_factory.options":
        expected = Options.from_dict(expected).to_dict()
    assert setting(Settings(), key) != expected
    assert setting(settings, key) == expected
    others = [other for other in VALUES if other != key]
    assert all(setting(settings, other) == setting(Settings(), other) for other in others)


def test_every_setting_has_a_value_to_try():
    keys = [
        f"{group.name}.{entry.name}" if dataclasses.is_dataclass(kind) else group.name
        for group in dataclasses.fields(Settings)
        for kind in [typing.get_type_hints(Settings)[group.name]]
        for entry in (dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else [group])
    ]
    assert sorted(keys) == sorted(VALUES)


@pytest.mark.parametrize("key", VALUES)
def test_a_flag_changes_its_setting_and_no_other(key):
    assert_changed(read_settings([f"--{key}", text_of(VALUES[key])]), key)


def test_short_flags_are_other_names_of_the_nested_ones():
    shorts = short_names()
    settings = read_settings([f"--{short}={text_of(VALUES[key])}" for short, key in shorts.items()])
    for key in set(shorts.values()) - {"dataset_factory.options"}:
        assert setting(settings, key) == VALUES[key], key
    assert settings.dataset_factory.options == Options(check_finite=True)


@pytest.mark.parametrize("form", ["nested", "short", "dotted"])
def test_a_config_file_takes_every_key_in_every_form(form, tmp_path):
    shorts = {key: short for short, key in short_names().items()}
    content: dict[str, typing.Any] = {}
    for key, value in VALUES.items():
        group, _, name = key.rpartition(".")
        if form == "nested" and group:
            content.setdefault(group, {})[name] = value
        else:
            content[shorts.get(key, key) if form == "short" else key] = value
    path = tmp_path / "all.json"
    path.write_text(json.dumps(content))
    settings = read_settings(["--config", str(path)])
    for key in set(VALUES) - {"dataset_factory.options"}:
        assert setting(settings, key) == VALUES[key], key
    assert settings.dataset_factory.options == Options(check_finite=True)


@pytest.mark.parametrize(("usage", "count"), [(SHORT_USAGE, 12), (NESTED_USAGE, 33)])
def test_all_flags_of_the_seed_exist(usage, count):
    flags = re.findall(r"--[\w.]+", usage)
    assert len(flags) == count
    assert set(flags) <= set(make_parser()._option_string_actions)


def test_the_command_line_wins_over_config_files_wherever_they_stand(tmp_path):
    first, second = tmp_path / "first.yml", tmp_path / "second.yml"
    first.write_text("num_epochs: 3\nlearning_rate: 1e-4\nbatch_size: 5\n")
    second.write_text("bench:\n  learning_rate: 2e-4\n")
    settings = read_settings(
        ["--num_epochs", "1", "--config", str(first), f"--config={second}", "--num_epochs=2"]
    )
    assert settings.bench.num_epochs == 2
    assert settings.bench.learning_rate == 2e-4
    assert settings.dataset_factory.batch_size == 5


def test_the_number_of_workers_at_the_top_wins():
    assert read_settings(["--bench.num_workers", "3"]).loader_workers == 3
    both = ["--num_workers", "1", "--bench.num_workers", "3"]
    assert read_settings(both).loader_workers == 1


def test_switches_may_stand_alone():
    settings = read_settings(["--checkpoint", "--use_packing", "false", "--resume"])
    assert settings.checkpoint
    assert settings.resume
    assert not settings.dataset_factory.use_packing


@pytest.mark.parametrize(
    ("text", "splits"),
    [
        ("80/10/10", "80/10/10"),
        ("[0.8, 0.1, 0.1]", [0.8, 0.1, 0.1]),
        ("[100, 10, 5]", [100, 10, 5]),
        ("splits.npz", "splits.npz"),
    ],
)
def test_splits_are_shares_numbers_or_names(text, splits):
    found = read_settings(["--splits", text]).dataset_factory.splits
    assert found == splits
    assert isinstance(found, str) or type(found[0]) is type(splits[0])


@pytest.mark.parametrize("spelling", ["{backend: eager}", '{"backend": "EAGER"}', "file"])
def test_options_of_the_program_come_as_yaml_json_or_a_file(spelling, tmp_path):
    if spelling == "file":
        path = tmp_path / "options.yml"
        path.write_text(Options(backend="eager").to_yaml())
        spelling = str(path)
    settings = read_settings(["--dataset_factory.options", spelling])
    assert settings.dataset_factory.options is not None
    assert settings.dataset_factory.options.backend is Backend.EAGER


def test_single_options_win_over_those_of_a_config_file(tmp_path):
    path = tmp_path / "config.yml"
    path.write_text("options: {reduction: sum, check_finite: true}\nbatch_size: 3\n")
    settings = read_settings(["--config", str(path), "--dataset_factory.options.reduction", "mean"])
    assert settings.dataset_factory.options == Options(reduction="mean", check_finite=True)
    assert settings.dataset_factory.batch_size == 3


def test_single_options_of_the_program_are_flags_too():
    settings = read_settings(["--dataset_factory.options.reduction", "sum"])
    assert settings.dataset_factory.options == Options(reduction="sum")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--num_epoch", "3"], "unknown flag --num_epoch; did you mean --num_epochs"),
        (["--dataset_factory.bach_size=3"], "did you mean --dataset_factory.batch_size"),
        (["--seed", "3"], "did you mean --dataset_factory.seed or --bench.seed?"),
        (["--xyzzy", "3"], "unknown flag --xyzzy; --help lists all of them"),
        (["qm9"], "'qm9' belongs to no flag; did you mean --factory qm9?"),
        (["--config"], "--config needs the path of a file"),
        (["--config", "no_such.yml"], "config file no_such.yml: cannot read"),
        (["--num_epochs", "abc"], "bench.num_epochs must be a whole number, got 'abc'"),
        (["--num_epochs", "0"], "bench.num_epochs must be at least 1, got 0"),
        (["--checkpoint", "maybe"], "--checkpoint takes true or false, got 'maybe'"),
        (["--loss", "huber"], "bench.loss must be mse or mae, got 'huber'"),
        (["--replication_factor", "0"], "must not be 0"),
        (["--learning_rate", ".nan"], "bench.learning_rate must be a positive number"),
        (["--cutoff", "-1"], "dataset_factory.cutoff must be a positive number, got -1"),
        (["--ema_decay", "1"], "bench.ema_decay must be at least 0 and below 1"),
        (["--limit", "0"], "limit must be at least 1"),
        (["--model_name", "../x"], "model_name must be a plain name"),
        (["--run_name", "a\0b"], "run_name must be a plain name"),
        (["--run_name="], "run_name must be a plain name"),
        (["--model_name", "x" * 256], "model_name must have at most 255 bytes"),
        (["--bench.seed", str(2**64)], "bench.seed must be at least 0 and below 2**63"),
        (["--dataset_factory.seed", "-1"], "dataset_factory.seed must be at least 0"),
        (["--batch_size", str(10**20)], "dataset_factory.batch_size must be at most"),
        (["--device_iterations", str(10**20)], "bench.device_iterations must be at most"),
        (["--dataset_factory.options", "{bakend: eager}"], "did you mean 'backend'?"),
        (["--dataset_factory.options.bakend", "eager"], "did you mean backend?"),
        (["--options", "{device_iterations: 0}"], "device_iterations must be a whole number of at"),
        (["--dataset_factory.options.device_iterations", "0"], "must be a whole number of at"),
        (["--dataset_factory.options", "none.yml"], "cannot read"),
        (
            ["--batch_size", "3", "--dataset_factory.batch_size", "4"],
            "--batch_size (3) and --dataset_factory.batch_size (4) are two names of one setting",
        ),
    ],
)
def test_mistakes_on_the_command_line_name_value_and_remedy(args, message):
    with pytest.raises(OptionsError, match=re.escape(message)):
        read_settings(args)


def test_both_names_of_a_setting_may_agree():
    args = ["--batch_size", "3", "--dataset_factory.batch_size", "3"]
    assert read_settings(args).dataset_factory.batch_size == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("num_epoch: 3", "unknown key 'num_epoch'; did you mean num_epochs"),
        ("bench: {num_epoch: 3}", "unknown key 'bench.num_epoch'; did you mean bench.num_epochs"),
        ("bench: {num_epochs: abc}", "bench.num_epochs must be a whole number"),
        ("bench: 3", "bench is a group of settings, got 3"),
        ("just words", "expected names with values"),
        ("a: [1", "neither YAML nor JSON"),
        ("batch_size: 3\nbatch_size: 4", "the key 'batch_size' is there twice"),
        ("bench: {loss: mse, loss: mae}", "the key 'loss' is there twice"),
        ("batch_size: 3\ndataset_factory: {batch_size: 4}", "two names of one setting"),
        ("options: {bakend: eager}", "did you mean 'backend'?"),
        ("options: {backend: fast}", "backend must be one of 'inductor', 'capture', 'eager'"),
    ],
)
def test_mistakes_in_a_config_file_name_the_file(content, message, tmp_path):
    path = tmp_path / "wrong.yml"
    path.write_text(content)
    with pytest.raises(OptionsError, match=re.escape(message)) as caught:
        read_settings(["--config", str(path)])
    assert str(path) in str(caught.value)


def test_an_empty_config_file_changes_nothing(tmp_path):
    path = tmp_path / "empty.yml"
    path.write_text("# nothing yet\nbench:\n")
    assert read_config(path) == {}
    assert read_settings(["--config", str(path)]) == Settings()


def test_the_printed_config_explains_itself_and_gives_the_same_settings(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        read_settings(["--num_epochs", "3", "--loss", "mae", "--print_config=comments,skip_null"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "# Mini-batches that share one weight update." in text
    assert "null" not in re.sub("#.*", "", text)
    path = tmp_path / "printed.yml"
    path.write_text(text)
    printed = read_settings(["--config", str(path)])
    assert printed == read_settings(["--num_epochs", "3", "--loss", "mae"])


def test_the_printed_config_holds_what_config_files_and_flags_say(tmp_path, capsys):
    path = tmp_path / "some.yml"
    path.write_text("use_wandb: true\nnum_epochs: 7\n")
    with pytest.raises(SystemExit):
        read_settings(["--config", str(path), "--num_epochs", "9", "--print_config"])
    text = capsys.readouterr().out
    assert "use_wandb: true" in text
    assert "num_epochs: 9" in text


@pytest.mark.parametrize("args", [[], ["torchkiln.Options"]])
def test_help_on_the_options_of_the_program(args, capsys):
    with pytest.raises(SystemExit) as stop:
        read_settings(["--dataset_factory.options.help", *args])
    assert stop.value.code == 0
    assert "Micro-batches accumulated into one weight update" in capsys.readouterr().out


def test_help_explains_every_setting_and_ends_with_examples(capsys):
    with pytest.raises(SystemExit) as stop:
        read_settings(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for key in VALUES:
        assert re.search(rf"\n  --{re.escape(key)}\b[^\n]*\n? +\S", text), key
    for short in re.findall(r"--\w+", SHORT_USAGE)[2:]:
        assert f", {short} " in text
    assert "<class" not in text
    assert text.index("examples:") > text.index("--model.filter")


def test_help_imports_neither_torch_nor_numpy():
    code = (
        "import sys; from torchkiln.apps.schnet._main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: bench.py")


def test_docstrings_describe_exactly_the_settings():
    for kind in (Settings, *(type(getattr(Settings(), name)) for name in ("bench", "model"))):
        documented = re.findall(r"^        (\w+): ", str(kind.__doc__), re.MULTILINE)
        assert documented == [entry.name for entry in dataclasses.fields(kind)]
