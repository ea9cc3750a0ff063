"""`--preset`: settings that ship with the package."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from torchkiln.apps._presets import preset_names, preset_path
from torchkiln.apps.cosmic import read_settings as read_cosmic
from torchkiln.apps.schnet._arguments import read_settings

CONFIGS = Path(__file__).parents[2] / "configs"
SAME = {
    "original": "qm9_original",
    "packed": "qm9_packed",
    "padded": "qm9_padded",
    "quick": "qm9_quick",
    "reference": "qm9_reference",
    "water": "water_packed",
}


def test_every_preset_is_a_config_of_the_repository():
    assert preset_names("schnet") == sorted(SAME)
    assert preset_names("cosmic") == ["quick"]


@pytest.mark.parametrize("name", SAME)
def test_a_preset_and_its_config_are_one_file(name):
    """Whoever changes one changes both; a copy would drift."""
    path = preset_path("schnet", name)
    assert path.resolve() == (CONFIGS / f"{SAME[name]}.yml").resolve()
    assert read_settings(["--preset", name]) == read_settings(
        ["--config", str(CONFIGS / f"{SAME[name]}.yml")]
    )


def test_the_original_has_the_defaults_of_the_original():
    """As its help text states them."""
    bench = read_settings(["--preset", "original"]).bench
    assert bench.replication_factor == 16
    assert bench.device_iterations == 6
    assert bench.gradient_accumulation == 2
    assert bench.learning_rate == 0.001
    assert bench.learning_rate_decay == 1.0
    assert bench.num_epochs == 10
    assert bench.use_wandb
    assert not bench.synthetic_data
    dataset = read_settings(["--preset", "original"]).dataset_factory
    assert dataset.batch_size == 12
    assert dataset.use_packing


def test_flags_win_over_configs_and_configs_over_presets(tmp_path):
    config = tmp_path / "mine.yml"
    config.write_text("num_epochs: 7\nlearning_rate: 0.002\n")
    args = ["--learning_rate", "0.003", "--config", str(config), "--preset=padded"]
    settings = read_settings(args)
    assert not settings.dataset_factory.use_packing
    assert settings.bench.num_epochs == 7
    assert settings.bench.learning_rate == 0.003


def test_the_command_of_events_has_presets_too(tmp_path):
    config = tmp_path / "mine.yml"
    config.write_text("run: {epochs: 2, seed: 5}\n")
    settings = read_cosmic(["run.seed=6", "--config", str(config), "--preset", "quick"])
    assert settings.run.id == "cosmic_quick"
    assert (settings.run.epochs, settings.run.seed) == (2, 6)


def test_the_printed_config_holds_what_a_preset_says(tmp_path, capsys):
    with pytest.raises(SystemExit):
        read_settings(["--preset", "padded", "--print_config"])
    path = tmp_path / "printed.yml"
    path.write_text(capsys.readouterr().out)
    assert read_settings(["--config", str(path)]) == read_settings(["--preset", "padded"])


@pytest.mark.parametrize("prog", ["torchkiln bench", "bench.py"])
def test_help_explains_presets_and_its_examples_work(prog, capsys):
    with pytest.raises(SystemExit):
        read_settings(["--help"], prog)
    text = capsys.readouterr().out
    for name in SAME:
        assert f"\n  {name} " in text
    begin = f"  python3 {prog} " if prog.endswith(".py") else f"  {prog} "
    examples = [line for line in text.splitlines() if line.startswith(begin)]
    assert len(examples) >= 8
    if not prog.endswith(".py"):
        assert "configs/" not in "".join(examples)
    for line in examples:
        args = line.removeprefix(begin).partition("#")[0].split()
        args = [str(CONFIGS.parent / arg) if arg.startswith("configs/") else arg for arg in args]
        with contextlib.suppress(SystemExit):  # those that print
            read_settings(args, prog)


def test_the_examples_of_the_command_of_events_work(capsys):
    prog = "torchkiln bench cosmic"
    with pytest.raises(SystemExit):
        read_cosmic(["--help"], prog)
    lines = capsys.readouterr().out.splitlines()
    examples = [line for line in lines if line.startswith(f"  {prog} ")]
    assert len(examples) >= 6
    for line in examples:
        read_cosmic(line.removeprefix(f"  {prog} ").split(), prog)
