"""Mistakes at the prompt: each gets one line that says what was meant."""

from __future__ import annotations

import pytest

from torchkiln import cli


def answer(capsys, *args: str) -> str:
    """Return the one line that a wrong command line gets; the next line names --help."""
    assert cli.main(list(args)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    line, more, *rest = shown.err.splitlines()
    assert more.startswith("More: torchkiln")
    assert more.endswith(" --help")
    assert rest == []
    return line


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("benhc", "torchkiln: there is no command 'benhc'; did you mean torchkiln bench?"),
        ("train", "torchkiln: there is no command 'train'; did you mean torchkiln bench?"),
        ("data qm8", "torchkiln data: there is no command 'qm8'; did you mean torchkiln data qm9?"),
        (
            "cache lst",
            "torchkiln cache: there is no command 'lst'; did you mean torchkiln cache list?",
        ),
        (
            "--quiet bench",
            "torchkiln: unknown flag --quiet; the command comes first: torchkiln bench ..., and "
            "its flags follow it",
        ),
    ],
)
def test_a_command_that_does_not_exist(typed, line, capsys):
    assert answer(capsys, *typed.split()) == line


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("bench --lr 0.01", "--learning_rate"),
        ("bench --epochs 3", "--num_epochs"),
        ("bench --gpu 0", "--device"),
        ("bench --batch 64", "--batch_size"),
        ("bench --wandb", "--use_wandb"),
        ("bench --dataset water", "--factory"),
        ("bench --num-epochs 3", "--num_epochs"),
        ("bench -epochs 3", "--num_epochs"),
        ("bench steps --repeat 3", "--repeats"),
        ("bench cosmic --lr 0.01", "--mode.optimizer.learning_rate"),
        ("bench cosmic --device cuda", "--run.compute_mode"),
        ("bench cosmic run.epoch=3", "--run.epochs"),
        ("data qm9 --rot x", "--root"),
        ("doctor --jsn", "--json"),
        ("fit a.py:make --limits 8GB", "--limit"),
        ("plan --algoritm best_fit", "--algorithm"),
        ("predict --model mine a.xyz", "--model_name"),
        ("predict --out a.csv a.xyz", "--output"),
    ],
)
def test_a_flag_that_does_not_exist(typed, meant, capsys):
    line = answer(capsys, *typed.split())
    assert "unknown flag -" in line
    assert line.endswith(f"; did you mean {meant}?")


@pytest.mark.parametrize(
    ("typed", "end"),
    [
        ("bench --loss msee", "bench.loss must be mse or mae, got 'msee'; did you mean mse?"),
        ("bench --num_epochs many", "bench.num_epochs must be a whole number, got 'many'"),
        ("bench --limit 1.5", "limit must be a whole number or null, got '1.5'"),
        ("bench --log_level loud", "log_level must be debug, info, warning or error, got 'loud'"),
        ("bench --preset quik", "there is no preset 'quik'; did you mean quick?"),
        ("bench quick", "'quick' belongs to no flag; did you mean --preset quick?"),
        ("bench qm9", "'qm9' belongs to no flag; did you mean --factory qm9?"),
        ("bench my.yml", "'my.yml' belongs to no flag; did you mean --config my.yml?"),
        ("bench --device", "--device needs a value behind it"),
        ("bench cosmic mode=trian", "inference, iotest or fit, got 'trian'; did you mean train?"),
        ("data water --subset debgu", "train or all, got 'debgu'; did you mean debug?"),
        ("plan --nodes many", "nodes must be a whole number or null, got 'many'"),
        ("completion bsh", "bash, zsh or fish, got 'bsh'; did you mean bash or zsh?"),
        ("completion", "a value for --shell is missing"),
        ("fit", "a value for --program is missing"),
    ],
)
def test_a_value_that_a_flag_cannot_have(typed, end, capsys):
    assert answer(capsys, *typed.split()).endswith(end)


@pytest.mark.parametrize(
    ("command", "content", "end"),
    [
        ("bench", "lr: 0.1", "unknown key 'lr'; did you mean learning_rate?"),
        ("bench", "bench: {loss: msee}", "got 'msee'; did you mean mse?"),
        (
            "bench cosmic",
            "run: {epoch: 3}",
            "unknown key 'run.epoch' in a config file; did you mean",
        ),
        ("plan", "nods: 3", "unknown key 'nods' in a config file; did you mean nodes?"),
    ],
)
def test_a_mistake_in_a_config_file(command, content, end, tmp_path, capsys):
    path = tmp_path / "mine.yml"
    path.write_text(content)
    assert end in answer(capsys, *command.split(), "--config", str(path))


def test_one_word_is_a_list_of_one(capsys):
    line = answer(capsys, "bench", "steps", "--workloads", "transformr")
    assert line.endswith("unknown workload 'transformr'; did you mean transformer?")


def test_a_limit_of_memory_without_a_unit(capsys):
    line = answer(capsys, "fit", "train.py:make", "--limit", "8")
    assert line == "torchkiln fit: the size 8 has no unit; write 8GB, or 8MB for less"


@pytest.mark.parametrize(
    ("device", "end"),
    [
        ("gpu", "--device 'gpu' is no device; write cpu, cuda or, with a number, cuda:0"),
        ("cuda:99", "usable are cpu"),
    ],
)
@pytest.mark.parametrize("command", [["bench"], ["predict", "a.xyz"]])
def test_a_device_that_is_not_there(command, device, end, capsys, monkeypatch):
    """Before anything is loaded: neither the data nor the model exist here."""
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    line = answer(capsys, *command, "--device", device)
    assert end in line


@pytest.mark.parametrize(
    ("flags", "package", "remedy"),
    [
        (["--use_wandb"], "wandb", "or pass --use_wandb false"),
        (["--preset", "original"], "wandb", "or pass --use_wandb false"),
        (["--use_tensorboard"], "tensorboard", "or pass --use_tensorboard false"),
        ([], "qm9pack", "or name your own molecules with --root"),
    ],
)
def test_a_package_that_is_not_installed(flags, package, remedy, capsys, monkeypatch):
    from importlib.util import find_spec

    def missing(name, *args):
        return None if name == package else find_spec(name, *args)

    monkeypatch.setattr("importlib.util.find_spec", missing)
    monkeypatch.setattr("torchkiln.apps.schnet._experiment.load_dataset", None)  # not reached
    line = answer(capsys, "bench", *flags)
    extra = {"qm9pack": "qm9"}.get(package, package)
    assert f"needs the package {package}, which is not installed" in line
    assert f"`pip install 'torchkiln[{extra}]'`" in line
    assert remedy in line
