import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from torchkiln.apps.cosmic import ComputeMode, OptimizerKind, Settings, main, read_settings
from torchkiln.apps.cosmic._settings import ModeKind
from torchkiln.core import OptionsError

CONFIGS = Path(__file__).parents[3] / "configs"


def test_hydras_form_and_flags_mean_the_same():
    hydra = read_settings(["mode=iotest", "run.compute_mode=IPU", "mode.optimizer.name=rmsprop"])
    flags = read_settings(
        ["--mode", "iotest", "--run.compute_mode", "IPU", "--mode.optimizer.name", "rmsprop"]
    )
    assert hydra == flags
    assert hydra.mode.name is ModeKind.iotest
    assert hydra.run.compute_mode is ComputeMode.IPU
    assert hydra.mode.optimizer.name is OptimizerKind.rmsprop


def test_without_arguments_everything_has_its_default():
    assert read_settings([]) == Settings()


def test_the_command_line_wins_over_a_config_file(tmp_path):
    path = tmp_path / "some.yml"
    path.write_text("run: {epochs: 7, seed: 3}\nnetwork: {network_depth: 3}\n")
    settings = read_settings(["--config", str(path), "run.seed=4", "--file", "some.h5"])
    assert (settings.run.epochs, settings.run.seed) == (7, 4)
    assert settings.network == {"network_depth": 3}
    assert settings.data.file == Path("some.h5")


def test_the_quick_config_names_seeds_that_differ():
    settings = read_settings(["--config", str(CONFIGS / "cosmic_quick.yml")])
    assert settings.data.seed != settings.data.aux_seed
    assert settings.run.compute_mode is ComputeMode.IPU


@pytest.mark.parametrize(
    ("arg", "message"),
    [
        ("mode=trian", "mode.name must be train, inference, iotest or fit, got 'trian'"),
        ("run.compute_mode=TPU", "run.compute_mode must be CPU, CUDA or IPU"),
        ("run.minibatch_size=0", "run.minibatch_size must be at least 1, got 0"),
        ("run.epoch=3", "run.epoch"),
        ("run.id=a/b", "name of a folder, got 'a/b'"),
        ("mode.optimizer.learning_rate=-1", "above 0, got -1"),
        ("mode.optimizer.warmup=1", "share of the updates"),
        ("data.seed=-1", "data.seed must be at least 0"),
    ],
)
def test_mistakes_are_named(arg, message):
    with pytest.raises(OptionsError, match=message):
        read_settings([arg])


def test_mistakes_of_the_network_are_named_on_one_line(tiny_args, capsys):
    assert main([*tiny_args, "network.network_dept=3"]) == 2
    error = capsys.readouterr().err
    assert "there is no network.network_dept; known are n_initial_filters" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"run: " + b"[" * 3000 + b"]" * 3000, "nested deeper"),
        (b"a: &a [*a]", "stands for nothing"),
        (b"run: {seed: 1}\nrun: {seed: 2}", "line 2: the key 'run' is there twice"),
        (b"run: {seed: \xff}", "line 1: this is no text"),
        (
            b"\n".join(
                [b"a: &a [1]", b"b: &b [" + b"*a," * 200 + b"]", b"c: [" + b"*b," * 99 + b"]"]
            ),
            "aliases repeat",
        ),
        (b"run: [", "neither YAML nor JSON"),
        (b"3", "no names with values"),
        (b"", "no names with values"),
    ],
)
def test_damaged_config_files_are_named(tmp_path, content, message):
    path = tmp_path / "wrong.yml"
    path.write_bytes(content)
    for args in (["--config", str(path)], [f"--config={path}"]):
        with pytest.raises(OptionsError, match=message) as caught:
            read_settings(args)
        assert "wrong.yml" in str(caught.value)


def test_a_missing_config_file_is_named(tmp_path):
    with pytest.raises(OptionsError, match=r"none\.yml"):
        read_settings(["--config", str(tmp_path / "none.yml")])


def test_a_config_may_be_the_settings_themselves():
    for args in (["--config", "{run: {id: abc}}"], ["--config=---\nrun:\n  id: abc\n"]):
        assert read_settings(args).run.id == "abc"
    with pytest.raises(OptionsError, match=r"--config, line 1: .*'run' is there twice"):
        read_settings(["--config", "{run: {seed: 1}, run: {seed: 2}}"])
    with pytest.raises(OptionsError, match=r"--config '\[a: 3\]' is neither a file nor names"):
        read_settings(["--config", "[a: 3]"])


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["pipe", "fifo"])
@pytest.mark.parametrize("comment", ["", "# longer than any name of a file\n" * 500])
def test_a_config_may_come_through_a_pipe(tmp_path, kind, comment):
    text = f"---\n{comment}run: {{id: abc}}\n".encode()
    if kind == "pipe":
        reading, writing = os.pipe()
        os.write(writing, text)
        os.close(writing)
        path = f"/dev/fd/{reading}"
    else:
        path = str(tmp_path / "fifo")
        os.mkfifo(path)
        threading.Thread(target=Path(path).write_bytes, args=(text,), daemon=True).start()
    assert read_settings(["--config", path]).run.id == "abc"
    if kind == "pipe":
        os.close(reading)


def test_a_config_without_a_value_is_named():
    with pytest.raises(OptionsError, match="config"):
        read_settings(["--config"])


def test_deep_values_of_flags_are_our_error():
    with pytest.raises(OptionsError):
        read_settings(["network=" + "[" * 3000 + "]" * 3000])


def test_help_needs_no_torch():
    code = (
        "import sys; from torchkiln.cli import main\n"
        "try: main(['bench', 'cosmic', '--help'])\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "usage: torchkiln bench cosmic" in done.stdout
    assert "mode=inference" in done.stdout


@pytest.mark.parametrize("text", ["data:\n", "mode: {optimizer: }\n", "run:\n  epochs:\n"])
def test_a_key_without_a_value_is_an_error_of_ours(tmp_path, text):
    path = tmp_path / "config.yml"
    path.write_text(text)
    with pytest.raises(OptionsError):
        read_settings(["--config", str(path)])
