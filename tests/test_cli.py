import json
import os
import subprocess
import sys

import pytest

from torchkiln import cli
from torchkiln.runtime.cache._cache import ExecutableCache


def run(*args, **environment):
    return subprocess.run(
        [sys.executable, "-m", "torchkiln.cli", *args],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "120", **environment},
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "args",
    [["--help"], ["bench", "--help"], ["bench", "steps", "--help"], ["cache", "list", "--help"]],
)
def test_help_teaches_and_imports_no_torch(args):
    code = (
        "import sys; from torchkiln.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "usage: torchkiln" in done.stdout


def test_every_parameter_of_a_command_is_explained():
    help_text = " ".join(run("bench", "steps", "--help").stdout.split())
    for words in ("Which models", "Threads to use", "torch.compile", "second process"):
        assert words in help_text


@pytest.fixture
def cache(tmp_path):
    cache = ExecutableCache(tmp_path / "cache", 10**9)
    source = tmp_path / "built.pt2"
    source.write_bytes(b"native code" * 100_000)
    cache.store("0123456789abcdef" * 4, source, "training Classifier(x[16, 4])")
    return cache


def test_cache_list_shows_each_program_with_its_size(cache):
    done = run("cache", "list", "--directory", str(cache.directory))
    assert done.returncode == 0, done.stderr
    assert "training Classifier(x[16, 4])" in done.stdout
    assert "1.0 MB" in done.stdout


def test_cache_clear_takes_the_directory_from_the_environment(cache):
    done = run("cache", "clear", POPTORCH_CACHE_DIR=str(cache.directory))
    assert done.returncode == 0, done.stderr
    assert "freed 1.0 MB" in done.stdout
    assert cache.entries() == []


@pytest.mark.parametrize(
    ("args", "remedy"),
    [
        (["predict"], "no files to predict"),
        (["cache", "list", "--directory", "/no/such/place"], "nothing was cached there yet"),
        (["bench", "steps", "--workloads", "[nonsense]"], "choose from cnn, gcn, mlp, transformer"),
    ],
)
def test_mistakes_get_one_line_with_the_remedy(args, remedy):
    done = run(*args)
    assert done.returncode == 2
    assert remedy in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_directory_the_cache_is_that_of_the_benchmark(tmp_path):
    done = run("cache", "list", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 2
    assert f"{tmp_path}/torchkiln/executables is not a directory" in done.stderr


def test_without_a_command_the_choices_are_named():
    done = run()
    assert done.returncode == 2
    assert done.stdout == ""
    for name in ("bench", "cache", "data", "doctor", "fit", "models", "plan", "predict", "runs"):
        assert f"\n  {name} " in done.stderr


def test_predict_takes_files_without_a_flag(tmp_path, capsys):
    args = ["predict", "--model_name", "unheard_of", "--checkpoint_dir", str(tmp_path), "a.xyz"]
    assert cli.main(args) == 1
    assert "there is no model 'unheard_of'" in capsys.readouterr().err


def test_data_commands_are_wired(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TORCHKILN_DATA_DIR", str(tmp_path))
    assert cli.main(["data", "clear", "--dry_run"]) == 0
    assert "0 files would be deleted" in capsys.readouterr().err
    assert cli.main(["data", "list"]) == 0
    assert "fashion_mnist" in capsys.readouterr().out
    assert cli.main(["data", "cosmic"]) == 2
    assert "--root FOLDER" in capsys.readouterr().err
    assert cli.main(["data", "water", "--subset", "nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err


def test_doctor_tells_what_is_here():
    done = run("doctor")
    assert done.returncode == 0, done.stderr
    for finding in ("torchkiln", "torch", "threads", "C++ compiler", "executable cache"):
        assert finding in done.stdout


@pytest.mark.slow  # several processes start, warm up and are timed
def test_the_benchmark_measures_and_writes_its_figures(tmp_path):
    path = tmp_path / "step.json"
    done = run(
        *["bench", "steps", "--workloads", "[cnn]", "--repeats", "2", "--seconds", "0.01"],
        *["--warm_start", "true", "--json", str(path)],
        TORCHKILN_BACKEND="capture",
    )
    assert done.returncode == 0, done.stderr
    assert "vs eager" in done.stdout
    figures = json.loads(path.read_text())["results"]["cnn"]
    assert set(figures) == {"eager", "torchkiln"}
    assert figures["torchkiln"]["step_us"] > 0
    assert figures["torchkiln"]["warm_s"] > 0


def test_an_unknown_command_is_refused(capsys):
    assert cli.main(["fire"]) == 2
    assert "there is no command 'fire'; there are bench, cache" in capsys.readouterr().err
